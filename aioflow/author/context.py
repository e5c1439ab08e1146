"""The context of a run: ``current``, the names that Airflow injects, and the DAG's parameters.

The local dates and times ``ds``, ``ts`` and ``logical_day`` are in the DAG's time zone. If a run
was started manually without a logical date, they show its creation time. For keys of Airflow's
context that do not exist here, an error names the replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn
from zoneinfo import ZoneInfo

from aioflow.author.decode import restore
from aioflow.author.node import Binding, FromContext, FromParameter, LiteralValue, Placeholder
from aioflow.author.params import Param, schema_misfit
from aioflow.author.source_location import misused
from aioflow.errors import BadConf, UnknownContextKey, Unserializable
from aioflow.model.ids import TaskNo
from aioflow.model.timestamps import Timestamp, to_datetime

__all__ = (
    "CONTEXT_INSTEAD",
    "INJECTED",
    "TEMPLATE_NAMES",
    "ContextValue",
    "ContextValues",
    "Current",
    "DataInterval",
    "Parameter",
    "ParameterRef",
    "RunContext",
    "context_hint",
    "context_value",
    "current",
    "parameter_values",
)

_RESULTS_HINT = (
    "pass results as arguments, load(extract()), instead of xcom_pull, and return a value instead "
    "of xcom_push; task_id, run_id, try_number and map_index are keys of the context"
)
_VARIABLES_HINT = "declare @task(variables=['X']) and call variable('X') in the body"
_CONNECTIONS_HINT = "declare @task(connections=['pg']) and call connection('pg') in the body"
_DAG_HINT = "dag_id is a key of the context"
_ASSETS_HINT = (
    "assets start runs by @dag(schedule=Asset('orders')); their events are not in the context"
)
_PREVIOUS_HINT = (
    "depends_on_past=True waits for the run before; latest_only() skips all but the newest"
)
_ERROR_HINT = "error and exception are keys of the context of callbacks"
_INTERVAL_HINT = (
    "data_interval_start and data_interval_end are keys of the context; see "
    "data_interval='previous' of @dag"
)
_STORE_HINT = "await step(fn, ...) records a result over tries and crashes; emit() stores an event"
_PARTITION_HINT = "a DAG parameter says which part a run is for; there are no partitions"

CONTEXT_INSTEAD = {
    "asset_state_store": _STORE_HINT,
    "conn": _CONNECTIONS_HINT,
    "dag": _DAG_HINT,
    "dag_run": "run_id, conf, logical_date and cause are keys of the context",
    "exception": _ERROR_HINT,
    "execution_date": "logical_date is a key of the context",
    "expanded_ti_count": "a fan-in takes the Sequence of all results; its width is len(results)",
    "inlet_events": _ASSETS_HINT,
    "inlets": _ASSETS_HINT,
    "macros": "compute it in a task: logical_date and logical_day are a datetime and a date",
    "map_index_template": "map_label= of the task names its children",
    "next_ds": _INTERVAL_HINT,
    "outlet_events": _ASSETS_HINT,
    "outlets": _ASSETS_HINT,
    "partition_date": _PARTITION_HINT,
    "partition_key": _PARTITION_HINT,
    "prev_data_interval_end_success": _PREVIOUS_HINT,
    "prev_data_interval_start_success": _PREVIOUS_HINT,
    "prev_ds": _INTERVAL_HINT,
    "prev_end_date_success": _PREVIOUS_HINT,
    "prev_start_date_success": _PREVIOUS_HINT,
    "reason": _ERROR_HINT,
    "task_instance": _RESULTS_HINT,
    "task_instance_key_str": "idempotency_key is a key of the context",
    "task_reschedule_count": "a sensor needs no count of its looks: see backoff= and interval=",
    "task_state_store": _STORE_HINT,
    "templates_dict": "give the texts as arguments: template_fields of an Operator renders them",
    "test_mode": "aioflow dags test runs the tasks as the daemon does",
    "ti": _RESULTS_HINT,
    "tomorrow_ds": "compute it of logical_day, which is a key of the context",
    "triggering_asset_events": _ASSETS_HINT,
    "triggering_dataset_events": _ASSETS_HINT,
    "ts_nodash_with_tz": "ts is a key of the context, and logical_date, which has strftime()",
    "var": _VARIABLES_HINT,
    "yesterday_ds": "compute it of logical_day, which is a key of the context",
}


def context_hint(name: str) -> str:
    """Return ``": "`` and the replacement for a key of Airflow's context, or an empty string."""
    instead = CONTEXT_INSTEAD.get(name)
    return "" if instead is None else f": {instead}"


