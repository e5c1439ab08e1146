"""The outcome of a try: reports of its result or exception, and the file of its result.

A task whose body has succeeded must not fail or run again because the disk is temporarily full.
So the process keeps the result in memory and retries the write. The task's log states that.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from typing import TypeAlias

import msgspec

from aioflow.author import codec
from aioflow.author.codec import Steps
from aioflow.author.deferral import Fail, NotReady, RetryAfter, Skip, TaskDeferred
from aioflow.author.node import Node, Part
from aioflow.author.trigger import FIELDS_LIMIT, serialized
from aioflow.core.tasks.expand import WIDTH_LIMIT, check_cap
from aioflow.errors import (
    BadConf,
    CallCutShort,
    CallMismatch,
    FanOutCapped,
    ResultDamaged,
    ResultMissing,
    TaskTimeout,
    UnknownValue,
    Unserializable,
    ValueTooLarge,
)
from aioflow.model.states import CODE_MISSING, IMPORT_ERROR, Failure
from aioflow.protocol.commands import StartTask
from aioflow.protocol.reports import (
    Deferred,
    Ended,
    EventsHandled,
    Failed,
    ResultWriteFailed,
    SensorNotReady,
    Skipped,
    Succeeded,
)
from aioflow.results import (
    INLINE_LIMIT,
    RESULT_LIMIT,
    ResultFiles,
    result_path,
    write_list,
    write_value,
)
from aioflow.worker.code.loader import CodeMissing
from aioflow.worker.failures import failure_of, one_line, print_traceback
from aioflow.worker.link import packed
from aioflow.worker.query.values import without_secrets
from aioflow.worker.task.arguments import BadArgument, RunUnknown, spec_of
from aioflow.worker.task.branching import BadChoice, skipped_by
from aioflow.worker.task.items import ItemTooLarge, gathered_items

__all__ = (
    "LostInHost",
    "OnWriteFailed",
    "Packed",
    "ResultTooLarge",
    "ended_badly",
    "gives_items",
    "handled",
    "is_ignored",
    "not_begun",
    "now",
    "pack",
    "pack_at_once",
    "succeeded",
    "write_failure_reporter",
    "write_result",
    "write_result_in_thread",
)


class ResultTooLarge(Exception):
    """Raised if a result exceeds ``RESULT_LIMIT`` bytes."""


class NotAList(Exception):
    """Raised if a task that feeds an ``expand`` returned a value that is not a list."""

    def __init__(self, task_id: str, value: object) -> None:
        hint = "; its pairs are list(x.items())" if isinstance(value, dict) else ""
        super().__init__(
            f"{task_id!r} returned a {type(value).__name__}, but a task expands over its "
            f"result, so it must return a list{hint}"
        )


class NotASensor(Exception):
    """Raised if a task other than a sensor raised ``NotReady``."""

    def __init__(self, task_id: str, raised: NotReady) -> None:
        super().__init__(f"{task_id!r} raised NotReady, but only a sensor can be not ready yet")
        self.__cause__ = raised  # shows its source in the log


class LostInHost(Exception):
    """Raised if a try ended without an outcome. This internal error must not consume a retry."""

    def __init__(self) -> None:
        super().__init__("the host lost it; see the log of the daemon")


class Packed(msgspec.Struct, frozen=True):
    """An encoded result, ready to be stored.

    Attributes:
        body: Inline result for the database row; ``None`` if there is no result or it goes into a
            file.
        size: Bytes of the result.
        width: Length of the list, if other tasks expand over it; ``None`` otherwise.
        write: Writes the result file durably. It blocks. ``None`` if there is no file.
        skips: Indexes of the tasks to skip.
        again: Whether the loop that this task controls starts another iteration.
    """

    body: bytes | None = None
    size: int = 0
    width: int | None = None
    write: Callable[[], None] | None = None
    skips: tuple[int, ...] = ()
    again: bool = False


def now() -> int:
    """Return the current timestamp."""
    return time.time_ns() // 1_000


_NOTHING = Packed()

_ITEMS_PER_STEP = 8

_AT_ONCE = frozenset({bool, float, int, str})
"""Types that are encoded without running user code."""


def pack_at_once(node: Node, value: object) -> Packed | None:
    """Return the encoded result if it needs no steps; ``None`` if ``pack`` must run.

    Most results are ``None`` or one small value, and need no steps.
    """
    spec = spec_of(node)
    if node.part is not Part.WORK or spec.feeds_limit is not None or spec.streams:
        return None
    if value is None:
        return _NOTHING
    if type(value) not in _AT_ONCE:
        return None
    body = codec.at_most(value, INLINE_LIMIT)
    return None if body is None else Packed(body, len(body))


def pack(node: Node, start: StartTask, value: object, results: ResultFiles) -> Steps[Packed]:
    """Encode a task's return value within the limits. If it is a generator, this runs user code.

    Raises:
        Unserializable: If the value cannot be encoded.
        FanOutCapped: If the value has more items than the tasks that expand over it allow.
        NotAList: If a task expands over the value, and it is not a list.
        ResultTooLarge: If the value exceeds ``RESULT_LIMIT`` bytes.
        BadChoice: If the value chooses a task that is not directly downstream of this one.
    """
    if spec_of(node).streams:
        return _NOTHING  # the items of the task have been emitted
    if node.part is Part.UNTIL:
        return Packed(again=not value)
    skips = skipped_by(node, value)
    try:
        made = yield from _pack(node, start, value, results)
    except ValueTooLarge as exc:
        raise ResultTooLarge(str(ValueTooLarge(exc.where, RESULT_LIMIT))) from None
    return msgspec.structs.replace(made, skips=skips) if skips else made


def _pack(node: Node, start: StartTask, value: object, results: ResultFiles) -> Steps[Packed]:
    limit = spec_of(node).feeds_limit
    if limit is not None:
        return (yield from _pack_list(node, start, value, results, limit))
    if value is None:
        return _NOTHING
    body = yield from codec.in_steps(value, f"the result of {node.task_id!r}", RESULT_LIMIT)
    size = len(body)
    if size <= INLINE_LIMIT:
        return Packed(body, size)
    path = result_path(results.folder, start.task_no, start.start_no)
    return Packed(None, size, None, partial(write_value, path, body, sync=results.sync))


def _pack_list(
    node: Node, start: StartTask, value: object, results: ResultFiles, limit: int
) -> Steps[Packed]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | bytearray | dict):
        raise NotAList(node.task_id, value)
    if isinstance(value, list | tuple):
        _check_width(len(value), limit)
    # Count the items instead of calling len: a user class may have a wrong __len__, and a generator
    # has none.
    bodies: list[bytes] = []
    size, allowed = 0, min(limit, WIDTH_LIMIT)
    for item in islice(value, limit + 1):
        if len(bodies) >= allowed:
            _check_width(len(bodies) + 1, limit, is_whole=False)
        body = codec.at_most(item, RESULT_LIMIT - size)
        if body is None:
            where = f"item {len(bodies)} of the result of {node.task_id!r}"
            body = yield from codec.in_steps(item, where, RESULT_LIMIT - size)
        bodies.append(body)
        size += len(body)
        if not len(bodies) % _ITEMS_PER_STEP:
            yield
    if not bodies:
        empty = codec.encode([], "", RESULT_LIMIT)
        return Packed(empty, len(empty), 0)
    path = result_path(results.folder, start.task_no, start.start_no)
    write = partial(write_list, path, bodies, sync=results.sync)
    return Packed(None, size, len(bodies), write)


def _check_width(count: int, limit: int, *, is_whole: bool = True) -> None:
    capped = check_cap(count, limit, is_whole=is_whole)
    if capped is not None:
        raise capped


def succeeded(start: StartTask, began_at: int, packed: Packed) -> Succeeded:
    """Return the report of success. Call it after the result has been written."""
    return Succeeded(
        start.task_no,
        start.start_no,
        began_at,
        now(),
        packed.body,
        packed.size,
        packed.width,
        packed.skips,
        packed.again,
    )


def gives_items(node: Node, start: StartTask) -> bool:
    """Return whether the return value becomes stream items of the task instead of its result."""
    return bool(start.upto) or (start.is_closing and spec_of(node).streams)


def handled(node: Node, start: StartTask, began_at: int, value: object) -> Steps[EventsHandled]:
    """Return the report of an execution that handled events, or the end of their stream.

    Raises:
        ItemTooLarge: If the returned items exceed the size limit.
        Unserializable: If the items cannot be encoded.
    """
    items = yield from gathered_items(node, value)
    ended = (start.task_no, start.start_no, began_at, now())
    return EventsHandled(*ended, start.upto, items, start.is_closing)


def not_begun(start: StartTask, problem: BaseException) -> Failed:
    """Return the report of an execution whose run or code could not be loaded."""
    reason = IMPORT_ERROR
    if isinstance(problem, CodeMissing):
        reason = CODE_MISSING
    elif isinstance(problem, RunUnknown | LostInHost):
        reason = "interrupted"
    print_traceback(problem)
    return Failed(
        start.task_no,
        start.start_no,
        None,
        now(),
        failure_of(problem, reason),
        interrupted=reason == "interrupted",
    )


def ended_badly(
    node: Node, start: StartTask, began_at: int, problem: BaseException, operator: object = None
) -> Steps[Ended]:
    """Return the report of a try whose body raised an exception or one of aioflow's signals."""
    try:
        if isinstance(problem, TaskDeferred):
            return (yield from _deferred(node, start, began_at, problem, operator))
        return _ended_badly(node, start, began_at, problem)
    except Unserializable as exc:
        reason, retryable = _KNOWN[
            ValueTooLarge if isinstance(exc, ValueTooLarge) else Unserializable
        ]
        return _failed(start, began_at, exc, reason, retryable=retryable)
    except BaseException as exc:  # noqa: BLE001 - unless= and fields of triggers are user code
        return _failed(start, began_at, exc)


