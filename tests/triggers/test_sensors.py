"""Ready-made sensors, poked as their host pokes them."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aioflow import DAG, AioflowError, Fail, NotReady, RunEnding, Sensor, Skip, TaskDeferred
from aioflow.author.client import query_sender
from aioflow.author.deferral import set_default_deferrable
from aioflow_triggers.data import JsonIs
from aioflow_triggers.external import TasksTrigger
from aioflow_triggers.files import FilesTrigger, FileTrigger
from aioflow_triggers.http import HttpTrigger
from aioflow_triggers.objects import ObjectTrigger
from aioflow_triggers.sensors import (
    DateTimeSensor,
    ExternalTaskSensor,
    FileSensor,
    HttpSensor,
    ObjectSensor,
    TimeDeltaSensor,
)
from aioflow_triggers.temporal import DateTimeTrigger
from tests.triggers.conftest import NOON, stream
from tests.triggers.site import site
from tests.triggers.test_catalogue import defined

CONTEXT = {
    "run_id": "mine",
    "logical_date": NOON,
    "run_logical_date": NOON,
    "data_interval_end": NOON,
}


async def trigger_of(sensor):
    """Return the trigger to which a sensor defers."""
    with pytest.raises(TaskDeferred) as raised:
        await sensor.poke(CONTEXT)
    assert raised.value.method_name == "execute_complete"
    return raised.value.trigger


async def seen_by(sensor) -> Any:
    """Return the result of a poke that must be successful."""
    seen = await sensor.poke(CONTEXT)
    assert seen
    return seen.xcom_value


# ── files ───────────────────────────────────────────────────────────────────────────────


async def test_a_file_is_looked_for(tmp_path):
    sensor = FileSensor(task_id="t", deferrable=False, filepath=f"{tmp_path}/a")
    assert not await sensor.poke(CONTEXT)

    (tmp_path / "a").write_text("123")

    assert (await sensor.poke(CONTEXT)).xcom_value == {"path": f"{tmp_path}/a", "size_bytes": 3}


async def test_files_of_a_pattern_are_looked_for(tmp_path):
    sensor = FileSensor(task_id="t", deferrable=False, filepath=f"{tmp_path}/*.csv")
    assert not await sensor.poke(CONTEXT)

    (tmp_path / "a.csv").touch()

    assert await seen_by(sensor) == {"paths": [f"{tmp_path}/a.csv"], "size_bytes": 0}


async def test_a_stable_file_is_polled_twice(tmp_path):
    (tmp_path / "a").touch()
    loop = asyncio.get_running_loop()
    began = loop.time()

    assert await FileSensor(
        task_id="t", deferrable=False, filepath=f"{tmp_path}/a", stable="200ms"
    ).poke(CONTEXT)

    assert loop.time() - began >= 0.2 * 0.99


@pytest.mark.parametrize(
    ("path", "trigger"),
    [
        pytest.param("/in/a", FileTrigger("/in/a", stable="10s"), id="file"),
        pytest.param("/in/*", FilesTrigger("/in/*", stable="10s"), id="pattern"),
    ],
)
async def test_a_file_is_deferred_to(path, trigger):
    sensor = FileSensor(task_id="t", filepath=path, stable="10s", deferrable=True)

    assert await trigger_of(sensor) == trigger
    assert sensor.execute_complete(CONTEXT, {"path": path}) == {"path": path}


# ── the web, and objects ────────────────────────────────────────────────────────────────


async def test_a_server_is_asked():
    async with site() as here:
        here.reply(404)
        here.reply(200, '{"n": 1}', content_type="application/json")
        here.reply(401)
        sensor = HttpSensor(
            task_id="t", deferrable=False, url=here.url, headers={"a": "b"}, until=JsonIs("n", 1)
        )

        assert not await sensor.poke(CONTEXT)
        assert (await seen_by(sensor))["body"] == {"n": 1}
        with pytest.raises(Exception, match="401"):
            await sensor.poke(CONTEXT)

    assert here.asked[0].headers["a"] == "b"


@pytest.mark.parametrize("options", [{"poke_interval": 9}, {"interval": 9}])
async def test_a_server_is_deferred_to(options):
    sensor = HttpSensor(task_id="t", url="http://host", status=201, deferrable=True, **options)

    assert await trigger_of(sensor) == HttpTrigger("http://host", status=201, interval=9)


async def test_an_object_is_deferred_to():
    sensor = ObjectSensor(
        task_id="t", url="s3://b/*", store_options={"region": "x"}, deferrable=True
    )

    assert await trigger_of(sensor) == ObjectTrigger("s3://b/*", options={"region": "x"})


async def test_an_object_is_looked_for(monkeypatch):
    async def look(trigger):
        return {"url": trigger.url}

    monkeypatch.setattr(ObjectTrigger, "poll", look)

    seen = await ObjectSensor(task_id="t", deferrable=False, url="s3://b/a").poke(CONTEXT)

    assert seen.xcom_value == {"url": "s3://b/a"}


# ── time ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def noon(monkeypatch):
    monkeypatch.setattr("aioflow_triggers.sensors._now", lambda: NOON)


@pytest.mark.parametrize(
    ("target", "recheck_in_s"),
    [
        pytest.param(NOON + timedelta(seconds=7), 7, id="soon"),
        pytest.param("2030-01-01T13:00:07+01:00", 7, id="soon-as-text"),
        pytest.param(NOON + timedelta(hours=1), 60, id="later"),
    ],
)
async def test_an_instant_is_looked_for_when_it_comes(target, recheck_in_s):
    with pytest.raises(NotReady) as raised:
        await DateTimeSensor(task_id="t", deferrable=False, target_time=target).poke(CONTEXT)

    assert raised.value.recheck_in_us == recheck_in_s * 1_000_000


async def test_an_instant_that_has_come_is_the_result():
    assert (
        await DateTimeSensor(task_id="t", deferrable=False, target_time=NOON).poke(CONTEXT)
    ).xcom_value == NOON


async def test_an_instant_without_a_zone_fails():
    with pytest.raises(ValueError, match="time zone"):
        await DateTimeSensor(task_id="t", deferrable=False, target_time="2030-01-01T12:00").poke(
            CONTEXT
        )


async def test_a_length_of_time_begins_at_the_end_of_the_interval():
    sensor = TimeDeltaSensor(task_id="t", delta="1h", deferrable=True)

    assert await trigger_of(sensor) == DateTimeTrigger(NOON + timedelta(hours=1))


# ── by default, and both ways ───────────────────────────────────────────────────────────


@pytest.fixture(params=[True, False])
def deferring(request):
    """Set whether operators defer by default."""
    set_default_deferrable(value=request.param)
    yield request.param
    set_default_deferrable(value=None)


EACH = {
    "file": lambda **options: FileSensor(task_id="t", filepath="/nothing", **options),
    "http": lambda **options: HttpSensor(task_id="t", url="http://host", **options),
    "object": lambda **options: ObjectSensor(task_id="t", url="s3://b/a", **options),
    "instant": lambda **options: DateTimeSensor(task_id="t", target_time=NOON, **options),
    "delta": lambda **options: TimeDeltaSensor(task_id="t", delta="1h", **options),
    "run": lambda **options: ExternalTaskSensor(task_id="t", external_dag_id="other", **options),
}


@pytest.mark.parametrize("name", EACH)
def test_the_setting_decides_where_nothing_is_said(name, deferring):
    assert EACH[name]().deferrable is deferring
    assert EACH[name](deferrable=not deferring).deferrable is not deferring


@pytest.mark.parametrize("name", EACH)
def test_without_the_setting_a_ready_sensor_defers(name):
    assert EACH[name]().deferrable is True
    assert EACH[name](deferrable=False).deferrable is False


def test_every_ready_sensor_is_among_them():
    ready = {cls for cls in defined() if issubclass(cls, Sensor)}

    assert {type(make()) for make in EACH.values()} == ready


async def both_ways(make):
    """Return the outcome of a sensor. Check that it is the same deferred and in a slot."""
    polled = await seen_by(make(deferrable=False))
    sensor = make(deferrable=True)
    async with stream(await trigger_of(sensor)) as events:
        event = await anext(events)
    assert sensor.execute_complete(CONTEXT, event.payload) == polled
    return polled


@pytest.mark.parametrize("last", ["a.csv", "*.csv"])
async def test_a_file_is_the_same_both_ways(tmp_path, last):
    (tmp_path / "a.csv").write_text("123")

    seen = await both_ways(
        lambda **options: FileSensor(task_id="t", filepath=f"{tmp_path}/{last}", **options)
    )

    assert seen["size_bytes"] == 3


async def test_a_server_is_the_same_both_ways():
    async with site() as here:
        for _ in range(2):
            here.reply(200, '{"n": 1}', content_type="application/json")
        seen = await both_ways(
            lambda **options: HttpSensor(task_id="t", url=here.url, until=JsonIs("n", 1), **options)
        )

    assert seen["body"] == {"n": 1}


async def test_a_server_that_refuses_fails_both_ways():
    async with site() as here:
        here.reply(401)
        here.reply(401)
        with pytest.raises(Exception, match="401") as polled:
            await HttpSensor(task_id="t", deferrable=False, url=here.url).poke(CONTEXT)
        trigger = await trigger_of(HttpSensor(task_id="t", url=here.url, deferrable=True))
        with pytest.raises(type(polled.value), match="401"):
            async with stream(trigger) as events:
                await anext(events)


async def test_an_instant_is_the_same_both_ways(wall_clock):
    past = NOON - timedelta(hours=1)

    seen = await both_ways(
        lambda **options: DateTimeSensor(task_id="t", target_time=past, **options)
    )

    assert seen == past


# ── other runs ──────────────────────────────────────────────────────────────────────────


class Daemon:
    """A daemon that knows one run. The states are those of its tasks, or its own under ``None``."""

    def __init__(self, **states):
        self.states = {name or None: state for name, state in states.items()}
        self.dates = set()

    async def run_ending(self, dag_id, *, task_id, run_id, logical_date, since):
        self.dates.add(logical_date)
        if dag_id == "missing":
            raise AioflowError("there is no DAG 'missing'")
        return RunEnding("run-1", self.states[task_id])


@contextmanager
def asking(daemon):
    token = query_sender.set(daemon)
    try:
        yield daemon
    finally:
        query_sender.reset(token)


def external(**options):
    named = {"task_id": "t", "external_dag_id": "other", "deferrable": False}
    return ExternalTaskSensor(**{**named, **options})


async def judged(state, **options):
    """Return the outcome for a state. Check that it is the same in both modes."""
    verdicts = []
    with asking(Daemon(a=state)):
        for deferrable in (False, True):
            sensor = external(external_task_id="a", deferrable=deferrable, **options)
            try:
                if deferrable:
                    event = await (await trigger_of(sensor)).ended()
                    verdicts.append(("passes", sensor.execute_complete(CONTEXT, event)))
                else:
                    verdicts.append(("passes", (await sensor.poke(CONTEXT)).xcom_value))
            except (Fail, Skip) as exc:
                verdicts.append((type(exc).__name__, str(exc)))
    assert verdicts[0] == verdicts[1]
    return verdicts[0]


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ("success", "passes"),
        ("failed", "Fail"),
        ("upstream_failed", "Fail"),
        ("cancelled", "Fail"),
        ("removed", "Fail"),
        ("skipped", "Skip"),
        ("partial", "Fail"),
    ],
)
async def test_meanings_of_the_final_states(state, verdict):
    kind, said = await judged(state)

    assert kind == verdict
    if verdict == "passes":
        assert said == {"run_id": "run-1", "states": {"a": "success"}}
    else:
        assert "other.a" in said
        assert state in said


async def test_partial_passes_where_it_is_named():
    assert (await judged("partial", allowed_states=["success", "partial"]))[0] == "passes"


async def test_skipped_passes_where_it_is_named():
    options = {"allowed_states": ["success", "skipped"], "skipped_states": []}

    assert (await judged("skipped", **options))[0] == "passes"


async def test_a_bad_ending_skips_where_failing_is_soft():
    assert (await judged("failed", soft_fail=True))[0] == "Skip"


async def test_the_run_as_a_whole_is_waited_for_without_tasks():
    daemon = Daemon()
    daemon.states[None] = "success"
    with asking(daemon):
        seen = await seen_by(external())

    assert seen["states"] == {"": "success"}
    assert daemon.dates == {NOON}


async def test_all_tasks_must_end_well():
    with asking(Daemon(a="success", b="failed")), pytest.raises(Fail, match=r"other\.b"):
        await external(external_task_ids=["a", "b"]).poke(CONTEXT)


@pytest.mark.parametrize(
    ("options", "date"),
    [
        pytest.param({}, NOON, id="same"),
        pytest.param({"execution_delta": "1h"}, NOON - timedelta(hours=1), id="before"),
        pytest.param(
            {"execution_delta": timedelta(hours=-1)}, NOON + timedelta(hours=1), id="after"
        ),
        pytest.param(
            {"logical_date": datetime(2026, 1, 1, tzinfo=UTC)},
            datetime(2026, 1, 1, tzinfo=UTC),
            id="said",
        ),
    ],
)
async def test_which_run_is_waited_for(options, date):
    trigger = await trigger_of(external(deferrable=True, **options))

    assert trigger == TasksTrigger("other", date, (), ("success", "skipped"))


async def test_a_dag_that_does_not_exist_fails_now():
    with asking(Daemon()), pytest.raises(AioflowError, match="there is no DAG"):
        await external(external_dag_id="missing").poke(CONTEXT)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"external_task_id": "a", "external_task_ids": ["b"]}, id="two-ways"),
        pytest.param({"execution_delta": "1h", "logical_date": NOON}, id="two-dates"),
        pytest.param({"allowed_states": ["failed"]}, id="good-and-bad"),
    ],
)
async def test_contradictory_arguments_fail(options):
    with pytest.raises(Fail):
        await external(**options).poke(CONTEXT)


# ── in a DAG ────────────────────────────────────────────────────────────────────────────


def test_airflows_names_are_taken():
    with DAG("d"):
        sensor = FileSensor(
            task_id="t",
            filepath="/in/a",
            poke_interval=5,
            timeout="1h",
            mode="reschedule",
            soft_fail=True,
            deferrable=True,
        )

    spec = sensor.node.sensor
    assert spec.interval_us == 5_000_000
    assert spec.timeout_us == 3_600_000_000
    assert spec.on_timeout == "skip"


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("options", [{}, {"execution_delta": "1h"}], ids=["same", "earlier"])
async def test_a_run_without_a_logical_date_fails_at_once_and_says_what_to_give(
    deferrable, options
):
    by_hand = CONTEXT | {"run_logical_date": None}
    with pytest.raises(Fail, match="run mine has no logical date.*'other'.*logical_date") as raised:
        await external(deferrable=deferrable, **options).poke(by_hand)

    assert "RunTrigger" in str(raised.value)


async def test_a_run_without_a_logical_date_may_be_given_one():
    daemon = Daemon(a="success")
    with asking(daemon):
        sensor = external(external_task_id="a", logical_date=NOON)
        seen = await sensor.poke(CONTEXT | {"run_logical_date": None})

    assert seen.xcom_value["states"] == {"a": "success"}
    assert daemon.dates == {NOON}
