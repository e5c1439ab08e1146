"""Connections as shown to users: their types, their fields without secrets, and their tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from aioflow.api.values import stored_connection
from aioflow.author.client import Connection
from aioflow.author.servers.connection_types import ConnectionField
from aioflow.errors import BadValue, DaemonAway, NoSuchValue
from aioflow.model.access import Actor, AuditEntry, audit_entry
from aioflow.model.dag import ValueKind
from aioflow.redaction import Masks, is_secret_name
from aioflow.store import Store
from aioflow.worker.connection_program import ConnectionOutcome, FoundTypes

__all__ = (
    "ConnectionDetail",
    "ConnectionOutcomeView",
    "ConnectionTester",
    "ConnectionTypeView",
    "ConnectionTypesView",
    "Connections",
)


class ConnectionTester(Protocol):
    """Lists connection types and tests connections, both in other processes."""

    async def types(self) -> FoundTypes:
        """Return the installed types."""
        ...

    async def test(self, connection: Connection) -> ConnectionOutcome:
        """Open a connection, and return the outcome."""
        ...


class ConnectionTypeView(msgspec.Struct, frozen=True, kw_only=True):
    """A connection type.

    Attributes:
        schemes: The values of ``conn_type`` of this type; empty if it is for all other values.
        fields: The fields of its form. Fields with a name like ``extra.region`` are in ``extra``.
        package: The distribution that contains the type.
    """

    name: str
    label: str
    schemes: tuple[str, ...]
    fields: tuple[ConnectionField, ...]
    package: str


class ConnectionTypesView(msgspec.Struct, frozen=True, kw_only=True):
    """The installed connection types.

    Attributes:
        problems: Why types of plug-ins cannot be used, by name.
    """

    types: tuple[ConnectionTypeView, ...]
    problems: Mapping[str, str]


class ConnectionDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A connection without its secrets.

    Attributes:
        has_password: Whether it has a password, which is never shown.
        extra: Further settings. Those whose names suggest a secret are ``null``.
    """

    name: str
    conn_type: str
    host: str
    port: int | None
    login: str
    has_password: bool
    schema: str
    extra: Mapping[str, Any]


class ConnectionOutcomeView(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a test.

    Attributes:
        type: The name of the type that ran the test; empty if it gave no answer.
        message: What answered, or what is wrong, with secrets masked.
    """

    name: str
    ok: bool
    type: str
    message: str


class Connections:
    """Shows and tests connections.

    Args:
        tests: ``None`` without a daemon.
        actor: The caller, for the audit; ``None`` for the daemon itself.
        note: Adds an entry to the audit.
    """

    def __init__(
        self,
        store: Store,
        tests: ConnectionTester | None,
        actor: Actor | None,
        note: Callable[[AuditEntry], Awaitable[None]],
    ) -> None:
        self._store = store
        self._tests = tests
        self._actor = actor
        self._note = note

    async def types(self) -> ConnectionTypesView:
        """Return the installed types.

        Raises:
            RequestError: If they cannot be read.
        """
        found = await self._running.types()
        types = [ConnectionTypeView(**msgspec.structs.asdict(one)) for one in found.types]
        return ConnectionTypesView(types=tuple(types), problems=found.problems)

    async def show(self, name: str) -> ConnectionDetail:
        """Return a connection without its secrets.

        Raises:
            NoSuchValue: If there is no such connection.
            BadValue: If no key of this home decrypts it.
        """
        found, masks = await self._find(name)
        return ConnectionDetail(
            name=name,
            conn_type=masks.masked_text(found.conn_type),
            host=masks.masked_text(found.host),
            port=found.port,
            login=masks.masked_text(found.login),
            has_password=bool(found.password),
            schema=masks.masked_text(found.schema),
            extra=_masked(found.extra, masks),
        )

    async def test(self, name: str) -> ConnectionOutcomeView:
        """Open a connection in another process, within 10 s. The audit records the caller.

        Raises:
            NoSuchValue: If there is no such connection.
            BadValue: If no key of this home decrypts it.
            RequestError: If no process can be started.
        """
        tests = self._running
        found, masks = await self._find(name)
        if self._actor is not None:
            await self._note(audit_entry(self._actor, "connection.test", name))
        tested = await tests.test(found)
        return ConnectionOutcomeView(
            name=name,
            ok=tested.is_ok,
            type=tested.type,
            message=masks.masked_text(tested.message),
        )

    @property
    def _running(self) -> ConnectionTester:
        if self._tests is None:
            raise DaemonAway("")
        return self._tests

    async def _find(self, name: str) -> tuple[Connection, Masks]:
        row = await self._store.find_value(ValueKind.CONNECTION, name)
        if row is None:
            raise NoSuchValue(ValueKind.CONNECTION, name)
        if row.value is None:
            raise BadValue(f"no key of this home decrypts the connection {name!r}; set it again")
        return stored_connection(name, row.value)


def _masked(value: Any, masks: Masks) -> Any:
    match value:
        case str():
            return masks.masked_text(value)
        case dict():
            return {
                key: None if is_secret_name(key) else _masked(one, masks)
                for key, one in value.items()
            }
        case list():
            return [_masked(one, masks) for one in value]
        case _:
            return value
