"""Invariants of the memory: it matches the rows, and is empty at the end of a seed."""

from __future__ import annotations

from typing import Any

import msgspec

from aioflow.core import outbox
from aioflow.core.runs.restore import restore_run
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance
from aioflow.core.tasks import one_to_one
from aioflow.core.tasks.trigger_rules import Verdict
from aioflow.core.why import explain_task
from aioflow.model.rows import TriggerRow
from aioflow.model.states import RunState, TaskState, TriggerState
from tests.sim import evented, filling, past
from tests.sim.broken import Broken

__all__ = ("memory_is_what_rows_say", "nothing_left", "unfinished")


def memory_is_what_rows_say(node: Any) -> None:
    """Check field by field that a restart would restore the same memory from the rows."""
    fresh = Memory(epoch=0)
    fresh.dag_versions = node.memory.dag_versions
    outbox.begin(fresh, *node.tables.owed())
    unfinished_runs = set(node.tables.unfinished())
    if set(node.memory.runs) != unfinished_runs:
        raise Broken("restore", f"remembered {set(node.memory.runs)}, stored {unfinished_runs}")
    for run_no in sorted(unfinished_runs):
        _same_run(node.memory.runs[run_no], restore_run(node.tables.live_run(run_no), fresh))
    if set(fresh.active_tasks) != set(node.memory.active_tasks):
        raise Broken(
            "restore",
            f"live tasks {set(fresh.active_tasks) ^ set(node.memory.active_tasks)} differ",
        )
    waits = {no for no, wait in node.memory.waits.items() if wait.run.run_no in unfinished_runs}
    if waits != set(fresh.waits):
        raise Broken("restore", f"waits {waits ^ set(fresh.waits)} differ")
    _same_owed(node)
    if (node.memory.dags, node.memory.files) != (node.tables.dags, node.tables.files):
        raise Broken("restore", "the catalog differs")
    past.lines_are_what_rows_say(node)
    evented.memory_is_what_rows_say(node)
    filling.memory_is_what_rows_say(node)


def _same_owed(node: Any) -> None:
    """Check that each outbox row is in memory or counted there.

    Rows that are handed out precede the waiting rows of their kind.
    """
    known, stored = node.memory.outbox, node.tables.outbox
    armed, counts = node.tables.owed()
    if not set(known) <= set(stored) or not {row.outbox_no for row in armed} <= set(known):
        raise Broken("restore", "owed effects differ")
    if set(counts) != set(node.memory.outbox_quotas):
        raise Broken(
            "restore", f"kinds of owed effects: {set(node.memory.outbox_quotas)}, {set(counts)}"
        )
    for kind, quota in node.memory.outbox_quotas.items():
        handed = [number for number in known if known[number][0] == kind]
        rest = [no for no, row in stored.items() if row.kind == kind and no not in known]
        if (quota.in_flight, quota.waiting) != (len(handed), len(rest)):
            raise Broken("restore", f"{kind}: {quota}, in truth {len(handed)} and {len(rest)}")
        if any(number <= quota.after for number in rest):
            raise Broken("restore", f"{kind}: one of {rest} is behind {quota.after}")


def _same_run(run: Run, fresh: Run) -> None:
    _same_clearing(run, fresh)
    is_evaluated = run.state.is_live and run.clearing is None
    counted = ("unfinished", "tallies", "retried", "is_over_budget") if is_evaluated else ()
    for name in ("row", "widths", "source_starts", *counted):
        if getattr(run, name) != getattr(fresh, name):
            raise Broken(
                "restore", f"run {run.run_no} {name}: {getattr(run, name)}, {getattr(fresh, name)}"
            )
    if counted and _judged(run, fresh) != _judged(fresh, fresh):
        raise Broken("restore", f"run {run.run_no} states: {run.states}, {fresh.states}")
    items = [{no: given.count for no, given in each.items.items()} for each in (run, fresh)]
    if items[0] != items[1]:
        raise Broken("restore", f"run {run.run_no} items: {items[0]}, {items[1]}")
    if set(run.groups) != set(fresh.groups):
        raise Broken("restore", f"run {run.run_no} groups differ")
    for task_index, group in run.groups.items():
        for name in (
            *("states", "counts", "unfinished", "first_task_no"),
            *(("is_open", "cursor") if run.clearing is None else ()),
            *(("cut",) if is_evaluated else ()),
        ):
            mine, other = getattr(group, name), getattr(fresh.groups[task_index], name)
            if mine != other:
                raise Broken("restore", f"group {task_index} {name}: {mine}, {other}")
        _same_lockstep(group, fresh.groups[task_index])
    for task_no, task in run.active_tasks.items():
        for name in ("state", "start_no", "try_number", "interruptions", "due_at", "deadline_at"):
            mine, other = getattr(task, name), getattr(fresh.active_tasks[task_no], name)
            if mine != other:
                raise Broken("restore", f"task {task_no} {name}: {mine}, {other}")
        _same_progress(task, fresh.active_tasks[task_no])


def _same_clearing(run: Run, fresh: Run) -> None:
    """Compare the cleared tasks that have a pending row, and the remaining part of the clear."""
    if run.clearing != fresh.clearing:
        raise Broken("restore", f"run {run.run_no} clearing: {run.clearing}, {fresh.clearing}")
    for name in ("cleared", "removed"):
        mine, other = dict(getattr(run, name).items()), dict(getattr(fresh, name).items())
        if mine != other:
            raise Broken("restore", f"run {run.run_no} {name}: {mine}, {other}")


