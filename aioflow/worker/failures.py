"""Conversion of exceptions of user code to one clean line for the row and a traceback for the log.

If ``kwargs[key]`` failed because the key exists in Airflow's context but not in aioflow's, the
line says what to write instead.
"""

from __future__ import annotations

import importlib
import inspect
import reprlib
import sys
import traceback
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from aioflow.author.context import CONTEXT_INSTEAD, INJECTED, context_hint
from aioflow.model.states import Failure
from aioflow.worker.query.values import masks
from aioflow.worker.withheld_variables import last_frame, withheld_variable_hint

__all__ = (
    "MESSAGE_LIMIT",
    "context_key_hint",
    "failure_of",
    "one_line",
    "print_traceback",
    "text_of",
    "traceback_of",
)


def context_key_hint(problem: BaseException) -> str:
    """Return what to write instead of e.g. ``kwargs["ti"]``; empty for other exceptions."""
    if type(problem) is not KeyError or len(problem.args) != 1:
        return ""
    key = problem.args[0]
    if not isinstance(key, str) or key not in CONTEXT_INSTEAD:
        return ""
    frame = last_frame(problem.__traceback__)
    is_filled = frame is not None and _has_context(frame)
    return f" is not a key of the context{context_hint(key)}" if is_filled else ""


def _has_context(frame: FrameType) -> bool:
    """Return whether the ``**`` parameter of the function was filled with the run's context."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return False
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames
    kwargs = frame.f_locals.get(names[count + bool(code.co_flags & inspect.CO_VARARGS)])
    return isinstance(kwargs, dict) and kwargs.keys() | set(names[:count]) >= INJECTED


MESSAGE_LIMIT = 4 * 1024
"""Maximum bytes of a message in UTF-8."""

_MADE = "_aioflow_text"
"""Attribute of an exception that caches the text returned by its ``__str__``."""

_NOT_SHOWN = "<exception str() failed>"
"""Placeholder in a traceback for a text that could not be produced."""

_SHOWN_ITEMS = 100_000
"""Maximum number of items in an exception's arguments. The text of a larger one is not built.

An item that occurs repeatedly is counted each time.
"""

_OURS = (__file__.rpartition("/")[0], "<frozen importlib.", importlib.__file__)


def one_line(text: str) -> str:
    """Return text as one line of valid UTF-8, at most ``MESSAGE_LIMIT`` bytes long."""
    line = " ".join(text.split())
    data = line.encode("utf-8", "backslashreplace")
    if len(data) <= MESSAGE_LIMIT:
        return data.decode()
    return data[: MESSAGE_LIMIT - 3].decode("utf-8", "ignore") + "..."


def failure_of(problem: BaseException, reason: str = "") -> Failure:
    """Return the stored form of an exception.

    Args:
        problem: An exception of user code.
        reason: Machine-readable reason. The default is ``exit`` for ``SystemExit``, and ``raised``
            for any other exception.
    """
    kind = type(problem)
    if isinstance(problem, SystemExit):
        return Failure(type="SystemExit", message=_exit_message(problem), reason=reason or "exit")
    return Failure(
        type=one_line(kind.__name__), message=_message(problem), reason=reason or "raised"
    )


def _message(problem: BaseException) -> str:
    try:
        hint = withheld_variable_hint(problem) or context_key_hint(problem)
        return one_line(masks.masked_text(text_of(problem) + hint))
    except BaseException as exc:  # noqa: BLE001 - user code's __str__ may do anything
        return f"(its message cannot be shown: __str__ raised {type(exc).__name__})"


def _exit_message(problem: SystemExit) -> str:
    try:
        code = problem.code if _can_be_shown(problem.code) else reprlib.repr(problem.code)
        return one_line(masks.masked_text(f"sys.exit({code!r}) was called"))
    except BaseException:  # noqa: BLE001 - user code's __repr__ may do anything
        return "sys.exit was called"


def text_of(problem: BaseException) -> str:
    """Return the text of an exception, shortened if it would take too much memory.

    The text of a list repeats each item as often as the list contains it, at any depth. If each of
    a few dozen nested lists contains the next one twice, the text is practically endless. Because
    ``__str__`` may be slow, the text cached by ``traceback_of`` is reused.
    """
    made = getattr(problem, _MADE, None)
    if isinstance(made, str):
        return made
    if _can_be_shown(problem.args):
        return str(problem)
    return ", ".join(map(reprlib.repr, problem.args))


def _remember_text(problem: BaseException, shown: traceback.TracebackException) -> None:
    text = getattr(shown, "_str", None)
    if isinstance(text, str) and text != _NOT_SHOWN:
        with suppress(Exception):  # the __setattr__ of user code may do anything
            setattr(problem, _MADE, text)


def _shorten_args(problem: BaseException) -> None:
    """Shorten arguments with overlong texts, in the exception, its causes and its contexts."""
    seen: dict[int, BaseException] = {}
    left: list[BaseException | None] = [problem]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen[id(one)] = one
        if not _can_be_shown(one.args):
            one.args = tuple(arg if _can_be_shown(arg) else reprlib.repr(arg) for arg in one.args)
        left += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions


def _can_be_shown(value: Any) -> bool:
    """Return whether the text of a value has a reasonable size, including nested containers."""
    items, count = [value], 0
    while items:
        item = items.pop()
        kind = type(item)
        if kind is dict:
            count += 2 * len(item)
        elif kind in _CONTAINERS:
            count += len(item)
        if count > _SHOWN_ITEMS:
            return False
        if kind is dict:
            items += item.keys()
            items += item.values()
        elif kind in _CONTAINERS:
            items += item
    return True


def print_traceback(problem: BaseException) -> None:
    """Print the traceback to the log of the try, starting at the first frame outside aioflow."""
    try:
        sys.stderr.write(traceback_of(problem))
    except BaseException as exc:  # noqa: BLE001 - sys.stderr of user code
        _say(f"{type(problem).__name__}, which could not be printed: {type(exc).__name__}\n")


def traceback_of(problem: BaseException) -> str:
    """Return the text that ``print_traceback`` prints."""
    try:
        _shorten_args(problem)
        trace = _without_ours(problem.__traceback__)
        shown = traceback.TracebackException(type(problem), problem, trace, compact=True)
        _remember_text(problem, shown)
        return "".join(shown.format()).encode("utf-8", "backslashreplace").decode()
    except BaseException as exc:  # noqa: BLE001 - __str__ or __cause__ of user code
        return f"{type(problem).__name__}, whose traceback raised {type(exc).__name__}\n"


_CONTAINERS = frozenset({list, tuple, set, frozenset})


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace


def _say(text: str) -> None:
    stream = sys.__stderr__
    if stream is not None and not stream.closed:
        stream.write(text)
