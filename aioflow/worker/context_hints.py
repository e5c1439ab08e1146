"""Hints for a failed ``kwargs[key]`` whose key exists in Airflow's context, but not in ours."""

from __future__ import annotations

import inspect
from types import FrameType

from aioflow.author.airflow_context import CONTEXT_INSTEAD, context_hint
from aioflow.author.context import INJECTED
from aioflow.worker.withheld_variables import last_frame

__all__ = ("hint_of",)


def hint_of(problem: BaseException) -> str:
    """Return what to write instead of e.g. ``kwargs["ti"]``; empty for any other exception."""
    if type(problem) is not KeyError or len(problem.args) != 1:
        return ""
    key = problem.args[0]
    if not isinstance(key, str) or key not in CONTEXT_INSTEAD:
        return ""
    frame = last_frame(problem.__traceback__)
    is_filled = frame is not None and _was_filled(frame)
    return f" is no key of the context{context_hint(key)}" if is_filled else ""


def _was_filled(frame: FrameType) -> bool:
    """Return whether the ``**`` parameter of the function was filled with the run's context."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return False
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames
    kwargs = frame.f_locals.get(names[count + bool(code.co_flags & inspect.CO_VARARGS)])
    return isinstance(kwargs, dict) and kwargs.keys() | set(names[:count]) >= INJECTED
