"""Carries what hosted user code asks to the daemon."""

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
from aioflow.worker.run_completion import Endings, SingleEndings
from aioflow.worker.shared_host import Line
from aioflow.worker.task_supervisor import guest, watching

__all__ = ("Channels", "Follower", "GuestAsker", "LineAsker")

NO_RUN, NOWHERE = -1, (-1, -1)


class Channels:
    """What all in a host ask through, so that the daemon is asked once for many."""

    __slots__ = ("endings", "events", "line")

    def __init__(self, line: Line) -> None:
        self.line = line
        self.events = Subscriptions(line)
        self.endings = SingleEndings(line)


class LineAsker:
    """Asks for one task: what the daemon tells a child is limited to what its run may know.

    Fulfils ``aioflow.author.client.Asker``.
    """

    __slots__ = ("_channels", "_dag_id", "_place", "_run_no")

    def __init__(
        self,
        channels: Channels,
        run_no: int,
        place: tuple[int, int] = NOWHERE,
        *,
        dag_id: str = "",
    ) -> None:
        self._channels = channels
        self._dag_id = dag_id
        self._run_no = run_no
        self._place = place

    @property
    def run_no(self) -> int:
        """The run in whose name it asks."""
        return self._run_no

    @property
    def place(self) -> tuple[int, int]:
        """The position and ``map_index`` of the task that waits."""
        return self._place

    async def run_ending(
        self,
        dag_id: str,
        *,
        task_id: str | None,
        run_id: str | None,
        logical_date: datetime | None,
        since: datetime,
    ) -> RunEnding:
        when = (_instant_or_none(logical_date), to_timestamp(since))
        target = (self.run_no, dag_id, task_id)
        return await self._channels.endings.ended(target, run_id, *when, self.place)

    async def value(self, kind: ValueKind, name: str) -> Any:
        names = ((kind, name),)
        body = values.question(self._declaring, names)
        try:
            answer = await self._channels.line.ask(self.run_no, "values", body)
        except TaskError as exc:
            raise UnknownValue(str(exc)) from None
        return values.told(names, answer)[kind, name]

    @property
    def _declaring(self) -> int:
        """The position of the task that declares what is asked for."""
        return self.place[0]

    def follow_runs(self, tell: Callable[[Hashable, RunEnding | AioflowError], None]) -> Follower:
        return Follower(self, Endings(self._channels.line, tell))

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
        # Numbers are of one series: whatever was stored since the run was made is behind its own.
        return self.run_no

    def own_dag_id(self) -> str:
        return self._dag_id


class GuestAsker(LineAsker):
    """Asks for the run of whatever trigger, or watch, asks: one for all that a host has."""

    __slots__ = ()

    def __init__(self, channels: Channels) -> None:
        super().__init__(channels, NO_RUN)

    @property
    def run_no(self) -> int:
        """See ``LineAsker``."""
        return getattr(guest.get(), "run_no", NO_RUN)

    @property
    def place(self) -> tuple[int, int]:
        """See ``LineAsker``."""
        return getattr(guest.get(), "place", NOWHERE)

    def follow_events(
        self, name: str, tell: Callable[[Hashable, NamedEvent | AioflowError], None]
    ) -> EventFollower:
        # Not in the name of who comes first: others wait on when that one has gone.
        of = watching.get() or guest.get()
        return EventFollower(
            self._channels.events, name, lambda: getattr(of, "run_no", NO_RUN), tell
        )

    def own_dag_id(self) -> str:
        return getattr(guest.get(), "dag_id", "")

    @property
    def _declaring(self) -> int:
        return -1  # the code of a trigger is all that says so


class Follower:
    """Asks for many runs, each in the name of whoever has its code run just then.

    Fulfils ``aioflow.author.client.RunFollower``.
    """

    __slots__ = ("_asker", "_endings")

    def __init__(self, asker: LineAsker, endings: Endings) -> None:
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
        when = (_instant_or_none(logical_date), to_timestamp(since))
        self._endings.ask(of, target, run_id, *when, self._asker.place)

    def forget(self, of: Hashable) -> None:
        self._endings.forget(of)


def _instant_or_none(moment: datetime | None) -> Timestamp | None:
    return None if moment is None else to_timestamp(moment)
