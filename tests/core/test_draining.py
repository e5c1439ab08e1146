"""A drained node starts no task and assigns no trigger, even after a restart. Running tasks end."""

from __future__ import annotations

from aioflow.model.dag import TaskSpec
from aioflow.protocol.effects import AssignTrigger, RecallTries, StartTry
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.reports import Deferred
from aioflow.protocol.requests import DrainNode, Explain
from tests.core.world import World


def drain(world: World, *, drained: bool = True) -> bool:
    said: bool = world.ask(DrainNode(node_no=1, is_drained=drained))
    return said


def effects_of(world: World, kind: type) -> list:
    return [effect for effect in world.effects if isinstance(effect, kind)]


def test_running_tasks_end_and_none_starts_until_the_node_is_undrained():
    world = World()
    run = world.begin(TaskSpec(task_id="a"), TaskSpec(task_id="b", parents=(0,)))
    assert drain(world)

    world.succeed("a")
    assert world.state(run, "b") == "queued"
    assert not world.starts

    drain(world, drained=False)
    assert world.started("b") is not None
    world.succeed("b")
    assert world.run_state(run) == "success"


def test_to_drain_a_drained_node_changes_nothing():
    world = World()

    assert [drain(world), drain(world), drain(world, drained=False)] == [True, False, True]
    assert sum(bool(batch.drained) for batch in world.batches) == 2


def test_another_node_is_drained_by_its_row_alone():
    world = World()
    world.ask(DrainNode(node_no=2, is_drained=True))
    assert [node_no for batch in world.batches for node_no, _ in batch.drained] == [2]
    assert not world.memory.is_drained


def test_no_further_trigger_is_hosted_until_the_node_takes_work_again():
    world = World()
    run = world.begin(TaskSpec(task_id="a"))
    drain(world)
    start = world.starts.pop(next(iter(world.starts))).start
    world.turn(
        Deferred(start.task_no, start.start_no, world.now, world.now, "m:T", b"\x80", "next")
    )
    assert world.state(run, "a") == "deferred"
    assert not effects_of(world, AssignTrigger)
    wait = world.ask(Explain(run_id=world.memory.runs[run].row.run_id, tasks=((0, -1),)))
    assert "drained" in wait[0, -1].detail

    drain(world, drained=False)
    assert len(effects_of(world, AssignTrigger)) == 1


def test_a_restart_finds_the_node_drained():
    world = World()
    drain(world)
    run = world.begin(TaskSpec(task_id="a"))

    world.restart()

    assert world.memory.is_drained
    assert world.state(run, "a") == "queued"
    assert not effects_of(world, StartTry)
    drain(world, drained=False)
    assert world.started("a") is not None


def test_tries_sent_in_advance_are_recalled():
    world = World(cpu_slots=1)
    world.begin(TaskSpec(task_id="first"))
    world.succeed("first")  # now the duration of one is known
    world.trigger()
    world.trigger()
    claimed = [worker for worker in world.slots.workers if worker.claims]
    drain(world)

    assert bool(effects_of(world, RecallTries)) == bool(claimed)


def test_a_turn_that_is_taken_back_leaves_the_node_as_it_was():
    world = World()
    world.load()
    _, _, tx = world.decide([RequestReceived(99, DrainNode(node_no=1, is_drained=True))])
    assert world.memory.is_drained
    world.take_back(tx)

    assert not world.memory.is_drained
