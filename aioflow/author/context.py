"""The context of a run: ``current``, and the names that Airflow injects.

The local dates and times ``ds``, ``ts`` and ``logical_day`` are in the DAG's time zone. A run
without a logical date, started manually, uses the time it was created instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from aioflow.author.airflow_context import ContextValues
from aioflow.author.binding import FromContext
from aioflow.author.placeholder import Unknown
from aioflow.model.ids import TaskNo
from aioflow.model.timestamps import Timestamp, to_datetime

__all__ = (
    "INJECTED",
    "TEMPLATE_NAMES",
    "ContextValue",
    "Current",
    "DataInterval",
    "RunContext",
    "current",
    "resolve",
)

_CACHED_TIMESTAMPS = 128
"""Cache size for values derived from a run's date, which all tasks of the run share."""


class DataInterval(NamedTuple):
    """The data interval of a run. By default both ends are its logical date.

    This is also what Airflow does for cron strings. With ``data_interval="previous"`` the
    interval starts at the previous fire time.
    """

    start: datetime
    end: datetime


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The run and the task instance for which user code is running.

    Attributes:
        timezone: The time zone of the DAG.
        map_index: -1 for a task that is not mapped.
        round: The round of a loop, counted from 0; ``None`` for a task outside of loops.
        task_no: The number of the task's row. It changes when a mapped task is expanded again.
        clear_number: How often the task with this number was cleared.
        conf: The conf that the run was started with, decoded without annotations.
        params: The parameters of the DAG, with defaults; see ``parameters``.
        cause: ``manual``, ``schedule``, ``event``, ``backfill``, or ``task`` for a run started by
            ``run_dag`` or ``start_dag``.
        interval: The data interval, if it is not a single point.
    """

    run_id: str
    dag_id: str
    task_id: str = ""
    logical_date: Timestamp | None = None
    created_at: Timestamp
    timezone: str = "UTC"
    try_number: int = 1
    map_index: int = -1
    round: int | None = None
    task_no: TaskNo = 0
    clear_number: int = 0
    conf: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    cause: str = "manual"
    interval: tuple[Timestamp, Timestamp] | None = None

    @property
    def data_interval(self) -> DataInterval:
        """The data interval of the run."""
        if self.interval is None:
            return DataInterval(self.instant, self.instant)
        return DataInterval(*map(_instant, self.interval))

    @property
    def instant(self) -> datetime:
        """The logical date of the run, or else its creation time, in UTC."""
        return _instant(self.created_at if self.logical_date is None else self.logical_date)

    @property
    def wall(self) -> datetime:
        """The logical date of the run, or else its creation time, in the DAG's time zone."""
        return _wall(self.instant, self.timezone)

    @property
    def idempotency_key(self) -> str:
        """A key for this task of this run that stays the same across tries and restarts."""
        index = "" if self.map_index < 0 else f"/{self.map_index}"
        index += "" if self.round is None else f"/round-{self.round}"
        return f"{self.run_id}/{self.task_id}{index}"

    @property
    def rerun_key(self) -> str:
        """A key that stays the same across tries, and changes when the task is cleared."""
        return f"{self.idempotency_key}/{self.task_no}.{self.clear_number}"


_instant = lru_cache(maxsize=_CACHED_TIMESTAMPS)(to_datetime)


@lru_cache(maxsize=_CACHED_TIMESTAMPS)
def _wall(instant: datetime, timezone: str) -> datetime:
    return instant.astimezone(ZoneInfo(timezone))


@lru_cache(maxsize=_CACHED_TIMESTAMPS)
def _text(instant: datetime, timezone: str, form: str) -> str:
    # Cached by UTC time: local times of the same moment in two zones compare equal.
    return _wall(instant, timezone).strftime(form)


_VALUES: dict[str, Callable[[RunContext], Any]] = {
    "cause": lambda run: run.cause,
    "conf": lambda run: dict(run.conf),
    "dag_id": lambda run: run.dag_id,
    "data_interval": lambda run: run.data_interval,
    "data_interval_end": lambda run: run.data_interval.end,
    "data_interval_start": lambda run: run.data_interval.start,
    "ds": lambda run: run.wall.date().isoformat(),
    "ds_nodash": lambda run: _text(run.instant, run.timezone, "%Y%m%d"),
    "idempotency_key": lambda run: run.idempotency_key,
    "logical_date": lambda run: run.instant,
    "logical_day": lambda run: run.wall.date(),
    "map_index": lambda run: run.map_index,
    "params": lambda run: dict(run.params),
    "rerun_key": lambda run: run.rerun_key,
    "round": lambda run: run.round or 0,
    "run_id": lambda run: run.run_id,
    "run_logical_date": lambda run: None if run.logical_date is None else run.instant,
    "task_id": lambda run: run.task_id,
    "try_number": lambda run: run.try_number,
    "ts": lambda run: run.wall.isoformat(),
    "ts_nodash": lambda run: _text(run.instant, run.timezone, "%Y%m%dT%H%M%S"),
}

INJECTED = frozenset({*_VALUES, "context"}) - {"cause", "conf", "round", "run_logical_date"}
"""Names of parameters that are filled from the run if a call does not pass them.

Excludes names that authors use for parameters of their own.
"""


TEMPLATE_NAMES = frozenset(_VALUES)
"""Names that a template may use."""


def resolve(name: str, run: RunContext) -> Any:
    """Return one value of the run.

    Args:
        name: As in ``FromContext``: ``context``, one of its keys, or ``params.<parameter>``.
        run: The run and the task instance.

    Raises:
        KeyError: If there is no such name, or no such parameter.
    """
    if name == "context":
        return ContextValues((known, value(run)) for known, value in _VALUES.items())
    head, dot, parameter = name.partition(".")
    return run.params[parameter] if dot else _VALUES[head](run)


class ContextValue(Unknown):
    """A placeholder for a value of the run that does not exist yet, such as ``current.ds``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, key: str) -> Any:
        if self._name != "params" or not isinstance(key, str):
            return self._refuse(f"[{key!r}]")
        return ContextValue(f"params.{key}")

    def _label(self) -> str:
        return f"current.{self._name}"

    @property
    def binding(self) -> FromContext:
        """The binding that resolves to the value."""
        return FromContext(self._name)


def _value(name: str) -> Any:
    return ContextValue(name)


class Current:
    """Values of the run that a task can use, with the types they have when the task runs.

    Use one as the default of a parameter, or as an argument in a DAG::

        @task
        def publish(total: Decimal, ds: str = current.ds) -> None: ...
    """

    ds: str = _value("ds")
    ts: str = _value("ts")
    run_id: str = _value("run_id")
    dag_id: str = _value("dag_id")
    task_id: str = _value("task_id")
    try_number: int = _value("try_number")
    map_index: int = _value("map_index")
    round: int = _value("round")
    logical_date: datetime = _value("logical_date")
    logical_day: date = _value("logical_day")
    data_interval: DataInterval = _value("data_interval")
    data_interval_start: datetime = _value("data_interval_start")
    data_interval_end: datetime = _value("data_interval_end")
    params: Mapping[str, Any] = _value("params")
    cause: str = _value("cause")
    idempotency_key: str = _value("idempotency_key")
    rerun_key: str = _value("rerun_key")


current = Current()
