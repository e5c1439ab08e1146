"""Queries from user code to the daemon: named values, endings of runs, and named events.

Named values are secrets, connections and variables. A task declares the values it needs, and reads
them without waiting. A trigger fetches values while it runs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from aioflow.errors import AioflowError, UnknownValue
from aioflow.model.dag import ValueKind

__all__ = (
    "Connection",
    "EventFollower",
    "NamedEvent",
    "NamedEvents",
    "NamedValues",
    "QuerySender",
    "RunEnding",
    "RunEndings",
    "RunFollower",
    "connection",
    "connection_of",
    "declared_names",
    "declared_values",
    "fetch_connection",
    "fetch_secret",
    "fetch_variable",
    "named_events",
    "own_dag_id",
    "query_sender",
    "run_ending",
    "run_start_id",
    "secret",
    "set_process_values",
    "variable",
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
        id: Unique, and larger than the ``id`` of every earlier event.
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
        """Return a number below the ``id`` of each event stored since the run was created."""
        ...

    def own_dag_id(self) -> str:
        """Return the id of the DAG for which the code runs; empty if it runs for several DAGs."""
        ...

    async def value(self, kind: ValueKind, name: str) -> Any:
        """Return a secret, connection or variable; see ``fetch_secret``."""
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


query_sender: ContextVar[QuerySender] = ContextVar("asker")
"""The sender of the running user code. The process sets it around each coroutine of user code."""


async def run_ending(
    dag_id: str,
    *,
    task_id: str | None = None,
    run_id: str | None = None,
    logical_date: datetime | None = None,
    since: datetime,
) -> RunEnding:
    """Wait until a run has ended, with no time limit. The wait costs no more than a coroutine.

    Args:
        dag_id: The DAG of the run.
        task_id: Wait only for this task of the run.
        run_id: Wait for the run with this id.
        logical_date: Wait for the run with this logical date; it may not exist yet.
        since: If neither ``run_id`` nor ``logical_date`` is given: wait for the first run that
            ended at this time or later.

    Raises:
        RuntimeError: If the code is not run by aioflow, as in a plain script.
        ValueError: If a datetime has no time zone.
        Unserializable: If a name is not a string, or is longer than a name can be.
    """
    _check_zones(logical_date, since)
    return await _current_sender("a run").run_ending(
        dag_id, task_id=task_id, run_id=run_id, logical_date=logical_date, since=since
    )


class RunEndings(Generic[Of]):
    """Waits for the endings of many runs, for a watch. Each wait is data, not a coroutine.

    Args:
        tell: Called from the event loop, once for each ``ask``, with the ``of`` of that ``ask`` and
            either the ending or the error that prevents one. It must not block.

    Raises:
        RuntimeError: If the code is not run by aioflow, as in a plain script.
    """

    def __init__(self, tell: Callable[[Of, RunEnding | AioflowError], None]) -> None:
        told: Any = tell  # called only with an `of` that was passed to `ask`
        self._follower = _current_sender("a run").follow_runs(told)

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
        """Register a wait for one run, selected by the same arguments as in ``run_ending``.

        Args:
            of: Identifies this wait; passed back to ``tell``. If ``ask`` is called twice with the
                same ``of``, ``tell`` is called twice.

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
        """Cancel the wait that ``of`` identifies. Does nothing if ``tell`` was called already.

        A watch calls this in its ``left``, so that the daemon drops waits that no one needs.
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
    return _current_sender("named events").named_events(name, key=key, after=after)


def run_start_id() -> int:
    """Return a number below the ``id`` of each named event stored since the run was created.

    Raises:
        RuntimeError: If the code is not run by aioflow, as in a plain script.
    """
    return _current_sender("named events").run_start_id()


def own_dag_id() -> str:
    """Return the id of the DAG that the running trigger or task belongs to.

    Empty if several DAGs share the running code, as in a watch. A library can use the id to divide
    a scarce resource fairly between DAGs.

    Raises:
        RuntimeError: If the code is not run by aioflow, as in a plain script.
    """
    return _current_sender("its own DAG").own_dag_id()


class NamedEvents(Generic[Of]):
    """Waits for events of one name on behalf of many waiters, for a watch.

    Each waiter receives the first event that matches. A waiter is data, not a coroutine.

    Args:
        name: The name of the events.
        tell: Called from the event loop, once for each ``ask``, with the ``of`` of that ``ask`` and
            either the event or the error that prevents one. It must not block.

    Raises:
        RuntimeError: If the code is not run by aioflow, as in a plain script.
    """

    def __init__(self, name: str, tell: Callable[[Of, NamedEvent | AioflowError], None]) -> None:
        told: Any = tell  # called only with an `of` that was passed to `ask`
        self._follower = _current_sender("named events").follow_events(name, told)

    def ask(self, of: Of, *, key: str | None = None, after: int) -> None:
        """Register a wait for the first event with an ``id`` above ``after``.

        Args:
            of: Identifies this wait; passed back to ``tell``. Another ``ask`` with the same ``of``
                before ``tell`` is called replaces this one.
            key: If given, wait for the first such event that was emitted with this key.
            after: Events up to and including this ``id`` are ignored.
        """
        self._follower.ask(of, key=key, after=after)

    def forget(self, of: Of) -> None:
        """Cancel the wait that ``of`` identifies. Does nothing if it has already ended."""
        self._follower.forget(of)


def _check_zones(logical_date: datetime | None, since: datetime) -> None:
    for name, instant in (("logical_date", logical_date), ("since", since)):
        if instant is not None and instant.tzinfo is None:
            raise ValueError(f"{name}={instant} needs a time zone")


def _current_sender(what: str) -> QuerySender:
    try:
        return query_sender.get()
    except LookupError:
        raise RuntimeError(f"only a hosted trigger or task can wait for {what}") from None


NamedValues: TypeAlias = Mapping[tuple[ValueKind, str], Any]


class Connection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The address and credentials of a server.

    Printing a connection does not show the password, but ``uri`` contains it.

    Attributes:
        conn_type: ``postgresql``, ``https`` ...
        schema: The database, or generally the path of the URI without its first ``/``.
        extra: Further settings; for a URI, its query parameters as texts.
    """

    conn_type: str = ""
    host: str = ""
    port: int | None = None
    login: str = ""
    password: str = ""
    schema: str = ""
    extra: dict[str, Any] = {}

    @property
    def uri(self) -> str:
        """The connection as a URI, percent-encoded where needed. Contains the password."""
        who = quote(self.login, safe="")
        if self.password:
            who += f":{quote(self.password, safe='')}"
        host = f"[{self.host}]" if ":" in self.host else quote(self.host, safe="")
        port = "" if self.port is None else f":{self.port}"
        path = f"/{quote(self.schema, safe='')}" if self.schema else ""
        query = f"?{urlencode(self.extra)}" if self.extra else ""
        return f"{self.conn_type}://{who}{'@' if who else ''}{host}{port}{path}{query}"

    def __repr__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"<Connection {self.conn_type}://{self.host}{port}>"


