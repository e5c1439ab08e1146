"""A DAG with thousands of ready tasks does not delay a small DAG of equal priority."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.core.scheduling.ready import STEP_US, Fairness
from aioflow.model.dag import Body, DagSpec, MapSource, MapSpec, TaskSpec
from aioflow.protocol.reports import Succeeded
from tests.core.world import World

SLOTS = 8
WIDTH = 8_000
SMALL = (
    TaskSpec(task_id="a"),
    TaskSpec(task_id="b", parents=(0,)),
    TaskSpec(task_id="c", parents=(1,)),
)


def load(world: World, dag_id: str, *tasks: TaskSpec, **options: Any) -> None:
    spec = DagSpec(dag_id=dag_id, file=f"{dag_id}.py", tasks=tasks, **options)
    world.load(spec, version=f"v-{dag_id}", file=f"{dag_id}.py")


def turn_over(world: World, took_us: int = 50_000) -> None:
    """End the task of every slot."""
    world.now += took_us
    done = [effect.start for effect in world.starts.values() if not effect.claimed]
    for start in done:
        del world.starts[start.task_no]
    world.turn(*(Succeeded(s.task_no, s.start_no, world.now - took_us, world.now) for s in done))


def turnovers_of_a_small_dag(world: World, *tasks: TaskSpec) -> int:
    load(world, "small", *(tasks or SMALL))
    run = world.trigger("small")
    count = 0
    while world.run_state(run) != "success":
        count += 1
        assert count < 50, "it waits for its turn for ever"
        turn_over(world)
    return count


def separate(**fields: Any) -> tuple[TaskSpec, ...]:
    return tuple(TaskSpec(task_id=f"t{i}", **fields) for i in range(WIDTH))


def fan_out(**fields: Any) -> tuple[TaskSpec, ...]:
    return (TaskSpec(task_id="t", mapped=MapSpec((MapSource("x", -1, WIDTH),)), **fields),)


@pytest.mark.parametrize("wide", [separate(), fan_out(), separate(pool="other")])
@pytest.mark.parametrize("ahead", [0, 20])
def test_a_small_dag_is_delayed_by_two_turnovers_at_most(wide, ahead):
    world = World(cpu_slots=SLOTS)
    load(world, "wide", *wide)
    world.trigger("wide")
    for _ in range(ahead):
        turn_over(world)

    assert turnovers_of_a_small_dag(world) <= len(SMALL) + 2


def test_coroutines_take_turns_as_well():
    world = World(async_slots=SLOTS)
    load(world, "wide", *separate(body=Body.COROUTINE))
    world.trigger("wide")
    small = tuple(TaskSpec(task_id=f"c{i}", body=Body.COROUTINE) for i in range(3))

    assert turnovers_of_a_small_dag(world, *small) <= 2


def test_two_wide_dags_share_the_slots():
    world = World(cpu_slots=SLOTS)
    load(world, "one", *separate())
    load(world, "other", *fan_out())
    world.trigger("one")
    world.trigger("other")
    served: Counter[str] = Counter()

    for _ in range(100):
        served.update(effect.info.dag_id for effect in world.starts.values())
        turn_over(world)

    assert abs(served["one"] - served["other"]) <= 2 * SLOTS


def test_short_tasks_count_for_as_much_less_as_they_are_shorter():
    fairness = Fairness()
    line = ("def", "default")
    short = [fairness.turn(line, 2, 0, "short", 500, age) for age in range(100)]
    long = [fairness.turn(line, 2, 0, "long", 900_000, age) for age in range(100, 110)]

    assert sorted([*short, *long])[:22] == [*short[:10], long[0], *short[10:20], long[1]]


def test_short_tasks_of_one_dag_are_claimed_together_though_another_waits():
    world = World(cpu_slots=1)
    for dag_id in ("one", "other"):
        load(world, dag_id, *fan_out())
        world.trigger(dag_id)
    for _ in range(8):  # their duration is learned
        turn_over(world, took_us=100)
        claimed = [effect for effect in world.starts.values() if effect.claimed]
        for effect in claimed:
            effect_start = effect.start
            del world.starts[effect_start.task_no]
            world.now += 100
            world.turn(
                Succeeded(effect_start.task_no, effect_start.start_no, world.now - 100, world.now)
            )

    dags = {effect.info.dag_id for effect in world.starts.values()}
    assert len(dags) == 1
    assert len(world.starts) > 20


def test_short_runs_of_several_files_are_taken_together_file_by_file():
    world = World(cpu_slots=1)
    for dag_id in ("one", "other", "third"):
        load(world, dag_id, TaskSpec(task_id="t"))
        world.trigger(dag_id)
    while world.starts:
        turn_over(world, took_us=100)  # their duration is learned
    load(world, "ahead", TaskSpec(task_id="t"))
    world.trigger("ahead")
    for _ in range(20):
        for dag_id in ("one", "other", "third"):
            world.trigger(dag_id)
    order = []
    while world.starts:
        (first, *_) = world.starts.values()
        order.append(first.info.version)
        del world.starts[first.start.task_no]
        world.now += 100
        world.turn(Succeeded(first.start.task_no, first.start.start_no, world.now - 100, world.now))

    switches = sum(before != after for before, after in pairwise(order))
    assert len(order) == 61
    assert switches == 3


@given(
    arrivals=st.lists(
        st.tuples(
            st.sampled_from("abcdef"),
            st.sampled_from([0, 20, 100, 1_000, 4_000, 50_000]),
            st.integers(0, 4),
        ),
        max_size=200,
    )
)
def test_tasks_taken_together_overtake_an_older_one_for_a_bounded_time(arrivals):
    """The bound holds for any arrivals, and for any number of tasks served in between."""
    fairness, waiting = Fairness(), []
    passed: dict[int, Counter[str]] = {}
    line = ("def", "default")
    costs: dict[int, float] = {}
    for dag_id, cost_us, served in arrivals:
        age = fairness.age()
        costs[age] = min(cost_us or STEP_US, STEP_US)
        waiting.append((fairness.turn(line, 2, 0, dag_id, cost_us, age), age, dag_id))
        for _ in range(min(served, len(waiting))):
            serve(fairness, line, waiting, passed, costs)
    while waiting:
        serve(fairness, line, waiting, passed, costs)

    for by_dag in passed.values():
        assert all(cost_us < 2 * STEP_US for cost_us in by_dag.values())


def serve(fairness, line, waiting, passed, costs):
    """Serve the first task. Add its cost to the work that older tasks of other DAGs wait for."""
    first = min(waiting)
    waiting.remove(first)
    turn, age, dag_id = first
    fairness.served(line, 2, 0, turn, costs[age])
    for other, older, other_dag in waiting:
        if older < age and other >> 80 == turn >> 80 and other_dag != dag_id:
            passed.setdefault(older, Counter())[dag_id] += costs[age]


def test_within_a_dag_the_oldest_goes_first_and_priority_before_all():
    world = World(cpu_slots=1)
    load(world, "wide", *(TaskSpec(task_id=f"t{i}") for i in range(5)))
    load(world, "urgent", TaskSpec(task_id="now", priority=1), TaskSpec(task_id="late"))
    wide = world.trigger("wide")
    urgent = world.trigger("urgent")
    order = []
    while world.starts:
        (effect,) = world.starts.values()
        order.append((effect.start.run_no, world._spec(effect).task_id))
        turn_over(world)

    assert order[:2] == [(wide, "t0"), (urgent, "now")]
    assert [name for run, name in order if run == wide] == [f"t{i}" for i in range(5)]


def test_dags_that_have_no_more_of_a_turn_than_others_are_forgotten():
    fairness = Fairness()
    for number in range(10_000):
        line = ("def", "default")
        turn = fairness.turn(line, 2, 0, f"dag{number}", 0, number)
        fairness.served(line, 2, 0, turn + (10 << 80), 0)

    assert len(fairness._next) < 1_000
