"""The client for queries to the daemon: for user code, for how runs end, and for result pages.

All waiters in a child share one continuing query about the end of any number of runs. Each awaited
run takes memory only for its waiter's key and a number. All requests of one loop iteration are sent
in few messages, and so are the replies. The result pages that a try reads are fetched before its
body begins.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from aioflow.author import codec
from aioflow.author.client import NamedEvent, RunEnding
from aioflow.author.node import Node
from aioflow.core.state.packed_maps import Digests, Pages
from aioflow.errors import AioflowError, TaskError, UnknownValue
from aioflow.model.dag import ValueKind
from aioflow.model.ids import RunNo
from aioflow.model.timestamps import Timestamp, to_timestamp
from aioflow.protocol.commands import Hello, Reply, StartTask
from aioflow.results import ResultFiles
from aioflow.worker.failures import print_traceback
from aioflow.worker.query import messages, values
from aioflow.worker.query.messages import (
    PAGE_ITEMS,
    FilesCopied,
    FilesWanted,
    ResultsPage,
    ResultsWanted,
    RunsWanted,
    RunWanted,
    SpoolWanted,
    check_name,
    only,
)
from aioflow.worker.query.named_events import EventFollower, Subscriptions
from aioflow.worker.shared_host import ReportBuffer
from aioflow.worker.task.arguments import KnownRun, streamed_from, wanted_children, wanted_parents
from aioflow.worker.task.body import PagesOfRun
from aioflow.worker.task_supervisor import current_coroutine, watching

__all__ = (
    "FetchPage",
    "HostedFiles",
    "QueryChannels",
    "QueryClient",
    "RunCompletionQueries",
    "RunQueryClient",
    "SingleRunQueries",
    "TriggerQueryClient",
    "fetch_page",
    "fetch_pages_ahead",
    "no_page",
)

OnRunEnded: TypeAlias = Callable[[Hashable, RunEnding | AioflowError], None]

_Target: TypeAlias = tuple[RunNo, str, str | None]


class RunCompletionQueries:
    """Queries how runs end.

    Args:
        on_ended: Called once per request, unless ``forget`` cancels the request before.
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
        self._numbers: Digests[Hashable] = Digests(_waiter_digest)
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
        task_key: tuple[int, int],
    ) -> None:
        """Request to be notified when one run ends.

        Args:
            of: Key of the waiter, passed to ``on_ended``. A key requested twice is notified twice.
            target: The run on whose behalf to query, the DAG, and one of its tasks or ``None``.
            task_key: The task index and ``map_index`` of the waiting task.

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
        self._requested[target].append(RunWanted(number, run_id, logical_date, since, *task_key))
        self._send_soon()

    def forget(self, of: Hashable) -> None:
        """Cancel the requests of a waiter. Requests that have been answered are ignored."""
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
        """Return a waiter's numbers, possibly mixed with those of a key with the same digest."""
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
            for ended in msgspec.msgpack.decode(answer.body, type=list[messages.RunEnded]):
                self._notify_one(ended.number, _run_outcome(ended.ending))
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
            print_traceback(exc)  # other waiters must still be notified


class SingleRunQueries:
    """Waits for single runs. All waiters in a child share one query."""

    __slots__ = ("_endings",)

    def __init__(self, reports: ReportBuffer) -> None:
        self._endings = RunCompletionQueries(reports, _resolve)

    async def ended(
        self,
        target: _Target,
        run_id: str | None,
        logical_date: int | None,
        since: int,
        task_key: tuple[int, int],
    ) -> RunEnding:
        """Return how a run ended. There is no timeout; see ``RunCompletionQueries.request``.

        Raises:
            TaskError: If it will never be known how the run ended.
            Unserializable: If the request cannot be encoded.
        """
        ending: asyncio.Future[RunEnding] = asyncio.get_running_loop().create_future()
        self._endings.request(ending, target, run_id, logical_date, since, task_key)
        try:
            return await ending
        finally:
            self._endings.forget(ending)


def _waiter_digest(of: Hashable) -> int:
    return hash(of) & (1 << 64) - 1


def _resolve(of: Hashable, outcome: RunEnding | AioflowError) -> None:
    assert isinstance(of, asyncio.Future)  # noqa: S101 - for the type checker
    if of.done():
        return
    if isinstance(outcome, AioflowError):
        of.set_exception(outcome)
    else:
        of.set_result(outcome)


