"""What user code may ask of the daemon while it is hosted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from aioflow.errors import AioflowError
from aioflow.model.dag import ValueKind

__all__ = (
    "Asker",
    "EventFollower",
    "NamedEvent",
    "NamedEvents",
    "RunEnding",
    "RunEndings",
    "RunFollower",
    "asker",
    "named_events",
    "own_dag_id",
    "run_ending",
    "run_start_id",
)

Of = TypeVar("Of", bound=Hashable)


@dataclass(frozen=True)
class RunEnding:
    """How a run, or one task of it, ended.

    Attributes:
        state: Its final state, such as ``success``.
        result: Of the task, if one was asked for and its result is small; else ``None``.
    """

    run_id: str
    state: str
    result: object = None


@dataclass(frozen=True)
class NamedEvent:
    """What somebody has emitted under a name.

    Attributes:
        id: Grows with each event; no two have the same.
    """

    id: int
    name: str
    key: str | None = None
    data: object = None


class Asker(Protocol):
    """Carries a question to the daemon. The host provides it."""

    async def run_ending(
        self,
        dag_id: str,
        *,
        task_id: str | None,
        run_id: str | None,
        logical_date: datetime | None,
        since: datetime,
    ) -> RunEnding:
        """Wait until that run has ended and return how; see the function of that name."""
        ...

    def follow_runs(
        self, tell: Callable[[Hashable, RunEnding | AioflowError], None]
    ) -> RunFollower:
        """Return what asks for many runs; see ``RunEndings``."""
        ...

    def named_events(
        self, name: str, *, key: str | None, after: int | None
    ) -> AsyncGenerator[NamedEvent, None]:
        """Yield the events of a name as they are stored; see the function of that name."""
        ...

    def follow_events(
        self, name: str, tell: Callable[[Hashable, NamedEvent | AioflowError], None]
    ) -> EventFollower:
        """Return what asks for many events of a name; see ``NamedEvents``."""
        ...

    def run_start_id(self) -> int:
        """See the function of that name."""
        ...

    def own_dag_id(self) -> str:
        """See the function of that name."""
        ...

    async def value(self, kind: ValueKind, name: str) -> Any:
        """Return a secret, connection or variable; see ``values.fetch_secret``."""
        ...


class RunFollower(Protocol):
    """Asks for many runs, and tells of each."""

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
        """See ``RunEndings.ask``."""
        ...

    def forget(self, of: Hashable) -> None:
        """See ``RunEndings.forget``."""
        ...


class EventFollower(Protocol):
    """Asks for many events of one name, and tells of each."""

    def ask(self, of: Hashable, *, key: str | None, after: int) -> None:
        """See ``NamedEvents.ask``."""
        ...

    def forget(self, of: Hashable) -> None:
        """See ``NamedEvents.forget``."""
        ...


asker: ContextVar[Asker] = ContextVar("asker")
"""Set by the host around each hosted coroutine."""


async def run_ending(
    dag_id: str,
    *,
    task_id: str | None = None,
    run_id: str | None = None,
    logical_date: datetime | None = None,
    since: datetime,
) -> RunEnding:
    """Wait until a run has ended, however long that takes. Holds nothing but this coroutine.

    Args:
        dag_id: Whose run.
        task_id: Wait for this task of the run only.
        run_id: This very run.
        logical_date: The run that stands for this instant; it may not exist yet.
        since: Without ``run_id`` and ``logical_date``: the first run that ended from then on.

    Raises:
        RuntimeError: If no host runs this code, as in a plain script.
        ValueError: If an instant has no time zone.
        Unserializable: If a name is no text, or longer than any there is.
    """
    _check_zones(logical_date, since)
    return await _host("a run").run_ending(
        dag_id, task_id=task_id, run_id=run_id, logical_date=logical_date, since=since
    )


class RunEndings(Generic[Of]):
    """Asks how many runs end, for a watch: what waits is data, and no coroutine.

    Args:
        tell: Called from the event loop, once for each ``ask``: with its ``of``, and with the
            ending, or with the reason why there will be none. Must not wait.

    Raises:
        RuntimeError: If no host runs this code, as in a plain script.
    """

    def __init__(self, tell: Callable[[Of, RunEnding | AioflowError], None]) -> None:
        told: Any = tell  # it is told of no other `of` than it asked for
        self._follower = _host("a run").follow_runs(told)

    def ask(
        self,
        of: Of,
        dag_id: str,
        *,
        task_id: str | None = None,
        run_id: str | None = None,
        logical_date: datetime | None = None,
        since: datetime,
    ) -> None:
        """Ask for one run; which, is said as to ``run_ending``.

        Args:
            of: Whatever the answer is to be known by. Asked twice it is told twice.

        Raises:
            ValueError: If an instant has no time zone.
            Unserializable: If a name is no text, or longer than any there is.
        """
        _check_zones(logical_date, since)
        self._follower.ask(
            of,
            dag_id,
            task_id=task_id,
            run_id=run_id,
            logical_date=logical_date,
            since=since,
        )

    def forget(self, of: Of) -> None:
        """Want to be told of this no more; nothing is left to do if it was told.

        A watch calls it where it is ``left``: so the daemon forgets what nobody waits for.
        """
        self._follower.forget(of)


def named_events(
    name: str, *, key: str | None = None, after: int | None = None
) -> AsyncGenerator[NamedEvent, None]:
    """Yield the events of a name in the order they were stored, without end.

    However many wait for a name in one process, the daemon is asked once for all. Close what
    this returns, by ``aclose``, where you leave it early.

    Args:
        key: Only those of this key.
        after: Only those behind this ``id``; without it those stored since the run began.

    Raises:
        RuntimeError: If no host runs this code, as in a plain script.
    """
    return _host("named events").named_events(name, key=key, after=after)


def run_start_id() -> int:
    """Return the ``id`` behind which the named events are that were stored since the run began.

    Raises:
        RuntimeError: If no host runs this code, as in a plain script.
    """
    return _host("named events").run_start_id()


def own_dag_id() -> str:
    """Return the id of the DAG in whose name this code runs: of a hosted trigger, or of a task.

    Empty where several DAGs share it, as in a watch. By it a library shares out what is scarce.

    Raises:
        RuntimeError: If no host runs this code, as in a plain script.
    """
    return _host("its own DAG").own_dag_id()


class NamedEvents(Generic[Of]):
    """Asks for the first event each of many who wait for a name, for a watch.

    What waits is data, and no coroutine.

    Args:
        name: Of the events.
        tell: Called from the event loop, once for each ``ask``: with its ``of``, and with the
            event, or with the reason why there will be none. Must not wait.

    Raises:
        RuntimeError: If no host runs this code, as in a plain script.
    """

    def __init__(self, name: str, tell: Callable[[Of, NamedEvent | AioflowError], None]) -> None:
        told: Any = tell  # it is told of no other `of` than it asked for
        self._follower = _host("named events").follow_events(name, told)

    def ask(self, of: Of, *, key: str | None = None, after: int) -> None:
        """Ask for the first event behind ``after``; with ``key`` the first of that key.

        Args:
            of: Whatever the event is to be known by. Asked again before it is told, only the
                second question counts.
        """
        self._follower.ask(of, key=key, after=after)

    def forget(self, of: Of) -> None:
        """Ask no more. Does nothing if it was told, or never asked."""
        self._follower.forget(of)


def _check_zones(logical_date: datetime | None, since: datetime) -> None:
    for name, instant in (("logical_date", logical_date), ("since", since)):
        if instant is not None and instant.tzinfo is None:
            raise ValueError(f"{name}={instant} needs a time zone")


def _host(what: str) -> Asker:
    try:
        return asker.get()
    except LookupError:
        raise RuntimeError(f"only a hosted trigger or task can wait for {what}") from None
