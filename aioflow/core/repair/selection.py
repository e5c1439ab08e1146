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
    run.looked = {}


def end_suspension(run: Run, tx: Transaction) -> None:
    """Delete the selection and end the suspension."""
    if run.clearing is not None:
        run.clearing = None
        number, _ = tx.memory.clearings.pop(run.run_no)
        tx.outbox.write_off(number)


def exclude_task(run: Run, position: int, index: int, tx: Transaction) -> None:
    """Remove a task from the selection, because a branch that has just ended skipped it."""
    chosen = run.clearing
    if chosen is None or position in chosen.reexpanded or position not in chosen.positions:
        return
    if index < 0:
        suspend_run(run, replace(chosen, retained=tuple(sorted({*chosen.retained, position}))), tx)
        return
    excluded = dict(chosen.excluded)
    own = {position: bytearray(excluded[position])} if position in excluded else {}
    exclude_child(own, run, position, index)
    excluded[position] = bytes(own[position])
    suspend_run(run, replace(chosen, excluded=tuple(sorted(excluded.items()))), tx)


def exclude_child(excluded: dict[int, bytearray], run: Run, position: int, index: int) -> None:
    """Exclude a child from the selection.

    Exclusions are stored as one bit per child of a mapped task.
    """
    bits = excluded.setdefault(position, bytearray(run.groups[position].width + 7 >> 3))
    bits[index >> 3] |= 1 << (index & 7)


FAILED = frozenset({TaskState.FAILED, TaskState.UPSTREAM_FAILED, TaskState.CANCELLED})
"""The final states that the option "only failed" selects."""

_CHOOSING = frozenset({Chooses.CHILDREN, Chooses.ALL})
"""Kinds of tasks that may skip other tasks."""


class Chosen:
    """Selected tasks of a run.

    Attributes:
        whole: Positions whose tasks are all selected.
        failed: Other positions, whose failed tasks are selected.
        children: Selected map indexes of other positions.
        reexpanded: Mapped tasks among ``whole`` that will be expanded again.
    """

    def __init__(self) -> None:
        self.whole: set[int] = set()
        self.failed: set[int] = set()
        self.children: defaultdict[int, set[int]] = defaultdict(set)
        self.reexpanded: set[int] = set()

    @property
    def positions(self) -> set[int]:
        """The positions with at least one selected task."""
        return self.whole | self.failed | self.children.keys()

    def includes(self, position: int, index: int, run: Run) -> bool:
        """Return whether a child of a mapped task is selected."""
        if position in self.failed:
            return run.groups[position].states[index] in FAILED
        return position in self.whole or index in self.children.get(position, ())


def named(run: Run, task_id: str, map_index: int) -> int:
    """Return the position of a task that a person names.

    A map index of 0 or more must be one of its children.

    Raises:
        UnknownTask: If the run has no such task, or the task no such child.
    """
    position = run.graph.position_of.get(task_id)
    if position is None:
        raise UnknownTask(run.row.run_id, task_id)
    group = run.groups.get(position)
    if map_index >= (0 if group is None else group.width):
        raise UnknownTask(run.row.run_id, task_id, map_index)
    return position


