"""The journal contains every change, and replaying it detects rows that differ."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from aioflow.core.transitions import TASK_MOVES
from aioflow.model.batch import Batch
from aioflow.model.decisions import DecisionEnd, DecisionVotes
from aioflow.model.history import OF_RUN, HistoryRow, Measure, hour_of
from aioflow.model.rows import RunChange, TriggerChange
from aioflow.model.states import RunState, TaskState, TriggerState
from aioflow.protocol.inputs import LiveRun
from aioflow.store import journal
from tests.journal_replay import compare_with_replay
from tests.store.loading import load
from tests.store.samples import (
    DAG,
    FAILURE,
    NOON,
    NOTE,
    RESULT,
    RUN,
    TASK,
    TRIGGER,
    TRY,
    TRY_WORKER,
    VERSION,
    batch,
    change,
    execute,
    first_batch,
    moved,
)


async def test_a_replay_arrives_at_the_tables(store):
    await store.commit(first_batch())
    await store.commit(
        batch(
            2,
            steps=[(10, TaskState.RETRYING), (10, TaskState.QUEUED)],
            task_changes=[moved(TASK, TaskState.QUEUED, start_no=2, failure=FAILURE)],
            run_changes=[RunChange(1, RunState.RUNNING, RunState.CANCELLED, 1, 2, None)],
            history=[end(RunState.CANCELLED, 2, task_id=OF_RUN)],
            trigger_changes=[TriggerChange(7, TriggerState.WAITING, None, None, None)],
            results=[replace(RESULT, start_no=2, body=b"new")],
            dags=[replace(DAG, paused=True)],
            new_versions=[VERSION],
            gone_files=["etl.py"],
            done_outbox=[3],
            try_workers=[replace(TRY_WORKER, start_no=2)],
            decision_votes=[DecisionVotes(7, 0, b"\x91\xc0", 1)],
            notes=[replace(NOTE, body=b"another"), replace(NOTE, task_index=0)],
        )
    )
    await store.commit(
        batch(
            3,
            decision_ends=[DecisionEnd(7, "answered", b"\xc3", NOON + 9)],
            gone_notes=[NOTE.key],
        )
    )

    assert await compare_with_replay(store) == []


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        pytest.param("UPDATE task SET try_number = 2", "try_number", id="number"),
        pytest.param("UPDATE task SET state = 6", "state", id="state"),
        pytest.param("UPDATE result SET body = NULL", "body", id="result"),
        pytest.param("UPDATE task_trigger SET kwargs = NULL", "kwargs", id="kwargs"),
        pytest.param("UPDATE run SET conf = NULL", "conf", id="conf"),
        pytest.param("UPDATE dag SET paused = 1", "paused", id="dag"),
        pytest.param("DELETE FROM expansion", "expansion", id="expansion-gone"),
        pytest.param("DELETE FROM try", "try", id="try-gone"),
        pytest.param("UPDATE try_worker SET host = 'here'", "try_worker", id="worker"),
        pytest.param("UPDATE decision SET vote_count = 1", "vote_count", id="decision"),
        pytest.param("UPDATE note SET author = 'bert'", "author", id="note"),
        pytest.param("DELETE FROM note", "note", id="note-gone"),
        pytest.param(
            "INSERT INTO history VALUES ('etl', 'b', 0, 0, 4, 1, 0)", "history", id="history-made"
        ),
        pytest.param("INSERT INTO pool VALUES ('p', 1, 0)", "pool", id="pool-made"),
        pytest.param("DELETE FROM journal", "node", id="journal-gone"),
    ],
)
async def test_a_hand_in_the_database_is_noticed(store, store_url, statement, said):
    await store.commit(first_batch())
    execute(store_url, statement)

    differences = await compare_with_replay(store)

    assert differences
    assert said in " ".join(differences)


async def test_steps_alone_are_those_of_the_whole_entry(store):
    await store.commit(first_batch())
    steps = [(TASK.task_no, TaskState.QUEUED), (TASK.task_no, TaskState.RUNNING)]
    await store.commit(batch(2, steps=steps))
    bodies = [journal.unpacked(row.body) for row in await store.read_journal()]

    assert [journal.steps_of(body) for body in bodies] == [
        journal.entry_of(body).steps for body in bodies
    ]
    assert journal.steps_of(bodies[1]) == steps
    with pytest.raises(ValueError, match="damaged"):
        journal.steps_of(b"\xc1")


async def test_a_damaged_journal_row_is_noticed(store, store_url):
    await store.commit(first_batch())
    await store.commit(batch(2, done_outbox=[3]))
    execute(store_url, "UPDATE journal SET body = (SELECT body FROM journal WHERE commit_no = 1)")

    assert any("there already" in fault for fault in await compare_with_replay(store))


async def test_the_end_of_a_task_whose_run_is_not_in_the_journal_is_noticed(store, store_url):
    await store.commit(first_batch())
    await store.commit(batch(2, new_runs=[replace(RUN, run_no=2, run_id="next", key=None)]))
    ended = replace(TASK, run_no=2, task_no=20, state=TaskState.SUCCESS, ended_at=NOON)
    await store.commit(batch(3, new_tasks=[ended]))
    body = "(SELECT body FROM journal WHERE commit_no = 3)"
    execute(store_url, f"UPDATE journal SET body = {body} WHERE commit_no = 2")

    assert any("no such run" in fault for fault in await compare_with_replay(store))


@pytest.mark.parametrize(
    "body", [b"", b"\x01", b"\x09\x90", b"\x02zzz", b"\x01\x92\x90\x91\x01"], ids=repr
)
def test_a_body_that_cannot_be_read_says_so(body):
    with pytest.raises(ValueError, match="journal"):
        journal.decode(body)


async def test_a_step_the_rules_do_not_know_is_noticed(store):
    await store.commit(first_batch())
    await store.commit(
        batch(2, steps=[(10, TaskState.REMOVED)], task_changes=[moved(TASK, TaskState.REMOVED)])
    )

    assert await compare_with_replay(store) == ["commit 2: task 10 steps from running to removed"]


async def test_steps_that_lead_elsewhere_are_noticed(store):
    await store.commit(first_batch())
    await store.commit(
        batch(
            2,
            steps=[(10, TaskState.QUEUED)],
            task_changes=[moved(TASK, TaskState.SUCCESS)],
            history=[end(TaskState.SUCCESS, NOON + 2)],
        )
    )

    assert await compare_with_replay(store) == ["commit 2: task 10 stepped to queued, not success"]


def end(state, at, *, task_id="a", times=1):
    """Return the history row that counts the end of a task or, without a task id, of its run."""
    return HistoryRow(RUN.dag_id, task_id, int(Measure.STATE), hour_of(at), int(state), times, 0)


# ── Random legal batches ────────────────────────────────────────────────────────────────

SEEDS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6)
_numbers = itertools.count(1000, 1000)


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(width=st.integers(1, 12), rounds=st.lists(SEEDS, max_size=8))
async def test_a_restart_reads_what_was_written(store, width, rounds):
    """Each example is one run with random legal moves. All examples share one database."""
    base = next(_numbers)
    number = (await _last_commit(store)) + 1
    run = replace(RUN, run_no=base, run_id=f"r{base}", key=None, first_task_no=base)
    first = replace(TASK, run_no=base, state=TaskState.PENDING, start_no=0)
    tasks = {base + i: replace(first, task_no=base + i, task_index=i) for i in range(width)}
    await store.commit(
        Batch(
            number=number,
            at=NOON,
            new_versions=[VERSION],
            new_runs=[run],
            new_tasks=list(tasks.values()),
        )
    )
    expected = LiveRun(run=run, tasks=[], expansions=[], widths=[], triggers=[])
    for seeds in rounds:
        number += 1
        await store.commit(_round(number, seeds, base, tasks, expected))

    expected.tasks.extend(tasks.values())
    assert await store.load_run(base) == expected
    assert expected in (await load(store)).runs
    assert await compare_with_replay(store) == []


async def _last_commit(store):
    last = 0
    while rows := await store.read_journal(last):
        last = rows[-1].commit_no
    return last


def _round(number, seeds, base, tasks, expected):
    """Return a batch in which some tasks proceed, wait, fail or return. Update ``expected``."""
    made, ended = Batch(number=number, at=NOON + number), Counter()
    for task_no in {base + seed % len(tasks) for seed in seeds}:
        old = tasks[task_no]
        moves = [state for was, state in TASK_MOVES if was == old.state and state]  # no clears
        if not moves:
            continue
        state = moves[(seeds[0] + task_no) % len(moves)]
        new = replace(
            old,
            state=state,
            start_no=old.start_no + (state is TaskState.RUNNING),
            due_at=seeds[0] if state is TaskState.RETRYING else None,
            failure=FAILURE if state is TaskState.FAILED else old.failure,
        )
        tasks[task_no] = new
        made.steps.append((task_no, state))
        made.task_changes.append(change(old, new))
        if not state.is_live and state is not TaskState.REMOVED:
            ended[state] += 1
        if state is TaskState.DEFERRED:
            trigger = replace(
                TRIGGER, trigger_no=task_no * 1000 + number, task_no=task_no, run_no=base
            )
            made.new_triggers.append(trigger)
            expected.triggers.append(trigger)
            expected.triggers.sort(key=lambda row: row.trigger_no)
        if state is TaskState.FAILED:
            made.new_tries.append(replace(TRY, task_no=task_no, run_no=base))
        if state is TaskState.SUCCESS:
            made.results.append(replace(RESULT, task_no=task_no, run_no=base))
            expected.widths.append((task_no, 3))
            expected.widths.sort()
    made.history.extend(end(state, made.at, times=times) for state, times in ended.items())
    return made
