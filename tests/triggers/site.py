"""A web server for tests, with real sockets and prepared responses."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Asked:
    """A request as it was received by the server."""

    method: str
    path: str
    headers: dict[str, str]
    body: str


@dataclass
class Reply:
    """A response. ``stall`` sends only the head, and then waits until the client disconnects."""

    status: int = 200
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    stall: bool = False


class Site:
    """A server that gives the responses of ``replies`` in order, and repeats the last one."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.pages: dict[str, Reply] = {}
        self.asked: list[Asked] = []
        self.connections = 0
        self.url = ""

    def reply(self, status=200, body="", **headers):
        """Add a response. In the names of headers, ``_`` stands for ``-``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.replies.append(Reply(status, body, named))

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                first, *lines = head.strip().split("\r\n")
                method, path, _ = first.split(" ")
                headers = {n.lower(): v for n, v in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.asked.append(Asked(method, path, headers, body.decode()))
                await self._answer(self._reply_to(path), method, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _reply_to(self, path: str) -> Reply:
        if self.pages:
            return self.pages.get(path, Reply(404))
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    async def _answer(self, reply, method, reader, writer):
        body = b"" if reply.status == 304 else reply.body.encode()
        length = len(body) + 1 if reply.stall else len(body)
        headers = {"content-length": str(length), **reply.headers}
        lines = [f"HTTP/1.1 {reply.status} X", *(f"{n}: {v}" for n, v in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        if method != "HEAD":
            writer.write(body)
        await writer.drain()
        if reply.stall:
            await reader.read()  # until the client closes


@asynccontextmanager
async def site():
    """Serve on a free port of this machine."""
    here = Site()
    server = await asyncio.start_server(here.serve, "127.0.0.1", 0)
    here.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield here
