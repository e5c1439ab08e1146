"""``airflow.exceptions``."""

from __future__ import annotations

from aioflow.author.signals import Fail, Skip

__all__ = ("AirflowException", "AirflowFailException", "AirflowSkipException")


class AirflowException(Exception):
    """The base of what Airflow's own code raises."""


AirflowSkipException = Skip
AirflowFailException = Fail
