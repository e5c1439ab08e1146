from __future__ import annotations

import itertools
import sqlite3

import pytest

from aioflow.core.transitions import (
    RUN_MOVES,
    TASK_MOVES,
    Cause,
    is_legal,
    is_legal_run,
)
from aioflow.model.states import RunState, TaskState
from tests.differing import differing
from tests.net_changes import net_is_reachable, net_is_reachable_run

# Every legal step with its causes. A step that is not in this table is a defect.
LEGAL = """
pending   queued           ready
pending   running          granted
pending   deferred         ready
pending   success          marked
pending   failed           expand marked deadline
pending   upstream_failed  upstream
pending   skipped          upstream expand
pending   cancelled        cancelled
pending   removed          expand
queued    running          granted began
queued    sensing          granted
queued    deferred         granted
queued    retrying         deadline
queued    failed           deadline
queued    skipped          deadline
queued    cancelled        cancelled
running   queued           interrupted recalled
running   sensing          sense
running   deferred         deferred
running   retrying         failed interrupted deadline
running   success          succeeded
running   failed           failed interrupted deadline
running   skipped          skipped failed deadline
running   cancelled        cancelled
sensing   queued           poke_due event interrupted
sensing   running          poke_due event
sensing   deferred         deferred
sensing   retrying         trigger_failed failed interrupted
sensing   success          event succeeded
sensing   failed           deadline trigger_failed failed interrupted event
sensing   skipped          deadline trigger_failed failed skipped event
sensing   cancelled        cancelled
deferred  queued           event deadline
deferred  sensing          trigger_failed
deferred  retrying         trigger_failed deadline event
deferred  success          event
deferred  failed           trigger_failed deadline event
deferred  skipped          event deadline
deferred  cancelled        cancelled
retrying  queued           retry_due
retrying  failed           deadline
retrying  skipped          deadline
retrying  cancelled        cancelled
queued    pending          cleared
running   pending          cleared
sensing   pending          cleared
deferred  pending          cleared
retrying  pending          cleared
success   pending          cleared
failed    pending          cleared
upstream_failed pending          cleared
skipped   pending          cleared
cancelled pending          cleared
removed   pending          cleared
"""
LEGAL_RUN = """
queued   running
queued   cancelled
running  success
running  failed
running  partial
running  cancelled
success  queued
failed   queued
partial  queued
cancelled queued
"""


def _labelled(states):
    return {state.label: state for state in states}


STEPS = {
    (_labelled(TaskState)[was], _labelled(TaskState)[state]): {Cause(name) for name in names}
    for was, state, *names in map(str.split, LEGAL.strip().splitlines())
}
RUN_STEPS = {
    (_labelled(RunState)[was], _labelled(RunState)[state])
    for was, state in map(str.split, LEGAL_RUN.strip().splitlines())
}


def label(state):
    return state.label


def pairs(states):
    """Yield each pair of states, preceded by its name for reports."""
    for was, state in itertools.product(states, states):
        yield f"{was.label} to {state.label}", (was, state)


def test_every_pair_of_task_states():
    expected = {name: (pair in STEPS, STEPS.get(pair)) for name, pair in pairs(TaskState)}
    found = {name: (is_legal(*pair), TASK_MOVES.get(pair)) for name, pair in pairs(TaskState)}

    assert not (rows := differing(found, expected)), rows


def test_every_pair_of_run_states():
    expected = {name: (pair in RUN_STEPS,) * 2 for name, pair in pairs(RunState)}
    found = {name: (is_legal_run(*pair), pair in RUN_MOVES) for name, pair in pairs(RunState)}

    assert not (rows := differing(found, expected)), rows


@pytest.mark.parametrize(
    ("states", "step", "net"),
    [
        pytest.param(TaskState, is_legal, net_is_reachable, id="task"),
        pytest.param(RunState, is_legal_run, net_is_reachable_run, id="run"),
    ],
)
def test_a_net_change_is_what_some_walk_of_legal_steps_comes_to(states, step, net):
    for was in states:
        reached, agenda = set(), [was]
        while agenda:
            state = agenda.pop()
            if state not in reached:
                reached.add(state)
                agenda.extend(
                    after
                    for after in states
                    if step(state, after) and after is not TaskState.PENDING
                )
        if states is TaskState and not was.is_live:
            reached.clear()
        assert {state for state in states if net(was, state)} == reached


@pytest.mark.parametrize("state", TaskState, ids=label)
def test_every_task_state_can_be_come_to_and_every_live_one_left(state):
    assert net_is_reachable(TaskState.PENDING, state)
    ways = {after for after in TaskState if is_legal(state, after)} - {TaskState.PENDING}
    assert bool(ways) is state.is_live


def test_every_live_state_can_be_cancelled():
    for task in filter(lambda state: state.is_live, TaskState):
        assert TASK_MOVES[task, TaskState.CANCELLED] == {Cause.CANCELLED}
    for run in filter(lambda state: state.is_live, RunState):
        assert is_legal_run(run, RunState.CANCELLED)


def test_started_and_ended_tasks_become_pending_only_by_a_clear():
    for was in set(TaskState) - {TaskState.PENDING}:
        assert TASK_MOVES[was, TaskState.PENDING] == {Cause.CLEARED}
    assert not is_legal(TaskState.PENDING, TaskState.PENDING)


def test_every_cause_takes_some_step():
    assert frozenset().union(*TASK_MOVES.values()) == set(Cause)


def test_the_database_can_simulate_the_moves():
    allowed = ", ".join(f"({was:d}, {state:d})" for was, state in TASK_MOVES)
    with sqlite3.connect(":memory:") as database:
        count = database.execute(f"SELECT count(*) FROM (VALUES {allowed})").fetchone()
    database.close()

    assert count == (len(STEPS),)