def connection_of(told: object) -> Connection:
    """Return the connection from a URI, or from a dict of its attributes.

    Raises:
        ValueError: If it is invalid. The message does not quote the text, which may contain a
            password.
    """
    if isinstance(told, str):
        return _connection_of_uri(told)
    if not isinstance(told, dict):
        raise ValueError("a connection is a URI, or a JSON object")  # noqa: TRY004
    unknown = told.keys() - set(Connection.__struct_fields__)
    if unknown:
        known = ", ".join(Connection.__struct_fields__)
        raise ValueError(f"a connection has no {min(unknown)!r}; there are {known}")
    try:
        return msgspec.convert(told, Connection)
    except msgspec.ValidationError as exc:
        raise ValueError(f"a connection is not like that: {exc}") from None


def _connection_of_uri(text: str) -> Connection:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("the URI of a connection cannot be understood") from None
    if not parts.scheme or "://" not in text:
        raise ValueError("the URI of a connection begins like postgresql://")
    return Connection(
        conn_type=parts.scheme,
        host=unquote(parts.hostname or ""),
        port=port,
        login=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        schema=unquote(parts.path.removeprefix("/")),
        extra=dict(parse_qsl(parts.query, keep_blank_values=True)),
    )


declared_values: ContextVar[NamedValues] = ContextVar("held")
"""The values that a try declared. Set around each try that runs on a shared event loop."""

_process_values: list[NamedValues] = [{}]


def set_process_values(values: NamedValues) -> None:
    """Make values available in all threads of a process that runs one try at a time."""
    _process_values[0] = values


def secret(name: str) -> str:
    """Return a secret that this task declares: ``@task(secrets=["NAME"])``.

    A trigger awaits ``fetch_secret`` instead.

    Raises:
        UnknownValue: If the task does not declare it.
    """
    return cast("str", _declared_value(ValueKind.SECRET, name))


def connection(name: str) -> Connection:
    """Return a connection that this task declares: ``@task(connections=["pg"])``.

    Raises:
        UnknownValue: If the task does not declare it.
    """
    return cast("Connection", _declared_value(ValueKind.CONNECTION, name))


def variable(name: str) -> Any:
    """Return a variable, any JSON, that this task declares: ``@task(variables=["REGION"])``.

    Raises:
        UnknownValue: If the task does not declare it.
    """
    return _declared_value(ValueKind.VARIABLE, name)


def _declared_value(kind: ValueKind, name: str) -> Any:
    values = declared_values.get(_process_values[0])
    if (kind, name) in values:
        return values[kind, name]
    how = f"declare it: @task({kind}s=[{name!r}])"
    if query_sender.get(None) is not None and declared_values.get(None) is None:
        how = f"a trigger asks for it: await fetch_{kind}({name!r})"
    raise UnknownValue(f"{kind} {name!r} is not at hand here; {how}")


async def fetch_secret(name: str) -> str:
    """Fetch a secret, in the ``run`` of a trigger or in an ``async def`` task that declares it.

    Raises:
        UnknownValue: If it does not exist, cannot be decrypted, or is not declared by the task.
        RuntimeError: If the code is not run by aioflow, as in a plain script.
    """
    return cast("str", await _fetch_value(ValueKind.SECRET, name))


async def fetch_connection(name: str) -> Connection:
    """Fetch a connection; see ``fetch_secret``."""
    return cast("Connection", await _fetch_value(ValueKind.CONNECTION, name))


async def fetch_variable(name: str) -> Any:
    """Fetch a variable; see ``fetch_secret``."""
    return await _fetch_value(ValueKind.VARIABLE, name)


async def _fetch_value(kind: ValueKind, name: str) -> Any:
    try:
        return await query_sender.get().value(kind, name)
    except LookupError:
        raise RuntimeError(f"only a hosted trigger or task can ask for a {kind}") from None


def declared_names(kind: ValueKind, names: object) -> Sequence[tuple[ValueKind, str]]:
    """Return the values declared by an option like ``secrets=["NAME"]``.

    Raises:
        ValueError: If ``names`` is not a list of names.
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ValueError(f"{kind}s must be a list of names, got {names!r}")  # noqa: TRY004
    if not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{kind}s must be a list of names, got {names!r}")
    return [(kind, name) for name in names]
