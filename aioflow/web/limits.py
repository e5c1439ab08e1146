"""Connection limits: in all, per address, and for the time and size of a request's head."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

__all__ = ("HEAD_BYTES", "HEAD_SECONDS", "IN_ALL", "PER_ADDRESS", "limited", "pending_paths")

HEAD_BYTES = 16 * 1024
"""Maximum size of a request's first line and headers."""

HEAD_SECONDS = 10.0
"""Maximum time from a connection's start or reuse until the head of its request is complete."""

_LINGER_SECONDS = 5.0
"""How long a client whose request was rejected may still send, and read the response."""

IN_ALL = 1_000
PER_ADDRESS = 200

_END_OF_HEAD = re.compile(rb"\n\r?\n")

_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 5\r\n"
    b"connection: close\r\n\r\n"
)

_REFUSED = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b"
)

_log = logging.getLogger("uvicorn.error.connections")
_log.setLevel(logging.ERROR)  # clients that send no valid HTTP would fill the log
_log.addFilter(lambda record: not _is_cut_short(record))  # the server itself logs those


def _is_cut_short(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    return kind is not None and issubclass(kind, asyncio.CancelledError)


class _Limits:
    """The limits of one server, and its open connections by address."""

    def __init__(
        self,
        in_all: int,
        from_one: int,
        head_seconds: float,
        is_exempt: Callable[[str], bool],
    ) -> None:
        self.head_seconds = head_seconds
        self._is_exempt = is_exempt
        self._in_all = in_all
        self._from_one = from_one
        self._open: Counter[str] = Counter()

    def acquire(self, address: str) -> bool:
        """Count a connection and return whether it is within the limits.

        Without an address, only the total is limited.
        """
        self._open[address] += 1
        is_many = self._open[address] > self._from_one
        if is_many and (not address or self._is_exempt(address)):
            is_many = False
        return not is_many and self._open.total() <= self._in_all

    def release(self, address: str) -> None:
        """Uncount a connection."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


class _Connection(H11Protocol):
    limits: ClassVar[_Limits]

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._from: str | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._is_refused = False
        self.logger = _log

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the event loop."""
        super().connection_made(transport)
        self._from = self.client[0] if self.client else ""
        if self.limits.acquire(self._from):
            self._wait_for_head()
        else:
            transport.write(_BUSY)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        if self._from is not None:
            self.limits.release(self._from)
            self._from = None
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        if self._is_refused or self.transport.is_closing():
            return
        before = cast(object, self.cycle)
        super().data_received(data)
        if self._is_refused:
            return
        if cast(object, self.cycle) is not before:
            self._stop_waiting()  # the head is complete
        elif before is None or self.cycle.response_complete:
            self._wait_for_head()

    def handle_events(self) -> None:
        """Called for each piece of data, and when a response has been sent.

        The parser itself limits a head only as long as its end has not arrived.
        """
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if (cycle is None or cycle.response_complete) and self._has_long_head():
            self.send_400_response("The head of the request is too long.")
        else:
            super().handle_events()

    def send_400_response(self, msg: str) -> None:
        """Respond 400, and close after the client has closed: RFC 9112, 9.6.

        Closing while data from the client is unread resets the connection, and the client may lose
        the response.
        """
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        self.transport.write(_REFUSED % (len(msg), msg.encode("ascii")))
        self._is_refused = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._stop_waiting()
        self._patience = self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def shutdown(self) -> None:
        """Called when the server stops."""
        if self._is_refused:
            self.transport.close()
        else:
            super().shutdown()

    def _has_long_head(self) -> bool:
        data, _ = self.conn.trailing_data
        return len(data) > HEAD_BYTES and _END_OF_HEAD.search(data, 0, HEAD_BYTES) is None

    @property
    def path(self) -> str | None:
        """The path of the request in progress; ``None`` if there is none."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        is_over = cycle is None or cycle.response_complete or self._is_refused
        return None if cycle is None or is_over else str(cycle.scope["path"])

    def _wait_for_head(self) -> None:
        if self._patience is None and not self.transport.is_closing():
            seconds = self.limits.head_seconds
            self._patience = self.loop.call_later(seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def pending_paths(connections: Iterable[object]) -> set[str]:
    """Return the paths of unanswered requests on these connections."""
    paths = {one.path for one in connections if isinstance(one, _Connection)}
    return {path for path in paths if path is not None}


def limited(
    *,
    in_all: int = IN_ALL,
    from_one: int = PER_ADDRESS,
    head_seconds: float = HEAD_SECONDS,
    is_exempt: Callable[[str], bool] = lambda address: False,
) -> type[asyncio.Protocol]:
    """Return a protocol class for one server, with limits of its own.

    Args:
        in_all: Maximum number of connections.
        from_one: The same per address; a Unix socket has none.
        head_seconds: See ``HEAD_SECONDS``.
        is_exempt: Returns whether an address, that of a proxy, is exempt from ``from_one``.
    """
    limits = _Limits(in_all, from_one, head_seconds, is_exempt)
    return type("Connection", (_Connection,), {"limits": limits})
