"""Wide mapped tasks: a turn evaluates at most as many children as fit into its batch."""

from __future__ import annotations

import pytest

from aioflow.core import transaction
from aioflow.core.runs import progress as run_steps
from aioflow.model.states import TaskState
from aioflow.protocol.reports import Succeeded
from aioflow.protocol.requests import Mark
from tests.core.test_clear_slices import Sliced
from tests.core.test_one_to_one import over, task
from tests.core.world import World


class Evaluating:
    """A world that counts how many children each turn evaluates for the first time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
        monkeypatch.setattr(run_steps, "EVALUATED_CHILDREN", limit)
        self.world = World(cpu_slots=2)
        self.turns: list[int] = []
        decide = self.world.decide

        def counted(inputs):
            batch, effects, tx = decide(inputs)
            self.turns.append(tx.evaluated)
            return batch, effects, tx

        monkeypatch.setattr(self.world, "decide", counted)

    def begin(self, width: int) -> int:
        run = self.world.begin(
            task("list", feeds_limit=99),
            task("a", 0, mapped=over(0)),
            task("b", 1, mapped=over(1)),
        )
        self.world.succeed("list", size=9, width=width)
        return run


def test_a_wide_follower_is_evaluated_over_several_turns_when_it_expands(monkeypatch):
    evaluating = Evaluating(monkeypatch, 3)
    run = evaluating.begin(10)

    assert max(evaluating.turns) == 3
    assert sum(evaluating.turns) == 10
    evaluating.world.finish_all()
    assert evaluating.world.run_state(run) == "success"


@pytest.mark.parametrize("crash_after", [None, 0, 1, 2, 3])
def test_a_wide_follower_that_is_cleared_is_evaluated_over_several_turns(monkeypatch, crash_after):
    evaluating = Evaluating(monkeypatch, 3)
    run = evaluating.begin(10)
    world = evaluating.world
    world.finish_all()
    evaluating.turns.clear()
    sliced = Sliced(world, run)
    sliced.ask(tasks=("b",))
    sliced.clear_all()

    sliced.go_on_over(crash_after)

    assert max(evaluating.turns) <= 3
    sliced.finish_all()
    assert world.run_state(run) == "success"
    assert not world.rows.outbox


def test_ends_during_the_evaluation_are_seen_by_children_evaluated_later(monkeypatch):
    evaluating = Evaluating(monkeypatch, 3)
    run = evaluating.begin(10)
    world = evaluating.world
    world.finish_all()
    sliced = Sliced(world, run)
    sliced.ask(tasks=("a", "b"))
    sliced.clear_all()

    for _ in range(20):
        if world.starts:
            sliced.turn(ends_first(world))
        sliced.go_on()
    sliced.go_on_to_the_end()
    sliced.finish_all()

    assert world.run_state(run) == "success"


def half_done(evaluating: Evaluating) -> int:
    """Start ten children, each with a follower, and end some so that their followers may start."""
    run = evaluating.begin(10)
    for _ in range(6):
        evaluating.world.turn(ends_first(evaluating.world))
    evaluating.turns.clear()
    return run


def ends_first(world: World) -> Succeeded:
    """Return the report that the first running task has succeeded."""
    start = world.starts.pop(min(world.starts)).start
    return Succeeded(start.task_no, start.start_no, world.now, world.now + 5)


def test_a_wide_follower_that_a_restart_finds_is_evaluated_over_several_turns(monkeypatch):
    evaluating = Evaluating(monkeypatch, 3)
    run = half_done(evaluating)

    evaluating.world.restart()

    assert max(evaluating.turns) == 3
    assert sum(evaluating.turns) == 10
    evaluating.world.finish_all()
    assert evaluating.world.run_state(run) == "success"


def test_a_wide_follower_whose_turn_is_taken_back_is_evaluated_over_several_turns(monkeypatch):
    evaluating = Evaluating(monkeypatch, 3)
    run = half_done(evaluating)
    world = evaluating.world

    world.refuse(ends_first(world))

    assert max(evaluating.turns) == 3
    assert sum(evaluating.turns) == 10
    world.finish_all()
    assert world.run_state(run) == "success"


@pytest.mark.parametrize("crash_after", [None, 0, 1, 2])
def test_children_that_will_not_run_again_end_a_batch_at_a_time(monkeypatch, crash_after):
    monkeypatch.setattr(transaction, "BATCH_ROWS", 3)
    world = World(cpu_slots=2)
    run = world.begin(
        task("list", feeds_limit=99),
        task("gate"),
        task("a", 0, 1, mapped=over(0)),
    )
    world.succeed("list", size=9, width=10)
    world.finish_all()
    run_id = world.rows.runs[run].run_id
    world.ask(Mark(run_id=run_id, state=TaskState.FAILED, tasks=("gate",)))
    sliced = Sliced(world, run)
    sliced.ask(tasks=("a",))
    sliced.clear_all()

    sliced.go_on_over(crash_after)

    steps = [batch.steps for batch in sliced.batches]
    ended = [[s for _, s in of].count(TaskState.UPSTREAM_FAILED) for of in steps]
    assert max(ended) <= 4
    assert [world.state(run, "a", index) for index in range(10)] == ["upstream_failed"] * 10
    assert world.run_state(run) == "failed"
