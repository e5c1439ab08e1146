"""Secrets, connections and variables, and rotation of the key that encrypts them.

Values are set, listed by name and deleted. They are never returned.

Key rotation replaces the key while the home is in use, and re-encrypts all data that was encrypted
with the old key, including fields of triggers and decisions. No data can become unreadable at any
point: the key file contains both keys before anything is encrypted with the new key, and it
contains the old key until no data needs that key. If a rotation is interrupted, the next call
continues it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias, cast

import anyio
import msgspec

from aioflow._threads import in_thread
from aioflow.api.schemas import iso
from aioflow.author import codec
from aioflow.author.client import Connection, connection_of
from aioflow.author.codec import encode
from aioflow.crypto import Vault, new_key, read_keys, write_keys
from aioflow.errors import BadValue, NoSuchValue, RequestError, Unserializable
from aioflow.model.dag import ValueKind
from aioflow.model.rows import ValueRow
from aioflow.protocol.requests import Reencrypt, Reencrypted, Request, SetValue
from aioflow.redaction import LEAST, Masks, is_secret_name, secret_texts
from aioflow.store import Store

__all__ = (
    "VALUE_BYTES",
    "ConnectionView",
    "KeyRotation",
    "NamedValues",
    "RotationView",
    "ValueView",
    "stored_connection",
)

VALUE_BYTES = 64 * 1024
"""Maximum size of a value in its JSON or text form."""

_NAME = re.compile(r"[A-Za-z0-9_.:@/-]{1,250}")


class ValueView(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a value, without the value.

    Attributes:
        set_at: When the value was last set.
        opens: Whether a key of this home decrypts the value.
        hidden: Whether the value is masked in logs. Texts of fewer than 5 characters are not
            masked, and variables only if their names sound like secrets.
    """

    name: str
    set_at: str
    opens: bool
    hidden: bool


class ConnectionView(ValueView, frozen=True, kw_only=True):
    """The description of a connection.

    Attributes:
        conn_type, host: Empty if not set; ``None`` if no key of this home decrypts the connection.
            If the host is a URL, only the name of the server is included, because the rest may
            contain a secret.
    """

    conn_type: str | None
    host: str | None


class NamedValues:
    """Stores values through the engine, and lists their names.

    Args:
        send: Sends a request to the engine.
    """

    def __init__(self, store: Store, send: Callable[[Request], Awaitable[object]]) -> None:
        self._store = store
        self._send = send

    async def list(self, kind: ValueKind) -> list[ValueView]:
        """Return the values of a kind by name."""
        return [_view(row) for row in await self._store.list_values(kind)]

    async def set(
        self, kind: ValueKind, name: str, value: Any, *, keep_secrets: bool = False
    ) -> dict[str, Any]:
        """Store a value, replacing a previous one.

        Args:
            value: Text for a secret, a URI or an object for a connection, any JSON for a variable.
            keep_secrets: For a connection: whether to retain the password and the secrets in
                ``extra`` that the new value lacks. Only possible for the same server, because
                otherwise the owner of another server could read them.

        Raises:
            BadValue: If the name, the value or its size is invalid.
        """
        if not _NAME.fullmatch(name):
            raise BadValue(
                f"{name!r} is not a valid name for a {kind}: "
                "letters, digits and _ . : @ / - , at most 250"
            )
        if keep_secrets and kind is ValueKind.CONNECTION:
            row = await self._store.find_value(kind, name)
            if row is not None and row.value is not None:
                value = _with_secrets(value, row.value)
        packed = _packed(kind, value)
        await self._send(SetValue(kind=kind, name=name, value=packed))
        return {"kind": kind, "name": name, "hidden": _is_hidden(kind, name, packed)}

    async def delete(self, kind: ValueKind, name: str) -> dict[str, Any]:
        """Delete a value.

        Raises:
            NoSuchValue: If there is no such value.
        """
        if await self._store.find_value(kind, name) is None:
            raise NoSuchValue(kind, name)
        await self._send(SetValue(kind=kind, name=name, value=None))
        return {"kind": kind, "name": name, "deleted": True}


def _view(row: ValueRow) -> ValueView:
    view = ValueView(
        name=row.name,
        set_at=iso(row.at) or "",
        opens=row.value is not None,
        hidden=row.value is not None and _is_hidden(row.kind, row.name, row.value),
    )
    if row.kind is not ValueKind.CONNECTION:
        return view
    conn_type, host = (None, None) if row.value is None else _type_and_host(row.name, row.value)
    return ConnectionView(**msgspec.structs.asdict(view), conn_type=conn_type, host=host)


