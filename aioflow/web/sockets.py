"""Listening sockets of the web server: one TCP address, and one Unix socket in the home."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aioflow.errors import HomeBusy, PortInUse, SettingsError
from aioflow.filesystem import make_folder
from aioflow.settings import socket_path

__all__ = ("listen_on_address", "listen_on_home")

_BACKLOG = 1_024
_DEAD_MS = 60_000
_CONNECT_SECONDS = 1.0


def listen_on_address(host: str, port: int) -> socket.socket:
    """Return a listening socket; the caller closes it.

    Args:
        host: A name or an address.
        port: 0 for any free port.

    Raises:
        PortInUse: If the port is in use.
        SettingsError: If this machine has no such address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as exc:
        raise SettingsError(f"web.host {host!r} cannot be used: {exc.strerror}") from exc
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by connections: closes those that acknowledge no data for this long.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MS)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as exc:
        listening.close()
        if exc.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from exc
        raise SettingsError(f"cannot listen on {host}:{port}: {exc.strerror}") from exc
    listening.setblocking(False)
    return listening


@contextmanager
def listen_on_home(home: Path) -> Iterator[socket.socket]:
    """Listen on the home's Unix socket, accessible to its owner only. Remove it at the end.

    A socket left by a dead daemon is replaced.

    Raises:
        HomeBusy: If a running daemon listens there.
        SettingsError: If the folder of the socket cannot be trusted.
    """
    path = socket_path(home)
    _own_folder(path.parent)
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        try:
            listening.bind(str(path))
            # No client can have connected: it does not listen yet.
            path.chmod(0o600)
            made = path.stat().st_ino
        except OSError as exc:
            raise SettingsError(f"cannot listen on {path}: {exc.strerror}") from exc
        listening.listen(_BACKLOG)
        listening.setblocking(False)
        try:
            yield listening
        finally:
            with suppress(FileNotFoundError):
                if path.stat().st_ino == made:  # otherwise it belongs to another daemon by now
                    path.unlink()


def _own_folder(folder: Path) -> None:
    make_folder(folder)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise SettingsError(f"{folder} must be a folder of this user that nobody else can write")


def _remove_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SettingsError(f"{path} is no socket; remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except FileNotFoundError:
            return
        except TimeoutError:
            pass  # it does not respond, but a process has it open
    raise HomeBusy(str(path), "whoever answers there")
