"""Reset of tasks to pending, with a new start number.

Before a task is reset, it is stopped if it is in progress, or its end is undone.
"""

from __future__ import annotations

from aioflow.core.runs.progress import release_task
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance
from aioflow.core.tasks import streams
from aioflow.core.tasks.tries import store_try
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import lifecycle
from aioflow.model.ids import after_clear
from aioflow.model.rows import ExpansionRow, TaskRow, TryRow
from aioflow.model.states import TaskState

__all__ = (
    "dissolve",
    "ended",
    "forget_result",
    "remove",
    "renewed",
    "reset_task",
    "stopped",
)


def stopped(task: TaskInstance, tx: Transaction) -> TaskInstance:
    """Stop a task, whether it runs or waits."""
    store_try(task, TaskState.CANCELLED, None, tx)
    lifecycle.stop(task, "cancelled", tx)
    streams.cancel_streams(task, tx)
    release_task(task, tx)
    tx.slots.free_pool_slots(task)  # it does not wait any longer
    tx.slots.unblock(task)
    return task


def ended(run: Run, row: TaskRow, tx: Transaction) -> TaskInstance:
    """Return a task instance for a task that has ended, so that it can be reset."""
    task = TaskInstance(run, row.task_no, row.task_index, row.map_index)
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
    """Make a task pending, with a new start number."""
    run = old.run
    task = TaskInstance(run, old.task_no, old.task_index, old.map_index)
    task.state, task.start_no = old.state, after_clear(old.start_no)
    task.stored_state, task.stored_start = old.stored_state, old.stored_start
    task.stored_slot = old.stored_slot
    tx.move(task, TaskState.PENDING)
    old.state = TaskState.PENDING  # its entry in a queue for slots is stale now
    run.removed.pop(task.task_no, None)
    if task.map_index < 0:
        run.states[task.task_index] = TaskState.PENDING
        forget_result(run, task.task_index)
    tx.batch.gone_results.append(task.task_no)
    if run.items.pop(task.task_no, None) is not None:
        tx.batch.gone_items.append(task.task_no)
    return task


def remove(task: TaskInstance, tx: Transaction) -> None:
    """Mark a child as removed, because new children replace it."""
    task.ended_at = tx.now
    tx.move(task, TaskState.REMOVED)


def dissolve(run: Run, task_index: int, tx: Transaction) -> None:
    """Forget that a task was expanded. Its trigger rule decides when it is expanded again."""
    group = run.groups.pop(task_index)
    group.states, group.one_to_one = bytearray(), None  # its queue entries have no children left
    run.states[task_index] = TaskState.PENDING
    tx.expansions.dissolve(run.run_no, task_index)


def renewed(old: MappedTask) -> MappedTask:
    """Replace a mapped task, so that its queue entries become stale. Return the replacement."""
    run = old.run
    row = ExpansionRow(
        run_no=run.run_no,
        task_index=old.task_index,
        width=0,
        first_task_no=old.first_task_no,
        is_open=old.is_open,
    )
    group = run.groups[old.task_index] = MappedTask(run, row)
    group.states, group.counts = old.states, old.counts
    group.cut, group.unfinished = old.cut, old.unfinished
    old.states, old.one_to_one = bytearray(), None  # its queue entries have no children left
    return group


def forget_result(run: Run, task_index: int) -> None:
    """Forget everything known about the result of a task."""
    run.known[task_index] = 0
    run.results.pop(task_index, None)
    run.widths.pop(task_index, None)
    run.source_starts.pop(task_index, None)
