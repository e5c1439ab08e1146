"""``airflow.sdk``: the part that triggers and operators use."""

from __future__ import annotations

from aioflow.author.operator import Context
from aioflow.author.operator import Operator as BaseOperator
from aioflow.author.operator import Sensor as BaseSensorOperator
from aioflow.author.signals import PokeReturnValue
from aioflow.worker.airflow.base import BaseTrigger, TriggerEvent
from aioflow.worker.airflow.exceptions import AirflowException

__all__ = (
    "AirflowException",
    "BaseOperator",
    "BaseSensorOperator",
    "BaseTrigger",
    "Context",
    "PokeReturnValue",
    "TriggerEvent",
)
