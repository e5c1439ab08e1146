"""A crash at any commit neither loses nor duplicates an event."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from aioflow import Asset, Trigger, TriggerEvent, dag, task
from aioflow.testing import Sim
from aioflow_triggers.events import EventTrigger

DONE = Asset("done")
EVENTS = 3


@task(outlets=[DONE])
def note(what: int) -> int:
    return what


@task
def count(events: dict[str, list[dict[str, Any]]]) -> int:
    return len(events["done"])


@dag(schedule=EventTrigger("ordered"), max_active_runs=1)
def orders(data: int) -> None:
    note(data)


@dataclass
class Numbers(Trigger[int]):
    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        first = 0 if self.last is None else self.last.payload + 1
        for number in range(first, EVENTS):
            yield TriggerEvent(number, key=str(number))


@dag(schedule=Numbers())
def numbers(what: int) -> None:
    note(what)


@dag(schedule=DONE)
def after(triggering_events: dict[str, list[dict[str, Any]]]) -> None:
    count(triggering_events)


async def life(crash: Callable[[int, bool], bool]) -> dict[str, list[object]]:
    """Emit events while the node crashes where ``crash`` says. Return the started runs."""
    with Sim() as sim:
        sim._world.crash_where(crash)
        for one in (after, orders, numbers):
            await sim.schedule(one)
        for number in range(EVENTS):
            await sim.emit("ordered", data=number)
        await sim.advance("10m")
        assert all(run.state == "success" for one in (orders, numbers) for run in sim.runs(one))
        return {one.dag_id: confs(sim, one.dag_id) for one in (orders, numbers, after)}


def confs(sim: Sim, dag_id: str) -> list[object]:
    found = sim.look(lambda api: api.store.list_runs(dag_id=dag_id, limit=1_000))
    given: list[Any] = [msgspec.msgpack.decode(run.conf or b"\x80") for run in found]
    if dag_id != "after":
        return sorted(conf.popitem()[1] for conf in given)
    told = [event for conf in given for event in conf["triggering_events"]["done"]]
    assert len({event["id"] for event in told}) == len(told)
    return [len(told)]


async def test_a_crash_at_any_commit_costs_no_event_and_doubles_none():
    commits = 0

    def never(number: int, is_before: bool) -> bool:
        nonlocal commits
        commits = max(commits, number)
        return False

    expected = {"orders": [0, 1, 2], "numbers": [0, 1, 2], "after": [2 * EVENTS]}
    assert await life(never) == expected
    for number in range(1, commits + 1):
        for is_before in (True, False):
            found = await life(lambda *place, wanted=(number, is_before): place == wanted)
            assert found == expected, f"crash at commit {number} of {commits}, before: {is_before}"
