"""Connections to a daemon over a Unix socket or TCP. Imported when a request is sent."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

__all__ = ("over_socket", "over_tcp")

_TIMEOUT_SECONDS = 60.0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connect the socket; ``http.client`` calls this at the first request."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_SECONDS)
        try:
            self.sock.connect(str(self._path))
        except BaseException:
            self.sock.close()
            raise


class _Http:
    """See ``client.Connection``."""

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
            self._connection.close()  # reopened by the next request


def over_socket(path: Path) -> _Http:
    """Return a connection over a Unix socket, which need not exist yet."""
    return _Http(_UnixConnection(path))


def over_tcp(host: str, port: int | None, *, is_secure: bool) -> _Http:
    """Return a connection over TCP, with TLS if ``is_secure``."""
    if is_secure:
        context = ssl.create_default_context()
        return _Http(
            http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_SECONDS, context=context)
        )
    return _Http(http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS))