def _ended_badly(node: Node, start: StartTask, began_at: int, problem: BaseException) -> Ended:
    match problem:
        case Skip():
            message = failure_of(problem).message
            return Skipped(start.task_no, start.start_no, began_at, now(), message)
        case NotReady() if node.sensor is not None and not start.method:
            return SensorNotReady(
                start.task_no, start.start_no, began_at, now(), problem.recheck_in_us
            )
        case NotReady():
            return _failed(
                start, began_at, NotASensor(node.task_id, problem), "not_ready", retryable=False
            )
        case RetryAfter():
            return _failed(start, began_at, problem, retry_after_us=problem.delay_us)
        case _ if is_ignored(node, problem):
            print_traceback(problem)
            return SensorNotReady(start.task_no, start.start_no, began_at, now())
        case _:
            return _plainly_failed(node, start, began_at, problem)


def is_ignored(node: Node, problem: BaseException) -> bool:
    """Return whether a sensor ignores this exception of its poke or resume method.

    Signals, invalid arguments or results, and timeouts are never ignored.
    """
    ignores = node.sensor is not None and node.sensor.on_error == "ignore"
    known = (Skip, RetryAfter, *_KNOWN)
    return ignores and isinstance(problem, Exception) and not isinstance(problem, known)


def _plainly_failed(node: Node, start: StartTask, began_at: int, problem: BaseException) -> Failed:
    for kind, (reason, retryable) in _KNOWN.items():
        if isinstance(problem, kind):
            return _failed(start, began_at, problem, reason, retryable=retryable)
    retryable = node.retry is None or node.retry.is_worth(problem)
    return _failed(start, began_at, problem, retryable=retryable)


