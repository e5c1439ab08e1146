"""Queries that user code may send to the daemon: how runs ended, and named events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from aioflow.errors import AioflowError
from aioflow.model.dag import ValueKind

__all__ = (
    "EventFollower",
    "NamedEvent",
    "NamedEvents",
    "QuerySender",
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
    """The final state of a run, or of one task of it.

    Attributes:
        state: The final state, such as ``success``.
        result: The result of the task, if ``task_id`` was given and the result is small, else
            ``None``.
    """

    run_id: str
    state: str
    result: object = None


@dataclass(frozen=True)
class NamedEvent:
    """An event that was emitted under a name.

    Attributes:
        id: Unique, and larger than that of every earlier event.
    """

    id: int
    name: str
    key: str | None = None
    data: object = None


class QuerySender(Protocol):
    """Sends queries to the daemon. Provided by the process that runs the user code."""

    async def run_ending(
        self,
        dag_id: str,
        *,
        task_id: str | None,
        run_id: str | None,
        logical_date: datetime | None,
        since: datetime,
    ) -> RunEnding:
        """Wait until the run has ended and return its ending; see ``run_ending`` of the module."""
        ...

    def follow_runs(
        self, tell: Callable[[Hashable, RunEnding | AioflowError], None]
    ) -> RunFollower:
        """Return a subscription to the endings of many runs; see ``RunEndings``."""
        ...

    def named_events(
        self, name: str, *, key: str | None, after: int | None
    ) -> AsyncGenerator[NamedEvent, None]:
        """Yield the events of a name as they are stored; see ``named_events`` of the module."""
        ...

    def follow_events(
        self, name: str, tell: Callable[[Hashable, NamedEvent | AioflowError], None]
    ) -> EventFollower:
        """Return a subscription to many events of one name; see ``NamedEvents``."""
        ...

    def run_start_id(self) -> int:
        """See ``run_start_id`` of the module."""
        ...

    def own_dag_id(self) -> str:
        """See ``own_dag_id`` of the module."""
        ...

    async def value(self, kind: ValueKind, name: str) -> Any:
        """Return a secret, connection or variable; see ``values.fetch_secret``."""
        ...


class RunFollower(Protocol):
    """Waits for the endings of many runs, and reports each to a callback."""

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
    """Waits for many events of one name, and reports each to a callback."""

    def ask(self, of: Hashable, *, key: str | None, after: int) -> None:
        """See ``NamedEvents.ask``."""
        ...

    def forget(self, of: Hashable) -> None:
        """See ``NamedEvents.forget``."""
        ...


asker: ContextVar[QuerySender] = ContextVar("asker")
"""Set by the process around each coroutine of user code that it runs."""


async def run_ending(
    dag_id: str,
    *,
    task_id: str | None = None,
    run_id: str | None = None,
    logical_date: datetime | None = None,
    since: datetime,
) -> RunEnding:
    """Wait until a run has ended, with no time limit. Only this coroutine is held in memory.

    Args:
        dag_id: The DAG of the run.
        task_id: Wait only for this task of the run.
        run_id: Wait for the run with this id.
        logical_date: Wait for the run with this logical date; it may not exist yet.
        since: Without ``run_id`` and ``logical_date``: wait for the first run that ended at this
            time or later.

    Raises:
        RuntimeError: If the code is not run by aioflow, as in a plain script.
        ValueError: If a datetime has no time zone.
        Unserializable: If a name is not a string, or is longer than a name can be.
    """
    _check_zones(logical_date, since)
    return await _host("a run").run_ending(
        dag_id, task_id=task_id, run_id=run_id, logical_date=logical_date, since=since
    )


class RunEndings(Generic[Of]):
    """Waits for the endings of many runs, for a watch. A waiting run is data, not a coroutine.

    Args:
        tell: Called from the event loop, once for each ``ask``, with its ``of`` and either the
            ending or the error because of which there will be none. It must not block.

    Raises:
        RuntimeError: If the code is not run by aioflow, as in a plain script.
    """

    def __init__(self, tell: Callable[[Of, RunEnding | AioflowError], None]) -> None:
        told: Any = tell  # called only with an `of` that was passed to `ask`
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
        """Wait for one run, selected by the same arguments as in ``run_ending``.

        Args:
            of: A key of the caller's choice, passed back to ``tell``. If a key is asked for twice,
                ``tell`` is called twice.

        Raises:
            ValueError: If a datetime has no time zone.
            Unserializable: If a name is not a string, or is longer than a name can be.
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
        """Cancel the wait for this key. Does nothing if ``tell`` was called already.

        A watch calls this in its ``left``, so that the daemon drops waits that are not needed.
        """
        self._follower.forget(of)


def named_events(
    name: str, *, key: str | None = None, after: int | None = None
) -> AsyncGenerator[NamedEvent, None]:
    """Yield the events of a name in the order they were stored, without end.

    All waits for a name in one process share one subscription at the daemon. Close the generator
    with ``aclose`` if you leave it early.

    Args:
        key: Yield only events with this key.
        after: Yield only events with a larger ``id``. The default is ``run_start_id()``: events
            stored since the run was created.

    Raises:
        RuntimeError: If the code is not run by aioflow, as in a plain script.
    """
    return _host("named events").named_events(name, key=key, after=after)


def run_start_id() -> int:
    """Return a number below the ``id`` of each named event stored since the run was created.

    Raises:
        RuntimeError: If the code is not run by aioflow, as in a plain script.
    """
    return _host("named events").run_start_id()


def own_dag_id() -> str:
    """Return the id of the DAG that the running trigger or task belongs to.

    Empty where several DAGs share the code, as in a watch. A library can use it to share a scarce
    resource fairly between DAGs.

    Raises:
        RuntimeError: If the code is not run by aioflow, as in a plain script.
    """
    return _host("its own DAG").own_dag_id()


class NamedEvents(Generic[Of]):
    """Waits for the first matching event for each of many waiters on one name, for a watch.

    A waiter is data, not a coroutine.

    Args:
        name: The name of the events.
        tell: Called from the event loop, once for each ``ask``, with its ``of`` and either the
            event or the error because of which there will be none. It must not block.

    Raises:
        RuntimeError: If the code is not run by aioflow, as in a plain script.
    """

    def __init__(self, name: str, tell: Callable[[Of, NamedEvent | AioflowError], None]) -> None:
        told: Any = tell  # called only with an `of` that was passed to `ask`
        self._follower = _host("named events").follow_events(name, told)

    def ask(self, of: Of, *, key: str | None = None, after: int) -> None:
        """Wait for the first event with an ``id`` above ``after``, and with ``key`` if given.

        Args:
            of: A key of the caller's choice, passed back to ``tell``. Another ``ask`` with the same
                ``of`` before ``tell`` was called replaces the first one.
        """
        self._follower.ask(of, key=key, after=after)

    def forget(self, of: Of) -> None:
        """Cancel the wait for this key. Does nothing if ``tell`` was called, or ``ask`` was not."""
        self._follower.forget(of)


def _check_zones(logical_date: datetime | None, since: datetime) -> None:
    for name, instant in (("logical_date", logical_date), ("since", since)):
        if instant is not None and instant.tzinfo is None:
            raise ValueError(f"{name}={instant} needs a time zone")


def _host(what: str) -> QuerySender:
    try:
        return asker.get()
    except LookupError:
        raise RuntimeError(f"only a hosted trigger or task can wait for {what}") from None
