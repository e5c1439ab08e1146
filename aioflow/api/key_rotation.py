"""Changing the key of a home while it is in use: all that it seals is sealed anew.

Nothing is lost at any instant. The file holds both keys before anything is sealed with the new
one, and the old one until nothing is left that needs it; cut short, the next call goes on.
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
from aioflow.protocol.requests import Request, Reseal, Resealed

__all__ = ("Rotation", "RotationView")

_Ask: TypeAlias = Callable[[Request], Awaitable[object]]


class RotationView(msgspec.Struct, frozen=True, kw_only=True):
    """How the key was changed.

    Attributes:
        resealed: Values and fields of triggers that are sealed with the new key now.
        unopened: Those that no key of this home opens; they are as they were.
        resumed: Whether an earlier change had been cut short, and this one has ended it.
    """

    resealed: int
    unopened: int
    resumed: bool


class Rotation:
    """Changes the key of a home.

    Args:
        vault: What the daemon seals and opens with.
        path: The key file.
    """

    def __init__(self, vault: Vault, path: Path) -> None:
        self._vault = vault
        self._path = path
        self._lock = anyio.Lock()

    async def rotate(self, ask: _Ask) -> RotationView:
        """Change the key; one call at a time, the others wait, and change it again.

        Args:
            ask: Asks the engine.

        Raises:
            RequestError: If the key file is not the one the daemon was started with.
            SettingsError: If it cannot be read or written.
            StoreUnavailable: If the database does not answer. The home goes on with both keys.
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
            resealed, unopened = await self._reseal(ask)
            await self._write(keys[:1])
            self._vault.use(keys[:1])
            return RotationView(resealed=resealed, unopened=unopened, resumed=resumed)

    async def _write(self, keys: list[bytes]) -> None:
        with anyio.CancelScope(shield=True):
            await in_thread(write_keys, self._path, keys)

    async def _reseal(self, ask: _Ask) -> tuple[int, int]:
        resealed = unopened = 0
        after: TriggerNo | None = None
        while True:
            page = cast(Resealed, await ask(Reseal(after=after)))
            resealed += page.count
            unopened += page.unopened
            if page.after is None:
                return resealed, unopened
            after = page.after