def _run_outcome(ending: messages.RunEnding | str) -> RunEnding | AioflowError:
    if isinstance(ending, str):
        return TaskError(ending)
    try:
        result = None if ending.result is None else codec.decode(ending.result)
    except AioflowError as exc:
        return exc
    return RunEnding(ending.run_id, ending.state, result)


NO_RUN, NO_TASK_KEY = -1, (-1, -1)


class QueryChannels:
    """The query channels shared by all code in this child, so that equal queries are merged."""

    __slots__ = ("endings", "events", "reports")

    def __init__(self, reports: ReportBuffer) -> None:
        self.reports = reports
        self.events = Subscriptions(reports)
        self.endings = SingleRunQueries(reports)


class QueryClient:
    """Queries on behalf of one task. The daemon answers only what that task's run may read.

    Implements ``aioflow.author.client.QuerySender``.
    """

    __slots__ = ("_channels", "_dag_id", "_run_no", "_task_key")

    def __init__(
        self,
        channels: QueryChannels,
        run_no: int,
        task_key: tuple[int, int] = NO_TASK_KEY,
        *,
        dag_id: str = "",
    ) -> None:
        self._channels = channels
        self._dag_id = dag_id
        self._run_no = run_no
        self._task_key = task_key

    @property
    def run_no(self) -> int:
        """The run on whose behalf the client queries."""
        return self._run_no

    @property
    def task_key(self) -> tuple[int, int]:
        """The task index and ``map_index`` of the waiting task."""
        return self._task_key

    async def run_ending(
        self,
        dag_id: str,
        *,
        task_id: str | None,
        run_id: str | None,
        logical_date: datetime | None,
        since: datetime,
    ) -> RunEnding:
        when = (_timestamp_or_none(logical_date), to_timestamp(since))
        target = (self.run_no, dag_id, task_id)
        return await self._channels.endings.ended(target, run_id, *when, self.task_key)

    async def value(self, kind: ValueKind, name: str) -> Any:
        names = ((kind, name),)
        body = values.encoded_query(self._declaring, names)
        try:
            answer = await self._channels.reports.query(self.run_no, "values", body)
        except TaskError as exc:
            raise UnknownValue(str(exc)) from None
        return values.decoded(names, answer)[kind, name]

    @property
    def _declaring(self) -> int:
        """The index of the task that declares the requested value."""
        return self.task_key[0]

    def follow_runs(
        self, tell: Callable[[Hashable, RunEnding | AioflowError], None]
    ) -> RunQueryClient:
        return RunQueryClient(self, RunCompletionQueries(self._channels.reports, tell))

    def named_events(
        self, name: str, *, key: str | None, after: int | None
    ) -> AsyncGenerator[NamedEvent, None]:
        behind = self.run_start_id() if after is None else after
        return self._channels.events.events(self.run_no, name, key, behind)

    def follow_events(
        self, name: str, tell: Callable[[Hashable, NamedEvent | AioflowError], None]
    ) -> EventFollower:
        return EventFollower(self._channels.events, name, lambda: self.run_no, tell)

    def run_start_id(self) -> int:
        # All numbers come from one sequence, so rows stored after the creation of the run have
        # higher ones.
        return self.run_no

    def own_dag_id(self) -> str:
        return self._dag_id


class TriggerQueryClient(QueryClient):
    """Queries on behalf of the trigger or watch that is running.

    There is one instance per child.
    """

    __slots__ = ()

    def __init__(self, channels: QueryChannels) -> None:
        super().__init__(channels, NO_RUN)

    @property
    def run_no(self) -> int:
        """See ``QueryClient``."""
        return getattr(current_coroutine.get(), "run_no", NO_RUN)

    @property
    def task_key(self) -> tuple[int, int]:
        """See ``QueryClient``."""
        return getattr(current_coroutine.get(), "task_key", NO_TASK_KEY)

    def follow_events(
        self, name: str, tell: Callable[[Hashable, NamedEvent | AioflowError], None]
    ) -> EventFollower:
        # Use the watch, not the first of its triggers, because other triggers still wait after its
        # removal.
        of = watching.get() or current_coroutine.get()
        return EventFollower(
            self._channels.events, name, lambda: getattr(of, "run_no", NO_RUN), tell
        )

    def own_dag_id(self) -> str:
        return getattr(current_coroutine.get(), "dag_id", "")

    @property
    def _declaring(self) -> int:
        return -1  # a trigger declares its values in its code alone


