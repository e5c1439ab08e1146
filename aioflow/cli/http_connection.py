"""HTTP connections to a daemon, over a Unix socket or to a URL.

This module is imported only when a command connects, because ``http.client`` and ``ssl`` are slow
to import.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

from aioflow.errors import SettingsError

__all__ = (
    "over_socket",
    "over_url",
)

_TIMEOUT_SECONDS = 60.0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connect the socket. Called by ``http.client`` at the first request."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_SECONDS)
        try:
            self.sock.connect(str(self._path))
        except BaseException:
            self.sock.close()
            raise


class _Http:
    """A ``client.Connection`` that uses ``http.client``."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def ask(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        """See ``client.Connection``."""
        try:
            self._connection.request(method, target, body, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as exc:
            raise OSError(str(exc) or type(exc).__name__) from exc
        finally:
            self._connection.close()  # the next request reopens it


def over_socket(path: Path) -> _Http:
    """Return a connection over a Unix socket. The socket need not exist yet.

    Raises:
        SettingsError: If the socket belongs to another user.
    """
    _check_owner(path)
    return _Http(_UnixConnection(path))


def _check_owner(path: Path) -> None:
    """Reject a socket of another user. In a shared folder, such a socket may be an attack."""
    try:
        found = path.lstat()
    except OSError:
        return  # no daemon runs, which the first request will report
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid not in {os.getuid(), 0}:
        raise SettingsError(f"{path} is not a socket of this user; it is not used")


def over_url(url: str) -> tuple[_Http, str]:
    """Return a connection to the host of a URL, and the quoted path of the URL.

    Raises:
        SettingsError: If the URL is not an HTTP URL.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise SettingsError(f"--url {url!r} cannot be understood: {exc}") from exc
    if parts.scheme not in {"http", "https"} or host is None:
        raise SettingsError(f"--url {url!r} must begin with http:// or https://")
    if not parts.netloc.isprintable() or " " in parts.netloc:
        raise SettingsError(f"--url {url!r} names no host")
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            host, port, timeout=_TIMEOUT_SECONDS, context=context
        )
    return _Http(connection), quote(parts.path.rstrip("/"), safe="/%")
