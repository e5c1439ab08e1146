"""Selection of runs by their properties, for lists, counts and bulk actions."""

from __future__ import annotations

import msgspec

from aioflow.model.states import RunState
from aioflow.model.timestamps import Timestamp

__all__ = ("CAUSES", "EVERY_RUN", "RunCount", "RunCounts", "RunFilter")

CAUSES = ("manual", "schedule", "backfill", "event", "task")
"""Possible causes of a run; ``task`` means that a task of another run started it."""


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Properties that a run must have. An empty property matches every run.

    Attributes:
        dag_ids, states, causes: The run has one of the listed values.
        first, last: The run was created at or after ``first``, and before ``last``.
        search: A part of the id of the run or of its DAG.
        prefix: The beginning of the id of the run.
        params: A part of a name or of a text among its parameters, or of a note on the run or on
            one of its tasks. Numbers are not searched.
    """

    dag_ids: tuple[str, ...] = ()
    states: tuple[RunState, ...] = ()
    causes: tuple[str, ...] = ()
    first: Timestamp | None = None
    last: Timestamp | None = None
    search: str = ""
    prefix: str = ""
    params: str = ""


EVERY_RUN = RunFilter()


class RunCount(msgspec.Struct, frozen=True):
    """The number of runs of a DAG in a state and with a cause."""

    dag_id: str
    state: RunState
    cause: str
    count: int


class RunCounts(msgspec.Struct, frozen=True):
    """The number of runs that match a filter, by DAG, state and cause.

    Attributes:
        is_complete: Whether all matching runs were counted, not only the newest.
    """

    counts: list[RunCount]
    is_complete: bool
