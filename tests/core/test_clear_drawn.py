"""Clear tasks at random moments of a run, drawn from a seed.

The run must still end, and a restart must restore the same memory from its rows.
"""

from __future__ import annotations

import random

import pytest

from aioflow.core.runs.restore import restore_run
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import Run
from aioflow.model.dag import DagSpec, EdgeGroup, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import Failure, TaskState, TriggerRule
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.reports import Failed, Succeeded
from aioflow.protocol.requests import CancelRun, ClearTasks
from tests.core.world import World
from tests.sampling import seeds

ONCE = RetryPolicy(tries=1)
_RULES = (TriggerRule.ALL_SUCCESS, TriggerRule.ALL_SUCCESS, *TriggerRule)


def drawn_dag(rng: random.Random) -> DagSpec:
    """Draw up to eight tasks. Some return lists, some expand over lists, some have a setup."""
    tasks: list[TaskSpec] = []
    for task_index in range(rng.randint(2, 8)):
        parents = tuple(p for p in range(task_index) if rng.random() < 0.4)
        lists = [p for p in parents if tasks[p].feeds_limit or tasks[p].mapped]
        over = rng.choice(lists) if lists and rng.random() < 0.8 else None
        setups = [p for p in parents if tasks[p].is_setup]
        grouped = tuple(p for p in parents if p != over and rng.random() < 0.3)
        tasks.append(
            TaskSpec(
                task_id=f"t{task_index}",
                parents=parents,
                argument_parents=parents,
                rule=rng.choice(_RULES),
                groups=(EdgeGroup(grouped, rng.choice(_RULES)),) if grouped else (),
                retry=ONCE,
                mapped=None if over is None else MapSpec((MapSource("item", over, -1),)),
                feeds_limit=99 if over is None and rng.random() < 0.5 else None,
                window=rng.choice((None, 1, 2)) if over is not None else None,
                is_setup=over is None and rng.random() < 0.15,
                is_teardown=bool(setups) and over is None and rng.random() < 0.5,
            )
        )
    return DagSpec(dag_id="dag", file="dag.py", tasks=tuple(tasks), max_active_runs=1)


def coarse(run: Run) -> list[TaskState]:
    """Return the states of a run's tasks in memory. All active states count as one."""
    active = range(TaskState.QUEUED, TaskState.SUCCESS)
    return [TaskState.RUNNING if state in active else TaskState(state) for state in run.states]


class Drawn:
    """A world in which things happen at random."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(cpu_slots=self.rng.randint(1, 4))
        self.spec = drawn_dag(self.rng)
        self.world.load(self.spec)
        self.runs = [self.world.trigger() for _ in range(2)]
        self.cleared = 0

    def request(self) -> ClearTasks:
        rng = self.rng
        run = rng.choice(self.runs)
        names = [task.task_id for task in self.spec.tasks]
        tasks = tuple(rng.sample(names, rng.randint(1, 2))) if rng.random() < 0.7 else ()
        expansions = self.world.rows.expansions.items()
        expanded = [(names[p], row.width) for (no, p), row in expansions if no == run]
        child = -1
        if expanded and rng.random() < 0.3:
            name, width = rng.choice(expanded)
            tasks, child = (name,), rng.randrange(width)
        return ClearTasks(
            run_id=self.world.rows.runs[run].run_id,
            tasks=tasks,
            map_index=child,
            downstream=rng.random() < 0.5,
            failed=rng.random() < 0.3,
        )

    def happen(self) -> None:
        rng, world = self.rng, self.world
        match rng.choice(("end", "end", "end", "end", "clear", "clear", "cancel", "restart")):
            case "clear":
                if rng.random() < 0.2:
                    world.refuse(RequestReceived(0, self.request()))
                else:
                    cleared, _ = world.ask(self.request())
                    self.cleared += cleared
            case "cancel" if rng.random() < 0.2:
                active = [no for no in self.runs if world.rows.runs[no].ended_at is None]
                for run in active[:1]:
                    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))
            case "restart" if rng.random() < 0.5:
                world.restart()
            case _:
                self.end_one()

    def end_one(self, *, well: bool = False) -> None:
        if not self.world.starts:
            return
        effect = self.world.starts.pop(self.rng.choice(sorted(self.world.starts)))
        start, now = effect.start, self.world.now
        if not well and self.rng.random() < 0.3:
            failure = Failure(type="E", message="no", reason="raised")
            self.world.turn(Failed(start.task_no, start.start_no, now, now, failure))
        elif self.spec.tasks[start.task_index].feeds_limit:
            width = self.rng.randint(0, 4)
            self.world.turn(Succeeded(start.task_no, start.start_no, now, now, size=9, width=width))
        else:
            self.world.turn(Succeeded(start.task_no, start.start_no, now, now))

    def rows_tell_it_all(self) -> None:
        world = self.world
        fresh = Memory(epoch=99)
        fresh.dag_versions = world.memory.dag_versions
        for run_no in world.rows.unfinished():
            read, known = restore_run(world.rows.live_run(run_no), fresh), world.memory.runs[run_no]
            assert read.tallies == known.tallies
            assert (read.unfinished, coarse(read)) == (known.unfinished, coarse(known))
            assert dict(read.cleared.items()) == dict(known.cleared.items())
            assert read.widths == known.widths
            assert read.groups.keys() == known.groups.keys()
            for task_index, group in read.groups.items():
                other = known.groups[task_index]
                assert (group.states, group.counts) == (other.states, other.counts)
                assert (group.cursor, group.unfinished) == (other.cursor, other.unfinished)


def ends_well(drawn: Drawn) -> None:
    """Check that every run ends, whatever has happened, and that no row is left over."""
    for _ in range(60):
        drawn.happen()
        drawn.rows_tell_it_all()
    for _ in range(500):
        drawn.end_one(well=True)

    assert not drawn.world.rows.unfinished()
    assert not drawn.world.memory.runs
    assert TaskState.RUNNING not in {row.state for row in drawn.world.rows.tasks.values()}
    assert not drawn.world.rows.triggers


@pytest.mark.parametrize("seed", seeds(40, nightly=200))
def test_a_run_ends_whatever_is_cleared_of_it(seed):
    ends_well(Drawn(seed))