_KNOWN: dict[type[BaseException], tuple[str, bool]] = {
    Fail: ("raised", False),
    FanOutCapped: ("fanout_cap", False),
    ResultTooLarge: ("result_too_large", False),
    ItemTooLarge: ("payload_too_large", False),
    NotAList: ("not_a_list", False),
    ValueTooLarge: ("payload_too_large", False),
    Unserializable: ("unserializable", False),
    BadConf: ("conf", False),
    BadArgument: ("argument", True),
    BadChoice: ("bad_choice", False),
    TaskTimeout: ("timeout", True),
    UnknownValue: ("value", True),
    ResultMissing: (ResultMissing.code, True),
    ResultDamaged: (ResultDamaged.code, True),
    CallMismatch: ("call_mismatch", False),
    CallCutShort: ("call_cut_short", False),
}
"""For each exception with a fixed meaning, the failure reason and whether a retry may help."""


def _failed(
    start: StartTask,
    began_at: int,
    problem: BaseException,
    reason: str = "",
    *,
    retryable: bool = True,
    retry_after_us: int | None = None,
) -> Failed:
    print_traceback(problem)
    return Failed(
        start.task_no,
        start.start_no,
        began_at,
        now(),
        failure_of(problem, reason),
        retryable,
        retry_after_us,
    )