_ALWAYS_IN_AIRFLOW = frozenset(
    {
        *("conn", "dag", "dag_run", "inlet_events", "inlets", "macros", "outlet_events", "outlets"),
        *("task_instance", "task_instance_key_str", "task_reschedule_count", "test_mode", "ti"),
        *("triggering_asset_events", "ts_nodash_with_tz", "var"),
    }
)
"""Keys of ``Context`` in Airflow 3's Task SDK that are not ``NotRequired``."""

_ABSENT: Any = object()


class ContextValues(dict[str, Any]):
    """The context of a task. The error for a missing key names the replacement.

    ``get`` without a default also raises for a key that Airflow's context always has. Otherwise
    a task ported from Airflow would silently use ``None``.
    """

    def __missing__(self, key: str) -> NoReturn:
        raise UnknownContextKey(key, context_hint(key) or f"; it has {', '.join(self)}")

    def get(self, key: str, default: Any = _ABSENT) -> Any:
        """Return the value of a key, or the default.

        Raises:
            UnknownContextKey: If there is no default, and aioflow lacks the key although Airflow
                always has it.
        """
        if default is not _ABSENT:
            return super().get(key, default)
        return self[key] if key in _ALWAYS_IN_AIRFLOW else super().get(key)


_CACHED_TIMESTAMPS = 128
"""Cache size for values derived from a run's date, which all tasks of the run share."""


class DataInterval(NamedTuple):
    """The data interval of a run. By default both ends are its logical date.

    Airflow does the same for cron strings. With ``data_interval="previous"`` the interval starts at
    the previous fire time.
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
        clear_number: How often the task with this ``task_no`` was cleared.
        conf: The conf that the run was started with, decoded without annotations.
        params: The parameters of the DAG, with defaults; see ``parameter_values``.
        cause: ``manual``, ``schedule``, ``event``, ``backfill``, or ``task`` for a run started by
            ``run_dag`` or ``start_dag``.
        interval: The data interval; ``None`` if it is a single point.
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
        return DataInterval(*map(_utc_time, self.interval))

    @property
    def instant(self) -> datetime:
        """The logical date of the run, or else its creation time, in UTC."""
        return _utc_time(self.created_at if self.logical_date is None else self.logical_date)

    @property
    def wall(self) -> datetime:
        """The logical date of the run, or else its creation time, in the DAG's time zone."""
        return _local_time(self.instant, self.timezone)

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


_utc_time = lru_cache(maxsize=_CACHED_TIMESTAMPS)(to_datetime)


@lru_cache(maxsize=_CACHED_TIMESTAMPS)
def _local_time(instant: datetime, timezone: str) -> datetime:
    return instant.astimezone(ZoneInfo(timezone))


@lru_cache(maxsize=_CACHED_TIMESTAMPS)
def _local_text(instant: datetime, timezone: str, form: str) -> str:
    # Cached by UTC time: local times of the same moment in two zones compare equal.
    return _local_time(instant, timezone).strftime(form)


_CONTEXT_VALUES: dict[str, Callable[[RunContext], Any]] = {
    "cause": lambda run: run.cause,
    "conf": lambda run: dict(run.conf),
    "dag_id": lambda run: run.dag_id,
    "data_interval": lambda run: run.data_interval,
    "data_interval_end": lambda run: run.data_interval.end,
    "data_interval_start": lambda run: run.data_interval.start,
    "ds": lambda run: run.wall.date().isoformat(),
    "ds_nodash": lambda run: _local_text(run.instant, run.timezone, "%Y%m%d"),
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
    "ts_nodash": lambda run: _local_text(run.instant, run.timezone, "%Y%m%dT%H%M%S"),
}

INJECTED = frozenset({*_CONTEXT_VALUES, "context"}) - {"cause", "conf", "round", "run_logical_date"}
"""Names of parameters that get their value from the run if a call does not pass them.

Excludes names that authors commonly use for their own parameters.
"""


TEMPLATE_NAMES = frozenset(_CONTEXT_VALUES)
"""Names that a template may use."""


