"""The HTTP server: a JSON API and a web page, on a TCP address and a Unix socket."""

from __future__ import annotations

from aioflow.web.server import WebAddress, serve

__all__ = ("WebAddress", "serve")
