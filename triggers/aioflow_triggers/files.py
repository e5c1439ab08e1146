"""Triggers that wait for files."""

from __future__ import annotations

import os.path
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypedDict

from aioflow import Trigger, TriggerEvent
from aioflow_triggers.folders import watching

__all__ = ("FileSeen", "FileTrigger")


class FileSeen(TypedDict):
    """The file that was waited for."""

    path: str
    size_bytes: int


@dataclass(frozen=True)
class FileTrigger(Trigger[FileSeen]):
    """Fires once a file exists and has stopped growing.

    "Stopped growing" means that two looks, at least ``poll_seconds`` apart, found the same
    size. A producer that pauses longer than that mid-write needs a marker file.

    Attributes:
        path: Absolute path as the trigger host's machine sees it, which need not be the
            machine the task runs on.
        poll_seconds: Seconds between two looks; at least 0.1. All waits on one folder with
            the same figure share one look, however many they are.

    Raises:
        ValueError: If ``path`` is relative or names no file, or ``poll_seconds`` is below 0.1.

    Events:
        One. ``payload`` is ``{"path": str, "size_bytes": int}``; ``key`` is the path and size,
        so that two hosts that see the same file yield the same key.

    Errors:
        ``PermissionError`` and other errors of the file system fail the waiting task. A missing
        file or folder is not an error: it is what the trigger waits out.
    """

    path: str
    poll_seconds: float = 5.0

    def __post_init__(self) -> None:
        if not self.path.startswith("/") or not os.path.basename(self.path):  # noqa: PTH119
            raise ValueError(f"path must be absolute and name a file, got {self.path!r}")
        if not self.poll_seconds >= 0.1:
            raise ValueError(f"poll_seconds must be at least 0.1, got {self.poll_seconds}")

    async def run(self) -> AsyncIterator[TriggerEvent[FileSeen]]:
        """Yield one event once the file is complete."""
        size = await self._size_at_rest()
        yield TriggerEvent(FileSeen(path=self.path, size_bytes=size), key=f"{self.path}:{size}")

    async def _size_at_rest(self) -> int:
        folder, name = os.path.split(self.path)
        # Clocks are floats: what was meant to be one period apart may look shorter.
        rest_seconds = self.poll_seconds * 0.999
        size, since = -1, 0.0
        with watching(folder, name, self.poll_seconds) as watch:
            look = await watch.look()
            while True:
                found = look.sizes.get(name, -1)
                if found != size:
                    size, since = found, look.at
                elif size >= 0 and look.at - since >= rest_seconds:
                    return size
                look = await watch.next_look()
