"""Carries what hosted user code asks to the daemon."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable
from datetime import UTC, datetime, timedelta

import msgspec

from aioflow.author import codec
from aioflow.author.asking import NamedEvent, RunEnding
from aioflow.errors import AioflowError, TaskError
from aioflow.host import questions
from aioflow.host.named_events import EventFollower, Subscriptions
from aioflow.host.nursery import guest
from aioflow.host.shared import Line
from aioflow.model import Instant
from aioflow.orders import Answer

__all__ = ("Follower", "GuestAsker", "LineAsker", "as_datetime", "as_instant")

NO_RUN, NOWHERE = -1, (-1, -1)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def as_instant(moment: datetime) -> Instant:
    """Return an aware datetime as an instant."""
    return (moment - _EPOCH) // _MICROSECOND


def as_datetime(instant: Instant) -> datetime:
    """Return an instant in UTC."""
    return _EPOCH + instant * _MICROSECOND


class LineAsker:
    """Asks for one task: what the daemon tells a child is limited to what its run may know.

    Fulfils ``aioflow.author.asking.Asker``.
    """

    __slots__ = ("_line", "_place", "_run_no", "_subscriptions")

    def __init__(
        self,
        line: Line,
        run_no: int,
        subscriptions: Subscriptions,
        place: tuple[int, int] = NOWHERE,
    ) -> None:
        self._line = line
        self._run_no = run_no
        self._subscriptions = subscriptions
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
        body = _wanted(dag_id, task_id, run_id, logical_date, since, self.place)
        return _ending(await self._line.ask(self.run_no, "run", body))

    def follow_runs(self, tell: Callable[[Hashable, RunEnding | AioflowError], None]) -> Follower:
        return Follower(self, self._line, tell)

    def named_events(
        self, name: str, *, key: str | None, after: int | None
    ) -> AsyncGenerator[NamedEvent, None]:
        behind = self.run_start_id() if after is None else after
        return self._subscriptions.events(self.run_no, name, key, behind)

    def follow_events(
        self, name: str, tell: Callable[[Hashable, NamedEvent | AioflowError], None]
    ) -> EventFollower:
        return EventFollower(self._subscriptions, name, lambda: self.run_no, tell)

    def run_start_id(self) -> int:
        # Numbers are of one series: whatever was stored since the run was made is behind its own.
        return self.run_no


class GuestAsker(LineAsker):
    """Asks for the run of whatever trigger, or watch, asks: one for all that a host has."""

    __slots__ = ()

    def __init__(self, line: Line, subscriptions: Subscriptions) -> None:
        super().__init__(line, NO_RUN, subscriptions)

    @property
    def run_no(self) -> int:
        """See ``LineAsker``."""
        return getattr(guest.get(), "run_no", NO_RUN)

    @property
    def place(self) -> tuple[int, int]:
        """See ``LineAsker``."""
        return getattr(guest.get(), "place", NOWHERE)


class Follower:
    """Asks for many runs; of each that waits there is an entry in the line, and no more.

    Fulfils ``aioflow.author.asking.RunFollower``.
    """

    __slots__ = ("_asker", "_line", "_tell", "_told")

    def __init__(
        self,
        asker: LineAsker,
        line: Line,
        tell: Callable[[Hashable, RunEnding | AioflowError], None],
    ) -> None:
        self._asker = asker
        self._line = line
        self._tell = tell
        self._told = self._answered  # one for all questions

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
        body = _wanted(dag_id, task_id, run_id, logical_date, since, self._asker.place)
        self._line.ask_then(self._asker.run_no, "run", body, self._told, of)

    def _answered(self, of: Hashable, answer: Answer) -> None:
        self._tell(of, TaskError(answer.error) if answer.error else _ending(answer.body))


def _wanted(
    dag_id: str,
    task_id: str | None,
    run_id: str | None,
    logical_date: datetime | None,
    since: datetime,
    place: tuple[int, int],
) -> bytes:
    at = None if logical_date is None else as_instant(logical_date)
    return msgspec.msgpack.encode(
        questions.RunWanted(dag_id, task_id, run_id, at, as_instant(since), *place)
    )


def _ending(body: bytes) -> RunEnding:
    ending = msgspec.msgpack.decode(body, type=questions.RunEnding)
    result = None if ending.result is None else codec.decode(ending.result)
    return RunEnding(ending.run_id, ending.state, result)
