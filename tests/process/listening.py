"""A server for webhooks that records its requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ("Heard", "listening")


class Heard:
    """A webhook target that records its requests, and rejects the first ones."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    def take(self, headers: dict[str, str], body: bytes) -> int:
        """Record a request. Return the status of the response."""
        self.posts.append((headers, body))
        return 503 if len(self.posts) <= self.failures else 204


@contextmanager
def listening(failures: int = 1) -> Iterator[Heard]:
    """Serve on a free port. Reject the first ``failures`` requests."""
    heard = Heard(failures)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(heard.take(headers, body))
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    heard.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
