"""Replacements for names of Airflow that do not exist here."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ("MODULES", "NAMES", "PAGE", "instead_of")

PAGE = "docs/how-to/port-from-airflow.md"

_TRIGGERS = "`from aioflow_triggers import {}`"
_OWN = "`from aioflow import {}`"
_BOTH = "`schedule=ORDERS & STOCK`, or `|`, of assets made by `aioflow.Asset`"
_STATES = "the state as a text: `'success'`, `'failed'`, `'skipped'`"
_DEADLINE = "`deadline=` of `@dag` or `@task`, and `on_deadline=`"
_RETRY = "`aioflow.Retry(tries=, delay=, on=, unless=)` as `retry=` of a task"
_RESULTS = "return a value from a task, and take those of others as arguments: `load(extract())`"
_BRANCH = "`@task.branch`"
_EVERY = "`schedule=aioflow.Every('15m')`"
_CONNECTION = "`aioflow.connection('pg')`, declared by `@task(connections=['pg'])`"
_VARIABLE = "`aioflow.variable('X')`, declared by `@task(variables=['X'])`"
_CONTEXT = "`aioflow.current`, as in `def f(ds: str = current.ds)`, or a parameter named `context`"

NAMES = {
    **{
        name: _OWN.format(name)
        for name in (
            *("DAG", "dag", "task", "task_group", "setup", "teardown", "TaskGroup", "chain"),
            *("Param", "Asset", "TriggerRule", "TaskDeferred"),
        )
    },
    **{
        name: _TRIGGERS.format(name)
        for name in (
            *("BashOperator", "EmptyOperator", "FileSensor", "ExternalTaskSensor"),
            *("DateTimeSensor", "TimeDeltaSensor", "HttpSensor", "FileTrigger", "HttpTrigger"),
        )
    },
    "AssetAll": _BOTH,
    "AssetAny": _BOTH,
    "AssetOrTimeSchedule": "two DAGs that start one by `aioflow_triggers.TriggerDagRun`",
    "AssetWatcher": "`@dag(schedule=trigger)`: each event of the trigger starts a run",
    "BaseAsyncOperator": "`aioflow.Operator` with an `async def execute`",
    "BaseBranchOperator": _BRANCH,
    "BaseHook": _CONNECTION,
    "BaseNotifier": "a function as `on_failure=`, `aioflow.WebhookNotifier` or `EmailNotifier`",
    "BaseXCom": _RESULTS,
    "BashSensor": "`@sensor` on a function that runs the command and returns whether it is done",
    "BranchMixIn": _BRANCH,
    "BranchPythonOperator": _BRANCH,
    "Connection": _CONNECTION,
    "CronDataIntervalTimetable": "`@dag(schedule='0 5 * * *', data_interval='previous')`",
    "CronTriggerTimetable": "`schedule='0 5 * * *'`, or `aioflow.Cron`",
    "DagRunState": _STATES,
    "DagStateTrigger": _TRIGGERS.format("RunTrigger"),
    "Dataset": _OWN.format("Asset"),
    "DateTimeSensorAsync": _TRIGGERS.format("DateTimeSensor"),
    "DeadlineAlert": _DEADLINE,
    "DeadlineReference": _DEADLINE,
    "DeltaDataIntervalTimetable": _EVERY + " with `data_interval='previous'`",
    "DeltaTriggerTimetable": _EVERY,
    "DummyOperator": _TRIGGERS.format("EmptyOperator"),
    "EmailOperator": "`aioflow.EmailNotifier` as `on_failure=` or `on_success=`",
    "EventsTimetable": "`schedule=aioflow.Dates([...])`",
    "ExceptionRetryPolicy": _RETRY,
    "Label": "nothing: edges have no labels",
    "LatestOnlyOperator": "`aioflow.latest_only()`",
    "MultipleCronTriggerTimetable": "a list of cron expressions as `schedule=`",
    "PythonOperator": "`@task` on the function",
    "PythonSensor": "`@sensor` on the function",
    "RetryPolicy": _RETRY,
    "RetryRule": _RETRY,
    "S3KeySensor": _TRIGGERS.format("ObjectSensor"),
    "ShortCircuitOperator": "`@task.short_circuit`",
    "SkipMixin": "`raise aioflow.Skip('why')`, or `@task.branch`",
    "TaskInstance": "`context['task_id']`, `['run_id']`, `['try_number']`, `['map_index']`",
    "TaskInstanceState": _STATES,
    "TimeDeltaSensorAsync": _TRIGGERS.format("TimeDeltaSensor"),
    "TriggerDagRunOperator": "`aioflow_triggers.TriggerDagRun`, or `await aioflow.run_dag(...)`",
    "Variable": _VARIABLE,
    "WeightRule": "`priority=` of a task, which counts for the task alone",
    "WorkflowTrigger": _TRIGGERS.format("TasksTrigger"),
    "XCom": _RESULTS,
    "XComArg": "what calling a task in a DAG returns, an `aioflow.Ref`",
    "asset": "`@task(outlets=[Asset('orders')])`",
    "chain_linear": "`aioflow.chain(a, b, c)`, or `for one in first: one >> second`",
    "conf": "`from airflow.configuration import conf`, or a value in `aioflow variables`",
    "cross_downstream": "`for one in first: one >> second`",
    "days_ago": "`start_date=` of a fixed day, as `datetime(2026, 1, 1)`",
    "get_current_context": _CONTEXT,
    "literal": "`{% raw %} ... {% endraw %}` around it",
    "macros": "a task that computes it of `logical_date` or `logical_day`",
}
"""The replacement for each name of Airflow, whichever of Airflow's modules contains the name."""

