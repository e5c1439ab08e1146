"""Noticing changes at once, where the kernel tells of them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

__all__ = ("watch",)

_logger = logging.getLogger(__name__)


async def watch(folders: Callable[[], Awaitable[list[Path]]], notice: Callable[[], None]) -> None:
    """Call ``notice`` whenever something may have changed in these folders.

    Nothing is promised: network file systems tell nothing, and the kernel forgets when too
    much happens. New folders are found whenever something changes.

    Args:
        folders: Lists what to watch, now.
        notice: Called from the loop.
    """
    if sys.platform != "linux":
        return
    from asyncinotify import InitFlags, Inotify, Mask

    interesting = (
        Mask.CLOSE_WRITE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.CREATE | Mask.DELETE
    ) | (Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ATTRIB | Mask.ONLYDIR)
    flags = InitFlags.CLOEXEC | InitFlags.NONBLOCK
    try:
        inotify = Inotify(flags, sync_timeout=0)
    except OSError as exc:  # all of this user's are taken
        _logger.warning("changes of DAG files are noticed by the sweep alone: %s", exc)
        return
    with inotify as kernel:
        while True:
            for folder in await folders():
                try:
                    kernel.add_watch(folder, interesting)  # again is no second watch
                except OSError as exc:
                    _logger.info("changes in %s are noticed late: %s", folder, exc)
            await anyio.wait_readable(kernel.fd)
            while kernel.sync_get() is not None:
                pass
            notice()
