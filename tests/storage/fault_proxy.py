"""An HTTP proxy in front of an object store that fails on demand."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self
from urllib.parse import urlsplit

__all__ = ("Fault", "FaultProxy")

_OWN = {"connection", "transfer-encoding", "keep-alive"}


class Fault(NamedTuple):
    """What happens to one request.

    Attributes:
        status: The status that is returned instead of asking the store; 0 to ask the store.
        cut_after: After how many bytes of the store's response the connection is closed; -1 for
            never.
        stall_seconds: Delay of the response.
    """

    status: int = 0
    cut_after: int = -1
    stall_seconds: float = 0.0


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore the error: a client that was killed leaves its connections behind."""


class FaultProxy:
    """Forwards requests to a store, with one thread per connection.

    Attributes:
        faults: The faults of the next requests, in order.
        choose: Called with the method of each request for which ``faults`` has none. Returns a
            fault or ``None``.
        watch: Called with the method of a request and a moment: ``asked`` before the store is
            asked, ``stored`` before its response is passed on, and ``answered`` after that.
        seen: Number of requests by method.
    """

    def __init__(self, store: str) -> None:
        self._store = urlsplit(store)
        self.faults: deque[Fault] = deque()
        self.choose: Callable[[str], Fault | None] = lambda _: None
        self.watch: Callable[[str, str], None] = lambda *_: None
        self.seen: Counter[str] = Counter()
        self.seen_bytes = 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Log nothing."""

            def handle_any(self) -> None:
                with contextlib.suppress(OSError):  # the client, or the store, is no longer there
                    proxy.handle(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        self.seen[request.command] += 1
        fault = self.faults.popleft() if self.faults else self.choose(request.command) or Fault()
        time.sleep(fault.stall_seconds)
        self.watch(request.command, "asked")
        if fault.status:
            self._answer(request, fault.status, {}, b"<Error><Code>SlowDown</Code></Error>")
            return
        store = http.client.HTTPConnection(self._store.hostname or "", self._store.port, timeout=60)
        try:
            store.request(request.command, request.path, body, dict(request.headers))
            answer = store.getresponse()
            data = answer.read()
            headers = {k: v for k, v in answer.getheaders() if k.lower() not in _OWN}
        finally:
            store.close()
        self.seen_bytes += len(body) + len(data)
        self.watch(request.command, "stored")
        self._answer(request, answer.status, headers, data, fault.cut_after)
        self.watch(request.command, "answered")

    def _answer(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        headers: dict[str, str],
        data: bytes,
        cut_after: int = -1,
    ) -> None:
        if cut_after == 0:
            request.close_connection = True  # the reply is lost as a whole
            return
        headers = {k: v for k, v in headers.items() if k.lower() != "content-length"}
        size = len(data)
        if request.command == "HEAD":
            size = int(headers.get("content-length", 0))
        request.send_response(status)
        for name, value in (*headers.items(), ("Content-Length", str(size))):
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            with contextlib.suppress(OSError):  # the client waits no more
                request.wfile.write(data if cut_after < 0 else data[:cut_after])
        if 0 <= cut_after < size:
            request.close_connection = True
