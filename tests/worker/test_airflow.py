"""Triggers written for Airflow, in children without an installed Airflow."""

from __future__ import annotations

import importlib
import sys
from datetime import UTC, datetime, timedelta

import pytest

from aioflow.author.codec import decode, encode, run_steps
from aioflow.author.deferral import EndEvent
from aioflow.protocol.commands import Parse
from aioflow.protocol.reports import Deferred, Output, Parsed, Succeeded, TriggerEnded, TriggerFired
from aioflow.worker.airflow import finder, triggers
from aioflow.worker.airflow.triggers import DateTimeTrigger
from aioflow.worker.trigger.instance import payload_of
from tests.worker.peer import run_info, start, write_version
from tests.worker.test_triggerer import hosting

FLOW = """
import asyncio
from datetime import datetime
from airflow.exceptions import AirflowException
from airflow.sdk import timezone
from airflow.triggers.base import (
    BaseEventTrigger, BaseTrigger, StartTriggerArgs, TaskFailedEvent, TaskSkippedEvent,
    TaskSuccessEvent, TriggerEvent,
)
from airflow import __version__

class Moment(BaseTrigger):
    def __init__(self, moment: datetime, **kwargs):
        super().__init__(**kwargs)
        self.moment = timezone.convert_to_utc(moment)
        self.since = self.last = "its own affair"

    def serialize(self):
        return ("flow.Moment", {"moment": self.moment})

    async def run(self):
        self.log.info("trigger starting")
        while self.moment > timezone.utcnow():
            await asyncio.sleep(1)
        yield TriggerEvent([self.moment, self.trigger_id, self.since])

class Watches(BaseEventTrigger):
    def __init__(self, how):
        self.how = how  # without super().__init__()

    def serialize(self): return ("flow.Watches", {"how": self.how})

    async def run(self):
        if self.how == "raise":
            raise AirflowException("no connection")
        if self.how == "more":
            from airflow.hooks.base import BaseHook
        yield TriggerEvent({"id": self.trigger_id, "key": self.shared_stream_key()})

class Renamed(Watches):
    def __init__(self): super().__init__("x")

args = StartTriggerArgs("flow.Moment", "after", {"moment": None})
assert (args.trigger_cls, args.next_method, args.trigger_kwargs) == (
    "flow.Moment", "after", {"moment": None})
"""

SENSORS = """
import asyncio, time
from datetime import timedelta
from airflow.configuration import conf
from airflow.models.baseoperator import BaseOperator
from airflow.sensors.base import BaseSensorOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent
from airflow.triggers.temporal import DateTimeTrigger, TimeDeltaTrigger
from airflow.utils import timezone
from airflow.utils.context import Context
from aioflow import DAG

class MomentTrigger(BaseTrigger):
    def __init__(self, moment):
        super().__init__()
        self.moment = moment

    def serialize(self):
        return ("flow.MomentTrigger", {"moment": self.moment})

    async def run(self):
        while self.moment > timezone.utcnow():
            await asyncio.sleep(1)
        yield TriggerEvent(self.moment)

class HourDeltaTrigger(DateTimeTrigger):
    def __init__(self, hours: int):
        moment = timezone.utcnow() - timedelta(hours=hours)
        super().__init__(moment=moment, end_from_trigger=True)

class WaitOneHourSensor(BaseSensorOperator):
    def __init__(
        self,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable

    def execute(self, context: Context) -> None:
        if self.deferrable:
            self.defer(trigger=TimeDeltaTrigger(timedelta(hours=1)), method_name="complete")
        else:
            time.sleep(0)

    def complete(self, context: Context, event=None) -> None: ...

with DAG("pipeline"):
    WaitOneHourSensor(task_id="deferred", deferrable=True)
    WaitOneHourSensor(task_id="slept")
    assert conf.get("core", "executor", fallback="none") == "none"
"""

RUNS = """
from aioflow import dag, task

@task
def nothing(): ...

@dag
def pipeline(): nothing()
"""


@pytest.fixture
def child(home, spawn):
    write_version(home, flow=FLOW)
    return spawn("triggers")


@pytest.mark.process
def test_one_with_an_init_of_its_own_is_hosted_as_it_is(child):
    past = datetime(2026, 1, 1, tzinfo=UTC)
    child.send(hosting("Moment", 7, moment=past))

    assert decode(child.expect(TriggerFired).payload) == [past, 7, "its own affair"]
    assert child.expect(TriggerEnded).failure is None
    printed = [r.data for frame in child.frames for r in frame if isinstance(r, Output)]
    assert b"INFO aioflow.trigger.Moment: trigger starting" in b"".join(printed)


@pytest.mark.process
def test_one_that_forgets_its_base_is_hosted(child):
    child.send(hosting("Watches", 7, how=""))

    assert decode(child.expect(TriggerFired).payload) == {"id": 7, "key": None}


@pytest.mark.process
@pytest.mark.parametrize(
    ("how", "says"),
    [
        pytest.param("raise", "no connection", id="its-own-error"),
        pytest.param("more", "airflow.hooks", id="what-there-is-not"),
    ],
)
def test_an_error_in_one_is_reported_as_everywhere(child, how, says):
    child.send(hosting("Watches", how=how))

    failure = child.expect(TriggerEnded).failure
    assert failure.reason == "trigger"
    assert says in failure.message


@pytest.mark.process
def test_a_dag_file_that_uses_airflows_names_is_parsed(home, spawn):
    dags = home / "dags"
    dags.mkdir()
    (dags / "flow.py").write_text(FLOW + RUNS)
    child = spawn("parser")
    child.send(Parse(str(dags), "flow.py"))

    parsed = child.expect(Parsed)
    assert (parsed.failures, [spec.dag_id for spec in parsed.dags]) == ((), ["pipeline"])
    assert "flow:Moment" in parsed.triggers


