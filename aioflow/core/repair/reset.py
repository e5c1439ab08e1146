"""How a task begins anew: stopped or taken back, then pending under a number of its own."""

from __future__ import annotations

from aioflow.core.runs.run import leave
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance
from aioflow.core.tasks import stream_consumer
from aioflow.core.tasks.tries import keep_try
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
    "reset",
    "stopped",
)


def stopped(live: TaskInstance, draft: Transaction, slots: Slots) -> TaskInstance:
    """Take a task away from wherever it is."""
    keep_try(live, TaskState.CANCELLED, None, draft)
    lifecycle.stop(live, "cancelled", draft, slots)
    stream_consumer.cancel(live, draft)
    leave(live, draft, slots)
    slots.stop_keeping(live)  # it does not wait any longer
    slots.unblock(live)
    return live


def ended(run: Run, row: TaskRow, draft: Transaction) -> TaskInstance:
    """Make the object of a task that has ended."""
    live = TaskInstance(run, row.task_no, row.position, row.map_index)
    live.state = live.stored_state = row.state
    live.start_no = live.stored_start = row.start_no
    if row.state is TaskState.SUCCESS and row.try_number == 1 and row.ended_at is not None:
        draft.batch.new_tries.append(  # a first success has no row of its own
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
    return live


def reset(old: TaskInstance, draft: Transaction) -> TaskInstance:
    """Let a task be pending, under a number that no start of it has had."""
    run = old.run
    live = TaskInstance(run, old.task_no, old.position, old.map_index)
    live.state, live.start_no = old.state, after_clear(old.start_no)
    live.stored_state, live.stored_start = old.stored_state, old.stored_start
    live.stored_place = old.stored_place
    draft.move(live, TaskState.PENDING)
    old.state = TaskState.PENDING  # wherever that waits for a slot, it does so no longer
    run.removed.pop(live.task_no, None)
    if live.map_index < 0:
        run.states[live.position] = TaskState.PENDING
        forget_result(run, live.position)
    draft.batch.gone_results.append(live.task_no)
    if run.items.pop(live.task_no, None) is not None:
        draft.batch.gone_items.append(live.task_no)
    return live


def remove(live: TaskInstance, draft: Transaction) -> None:
    """Others will take the place of a child; its own again where it is a round."""
    live.ended_at = draft.now
    draft.move(live, TaskState.REMOVED)
    if live.run.groups[live.position].is_loop:
        live.run.removed[live.task_no] = live.start_no


def dissolve(run: Run, position: int, draft: Transaction) -> None:
    """Forget that a task was expanded: it will be, when its rule says so."""
    group = run.groups.pop(position)
    if group.is_loop:
        first, end = group.first_task_no, group.first_task_no + run.spec.tasks[position].map_limit
        for task_no in [number for number in run.removed if first <= number < end]:
            del run.removed[task_no]
    group.states, group.lockstep = bytearray(), None  # wherever it waits, it has nothing to give
    run.states[position] = TaskState.PENDING
    draft.expansions.dissolve(run.run_no, position)


def renewed(old: MappedTask) -> MappedTask:
    """Have what waits for slots as this group no longer do so; return what it is from now on."""
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
    old.states, old.lockstep = bytearray(), None  # wherever it waits, it has nothing to give
    return group


def forget_result(run: Run, position: int) -> None:
    """Nothing is known any more of what a task has given."""
    run.known[position] = 0
    run.results.pop(position, None)
    run.widths.pop(position, None)
    run.source_starts.pop(position, None)
