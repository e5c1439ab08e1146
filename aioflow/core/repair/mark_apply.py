"""Application of a mark: marked tasks end, and tasks that must no longer run are stopped.

If a marked task is in progress it is stopped; if it has ended, that end is undone. Then it ends in
the requested state, with a new start number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final

from msgspec.structs import replace

from aioflow.core.repair import selection
from aioflow.core.repair.reset import dissolve, ended, forget_result, reset_task, stopped
from aioflow.core.runs.task_counts import retally
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance, is_under_way
from aioflow.core.tasks import one_to_one, retry_budget, stream_expand
from aioflow.core.tasks.readiness import fresh, is_cleared
from aioflow.core.tasks.trigger_rules import WHOLE, Verdict, verdict
from aioflow.core.transaction import Transaction
from aioflow.model.ids import TaskNo
from aioflow.model.states import MARKED, Failure, RunState, TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.outbox import Clearing, Marking

__all__ = ("consumers", "end", "end_again", "marked", "overtake", "restart", "stop_overtaken")

_UNDER_WAY: Final = re.compile(
    b"[" + bytes((TaskState.QUEUED,)) + b"-" + bytes((TaskState.RETRYING,)) + b"]"
)


# ── marked tasks ────────────────────────────────────────────────────────────────────────────


def end(run: Run, task_index: int, index: int, tx: Transaction) -> None:
    """End a task in the state of its mark."""
    assert run.clearing is not None  # noqa: S101 - checked by the caller
    mark = run.clearing.mark
    assert mark is not None  # noqa: S101
    state, task_no = mark.state, run.task_no(task_index, index)
    begun = _stop_task(run, task_no, tx)
    task = fresh(run, task_index, index)
    task.try_number, task.started_at = begun
    task.ended_at = max(tx.now, task.started_at or tx.now)  # the clock may have been set back
    task.failure = marked(state)
    tx.move(task, state)
    if index < 0:
        run.states[task_index] = state
        forget_result(run, task_index)


def marked(state: TaskState) -> Failure:
    """Return the failure record of a task, or child, that a person marked."""
    return Failure(type="Marked", message=f"a person marked it {state.label}", reason=MARKED)


def _stop_task(run: Run, task_no: TaskNo, tx: Transaction) -> tuple[int, Timestamp | None]:
    """Stop a task, whether it runs or waits. Return its try number and the start of that try."""
    task, row = run.active_tasks.get(task_no), tx.memory.prefetched_tasks.get(task_no)
    if task is not None:
        retry_budget.correct_retries(run, task)
        begun = task.try_number, task.started_at
        restart(stopped(task, tx), tx)
        return begun
    if row is None or row.state.is_live:
        return 0, None
    retry_budget.correct_retries(run, row)
    restart(ended(run, row, tx), tx)
    return row.try_number, row.started_at


def restart(old: TaskInstance, tx: Transaction) -> None:
    """Make a task pending again. It may start in this turn."""
    task = reset_task(old, tx)
    old.run.cleared.put_uncommitted(task.task_no, task)


# ── tasks after them ────────────────────────────────────────────────────────────────────────


def overtake(run: Run, tx: Transaction) -> bool:
    """Stop unmapped tasks in progress that their trigger rule no longer allows to run.

    Returns:
        Whether more tasks may have to be stopped: children (see ``stop_overtaken``) or tasks
            further downstream.
    """
    chosen = run.clearing
    mark = None if chosen is None else chosen.mark
    if chosen is None or mark is None or mark.is_cut_short:
        return False
    for task_index in chosen.reexpanded:
        if task_index in run.groups:
            dissolve(run, task_index, tx)
    retally(run)
    stopped_in = {at for at in mark.overtaken if at in run.groups and is_cleared(run.groups[at])}
    whole, groups = _overtaken(run, {*mark.changed, *stopped_in})
    if not whole and not groups:
        return False
    # The items that these tasks emitted are deleted, so the consumers expand again. A marked
    # consumer keeps its state.
    reexpanded = (consumers(run, whole) & run.groups.keys()) - {
        task_range[0] for task_range in mark.ranges
    }
    for task_index in whole:
        _stop(run, run.task_no(task_index, WHOLE), tx)
    selection.suspend_run(run, _further(chosen, mark, whole, groups, reexpanded), tx)
    return True


def _further(
    chosen: Clearing, mark: Marking, whole: set[int], groups: set[int], reexpanded: set[int]
) -> Clearing:
    """Return the selection to continue with once everything selected so far is done."""
    return replace(
        chosen,
        whole=tuple(sorted({*chosen.whole, *reexpanded})),
        reexpanded=tuple(sorted(reexpanded)),
        unrun=(),
        mark=replace(
            mark, changed=tuple(sorted(whole | reexpanded)), overtaken=tuple(sorted(groups))
        ),
    )


def consumers(run: Run, task_indexes: Iterable[int]) -> set[int]:
    """Return the mapped tasks that expand over the streams of these tasks.

    They end in the state of their stream.
    """
    found = (stream_expand.consumers(run, p) for p in task_indexes if run.spec.tasks[p].streams)
    return {taker for of_stream in found for taker in of_stream}


def _overtaken(run: Run, changed: Iterable[int]) -> tuple[set[int], set[int]]:
    """Return the dependents of ``changed`` to stop, and those whose children must be checked."""
    whole, groups = set[int](), set[int]()
    for task_index in {
        evaluator for parent in changed for evaluator in run.graph.evaluators[parent]
    }:
        if stream_expand.source_of(run, task_index) >= 0:
            continue  # the end of its stream affects only tasks after it
        group = run.groups.get(task_index)
        if group is None:
            if is_under_way(run.states[task_index]) and verdict(run, task_index) is not Verdict.RUN:
                whole.add(task_index)
        elif group.unfinished and _may_be_overtaken(group):
            groups.add(task_index)
    return whole, groups


def _may_be_overtaken(group: MappedTask) -> bool:
    return group.one_to_one is not None or verdict(group.run, group.task_index) is not Verdict.RUN


def stop_overtaken(run: Run, tx: Transaction, limit: int) -> int:
    """Stop children in progress that their trigger rule no longer allows to run.

    Args:
        limit: Maximum number of children to check.

    Returns:
        The number of checked children; less than ``limit`` if all have been checked.
    """
    mark = None if run.clearing is None else run.clearing.mark
    count = 0
    for task_index in () if mark is None else mark.overtaken:
        group = run.groups.get(task_index)
        if group is None or not _may_be_overtaken(group):
            continue
        found = _UNDER_WAY.finditer(bytes(group.states), run.checked_children.get(task_index, 0))
        for index in [match.start() for match in islice(found, limit - count)]:
            count += 1
            run.checked_children[task_index] = index + 1
            if (
                group.one_to_one is None
                or one_to_one.child_verdict(group, index) is not Verdict.RUN
            ):
                _stop(run, group.first_task_no + index, tx)
    return count


def _stop(run: Run, task_no: TaskNo, tx: Transaction) -> None:
    """Stop a task in progress that must not run, and reset it as if it had not started."""
    task = run.active_tasks[task_no]
    retry_budget.refund_retries(run, task)
    restart(stopped(task, tx), tx)


# ── run ─────────────────────────────────────────────────────────────────────────────────────


def end_again(run: Run, state: RunState, mark: Marking, tx: Transaction) -> None:
    """End a run again that had ended before the mark. A run that was cut short keeps its state."""
    assert mark.ended is not None  # noqa: S101 - checked by the caller
    was, ended_at = mark.ended
    if run.row.ended_at is None:  # the mark took more than one turn
        if not mark.is_cut_short:
            tx.change_run(run, state=RunState.RUNNING, is_reported=False)
            tx.change_run(run, state=state, is_reported=state is not was)
        tx.change_run(run, ended_at=ended_at)
    elif state is not was:
        for step in (RunState.QUEUED, RunState.RUNNING, state):
            tx.change_run(run, state=step)
    for task_index in range(len(run.states)):
        tx.task_ended(run, task_index)  # the next run treated this run as still running
    tx.memory.drop_run(run)
    tx.recheck_dags.add(run.row.dag_id)  # another run may be the first of its sequence now
