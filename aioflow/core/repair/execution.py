"""Execution of clears and marks, slice by slice. The run is suspended until all slices are done.

A cleared task is pending, and its row contains the number of its last start. Its result, records
and waits are deleted; its tries stay visible. A cleared mapped task and its children keep their
number of children and their row numbers, unless the task's input is cleared as well. In that case
the children become ``removed``, and the task is expanded again with new children.

A marked task ends in the requested state, and decisions that followed from its earlier end are
cleared, see ``mark``. Then running tasks that their trigger rule no longer allows to run are
stopped, see ``mark_apply``.

The progress is derived from the states of the tasks, so it continues where it stopped after a
restart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice, takewhile
from typing import Final, NamedTuple

from aioflow.core.repair import mark_apply, selection
from aioflow.core.repair.reset import dissolve, ended, remove, renewed, reset_task, stopped
from aioflow.core.repair.selection import FAILED, skipped_children
from aioflow.core.runs import deadlines, run_queue, version_upgrade
from aioflow.core.runs.iterations import reopen_loops
from aioflow.core.runs.progress import resume
from aioflow.core.runs.run_outcome import outcome
from aioflow.core.runs.task_counts import recount, retally
from aioflow.core.state.graph import DagVersion
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance, is_under_way
from aioflow.core.tasks import retry_budget, stream_expand
from aioflow.core.tasks.readiness import fresh
from aioflow.core.transaction import Transaction
from aioflow.model.ids import TaskNo
from aioflow.model.states import RunState, TaskState
from aioflow.protocol.outbox import Clearing

__all__ = (
    "SLICE_TASKS",
    "begin",
    "begin_mark",
    "count",
    "drop_selection",
    "execute_slice",
    "needed",
    "suspend",
    "undecided",
    "under_way",
)

SLICE_TASKS = 1_500
"""Maximum number of tasks that are cleared or marked in one turn.

