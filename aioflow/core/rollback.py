"""Rollback of a turn: undo the changes in memory of a transaction that could not be committed.

This module drops the runs that the transaction touched, and the engine reads them from their rows
again. Child processes are not involved, because they still have the work of the last commit. For
the same reason, a task that is read again gets back the slot that it had at the last commit.
"""

from __future__ import annotations

from typing import TypeAlias

from aioflow.core.runs import deadlines, previous
from aioflow.core.runs.run_queue import count_runs
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import NOWHERE, Run
from aioflow.core.tasks import one_to_one
from aioflow.core.transaction import Transaction
from aioflow.errors import AioflowError
from aioflow.model.ids import StartNo, TaskNo
from aioflow.model.rows import DagFileRow, DagRow
from aioflow.model.states import TaskState
from aioflow.protocol.inputs import ContinueRun, Input
from aioflow.protocol.reports import Ended

__all__ = (
    "Refused",
    "SlotsBefore",
    "forget",
    "free_slot",
    "recall_catalog",
    "restore_pools",
    "restore_slots",
)

SlotsBefore: TypeAlias = dict[TaskNo, tuple[StartNo, tuple[int, bool, bool]]]
"""Each task's slot at the last commit, with the start number to which the slot belongs."""


class Refused(AioflowError):
    """The store refused the batch of a transaction."""

    code = "defect.refused"

    def __init__(self, tx: Transaction, cause: str) -> None:
        super().__init__(cause)
        self.tx = tx


def forget(memory: Memory, tx: Transaction) -> SlotsBefore:
    """Drop from memory the runs that a transaction touched. Return the slots of their tasks."""
    slots_before: SlotsBefore = {
        task.task_no: (task.stored_start, task.stored_slot) for task in tx.touched
    }
    tx.roll_back()
    memory.stray_triggers += tx.strays
    for run in tx.runs.values():
        for task in run.active_tasks.values():
            slots_before.setdefault(task.task_no, (task.stored_start, task.stored_slot))
        run.is_forgotten = True
        memory.drop_run(run)
    for version in tx.batch.new_versions:
        memory.stored_versions.discard(version.version)
    deadlines.index_deadlines(memory)
    memory.index_outbox()
    memory.may_host_more = True  # no host learns of the triggers that this turn assigned
    return slots_before


def recall_catalog(memory: Memory, dags: list[DagRow], files: list[DagFileRow]) -> None:
    """Replace the DAGs and DAG files in memory with their stored rows."""
    memory.dags = {row.dag_id: row for row in dags}
    memory.files = {row.file: row for row in files}


def restore_pools(tx: Transaction) -> None:
    """Restore the pools, and whether the node is drained, if a transaction changed them."""
    for name, before in tx.pools_before.items():
        tx.slots.put_pool(name, before, tx.memory)
    if tx.was_drained is not None:
        tx.memory.is_drained = tx.was_drained


def restore_slots(
    runs: list[Run], slots_before: SlotsBefore, memory: Memory, tx: Transaction
) -> list[Input]:
    """Give restored tasks the slots that they had, and queue tasks that wait for a slot.

    Returns:
        Inputs for a later turn: queries to repeat, and runs to evaluate again.
    """
    for run in runs:
        for task in run.active_tasks.objects.values():  # packed tasks have no slot
            start_no, slot = slots_before.get(task.task_no, (-1, NOWHERE))
            if start_no == task.start_no:
                task.worker, task.is_claimed, task.is_hosted = task.stored_slot = slot
    tx.slots.recount(memory)
    count_runs(memory)
    for run in runs:
        _offer(run, tx.slots)
    unevaluated = [
        ContinueRun(run.run_no) for run in runs if one_to_one.has_unevaluated_children(run)
    ]
    return [
        *previous.invalidate({run.row.dag_id for run in tx.runs.values()}, memory),
        *unevaluated,
    ]


def free_slot(entry: Input, memory: Memory, slots: Slots) -> None:
    """Free the slot of a try that has ended but whose report cannot be processed."""
    if isinstance(entry, Ended):
        task = memory.active_tasks.get(entry.task_no)
        if task is not None and task.start_no == entry.start_no:
            slots.release(task)
            task.stored_slot = NOWHERE


def _offer(run: Run, slots: Slots) -> None:
    for group in run.groups.values():
        if group.has_fresh and run.states[group.task_index] == TaskState.RUNNING:
            slots.offer(group)
    slots.offer_again(run)
