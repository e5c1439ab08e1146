"""Mapped tasks that grow with a stream: opened at its first item, closed when its producer ends.

While such a task is open, it counts as one more instance than it has children, so that a rule that
needs all instances cannot be satisfied. When the stream succeeds, the extra instance is removed.
Otherwise the extra instance counts as ended, in the state that the end of the stream adds.
"""

from __future__ import annotations

from collections.abc import Iterator

from aioflow.core.state.task_instance import MappedTask, Run
from aioflow.core.tasks.expand import WIDTH_LIMIT
from aioflow.core.tasks.readiness import fresh
from aioflow.core.transaction import Transaction
from aioflow.model.rows import ExpansionRow
from aioflow.model.states import TaskState

__all__ = (
    "close",
    "close_left_open",
    "consumers",
    "count",
    "cut_of",
    "grow",
    "has_begun",
    "item_count",
    "open_group",
    "restore",
    "source_of",
)


def source_of(run: Run, task_index: int) -> int:
    """Return the producer whose items a mapped task takes as they are yielded; -1 for none."""
    mapped = run.spec.tasks[task_index].mapped
    if mapped is None or len(mapped.sources) != 1:
        return -1
    source = mapped.sources[0].task_index
    return source if source >= 0 and run.spec.tasks[source].streams else -1


def consumers(run: Run, task_index: int) -> list[int]:
    """Return the tasks that expand over a stream."""
    return [
        child for child in run.graph.children[task_index] if source_of(run, child) == task_index
    ]


def has_begun(run: Run, task_index: int) -> bool:
    """Return whether a task expands over a stream that has yielded items and has not ended."""
    source = source_of(run, task_index)
    return source >= 0 and run.states[source] < TaskState.SUCCESS and item_count(run, source) > 0


def open_group(run: Run, task_index: int, tx: Transaction) -> None:
    """Expand a mapped task over the items yielded so far."""
    remove_unexpanded(run, task_index, tx)
    limit = min(run.spec.tasks[task_index].map_limit, WIDTH_LIMIT)
    row = ExpansionRow(
        run_no=run.run_no,
        task_index=task_index,
        width=item_count(run, source_of(run, task_index)),
        first_task_no=tx.numbers.take(limit),
        is_open=True,
    )
    group = run.groups[task_index] = MappedTask(run, row)
    tx.change_group(group, -1)
    run.states[task_index] = TaskState.RUNNING
    run.widen(task_index, group.width + 1)
    tx.slots.offer(group)


def grow(run: Run, task_index: int, tx: Transaction) -> None:
    """Add a child for each new item."""
    group = run.groups[task_index]
    tx.change_group(group, group.width)
    had_fresh = group.has_fresh
    more = item_count(run, source_of(run, task_index)) - group.width
    for _ in range(more):
        group.grow()
    run.widen(task_index, more + 1)
    if not had_fresh and group.has_fresh:
        tx.slots.offer(group)


def close(run: Run, task_index: int, tx: Transaction) -> Iterator[int]:
    """Close the mapped tasks over a stream that has ended. Yield the tasks to evaluate."""
    for taker in consumers(run, task_index):
        group = run.groups.get(taker)
        if group is None or not group.is_open:
            continue
        tx.change_group(group, group.width)
        group.is_open = False
        group.cut = cut_of(run, task_index, group.width)
        if group.cut is TaskState.PENDING:
            run.widen(taker, 0)
        else:
            run.count_ended(taker, group.cut)
        if group.is_over:
            run.end_group(group)
            tx.task_ended(run, group.task_index)
        yield from run.graph.evaluators[taker]


def close_left_open(run: Run, tx: Transaction) -> None:
    """Close mapped tasks that were open when their run ended early, if their source has ended."""
    for task_index, group in run.groups.items():
        if group.is_open and _is_cut_short(run, group):
            tx.change_group(group, group.width)
            group.is_open = False
            source = source_of(run, task_index)
            if source >= 0:
                group.cut = cut_of(run, source, group.width)
            tx.task_ended(run, task_index)


def _is_cut_short(run: Run, group: MappedTask) -> bool:
    """Return whether an open mapped task gets no more children.

    This is the case if its stream, or the decider of its loop, has ended.
    """
    mapped = run.spec.tasks[group.task_index].mapped
    if group.is_loop and mapped is not None:
        decider = run.groups.get(mapped.until)
        last = run.states[mapped.until] if decider is None else decider.states[-1]
        return last >= TaskState.SUCCESS
    source = source_of(run, group.task_index)
    return source >= 0 and run.states[source] >= TaskState.SUCCESS


def restore(run: Run, row: ExpansionRow) -> None:
    """Restore the state that the end of a stream added to a mapped task over the stream.

    All tasks must already be restored.
    """
    source = source_of(run, row.task_index)
    if source >= 0 and not row.is_open:
        run.groups[row.task_index].cut = cut_of(run, source, row.width)


def count(group: MappedTask) -> None:
    """Add the instances of a mapped task to the tallies, except the ends of its children."""
    run = group.run
    if group.is_loop:
        return  # still one instance, as before the expansion
    if group.is_open or group.cut is not TaskState.PENDING:
        run.widen(group.task_index, group.width + 1)
    else:
        run.widen(group.task_index, group.width)
    if group.cut is not TaskState.PENDING:
        run.count_ended(group.task_index, group.cut)


def cut_of(run: Run, source: int, width: int) -> TaskState:
    """Return the state that the end of a stream adds to the states of its consumer's children.

    It is ``PENDING`` if the end adds none.
    """
    match run.states[source]:
        case TaskState.SUCCESS:
            return TaskState.PENDING if width else TaskState.SKIPPED
        case TaskState.SKIPPED:
            return TaskState.SKIPPED
        case _:
            return TaskState.UPSTREAM_FAILED


def item_count(run: Run, source: int) -> int:
    """Return the number of items of a stream; 0 if it was cleared."""
    items = run.items.get(run.task_no(source, -1))
    return 0 if items is None else items.count


def remove_unexpanded(run: Run, task_index: int, tx: Transaction) -> None:
    """Remove the row of a mapped task that had ended without expanding, because it now expands."""
    task_no = run.task_no(task_index, -1)
    if task_no in run.cleared:
        task = fresh(run, task_index, -1)
        tx.move(task, TaskState.REMOVED)
        run.removed[task_no] = task.start_no
