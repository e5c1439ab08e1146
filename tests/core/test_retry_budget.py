"""Retry budgets of a run, and of a pool per minute."""

from __future__ import annotations

from typing import Any

import msgspec

from aioflow.core.tasks.retry_budget import BUDGET_EXHAUSTED
from aioflow.model.dag import DagSpec, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.protocol.outbox import Alert
from aioflow.protocol.requests import ClearTasks
from tests.core.world import World

STUBBORN = RetryPolicy(tries=5, delay_us=0, jitter=False)
WIDTH = 6


def storm(budget: int | None, **fields: Any) -> tuple[World, int]:
    """Start a fan-out whose children are about to fail."""
    world = World(cpu_slots=99)
    mapped = MapSpec((MapSource("x", -1, WIDTH),))
    task = TaskSpec(task_id="work", retry=STUBBORN, mapped=mapped, **fields)
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task,), retry_budget=budget))
    return world, world.trigger()


def fail_all(world: World) -> int:
    """Fail all started tasks until no more tasks start. Return how many failures there were."""
    failed = 0
    while world.starts:
        for index in [effect.start.map_index for effect in world.starts.values()]:
            world.fail("work", index)
            failed += 1
        world.pass_time(0)
    return failed


def told(world: World) -> list[tuple[str, str]]:
    alerts = [msgspec.msgpack.decode(found.body, type=Alert) for found in world.alerts()]
    return [(alert.reason, alert.message) for alert in alerts]


def test_a_storm_of_failures_takes_no_more_retries_than_its_run_has():
    world, run = storm(4)

    assert fail_all(world) == WIDTH + 4
    assert world.run_state(run) == "failed"
    assert told(world) == [(BUDGET_EXHAUSTED, "the run has used up its 4 retries")]


def test_a_failure_beyond_the_budget_names_the_budget_and_the_error():
    world, run = storm(0)
    fail_all(world)

    rows = [row for row in world.rows.tasks.values() if row.run_no == run]
    assert {row.failure.reason for row in rows if row.failure is not None} == {BUDGET_EXHAUSTED}
    assert {row.failure.message for row in rows if row.failure is not None} == {
        "no (the run has used up its 0 retries)"
    }
    assert {row.failure.type for row in rows if row.failure is not None} == {"ValueError"}


def test_without_a_budget_every_task_has_all_its_tries():
    world, _ = storm(None)

    assert fail_all(world) == 5 * WIDTH
    assert told(world) == []


def test_a_restart_knows_what_was_spent_and_that_it_was_alerted():
    world, _ = storm(2)
    for index in range(3):
        world.fail("work", index)
    assert len(told(world)) == 1
    world.restart()
    world.pass_time(0)

    assert fail_all(world) == WIDTH - 1
    assert len(told(world)) == 1


def test_a_restart_before_it_is_used_up_gives_nothing_back():
    world, _ = storm(2)
    world.fail("work", 0)
    world.restart()
    world.pass_time(0)

    assert fail_all(world) == WIDTH + 1


def test_clearing_gives_the_retries_of_what_was_cleared_back():
    world, run = storm(3)
    fail_all(world)
    world.ask(ClearTasks(run_id=world.rows.runs[run].run_id))

    assert fail_all(world) == WIDTH + 3
    assert len(told(world)) == 2


def test_the_daemon_says_it_for_dags_that_do_not():
    world, _ = storm(None)
    world.memory.retries_per_run = 1
    assert fail_all(world) == WIDTH + 1

    world, _ = storm(5)
    world.memory.retries_per_run = 1
    assert fail_all(world) == WIDTH + 5


def test_a_pool_has_so_many_retries_a_minute_for_all_runs():
    world, _ = storm(None, pool="bank")
    world.memory.retries_per_pool = 3
    world.trigger()

    assert len(world.starts) == 2 * WIDTH
    assert _fail_each(world) == 2 * WIDTH
    world.pass_time(0)
    assert len(world.starts) == 3
    assert told(world) == [(BUDGET_EXHAUSTED, "pool bank has used up its 3 retries a minute")]

    world.pass_time(61)
    assert _fail_each(world) == 3
    world.pass_time(0)
    assert len(world.starts) == 3
    _fail_each(world)
    assert len(told(world)) == 1


def _fail_each(world: World) -> int:
    indexes = [effect.start.map_index for effect in world.starts.values()]
    for index in indexes:
        world.fail("work", index)
    return len(indexes)


def test_a_pool_that_had_a_calm_minute_is_reported_again():
    world, _ = storm(None, pool="bank")
    world.memory.retries_per_pool = 1
    for minute, failures in enumerate((2, 2, 1, 2)):
        for index in range(failures):
            world.fail("work", index)
        assert len(told(world)) == (1 if minute < 3 else 2)
        world.pass_time(61)
        world.finish_all()
        world.trigger()


def test_other_pools_have_retries_of_their_own():
    world, _ = storm(None, pool="bank")
    world.memory.retries_per_pool = 1
    spec = DagSpec(
        dag_id="other", file="o.py", tasks=(TaskSpec(task_id="alone", retry=STUBBORN, pool="post"),)
    )
    world.load(spec, file="o.py")
    other = world.trigger("other")
    _fail_each_of(world, "work")
    world.fail("alone")

    assert world.state(other, "alone") == "retrying"


def _fail_each_of(world: World, name: str) -> None:
    for index in range(WIDTH):
        world.fail(name, index)
