"""``airflow.exceptions``."""

from __future__ import annotations

from aioflow.author.signals import Fail, Skip

__all__ = ("AirflowException", "AirflowFailException", "AirflowSkipException")


class AirflowException(Exception):
    """The base class of Airflow's own exceptions."""


AirflowSkipException = Skip
AirflowFailException = Fail
