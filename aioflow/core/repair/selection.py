"""Selection of the tasks to clear: the tasks that a person names, and their dependents.

While a clear or mark is pending, its run is suspended, and an outbox row holds the selected tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from aioflow.core.state.graph import reached
from aioflow.core.state.task_instance import Run, is_under_way
from aioflow.core.tasks import one_to_one, stream_expand
from aioflow.core.tasks.expand import leaves, width
from aioflow.core.tasks.trigger_rules import Verdict, verdict
from aioflow.core.transaction import Transaction
from aioflow.errors import UnknownTask
from aioflow.model.dag import Chooses
from aioflow.model.ids import TaskNo
from aioflow.model.rows import TaskRow
from aioflow.model.states import TaskState
from aioflow.protocol.outbox import CLEAR, Clearing
from aioflow.protocol.requests import ClearTasks

__all__ = (
    "FAILED",
    "Chosen",
    "choose",
    "end_suspension",
    "exclude_child",
    "exclude_task",
    "is_chosen_away",
    "is_reexpanded",
    "left_failed",
    "named",
    "skipped_children",
    "suspend_run",
)

_encode = msgspec.msgpack.Encoder().encode


def suspend_run(run: Run, chosen: Clearing, tx: Transaction) -> None:
    """Suspend a run for this selection, which replaces an earlier selection."""
    end_suspension(run, tx)
    tx.runs[run.run_no] = run
    tx.memory.clearings[run.run_no] = (tx.outbox.add(CLEAR, _encode(chosen)), chosen)
    run.clearing = chosen
    run.checked_children = {}


def end_suspension(run: Run, tx: Transaction) -> None:
    """Delete the selection and end the suspension."""
    if run.clearing is not None:
        run.clearing = None
        number, _ = tx.memory.clearings.pop(run.run_no)
        tx.outbox.delete(number)


def exclude_task(run: Run, task_index: int, index: int, tx: Transaction) -> None:
    """Remove a task from the selection, because a branch that has just ended skips it."""
    chosen = run.clearing
    if chosen is None or task_index in chosen.reexpanded or task_index not in chosen.task_indexes:
        return
    if index < 0:
        suspend_run(
            run, replace(chosen, retained=tuple(sorted({*chosen.retained, task_index}))), tx
        )
        return
    excluded = dict(chosen.excluded)
    own = {task_index: bytearray(excluded[task_index])} if task_index in excluded else {}
    exclude_child(own, run, task_index, index)
    excluded[task_index] = bytes(own[task_index])
    suspend_run(run, replace(chosen, excluded=tuple(sorted(excluded.items()))), tx)


def exclude_child(excluded: dict[int, bytearray], run: Run, task_index: int, index: int) -> None:
    """Exclude a child from the selection.

    Exclusions are stored as one bit per child of a mapped task.
    """
    bits = excluded.setdefault(task_index, bytearray(run.groups[task_index].width + 7 >> 3))
    bits[index >> 3] |= 1 << (index & 7)


FAILED = frozenset({TaskState.FAILED, TaskState.UPSTREAM_FAILED, TaskState.CANCELLED})
"""The final states that the option "only failed" selects."""

_CHOOSING = frozenset({Chooses.CHILDREN, Chooses.ALL})
"""Kinds of tasks that may skip other tasks."""


class Chosen:
    """Selected tasks of a run.

    Attributes:
        whole: Indexes of tasks that are selected as a whole, with all their children.
        failed: Indexes of mapped tasks of which only the failed children are selected.
        children: For other mapped tasks, the map indexes of the selected children, by task index.
        reexpanded: Mapped tasks among ``whole`` that will be expanded again.
    """

    def __init__(self) -> None:
        self.whole: set[int] = set()
        self.failed: set[int] = set()
        self.children: defaultdict[int, set[int]] = defaultdict(set)
        self.reexpanded: set[int] = set()

    @property
    def task_indexes(self) -> set[int]:
        """The indexes of tasks that are selected or have at least one selected child."""
        return self.whole | self.failed | self.children.keys()

    def includes(self, task_index: int, index: int, run: Run) -> bool:
        """Return whether a child of a mapped task is selected."""
        if task_index in self.failed:
            return run.groups[task_index].states[index] in FAILED
        return task_index in self.whole or index in self.children.get(task_index, ())


def named(run: Run, task_id: str, map_index: int) -> int:
    """Return the index of the task that a person names.

    If the map index is 0 or more, the task must have a child with this index.

    Raises:
        UnknownTask: If the run has no such task, or the task has no such child.
    """
    task_index = run.graph.index_of.get(task_id)
    if task_index is None:
        raise UnknownTask(run.row.run_id, task_id)
    group = run.groups.get(task_index)
    if map_index >= (0 if group is None else group.width):
        raise UnknownTask(run.row.run_id, task_id, map_index)
    return task_index


def choose(request: ClearTasks, run: Run, rows: Mapping[TaskNo, TaskRow]) -> Clearing:
    """Return the selection of a request, with all tasks that must be cleared together with it.

    Args:
        request: The request. The tasks and the child that it names must exist.
        rows: The rows of the unmapped tasks of the run, and of ``skipped_children``.
    """
    chosen = _asked(request, run)
    if request.failed:
        chosen = _failed_of(chosen, run)
    _complete(chosen, run)
    retained, excluded = _chosen_away(chosen, run, rows.values())
    return Clearing(
        run.run_no,
        whole=tuple(sorted(chosen.whole)),
        failed=tuple(sorted(chosen.failed)),
        children=tuple(sorted((p, i) for p, found in chosen.children.items() for i in found)),
        reexpanded=tuple(sorted(chosen.reexpanded)),
        retained=tuple(sorted(retained)),
        excluded=tuple(
            (task_index, bytes(excluded[task_index])) for task_index in sorted(excluded)
        ),
    )


def left_failed(run: Run, tasks: Iterable[str], clearing: Clearing | None) -> list[str]:
    """Return the tasks downstream of ``tasks`` that ``clearing`` leaves ``upstream_failed``."""
    graph = run.graph
    known = (graph.index_of[task_id] for task_id in tasks if task_id in graph.index_of)
    first = {child for task_index in known for child in graph.children[task_index]}
    chosen = () if clearing is None else (*clearing.whole, *clearing.failed)
    return [
        run.spec.tasks[task_index].task_id
        for task_index in sorted(reached(first, graph.children) - set(chosen))
        if _is_failed_upstream(task_index, run)
    ]


def _is_failed_upstream(task_index: int, run: Run) -> bool:
    group = run.groups.get(task_index)
    if group is None:
        return run.states[task_index] == TaskState.UPSTREAM_FAILED
    return group.counts[TaskState.UPSTREAM_FAILED] > 0


def _asked(request: ClearTasks, run: Run) -> Chosen:
    """Return the tasks that a person names and, if requested, their downstream tasks."""
    graph, chosen = run.graph, Chosen()
    asked = [graph.index_of[task_id] for task_id in request.tasks]
    for task_index in asked or range(len(run.states)):
        if request.map_indexes:
            chosen.children[task_index] = set(request.map_indexes)
        elif request.map_index < 0:
            chosen.whole.add(task_index)
        else:
            chosen.children[task_index] = {request.map_index}
    if request.downstream:
        first = {
            child for task_index in chosen.task_indexes for child in graph.children[task_index]
        }
        chosen.whole |= reached(first, graph.children)
    return chosen


def _chosen_away(
    chosen: Chosen, run: Run, rows: Iterable[TaskRow]
) -> tuple[set[int], dict[int, bytearray]]:
    """Return the tasks and children that stay skipped because their branch is not cleared."""
    retained: set[int] = set()
    excluded: dict[int, bytearray] = {}
    if not any(task.chooses in _CHOOSING for task in run.spec.tasks):
        return retained, excluded
    for row in rows:
        task_index, index = row.task_index, row.map_index
        is_meant = chosen.includes(task_index, index, run) and task_index not in chosen.reexpanded
        if not is_meant and not (index < 0 and task_index in chosen.whole):
            continue
        if not is_chosen_away(row, chosen, run):
            continue
        if index < 0:
            retained.add(task_index)
        else:
            exclude_child(excluded, run, task_index, index)
    return retained, excluded


def skipped_children(run: Run) -> Iterator[TaskNo]:
    """Yield the children of mapped task groups that a branch inside the group may have skipped."""
    skipped = bytes((TaskState.SKIPPED,))
    for task_index, group in run.groups.items():
        if group.counts[TaskState.SKIPPED] and _choosers_within(task_index, run):
            at = group.states.find(skipped)
            while at >= 0:
                yield group.first_task_no + at
                at = group.states.find(skipped, at + 1)


def _failed_of(chosen: Chosen, run: Run) -> Chosen:
    failed = Chosen()
    for task_index in chosen.whole:
        group = run.groups.get(task_index)
        if group is None:
            if run.states[task_index] in FAILED:
                failed.whole.add(task_index)
        elif any(group.counts[state] for state in FAILED):
            failed.failed.add(task_index)
    for task_index, indexes in chosen.children.items():
        group = run.groups.get(task_index)
        found = {index for index in indexes if group and group.states[index] in FAILED}
        if found and task_index not in chosen.whole:
            failed.children[task_index] = found
    return failed


def _complete(chosen: Chosen, run: Run) -> None:
    """Add the tasks that must be cleared together with selected ones, until none is missing."""
    scopes = [_scope(task_index, run) for task_index, t in enumerate(run.spec.tasks) if t.is_setup]
    before = -1
    while len(chosen.whole) > before:
        before = len(chosen.whole)
        for around, within in scopes:
            if within & chosen.task_indexes:
                chosen.whole |= around
        for task_index in chosen.task_indexes:
            if run.spec.tasks[task_index].streams:
                chosen.whole.update(stream_expand.consumers(run, task_index))
            chosen.whole |= _loop_of(task_index, run)
            children = run.graph.children[task_index]
            chosen.whole.update(at for at in children if _is_under_way(at, run))
        for task_index in run.groups:
            if is_reexpanded(task_index, chosen, run):
                chosen.whole.add(task_index)
                chosen.reexpanded.add(task_index)
    chosen.failed -= chosen.whole
    for task_index in chosen.whole:
        chosen.children.pop(task_index, None)


def _scope(setup: int, run: Run) -> tuple[set[int], set[int]]:
    """Return a setup with its teardowns, and the tasks that cannot be cleared without them.

    The setup and its teardowns must run again, because a teardown has removed the setup's
    resources.
    """
    graph = run.graph
    teardowns = {p for p in graph.children[setup] if run.spec.tasks[p].is_teardown}
    between = reached({setup}, graph.children) & reached(teardowns, graph.parents)
    return {setup, *teardowns}, {setup, *between}


def _is_under_way(task_index: int, run: Run) -> bool:
    """Return whether a task is in progress. Its input must not change meanwhile."""
    group = run.groups.get(task_index)
    if group is None:
        return is_under_way(run.states[task_index])
    return not group.is_over and run.states[task_index] != TaskState.PENDING


def is_reexpanded(task_index: int, chosen: Chosen, run: Run) -> bool:
    """Return whether the input of a mapped task is cleared as well, or no longer exists."""
    if chosen.reexpanded.intersection(run.graph.indexed[task_index]):  # child by child
        return True
    if chosen.task_indexes & _loop_of(task_index, run):
        return True
    is_chosen = task_index in chosen.task_indexes
    if not is_chosen and run.groups[task_index].is_over:
        return False
    lists = _lists(task_index, run)
    gone = {p for p in lists if _is_gone(p, run.groups[task_index].width, run)}
    missing = (p for p in run.graph.indexed[task_index] if p not in run.groups)
    gone.update(p for p in missing if p in chosen.task_indexes or run.states[p] < TaskState.SUCCESS)
    return bool(lists & chosen.task_indexes) or bool(gone)


def _is_gone(source: int, width: int, run: Run) -> bool:
    """Return whether the input of a mapped task of this width no longer exists."""
    if run.spec.tasks[source].streams:  # deleted by a clear that a cancel cut short
        return width > 0 and stream_expand.item_count(run, source) == 0
    return source not in run.widths


def _loop_of(task_index: int, run: Run) -> set[int]:
    """Return the tasks of a task's loop. They restart together at the first iteration."""
    mapped = run.spec.tasks[task_index].mapped
    return set() if mapped is None or mapped.until < 0 else {task_index, *mapped.along}


