"""The HTTP face: an API for machines, a page for people, on one address and one Unix socket."""

from __future__ import annotations

from aioflow.web.server import serve

__all__ = ("serve",)