def choose(request: ClearTasks, run: Run, rows: Mapping[TaskNo, TaskRow]) -> Clearing:
    """Return the selection of a request, with all tasks that must be cleared together with it.

    Args:
        request: The request. Its tasks, and the child that it names, exist.
        rows: The rows of the unmapped tasks of the run, and of those in ``skipped_children``.
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
        excluded=tuple((position, bytes(excluded[position])) for position in sorted(excluded)),
    )


def left_failed(run: Run, tasks: Iterable[str]) -> list[str]:
    """Return tasks after these that are ``upstream_failed`` and are not being cleared."""
    graph = run.graph
    known = (graph.position_of[task_id] for task_id in tasks if task_id in graph.position_of)
    first = {child for position in known for child in graph.children[position]}
    chosen = () if run.clearing is None else (*run.clearing.whole, *run.clearing.failed)
    return [
        run.spec.tasks[position].task_id
        for position in sorted(reached(first, graph.children) - set(chosen))
        if _is_failed_upstream(position, run)
    ]


def _is_failed_upstream(position: int, run: Run) -> bool:
    group = run.groups.get(position)
    if group is None:
        return run.states[position] == TaskState.UPSTREAM_FAILED
    return group.counts[TaskState.UPSTREAM_FAILED] > 0


def _asked(request: ClearTasks, run: Run) -> Chosen:
    """Return the tasks that a person names and, if requested, the tasks after them."""
    graph, chosen = run.graph, Chosen()
    asked = [graph.position_of[task_id] for task_id in request.tasks]
    for position in asked or range(len(run.states)):
        if request.map_index < 0:
            chosen.whole.add(position)
        else:
            chosen.children[position] = {request.map_index}
    if request.downstream:
        first = {child for position in chosen.positions for child in graph.children[position]}
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
        position, index = row.position, row.map_index
        is_meant = chosen.includes(position, index, run) and position not in chosen.reexpanded
        if not is_meant and not (index < 0 and position in chosen.whole):
            continue
        if not is_chosen_away(row, chosen, run):
            continue
        if index < 0:
            retained.add(position)
        else:
            exclude_child(excluded, run, position, index)
    return retained, excluded


def skipped_children(run: Run) -> Iterator[TaskNo]:
    """Yield the children of mapped groups that a branch within the group may have skipped."""
    skipped = bytes((TaskState.SKIPPED,))
    for position, group in run.groups.items():
        if group.counts[TaskState.SKIPPED] and _choosers_within(position, run):
            at = group.states.find(skipped)
            while at >= 0:
                yield group.first_task_no + at
                at = group.states.find(skipped, at + 1)


def _failed_of(chosen: Chosen, run: Run) -> Chosen:
    failed = Chosen()
    for position in chosen.whole:
        group = run.groups.get(position)
        if group is None:
            if run.states[position] in FAILED:
                failed.whole.add(position)
        elif any(group.counts[state] for state in FAILED):
            failed.failed.add(position)
    for position, indexes in chosen.children.items():
        group = run.groups.get(position)
        found = {index for index in indexes if group and group.states[index] in FAILED}
        if found and position not in chosen.whole:
            failed.children[position] = found
    return failed


def _complete(chosen: Chosen, run: Run) -> None:
    """Add tasks that must be cleared together with the selected ones, until none is left to add."""
    scopes = [_scope(position, run) for position, t in enumerate(run.spec.tasks) if t.is_setup]
    before = -1
    while len(chosen.whole) > before:
        before = len(chosen.whole)
        for around, within in scopes:
            if within & chosen.positions:
                chosen.whole |= around
        for position in chosen.positions:
            if run.spec.tasks[position].streams:
                chosen.whole.update(stream_expand.takers(run, position))
            chosen.whole |= _loop_of(position, run)
            children = run.graph.children[position]
            chosen.whole.update(at for at in children if _is_under_way(at, run))
        for position in run.groups:
            if is_reexpanded(position, chosen, run):
                chosen.whole.add(position)
                chosen.reexpanded.add(position)
    chosen.failed -= chosen.whole
    for position in chosen.whole:
        chosen.children.pop(position, None)


def _scope(setup: int, run: Run) -> tuple[set[int], set[int]]:
    """Return a setup with its teardowns, and the tasks whose clearing requires clearing them.

    Setup and teardowns must run again, because a teardown has removed the setup's resources.
    """
    graph = run.graph
    teardowns = {p for p in graph.children[setup] if run.spec.tasks[p].is_teardown}
    between = reached({setup}, graph.children) & reached(teardowns, graph.parents)
    return {setup, *teardowns}, {setup, *between}


def _is_under_way(position: int, run: Run) -> bool:
    """Return whether a task is in progress. Its input must not change while it is."""
    group = run.groups.get(position)
    if group is None:
        return is_under_way(run.states[position])
    return not group.is_over and run.states[position] != TaskState.PENDING


def is_reexpanded(position: int, chosen: Chosen, run: Run) -> bool:
    """Return whether the input of a fan-out is cleared as well or no longer exists."""
    if chosen.reexpanded.intersection(run.graph.indexed[position]):  # child by child
        return True
    if chosen.positions & _loop_of(position, run):
        return True
    is_chosen = position in chosen.positions
    if not is_chosen and run.groups[position].is_over:
        return False
    lists = _lists(position, run)
    gone = {p for p in lists if _is_gone(p, run.groups[position].width, run)}
    missing = (p for p in run.graph.indexed[position] if p not in run.groups)
    gone.update(p for p in missing if p in chosen.positions or run.states[p] < TaskState.SUCCESS)
    return bool(lists & chosen.positions) or bool(gone)


def _is_gone(source: int, width: int, run: Run) -> bool:
    """Return whether the input of a fan-out of this width no longer exists."""
    if run.spec.tasks[source].streams:  # deleted by a clear that a cancel cut short
        return width > 0 and stream_expand.given(run, source) == 0
    return source not in run.widths


def _loop_of(position: int, run: Run) -> set[int]:
    """Return the tasks of the loop of a task. They restart together with the first iteration."""
    mapped = run.spec.tasks[position].mapped
    return set() if mapped is None or mapped.until < 0 else {position, *mapped.along}


def _lists(position: int, run: Run) -> set[int]:
    """Return the tasks whose results a fan-out expands over, except those that are fan-outs."""
    tasks = run.spec.tasks
    mapped = tasks[position].mapped
    made = () if mapped is None else leaves(mapped.sources)
    return {
        leaf.position for leaf in made if leaf.position >= 0 and tasks[leaf.position].mapped is None
    }


def is_chosen_away(row: TaskRow, chosen: Chosen, run: Run) -> bool:
    """Return whether a branch or short circuit that is not cleared has skipped this task.

    The task never ran, and its trigger rule alone would give another state.
    """
    if row.state is not TaskState.SKIPPED or row.try_number > 0:
        return False
    if row.map_index >= 0:
        return _is_child_chosen_away(row, chosen, run)
    tasks, position = run.spec.tasks, row.position
    choosers = {p for p in run.graph.parents[position] if tasks[p].chooses in _CHOOSING}
    if any(task.chooses is Chooses.ALL for task in tasks):
        above = reached({position}, run.graph.parents)
        choosers |= {p for p in above if tasks[p].chooses is Chooses.ALL}
    if not choosers - chosen.positions or _is_empty(position, run):
        return False
    return verdict(run, position) is not Verdict.SKIP


def _is_child_chosen_away(row: TaskRow, chosen: Chosen, run: Run) -> bool:
    """Return whether a branch in its mapped group that is not cleared has skipped a child."""
    position, index = row.position, row.map_index
    choosers = _choosers_within(position, run)
    stay = any(not chosen.includes(chooser, index, run) for chooser in choosers)
    return stay and verdict(run, position, index) is Verdict.RUN


def _choosers_within(position: int, run: Run) -> set[int]:
    """Return the branches and short circuits that a mapped task depends on child by child."""
    tasks, indexed = run.spec.tasks, run.graph.indexed[position]
    if not indexed:
        return set()
    choosers = {p for p in indexed if tasks[p].chooses in _CHOOSING}
    every = {p for p in choosers if tasks[p].chooses is Chooses.ALL}
    direct = choosers & set(run.graph.parents[position])
    return direct | (every & reached({position}, run.graph.parents))


def _is_empty(position: int, run: Run) -> bool:
    """Return whether a task was skipped because its input was empty."""
    mapped = run.spec.tasks[position].mapped
    if mapped is None:
        return False
    known = one_to_one.widths(run, mapped)
    return width(mapped, [size or 0 for size in known]) == 0
