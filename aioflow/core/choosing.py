"""Which tasks a person means who clears some of a run, and which have to go with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from aioflow.core import following, growing
from aioflow.core.judging import verdict
from aioflow.core.live import Run
from aioflow.core.mapping import leaves, width
from aioflow.core.rules import Verdict
from aioflow.core.scopes import reached
from aioflow.model import Chooses, TaskState
from aioflow.requests import ClearTasks
from aioflow.rows import TaskRow

__all__ = ("Chosen", "choose", "is_chosen_away", "is_made_anew")

_FAILED = frozenset({TaskState.FAILED, TaskState.UPSTREAM_FAILED, TaskState.CANCELLED})


class Chosen:
    """Tasks of a run.

    Attributes:
        whole: Positions all of whose tasks are.
        children: Of other positions, the map indexes that are.
        anew: Mapped tasks among ``whole`` that will be expanded anew.
    """

    def __init__(self) -> None:
        self.whole: set[int] = set()
        self.children: defaultdict[int, set[int]] = defaultdict(set)
        self.anew: set[int] = set()
        self._kept: set[int] = set()

    @property
    def positions(self) -> set[int]:
        """Those of which something is chosen."""
        return self.whole | self.children.keys()

    def has(self, row: TaskRow) -> bool:
        """Whether a task is chosen, and there is something to clear about it."""
        if row.state is TaskState.REMOVED:  # needed again where it may end without children
            return row.map_index < 0 and row.position in self.anew
        if row.state is TaskState.PENDING or row.task_no in self._kept:
            return False
        return self.includes(row.position, row.map_index)

    def includes(self, position: int, map_index: int) -> bool:
        """Whether a task is among those that are meant."""
        return position in self.whole or map_index in self.children.get(position, ())

    def keep(self, row: TaskRow) -> None:
        """Leave a task as it is."""
        self._kept.add(row.task_no)


def choose(request: ClearTasks, run: Run, rows: Sequence[TaskRow]) -> Chosen:
    """Return what a request is about, with all that has to be cleared along with it.

    Args:
        request: Its tasks and the child it names are there.
        rows: All of the run.
    """
    graph, chosen = run.graph, Chosen()
    named = [graph.position_of[task_id] for task_id in request.tasks]
    for position in named or range(len(run.states)):
        if request.map_index < 0:
            chosen.whole.add(position)
        else:
            chosen.children[position].add(request.map_index)
    if request.downstream:
        first = {child for position in chosen.positions for child in graph.children[position]}
        chosen.whole |= reached(first, graph.children)
    if request.failed:
        chosen = _failed_of(chosen, rows)
    _complete(chosen, run)
    for row in rows:
        if chosen.has(row) and is_chosen_away(row, chosen, run):
            chosen.keep(row)
    return chosen


def _failed_of(chosen: Chosen, rows: Sequence[TaskRow]) -> Chosen:
    failed = Chosen()
    for row in rows:
        if row.state in _FAILED and chosen.has(row):
            if row.map_index < 0:
                failed.whole.add(row.position)
            else:
                failed.children[row.position].add(row.map_index)
    return failed


def _complete(chosen: Chosen, run: Run) -> None:
    """Add what cannot stay as it is beside what is chosen, until nothing is left to add."""
    before = -1
    while len(chosen.whole) > before:
        before = len(chosen.whole)
        for position in list(chosen.positions):
            chosen.whole |= _companions(position, run)
        for position in chosen.positions:
            chosen.whole.update(
                child for child in run.graph.children[position] if _is_under_way(child, run)
            )
        for position in run.groups:
            if is_made_anew(position, chosen, run):
                chosen.whole.add(position)
                chosen.anew.add(position)
    for position in chosen.whole:
        chosen.children.pop(position, None)


def _companions(position: int, run: Run) -> set[int]:
    """Return what goes with a task: setups and teardowns around it, its loop, its stream's takers.

    What a setup has made was taken away by its teardown.
    """
    graph, tasks = run.graph, run.spec.tasks
    found = set(growing.takers(run, position)) if tasks[position].streams else set()
    found |= _loop_of(position, run)
    before = reached({position}, graph.parents)
    for setup in (p for p in before if tasks[p].is_setup):
        teardowns = {child for child in graph.children[setup] if tasks[child].is_teardown}
        if position == setup or reached({position}, graph.children) & teardowns:
            found |= {setup, *teardowns}
    return found


def _is_under_way(position: int, run: Run) -> bool:
    """Whether something of a task goes on: what it was given must not change meanwhile."""
    group = run.groups.get(position)
    if group is None:
        return TaskState.PENDING < run.states[position] < TaskState.SUCCESS
    return not group.is_over and run.states[position] != TaskState.PENDING


def is_made_anew(position: int, chosen: Chosen, run: Run) -> bool:
    """Whether what a fan-out is made from is cleared, too, or is not there any more."""
    if chosen.anew.intersection(run.graph.indexed[position]):  # it follows others, one by one
        return True
    if chosen.positions & _loop_of(position, run):
        return True
    is_chosen = position in chosen.positions
    if not is_chosen and run.groups[position].is_over:
        return False
    lists = _lists(position, run)
    gone = {p for p in lists if p not in run.widths and not run.spec.tasks[p].streams}
    gone.update(p for p in run.graph.indexed[position] if p not in run.groups)
    return bool(lists & chosen.positions) or bool(gone)


def _loop_of(position: int, run: Run) -> set[int]:
    """Return the tasks of the loop a task is in, which begins anew with its first round."""
    mapped = run.spec.tasks[position].mapped
    return set() if mapped is None or mapped.until < 0 else {position, *mapped.along}


def _lists(position: int, run: Run) -> set[int]:
    """Return the tasks that make what a fan-out is over, but for those that are fan-outs."""
    tasks = run.spec.tasks
    mapped = tasks[position].mapped
    made = () if mapped is None else leaves(mapped.sources)
    return {
        leaf.position for leaf in made if leaf.position >= 0 and tasks[leaf.position].mapped is None
    }


def is_chosen_away(row: TaskRow, chosen: Chosen, run: Run) -> bool:
    """Whether a branch or short circuit that is not cleared has had this task skipped.

    By its rule it would be something else, and it never ran.
    """
    if row.state is not TaskState.SKIPPED or row.try_number > 0:
        return False
    tasks, position = run.spec.tasks, row.position
    choosers = {p for p in run.graph.parents[position] if tasks[p].chooses}
    above = reached({position}, run.graph.parents)
    choosers |= {p for p in above if tasks[p].chooses is Chooses.ALL}
    if row.map_index >= 0:
        choosers &= run.graph.indexed[position]
        stay = any(not chosen.includes(chooser, row.map_index) for chooser in choosers)
        return stay and verdict(run, position, row.map_index) is Verdict.RUN
    if not choosers - chosen.positions or _is_empty(position, run):
        return False
    return verdict(run, position) is not Verdict.SKIP


def _is_empty(position: int, run: Run) -> bool:
    """Whether a task was skipped because there was nothing to expand over."""
    mapped = run.spec.tasks[position].mapped
    if mapped is None:
        return False
    known = following.widths(run, mapped)
    return width(mapped, [size or 0 for size in known]) == 0