@pytest.mark.process
def test_a_sensor_written_for_airflow_defers_to_an_instant(home, spawn):
    write_version(home, flow=SENSORS)
    child = spawn("slot")
    child.send(run_info(), start(0))

    deferred = child.expect(Deferred)
    assert deferred.class_path == "aioflow.worker.airflow.triggers:DateTimeTrigger"
    moment = decode(deferred.kwargs)["moment"]
    assert timedelta(minutes=59) < moment - datetime.now(UTC) <= timedelta(hours=1)

    child.send(start(1))
    assert child.expect(Succeeded).body is None


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "kwargs", "ends"),
    [
        pytest.param("MomentTrigger", {"moment": datetime(2026, 1, 1, tzinfo=UTC)}, "", id="own"),
        pytest.param("HourDeltaTrigger", {"hours": 1}, "success", id="derived"),
    ],
)
def test_an_instant_of_airflow_is_waited_for(home, spawn, kind, kwargs, ends):
    write_version(home, flow=SENSORS)
    child = spawn("triggers")
    child.send(hosting(kind, **kwargs))

    fired = child.expect(TriggerFired)
    assert fired.ends == ends
    assert decode(fired.payload) < datetime.now(UTC)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Return a folder on this process's path. The import finder is active for this test only."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.syspath_prepend(str(tmp_path))
    finder.install()
    finder.install()
    return tmp_path


def test_an_installed_airflow_is_left_alone(path):
    (path / "airflow" / "triggers").mkdir(parents=True)
    for file in ("__init__.py", "triggers/__init__.py"):
        (path / "airflow" / file).write_text("")
    (path / "airflow" / "triggers" / "base.py").write_text("BaseTrigger = 'theirs'\n")

    assert importlib.import_module("airflow.triggers.base").BaseTrigger == "theirs"
    with pytest.raises(ImportError):
        importlib.import_module("airflow.sdk")


def test_providers_without_airflow_are_found_beside_what_stands_in_for_it(path):
    (path / "airflow" / "providers" / "mine").mkdir(parents=True)
    (path / "airflow" / "providers" / "mine" / "wait.py").write_text(
        "from airflow import __version__\nfrom airflow.triggers.base import BaseTrigger\n"
    )

    mine = importlib.import_module("airflow.providers.mine.wait")

    assert mine.__version__ == finder.STANDS_FOR
    assert mine.BaseTrigger.__module__.startswith("aioflow.")


def test_missing_names_are_reported_as_missing_here(path):
    sdk = importlib.import_module("airflow.sdk")

    with pytest.raises(AttributeError, match="aioflow stands in for Airflow here"):
        _ = sdk.BaseHook


def test_the_finder_is_installed_once(path):
    assert sum(type(found).__module__ == finder.__name__ for found in sys.meta_path) == 1


def test_instants_are_in_utc_unless_something_else_is_said(path):
    timezone = importlib.import_module("airflow.sdk.timezone")

    moment = timezone.parse("2026-01-01T12:00:00+02:00")
    assert timezone.convert_to_utc(moment).isoformat() == "2026-01-01T10:00:00+00:00"
    naive = timezone.make_naive(moment)
    assert timezone.is_naive(naive)
    assert timezone.make_aware(naive) == timezone.datetime(2026, 1, 1, 10)
    assert timezone.convert_to_utc(None) is None
    with pytest.raises(ValueError, match="naive"):
        timezone.make_aware(moment)
    with pytest.raises(ValueError, match="aware"):
        timezone.make_naive(naive)


# The tests of Airflow's own provider check the events of a trigger in this way.
@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (triggers.TaskSuccessEvent, "success"),
        (triggers.TaskFailedEvent, "failed"),
        (triggers.TaskSkippedEvent, "skipped"),
    ],
)
def test_an_event_that_ends_its_task_has_the_state_of_that_as_its_payload(kind, state):
    event = kind(xcoms={"return_value": 3, "more": 4})

    assert issubclass(kind, triggers.TriggerEvent)
    assert issubclass(kind, EndEvent)
    assert (event.payload, event.task_instance_state, event.ends) == (state, state, state)
    assert (event.xcoms, event.result) == ({"return_value": 3, "more": 4}, 3)
    assert (kind().payload, kind().xcoms, kind().result) == (state, None, None)
    with pytest.raises(ValueError, match="'payload' not supported"):
        kind(payload="x")


async def test_an_instant_that_ends_its_task_yields_success():
    past = datetime(2026, 1, 1, tzinfo=UTC)

    event = await anext(DateTimeTrigger(past, end_from_trigger=True).run())

    assert isinstance(event, triggers.TaskSuccessEvent)
    assert (event.payload, event.result) == ("success", past)


@pytest.mark.parametrize(
    ("event", "stored"),
    [
        (triggers.TaskSuccessEvent(), b""),
        (triggers.TaskSuccessEvent(xcoms={"a": 1}), encode({"a": 1}, "it")),
        (triggers.TaskSuccessEvent(xcoms={"return_value": None}), b""),
        (triggers.TaskFailedEvent(xcoms={"return_value": "full"}), encode("full", "it")),
        (triggers.TaskFailedEvent(), encode("Moment gave no reason", "it")),
    ],
)
def test_the_task_ends_with_what_the_event_was_made_with(event, stored):
    assert run_steps(payload_of(event, "Moment")) == stored
