"""``airflow.sensors.base``."""

from __future__ import annotations

from aioflow.author.operator import Sensor as BaseSensorOperator
from aioflow.author.signals import PokeReturnValue

__all__ = ("BaseSensorOperator", "PokeReturnValue")
