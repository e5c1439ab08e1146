"""Immediate detection of changes, where the kernel reports them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from aioflow.catalog.ignore_file import NAME
from aioflow.catalog.patterns import TABLE

__all__ = ("watch",)

_logger = logging.getLogger(__name__)


async def watch(
    folders: Callable[[], Awaitable[list[Path]]],
    notice: Callable[[], None],
    is_named: Callable[[str], bool],
) -> None:
    """Call ``notice`` whenever something may have changed in these folders.

    Nothing is guaranteed: network file systems report nothing, and the kernel drops events when too
    many occur. New folders are searched for whenever something other than a Python file changes.

    Args:
        folders: Returns the folders to watch now.
        notice: Called from the event loop.
        is_named: Returns whether a DAG file names this file, which is not a module.
    """
    if sys.platform != "linux":
        return
    from asyncinotify import Event, InitFlags, Inotify, Mask

    written = Mask.CLOSE_WRITE | Mask.ATTRIB
    named = Mask.MOVED_FROM | Mask.MOVED_TO | Mask.CREATE | Mask.DELETE
    own = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR

    def is_folder(event: Event) -> bool:
        """Return whether there may be new folders.

        For the kernel, a link to a folder is not one.
        """
        is_one = event.name is None or bool(event.mask & Mask.ISDIR)
        return is_one or (not event.mask & written and _may_be_link(event.path))

    def is_source(event: Event) -> bool:
        """Return whether an event concerns DAGs. Data written beside them does not."""
        name = "" if event.name is None else event.name.name
        if name.endswith(".py") or name in (NAME, TABLE):
            return True
        return event.path is not None and is_named(str(event.path))

    try:
        inotify = Inotify(InitFlags.CLOEXEC | InitFlags.NONBLOCK, sync_timeout=0)
    except OSError as exc:  # all inotify instances of this user are in use
        _logger.warning("changes of DAG files are noticed by the sweep alone: %s", exc)
        return
    with inotify as kernel:
        has_new_folders = True
        while True:
            if has_new_folders:
                for folder in await folders():
                    try:
                        kernel.add_watch(folder, written | named | own)  # repeating it is harmless
                    except OSError as exc:
                        _logger.info("changes in %s are noticed late: %s", folder, exc)
            await anyio.wait_readable(kernel.fd)
            has_new_folders = has_new_sources = False
            while (event := kernel.sync_get()) is not None:
                has_new_folders = has_new_folders or is_folder(event)
                has_new_sources = has_new_sources or is_source(event)
            if has_new_folders or has_new_sources:
                notice()


def _may_be_link(path: Path | None) -> bool:
    """Return whether a path is a link, or was deleted and may have been one."""
    return path is None or path.is_symlink() or not path.exists()