def _lists(task_index: int, run: Run) -> set[int]:
    """Return the unmapped tasks whose results a mapped task expands over."""
    tasks = run.spec.tasks
    mapped = tasks[task_index].mapped
    made = () if mapped is None else leaves(mapped.sources)
    return {
        leaf.task_index
        for leaf in made
        if leaf.task_index >= 0 and tasks[leaf.task_index].mapped is None
    }


def is_chosen_away(row: TaskRow, chosen: Chosen, run: Run) -> bool:
    """Return whether a branch or short circuit that is not cleared has skipped this task.

    Such a task never ran, and its trigger rule alone would lead to another state.
    """
    if row.state is not TaskState.SKIPPED or row.try_number > 0:
        return False
    if row.map_index >= 0:
        return _is_child_chosen_away(row, chosen, run)
    tasks, task_index = run.spec.tasks, row.task_index
    choosers = {p for p in run.graph.parents[task_index] if tasks[p].chooses in _CHOOSING}
    if any(task.chooses is Chooses.ALL for task in tasks):
        above = reached({task_index}, run.graph.parents)
        choosers |= {p for p in above if tasks[p].chooses is Chooses.ALL}
    if not choosers - chosen.task_indexes or _is_empty(task_index, run):
        return False
    return verdict(run, task_index) is not Verdict.SKIP


def _is_child_chosen_away(row: TaskRow, chosen: Chosen, run: Run) -> bool:
    """Return whether a branch in the mapped group has skipped this child and is not cleared."""
    task_index, index = row.task_index, row.map_index
    choosers = _choosers_within(task_index, run)
    stay = any(not chosen.includes(chooser, index, run) for chooser in choosers)
    return stay and verdict(run, task_index, index) is Verdict.RUN


def _choosers_within(task_index: int, run: Run) -> set[int]:
    """Return the branches and short circuits that a mapped task depends on child by child."""
    tasks, indexed = run.spec.tasks, run.graph.indexed[task_index]
    if not indexed:
        return set()
    choosers = {p for p in indexed if tasks[p].chooses in _CHOOSING}
    every = {p for p in choosers if tasks[p].chooses is Chooses.ALL}
    direct = choosers & set(run.graph.parents[task_index])
    return direct | (every & reached({task_index}, run.graph.parents))


def _is_empty(task_index: int, run: Run) -> bool:
    """Return whether a task was skipped because its input was empty."""
    mapped = run.spec.tasks[task_index].mapped
    if mapped is None:
        return False
    known = one_to_one.widths(run, mapped)
    return width(mapped, [size or 0 for size in known]) == 0
