"""Processes that run task bodies: slot workers for ``def``, the async host for ``async def``."""

from __future__ import annotations
