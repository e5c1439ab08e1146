"""``max_active_tis_per_dag`` limits how many instances of a task run at once in all runs."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core.scheduling.ready import TaskConcurrency
from aioflow.model.dag import Body, DagSpec, MapSource, MapSpec, TaskSpec
from aioflow.model.states import WaitKind
from aioflow.protocol.reports import Succeeded
from aioflow.protocol.requests import CancelRun, Explain, SetPool
from tests.core.world import World

BODIES = pytest.mark.parametrize("body", list(Body))


def limited(name: str = "load", at_once: int = 1, **fields: Any) -> TaskSpec:
    return TaskSpec(task_id=name, max_active_tis_per_dag=at_once, **fields)


def runs_of(world: World, count: int, *tasks: TaskSpec, **options: Any) -> list[int]:
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=tasks, **options))
    return [world.trigger() for _ in range(count)]


def running(world: World, runs: list[int], name: str = "load") -> list[int]:
    return [run for run in runs if world.state(run, name) == "running"]


@BODIES
def test_only_so_many_run_at_once_in_all_runs_and_the_oldest_goes_first(body):
    world = World(cpu_slots=9)
    runs = runs_of(world, 5, limited(at_once=2, body=body))

    assert running(world, runs) == runs[:2]
    world.succeed("load")
    assert running(world, runs) == runs[1:3]
    world.finish_all()
    assert {world.run_state(run) for run in runs} == {"success"}


def test_it_says_what_it_waits_for():
    world = World(cpu_slots=9)
    _, second = runs_of(world, 2, limited())

    run_id = world.rows.runs[second].run_id
    why = world.ask(Explain(run_id=run_id, tasks=((0, -1),)))[0, -1]

    assert (why.kind, why.detail) == (WaitKind.LIMIT, "1 at once in all runs of dag")


def test_other_tasks_and_other_dags_do_not_count():
    world = World(cpu_slots=9)
    runs = runs_of(world, 2, limited(), TaskSpec(task_id="free"))
    world.load(DagSpec(dag_id="other", file="o.py", tasks=(limited(),)), file="o.py")

    other = world.trigger("other")

    assert running(world, runs) == runs[:1]
    assert running(world, runs, "free") == runs
    assert world.state(other, "load") == "running"


def test_the_children_of_a_fan_out_count_each():
    world = World(cpu_slots=9)
    mapped = MapSpec((MapSource("x", -1, 4),))
    runs = runs_of(world, 2, limited(at_once=3, mapped=mapped))

    assert len(world.starts) == 3
    world.succeed("load", 0)
    assert len(world.starts) == 3
    world.finish_all()
    assert {world.run_state(run) for run in runs} == {"success"}


def test_a_run_that_was_cancelled_on_its_way_back_lets_the_next_one_go():
    world = World(cpu_slots=9)
    runs = runs_of(world, 3, limited(pool="narrow"))
    world.load(
        DagSpec(dag_id="busy", file="b.py", tasks=(TaskSpec(task_id="b", pool="narrow"),)),
        file="b.py",
    )
    world.ask(SetPool(name="narrow", slots=1))
    world.trigger("busy")
    first = world.starts.pop(world.rows.runs[runs[0]].first_task_no)
    assert first is not None
    world.turn()

    world.ask(CancelRun(run_id=world.rows.runs[runs[0]].run_id))  # "b" takes the pool's only slot
    world.ask(CancelRun(run_id=world.rows.runs[runs[1]].run_id))
    world.finish_all()

    assert world.run_state(runs[2]) == "success"


def test_one_that_its_run_keeps_back_does_not_keep_others_from_the_place():
    world = World(cpu_slots=9)
    tasks = (limited(), TaskSpec(task_id="long", priority=9))
    runs = runs_of(world, 3, *tasks, max_active_tasks=1)
    assert running(world, runs, "long") == runs

    for run in runs[1:]:  # the first one runs for long, so that its "load" waits for it
        start = world.starts.pop(world.rows.runs[run].first_task_no + 1).start
        world.turn(Succeeded(start.task_no, start.start_no, world.now, world.now))

    assert len(running(world, runs)) == 1
    world.succeed("load")
    assert len(running(world, runs)) == 1
    world.finish_all()
    assert {world.run_state(run) for run in runs} == {"success"}


def test_a_restart_and_a_turn_taken_back_count_the_same():
    world = World(cpu_slots=9)
    runs = runs_of(world, 4, limited(at_once=2))

    world.restart()
    assert running(world, runs) == runs[:2]
    world.refuse()
    assert running(world, runs) == runs[:2]
    world.finish_all()
    assert {world.run_state(run) for run in runs} == {"success"}


def test_each_run_asks_for_the_limit_of_its_own_version():
    world = World(cpu_slots=9)
    (first,) = runs_of(world, 1, limited())
    world.load(
        DagSpec(dag_id="dag", file="dag.py", tasks=(limited(at_once=2, pool="p"),)), version="v2"
    )

    second, third = world.trigger(), world.trigger()

    assert running(world, [first, second, third]) == [first, second]
    world.finish_all()
    assert world.run_state(third) == "success"


def test_tasks_that_wait_for_the_limit_cost_one_entry_per_end():
    world = World(cpu_slots=9)
    runs = runs_of(world, 400, limited(at_once=2), max_active_runs=400)
    looked_at = []
    while world.starts:
        world.succeed("load")
        looked_at.append(sum(len(queue) for queue in world.slots.ready._queues.values()))

    assert max(looked_at) <= 2
    assert {world.run_state(run) for run in runs} == {"success"}
    assert not world.slots.ready.across._blocked


def test_one_that_has_its_room_does_not_stand_behind_one_that_came_back_and_waits_for_it():
    world = World()
    runs = runs_of(world, 4, limited())
    lives = [world.memory.active_tasks[world.memory.runs[run_no].task_no(0, -1)] for run_no in runs]
    across = TaskConcurrency(lambda _: True)
    kept, begun, fresh, later = (
        (0, 0, 7, lives[0]),
        (1, 0, 5, lives[1]),
        (2, 0, 1, lives[2]),
        lives[3],
    )
    across.block(fresh)
    across.block((2, 0, 9, later))
    assert list(across.next_admitted()) == [fresh]
    assert list(across.next_admitted()) == []

    across.block(begun)
    across.block(kept)
    assert list(across.next_admitted()) == [kept]
    assert list(across.next_admitted()) == []
    across.passed(kept[3])
    assert list(across.next_admitted()) == [begun]
