"""Requests and responses shared by the web server and the command line.

Committed data is read from the store. State that exists only in memory is requested from the
engine. ``Api.offline`` reads a database without a daemon.
"""

from __future__ import annotations

from aioflow.api.schemas import instant, iso
from aioflow.api.service import Api

__all__ = ("Api", "instant", "iso")
