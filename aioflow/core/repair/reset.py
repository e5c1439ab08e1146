"""Reset of tasks to pending with a new start number, and of loops to an earlier iteration.

A task is stopped, or its end is taken back, before it is reset. When a loop is rewound, its later
iterations are undone, the last one first. After each slice the loop has only the remaining
iterations, and is open. So an interrupted rewind leaves a loop that is a few iterations shorter.
The tasks of an undone iteration are ``removed``; their rows are used again when the same iteration
starts again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aioflow.core.runs.progress import leave
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance
from aioflow.core.tasks import streams
from aioflow.core.tasks.tries import keep_try
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import lifecycle
from aioflow.model.ids import after_clear
from aioflow.model.rows import ExpansionRow, TaskRow, TryRow
from aioflow.model.states import TaskState

__all__ = (
    "count_rewound",
    "dissolve",
    "ended",
    "forget_result",
    "remove",
    "renewed",
    "reset_task",
    "shorten_loops",
    "stopped",
    "tasks_to_rewind",
)


def stopped(task: TaskInstance, tx: Transaction) -> TaskInstance:
    """Stop a task, wherever it runs or waits."""
    keep_try(task, TaskState.CANCELLED, None, tx)
    lifecycle.stop(task, "cancelled", tx)
    streams.cancel_streams(task, tx)
    leave(task, tx)
    tx.slots.stop_keeping(task)  # it does not wait any longer
    tx.slots.unblock(task)
    return task


def ended(run: Run, row: TaskRow, tx: Transaction) -> TaskInstance:
    """Create the object of a task that has ended."""
    task = TaskInstance(run, row.task_no, row.position, row.map_index)
    task.state = task.stored_state = row.state
    task.start_no = task.stored_start = row.start_no
    if row.state is TaskState.SUCCESS and row.try_number == 1 and row.ended_at is not None:
        tx.batch.new_tries.append(  # a first success has no row of its own
            TryRow(
                task_no=row.task_no,
                start_no=row.start_no,
                run_no=row.run_no,
                try_number=row.try_number,
                state=row.state,
                started_at=row.started_at,
                ended_at=row.ended_at,
                failure=row.failure,
            )
        )
    return task


def reset_task(old: TaskInstance, tx: Transaction) -> TaskInstance:
    """Make a task pending, with a start number that it has never had."""
    run = old.run
    task = TaskInstance(run, old.task_no, old.position, old.map_index)
    task.state, task.start_no = old.state, after_clear(old.start_no)
    task.stored_state, task.stored_start = old.stored_state, old.stored_start
    task.stored_slot = old.stored_slot
    tx.move(task, TaskState.PENDING)
    old.state = TaskState.PENDING  # an entry of it in a queue for slots is stale now
    run.removed.pop(task.task_no, None)
    if task.map_index < 0:
        run.states[task.position] = TaskState.PENDING
        forget_result(run, task.position)
    tx.batch.gone_results.append(task.task_no)
    if run.items.pop(task.task_no, None) is not None:
        tx.batch.gone_items.append(task.task_no)
    return task


def remove(task: TaskInstance, tx: Transaction) -> None:
    """Mark a child as removed. Others replace it; an iteration of a loop is replaced by itself."""
    task.ended_at = tx.now
    tx.move(task, TaskState.REMOVED)
    if task.run.groups[task.position].is_loop:
        task.run.removed[task.task_no] = task.start_no


def dissolve(run: Run, position: int, tx: Transaction) -> None:
    """Forget that a task was expanded. Its trigger rule decides when it expands again."""
    group = run.groups.pop(position)
    if group.is_loop:
        first, end = group.first_task_no, group.first_task_no + run.spec.tasks[position].map_limit
        for task_no in [number for number in run.removed if first <= number < end]:
            del run.removed[task_no]
    group.states, group.one_to_one = bytearray(), None  # its queue entries have no children left
    run.states[position] = TaskState.PENDING
    tx.expansions.dissolve(run.run_no, position)


def renewed(old: MappedTask) -> MappedTask:
    """Replace a mapped task, so that its queue entries become stale. Return the replacement."""
    run = old.run
    row = ExpansionRow(
        run_no=run.run_no,
        position=old.position,
        width=0,
        first_task_no=old.first_task_no,
        is_open=old.is_open,
    )
    group = run.groups[old.position] = MappedTask(run, row)
    group.states, group.counts = old.states, old.counts
    group.cut, group.unfinished = old.cut, old.unfinished
    old.states, old.one_to_one = bytearray(), None  # its queue entries have no children left
    return group


def forget_result(run: Run, position: int) -> None:
    """Forget everything known about the result of a task."""
    run.known[position] = 0
    run.results.pop(position, None)
    run.widths.pop(position, None)
    run.source_starts.pop(position, None)


_UNDONE: Final = bytes((TaskState.PENDING, TaskState.REMOVED))


def count_rewound(group: MappedTask, first: int) -> int:
    """Return how many tasks a rewind to this iteration undoes."""
    states = group.states[first:]
    return len(states) - sum(states.count(state) for state in _UNDONE)


def tasks_to_rewind(run: Run) -> Iterator[list[tuple[MappedTask, int]]]:
    """Yield the tasks still to be undone, one whole iteration at a time."""
    for first, groups in _rewound_loops(run):
        widest = max((group.width for group in groups), default=0)
        for index in range(widest - 1, first - 1, -1):
            found = [(group, index) for group in groups if _must_rewind(group, index, first)]
            if found:
                yield found


def shorten_loops(run: Run, tx: Transaction) -> None:
    """Shorten the loops to their remaining iterations."""
    for first, groups in _rewound_loops(run):
        left = max([first + 1, *map(_iterations_left, groups)])
        is_back = left == first + 1 and all(group.states[first] == 0 for group in groups)
        for group in groups:
            if group.width > left or (is_back and not group.is_open):
                _shorten_group(group, left, tx)


def _shorten_group(old: MappedTask, width: int, tx: Transaction) -> None:
    group = renewed(old)
    group.shorten(width)
    group.is_open = True
    tx.expansions.dissolve(group.run.run_no, group.position)
    tx.change_group(group, -1)


def _iterations_left(group: MappedTask) -> int:
    """Return the number of iterations up to the last one with something left to undo."""
    first = group.first_task_no
    cleared = group.run.cleared.between(first, first + group.width)
    last = max(cleared, default=first - 1)
    return max(len(group.states.rstrip(_UNDONE)), last - first + 1)


def _must_rewind(group: MappedTask, index: int, first: int) -> bool:
    state = group.states[index]
    if state == TaskState.PENDING:
        return index > first and group.first_task_no + index in group.run.cleared
    return index == first or state != TaskState.REMOVED


def _rewound_loops(run: Run) -> list[tuple[int, list[MappedTask]]]:
    """Return each loop that is rewound: the iteration, and its expanded tasks."""
    loops: dict[int, tuple[int, list[MappedTask]]] = {}
    for position, first in () if run.clearing is None else run.clearing.rounds:
        mapped = run.spec.tasks[position].mapped
        if mapped is not None and position in run.groups:
            loops.setdefault(mapped.until, (first, []))[1].append(run.groups[position])
    return list(loops.values())
