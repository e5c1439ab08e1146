"""Connection types: the fields of their forms, and tests that open a connection.

A type is found through the entry-point group ``aioflow.connections``. Its code runs in a child
process, like all code of plug-ins.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import ClassVar, Literal, TypeAlias

import msgspec

from aioflow.author.client import Connection

__all__ = ("ConnectionField", "ConnectionType", "FieldKind", "Generic", "Smtp")

FieldKind: TypeAlias = Literal["text", "number", "secret", "choice"]

_TEST_SECONDS = 8.0
"""Time limit of the built-in tests, shorter than the time limit of the process that runs them."""


class ConnectionField(msgspec.Struct, frozen=True, kw_only=True):
    """A field in the form of a connection.

    Attributes:
        name: An attribute of ``Connection``, or ``extra.NAME``.
        kind: The form does not show the text of a ``secret``.
        choices: The values of a ``choice``; the first one is the default.
        hint: A short text in the empty field, such as its default.
    """

    name: str
    label: str
    kind: FieldKind = "text"
    is_required: bool = False
    choices: tuple[str, ...] = ()
    hint: str = ""


class ConnectionType(ABC):
    """A connection type. An entry point of ``aioflow.connections`` names a subclass.

    Attributes:
        label: The display name.
        schemes: The values of ``conn_type`` of this type; the first one is the default.
        fields: The fields of the form. In addition, the form offers a choice of ``schemes``.
    """

    label: ClassVar[str]
    schemes: ClassVar[tuple[str, ...]]
    fields: ClassVar[tuple[ConnectionField, ...]]

    @abstractmethod
    def test(self, connection: Connection) -> str | Awaitable[str]:
        """Open the connection without changing anything. Return a few words about what answered.

        May be an ``async def``. After 10 s its process is killed.

        Raises:
            Exception: If the connection cannot be used. The message is shown, with secrets masked.
        """


_HOST = ConnectionField(name="host", label="Host", is_required=True)
_LOGIN = ConnectionField(name="login", label="User")
_PASSWORD = ConnectionField(name="password", label="Password", kind="secret")


class Generic(ConnectionType):
    """Any other server. The test opens a TCP connection to its port and sends nothing."""

    label = "Other server"
    schemes = ()
    fields = (
        ConnectionField(name="conn_type", label="Scheme", hint="such as mysql"),
        _HOST,
        ConnectionField(name="port", label="Port", kind="number", is_required=True),
        _LOGIN,
        _PASSWORD,
        ConnectionField(name="schema", label="Database or path"),
    )

    def test(self, connection: Connection) -> str:
        """Open a TCP connection."""
        if not connection.host or connection.port is None:
            raise ValueError("the test of another server needs its host and port")
        address = connection.host, connection.port
        with socket.create_connection(address, timeout=_TEST_SECONDS):
            return "the port accepts connections; the password was not tested"


class Smtp(ConnectionType):
    """A mail server. The test logs in and sends nothing."""

    label = "Mail server (SMTP)"
    schemes = ("smtp", "smtps")
    fields = (
        _HOST,
        ConnectionField(name="port", label="Port", kind="number", hint="25, smtps 465"),
        _LOGIN,
        _PASSWORD,
        ConnectionField(name="extra.sender", label="Sender", hint="such as flows@example.org"),
        ConnectionField(
            name="extra.starttls", label="STARTTLS", kind="choice", choices=("", "yes", "no")
        ),
    )

    def test(self, connection: Connection) -> str:
        """Log in."""
        from aioflow.author.servers.transports import open_smtp

        with open_smtp(connection, _TEST_SECONDS) as smtp:
            code, _ = smtp.noop()
        user = " and accepts the user" if connection.login else ""
        return f"the server answers {code}{user}"