For each task, the rows of the task, its tries and its result may change.
"""


def _but(*states: TaskState) -> re.Pattern[bytes]:
    return re.compile(b"[^" + re.escape(bytes(states)) + b"]")


def _of(*states: TaskState) -> re.Pattern[bytes]:
    return re.compile(b"[" + re.escape(bytes(states)) + b"]")


_BEGUN: Final = _but(TaskState.PENDING)
_PRESENT: Final = _but(TaskState.PENDING, TaskState.REMOVED)
_FAILED: Final = _of(*FAILED)
_UNRUN: Final = _of(TaskState.UPSTREAM_FAILED, TaskState.SKIPPED)
_OTHERS: Final = {state: _but(state) for state in (TaskState.SUCCESS, TaskState.FAILED)}


class _Target(NamedTuple):
    """A task that is still to be cleared or marked."""

    task_no: TaskNo
    task_index: int
    map_index: int
    state: TaskState
    is_marked: bool = False


def count(run: Run, chosen: Clearing) -> int:
    """Return how many tasks a clear resets."""
    total = sum(_is_begun(run, chosen, task_index) for task_index in chosen.whole)
    for task_index, group in run.groups.items():
        if task_index in chosen.whole:
            stay = (TaskState.PENDING, TaskState.REMOVED)[: 1 + (task_index in chosen.reexpanded)]
            total += group.width - sum(group.counts[state] for state in stay)
            total -= sum(byte.bit_count() for byte in _spared(chosen, task_index))
        elif task_index in chosen.failed:
            total += sum(group.counts[state] for state in FAILED)
        else:
            total += sum(1 for _ in _indexes(group, chosen, task_index))
    return total


def undecided(run: Run) -> Iterable[TaskNo]:
    """Return the tasks whose rows are needed to decide which tasks a request resets.

    These are the unmapped tasks that have ended, the removed tasks, and ``skipped_children``.
    """
    first = run.row.first_task_no
    ended = (at for at, state in enumerate(run.states) if state >= TaskState.SUCCESS)
    whole = (first + at for at in ended if at not in run.groups)
    return [*whole, *run.removed, *skipped_children(run)]


def needed(run: Run) -> Iterable[TaskNo]:
    """Return the tasks whose rows the next slice needs."""
    return [target.task_no for target in _next(run) if target.state >= TaskState.SUCCESS]


def under_way(run: Run, chosen: Clearing) -> list[_Target]:
    """Return the selected tasks that are in progress."""
    targets = chain(_unmapped_targets(run, chosen), _children(run, chosen))
    return [target for target in targets if is_under_way(target.state)]


def begin(run: Run, tx: Transaction, *, dag_version: DagVersion | None = None) -> None:
    """Clear the first slice of the selected unmapped tasks. Later turns clear the rest.

    Unmapped tasks come first, so that their effects on other tasks are undone before anything else
    is decided.

    Args:
        dag_version: The version to which the run is moved once none of its tasks is in progress.
    """
    chosen = run.clearing
    assert chosen is not None  # noqa: S101 - the caller still holds it
    _step_back(run, tx)
    if dag_version is not None:
        _clear(run, under_way(run, chosen), tx)
        version_upgrade.move(run, dag_version, tx)
    _clear(run, list(islice(_unmapped_targets(run, chosen), SLICE_TASKS)), tx)
    tx.postpone(run)


def suspend(run: Run, chosen: Clearing, tx: Transaction) -> None:
    """Suspend a run until all selected tasks are done. If it had ended, return it to memory."""
    memory = tx.memory
    selection.suspend_run(run, chosen, tx)
    if run.row.ended_at is not None:
        memory.touch(run.row.run_id)
        memory.dag_versions.setdefault((run.row.version, run.row.dag_id), run.dag_version)
        memory.add_run(run)
        for wait in memory.waits.objects.values():
            if wait.run.run_no == run.run_no:
                wait.run = run  # its host has not released the trigger yet


def _step_back(run: Run, tx: Transaction) -> None:
    """Take a run out of its ended or queued state until all selected tasks are done."""
    mark = None if run.clearing is None else run.clearing.mark
    if run.row.ended_at is None:
        if run.state is RunState.QUEUED:
            run_queue.leave_queue(run, tx)
    elif mark is not None and mark.is_cut_short:
        tx.clear_end_time(run)
    else:
        tx.reopen_run(run)


def begin_mark(run: Run, tx: Transaction) -> None:
    """Execute the first slice of a mark. A small mark is completed in this turn."""
    _mark(run, tx)
    if run.clearing is not None:
        _step_back(run, tx)


def execute_slice(run: Run, tx: Transaction) -> None:
    """Execute the next slice, or resume the run if nothing is left."""
    if run.clearing is not None and run.clearing.mark is not None:
        _mark(run, tx)
        return
    targets = _next(run)
    if not targets:
        _finish(run, tx)
        return
    _clear(run, targets, tx)
    tx.postpone(run)


def _mark(run: Run, tx: Transaction) -> None:
    """Mark the next tasks whose rows are loaded. Resume the run if nothing is left."""
    rows, left = tx.memory.prefetched_tasks, SLICE_TASKS
    while run.clearing is not None:
        targets = _next(run)
        at_hand = takewhile(lambda target: target.state.is_live or target.task_no in rows, targets)
        done = list(islice(at_hand, left))
        _clear(run, done, tx)
        left -= len(done)
        if not targets:
            left -= mark_apply.stop_overtaken(run, tx, left)
        if left <= 0 or len(done) < len(targets):
            tx.postpone(run)
            return
        if not targets and not mark_apply.overtake(run, tx):
            _finish(run, tx)


def drop_selection(run: Run, tx: Transaction) -> None:
    """Drop the selection of a run that is ended early. The remaining tasks are not changed."""
    if run.clearing is not None:
        for task_index in run.clearing.task_indexes:
            tx.task_ended(run, task_index)  # the next run ignored this run during the selection
        selection.end_suspension(run, tx)


# ── selection of a slice ────────────────────────────────────────────────────────────────


def _next(run: Run) -> list[_Target]:
    """Return the tasks of the next slice, unmapped ones first."""
    chosen = run.clearing
    if chosen is None:
        return []
    cleared = chain(_unmapped_targets(run, chosen), _children(run, chosen))
    first = chain(_marked(run), cleared, _unrun(run))
    return list(islice(first, SLICE_TASKS))


def _child(group: MappedTask, index: int) -> _Target:
    state = TaskState(group.states[index])
    return _Target(group.first_task_no + index, group.task_index, index, state)


def _unmapped_targets(run: Run, chosen: Clearing) -> Iterator[_Target]:
    first = run.row.first_task_no
    for task_index in chosen.whole:
        if _is_begun(run, chosen, task_index):
            yield _Target(first + task_index, task_index, -1, TaskState(run.states[task_index]))
        elif task_index in chosen.reexpanded and first + task_index in run.removed:
            yield _Target(first + task_index, task_index, -1, TaskState.REMOVED)


def _children(run: Run, chosen: Clearing) -> Iterator[_Target]:
    for task_index in sorted(run.groups):
        group = run.groups[task_index]
        for index in _indexes(group, chosen, task_index):
            yield _child(group, index)
        if task_index in chosen.reexpanded:
            end = group.first_task_no + group.width
            for task_no in run.cleared.between(group.first_task_no, end):
                index = task_no - group.first_task_no
                yield _Target(task_no, task_index, index, TaskState.PENDING)


def _marked(run: Run) -> Iterator[_Target]:
    """Yield tasks whose state differs from their mark."""
    mark = None if run.clearing is None else run.clearing.mark
    if mark is None:
        return
    for task_index, first, end in mark.ranges:
        group = run.groups.get(task_index)
        if first < 0:
            state = TaskState(run.states[task_index])
            if group is None and state is not mark.state:
                yield _Target(run.task_no(task_index, -1), task_index, -1, state, is_marked=True)
        elif group is not None:
            for match in _OTHERS[mark.state].finditer(bytes(group.states[first:end])):
                yield _child(group, first + match.start())._replace(is_marked=True)


def _unrun(run: Run) -> Iterator[_Target]:
    """Yield the children that, judged by their state, may never have run.

    Only the row of a child can confirm this, see ``_clear_unrun``.
    """
    chosen = run.clearing
    if chosen is None:
        return
    for task_index in chosen.unrun:
        group = run.groups.get(task_index)
        if group is None:
            continue
        excluded = _spared(chosen, task_index)
        targets = () if chosen.mark is None else chosen.mark.ranges
        meant = {first for at, first, _ in targets if at == task_index}
        for match in _UNRUN.finditer(bytes(group.states), run.checked_children.get(task_index, 0)):
            index = match.start()
            if not _has(excluded, index) and index not in meant:
                yield _child(group, index)


def _is_begun(run: Run, chosen: Clearing, task_index: int) -> bool:
    """Return whether a selected task must be reset as a whole.

    This is the case if it has no children, has left ``pending``, and is not in ``retained``, the
    selected tasks that stay unchanged.
    """
    is_there = task_index not in run.groups and task_index not in chosen.retained
    return is_there and run.states[task_index] != TaskState.PENDING


def _indexes(group: MappedTask, chosen: Clearing, task_index: int) -> Iterator[int]:
    """Yield the children that are still to be cleared."""
    if task_index in chosen.whole:
        wanted = _PRESENT if task_index in chosen.reexpanded else _BEGUN
    elif task_index in chosen.failed:
        wanted = _FAILED
    else:
        found = (index for of, index in chosen.children if of == task_index)
        present = (index for index in found if group.states[index] != TaskState.PENDING)
        yield from (index for index in present if not _has(_spared(chosen, task_index), index))
        return
    excluded = _spared(chosen, task_index)
    for match in wanted.finditer(bytes(group.states)):
        if not _has(excluded, match.start()):
            yield match.start()


def _spared(chosen: Clearing, task_index: int) -> bytes:
    return next((bits for of, bits in chosen.excluded if of == task_index), b"")


def _has(bits: bytes, index: int) -> bool:
    return bool(bits) and bool(bits[index >> 3] >> (index & 7) & 1)


# ── execution of a slice ────────────────────────────────────────────────────────────────


def _clear(run: Run, targets: Iterable[_Target], tx: Transaction) -> None:
    """Clear or mark these tasks."""
    chosen = run.clearing
    assert chosen is not None  # noqa: S101 - checked by the callers
    reexpanded = frozenset(chosen.reexpanded)
    for target in targets:
        task_index, index = target.task_index, target.map_index
        if target.is_marked:
            mark_apply.end(run, task_index, index, tx)
        elif target.state is TaskState.PENDING:
            remove(fresh(run, task_index, index), tx)
        elif task_index in chosen.unrun:
            _clear_unrun(run, target, tx)
        else:
            task = _restart_task(run, target, tx)
            if index >= 0 and task_index in reexpanded:
                remove(task, tx)
            elif chosen.mark is not None:  # the task may start again in this turn
                run.cleared.put_uncommitted(task.task_no, task)


def _restart_task(run: Run, target: _Target, tx: Transaction) -> TaskInstance:
    if target.state.is_live:
        retry_budget.refund_retries(run, run.active_tasks[target.task_no])
        old = stopped(run.active_tasks[target.task_no], tx)
    else:
        row = tx.memory.prefetched_tasks[target.task_no]
        retry_budget.refund_retries(run, row)
        old = ended(run, row, tx)
    return reset_task(old, tx)


def _clear_unrun(run: Run, target: _Target, tx: Transaction) -> None:
    """Clear a child, unless it ran and requested its own skip."""
    run.checked_children[target.task_index] = target.map_index + 1
    row = tx.memory.prefetched_tasks[target.task_no]
    if row.try_number == 0:
        mark_apply.restart(ended(run, row, tx), tx)


# ── end ─────────────────────────────────────────────────────────────────────────────────


def _finish(run: Run, tx: Transaction) -> None:
    """Resume the run after the last slice, or end it again if nothing is left to run."""
    chosen = run.clearing
    assert chosen is not None  # noqa: S101 - checked by the caller
    tx.runs[run.run_no] = run
    mark = chosen.mark
    if mark is not None and mark.is_cut_short:
        retally(run)  # the states of its fan-outs, which the next run is notified of
        drop_selection(run, tx)
        mark_apply.end_again(run, run.state, mark, tx)
        return
    for task_index in run.groups.keys() & chosen.reexpanded:
        dissolve(run, task_index, tx)
    reopen_loops(run, tx)
    for group in list(run.groups.values()):
        tx.expansions.take_over(renewed(group))
    stream_expand.close_left_open(run, tx)
    drop_selection(run, tx)
    run.blocked, run.blocked_at = [], {}
    recount(run)
    if mark is not None:
        _pass_on(run, tx)
    if mark is not None and mark.ended is not None and run.unfinished == 0:
        mark_apply.end_again(run, outcome(run), mark, tx)
        return
    is_reopened = run.row.ended_at is not None
    if is_reopened:
        tx.reopen_run(run)
    if run.state is RunState.QUEUED:
        if run not in tx.memory.queued_runs.get(run.queue, ()):
            run_queue.run_reopened(run, tx)
    elif run.row.quarantine is None:
        if mark is None or is_reopened:
            deadlines.start_timers(run, tx)  # the run may have been moved to another version
        else:
            deadlines.arm_timeout(run, tx)
            deadlines.arm_waits(run, tx)
        tx.slots.offer_again(run)
        resume(run, tx)


def _pass_on(run: Run, tx: Transaction) -> None:
    """Record each ended task, so that tasks of the next run that wait for it are evaluated."""
    for task_index, state in enumerate(run.states):
        if state >= TaskState.SUCCESS:
            tx.task_ended(run, task_index)
