"""Ready-made sensors based on the triggers.

All accept the options of sensors, including Airflow's names: ``poke_interval``, ``timeout``,
``soft_fail``, ``mode`` ... With ``deferrable=True`` a sensor defers to its trigger, which polls or
is notified. Otherwise the sensor pokes once per ``poke_interval``. In both modes it uses no slot
while it waits, and detects the same changes. The default is to defer, unless the setting
``operators.default_deferrable`` is false.

The ``template_fields`` of a class correspond to those of Airflow's class with the same name. An
argument may have another name here: ``FileSensor(filepath="/drop/{{ ds }}.csv", ...)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, Protocol, TypeVar

from aioflow import (
    Context,
    Duration,
    Fail,
    NotReady,
    PokeReturnValue,
    Sensor,
    Skip,
    Trigger,
    as_timedelta,
    default_deferrable,
)
from aioflow_triggers.data import JsonIs
from aioflow_triggers.external import TasksEnded, TasksTrigger
from aioflow_triggers.files import FilesTrigger, FileTrigger
from aioflow_triggers.http import HttpTrigger
from aioflow_triggers.objects import ObjectTrigger
from aioflow_triggers.temporal import DateTimeTrigger

__all__ = (
    "DateTimeSensor",
    "ExternalTaskSensor",
    "FileSensor",
    "HttpSensor",
    "ObjectSensor",
    "TimeDeltaSensor",
)

T_co = TypeVar("T_co", covariant=True)

_LONGEST_SLEEP_SECONDS = 60.0
_BAD = ("failed", "upstream_failed", "cancelled")


class Pollable(Protocol[T_co]):
    """A trigger that can also check once."""

    async def poll(self) -> T_co | None:
        """Check once: return the payload if the condition is met, else ``None``."""
        ...


def _declaring(connection: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a sensor, with a declaration of its connection if it uses one."""
    if not connection:
        return options
    return {**options, "connections": [*options.get("connections", ()), connection]}


class _Deferrable(Sensor):
    """A sensor that either defers to a trigger or polls by itself."""

    def __init__(self, *, deferrable: bool | None, **options: Any) -> None:
        super().__init__(**options)
        self.deferrable = default_deferrable(unless_set=True) if deferrable is None else deferrable
        self.every: Duration = options.get("interval", options.get("poke_interval", 60.0))

    def _wait_as(self, trigger: Trigger[Any]) -> NoReturn:
        # Needs no timeout of its own, because the sensor's timeout continues while it is deferred.
        self.defer(trigger=trigger, method_name="execute_complete")

    def execute_complete(self, context: Context, event: Any = None) -> Any:
        """Return the payload of the trigger."""
        return event


async def _seen(trigger: Pollable[Any]) -> PokeReturnValue[Any]:
    seen = await trigger.poll()
    return PokeReturnValue(seen is not None, seen)


