"""The public names of ``aioflow`` for DAG files, triggers and sensors."""

from __future__ import annotations

from aioflow.author.assets import Asset
from aioflow.author.callbacks import EmailNotifier, WebhookNotifier
from aioflow.author.child_runs import RunOutcome, run_dag, start_dag
from aioflow.author.client import (
    Connection,
    NamedEvent,
    NamedEvents,
    RunEnding,
    RunEndings,
    connection,
    fetch_connection,
    fetch_secret,
    fetch_variable,
    named_events,
    own_dag_id,
    run_ending,
    run_start_id,
    secret,
    variable,
)
from aioflow.author.context import DataInterval, current
from aioflow.author.dag import DAG, dag
from aioflow.author.deferral import (
    Fail,
    NotReady,
    PokeReturnValue,
    RetryAfter,
    Skip,
    StartTriggerArgs,
    TaskDeferred,
    TaskFailedEvent,
    TaskSkippedEvent,
    TaskSuccessEvent,
    default_deferrable,
)
from aioflow.author.durable_calls import all_of, any_of, emit, now, sleep, step, stream, uuid, wait
from aioflow.author.duration import Duration, as_timedelta
from aioflow.author.group import TaskGroup, task_group
from aioflow.author.msgpack_forms import register_codec
from aioflow.author.operator import Context, Operator, Sensor
from aioflow.author.options import Retry
from aioflow.author.params import Param
from aioflow.author.person import PersonTrigger, ask_person
from aioflow.author.ref import Ref, chain
from aioflow.author.schedule import Continuous, Cron, Dates, Every
from aioflow.author.servers.connection_types import ConnectionField, ConnectionType
from aioflow.author.task import latest_only, sensor, setup, task, teardown
from aioflow.author.trigger import Share, Trigger, TriggerEvent, Watch
from aioflow.errors import AioflowError, DagError, DagRunFailed, UnknownValue, Unserializable
from aioflow.model.states import TriggerRule
from aioflow.redaction import masked_url, masked_urls

__all__ = (
    "DAG",
    "AioflowError",
    "Asset",
    "Connection",
    "ConnectionField",
    "ConnectionType",
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
    "PersonTrigger",
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
    "ask_person",
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