def _same_lockstep(group: MappedTask, fresh: MappedTask) -> None:
    one, other = group.one_to_one, fresh.one_to_one
    if one is None or other is None or group.run.state is not RunState.RUNNING:
        return  # nothing starts any more in a run that has ended
    if group.run.clearing is not None:
        return  # they are counted when the clear is done
    if fresh.run.states[fresh.task_index] != TaskState.RUNNING:
        return  # their task is not evaluated yet
    for index in range(one.evaluated):  # the rest may not have fitted into a turn
        if group.states[index] != TaskState.PENDING:
            continue
        if one.may_start(index) != (one_to_one.child_verdict(fresh, index) is Verdict.RUN):
            raise Broken("restore", f"child {index} of group {group.task_index} may start, or not")


def _same_progress(task: TaskInstance, fresh: TaskInstance) -> None:
    for name in ("recorded", "first_failed", "open_kind"):
        mine, other = getattr(task, name), getattr(fresh, name)
        if mine != other:
            raise Broken("restore", f"task {task.task_no} {name}: {mine}, {other}")
    waits = [
        [_readable(wait.row) for wait in each.waits]
        + [None if each.resumed is None else _readable(each.resumed.row)]
        for each in (task, fresh)
    ]
    if waits[0] != waits[1]:
        raise Broken("restore", f"task {task.task_no} waits for {waits[0]}, {waits[1]}")
    streams = [
        {at: _readable(wait.row) for at, wait in each.streams.items()} for each in (task, fresh)
    ]
    if streams[0] != streams[1]:
        raise Broken("restore", f"task {task.task_no} has streams {streams[0]}, {streams[1]}")
    for mine, other in zip(_handled(task), _handled(fresh), strict=True):
        if list(mine.stream.pending) != list(other.stream.pending):
            raise Broken("restore", f"stream {mine.row.trigger_no} pending")
    for ordinal, wait in task.streams.items():
        names = ("next_sequence", "pending", "pending_bytes", "keys", "last")
        for name in names if wait.state is TriggerState.WAITING else names[:-1]:
            mine, other = (getattr(each.stream, name) for each in (wait, fresh.streams[ordinal]))
            if mine != other:
                raise Broken("restore", f"stream {wait.row.trigger_no} {name}: {mine}, {other}")


def _handled(task: TaskInstance) -> list[Any]:
    known = task.waits if task.resumed is None else (*task.waits, task.resumed)
    return [wait for wait in known if wait.is_handled]


def _readable(row: TriggerRow) -> TriggerRow | None:
    """Return a row without its encrypted part, because a life may lack the key to decrypt it."""
    return msgspec.structs.replace(row, kwargs=None)


def _judged(run: Run, fresh: Run) -> list[int]:
    """Return the states of a run's tasks for comparison.

    Resumed fan-outs that depend on the previous run are left out.
    """
    asked = {
        task_index
        for task_index, group in fresh.groups.items()
        if task_index in run.graph.past and not group.unfinished and not group.is_over
    }
    return [0 if at in asked else _coarse(state) for at, state in enumerate(run.states)]


def _coarse(state: int) -> int:
    """Return the state, or QUEUED for every active one: only the task object distinguishes them."""
    return state if state >= TaskState.SUCCESS or state == TaskState.PENDING else TaskState.QUEUED


# ── in the end ──────────────────────────────────────────────────────────────────────────


def nothing_left(node: Any) -> None:
    """Liveness: check that every run has ended, and that no slot, wait or outbox row is left."""
    memory, slots, tables = node.memory, node.slots, node.tables
    left = {
        "live tasks": set(memory.active_tasks),
        "waits": set(memory.waits),
        "trigger rows": set(tables.triggers),
        "records": set(tables.records),
        "events": set(tables.events),
        "items": {no for no, _ in tables.items if not _is_stream(node, no)},
        "runs": set(memory.runs),
        "kept rooms": slots.pool_holds,
        "busy workers": [w.number for w in slots.all_workers if not w.is_idle],
        "coroutines": slots.running_coroutines,
        "pools": {pool: used for pool, used in slots._used.items() if used},
        "active runs": {dag: count for dag, count in memory.active_runs.items() if count},
        "queued runs": {dag: runs for dag, runs in memory.queued_runs.items() if runs},
    }
    for what, found in left.items():
        if found:
            raise Broken("nothing left", f"{what}: {found}")


def unfinished(node: Any) -> str:
    """Describe everything that is unfinished."""
    lines = []
    for run_no in node.tables.unfinished():
        run = node.memory.runs.get(run_no)
        lines.append(f"run {run_no} {node.tables.runs[run_no].state.label}")
        for task in () if run is None else run.active_tasks.values():
            why = explain_task(run, task.task_index, task.map_index, node.memory, node.slots)
            lines.append(
                f"  {task.name} {task.state.label} worker={task.worker} claimed={task.is_claimed} "
                f"hosted={task.is_hosted} due={task.due_at} deadline={task.deadline_at} {why}"
            )
    return "\n".join(lines[:20])


def _is_stream(node: Any, task_no: int) -> bool:
    row = node.tables.tasks[task_no]
    if node.tables.runs[row.run_no].quarantine is not None:
        return True  # quarantined runs keep their items
    return bool(node.tables.spec_of_run(row.run_no).tasks[row.task_index].streams)
