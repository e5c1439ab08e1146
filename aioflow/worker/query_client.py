"""Sends queries of user code to the daemon."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable
from datetime import datetime
from typing import Any

from aioflow.author.client import NamedEvent, RunEnding
from aioflow.errors import AioflowError, TaskError, UnknownValue
from aioflow.model.dag import ValueKind
from aioflow.model.timestamps import Timestamp, to_timestamp
from aioflow.worker import values
from aioflow.worker.named_events import EventFollower, Subscriptions
from aioflow.worker.run_completion import RunCompletionQueries, SingleRunQueries
from aioflow.worker.shared_host import ReportBuffer
from aioflow.worker.task_supervisor import current_coroutine, watching

__all__ = ("QueryChannels", "QueryClient", "RunQueryClient", "TriggerQueryClient")

NO_RUN, NO_TASK_INDEX = -1, (-1, -1)


class QueryChannels:
    """The query channels shared by all code in this child, so that equal queries are merged."""

    __slots__ = ("endings", "events", "reports")

    def __init__(self, reports: ReportBuffer) -> None:
        self.reports = reports
        self.events = Subscriptions(reports)
        self.endings = SingleRunQueries(reports)


class QueryClient:
    """Queries on behalf of one task. The daemon answers only what the task's run may know.

    Implements ``aioflow.author.client.QuerySender``.
    """

    __slots__ = ("_channels", "_dag_id", "_run_no", "_task_index")

    def __init__(
        self,
        channels: QueryChannels,
        run_no: int,
        task_index: tuple[int, int] = NO_TASK_INDEX,
        *,
        dag_id: str = "",
    ) -> None:
        self._channels = channels
        self._dag_id = dag_id
        self._run_no = run_no
        self._task_index = task_index

    @property
    def run_no(self) -> int:
        """The run on whose behalf it queries."""
        return self._run_no

    @property
    def task_index(self) -> tuple[int, int]:
        """The position and ``map_index`` of the waiting task."""
        return self._task_index

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
        return await self._channels.endings.ended(target, run_id, *when, self.task_index)

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
        """The position of the task that declares the requested value."""
        return self.task_index[0]

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
        # All numbers come from one sequence: what was stored after the run was created is higher.
        return self.run_no

    def own_dag_id(self) -> str:
        return self._dag_id


class TriggerQueryClient(QueryClient):
    """Queries on behalf of the trigger or watch that is running; one instance per child."""

    __slots__ = ()

    def __init__(self, channels: QueryChannels) -> None:
        super().__init__(channels, NO_RUN)

    @property
    def run_no(self) -> int:
        """See ``QueryClient``."""
        return getattr(current_coroutine.get(), "run_no", NO_RUN)

    @property
    def task_index(self) -> tuple[int, int]:
        """See ``QueryClient``."""
        return getattr(current_coroutine.get(), "task_index", NO_TASK_INDEX)

    def follow_events(
        self, name: str, tell: Callable[[Hashable, NamedEvent | AioflowError], None]
    ) -> EventFollower:
        # Not on behalf of the first trigger alone: others still wait after that one is removed.
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
        self._endings.request(of, target, run_id, *when, self._asker.task_index)

    def forget(self, of: Hashable) -> None:
        self._endings.forget(of)


def _timestamp_or_none(moment: datetime | None) -> Timestamp | None:
    return None if moment is None else to_timestamp(moment)
