"""A program that lists the types of connections, or tests one connection.

It imports plug-ins, which are user code. Therefore it is a separate process, which the daemon
starts for one answer and kills after a time limit. It gets the connection on standard input, and
neither the database nor a key.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import sys
from importlib.metadata import entry_points
from typing import Any, BinaryIO

import msgspec

from aioflow.author.client import Connection
from aioflow.author.servers.connection_types import ConnectionField, ConnectionType, Generic
from aioflow.model.dag import ValueKind
from aioflow.redaction import Masks, secret_texts

__all__ = (
    "BEGUN",
    "GROUP",
    "ConnectionOutcome",
    "FoundTypes",
    "TypeDescription",
    "main",
)

GROUP = "aioflow.connections"
BEGUN = b"!"
"""Written when the test begins. The start of the process does not count towards its time."""

_GENERIC = "generic"
_LIFETIME_SECONDS = 60
_MESSAGE_LENGTH = 500
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,50}")


class TypeDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A type of connections; see ``ConnectionType``.

    Attributes:
        name: The name of its entry point.
        package: The distribution that contains it.
    """

    name: str
    label: str
    schemes: tuple[str, ...]
    fields: tuple[ConnectionField, ...]
    package: str = ""


class FoundTypes(msgspec.Struct, frozen=True):
    """The installed types and, by name, the reasons why other types cannot be used."""

    types: tuple[TypeDescription, ...]
    problems: dict[str, str]


class ConnectionOutcome(msgspec.Struct, frozen=True):
    """The outcome of a test.

    Attributes:
        type: The name of the type that ran the test.
        message: The server that answered, or the error.
    """

    is_ok: bool
    type: str
    message: str


def find_types() -> tuple[dict[str, tuple[ConnectionType, TypeDescription]], dict[str, str]]:
    """Import the types. Return them by name, and the reasons why others cannot be used."""
    found, problems = {}, {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            kind = point.load()()
            package = "" if point.dist is None else point.dist.name
            found[point.name] = kind, _described(point.name, kind, package)
        except BaseException as exc:  # noqa: BLE001 - a plug-in may raise anything
            problems[point.name] = _text_of(exc)
    return found, problems


def _described(name: str, kind: object, package: str) -> TypeDescription:
    if not isinstance(kind, ConnectionType):
        raise TypeError("it is no ConnectionType")
    if not _NAME.fullmatch(name):
        raise ValueError("its name has characters other than letters, digits and _ . -")
    about = TypeDescription(
        name=name,
        label=kind.label,
        schemes=tuple(kind.schemes),
        fields=tuple(kind.fields),
        package=package,
    )
    known = {"conn_type", *Connection.__struct_fields__} - {"extra"}
    for field in about.fields:
        if field.name not in known and not field.name.startswith("extra."):
            raise ValueError(f"a connection has no {field.name!r}")
    return msgspec.convert(msgspec.to_builtins(about), TypeDescription)


def _run_test(connection: Connection, answer: BinaryIO) -> ConnectionOutcome:
    found, problems = find_types()
    names = (name for name, (_, about) in found.items() if connection.conn_type in about.schemes)
    name = next(names, connection.conn_type if connection.conn_type in found else _GENERIC)
    kind = found[name][0] if name in found else Generic()
    answer.write(BEGUN)
    answer.flush()
    try:
        said: Any = kind.test(connection)
        if inspect.isawaitable(said):
            said = asyncio.run(_awaited(said))
    except BaseException as exc:  # noqa: BLE001 - a test may raise anything
        return ConnectionOutcome(False, name, _text_of(exc))
    if problems and name == _GENERIC:
        broken = ", ".join(problems)
        said = f"{said} (types that cannot be used: {broken})"
    return ConnectionOutcome(True, name, str(said))


async def _awaited(said: Any) -> Any:
    return await said


def _text_of(exc: BaseException) -> str:
    text = str(exc).strip() or "no reason was given"
    return f"{type(exc).__name__}: {text}"


def _shown(message: str, masks: Masks) -> str:
    """Return a message with secrets masked, on one line."""
    masked = masks.masked_text(message)[: 2 * _MESSAGE_LENGTH]
    printable = "".join(char if char.isprintable() else " " for char in masked)
    return " ".join(printable.split())[:_MESSAGE_LENGTH]


def main() -> None:
    """Write the types, or the outcome of testing the connection in stdin, to standard output."""
    signal.alarm(_LIFETIME_SECONDS)  # if the daemon dies before it kills this process
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of plug-ins must not mix with the answers
    if sys.argv[1:] == ["types"]:
        found, problems = find_types()
        masks = Masks()
        shown = {name: _shown(problem, masks) for name, problem in problems.items()}
        about = tuple(about for _, about in found.values())
        answer.write(msgspec.json.encode(FoundTypes(about, shown)))
    else:
        connection = msgspec.json.decode(sys.stdin.buffer.read(), type=Connection)
        masks = Masks()
        plain = msgspec.to_builtins(connection)
        masks.hide(secret_texts(ValueKind.CONNECTION, "", plain))
        tested = _run_test(connection, answer)
        message = _shown(tested.message, masks)
        answer.write(msgspec.json.encode(msgspec.structs.replace(tested, message=message)))
    answer.flush()
    os._exit(0)  # a thread of a plug-in does not delay the end


if __name__ == "__main__":
    main()