def _type_and_host(name: str, packed: bytes) -> tuple[str, str]:
    """Return the type of a connection and the name of its server, with secrets masked."""
    told = msgspec.msgpack.decode(packed)
    masks = Masks()
    masks.hide(secret_texts(ValueKind.CONNECTION, name, told))
    server = told.get("host", "").rpartition("://")[2]
    server = re.split("[/?#]", server)[0].rpartition("@")[2]
    return masks.masked_text(told.get("conn_type", "")), masks.masked_text(server)


def stored_connection(name: str, packed: bytes) -> tuple[Connection, Masks]:
    """Return the connection in a row, and masks for its secrets."""
    masks = Masks()
    plain = msgspec.msgpack.decode(packed)
    masks.hide(secret_texts(ValueKind.CONNECTION, name, plain))
    return msgspec.convert(codec.decode(packed), Connection), masks


def _with_secrets(value: Any, packed: bytes) -> Any:
    """Return a connection, completed with those stored secrets that it lacks.

    Raises:
        BadValue: If the connection is invalid, or is to a different server from the stored one.
    """
    new, (old, _) = _connection(value), stored_connection("", packed)
    retained = {
        key: text
        for key, text in old.extra.items()
        if is_secret_name(key) and new.extra.get(key) is None
    }
    if not retained and (new.password or not old.password):
        return value
    if (new.conn_type, new.host, new.port) != (old.conn_type, old.host, old.port):
        raise BadValue("secrets are retained only for the same server; enter them again")
    made = msgspec.structs.replace(
        new,
        password=new.password or old.password,
        extra={**new.extra, **retained},
    )
    return msgspec.to_builtins(made)


def _connection(value: Any) -> Connection:
    try:
        return connection_of(value)
    except ValueError as exc:
        raise BadValue(str(exc)) from None


def _packed(kind: ValueKind, value: Any) -> bytes:
    match kind:
        case ValueKind.SECRET:
            if not isinstance(value, str) or not value:
                raise BadValue("a secret must be non-empty text")
        case ValueKind.CONNECTION:
            value = msgspec.to_builtins(_connection(value))
        case ValueKind.VARIABLE:
            pass
    try:
        return encode(value, f"the {kind}", VALUE_BYTES)
    except Unserializable as exc:
        raise BadValue(str(exc)) from None


def _is_hidden(kind: ValueKind, name: str, packed: bytes) -> bool:
    texts = secret_texts(kind, name, msgspec.msgpack.decode(packed))
    return any(len(text) >= LEAST for text in texts)


_Send: TypeAlias = Callable[[Request], Awaitable[object]]


class RotationView(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a key rotation.

    Attributes:
        reencrypted: Number of values, trigger fields and decisions encrypted with the new key.
        unopened: Number of values, trigger fields and decisions that no key of this home decrypts.
            They are left unchanged.
        resumed: Whether this call has completed an earlier, interrupted rotation.
    """

    reencrypted: int
    unopened: int
    resumed: bool


class KeyRotation:
    """Rotates the key of a home.

    Args:
        vault: Encrypts and decrypts the daemon's data.
        path: The key file.
    """

    def __init__(self, vault: Vault, path: Path) -> None:
        self._vault = vault
        self._path = path
        self._lock = anyio.Lock()

    async def rotate(self, send: _Send) -> RotationView:
        """Rotate the key. Concurrent calls run one after another, and each rotates the key again.

        Args:
            send: Sends a request to the engine.

        Raises:
            RequestError: If the key file lacks a key that the daemon was started with.
            SettingsError: If the key file cannot be read or written.
            StoreUnavailable: If the database does not answer. The home keeps using both keys.
        """
        async with self._lock:
            keys = await in_thread(read_keys, self._path)
            if not self._vault.has_only(keys):
                raise RequestError(
                    f"the key file {self._path} lacks a key this daemon was started with"
                )
            resumed = len(keys) > 1
            if not resumed:
                keys.insert(0, new_key())
                await self._write(keys)
            self._vault.use(keys)
            reencrypted, unopened = await self._reencrypt(send)
            await self._write(keys[:1])
            self._vault.use(keys[:1])
            return RotationView(reencrypted=reencrypted, unopened=unopened, resumed=resumed)

    async def _write(self, keys: list[bytes]) -> None:
        with anyio.CancelScope(shield=True):
            await in_thread(write_keys, self._path, keys)

    async def _reencrypt(self, send: _Send) -> tuple[int, int]:
        reencrypted = unopened = 0
        request: Reencrypt | None = Reencrypt()
        while request is not None:
            page = cast(Reencrypted, await send(request))
            reencrypted += page.count
            unopened += page.unopened
            request = page.next
        return reencrypted, unopened