def context_value(name: str, run: RunContext) -> Any:
    """Return one value of the run.

    Args:
        name: As in ``FromContext``: ``context``, one of its keys, or ``params.<parameter>``.
        run: The run and the task instance.

    Raises:
        KeyError: If there is no such name, or no such parameter.
    """
    if name == "context":
        return ContextValues((known, value(run)) for known, value in _CONTEXT_VALUES.items())
    head, dot, parameter = name.partition(".")
    return run.params[parameter] if dot else _CONTEXT_VALUES[head](run)


class ContextValue(Placeholder):
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


def _placeholder(name: str) -> Any:
    return ContextValue(name)


class Current:
    """Values of the run that a task can use, with the types they have when the task runs.

    Use one as the default of a parameter, or as an argument in a DAG::

        @task
        def publish(total: Decimal, ds: str = current.ds) -> None: ...
    """

    ds: str = _placeholder("ds")
    ts: str = _placeholder("ts")
    run_id: str = _placeholder("run_id")
    dag_id: str = _placeholder("dag_id")
    task_id: str = _placeholder("task_id")
    try_number: int = _placeholder("try_number")
    map_index: int = _placeholder("map_index")
    round: int = _placeholder("round")
    logical_date: datetime = _placeholder("logical_date")
    logical_day: date = _placeholder("logical_day")
    data_interval: DataInterval = _placeholder("data_interval")
    data_interval_start: datetime = _placeholder("data_interval_start")
    data_interval_end: datetime = _placeholder("data_interval_end")
    params: Mapping[str, Any] = _placeholder("params")
    cause: str = _placeholder("cause")
    idempotency_key: str = _placeholder("idempotency_key")
    rerun_key: str = _placeholder("rerun_key")


current = Current()


@dataclass(frozen=True)
class Parameter:
    """A parameter of a DAG.

    Attributes:
        annotation: A resolved type, ``Any`` if there is none.
        default: A literal or a value of the run; ``None`` for a required parameter.
        schema: A JSON Schema, as JSON; empty if there is none.
    """

    name: str
    annotation: Any = Any
    default: LiteralValue | FromContext | None = None
    schema: str = ""

    @classmethod
    def of(cls, name: str, annotation: Any, param: Param) -> Parameter:
        """Return the parameter that a ``Param`` describes."""
        default = None if param.required else LiteralValue(param.default)
        return cls(name, annotation, default, param.schema)

    @property
    def required(self) -> bool:
        """Whether each run must supply a value."""
        return self.default is None


class ParameterRef(Placeholder):
    """A reference to a parameter inside the body of its DAG."""

    def __init__(self, dag: object, name: str, keys: tuple[str | int, ...] = ()) -> None:
        self._dag = dag
        self._name = name
        self._keys = keys

    @property
    def dag(self) -> object:
        """The DAG to which the parameter belongs. Only compared by identity."""
        return self._dag

    def __getitem__(self, key: str | int) -> ParameterRef:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise misused(self._label(), "a slice, or a key that is neither text nor a number")
        return ParameterRef(self._dag, self._name, (*self._keys, key))

    def _label(self) -> str:
        return self._name + "".join(f"[{key!r}]" for key in self._keys)

    @property
    def binding(self) -> Binding:
        """The binding that resolves to the value."""
        return FromParameter(self._name, self._keys)


def parameter_values(parameters: Mapping[str, Parameter], run: RunContext) -> dict[str, Any]:
    """Return the values of the parameters in one run, for ``RunContext.params``.

    A value in the conf is converted to the annotation of its parameter. Keys of the conf that are
    not parameters are included unchanged.

    Raises:
        BadConf: If a required parameter is missing, or a value does not match.
    """
    values = dict(run.conf)
    why = schema_misfit({name: p.schema for name, p in parameters.items() if p.schema}, values)
    if why is not None:
        raise BadConf(why)
    for name, parameter in parameters.items():
        if name in values:
            values[name] = _restored_parameter(parameter, values[name])
        elif parameter.default is None:
            raise BadConf(f"DAG {run.dag_id!r} needs the parameter {name!r}; give it in the conf")
        elif isinstance(parameter.default, FromContext):
            values[name] = context_value(parameter.default.name, replace(run, params=values))
        else:
            values[name] = parameter.default.value
    return values


def _restored_parameter(parameter: Parameter, value: object) -> Any:
    try:
        return restore(value, parameter.annotation, f"conf[{parameter.name!r}]", strict=True)
    except Unserializable as exc:
        kind = getattr(parameter.annotation, "__name__", str(parameter.annotation))
        raise BadConf(f"the parameter {parameter.name!r} must be {kind}, got {value!r}") from exc
