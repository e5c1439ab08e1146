"""``airflow.utils.context``."""

from __future__ import annotations

from aioflow.author.operator import Context

__all__ = ("Context",)
