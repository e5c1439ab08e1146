"""Looks at folders, once per period for everyone who waits for something in them."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ("Look", "Watch", "watching")

_SINGLY = 64  # so many names are looked up one by one; more are cheaper in one listing

_Watches = dict[tuple[str, float], "Watch"]
_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Watches] = (
    weakref.WeakKeyDictionary()
)

# Threads of our own: a file system that hangs must not take the loop's other threads with it.
_threads = ThreadPoolExecutor(4, thread_name_prefix="aioflow-folders")


@dataclass(frozen=True)
class Look:
    """What one look at a folder found.

    Attributes:
        at: Seconds on the loop's clock, when it began.
        sizes: Bytes by name, of those names that somebody waits for and that exist.
    """

    at: float
    sizes: Mapping[str, int]


class Watch:
    """One folder, looked at once per period however many wait for something in it.

    The periods are those of the loop's clock, so that everyone wakes for the same look.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: str, poll_seconds: float) -> None:
        self.names: Counter[str] = Counter()
        self._loop = loop
        self._folder = folder
        self._poll_seconds = poll_seconds
        self._period = -1
        self._look: asyncio.Future[Look] | None = None

    async def look(self) -> Look:
        """Return the look of this period; who comes first takes it.

        Raises:
            OSError: If the folder cannot be read; a missing one is merely empty.
        """
        period = int(self._loop.time() // self._poll_seconds)
        if self._look is None or period != self._period:
            self._period = period
            self._look = self._loop.run_in_executor(
                _threads, _look, self._loop.time(), self._folder, frozenset(self.names)
            )
        # One that is cancelled must not take the look from the others.
        return await asyncio.shield(self._look)

    async def next_look(self) -> Look:
        """Return the look of the next period, when it has begun."""
        await asyncio.sleep(self._poll_seconds - self._loop.time() % self._poll_seconds)
        return await self.look()


@contextmanager
def watching(folder: str, name: str, poll_seconds: float) -> Iterator[Watch]:
    """Take part in the looks at a folder; ``name`` is what one waits for in it.

    All who share the folder and the period share the looks.
    """
    loop = asyncio.get_running_loop()
    watches = _watches.setdefault(loop, {})
    watch = watches.setdefault((folder, poll_seconds), Watch(loop, folder, poll_seconds))
    watch.names[name] += 1
    try:
        yield watch
    finally:
        watch.names[name] -= 1
        if not watch.names[name]:
            del watch.names[name]
        if not watch.names:
            del watches[folder, poll_seconds]


def _look(at: float, folder: str, names: Collection[str]) -> Look:
    if len(names) <= _SINGLY:
        found = {name: _size(os.path.join(folder, name)) for name in names}  # noqa: PTH118
    else:
        found = _listed(folder, names)
    return Look(at, {name: size for name, size in found.items() if size is not None})


def _listed(folder: str, names: Collection[str]) -> dict[str, int | None]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name: _size(entry.path) for entry in entries if entry.name in names}
    except FileNotFoundError:
        return {}


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - Path would cost as much as the call
    except FileNotFoundError:
        return None
