"""Queries of a child to the daemon, and their replies."""

from __future__ import annotations
