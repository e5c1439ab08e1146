"""Marks: a person sets the final state of tasks of a run, or of the run itself.

The trigger rules decide the tasks downstream of a marked task as if it had ended in that state.
Decisions that followed from its earlier end are made again, unless the affected task ran and has
ended. This module computes the selection. The selection is executed in slices, see ``execution``,
or immediately if it is small. A run that had ended resumes if one of its tasks must run. A run that
was ended before its tasks (cut short) keeps its state, and only the rows of its tasks change.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TypeAlias

from aioflow.core.repair import execution, selection
from aioflow.core.repair.mark_apply import consumers
from aioflow.core.repair.preview import preview, preview_of_run
from aioflow.core.repair.selection import Chosen, exclude_child, named
from aioflow.core.runs import previous
from aioflow.core.runs.cancel import mark_ended, mark_live
from aioflow.core.state.memory import Memory
from aioflow.core.state.run_sequence import run_key
from aioflow.core.state.task_instance import MappedTask, Run
from aioflow.core.tasks import stream_expand
from aioflow.core.tasks.trigger_rules import WHOLE
from aioflow.core.transaction import Transaction
from aioflow.errors import RequestError, UnknownRun, UnknownTask
from aioflow.model.ids import TaskNo
from aioflow.model.rows import TaskRow
from aioflow.model.states import RunState, TaskState
from aioflow.protocol.inputs import Input, RequestReceived
from aioflow.protocol.outbox import Clearing, Marking
from aioflow.protocol.requests import DeleteRun, Mark, Preview

__all__ = ("asks", "is_row_needed", "mark", "needed")

_UNRUN = frozenset({TaskState.UPSTREAM_FAILED, TaskState.SKIPPED})
_ENDED = tuple(state for state in TaskState if not state.is_live)

_Range: TypeAlias = tuple[int, int, int]
"""Task index, first map index, and end of the range; see ``Marking.ranges``."""


# ── rows to load ────────────────────────────────────────────────────────────────────────────


def asks(inputs: Iterable[Input]) -> Iterator[Mark | DeleteRun]:
    """Yield the requests to delete a run, or to mark a run as a whole.

    The row of the run may have to be loaded, see ``is_row_needed``.
    """
    for entry in inputs:
        match entry:
            case RequestReceived(request=DeleteRun() as request):
                yield request
            case RequestReceived(request=Mark() as request) if not request.tasks:
                yield request


def is_row_needed(request: Mark | DeleteRun, memory: Memory) -> bool:
    """Return whether the row of the run must be loaded, because the run is not in memory."""
    return memory.find_run(request.run_id) is None


def needed(request: Mark, run: Run) -> Iterable[TaskNo]:
    """Return the tasks whose rows are needed in the first turn of a mark.

    If the children of the run fit in one slice, these rows suffice to complete the mark in that
    turn.
    """
    try:
        ranges = _ranges(request, run)
    except UnknownTask:
        return []
    if not _revoked_tasks(run, ranges, request.state):
        return []
    groups = run.groups
    is_narrow = sum(group.width for group in groups.values()) <= execution.SLICE_TASKS
    first = (_children(groups[at], _ENDED, begin, end) for at, begin, end in ranges if end > 0)
    states = _ENDED if is_narrow else _UNRUN
    others = (_children(group, states, 0, group.width) for group in groups.values())
    return {
        *execution.undecided(run),
        *islice(chain.from_iterable(first), execution.SLICE_TASKS),
        *islice(chain.from_iterable(others), execution.SLICE_TASKS),
    }


def _children(
    group: MappedTask, states: Iterable[TaskState], first: int, end: int
) -> Iterator[TaskNo]:
    """Yield the numbers of the children in one of these states."""
    wanted = re.compile(b"[" + re.escape(bytes(states)) + b"]")
    for match in wanted.finditer(bytes(group.states), first, end):
        yield group.first_task_no + match.start()


# ── requests ────────────────────────────────────────────────────────────────────────────────


def mark(request: Mark, tx: Transaction) -> tuple[int, RunState] | Preview:
    """Mark tasks of a run, or the run itself.

    Returns:
        How many tasks are marked, and the state of their run; for a dry run, a preview.

    Raises:
        RequestError: If there is no such run or task, if the run is already being ended, or if the
            task belongs to a loop or stream.
    """
    if not request.tasks:
        return _preview_of_run(request, tx) if request.dry_run else (0, _mark_run(request, tx))
    memory = tx.memory
    loaded = memory.loaded.pop((request.run_id, None), UnknownRun(request.run_id))
    run = memory.find_run(request.run_id) or loaded
    if not isinstance(run, Run):
        raise run
    if not run.state.is_live and run.row.ended_at is None:
        raise RequestError(f"run {request.run_id!r} is being ended; mark it after it has ended")
    if run.clearing is not None:
        raise RequestError(f"run {request.run_id!r} is held still while it is being cleared")
    ranges = _ranges(request, run)
    for task_index, _, _ in ranges:
        _check_markable(run, task_index)
    count = sum(_count(run, task_range, request.state) for task_range in ranges)
    if request.dry_run:
        chosen = _choose(run, ranges, request.state, memory.prefetched_tasks)
        return preview(run, chosen, None)
    if count:
        chosen = _choose(run, ranges, request.state, memory.prefetched_tasks)
        execution.suspend(run, chosen, tx)
        execution.begin_mark(run, tx)
    return count, run.state


def _preview_of_run(request: Mark, tx: Transaction) -> Preview:
    active = tx.memory.find_run(request.run_id)
    if active is not None:
        return preview_of_run(active)
    row = tx.memory.prefetched_runs.get(request.run_id)
    if row is None or row.ended_at is None:
        raise UnknownRun(request.run_id)
    return Preview(state=row.state, tasks=[], upstream_failed=[])


def _check_markable(run: Run, task_index: int) -> None:
    """Reject a mark of a task whose end also affects loop iterations or stream items.

    Raises:
        RequestError: If the task belongs to a loop or stream.
    """
    task = run.spec.tasks[task_index]
    if task.mapped is not None and task.mapped.until >= 0:
        where = "is in a loop, which ends as a whole"
    elif task.streams:
        where = "emits items, and others expand over them"
    elif stream_expand.source_of(run, task_index) >= 0:
        where = "expands over the items of a task, and ends with that"
    else:
        return
    run_id, task_id = run.row.run_id, task.task_id
    raise RequestError(
        f"task {task_id!r} {where}: it cannot be marked; clear it (`aioflow runs clear {run_id} "
        f"--task {task_id}`), or mark or cancel the run"
    )


def _mark_run(request: Mark, tx: Transaction) -> RunState:
    memory = tx.memory
    state = RunState.SUCCESS if request.state is TaskState.SUCCESS else RunState.FAILED
    active = memory.find_run(request.run_id)
    if active is not None:
        return mark_live(active, state, tx)
    row = memory.prefetched_runs.get(request.run_id)
    if row is None or row.ended_at is None:
        raise UnknownRun(request.run_id)
    memory.touch(request.run_id)
    run = Run(row, memory.dag_versions[row.version, row.dag_id])
    mark_ended(run, state, tx, is_reported=False)
    order = run_key(run.row)
    if order is not None:  # tasks without a row have ended with their run
        previous.forget(run.row.dag_id, order, tx)
    return run.state


def _ranges(request: Mark, run: Run) -> Sequence[_Range]:
    """Return the tasks that a request names, as ranges.

    Raises:
        UnknownTask: If the run has no such task, or the task has no such child.
    """
    ranges: list[_Range] = []
    for task_id in dict.fromkeys(request.tasks):
        task_index = named(run, task_id, request.map_index)
        group = run.groups.get(task_index)
        if group is None:
            ranges.append((task_index, WHOLE, 0))
        elif request.map_index >= 0:
            ranges.append((task_index, request.map_index, request.map_index + 1))
        else:
            ranges.append((task_index, 0, group.width))
    return ranges


def _states(run: Run, task_range: _Range) -> bytes:
    """Return the states of a range of tasks. All in-progress states are replaced by one."""
    task_index, first, end = task_range
    return bytes(
        (run.states[task_index],) if first < 0 else run.groups[task_index].states[first:end]
    )


def _count(run: Run, task_range: _Range, state: TaskState) -> int:
    states = _states(run, task_range)
    return len(states) - states.count(state)


def _revoked_tasks(run: Run, ranges: Iterable[_Range], state: TaskState) -> set[int]:
    """Return the indexes of tasks that have ended in a state other than their mark."""
    others = [ended for ended in _ENDED if ended is not state]
    return {
        task_range[0] for task_range in ranges if any(map(_states(run, task_range).count, others))
    }


# ── consequences ────────────────────────────────────────────────────────────────────────────


def _choose(
    run: Run, ranges: Sequence[_Range], state: TaskState, rows: Mapping[TaskNo, TaskRow]
) -> Clearing:
    """Return the selection for a mark: the marked tasks, and the tasks to reset because of them.

    The ``changed`` tasks of the selection are those whose dependents may have to be stopped.
    """
    revoked = _revoked_tasks(run, ranges, state)
    ended = None if run.row.ended_at is None else (run.state, run.row.ended_at)
    is_cut_short = ended is not None and run.unfinished > 0
    again, excluded = Chosen(), dict[int, bytes]()
    if revoked and not is_cut_short:
        again, excluded = _decided_by(run, revoked, ranges, rows)
    changed = revoked | again.task_indexes
    return Clearing(
        run.run_no,
        whole=tuple(sorted(again.whole)),
        reexpanded=tuple(sorted(again.reexpanded)),
        unrun=tuple(sorted(again.children)),
        excluded=tuple(sorted((at, bits) for at, bits in excluded.items() if at in again.children)),
        mark=Marking(
            state,
            tuple(ranges),
            changed=() if is_cut_short else tuple(sorted(changed)),
            ended=ended,
            is_cut_short=is_cut_short,
        ),
    )


def _decided_by(
    run: Run, revoked: set[int], ranges: Sequence[_Range], rows: Mapping[TaskNo, TaskRow]
) -> tuple[Chosen, dict[int, bytes]]:
    """Return the tasks to reset because the ends of the ``revoked`` tasks are undone.

    These are tasks that never ran because of those ends, and mapped tasks that were expanded over
    their results. Also return, by task index, the children that a branch has skipped. These
    children stay skipped.
    """
    again = Chosen()
    unrun, excluded = _unrun(run, revoked, ranges, rows)
    marked = {task_index for task_index, _, _ in ranges}
    before = None
    while before != again.reexpanded:  # decisions that follow from these ends are undone, too
        before = set(again.reexpanded)
        changed = revoked | again.reexpanded
        for task_index in _reached(changed, run, unrun):
            if task_index in run.groups and task_index not in again.whole:
                again.children[task_index] = set()  # chosen later, by their states
            else:
                again.whole.add(task_index)
        _add_reexpanded(run, again, revoked, marked)
    return again, excluded


def _unrun(
    run: Run, revoked: set[int], ranges: Sequence[_Range], rows: Mapping[TaskNo, TaskRow]
) -> tuple[set[int], dict[int, bytes]]:
    """Return tasks that never ran but may run once the ends of the ``revoked`` tasks are undone.

    A mapped task is included if the rows of its skipped children are not all loaded. Also return,
    by task index, the children that a branch has skipped.
    """
    marked, unrun = Chosen(), set[int]()
    marked.whole = set(revoked)
    meant = {task_index: (first, end) for task_index, first, end in ranges}
    excluded: dict[int, bytearray] = {}
    known: Counter[int] = Counter()
    for row in rows.values():
        task_index, index = row.task_index, row.map_index
        if row.state not in _UNRUN or _is_meant(task_index, index, meant):
            continue
        known[task_index] += row.state is TaskState.SKIPPED
        if row.try_number > 0:
            continue
        if not selection.is_chosen_away(row, marked, run):
            unrun.add(task_index)
        elif index >= 0:
            exclude_child(excluded, run, task_index, index)
    for task_index, group in run.groups.items():
        first, end = meant.get(task_index, (0, 0))
        if (first, end) == (0, group.width):
            continue
        own = group.states[first:end]
        if group.counts[TaskState.UPSTREAM_FAILED] > own.count(TaskState.UPSTREAM_FAILED):
            unrun.add(task_index)
        if group.counts[TaskState.SKIPPED] - own.count(TaskState.SKIPPED) > known[task_index]:
            unrun.add(task_index)
    return unrun, {task_index: bytes(bits) for task_index, bits in excluded.items()}


def _is_meant(task_index: int, index: int, meant: Mapping[int, tuple[int, int]]) -> bool:
    if task_index not in meant:
        return False
    first, end = meant[task_index]
    return first == index or first <= index < end


def _add_reexpanded(run: Run, again: Chosen, revoked: set[int], marked: set[int]) -> None:
    """Extend the selection with mapped tasks whose input will change, except marked tasks."""
    before = -1
    everything = Chosen()
    while len(again.reexpanded) > before:
        before = len(again.reexpanded)
        everything.whole = again.task_indexes | revoked | consumers(run, again.task_indexes)
        everything.reexpanded = again.reexpanded
        for task_index in run.groups.keys() - marked:
            if selection.is_reexpanded(task_index, everything, run):
                again.reexpanded.add(task_index)
    again.whole |= again.reexpanded
    for task_index in again.whole:
        again.children.pop(task_index, None)


def _reached(first: Iterable[int], run: Run, unrun: set[int]) -> list[int]:
    """Return the ``unrun`` tasks that depend on ``first``, directly or through other such tasks."""
    found: list[int] = []
    agenda = deque(first)
    while agenda:
        for evaluator in run.graph.evaluators[agenda.popleft()]:
            if evaluator in unrun and evaluator not in found:
                found.append(evaluator)
                agenda.append(evaluator)
    return found
