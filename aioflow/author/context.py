"""What a run knows of itself: ``current``, and the names Airflow fills in.

Dates of the wall (``ds``, ``ts``, ``logical_day``) are in the zone of the DAG. A run without a
logical date, started by hand, takes the instant it was created for it.
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

_INSTANTS_KEPT = 128
"""What is worked out of the instant of a run is the same for all its tasks."""


class DataInterval(NamedTuple):
    """What a run stands for. As with Airflow's own cron strings both ends are its slot.

    With ``data_interval="previous"`` it begins with the slot before.
    """

    start: datetime
    end: datetime


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The run and task at hand, as a child knows them.

    Attributes:
        timezone: Of the DAG.
        map_index: -1 for a task that is not mapped.
        round: Of a loop, counted from 0; ``None`` for a task that is in none.
        task_no: Of its row; a fan-out that is expanded anew has other ones.
        clear_number: How often that was cleared.
        conf: What the run was started with, decoded without annotations.
        params: The parameters of the DAG, defaults filled in; see ``parameters``.
        cause: ``manual`` or ``schedule``.
        interval: What it stands for, where that is no point.
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
        """What the run stands for."""
        if self.interval is None:
            return DataInterval(self.instant, self.instant)
        return DataInterval(*map(_instant, self.interval))

    @property
    def instant(self) -> datetime:
        """What the run stands for, UTC."""
        return _instant(self.created_at if self.logical_date is None else self.logical_date)

    @property
    def wall(self) -> datetime:
        """The same in the zone of the DAG."""
        return _wall(self.instant, self.timezone)

    @property
    def idempotency_key(self) -> str:
        """Names this task of this run, the same over all tries and restarts."""
        index = "" if self.map_index < 0 else f"/{self.map_index}"
        index += "" if self.round is None else f"/round-{self.round}"
        return f"{self.run_id}/{self.task_id}{index}"

    @property
    def rerun_key(self) -> str:
        """Names this task of this run since it was cleared last, the same over all tries."""
        return f"{self.idempotency_key}/{self.task_no}.{self.clear_number}"


_instant = lru_cache(maxsize=_INSTANTS_KEPT)(to_datetime)


@lru_cache(maxsize=_INSTANTS_KEPT)
def _wall(instant: datetime, timezone: str) -> datetime:
    return instant.astimezone(ZoneInfo(timezone))


@lru_cache(maxsize=_INSTANTS_KEPT)
def _text(instant: datetime, timezone: str, form: str) -> str:
    # Not by what `_wall` returns: in two zones that is equal, and not the same.
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
"""Names of parameters that are filled from the run where a call leaves them open.

Without those that authors use for things of their own.
"""


TEMPLATE_NAMES = frozenset(_VALUES)
"""Names that a template may use."""


def resolve(name: str, run: RunContext) -> Any:
    """Return one value of the run.

    Args:
        name: As in ``FromContext``: ``context``, one of its keys, or ``params.<parameter>``.
        run: The run and task at hand.

    Raises:
        KeyError: If there is no such name, or no such parameter.
    """
    if name == "context":
        return ContextValues((known, value(run)) for known, value in _VALUES.items())
    head, dot, parameter = name.partition(".")
    return run.params[parameter] if dot else _VALUES[head](run)


class ContextValue(Unknown):
    """A value of a run that does not exist yet: ``current.ds``."""

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
        """Where the value will come from."""
        return FromContext(self._name)


def _value(name: str) -> Any:
    return ContextValue(name)


class Current:
    """What a task may know of its run, typed as it will be when the task runs.

    Use it as the default of a parameter, or as an argument in a DAG::

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