class RunQueryClient:
    """Queries about many runs, each on behalf of the trigger whose code is running at the time.

    Implements ``aioflow.author.client.RunFollower``.
    """

    __slots__ = ("_asker", "_endings")

    def __init__(self, asker: QueryClient, endings: RunCompletionQueries) -> None:
        self._asker = asker
        self._endings = endings

    def ask(
        self,
        of: Hashable,
        dag_id: str,
        *,
        task_id: str | None,
        run_id: str | None,
        logical_date: datetime | None,
        since: datetime,
    ) -> None:
        target = (self._asker.run_no, dag_id, task_id)
        when = (_timestamp_or_none(logical_date), to_timestamp(since))
        self._endings.request(of, target, run_id, *when, self._asker.task_key)

    def forget(self, of: Hashable) -> None:
        self._endings.forget(of)


def _timestamp_or_none(moment: datetime | None) -> Timestamp | None:
    return None if moment is None else to_timestamp(moment)


FetchPage: TypeAlias = Callable[[int, int, int], Awaitable[ResultsPage]]
"""Fetches the page of results for ``(run_no, task_index, after)``."""


async def fetch_page(
    reports: ReportBuffer, run_no: int, task_index: int, after: int
) -> ResultsPage:
    """Query the daemon for a page of results.

    Raises:
        TaskError: If the daemon replies with an error.
    """
    wanted = msgspec.msgpack.encode(ResultsWanted(task_index, after))
    return msgspec.msgpack.decode(await reports.query(run_no, "results", wanted), type=ResultsPage)


async def fetch_pages_ahead(
    run: KnownRun, node: Node, start: StartTask, fetch: FetchPage, files: HostedFiles
) -> PagesOfRun:
    """Fetch all pages of the parents' results, because reading a sequence must not block the loop.

    For the same reason, have large results copied that are stored outside the home.
    """
    if not (start.is_closing or run.asks_for_results(node)):
        await files.copy_ahead(start, ())
        return no_page
    pages: dict[tuple[int, int], ResultsPage] = {}
    for task_index in wanted_parents(run, node, start):
        after, more = (-2 if task_index >= 0 else -1), True
        while more:
            page = await fetch(start.run_no, task_index, after)
            pages[task_index, after] = page
            after, more = page.last, page.more
    for task_index, index in wanted_children(node, start):
        pages[task_index, only(index)] = await fetch(start.run_no, task_index, only(index))
    if (source := streamed_from(run, node, start)) is not None and start.item is None:
        after = start.map_index - 1
        pages[source, after] = await fetch(start.run_no, source, after)
    await files.copy_ahead(start, pages.values())
    return lambda _, task_index, after: pages[task_index, after]


class HostedFiles(ResultFiles):
    """The result files of a shared child, which must not wait for a copy while a value is read."""

    def __init__(self, hello: Hello, reports: ReportBuffer) -> None:
        super().__init__(Path(hello.results), Path(hello.copies) if hello.copies else None)
        self._reports = reports

    async def copy_ahead(self, start: StartTask, pages: Iterable[ResultsPage]) -> None:
        """Wait until the large results that a try reads are on this machine.

        Raises:
            TaskError: If one of the results cannot be fetched.
        """
        if self.copies is None:
            return
        keys = {(task_no, start_no): None for _, task_no, start_no in start.sources}
        for page in pages:
            for _, task_no, start_no, body in page.items:
                if body is None and start_no:
                    keys[task_no, start_no] = None
        missing = tuple(key for key in keys if not self.has(*key))
        if missing:
            wanted = msgspec.msgpack.encode(FilesWanted(missing))
            got = await self._reports.query(start.run_no, "files", wanted)
            msgspec.msgpack.decode(got, type=FilesCopied).check()

    async def may_write(self, start: StartTask, size: int) -> None:
        """Wait for permission to write a result file, if the file is to be stored elsewhere."""
        if self.copies is not None:
            wanted = msgspec.msgpack.encode(SpoolWanted(start.task_no, start.start_no, size))
            await self._reports.query(start.run_no, "spool", wanted)


def no_page(run_no: int, task_index: int, after: int) -> ResultsPage:
    """Raise, because this try needs no results of other tasks. Used in place of a page reader.

    Raises:
        LookupError: Always.
    """
    raise LookupError(f"results of {task_index} after {after} were not fetched")
