"""Health checks while the daemon waits for its database: alive, and not ready.

All other paths are answered as not ready, too. There is no authentication, because the responses
contain no data.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import anyio
from anyio.abc import TaskStatus

from aioflow.settings import Settings
from aioflow.web.server import check_address
from aioflow.web.sockets import listen_on_address

__all__ = ("serve_not_ready",)

_READ_SECONDS = 5.0
_HEAD_BYTES = 16 * 1024
_ALIVE = b'{"status":"live"}'
_NOT_READY = b'{"status":"not_ready"}'


async def serve_not_ready(
    settings: Settings, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Answer on the web server's address until cancelled, then release the address.

    Raises:
        PortInUse: If the address is in use.
        SettingsError: If it is invalid, or reachable by other machines without permission.
    """
    check_address(settings)
    with listen_on_address(settings.host, settings.port) as listening:
        server = await _server(listening)
        try:
            task_status.started()
            await anyio.sleep_forever()
        finally:
            server.close()


async def _server(listening: socket.socket) -> asyncio.Server:
    return await asyncio.start_server(_answer, sock=listening, limit=_HEAD_BYTES)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            with anyio.fail_after(_READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(_response(head))
            await writer.drain()
    except TimeoutError:
        pass  # the client sent no request: close the connection
    finally:
        writer.close()


def _response(head: bytes) -> bytes:
    words = head.split(b"\r\n", 1)[0].split(b" ")
    is_live = len(words) > 1 and words[1].partition(b"?")[0] == b"/health/live"
    status, body = (b"200 OK", _ALIVE) if is_live else (b"503 Service Unavailable", _NOT_READY)
    lines = (
        b"HTTP/1.1 " + status,
        b"content-type: application/json",
        b"content-length: " + str(len(body)).encode(),
        b"retry-after: 5",
        b"connection: close",
    )
    return b"\r\n".join((*lines, b"", body))