def _deferred(
    node: Node, start: StartTask, began_at: int, wish: TaskDeferred, operator: object
) -> Steps[Ended]:
    events = spec_of(node).events
    if start.upto:
        message = (
            f"{node.task_id!r} deferred while it consumed events; its stream continues by itself"
        )
        failure = Failure(type="TaskDeferred", message=message, reason="defer_in_stream")
        return Failed(start.task_no, start.start_no, began_at, now(), failure, retryable=False)
    methods = [name for name in (wish.method_name, wish.on_timeout) if name is not None]
    may_end = operator is not None and (events is None or bool(events.method))
    is_missing = wish.method_name is None and not may_end
    if is_missing or not all(callable(getattr(operator, name, None)) for name in methods):
        kind = "a function" if operator is None else f"a {type(operator).__name__}"
        named = " or ".join(map(repr, dict.fromkeys(methods))) or "no method"
        message = f"{node.task_id!r} is {kind} and cannot resume in {named}"
        failure = Failure(type="TaskDeferred", message=one_line(message), reason="no_such_method")
        return Failed(start.task_no, start.start_no, began_at, now(), failure, retryable=False)
    class_path, kwargs = yield from serialized(without_secrets(wish.trigger))
    deferred = Deferred(
        start.task_no,
        start.start_no,
        began_at,
        now(),
        class_path,
        kwargs,
        wish.method_name or "",
        (yield from _next_kwargs(wish)) if wish.kwargs else None,
        wish.timeout_us,
        wish.on_timeout or "",
    )
    packed(deferred)  # check that the names in it, which come from user code, can be encoded
    return deferred


def _next_kwargs(wish: TaskDeferred) -> Steps[bytes]:
    method = wish.method_name or "the method that takes its events"
    return (yield from codec.fields_in_steps(wish.kwargs, f"kwargs of {method}", FIELDS_LIMIT))


OnWriteFailed: TypeAlias = Callable[[bool], None]
"""Called after each failed write, with a flag that tells whether the disk is full."""

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FIRST_DELAY, _LONGEST_DELAY = 0.25, 5.0  # seconds between two writes


def write_failure_reporter(
    start: StartTask, report: Callable[[ResultWriteFailed], None]
) -> OnWriteFailed:
    """Return a function that reports each failed write of a try's result."""
    return lambda disk_is_full: report(
        ResultWriteFailed(start.task_no, start.start_no, disk_is_full)
    )


def write_result(
    write: Callable[[], None], on_failed: OnWriteFailed, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Write in this thread, and retry until it succeeds."""
    for delay in _write_delays():
        try:
            write()
        except OSError as exc:
            _print_write_failure(exc, delay)
            on_failed(exc.errno in _DISK_FULL)
            sleep(delay)
        else:
            return


async def write_result_in_thread(
    write: Callable[[], None],
    threads: Executor | None = None,
    on_failed: OnWriteFailed | None = None,
) -> None:
    """Write in a thread, and retry until it succeeds. No thread is occupied between two attempts.

    Args:
        threads: The executor; the loop's default if not given.
    """
    loop = asyncio.get_running_loop()
    for delay in _write_delays():
        try:
            await loop.run_in_executor(threads, write)
        except OSError as exc:
            _print_write_failure(exc, delay)
            if on_failed is not None:
                on_failed(exc.errno in _DISK_FULL)
            await asyncio.sleep(delay)
        else:
            return


def _write_delays() -> Iterator[float]:
    delay = _FIRST_DELAY
    while True:
        yield delay
        delay = min(2 * delay, _LONGEST_DELAY)


def _print_write_failure(problem: OSError, delay: float) -> None:
    print(  # noqa: T201 - into the log of the task
        f"the result cannot be written: {problem}; it is retried in {delay:g} s",
        flush=True,
    )
