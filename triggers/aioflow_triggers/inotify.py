"""Change notifications for folders from the kernel: hints to poll sooner, never authoritative.

Network file systems send no notifications, the kernel drops some if there are too many, and the
number of watches per user is limited. So users of this module poll as well. Without the
notifications they find the same changes, only later.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

__all__ = ("Kernel",)

_EXHAUSTED = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSYS})

_logger = logging.getLogger("aioflow.trigger.folders")

OnChange: TypeAlias = Callable[[str | None], None]


class Kernel:
    """Reports changes in folders on one event loop, with one inotify and a watch per folder.

    If the kernel refuses a watch because a limit is reached, no more watches are requested until
    all listeners have left. The refusal is logged once.

    Args:
        is_silent: Request no watches, so that nothing is reported.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_silent: bool = False) -> None:
        self._loop = loop
        self._is_silent = is_silent
        self._listeners: dict[str, list[OnChange]] = {}
        self._watches: dict[str, Any] = {}
        self._folders: dict[Any, set[str]] = {}  # two paths to one folder share a watch
        self._inotify: Any = None
        self._is_refused = False

    def listen(self, folder: str, on_change: OnChange) -> None:
        """Call ``on_change`` from the event loop with the changed name in a folder.

        ``None`` stands for any name. Nothing is reported until ``follow`` is called.
        """
        self._listeners.setdefault(folder, []).append(on_change)
        if self._inotify is None and not self._is_refused:
            self._open()

    def leave(self, folder: str, on_change: OnChange) -> None:
        """Stop reporting changes to a listener. The last listener to leave closes the inotify."""
        listeners = self._listeners[folder]
        listeners.remove(on_change)
        if not listeners:
            del self._listeners[folder]
            self._unwatch(folder)
        if not self._listeners:
            self._close()

    def follow(self, folder: str) -> None:
        """Request a watch from the kernel if there is none. May block, so it is called in threads.

        Errors, such as a missing folder, are ignored here, because the poll finds them.
        """
        inotify = self._inotify
        if inotify is None or self._is_refused or folder in self._watches:
            return
        try:
            watch = inotify.add_watch(folder, _mask())
            self._folders.setdefault(watch, set()).add(folder)
            self._watches[folder] = watch
        except OSError as exc:
            if exc.errno in _EXHAUSTED:
                self._refused(exc)
        except (ValueError, RuntimeError):
            return  # closed during the request
        if folder not in self._listeners:  # all listeners left during the request
            self._loop.call_soon_threadsafe(self._unwatch, folder)

    def _open(self) -> None:
        if sys.platform != "linux" or self._is_silent:
            return
        try:
            from asyncinotify import InitFlags, Inotify

            self._inotify = Inotify(InitFlags.CLOEXEC | InitFlags.NONBLOCK, sync_timeout=0)
        except (OSError, ImportError) as exc:
            self._refused(exc)
            return
        self._loop.add_reader(self._inotify.fd, self._read)

    def _close(self) -> None:
        inotify, self._inotify = self._inotify, None
        self._watches.clear()
        self._folders.clear()
        self._is_refused = False
        if inotify is not None:
            self._loop.remove_reader(inotify.fd)
            inotify.close()

    def _refused(self, exc: Exception) -> None:
        if not self._is_refused:
            self._is_refused = True
            _logger.warning(
                "the kernel watches no more folders for us (%s); changes are found by polling, "
                "once per period, with a short delay",
                exc,
            )

    def _unwatch(self, folder: str) -> None:
        if folder in self._listeners:
            return
        watch = self._watches.pop(folder, None)
        sharing = self._folders.get(watch, set())
        sharing.discard(folder)
        if watch is not None and not sharing and self._inotify is not None:
            self._folders.pop(watch, None)
            with contextlib.suppress(OSError, ValueError, AttributeError):
                self._inotify.rm_watch(watch)  # fails if the folder itself was deleted

    def _read(self) -> None:
        from asyncinotify import Mask

        while self._inotify is not None and (event := self._inotify.sync_get()) is not None:
            if event.watch is None:  # queue overflow, or a folder without listeners
                for folder in list(self._listeners):
                    self._tell(folder, None)
                continue
            folders = list(self._folders.get(event.watch, ()))
            if event.mask & (Mask.IGNORED | Mask.MOVE_SELF | Mask.DELETE_SELF):
                self._forget(event.watch)  # the path may now mean another folder
            for folder in folders:
                self._tell(folder, None if event.name is None else str(event.name))

    def _forget(self, watch: Any) -> None:
        for folder in self._folders.pop(watch, ()):
            self._watches.pop(folder, None)
        with contextlib.suppress(OSError, ValueError):
            self._inotify.rm_watch(watch)  # fails if the kernel dropped it

    def _tell(self, folder: str, name: str | None) -> None:
        for on_change in list(self._listeners.get(folder, ())):
            on_change(name)


def _mask() -> Any:
    from asyncinotify import Mask

    return (
        (Mask.CLOSE_WRITE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.CREATE | Mask.DELETE)
        | (Mask.ATTRIB | Mask.DELETE_SELF | Mask.MOVE_SELF)
        | Mask.ONLYDIR
    )
