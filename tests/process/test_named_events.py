"""Named events, and runs that a task starts, on a real daemon that is killed in between."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from benchmarks.daemon import DaemonProcess, eventually
from tests.process.test_durable_calls import state, strike

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
nightly = pytest.mark.nightly

DAGS = """
from aioflow import DagRunFailed, dag, emit, run_dag, sleep, stream, task, wait
from aioflow_triggers.events import EventTrigger


@task(retries=9, retry_delay=0)
async def reviews(count: int) -> list[object]:
    seen = []
    for _ in range(count):
        review = await wait(EventTrigger("reviewed", key="mine"))
        seen.append(review["data"])
    return seen


@task(retries=9, retry_delay=0)
async def emits(count: int) -> None:
    for number in range(count):
        await emit("tick", key=str(number % 2), data=number)
        await sleep(0.02)


@task(retries=9, retry_delay=0)
async def collects(count: int) -> list[object]:
    seen = []
    async for tick in stream(EventTrigger("tick"), window=4):
        seen.append(tick["data"])
        if len(seen) == count:
            return seen


@task(retries=9, retry_delay=0)
async def calls(good: bool) -> dict[str, object]:
    try:
        return await run_dag(child, good=good)
    except DagRunFailed as exc:
        return {"state": exc.state, "run_id": exc.run_id}


@task(retries=0)
async def works(good: bool) -> None:
    await wait(EventTrigger("go"))
    if not good:
        raise ValueError("no good")


@dag
def approvals(count: int) -> None:
    reviews(count)


@dag
def ticking(count: int) -> None:
    emits(count)
    collects(count)


@dag
def parent(good: bool) -> None:
    calls(good)


@dag
def child(good: bool) -> None:
    works(good)
"""


@pytest.fixture
def daemon(killed_daemon):
    killed_daemon.add("talk.py", DAGS)
    return killed_daemon


def emit(daemon: DaemonProcess, name: str, data: object, key: str = "") -> None:
    query = f"?key={key}" if key else ""
    daemon.request("POST", f"/api/v1/events/{name}{query}", data)


def has_seen(daemon: DaemonProcess, run_id: str, count: int) -> bool:
    """Return whether a task has received ``count`` events, and is waiting for the next one."""
    answered = [row for row in records(daemon, run_id) if row is not None]
    return len(answered) == count and state(daemon, run_id) == "deferred"


def records(daemon: DaemonProcess, run_id: str) -> list[Any]:
    question = (
        "SELECT record.answer FROM record JOIN run USING (run_no) WHERE run_id = ? ORDER BY ordinal"
    )
    with daemon.database() as database:
        return [answer for (answer,) in database.execute(question, (run_id,))]


def results(daemon: DaemonProcess, run_id: str) -> dict[str, Any]:
    return {task["task_id"]: task["result"] for task in daemon.run(run_id)["tasks"]}


def children(daemon: DaemonProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.items("/api/v1/runs?dag=child")
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(("everything", "async", "triggers"), id="in-turn"),
        *(
            pytest.param((what,) * 3, id=what, marks=nightly)
            for what in ("daemon", "everything", "async", "triggers")
        ),
    ],
)
def test_each_wait_of_a_task_is_given_the_next_event_whatever_is_killed(daemon, kills):
    run_id = daemon.trigger("approvals", {"count": 3})
    emit(daemon, "reviewed", "not for it", key="other")
    for number, what in enumerate(kills):
        eventually(partial(has_seen, daemon, run_id, number))
        strike(daemon, what)
        eventually(partial(has_seen, daemon, run_id, number))
        emit(daemon, "reviewed", number, key="mine")
    daemon.wait(run_id)

    assert results(daemon, run_id) == {"reviews": [0, 1, 2]}


def test_events_that_came_before_the_wait_are_reported_if_the_run_existed(daemon):
    daemon.knows("approvals")
    emit(daemon, "reviewed", "before the run", key="mine")
    run_id = daemon.trigger("approvals", {"count": 2})
    for data in ("first", "second"):
        emit(daemon, "reviewed", data, key="mine")
    daemon.wait(run_id)

    assert results(daemon, run_id) == {"reviews": ["first", "second"]}


def test_events_of_a_task_are_emitted_once_and_streamed_in_order(daemon):
    count = 40
    run_id = daemon.trigger("ticking", {"count": count})
    for what, number in (("everything", 5), ("triggers", 12), ("async", 20)):
        eventually(partial(has_emitted, daemon, run_id, number))
        strike(daemon, what)
    daemon.wait(run_id)
    told, stored = results(daemon, run_id), emitted_by(daemon, run_id)

    assert told["collects"] == list(range(count))
    assert [event["data"] for event in reversed(stored)] == list(range(count))


def has_emitted(daemon: DaemonProcess, run_id: str, count: int) -> bool:
    return len(emitted_by(daemon, run_id)) >= count


def emitted_by(daemon: DaemonProcess, run_id: str) -> list[dict[str, Any]]:
    found = daemon.items("/api/v1/events?name=tick&limit=1000")
    return [event for event in found if event["run_id"] == run_id]


@pytest.mark.parametrize(
    ("what", "good", "database"),
    [
        pytest.param("daemon", True, "sqlite", marks=nightly),
        pytest.param("everything", False, "sqlite"),
        pytest.param("everything", True, "postgres", marks=[pytest.mark.postgres, nightly]),
        pytest.param("async", True, "sqlite"),
    ],
)
def test_a_task_that_runs_another_dag_creates_one_run_and_gets_its_end(
    daemon_on, what, good, database
):
    daemon = daemon_on(database)
    daemon.add("talk.py", DAGS)
    daemon.knows("child")
    before = {run["run_id"] for run in children(daemon)}

    def begun() -> list[dict[str, Any]]:
        return [run for run in children(daemon) if run["run_id"] not in before]

    run_id = daemon.trigger("parent", {"good": good})
    eventually(lambda: begun() and state(daemon, run_id) == "deferred")
    strike(daemon, what)
    why = f"/api/v1/runs/{run_id}/tasks/calls/why"
    waits = eventually(lambda: daemon.get(why)[1]["causes"][0]["waiting_on"])
    emit(daemon, "go", None)
    daemon.wait(run_id)
    [run] = begun()
    told = results(daemon, run_id)["calls"]

    assert waits["detail"] == f"run {run['run_id']} of child, which is running"
    assert (told["state"], told["run_id"]) == (run["state"], run["run_id"])
    assert run["state"] == ("success" if good else "failed")