class FileSensor(_Deferrable):
    """Waits until a file exists and, with ``stable``, does not change any more.

    Its result is the payload of ``FileTrigger``, or of ``FilesTrigger`` for a pattern.

    Args:
        filepath: Absolute path; its last part may contain ``*``, ``?`` or ``[...]``.
        stable: How long the file must not have changed; with 0 it only has to exist.
        deferrable: Whether to defer to the trigger, which the kernel notifies of changes.
    """

    template_fields: Sequence[str] = ("filepath",)

    def __init__(
        self,
        *,
        filepath: str,
        stable: Duration = 0,
        deferrable: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(deferrable=deferrable, **options)
        self.filepath = filepath
        self.stable = stable

    def _trigger(self) -> FileTrigger | FilesTrigger:
        path = str(self.filepath)
        if any(sign in path.rpartition("/")[2] for sign in "*?["):
            return FilesTrigger(path, stable=self.stable)
        return FileTrigger(path, stable=self.stable)

    async def poke(self, context: Context) -> PokeReturnValue[Any]:
        """Check once."""
        trigger = self._trigger()
        if self.deferrable:
            self._wait_as(trigger)
        return await _seen(trigger)


class HttpSensor(_Deferrable):
    """Waits until a web server gives the expected response.

    Its result is the payload of ``HttpTrigger``. The rules of that trigger apply.

    Args:
        url: The URL. See ``HttpTrigger``, also for ``method``, ``headers``, ``body``, ``status``,
            ``until`` and ``fail_if``.
        request_timeout: The ``timeout`` of ``HttpTrigger``. ``timeout`` is the sensor's own
            timeout.
        connection: See ``HttpTrigger``. The sensor declares it.
        deferrable: Whether to defer to the trigger, which sends conditional requests.
    """

    template_fields: Sequence[str] = ("url", "headers", "body")

    def __init__(
        self,
        *,
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        status: int | Sequence[int] = 200,
        until: JsonIs | None = None,
        fail_if: JsonIs | None = None,
        request_timeout: Duration = 30.0,
        connection: str = "",
        deferrable: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(deferrable=deferrable, **_declaring(connection, options))
        self.connection = connection
        self.url = url
        self.method = method
        self.headers = headers
        self.body = body
        self.status = status
        self.until = until
        self.fail_if = fail_if
        self.request_timeout = request_timeout

    async def poke(self, context: Context) -> PokeReturnValue[Any]:
        """Send one request."""
        trigger = HttpTrigger(
            self.url,
            self.method,
            self.headers or {},
            self.body,
            self.status,
            self.until,
            self.fail_if,
            interval=self.every,
            timeout=self.request_timeout,
            connection=self.connection,
        )
        if self.deferrable:
            self._wait_as(trigger)
        return await _seen(trigger)


class ObjectSensor(_Deferrable):
    """Waits until an object exists in S3, Google Cloud Storage or Azure.

    Its result is the payload of ``ObjectTrigger``.

    Args:
        url: See ``ObjectTrigger``; the name may be a pattern.
        store_options: The ``options`` of ``ObjectTrigger``.
        connection: See ``ObjectTrigger``. The sensor declares it.
        deferrable: Whether to defer to the trigger, which shares its polls with other triggers.
    """

    template_fields: Sequence[str] = ("url",)

    def __init__(
        self,
        *,
        url: str,
        store_options: Mapping[str, str] | None = None,
        connection: str = "",
        deferrable: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(deferrable=deferrable, **_declaring(connection, options))
        self.connection = connection
        self.url = url
        self.store_options = store_options

    async def poke(self, context: Context) -> PokeReturnValue[Any]:
        """Check once."""
        options = self.store_options or {}
        trigger = ObjectTrigger(self.url, self.every, options, self.connection)
        if self.deferrable:
            self._wait_as(trigger)
        return await _seen(trigger)


class DateTimeSensor(_Deferrable):
    """Waits until a point in time. Checks exactly then, whatever its interval.

    Args:
        target_time: The time, with a time zone. Text is ISO 8601.
        deferrable: Whether to defer to ``DateTimeTrigger``.
    """

    template_fields: Sequence[str] = ("target_time",)

    def __init__(
        self, *, target_time: datetime | str, deferrable: bool | None = None, **options: Any
    ) -> None:
        super().__init__(deferrable=deferrable, **options)
        self.target_time = target_time

    def _moment(self, context: Context) -> datetime:
        target = self.target_time
        return datetime.fromisoformat(target) if isinstance(target, str) else target

    async def poke(self, context: Context) -> PokeReturnValue[datetime]:
        """Compare the target with the current time."""
        trigger = DateTimeTrigger(self._moment(context))
        if self.deferrable:
            self._wait_as(trigger)
        left = (trigger.moment - _now()) / timedelta(seconds=1)
        if left > 0:
            # If the clock is changed during the wait, the wait is at most a minute too long.
            raise NotReady(recheck_in=min(left, _LONGEST_SLEEP_SECONDS))
        return PokeReturnValue(is_done=True, xcom_value=trigger.moment.astimezone(UTC))


class TimeDeltaSensor(DateTimeSensor):
    """Waits for a duration after the end of the run's data interval.

    Args:
        delta: The duration: a timedelta, seconds, or text.
        deferrable: Whether to defer to ``DateTimeTrigger``.
    """

    template_fields: Sequence[str] = ("delta",)

    def __init__(self, *, delta: Duration, deferrable: bool | None = None, **options: Any) -> None:
        super().__init__(target_time="", deferrable=deferrable, **options)
        self.delta = delta

    def _moment(self, context: Context) -> datetime:
        end: datetime = context["data_interval_end"]
        return end + as_timedelta(self.delta, "delta")


class ExternalTaskSensor(_Deferrable):
    """Waits until a run of another DAG, or tasks of it, have ended successfully.

    The run need not exist yet. If the DAG or a task does not exist, the try fails immediately. The
    sensor does not poll, deferrable or not: the daemon reports the ending. Its result is
    ``{"run_id": str, "states": {task: state}}``, with ``""`` as the key of the run as a whole.

    Args:
        external_dag_id: The other DAG.
        external_task_id: One task of that DAG ...
        external_task_ids: ... or several; with neither, the run as a whole.
        allowed_states: Final states that let this task succeed; ``partial`` only if named.
        skipped_states: Final states that skip this task.
        failed_states: Final states that fail this task without further tries, or skip it with
            ``soft_fail``. Any other final state that is not allowed does the same.
        execution_delta: How much earlier the other run's logical date is than this run's.
        logical_date: Alternatively, the other run's logical date, with a time zone. If it is not
            given and this run has no logical date, the task fails immediately.
        deferrable: Whether to defer to ``TasksTrigger``. If not, the sensor waits in a coroutine.
    """

    template_fields: Sequence[str] = ("external_dag_id", "external_task_id", "external_task_ids")

    def __init__(
        self,
        *,
        external_dag_id: str,
        external_task_id: str | None = None,
        external_task_ids: Sequence[str] | None = None,
        allowed_states: Sequence[str] = ("success",),
        skipped_states: Sequence[str] = ("skipped",),
        failed_states: Sequence[str] = _BAD,
        execution_delta: Duration | None = None,
        logical_date: datetime | None = None,
        deferrable: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(deferrable=deferrable, **options)
        self.external_dag_id = external_dag_id
        self.external_task_id = external_task_id
        self.external_task_ids = external_task_ids
        self.allowed_states = allowed_states
        self.skipped_states = skipped_states
        self.failed_states = failed_states
        self.execution_delta = execution_delta
        self.logical_date = logical_date
        self.soft_fail = bool(options.get("soft_fail"))

    async def poke(self, context: Context) -> PokeReturnValue[TasksEnded]:
        """Wait until the other run, or its tasks, have ended."""
        trigger = self._trigger(context)
        if self.deferrable:
            self._wait_as(trigger)
        ended = await trigger.ended()
        return PokeReturnValue(is_done=True, xcom_value=self.execute_complete(context, ended))

    def execute_complete(self, context: Context, event: Any = None) -> Any:
        """Return the event, or raise ``Skip`` or ``Fail``, depending on the final states in it."""
        states: Mapping[str, str] = event["states"]
        for task, state in states.items():
            if state not in self.allowed_states and state not in self.skipped_states:
                raise self._ended_badly(task, state, event["run_id"])
        skipped = [task for task, state in states.items() if state not in self.allowed_states]
        if skipped:
            raise Skip(f"{self._name(skipped[0])} was {states[skipped[0]]} in {event['run_id']}")
        return event

    def _trigger(self, context: Context) -> TasksTrigger:
        if self.external_task_id is not None and self.external_task_ids is not None:
            raise Fail("give external_task_id or external_task_ids, not both")
        both = set(self.allowed_states) & {*self.skipped_states, *self.failed_states}
        if both:
            raise Fail(f"{min(both)!r} is among allowed_states and among others")
        tasks = self.external_task_ids or ()
        if self.external_task_id is not None:
            tasks = (self.external_task_id,)
        good = (*self.allowed_states, *self.skipped_states)
        return TasksTrigger(self.external_dag_id, self._logical_date(context), tasks, good)

    def _logical_date(self, context: Context) -> datetime:
        if self.logical_date is not None and self.execution_delta is not None:
            raise Fail("give logical_date or execution_delta, not both")
        if self.logical_date is not None:
            return self.logical_date
        mine: datetime | None = context["run_logical_date"]
        if mine is None:  # no fallback to the creation time, which no other run shares
            raise Fail(
                f"run {context['run_id']} has no logical date, so no run of "
                f"{self.external_dag_id!r} stands for the same; give the sensor a logical_date, "
                "start this run with one, or wait for a run_id with RunTrigger"
            )
        if self.execution_delta is None:
            return mine
        if isinstance(self.execution_delta, timedelta):
            return mine - self.execution_delta  # may be negative: a later run
        return mine - as_timedelta(self.execution_delta, "execution_delta")

    def _ended_badly(self, task: str, state: str, run_id: str) -> Fail | Skip:
        hint = "" if state in self.failed_states else "; name it in allowed_states to accept that"
        message = f"{self._name(task)} ended {state} in {run_id}{hint}"
        return Skip(message) if self.soft_fail else Fail(message)

    def _name(self, task: str) -> str:
        return f"{self.external_dag_id}.{task}" if task else self.external_dag_id


def _now() -> datetime:
    return datetime.now(UTC)
