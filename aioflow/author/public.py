"""The public names of ``aioflow`` for DAG files, triggers and sensors."""

from __future__ import annotations

from aioflow.author.assets import Asset
from aioflow.author.child_runs import RunOutcome, run_dag, start_dag
from aioflow.author.client import (
    NamedEvent,
    NamedEvents,
    RunEnding,
    RunEndings,
    named_events,
    own_dag_id,
    run_ending,
    run_start_id,
)
from aioflow.author.context import DataInterval, current
from aioflow.author.custom_codecs import register_codec
from aioflow.author.dag import DAG, dag
from aioflow.author.deferrable import default_deferrable
from aioflow.author.duration import Duration, as_timedelta
from aioflow.author.events import emit
from aioflow.author.group import TaskGroup, task_group
from aioflow.author.latest_only import latest_only
from aioflow.author.named_values import (
    Connection,
    connection,
    fetch_connection,
    fetch_secret,
    fetch_variable,
    secret,
    variable,
)
from aioflow.author.notifiers import EmailNotifier, WebhookNotifier
from aioflow.author.operator import Context, Operator, Sensor
from aioflow.author.param import Param
from aioflow.author.ref import Ref, chain
from aioflow.author.retry import Retry
from aioflow.author.schedule import Continuous, Cron, Dates, Every
from aioflow.author.signals import (
    Fail,
    NotReady,
    PokeReturnValue,
    RetryAfter,
    Skip,
    TaskDeferred,
)
from aioflow.author.start import (
    StartTriggerArgs,
    TaskFailedEvent,
    TaskSkippedEvent,
    TaskSuccessEvent,
)
from aioflow.author.task import sensor, setup, task, teardown
from aioflow.author.trigger import Trigger, TriggerEvent
from aioflow.author.waiting import all_of, any_of, now, sleep, step, stream, uuid, wait
from aioflow.author.watch import Share, Watch
from aioflow.errors import AioflowError, DagError, DagRunFailed, UnknownValue, Unserializable
from aioflow.model.states import TriggerRule
from aioflow.redaction import masked_url, masked_urls

__all__ = (
    "DAG",
    "AioflowError",
    "Asset",
    "Connection",
    "Context",
    "Continuous",
    "Cron",
    "DagError",
    "DagRunFailed",
    "DataInterval",
    "Dates",
    "Duration",
    "EmailNotifier",
    "Every",
    "Fail",
    "NamedEvent",
    "NamedEvents",
    "NotReady",
    "Operator",
    "Param",
    "PokeReturnValue",
    "Ref",
    "Retry",
    "RetryAfter",
    "RunEnding",
    "RunEndings",
    "RunOutcome",
    "Sensor",
    "Share",
    "Skip",
    "StartTriggerArgs",
    "TaskDeferred",
    "TaskFailedEvent",
    "TaskGroup",
    "TaskSkippedEvent",
    "TaskSuccessEvent",
    "Trigger",
    "TriggerEvent",
    "TriggerRule",
    "UnknownValue",
    "Unserializable",
    "Watch",
    "WebhookNotifier",
    "all_of",
    "any_of",
    "as_timedelta",
    "chain",
    "connection",
    "current",
    "dag",
    "default_deferrable",
    "emit",
    "fetch_connection",
    "fetch_secret",
    "fetch_variable",
    "latest_only",
    "masked_url",
    "masked_urls",
    "named_events",
    "now",
    "own_dag_id",
    "register_codec",
    "run_dag",
    "run_ending",
    "run_start_id",
    "secret",
    "sensor",
    "setup",
    "sleep",
    "start_dag",
    "step",
    "stream",
    "task",
    "task_group",
    "teardown",
    "uuid",
    "variable",
    "wait",
)
