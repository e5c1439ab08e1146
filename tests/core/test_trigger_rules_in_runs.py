"""Trigger rules in runs whose tasks end in every state and order."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from aioflow.core.tasks.trigger_rules import Verdict
from aioflow.model.dag import EdgeGroup, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import Failure, TriggerRule
from aioflow.protocol.reports import Failed, Skipped, Succeeded
from tests.core.rule_table import RULES, column
from tests.core.world import World
from tests.differing import differing

ONCE = RetryPolicy(tries=1)
SEEN = {
    Verdict.RUN: "running",
    Verdict.WAIT: "pending",
    Verdict.SKIP: "skipped",
    Verdict.UPSTREAM_FAILED: "upstream_failed",
}
WORST_FIRST = "FUSKp"
"""The order in which the table evaluates states that are reached in the same turn."""


def task(name: str, *parents: int, **fields: Any) -> TaskSpec:
    return TaskSpec(task_id=name, parents=parents, retry=ONCE, **fields)


# ── every cell of the table, as a run ───────────────────────────────────────────────────


def judged(parents: str, rule: TriggerRule, **fields: Any) -> str:
    """Return the state of a task in a run after its parents have ended as given."""
    world = World(cpu_slots=9)
    spec: list[TaskSpec] = []
    ends = []
    for number, letter in enumerate(sorted(parents, key=WORST_FIRST.index)):
        if letter == "U":
            spec.append(task(f"before-{number}"))
            ends.append((f"before-{number}", "F"))
            spec.append(task(f"parent-{number}", len(spec) - 1))
        else:
            spec.append(task(f"parent-{number}"))
            ends.append((f"parent-{number}", letter))
    above = [at for at, each in enumerate(spec) if each.task_id.startswith("parent")]
    run = world.begin(*spec, task("end", *above, rule=rule, **fields))
    for name, letter in ends:
        if letter != "p":
            finish(world, name, -1, letter)
    return world.state(run, "end")


def finish(world: World, name: str, map_index: int, letter: str, **fields: Any) -> None:
    """Let a started task end as the letter says."""
    effect = world.started(name, map_index)
    assert effect is not None
    start = world.starts.pop(effect.start.task_no).start
    at = (start.task_no, start.start_no, world.now, world.now + 50)
    failure = Failure(type="ValueError", message="no", reason="raised")
    reports: dict[str, Succeeded | Failed | Skipped] = {
        "S": Succeeded(*at, **fields),
        "F": Failed(*at, failure),
        "K": Skipped(*at),
    }
    world.turn(reports[letter])


@pytest.mark.parametrize("rule", RULES.values())
def test_a_run_does_what_the_table_says(rule):
    expected = {parents: SEEN[verdict] for parents, verdict in column(rule).items()}
    found = {parents: judged(parents, rule) for parents in expected}

    assert not (rows := differing(found, expected)), rows


# ── no order of ends matters ────────────────────────────────────────────────────────────


@st.composite
def dags(draw: st.DrawFn) -> tuple[TaskSpec, ...]:
    """Draw a DAG of up to eight tasks. Some are mapped over a list, some have rules per edge."""
    tasks: list[TaskSpec] = []
    for task_index in range(draw(st.integers(2, 8))):
        above = (
            draw(st.lists(st.integers(0, task_index - 1), max_size=3, unique=True))
            if task_index
            else []
        )
        fields: dict[str, Any] = {"rule": draw(st.sampled_from(TriggerRule))}
        parents = sorted(above)
        if parents and draw(st.integers(0, 3)) == 0:
            cut = draw(st.integers(1, len(parents)))
            rule = draw(st.sampled_from(TriggerRule))
            fields["groups"] = (EdgeGroup(tuple(parents[:cut]), rule),)
        elif parents and draw(st.integers(0, 5)) == 0:
            fields["min_success"] = draw(st.sampled_from((0.0, 0.5, 0.95, 1.0)))
        if parents and draw(st.integers(0, 3)) == 0 and tasks[parents[0]].mapped is None:
            fields["mapped"] = MapSpec((MapSource("x", parents[0], -1),))
            fields["argument_parents"] = (parents[0],)
        tasks.append(task(f"t{task_index}", *parents, **fields))
    return tuple(tasks)


def play(tasks: tuple[TaskSpec, ...], ends: int, order: int) -> tuple[str, dict[Any, str]]:
    """Run the tasks to their end. Return the state of the run, and the states of the tasks.

    Args:
        ends: Seed of how each task ends, and of the length of its list.
        order: Seed of the order in which running tasks end, and of restarts in between.
    """
    world = World(cpu_slots=99)
    run = world.begin(*tasks)
    dice = random.Random(order)
    while world.starts:
        effect = dice.choice(sorted(world.starts.values(), key=lambda e: e.start.task_no))
        start = effect.start
        outcome = random.Random(f"{ends} {start.task_index} {start.map_index}")
        letter, width = outcome.choice("SSSFK"), outcome.randrange(4)
        name = tasks[start.task_index].task_id
        fields = {"body": b"\x90", "size": 1, "width": width} if letter == "S" else {}
        if start.map_index >= 0:
            fields = {}
        finish(world, name, start.map_index, letter, **fields)
        if dice.random() < 0.1:
            world.starts.clear()
            world.restart()
    rows = [row for row in world.rows.tasks.values() if row.run_no == run]
    return world.run_state(run), {(r.task_index, r.map_index): r.state.label for r in rows}


def is_raced(tasks: tuple[TaskSpec, ...], states: dict[Any, str]) -> bool:
    """Return whether a task with ``all_success`` has both a skipped and a failed parent.

    In that case Airflow's table itself depends on the order: a task that was skipped at once, as
    the table says, stays skipped when another parent fails later.
    """
    for spec in tasks:
        asked = [(spec.rule, spec.parents), *((g.rule, g.parents) for g in spec.groups)]
        for rule, parents in asked:
            above = {state for (at, _), state in states.items() if at in parents}
            is_bad = bool(above & {"failed", "upstream_failed"})
            if rule is TriggerRule.ALL_SUCCESS and "skipped" in above and is_bad:
                return True
    return False


def outcome_is_one(tasks: tuple[TaskSpec, ...], ends: int, orders: tuple[int, int]) -> None:
    """Check that two orders of the same ends lead to the same states."""
    (first, states), (second, others) = (play(tasks, ends, order) for order in orders)

    if is_raced(tasks, states) or is_raced(tasks, others):
        event("a skip and a failure race")
        return
    event(first)
    assert (first, states) == (second, others)


in_any_order = given(
    tasks=dags(), ends=st.integers(0, 2**32), orders=st.tuples(st.integers(), st.integers())
)


@in_any_order
@settings(max_examples=100)
def test_the_outcome_does_not_depend_on_who_ends_first(tasks, ends, orders):
    outcome_is_one(tasks, ends, orders)


@pytest.mark.nightly
@in_any_order
@settings(max_examples=1_000)
def test_the_outcome_of_many_dags_does_not_depend_on_who_ends_first(tasks, ends, orders):
    outcome_is_one(tasks, ends, orders)
