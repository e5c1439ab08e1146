"""``airflow.models`` and ``airflow.models.baseoperator``."""

from __future__ import annotations

from aioflow.author.operator import Operator as BaseOperator

__all__ = ("BaseOperator",)
