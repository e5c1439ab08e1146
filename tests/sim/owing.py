"""Callbacks: how they are drawn into DAGs, and their invariant.

I20 of ``tests.sim.invariants``: an event of a task or run adds its callback to the outbox in the
same commit, once, and nothing else adds one; only stored rows are handed out; and no row is deleted
before it was handed out. L3: an outbox row waits only behind rows that are handed out.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec

from aioflow.core.state import outbox_quota
from aioflow.model.dag import CallbackSpec, DagSpec
from aioflow.model.states import RunState, TaskState
from aioflow.protocol.effects import DeliverOutbox
from aioflow.protocol.outbox import ENGINE_KINDS, Callback, is_callback
from tests.sim.broken import Broken
from tests.sim.operating import is_marked

__all__ = ("hold", "perhaps_called", "what_is_owed_is_read")

_EVENTS = {
    TaskState.SUCCESS: "success",
    TaskState.FAILED: "failure",
    TaskState.RETRYING: "retry",
    TaskState.SKIPPED: "skip",
}
_RUN_EVENTS = {
    RunState.SUCCESS: "success",
    RunState.FAILED: "failure",
    RunState.PARTIAL: "failure",
}


def perhaps_called(dags: list[DagSpec], seed: int) -> list[DagSpec]:
    """Return the DAGs, in some seeds with callbacks for some events of tasks and runs."""
    rng = random.Random(f"callbacks {seed}")
    return [_called(dag, rng) for dag in dags] if rng.random() < 0.5 else dags


def _called(spec: DagSpec, rng: random.Random) -> DagSpec:
    tasks = tuple(msgspec.structs.replace(task, callbacks=_drawn(rng)) for task in spec.tasks)
    return msgspec.structs.replace(spec, tasks=tasks, callbacks=_drawn(rng))


def _drawn(rng: random.Random) -> CallbackSpec | None:
    events = ("success", "failure", "retry", "skip", "deadline")
    drawn = tuple(event for event in events if rng.random() < 0.4)
    return CallbackSpec(events=drawn) if drawn else None


def hold(node: Any, turn: Any) -> None:
    """I20: check a commit."""
    batch, tables = turn.batch, node.tables
    called = [
        msgspec.msgpack.decode(row.body, type=Callback)
        for row in batch.new_outbox
        if is_callback(row.kind)
    ]
    rows = Counter((c.task_no, c.event) for c in called if c.task_index >= 0)
    runs = Counter((c.run_no, c.event) for c in called if c.task_index < 0)
    for counted in (rows, runs):  # a deadline is no transition
        for key in [key for key in counted if key[1] == "deadline"]:
            del counted[key]
    for run_no, event in [*runs]:
        if event in _said(node, run_no) or (run_no, event) in _as_before(node):
            del runs[run_no, event]  # possibly of another end than the marked one
    if rows != _of_tasks(node, batch) or runs != _of_runs(node, turn):
        raise Broken("I20 owed", f"owed {rows} and {runs} for {batch.steps}, {batch.run_changes}")
    for effect in turn.effects:
        if isinstance(effect, DeliverOutbox):
            row = tables.outbox.get(effect.outbox_no)
            if row is None or (row.kind, row.body) != (effect.kind, effect.body):
                raise Broken("I20 owed", f"{effect} is handed out, stored is {row}")
            node.ledger.handed.add(effect.outbox_no)
    for number in batch.done_outbox:
        if tables.was_owed[number] not in ENGINE_KINDS and number not in node.ledger.handed:
            raise Broken("I20 owed", f"row {number} is gone, and nobody was told to do it")


def what_is_owed_is_read(node: Any) -> None:
    """Check L3: without pending inputs, rows are read when half of the window is free."""
    handed = Counter(kind for kind, _ in node.memory.outbox.values())
    stored = Counter(row.kind for row in node.tables.outbox.values())
    for kind, count in stored.items():
        quota = node.memory.outbox_quotas.get(kind)
        is_read = kind in ENGINE_KINDS or (quota is not None and quota.is_reading)
        if count > handed[kind] <= outbox_quota.WINDOW // 2 and not is_read:
            raise Broken("L3 progress", f"{count} of {kind} are owed, {handed[kind]} handed out")


def _of_tasks(node: Any, batch: Any) -> Counter[tuple[int, str]]:
    """Return the callbacks that the steps of a batch must cause."""
    found: Counter[tuple[int, str]] = Counter()
    for task_no, state in batch.steps:
        row = node.tables.tasks[task_no]
        callbacks = node.tables.spec_of_run(row.run_no).tasks[row.task_index].callbacks
        event = _EVENTS.get(state, "")
        is_unstarted = state is TaskState.SKIPPED and not row.try_number
        is_reported = not is_unstarted and not (is_marked(row) and state is row.state)
        if callbacks is not None and event in callbacks.events and is_reported:
            found[task_no, event] += 1
    return found


def _of_runs(node: Any, turn: Any) -> Counter[tuple[int, str]]:
    found: Counter[tuple[int, str]] = Counter()
    ends = [
        (one.run_no, one.state)
        for one in turn.batch.run_changes
        if one.state is not one.was
        or (one.run_no in turn.before.over and one.ended_at is not None)  # it has ended once more
    ]
    ends += [(row.run_no, row.state) for row in turn.batch.new_runs]  # a run may end as it starts
    stays = _as_before(node)
    for run_no, state in ends:
        if (run_no, _RUN_EVENTS.get(state, "")) in stays:
            continue
        callbacks = node.tables.spec_of_run(run_no).callbacks
        event = _RUN_EVENTS.get(state, "")
        if event in _said(node, run_no):
            continue  # marked by a client, which causes no callback
        if callbacks is not None and event in callbacks.events:
            found[run_no, event] += 1
    return found


def _as_before(node: Any) -> set[tuple[int, str]]:
    """Return the ends that marked runs had before they were marked.

    Whether an equal end causes a callback again depends on details, so it is not checked.
    """
    marked = ((owed.run_no, owed.mark) for owed in node.tables.just_marked)
    return {
        (run_no, _RUN_EVENTS.get(mark.ended[0], ""))
        for run_no, mark in marked
        if mark is not None and mark.ended is not None
    }


def _said(node: Any, run_no: int) -> set[str]:
    """Return the events of a run that were caused by marks."""
    said = node.tables.said[node.tables.run_ids[run_no]]
    return {_RUN_EVENTS[state] for state in said}
