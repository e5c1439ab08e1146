"""Queries of a child process to the daemon, and their replies."""

from __future__ import annotations
