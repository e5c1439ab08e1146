"""The simulator as tests of DAGs use it, and its clean-up."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from time import sleep as pause
from typing import Any

import anyio.to_thread
import pytest

from aioflow import (
    DAG,
    Asset,
    DagError,
    Operator,
    Retry,
    Trigger,
    TriggerEvent,
    current,
    dag,
    run_dag,
    secret,
    sensor,
    step,
    stream,
    task,
    wait,
)
from aioflow.author.dag import forget_registered
from aioflow.errors import BadConf
from aioflow.model.dag import ValueKind
from aioflow.testing import BEGINS_AT, RunStuck, Sim
from aioflow_triggers.events import EventTrigger
from aioflow_triggers.temporal import TimeDeltaTrigger

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _no_dags_of_others():
    """Forget the DAGs of earlier tests, since all DAGs of a file know each other."""
    forget_registered()


# ── time ────────────────────────────────────────────────────────────────────────────────


async def test_an_isolated_dag_waits_and_survives_a_crash_in_hosts_of_its_own(sim: Sim):
    @task
    async def waits() -> str:
        await wait(TimeDeltaTrigger("2h"))
        return "waited"

    @dag(isolated=True)
    def apart() -> None:
        waits()

    run = await sim.start(apart)
    await sim.advance("1h")
    await sim.crash()
    await sim.advance("1h")

    assert run["waits"].result == "waited"
    assert run.state == "success"


async def test_thirteen_hours_of_waiting_need_few_turns_of_the_loop(sim: Sim):
    @task
    async def waits() -> datetime:
        await wait(TimeDeltaTrigger("13h"))
        return datetime.now(UTC)

    @dag
    def night() -> None:
        waits()

    run = await sim.start(night)
    assert run["waits"].state == "deferred"
    assert run["waits"].waiting_on.kind == "trigger"
    turns = _turns_of(sim)
    await sim.advance("13h")

    assert run.state == "success"
    assert timedelta() <= run["waits"].result - (BEGINS_AT + 13 * HOUR) < timedelta(seconds=0.1)
    assert len(turns) < 5_000


def _turns_of(sim: Sim) -> list[float]:
    """Return a list of the loop's iterations, whose number does not depend on the load."""
    turns: list[float] = []
    loop: Any = sim._world._loop
    once = loop._run_once

    def counted() -> None:
        turns.append(loop.time())
        once()

    loop._run_once = counted
    return turns


async def test_every_clock_of_user_code_goes_along(sim: Sim):
    def told() -> list[datetime]:
        return [
            datetime.now(UTC),
            datetime.fromtimestamp(time.time(), UTC),
            datetime.fromtimestamp(time.time_ns() / 1e9, UTC),
            datetime(*time.gmtime()[:6], tzinfo=UTC),
        ]

    @task
    def computes() -> list[datetime]:
        time.sleep(3600)
        pause(3600)
        return told()

    @task
    async def asks(before: list[datetime]) -> list[datetime]:
        await asyncio.sleep(3600)
        await anyio.to_thread.run_sync(time.sleep, 3600)
        await asyncio.to_thread(pause, 3600)
        time.sleep(3600)  # noqa: ASYNC251 - which blocks everybody for as long
        return await step(told)

    @dag
    def clocks() -> None:
        asks(computes())

    run = await (await sim.start(clocks)).finished()

    assert run["computes"].result == [BEGINS_AT + 2 * HOUR] * 4
    assert run["asks"].result == [BEGINS_AT + 6 * HOUR] * 4
    assert sim.now == datetime.now(UTC) == BEGINS_AT + 6 * HOUR
    assert date.today() == BEGINS_AT.date()  # noqa: DTZ011


SAVED: dict[str, Any] = {"time": time.time, "time_ns": time.time_ns, "gmtime": time.gmtime}
"""Functions saved before the simulation has started."""


