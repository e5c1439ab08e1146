"""A node that is restored from its rows ends in the same state as one that never stopped."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.errors import BadConf
from aioflow.model.dag import Body, DagSpec, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import TriggerRule
from aioflow.protocol.effects import AssignTrigger
from aioflow.protocol.reports import Deferred, Succeeded, TaskStarted, TriggerEnded, TriggerFired
from aioflow.protocol.requests import CancelRun, CreateRun, SetPool, ShowPools
from tests.core.specs import task
from tests.core.world import SECOND, World

ONCE = RetryPolicy(tries=1)


def fan(width_limit: int = 99, **fields: Any) -> tuple[TaskSpec, ...]:
    over = MapSpec(sources=(MapSource("item", 0, -1),))
    return (
        task("list", feeds_limit=width_limit),
        task("work", 0, mapped=over, map_limit=width_limit, **fields),
        task("sum", 1),
    )


@pytest.mark.parametrize("done", range(6))
@pytest.mark.parametrize("body", [Body.FUNCTION, Body.COROUTINE])
def test_a_fan_out_interrupted_anywhere_reaches_its_join_once(done, body):
    world = World(cpu_slots=2)
    run = world.begin(*fan(body=body))
    world.succeed("list", size=9, width=5)

    def restart() -> None:
        world.restart()
        while world.memory.trial is not None and world.memory.trial.groups:
            world.pass_time(1)  # it has died before: not all of them begin at once

    for index in range(done):
        world.succeed("work", index)
        restart()
    restart()

    seen: dict[str, int] = {}
    while world.starts:
        effect = next(iter(world.starts.values()))
        name = world._spec(effect).task_id
        seen[name] = seen.get(name, 0) + 1
        world.succeed(name, effect.start.map_index)

    assert seen == ({"work": 5 - done, "sum": 1} if done < 5 else {"sum": 1})
    assert world.run_state(run) == "success"
    assert len(world.rows.expansions) == 1


def test_a_fan_in_counts_failed_children_from_before_the_restart():
    world = World(cpu_slots=9)
    run = world.begin(
        task("list", feeds_limit=9),
        task(
            "work",
            0,
            mapped=MapSpec(sources=(MapSource("x", 0, -1),)),
            retry=ONCE,
        ),
        task("sum", 1, rule=TriggerRule.ALL_DONE),
    )
    world.succeed("list", size=9, width=3)
    world.fail("work", 0)
    world.restart()
    world.succeed("work", 1)
    assert world.started("sum") is None
    world.restart()
    world.succeed("work", 2)

    world.succeed("sum")

    assert world.run_state(run) == "partial"


def test_a_parent_that_never_started_is_counted_after_a_restart():
    world = World()
    run = world.begin(
        task("a", retry=ONCE),
        task("b", 0),
        task("c"),
        task("d", 1, 2, rule=TriggerRule.ALL_DONE),
    )
    world.fail("a")
    assert world.state(run, "b") == "upstream_failed"

    world.restart()
    world.succeed("c")

    assert world.started("d") is not None


def test_a_retry_keeps_its_number_and_its_instant_over_a_restart():
    world = World()
    world.begin(task("a", retry=RetryPolicy(tries=3, delay_us=10 * SECOND, jitter=False)))
    world.fail("a")
    world.pass_time(11)
    world.fail("a")
    world.restart()

    world.pass_time(15)
    assert world.started("a") is None  # the second delay is twice the first
    world.pass_time(6)

    assert world.started("a").start.try_number == 3


def test_the_deadline_of_a_wait_outlives_a_restart():
    world = World()
    run = world.begin(task("wait", retry=ONCE))
    start = world.starts.pop(world.started("wait").start.task_no).start
    world.turn(
        Deferred(
            start.task_no,
            start.start_no,
            world.now,
            world.now,
            "m:T",
            b"\x80",
            "next",
            timeout_us=60 * SECOND,
        )
    )
    world.pass_time(20)
    world.restart()

    world.pass_time(41)

    assert world.state(run, "wait") == "failed"


def pool_use(world: World) -> int:
    ((_, used),) = world.ask(ShowPools())
    return used


@pytest.mark.parametrize("body", [Body.FUNCTION, Body.COROUTINE])
def test_a_pool_is_given_back_whatever_becomes_of_a_task(body):
    world = World(cpu_slots=4)
    world.ask(SetPool(name="ledger", slots=4))
    retry = RetryPolicy(tries=2, delay_us=0, jitter=False)
    fields: Any = {"pool": "ledger", "slots": 2, "body": body, "retry": retry}
    run = world.begin(task("a", **fields), task("b", **fields), task("c", **fields))
    assert pool_use(world) == 4

    world.fail("a")
    assert pool_use(world) == 4  # the third took its slot
    world.succeed("b")
    world.pass_time(1)
    assert pool_use(world) == 4
    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    assert pool_use(world) == 0


def test_a_deferred_task_gives_its_pool_back_and_takes_it_again():
    world = World()
    world.ask(SetPool(name="ledger", slots=1))
    world.begin(task("wait", pool="ledger"))
    start = world.starts.pop(world.started("wait").start.task_no).start
    world.turn(
        Deferred(start.task_no, start.start_no, world.now, world.now, "m:T", b"\x80", "next")
    )
    assert pool_use(world) == 0
    host = next(e for e in world.effects if isinstance(e, AssignTrigger)).host
    world.turn(TriggerFired(host.trigger_no, host.assignment_id, 0, world.now, b"\x01"))
    assert pool_use(world) == 1

    world.succeed("wait")
    world.turn(TriggerEnded(host.trigger_no, host.assignment_id, world.now))

    assert pool_use(world) == 0


def test_a_refused_turn_leaves_pools_as_they_were():
    world = World(cpu_slots=4)
    world.ask(SetPool(name="ledger", slots=9))
    world.begin(*(task(f"t{i}", pool="ledger", slots=2) for i in range(3)))
    start = world.started("t0").start
    before = pool_use(world)

    _, _, tx = world.decide([Succeeded(start.task_no, start.start_no, 1, 2)])
    world.take_back(tx)

    assert pool_use(world) == before == 6


def test_a_claim_never_crosses_into_another_pool():
    world = World(cpu_slots=1)
    world.ask(SetPool(name="one", slots=1))
    world.ask(SetPool(name="two", slots=1))
    over = MapSpec(sources=(MapSource("item", 0, -1),))
    world.begin(
        task("list", feeds_limit=99),
        task("a", 0, mapped=over, pool="one"),
        task("b", 0, mapped=over, pool="two"),
    )
    world.succeed("list", size=9, width=6)
    worker, pools = world.slots.workers[0], set()
    while worker.current is not None:
        assert {task.spec.pool for task in worker.claims} <= {worker.pool}
        pools.add(worker.pool)
        world.succeed(worker.current.spec.task_id, worker.current.map_index)
        if worker.current is None and worker.claims:
            begins = worker.claims[0]
            world.turn(TaskStarted(begins.task_no, begins.start_no, world.now))

    assert pools == {"one", "two"}
    assert not world.memory.runs


def test_a_conf_that_cannot_be_read_is_answered_as_such():
    world = World()
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task("a"),)))

    with pytest.raises(BadConf):
        world.ask(CreateRun(dag_id="dag", conf=b"\xc1"))
