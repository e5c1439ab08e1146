"""Key rotation: replace the key of a home in use, and re-encrypt all data encrypted with it.

Nothing is lost at any point. The key file holds both keys before anything is encrypted with the
new one, and the old key until no data needs it. If interrupted, the next call continues.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias, cast

import anyio
import msgspec

from aioflow._threads import in_thread
from aioflow.crypto import Vault, new_key, read_keys, write_keys
from aioflow.errors import RequestError
from aioflow.model.ids import TriggerNo
from aioflow.protocol.requests import Reencrypt, Reencrypted, Request

__all__ = ("Rotation", "RotationView")

_Send: TypeAlias = Callable[[Request], Awaitable[object]]


class RotationView(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a key rotation.

    Attributes:
        reencrypted: Values and fields of triggers that were re-encrypted with the new key.
        unopened: Those that no key of this home decrypts; they are unchanged.
        resumed: Whether this call has completed an earlier, interrupted rotation.
    """

    reencrypted: int
    unopened: int
    resumed: bool


class Rotation:
    """Rotates the key of a home.

    Args:
        vault: Encrypts and decrypts for the daemon.
        path: The key file.
    """

    def __init__(self, vault: Vault, path: Path) -> None:
        self._vault = vault
        self._path = path
        self._lock = anyio.Lock()

    async def rotate(self, send: _Send) -> RotationView:
        """Rotate the key. Concurrent calls wait, and each rotates it once more.

        Args:
            send: Sends a request to the engine.

        Raises:
            RequestError: If the key file is not the one the daemon was started with.
            SettingsError: If it cannot be read or written.
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
        after: TriggerNo | None = None
        while True:
            page = cast(Reencrypted, await send(Reencrypt(after=after)))
            reencrypted += page.count
            unopened += page.unopened
            if page.after is None:
                return reencrypted, unopened
            after = page.after
