"""Access to secrets, connections and variables from tasks and triggers.

A task declares those it needs, and can read them without waiting. A trigger fetches them while it
runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from aioflow.author.client import asker
from aioflow.errors import UnknownValue
from aioflow.model.dag import ValueKind

__all__ = (
    "Connection",
    "Held",
    "connection",
    "connection_of",
    "declared",
    "fetch_connection",
    "fetch_secret",
    "fetch_variable",
    "held",
    "in_process",
    "secret",
    "variable",
)

Held: TypeAlias = Mapping[tuple[ValueKind, str], Any]


class Connection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The address and credentials of a server.

    The password is not shown when it is printed; ``uri`` contains it.

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
        return _of_uri(told)
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


def _of_uri(text: str) -> Connection:
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


held: ContextVar[Held] = ContextVar("held")
"""Set around each try that runs on a shared event loop: the values it declared."""

_in_process: list[Held] = [{}]


def in_process(values: Held) -> None:
    """Make values available in all threads of a process that runs one try at a time."""
    _in_process[0] = values


def secret(name: str) -> str:
    """Return a secret that this task declares: ``@task(secrets=["NAME"])``.

    A trigger awaits ``fetch_secret`` instead.

    Raises:
        UnknownValue: If the task does not declare it.
    """
    return cast("str", _at_hand(ValueKind.SECRET, name))


def connection(name: str) -> Connection:
    """Return a connection that this task declares: ``@task(connections=["pg"])``.

    Raises:
        UnknownValue: If the task does not declare it.
    """
    return cast("Connection", _at_hand(ValueKind.CONNECTION, name))


def variable(name: str) -> Any:
    """Return a variable, any JSON, that this task declares: ``@task(variables=["REGION"])``.

    Raises:
        UnknownValue: If the task does not declare it.
    """
    return _at_hand(ValueKind.VARIABLE, name)


def _at_hand(kind: ValueKind, name: str) -> Any:
    values = held.get(_in_process[0])
    if (kind, name) in values:
        return values[kind, name]
    how = f"declare it: @task({kind}s=[{name!r}])"
    if asker.get(None) is not None and held.get(None) is None:
        how = f"a trigger asks for it: await fetch_{kind}({name!r})"
    raise UnknownValue(f"{kind} {name!r} is not at hand here; {how}")


async def fetch_secret(name: str) -> str:
    """Fetch a secret, in the ``run`` of a trigger or in an ``async def`` task that declares it.

    Raises:
        UnknownValue: If it does not exist, cannot be decrypted, or is not declared by the task.
        RuntimeError: If the code is not run by aioflow, as in a plain script.
    """
    return cast("str", await _fetch(ValueKind.SECRET, name))


async def fetch_connection(name: str) -> Connection:
    """Fetch a connection; see ``fetch_secret``."""
    return cast("Connection", await _fetch(ValueKind.CONNECTION, name))


async def fetch_variable(name: str) -> Any:
    """Fetch a variable; see ``fetch_secret``."""
    return await _fetch(ValueKind.VARIABLE, name)


async def _fetch(kind: ValueKind, name: str) -> Any:
    try:
        return await asker.get().value(kind, name)
    except LookupError:
        raise RuntimeError(f"only a hosted trigger or task can ask for a {kind}") from None


def declared(kind: ValueKind, names: object) -> Sequence[tuple[ValueKind, str]]:
    """Return the values declared by an option like ``secrets=["NAME"]``.

    Raises:
        ValueError: If it is no list of names.
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ValueError(f"{kind}s must be a list of names, got {names!r}")  # noqa: TRY004
    if not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{kind}s must be a list of names, got {names!r}")
    return [(kind, name) for name in names]
