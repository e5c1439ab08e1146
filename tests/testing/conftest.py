"""The fixture of the kit, as it comes to those who have installed aioflow."""

from __future__ import annotations

from aioflow.pytest_plugin import sim

__all__ = ("sim",)
