"""Keys of Airflow's context that do not exist here, with a replacement for each."""

from __future__ import annotations

from typing import Any, NoReturn

from aioflow.errors import UnknownContextKey

__all__ = ("CONTEXT_INSTEAD", "ContextValues", "context_hint")

_RESULTS = (
    "pass results as arguments, load(extract()), instead of xcom_pull, and return a value instead "
    "of xcom_push; task_id, run_id, try_number and map_index are keys of the context"
)
_VARIABLES = "declare @task(variables=['X']) and call variable('X') in the body"
_CONNECTIONS = "declare @task(connections=['pg']) and call connection('pg') in the body"
_DAG = "dag_id is a key of the context"
_ASSETS = "assets start runs by @dag(schedule=Asset('orders')); their events are not in the context"
_PREVIOUS = "depends_on_past=True waits for the run before; latest_only() skips all but the newest"
_ERROR = "error and exception are keys of the context of callbacks"
_INTERVAL = (
    "data_interval_start and data_interval_end are keys of the context; see "
    "data_interval='previous' of @dag"
)
_STORE = "await step(fn, ...) records a result over tries and crashes; emit() stores an event"
_PARTITION = "a DAG parameter says which part a run is for; there are no partitions"

CONTEXT_INSTEAD = {
    "asset_state_store": _STORE,
    "conn": _CONNECTIONS,
    "dag": _DAG,
    "dag_run": "run_id, conf, logical_date and cause are keys of the context",
    "exception": _ERROR,
    "execution_date": "logical_date is a key of the context",
    "expanded_ti_count": "a fan-in takes the Sequence of all results; its width is len(results)",
    "inlet_events": _ASSETS,
    "inlets": _ASSETS,
    "macros": "compute it in a task: logical_date and logical_day are a datetime and a date",
    "map_index_template": "map_label= of the task names its children",
    "next_ds": _INTERVAL,
    "outlet_events": _ASSETS,
    "outlets": _ASSETS,
    "partition_date": _PARTITION,
    "partition_key": _PARTITION,
    "prev_data_interval_end_success": _PREVIOUS,
    "prev_data_interval_start_success": _PREVIOUS,
    "prev_ds": _INTERVAL,
    "prev_end_date_success": _PREVIOUS,
    "prev_start_date_success": _PREVIOUS,
    "reason": _ERROR,
    "task_instance": _RESULTS,
    "task_instance_key_str": "idempotency_key is a key of the context",
    "task_reschedule_count": "a sensor needs no count of its looks: see backoff= and interval=",
    "task_state_store": _STORE,
    "templates_dict": "give the texts as arguments: template_fields of an Operator renders them",
    "test_mode": "aioflow dags test runs the tasks as the daemon does",
    "ti": _RESULTS,
    "tomorrow_ds": "compute it of logical_day, which is a key of the context",
    "triggering_asset_events": _ASSETS,
    "triggering_dataset_events": _ASSETS,
    "ts_nodash_with_tz": "ts is a key of the context, and logical_date, which has strftime()",
    "var": _VARIABLES,
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
            UnknownContextKey: If there is no default, and the key is one that Airflow always has
                and aioflow does not.
        """
        if default is not _ABSENT:
            return super().get(key, default)
        return self[key] if key in _ALWAYS_IN_AIRFLOW else super().get(key)
