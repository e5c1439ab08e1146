"""The fixture of ``aioflow.testing``, exactly as its users get it."""

from __future__ import annotations

from aioflow.pytest_plugin import sim

__all__ = ("sim",)
