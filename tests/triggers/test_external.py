from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest
from anyio import wait_all_tasks_blocked

from aioflow import AioflowError, RunEnding
from aioflow.author.client import query_sender
from aioflow.author.trigger import construct, serialize
from aioflow_triggers.external import RunTrigger, TasksTrigger
from tests.triggers.conftest import NOON


class Daemon:
    """A daemon that knows one run, which is ``partial`` or has tasks in the given states."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []
        self.states: dict[str | None, str] = {}
        self.forgotten: list[object] = []

    async def run_ending(self, dag_id, **which):
        self.asked.append({"dag_id": dag_id, **which})
        if dag_id == "missing":
            raise AioflowError("there is no DAG 'missing'")
        state = self.states.get(which["task_id"], "partial")
        if state == "running":
            await asyncio.Event().wait()
        return RunEnding("run-1", state, 42)

    def follow_runs(self, tell):
        return Follower(self, tell)


class Follower:
    """Follows runs by asking the daemon in one asyncio task per request."""

    def __init__(self, daemon, tell):
        self.daemon, self.tell = daemon, tell
        self.asking = {}

    def ask(self, of, dag_id, **which):
        task = asyncio.get_running_loop().create_task(self.follow(of, dag_id, which))
        self.asking[of] = task

    def forget(self, of):
        self.daemon.forgotten.append(of)

    async def follow(self, of, dag_id, which):
        try:
            self.tell(of, await self.daemon.run_ending(dag_id, **which))
        except AioflowError as exc:
            self.tell(of, exc)


@pytest.fixture
def daemon():
    return Daemon()


async def event_of(trigger, daemon):
    query_sender.set(daemon)
    return [event async for event in trigger.run()]


@pytest.mark.parametrize("state", ["success", "failed", "cancelled", "partial"])
async def test_any_final_state_is_an_event(hosted, daemon, state):
    daemon.states[None] = state

    (event,) = await event_of(hosted(RunTrigger("other")), daemon)

    assert event.payload == {"state": state, "run_id": "run-1", "result": 42}
    assert event.key == "run-1"
    assert daemon.asked == [
        {"dag_id": "other", "task_id": None, "run_id": None, "logical_date": None, "since": NOON}
    ]


async def test_a_wait_that_is_given_up_is_forgotten(hosted, daemon):
    daemon.states[None] = "running"
    query_sender.set(daemon)
    events = hosted(RunTrigger("other", run_id="r")).run()
    waiting = asyncio.ensure_future(anext(events))
    await wait_all_tasks_blocked()
    assert (len(daemon.asked), daemon.forgotten) == (1, [])

    waiting.cancel()
    await asyncio.wait([waiting])

    assert daemon.forgotten == ["r"]


async def test_a_task_of_it_has_a_key_of_its_own(hosted, daemon):
    (event,) = await event_of(hosted(RunTrigger("other", task="t")), daemon)

    assert event.key == "run-1/t"
    assert daemon.asked[0]["task_id"] == "t"


@pytest.mark.parametrize("offset", [timedelta(hours=-1), "-1h", -3600])
@pytest.mark.parametrize("date", [NOON, NOON.isoformat()], ids=["instant", "text"])
async def test_an_offset_is_added_to_the_logical_date(hosted, daemon, date, offset):
    trigger = RunTrigger("other", logical_date=date, offset=offset)

    await event_of(hosted(trigger), daemon)

    assert daemon.asked[0]["logical_date"] == NOON - timedelta(hours=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"run_id": "r", "logical_date": NOON}, "not both", id="two-ways"),
        pytest.param({"logical_date": datetime(2030, 1, 1)}, "time zone", id="naive"),  # noqa: DTZ001
        pytest.param({"logical_date": "2030-01-01"}, "time zone", id="naive-text"),
        pytest.param({"offset": timedelta(1)}, "logical_date", id="offset-from-nothing"),
    ],
)
def test_nonsense_is_refused_where_it_is_written(fields, message):
    with pytest.raises(ValueError, match=message):
        RunTrigger("other", **fields)


def test_it_survives_storing():
    trigger = RunTrigger("other", "t", logical_date=NOON, offset=timedelta(hours=-1))

    path, stored = serialize(trigger)

    assert path == "aioflow_triggers.external:RunTrigger"
    assert construct(RunTrigger, stored) == trigger


# ── several tasks ───────────────────────────────────────────────────────────────────────


async def test_all_of_several_tasks_are_waited_for(hosted, daemon):
    daemon.states = {"a": "success", "b": "skipped"}
    trigger = TasksTrigger("other", NOON, ["a", "b"], good=["success", "skipped"])

    (event,) = await event_of(hosted(trigger), daemon)

    assert event.payload == {"run_id": "run-1", "states": {"a": "success", "b": "skipped"}}
    assert event.key == "run-1/a/b"
    assert [asked["logical_date"] for asked in daemon.asked] == [NOON, NOON]


async def test_the_first_that_ends_badly_ends_the_wait_for_the_others(hosted, daemon):
    daemon.states = {"a": "running", "b": "upstream_failed"}

    (event,) = await event_of(hosted(TasksTrigger("other", NOON, ["a", "b"])), daemon)

    assert event.payload["states"] == {"b": "upstream_failed"}


async def test_without_tasks_the_run_itself_is_waited_for(hosted, daemon):
    (event,) = await event_of(hosted(TasksTrigger("other", NOON)), daemon)

    assert event.payload["states"] == {"": "partial"}


async def test_a_dag_that_does_not_exist_fails_the_wait_in_plain_words(hosted, daemon):
    with pytest.raises(AioflowError, match="there is no DAG 'missing'"):
        await event_of(hosted(TasksTrigger("missing", NOON, ["a", "b"])), daemon)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"logical_date": datetime(2030, 1, 1)}, "time zone", id="naive"),  # noqa: DTZ001
        pytest.param({"good": []}, "good", id="nothing-is-good"),
    ],
)
def test_a_wait_for_tasks_that_makes_no_sense_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        TasksTrigger("other", **{"logical_date": NOON, **fields})


def test_a_wait_for_tasks_survives_storing():
    trigger = TasksTrigger("other", NOON, ("a",), ("success",))

    path, stored = serialize(trigger)

    assert path == "aioflow_triggers.external:TasksTrigger"
    assert construct(TasksTrigger, stored) == trigger