async def test_functions_saved_earlier_follow_virtual_time_to_the_microsecond(sim: Sim):
    await sim.advance("1h")
    await sim.advance(0.000_001)

    microseconds = (sim.now - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
    assert SAVED["time_ns"]() == microseconds * 1_000
    assert microseconds % 10 == 1
    assert datetime.fromtimestamp(SAVED["time"](), UTC) == datetime.now(UTC) == sim.now
    assert SAVED["gmtime"]()[:6] == (BEGINS_AT + HOUR).timetuple()[:6]


def test_without_its_library_the_import_names_the_extra():
    program = "import sys; sys.modules['time_machine'] = None; import aioflow.testing"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.returncode == 1
    assert "need time-machine: pip install 'aioflow-engine[testing]'" in done.stderr


async def test_the_local_time_zone_stays(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        with Sim() as sim:
            assert datetime.now().astimezone().utcoffset() == 9 * HOUR
            assert datetime.now() == sim.now.replace(tzinfo=None) + 9 * HOUR  # noqa: DTZ005
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_bodies_that_sleep_do_so_side_by_side_and_in_one_order(sim: Sim):
    woken: list[int] = []

    @task
    def naps(hours: int) -> None:
        time.sleep(hours * 3600)
        woken.append(hours)

    @dag
    def siesta() -> None:
        naps.expand(hours=[3, 1, 2])

    await (await sim.start(siesta)).finished()

    assert woken == [1, 2, 3]
    assert sim.now - BEGINS_AT < 3.1 * HOUR


async def test_a_body_that_sleeps_too_long_is_killed(sim: Sim):
    woken: list[int] = []

    @task(execution_timeout="10m", retries=0)
    def oversleeps() -> None:
        time.sleep(3600)
        woken.append(1)

    @dag
    def late() -> None:
        oversleeps()

    run = await (await sim.start(late)).finished()

    assert run["oversleeps"].error.reason == "timeout"
    await sim.advance("2h")
    assert woken == []


async def test_retries_come_after_their_delays(sim: Sim):
    tried: list[datetime] = []

    @task(retry=Retry(tries=3, delay="1h", factor=2, jitter=False))
    def fails() -> None:
        tried.append(datetime.now(UTC))
        raise OSError("no luck")

    @dag
    def stubborn() -> None:
        fails()

    run = await (await sim.start(stubborn)).finished()

    assert run.state == "failed"
    assert [round((at - BEGINS_AT) / HOUR, 3) for at in tried] == [0, 1, 3]
    assert run["fails"].tries == 3
    assert run["fails"].error.message == "no luck"


async def test_a_schedule_starts_runs_when_it_is_asked_to(sim: Sim):
    @task
    def days(day: date = current.logical_day) -> date:
        return day

    @dag(schedule="0 3 * * *")
    def daily() -> None:
        days()

    await sim.start(daily)
    await sim.advance("3d")
    assert len(sim.runs(daily)) == 1

    await sim.schedule(daily)
    await sim.advance("3d")

    scheduled = sim.runs(daily)[1:]  # the first is the last that was missed
    assert [run["days"].result for run in scheduled] == [date(2026, 1, d) for d in (3, 4, 5, 6)]


# ── user code ───────────────────────────────────────────────────────────────────────────


@dataclass
class Ticks(Trigger[int]):
    count: int

    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        for number in range(self.count):
            await asyncio.sleep(3600)
            self.log.info("tick")
            print("tick", number)
            yield TriggerEvent(number)


async def test_triggers_of_a_test_are_hosted(sim: Sim):
    @task
    async def follows() -> list[int]:
        return [number async for number in stream(Ticks(3))]

    @dag
    def ticking() -> None:
        follows()

    run = await sim.start(ticking)
    await sim.advance("2h")
    assert run["follows"].log == "tick 0\ntick 1\n"
    await run.finished()

    assert run["follows"].result == [0, 1, 2]


async def test_operators_defer_and_resume(sim: Sim):
    class Waits(Operator):
        def execute(self, context):
            self.defer(trigger=TimeDeltaTrigger("5h"), method_name="resume")

        def resume(self, context, event=None):
            return "resumed"

    with DAG("classes") as classes:
        Waits(task_id="waits")

    run = await sim.start(classes)
    await sim.advance("5h")

    assert run["waits"].result == "resumed"


async def test_output_is_in_the_log_of_its_try_and_nowhere_else(sim: Sim, capsys):
    @task
    def loud() -> None:
        print("from a thread")

    @task
    async def louder() -> None:
        print("from the loop")

    @dag
    def talk() -> None:
        loud() >> louder()

    run = await (await sim.start(talk)).finished()
    print("from the test")

    assert run["loud"].log == "from a thread\n"
    assert run["louder"].log == "from the loop\n"
    assert capsys.readouterr().out == "from the test\n"


async def test_fan_outs_show_their_children(sim: Sim):
    @task
    async def letters() -> AsyncIterator[str]:
        for letter in "abc":
            await asyncio.sleep(60)
            yield letter

    @task(retries=0)
    def coded(letter: str) -> int:
        if letter == "b":
            raise ValueError("not b")
        return ord(letter)

    @dag
    def fan() -> None:
        coded.expand(letter=letters())

    run = await sim.start(fan)
    await sim.advance("90s")
    assert run["coded"].state == "running"
    await run.finished()

    assert run["letters"].result == ["a", "b", "c"]
    assert run["coded"].state == "failed"
    assert [child.state for child in run["coded"].children] == ["success", "failed", "success"]
    assert run["coded"].result == [97, 99]
    assert run["coded"][1].error.message == "not b"
    with pytest.raises(IndexError, match="'coded' has no child 3"):
        run["coded"][3]


async def test_runs_start_runs_of_the_same_file(sim: Sim):
    @task
    def answer() -> int:
        return 42

    @dag
    def inner() -> None:
        answer()

    @task
    async def asks() -> str:
        return (await run_dag("inner"))["state"]

    @dag
    def outer() -> None:
        asks()

    run = await (await sim.start(outer)).finished()

    assert run["asks"].result == "success"
    assert [child["answer"].result for child in sim.runs(inner)] == [42]


# ── requests of users ───────────────────────────────────────────────────────────────────


@task
async def approved() -> str:
    event: Any = await wait(EventTrigger("approved"))
    return event["data"]["by"]


@sensor(interval="60s", timeout="1h")
def is_there() -> bool:
    return False


async def test_events_come_from_outside(sim: Sim):
    @dag
    def approvals() -> None:
        approved()

    run = await sim.start(approvals)
    await sim.emit("approved", data={"by": "ann"})

    assert run["approved"].result == "ann"


async def test_a_run_that_waits_for_nothing_that_comes_is_stuck_and_says_why(sim: Sim):
    @dag
    def orphan() -> None:
        approved()

    run = await sim.start(orphan)

    with pytest.raises(RunStuck, match="approved deferred, .*for the event approved"):
        await run.finished()
    await sim.cancel(run)
    assert run.states == {"approved": "cancelled"}


async def test_a_run_that_takes_too_long_is_stuck(sim: Sim):
    @dag
    def long() -> None:
        is_there()

    run = await sim.start(long)

    with pytest.raises(RunStuck, match="still running at 2026-01-01 00:30"):
        await run.finished(within="30m")
    await run.finished()
    assert run["is_there"].state == "failed"


async def test_a_dag_that_cannot_run_says_so(sim: Sim):
    @task
    def one(x: object = None) -> int:
        return 1

    @dag
    def circle() -> None:
        a, b = one(), one()
        a >> b >> a

    @dag
    def typed(day: date) -> None:
        one(day)

    with pytest.raises(DagError, match="one -> one__1 -> one"):
        await sim.start(circle)
    with pytest.raises(BadConf):
        await sim.start(typed)


# ── replacing ───────────────────────────────────────────────────────────────────────────


@task
def asks_the_world(question: str) -> str:
    raise AssertionError("the world is not to be asked in a test")


@task
async def asks_again(answer: str) -> str:
    raise AssertionError("the world is not to be asked in a test")


@dag
def curious() -> None:
    asks_again(asks_the_world("why?"))


async def test_tasks_are_replaced_by_function_reference_or_id(sim: Sim):
    sim.replace(asks_the_world, lambda question: f"{question} because")
    sim.replace("asks_again", lambda answer: f"{answer}!")

    run = await (await sim.start(curious)).finished()

    assert run["asks_again"].result == "why? because!"


async def test_operators_are_replaced_by_reference(sim: Sim):
    class Loads(Operator):
        def __init__(self, path, **options):
            super().__init__(**options)
            self.path = path

        def execute(self, context):
            raise AssertionError

    with DAG("loading") as loading:
        loads = Loads("/in", task_id="loads")
    sim.replace(loads, lambda path: [path])

    run = await (await sim.start(loading)).finished()

    assert run["loads"].result == ["/in"]


async def test_a_def_task_is_not_replaced_by_a_coroutine(sim: Sim):
    async def asks(question: str) -> str:
        return question

    sim.replace(asks_the_world, asks)
    with pytest.raises(TypeError, match="'asks_the_world' is no `async def`"):
        await sim.start(curious)


async def replace_one_too_many() -> None:
    with Sim() as sim:
        sim.replace("asks_agian", lambda answer: answer)
        sim.replace(asks_the_world, lambda question: "because")
        sim.replace("asks_again", lambda answer: answer)
        await (await sim.start(curious)).finished()


async def replace_nobody_and_fail() -> None:
    with Sim() as sim:
        sim.replace("nobody", lambda: None)
        await sim.start(curious)
        raise ZeroDivisionError


async def test_a_task_id_that_no_dag_has_is_reported_at_the_end():
    with pytest.raises(LookupError, match=r"'asks_agian'.*curious; did you mean 'asks_again'\?"):
        await replace_one_too_many()


async def test_a_wrong_task_id_hides_no_other_error():
    with pytest.raises(ZeroDivisionError):
        await replace_nobody_and_fail()


# ── the end ─────────────────────────────────────────────────────────────────────────────


async def test_nothing_is_left_of_a_simulator():
    real_sleep, real_now, streams = time.sleep, datetime.now, (sys.stdout, sys.stderr)
    own = asks_the_world.fn
    with Sim(at=datetime(2000, 1, 1, tzinfo=UTC)) as sim:
        sim.replace(asks_the_world, lambda question: "")
        await sim.start(curious)
        assert datetime.now(UTC).year == 2000
        folder = sim._world.home
    sim.close()

    assert (time.sleep, datetime.now) == (real_sleep, real_now)
    assert datetime.now(UTC).year > 2025
    assert (sys.stdout, sys.stderr) == streams
    assert curious.nodes[0].fn is own
    assert not folder.exists()


async def test_coroutines_that_swallow_their_end_do_not_hold_up_the_test():
    @task
    async def clings() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(1_000_000)

    @dag
    def clinging() -> None:
        clings()

    with Sim() as sim:
        run = await sim.start(clinging)
        await sim.advance("30m")
        assert run["clings"].state == "running"


async def test_two_simulators_have_two_clocks(sim: Sim):
    with Sim(at=datetime(2000, 1, 1, tzinfo=UTC)) as other:
        assert datetime.now(UTC).year == 2000
        await other.advance("1d")
        assert other.now.day == 2
    assert datetime.now(UTC) == sim.now == BEGINS_AT


async def test_a_task_cannot_inspect_the_simulator_that_runs_it(sim: Sim):
    seen: list[str] = []

    @task(retries=0)
    def looks() -> None:
        seen.append(sim.runs(looking)[0].state)

    @dag
    def looking() -> None:
        looks()

    run = await (await sim.start(looking)).finished()

    assert "cannot look at the simulator" in run["looks"].error.message


TRIED = """
import pytest
from aioflow import dag, task

@task
def one() -> int:
    return 1

@dag
def small() -> None:
    one()

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_small(sim, anyio_backend):
    assert (await sim.start(small)).state == "success"
"""


@pytest.mark.process
def test_the_fixture_comes_with_the_plugin_and_nothing_heavy_with_that(tmp_path):
    (tmp_path / "test_small.py").write_text(TRIED)
    light = "import sys, aioflow.pytest_plugin; sys.exit('aioflow.engine.loop' in sys.modules)"

    imported = subprocess.run([sys.executable, "-c", light], check=False)
    plugins = ("-p", "anyio", "-p", "aioflow.pytest_plugin")
    played = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert imported.returncode == 0
    assert "1 passed" in played.stdout, played.stdout


@task
def note(order: int) -> int:
    return order


@dag(schedule=EventTrigger("ordered"), debounce="10s")
def orders(data: int) -> None:
    note(data)


async def test_events_start_runs_of_a_dag_whose_schedule_they_are(sim: Sim):
    await sim.schedule(orders)
    await sim.emit("ordered", data=1)
    await sim.advance("9s")
    await sim.emit("ordered", data=2)
    await sim.advance("9s")
    assert sim.runs(orders) == []

    await sim.advance("1s")

    (run,) = sim.runs(orders)
    await run.finished()
    assert run["note"].result == 2


async def test_its_events_start_none_where_its_schedule_rests(sim: Sim):
    run = await sim.start(orders, data=7)
    await sim.emit("ordered", data=1)
    await sim.advance("1h")

    assert [one.run_id for one in sim.runs(orders)] == [run.run_id]


@task(outlets=[Asset("ledger", extra={"day": 1}), Asset("s3://bucket/books")])
def books() -> None: ...


@dag
def bookkeeping() -> None:
    books()


@task
def told(events: dict[str, list[dict[str, Any]]]) -> list[str]:
    return [
        f"{name} {event['task_id']} {event['extra']}" for name in events for event in events[name]
    ]


@dag(schedule=Asset("ledger") & (Asset("s3://bucket/books") | Asset("never")))
def reports(triggering_events: dict[str, list[dict[str, Any]]]) -> None:
    told(triggering_events)


async def test_a_task_that_has_made_assets_starts_the_runs_that_go_by_them(sim: Sim):
    await sim.schedule(reports)
    run = await sim.start(bookkeeping)
    await run.finished()

    (report,) = sim.runs(reports)
    await report.finished()
    assert report["told"].result == ["ledger books {'day': 1}", "s3://bucket/books books None"]


# ── secrets ─────────────────────────────────────────────────────────────────────────────


async def test_a_secret_that_a_task_prints_is_masked_as_a_daemon_masks_it(sim: Sim):
    @task(secrets=["BANK"])
    def tells() -> None:
        print(f"the token is {secret('BANK')}")

    @dag
    def bank() -> None:
        tells()

    sim.look(lambda api: api.values.set(ValueKind.SECRET, "BANK", "hunter-2-of-the-bank"))
    run = await sim.start(bank)

    assert run["tells"].log == "the token is ***\n"
