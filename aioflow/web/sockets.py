"""Where the web server listens: one address, and one Unix socket in the home."""

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
        port: 0 for any free one.

    Raises:
        PortInUse: If something else listens there.
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
        # Connections have it, too: who takes nothing for so long is gone, whatever we hold for him.
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
    """Listen on the home's Unix socket, for its owner alone; it is removed at the end.

    One that a dead daemon left is replaced.

    Raises:
        HomeBusy: If a living daemon answers there.
        SettingsError: If the folder of the socket cannot be trusted.
    """
    path = socket_path(home)
    _own_folder(path.parent)
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        try:
            listening.bind(str(path))
            # Nobody can have connected: it does not listen yet.
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
                if path.stat().st_ino == made:  # else it is another daemon's by now
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
            pass  # it does not answer, but somebody holds it
    raise HomeBusy(str(path), "whoever answers there")
