"""Endings of runs, for all waiters in a child: one continuing query for any number of runs.

Each awaited run costs its waiter's key and a number. All requests of one loop iteration are sent
in few messages, and so are the replies.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import TypeAlias

import msgspec

from aioflow.author import codec
from aioflow.author.client import RunEnding
from aioflow.core.state.digests import Digests
from aioflow.core.state.pages import Pages
from aioflow.errors import AioflowError, TaskError
from aioflow.model.ids import RunNo
from aioflow.protocol.commands import Reply
from aioflow.worker import queries
from aioflow.worker.failures import print_traceback
from aioflow.worker.queries import PAGE_ITEMS, RunsWanted, RunWanted, check_name
from aioflow.worker.shared_host import ReportBuffer

__all__ = ("RunCompletionQueries", "SingleRunQueries")

OnRunEnded: TypeAlias = Callable[[Hashable, RunEnding | AioflowError], None]

_Target: TypeAlias = tuple[RunNo, str, str | None]


class RunCompletionQueries:
    """Queries how runs end.

    Args:
        on_ended: Called once per request, unless that is forgotten before.
    """

    __slots__ = (
        "_count",
        "_forgotten",
        "_is_due",
        "_numbers",
        "_on_ended",
        "_question",
        "_reports",
        "_requested",
        "_waiters",
    )

    def __init__(self, reports: ReportBuffer, on_ended: OnRunEnded) -> None:
        self._reports = reports
        self._on_ended = on_ended
        self._count = itertools.count()
        self._waiters: Pages[Hashable] = Pages()
        self._numbers: Digests[Hashable] = Digests(_digest)
        self._requested: defaultdict[_Target, list[RunWanted]] = defaultdict(list)
        self._forgotten: list[int] = []
        self._question = -1
        self._is_due = False

    def request(
        self,
        of: Hashable,
        target: _Target,
        run_id: str | None,
        logical_date: int | None,
        since: int,
        task_index: tuple[int, int],
    ) -> None:
        """Request the ending of one run.

        Args:
            of: Key of the waiter, passed to ``on_ended``. A key requested twice is notified twice.
            target: The run on whose behalf it queries, the DAG, and a task of it or ``None``.
            task_index: The position and ``map_index`` of the waiting task.

        Raises:
            Unserializable: If the request cannot be encoded; other requests are not affected.
        """
        _, dag_id, task_id = target
        check_name("dag_id", dag_id)
        for name, text in (("task_id", task_id), ("run_id", run_id)):
            if text is not None:
                check_name(name, text)
        number = next(self._count)
        self._set_numbers(of, (*self._numbers_of(of), number))
        self._waiters.put(number, of)
        self._requested[target].append(RunWanted(number, run_id, logical_date, since, *task_index))
        self._send_soon()

    def forget(self, of: Hashable) -> None:
        """Cancel the requests of a waiter; does nothing if they have been answered."""
        noted = self._numbers_of(of)
        numbers = [number for number in noted if self._waiters.get(number) == of]
        if not numbers:
            return
        for number in numbers:
            self._waiters.take(number)
        self._set_numbers(of, tuple(number for number in noted if number not in numbers))
        self._forgotten += numbers
        self._send_soon()

    def _numbers_of(self, of: Hashable) -> tuple[int, ...]:
        """Return its numbers, possibly mixed with those of another key with the same digest."""
        known = self._numbers.get(of)
        if known is None:
            return ()
        return known if isinstance(known, tuple) else (known,)

    def _set_numbers(self, of: Hashable, numbers: tuple[int, ...]) -> None:
        if numbers:
            self._numbers.put(of, numbers if len(numbers) > 1 else numbers[0])
        else:
            self._numbers.take(of)

    def _send_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._reports.before_flush(self._send)

    def _send(self) -> None:
        self._is_due = False
        requested, self._requested = self._requested, defaultdict(list)
        forgotten, self._forgotten = self._forgotten, []
        if not self._waiters:
            self._reports.cancel_query(self._question)  # later requests open another query
            self._question = -1
            return
        if self._question < 0:
            self._question = self._reports.open_query(self._handle_reply)
        elif forgotten:
            self._reports.cancel_query(self._question, tuple(forgotten))
        for (run_no, dag_id, task_id), of_target in requested.items():
            runs = [run for run in of_target if run.number in self._waiters]
            for first in range(0, len(runs), PAGE_ITEMS):
                wanted = RunsWanted(dag_id, task_id, runs[first : first + PAGE_ITEMS])
                body = msgspec.msgpack.encode(wanted)
                self._reports.extend_query(self._question, run_no, "runs", body)

    def _handle_reply(self, answer: Reply) -> None:
        if answer.error:
            for number in list(self._waiters):
                self._notify_one(number, TaskError(answer.error))
        else:
            for ended in msgspec.msgpack.decode(answer.body, type=list[queries.RunEnded]):
                self._notify_one(ended.number, _outcome(ended.ending))
        if not self._waiters:
            self._send_soon()

    def _notify_one(self, number: int, outcome: RunEnding | AioflowError) -> None:
        if number not in self._waiters:
            return  # forgotten while the reply was in flight
        of = self._waiters.take(number)
        self._set_numbers(of, tuple(one for one in self._numbers_of(of) if one != number))
        try:
            self._on_ended(of, outcome)
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            print_traceback(exc)  # the others must still be notified


class SingleRunQueries:
    """Waits for single runs; all waits in a child share one query."""

    __slots__ = ("_endings",)

    def __init__(self, reports: ReportBuffer) -> None:
        self._endings = RunCompletionQueries(reports, _settle)

    async def ended(
        self,
        target: _Target,
        run_id: str | None,
        logical_date: int | None,
        since: int,
        task_index: tuple[int, int],
    ) -> RunEnding:
        """Return how a run ended. There is no timeout; see ``RunCompletionQueries.request``.

        Raises:
            TaskError: If that will never be known.
            Unserializable: If the request cannot be encoded.
        """
        ending: asyncio.Future[RunEnding] = asyncio.get_running_loop().create_future()
        self._endings.request(ending, target, run_id, logical_date, since, task_index)
        try:
            return await ending
        finally:
            self._endings.forget(ending)


def _digest(of: Hashable) -> int:
    return hash(of) & (1 << 64) - 1


def _settle(of: Hashable, outcome: RunEnding | AioflowError) -> None:
    assert isinstance(of, asyncio.Future)  # noqa: S101 - for the type checker
    if of.done():
        return
    if isinstance(outcome, AioflowError):
        of.set_exception(outcome)
    else:
        of.set_result(outcome)


def _outcome(ending: queries.RunEnding | str) -> RunEnding | AioflowError:
    if isinstance(ending, str):
        return TaskError(ending)
    try:
        result = None if ending.result is None else codec.decode(ending.result)
    except AioflowError as exc:
        return exc
    return RunEnding(ending.run_id, ending.state, result)