MODULES = {
    "airflow.datasets": ("Dataset",),
    "airflow.decorators": ("dag", "task", "task_group", "setup", "teardown"),
    "airflow.hooks.base": ("BaseHook",),
    "airflow.models.baseoperator": ("chain", "cross_downstream"),
    "airflow.models.connection": ("Connection",),
    "airflow.models.dag": ("DAG",),
    "airflow.models.param": ("Param",),
    "airflow.models.taskinstance": ("TaskInstance",),
    "airflow.models.variable": ("Variable",),
    "airflow.models.xcom": ("XCom",),
    "airflow.models.xcom_arg": ("XComArg",),
    "airflow.notifications.base": ("BaseNotifier",),
    "airflow.operators.bash": ("BashOperator",),
    "airflow.operators.dummy": ("DummyOperator",),
    "airflow.operators.email": ("EmailOperator",),
    "airflow.operators.empty": ("EmptyOperator",),
    "airflow.operators.latest_only": ("LatestOnlyOperator",),
    "airflow.operators.python": (
        *("PythonOperator", "BranchPythonOperator", "ShortCircuitOperator"),
        "get_current_context",
    ),
    "airflow.operators.trigger_dagrun": ("TriggerDagRunOperator",),
    "airflow.providers.amazon.aws.sensors.s3": ("S3KeySensor",),
    "airflow.providers.http.sensors.http": ("HttpSensor",),
    "airflow.providers.http.triggers.http": ("HttpTrigger",),
    "airflow.providers.smtp.operators.smtp": ("EmailOperator",),
    "airflow.providers.standard.operators.bash": ("BashOperator",),
    "airflow.providers.standard.operators.empty": ("EmptyOperator",),
    "airflow.providers.standard.operators.latest_only": ("LatestOnlyOperator",),
    "airflow.providers.standard.operators.python": (
        *("PythonOperator", "BranchPythonOperator", "ShortCircuitOperator"),
    ),
    "airflow.providers.standard.operators.trigger_dagrun": ("TriggerDagRunOperator",),
    "airflow.providers.standard.sensors.bash": ("BashSensor",),
    "airflow.providers.standard.sensors.date_time": ("DateTimeSensor",),
    "airflow.providers.standard.sensors.external_task": ("ExternalTaskSensor",),
    "airflow.providers.standard.sensors.filesystem": ("FileSensor",),
    "airflow.providers.standard.sensors.python": ("PythonSensor",),
    "airflow.providers.standard.sensors.time_delta": ("TimeDeltaSensor",),
    "airflow.sensors.bash": ("BashSensor",),
    "airflow.sensors.date_time": ("DateTimeSensor", "DateTimeSensorAsync"),
    "airflow.sensors.external_task": ("ExternalTaskSensor",),
    "airflow.sensors.filesystem": ("FileSensor",),
    "airflow.sensors.python": ("PythonSensor",),
    "airflow.sensors.time_delta": ("TimeDeltaSensor", "TimeDeltaSensorAsync"),
    "airflow.timetables.events": ("EventsTimetable",),
    "airflow.timetables.interval": ("CronDataIntervalTimetable", "DeltaDataIntervalTimetable"),
    "airflow.timetables.trigger": ("CronTriggerTimetable", "DeltaTriggerTimetable"),
    "airflow.utils.dates": ("days_ago",),
    "airflow.utils.edgemodifier": ("Label",),
    "airflow.utils.state": ("DagRunState", "TaskInstanceState"),
    "airflow.utils.task_group": ("TaskGroup",),
    "airflow.utils.trigger_rule": ("TriggerRule",),
}
"""For each module that does not exist here, the names that are usually imported from it."""


def instead_of(wanted: str, there: Iterable[str] = ()) -> str:
    """Return a sentence that says what to write instead of a name or module of Airflow.

    Args:
        wanted: A name with its module, such as ``airflow.sdk.dag``; or a missing module.
        there: The names in the module, if it exists here.
    """
    module, _, name = wanted.rpartition(".")
    names = MODULES.get(wanted, ())
    if not names and name in NAMES:
        names = (name,)
    if not names:
        below = (own for known, own in MODULES.items() if known.startswith(f"{wanted}."))
        names = tuple(dict.fromkeys(one for own in below for one in own))
    missing = f"its {module} has no {name!r}" if there or names == (name,) else f"has no {wanted}"
    said = f"aioflow stands in for Airflow here, and {missing}"
    if len(names) == 1:
        said += f"; instead of {names[0]} write {NAMES[names[0]]}"
    elif names:
        said += "; write " + "; ".join(f"{NAMES[one]} instead of {one}" for one in names)
    else:
        said += ", nor anything in its place"
    has = ", ".join(sorted(there))
    return said + (f". It has {has}" if has else "") + f". See {PAGE}"
