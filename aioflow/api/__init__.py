"""Requests and answers, the same for the web and the command line.

What has been committed is read from the store; what only memory knows is asked of the engine.
Without a daemon the reading half works alone: ``Api.offline``.
"""

from __future__ import annotations

from aioflow.api.schemas import instant, iso
from aioflow.api.service import Api

__all__ = ("Api", "instant", "iso")
