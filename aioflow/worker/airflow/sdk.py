"""``airflow.sdk``, and the other Airflow modules from which triggers and operators import names.

The finder defines which name belongs to which module.
"""

from __future__ import annotations

from typing import Any

from aioflow.author.deferral import Fail, PokeReturnValue, Skip, default_deferrable
from aioflow.author.operator import Context
from aioflow.author.operator import Operator as BaseOperator
from aioflow.author.operator import Sensor as BaseSensorOperator
from aioflow.worker.airflow.triggers import BaseTrigger, TriggerEvent

__all__ = (
    "NOTSET",
    "AirflowConfigException",
    "AirflowException",
    "AirflowFailException",
    "AirflowSkipException",
    "ArgNotSet",
    "BaseOperator",
    "BaseSensorOperator",
    "BaseTrigger",
    "Context",
    "PokeReturnValue",
    "TriggerEvent",
    "conf",
    "is_arg_set",
)

_REQUIRED: Any = object()


class AirflowConfigException(Exception):
    """Raised if a setting does not exist and no fallback was given."""


class _Conf:
    """Provides ``[operators] default_deferrable``; returns the fallback for any other setting."""

    def get(self, section: str, key: str, fallback: Any = _REQUIRED, **options: Any) -> Any:
        """Return the fallback.

        Raises:
            AirflowConfigException: If no fallback was given.
        """
        if fallback is _REQUIRED:
            raise AirflowConfigException(f"section/key [{section}/{key}] not found in config")
        return fallback

    def getboolean(self, section: str, key: str, fallback: Any = _REQUIRED, **options: Any) -> Any:
        """Return whether operators defer by default. For any other setting, return the fallback."""
        if (section, key) == ("operators", "default_deferrable"):
            return default_deferrable()
        return self.get(section, key, fallback)

    getint = getfloat = get


conf = _Conf()


class AirflowException(Exception):
    """The base class of Airflow's own exceptions."""


AirflowSkipException = Skip
AirflowFailException = Fail


class ArgNotSet:
    """The type of ``NOTSET``."""


NOTSET = ArgNotSet()
"""Represents an argument that was not given, if ``None`` is a valid value."""


def is_arg_set(value: object) -> bool:
    """Return whether an argument was given."""
    return not isinstance(value, ArgNotSet)
