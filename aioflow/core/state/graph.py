"""The dependency graph of a DAG, and the DAG version that contains it.

The engine walks ``Graph``, which is built once per DAG version and shared by all its runs. The
engine loops over task indexes and never recurses, because a chain of tasks may have any length.

A task that is declared as a teardown is the teardown of each setup among its parents. The scope of
a setup is everything after it and before one of its teardowns; without teardowns, everything after
it. As in Airflow, no task in a scope runs unless the setup has succeeded, whatever the trigger rule
of the task is. Exceptions are tasks with the rule ``always`` and the direct children of the setup.
No teardown runs before everything in its scope has ended.

Ended parents are counted in *tallies*. The graph numbers the tallies, and each run stores their
counts.
"""

from __future__ import annotations

import heapq
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from aioflow.core.state.dependency_cycles import cycles
from aioflow.core.tasks.expand import leaves
from aioflow.errors import CycleError
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.states import TaskState, TriggerRule
from aioflow.model.workers import LOCAL

__all__ = (
    "IDENTIFIER",
    "TALLY",
    "TALLY_OFFSET",
    "DagVersion",
    "Evaluated",
    "Graph",
    "ParentScope",
    "children_of",
    "is_identifier",
    "is_ignorable",
    "own_parents",
    "reached",
    "scope_groups",
    "topological_order",
)

_WAITS_FOR_ALL = frozenset({TriggerRule.ALL_DONE, TriggerRule.ALL_DONE_SETUP_SUCCESS})


class ParentScope(NamedTuple):
    """A trigger rule that applies to some parents of a task."""

    parents: tuple[int, ...]
    rule: TriggerRule
    min_success: float | None = None


def scope_groups(
    tasks: Sequence[TaskSpec], children: Sequence[Sequence[int]]
) -> dict[int, list[ParentScope]]:
    """Return the rules that setup scopes add to the authors' own rules, by task index.

    Args:
        children: Children of each task.
    """
    asked: dict[int, list[ParentScope]] = defaultdict(list)
    setups: dict[int, list[int]] = defaultdict(list)
    between: dict[int, set[int]] = defaultdict(set)
    for setup, task in enumerate(tasks):
        if not task.is_setup:
            continue
        after = reached(children[setup], children)
        teardowns = [child for child in children[setup] if tasks[child].is_teardown]
        scope = after
        for teardown in teardowns:
            before = after & reached(tasks[teardown].parents, [task.parents for task in tasks])
            between[teardown] |= before
            scope = before if scope is after else scope | before
        for task_index in scope - set(teardowns):
            if setup not in tasks[task_index].parents:  # otherwise the task's own rule evaluates it
                setups[task_index].append(setup)
    for task_index, indirect in setups.items():
        if tasks[task_index].rule is not TriggerRule.ALWAYS:
            # A share (``min_success``) gives the same decision in whichever order the setups end.
            asked[task_index].append(ParentScope(tuple(indirect), TriggerRule.ALL_SUCCESS, 1.0))
    for teardown, task_indexes in between.items():
        task = tasks[teardown]
        unseen = task_indexes.difference(own_parents(task) if task.rule in _WAITS_FOR_ALL else ())
        if unseen:
            asked[teardown].append(ParentScope(tuple(sorted(unseen)), TriggerRule.ALL_DONE))
    return asked


def own_parents(task: TaskSpec) -> tuple[int, ...]:
    """Return the parents that the task's own rule evaluates, which are in no ``ParentScope``."""
    if not task.groups:
        return task.parents
    grouped = {parent for group in task.groups for parent in group.parents}
    return tuple(parent for parent in task.parents if parent not in grouped)


def is_ignorable(task: TaskSpec) -> bool:
    """Return whether the state of the task does not affect the run."""
    return task.is_teardown and not task.fails_run


def reached(first: Iterable[int], neighbours: Sequence[Sequence[int]]) -> set[int]:
    """Return the indexes in ``first`` and of all tasks that are reachable from them."""
    seen = set(first)
    agenda = list(seen)
    while agenda:
        for task_index in neighbours[agenda.pop()]:
            if task_index not in seen:
                seen.add(task_index)
                agenda.append(task_index)
    return seen


IDENTIFIER = re.compile(r"[A-Za-z0-9_.-]{1,250}")


class Evaluated(NamedTuple):
    """Parents of a task that one trigger rule evaluates together.

    Attributes:
        tally: Index of the tally that counts their ends, see ``Graph.evaluated``.
        min_success: Share of parents that must succeed; replaces the rule.
        parents: Ascending task indexes.
        setups: The parents that are setups; only one rule distinguishes them.
        indexed: The parents that are evaluated child by child and not counted in any tally.
    """

    tally: int
    rule: TriggerRule
    min_success: float | None
    parents: tuple[int, ...]
    setups: tuple[int, ...] = ()
    indexed: tuple[int, ...] = ()


class Graph:
    """The edges of one DAG, indexed by task.

    Args:
        spec: A specification for which ``validate`` finds no errors.

    Attributes:
        spec: The specification of the graph.
        parents: Ascending task indexes of the parents of each task.
        children: Ascending task indexes of the children of each task.
        order: Topological order; ties are in the order of definition.
        roots: Tasks without parents.
        leaves: Tasks whose ends decide the state of the run: tasks without children, where
            teardowns that cannot fail the run do not count as children.
        indexed: For each task, the mapped tasks whose children its own children follow index by
            index.
        followers: Inverse of ``indexed``.
        evaluated: For each task, the tallies that its rules evaluate, with those rules. The tally
            with the index of the task belongs to the task's own rule; it has no parents if all of
            them are in groups. The tallies of groups have the indexes after the last task index.
        counts_in: For each task, the tallies that count its end.
        evaluators: For each task, the tasks to evaluate when it has ended: its children, and tasks
            that depend on it because of a setup.
        tallies: Number of tallies.
        index_of: Task indexes by ``task_id``.
        past: Tasks with ``depends_on_past``.
        awaited_in_past: For each task in ``past``, the other tasks that must have succeeded, or
            must have been skipped, in the previous run.
        past_of: For each task, the tasks to evaluate when it has ended in the previous run.
        has_remote: Whether any task names an executor other than the local one.

    Raises:
        CycleError: If the tasks cannot be ordered.
    """

    __slots__ = (
        "awaited_in_past",
        "children",
        "counts_in",
        "evaluated",
        "evaluators",
        "followers",
        "has_remote",
        "index_of",
        "indexed",
        "leaves",
        "order",
        "parents",
        "past",
        "past_of",
        "roots",
        "spec",
        "tallies",
    )

    def __init__(self, spec: DagSpec) -> None:
        tasks = spec.tasks
        self.spec = spec
        self.parents = tuple(task.parents for task in tasks)
        self.children = children_of(tasks)
        self.roots = tuple(p for p, parents in enumerate(self.parents) if not parents)
        self.leaves = _leaves(tasks, self.children)
        self.order = topological_order(tasks, self.children)
        self.index_of = {task.task_id: task_index for task_index, task in enumerate(tasks)}
        self.has_remote = any(task.executor != LOCAL for task in tasks)
        self.past = frozenset(p for p, task in enumerate(tasks) if task.depends_on_past)
        self.awaited_in_past = {
            p: self.children[p] if tasks[p].wait_for_downstream else () for p in self.past
        }
        self.past_of = _past_of(self.awaited_in_past, len(tasks))
        self.indexed = tuple(frozenset(_indexed(tasks, task)) for task in tasks)
        self.followers = _turned_round(self.indexed)
        self.evaluated = _evaluated(tasks, self.children, self.indexed)
        self.tallies = max(
            (look.tally + 1 for looks in self.evaluated for look in looks), default=0
        )
        self.tallies = max(self.tallies, len(tasks))
        makers = [
            _makers(task) | indexed for task, indexed in zip(tasks, self.indexed, strict=True)
        ]
        self.counts_in, self.evaluators = _counted(self.evaluated, makers)


def _past_of(awaited: Mapping[int, tuple[int, ...]], size: int) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in range(size)]
    for task_index, others in sorted(awaited.items()):
        for at in (task_index, *others):
            found[at].append(task_index)
    return tuple(map(tuple, found))


def is_identifier(name: str) -> bool:
    """Return whether the name is valid for DAGs, tasks and pools."""
    return IDENTIFIER.fullmatch(name) is not None and name[0] != "-" and name not in {".", ".."}


# ── edges ───────────────────────────────────────────────────────────────────────────────


def children_of(tasks: Sequence[TaskSpec]) -> tuple[tuple[int, ...], ...]:
    """Return the children of each task. Parents that do not exist are ignored."""
    children: list[list[int]] = [[] for _ in tasks]
    for task_index, task in enumerate(tasks):
        for parent in task.parents:
            if 0 <= parent < len(tasks):
                children[parent].append(task_index)
    return tuple(map(tuple, children))


def _leaves(tasks: Sequence[TaskSpec], children: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Return the tasks whose ends decide the state of the run.

    A task whose only children are teardowns that cannot fail the run counts as a leaf.
    """
    return tuple(
        task_index
        for task_index, task in enumerate(tasks)
        if not is_ignorable(task) and all(is_ignorable(tasks[c]) for c in children[task_index])
    )


def _indexed(tasks: Sequence[TaskSpec], task: TaskSpec) -> Iterator[int]:
    if task.mapped is None:
        return
    if task.mapped.along:
        before = reached(task.parents, [other.parents for other in tasks])
        yield from before.intersection(task.mapped.along)
    yield from (maker for maker in _makers(task) if tasks[maker].mapped is not None)


def _makers(task: TaskSpec) -> frozenset[int]:
    """Return the tasks whose results a task expands over."""
    sources = () if task.mapped is None else task.mapped.sources
    return frozenset(leaf.task_index for leaf in leaves(sources) if leaf.task_index >= 0)


def _turned_round(indexed: Sequence[frozenset[int]]) -> tuple[tuple[int, ...], ...]:
    return (
        tuple(
            tuple(follower for follower, along in enumerate(indexed) if task_index in along)
            for task_index in range(len(indexed))
        )
        if any(indexed)
        else ((),) * len(indexed)
    )


def _evaluated(
    tasks: Sequence[TaskSpec],
    children: tuple[tuple[int, ...], ...],
    indexed: Sequence[frozenset[int]],
) -> tuple[tuple[Evaluated, ...], ...]:
    """Assign the tallies: one per task, then one per group."""
    asked = scope_groups(tasks, children)
    evaluated: list[tuple[Evaluated, ...]] = []
    tally = len(tasks)
    for task_index, task in enumerate(tasks):
        alone = own_parents(task)
        looks = []
        if alone:
            own = ParentScope(alone, task.rule, task.min_success)
            looks.append(_look(tasks, task_index, own, indexed[task_index]))
        named = [ParentScope(group.parents, group.rule) for group in task.groups]
        for group in (*named, *asked.get(task_index, ())):
            looks.append(_look(tasks, tally, group, indexed[task_index]))
            tally += 1
        evaluated.append(tuple(looks))
    return tuple(evaluated)


def _look(
    tasks: Sequence[TaskSpec], tally: int, asked: ParentScope, indexed: frozenset[int]
) -> Evaluated:
    by_index = tuple(parent for parent in asked.parents if parent in indexed)
    setups = _setups(tasks, asked.rule, asked.parents)
    return Evaluated(tally, asked.rule, asked.min_success, asked.parents, setups, by_index)


def _setups(
    tasks: Sequence[TaskSpec], rule: TriggerRule, parents: tuple[int, ...]
) -> tuple[int, ...]:
    if rule is not TriggerRule.ALL_DONE_SETUP_SUCCESS:
        return ()
    return tuple(p for p in parents if 0 <= p < len(tasks) and tasks[p].is_setup)


def _counted(
    evaluated: tuple[tuple[Evaluated, ...], ...], makers: Sequence[frozenset[int]]
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Return, for each task, the tallies that count it, and the tasks to evaluate when it ends."""
    tallies: list[list[int]] = [[] for _ in evaluated]
    evaluators: list[dict[int, None]] = [{} for _ in evaluated]
    for task_index, looks in enumerate(evaluated):
        for look in looks:
            for parent in look.parents:
                if 0 <= parent < len(evaluated):
                    evaluators[parent][task_index] = None
                    if parent not in look.indexed:
                        tallies[parent].append(look.tally)
        for parent in makers[task_index]:  # in a mapped group the sources need not be parents
            evaluators[parent][task_index] = None
    return tuple(map(tuple, tallies)), tuple(map(tuple, evaluators))


def topological_order(
    tasks: Sequence[TaskSpec], children: tuple[tuple[int, ...], ...]
) -> tuple[int, ...]:
    """Return the task indexes with parents first, and otherwise in the order of definition.

    Raises:
        CycleError: If the tasks cannot be ordered.
    """
    missing = [len(task.parents) for task in tasks]
    # A heap, so that of several tasks that could be next, the one defined first is chosen.
    ready = [task_index for task_index, count in enumerate(missing) if count == 0]
    order: list[int] = []
    while ready:
        task_index = heapq.heappop(ready)
        order.append(task_index)
        for child in children[task_index]:
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(ready, child)
    if len(order) < len(tasks):
        cycle = next(cycles(children))
        raise CycleError(tuple(tasks[task_index].task_id for task_index in cycle))
    return tuple(order)


class DagVersion:
    """A DAG version, with measured durations of its tasks.

    Attributes:
        durations: Expected duration of the user code by task index, in microseconds; 0 while
            unknown.
        has_result_argument: By task index, 1 if another task takes its result as an argument.
    """

    __slots__ = ("durations", "graph", "has_result_argument", "version")

    def __init__(self, version: str, spec: DagSpec) -> None:
        self.version = version
        self.graph = Graph(spec)
        self.durations = array("d", bytes(8 * len(spec.tasks)))
        self.has_result_argument = bytearray(len(spec.tasks))
        for task in spec.tasks:
            for parent in task.argument_parents:
                self.has_result_argument[parent] = 1

    @property
    def widest_run(self) -> int:
        """Upper bound on the row numbers needed to create and start one run.

        A task needs one number for its row, two for callbacks, and one for each of its timers.
        """
        tasks = self.graph.spec.tasks
        mapped = sum(task.map_limit for task in tasks if task.mapped is not None)
        return mapped + _NUMBERS_OF_TASK * len(tasks) + 6


_NUMBERS_OF_TASK = 5

TALLY = 6
"""Number of words per tally in ``Run.tallies``. The first word counts all parent instances.

The others count the instances that ended as success, failed, upstream_failed, skipped and removed.
"""

TALLY_OFFSET = bytes(
    {
        TaskState.SUCCESS: 1,
        TaskState.FAILED: 2,
        TaskState.CANCELLED: 2,  # trigger rules treat cancelled as failed
        TaskState.UPSTREAM_FAILED: 3,
        TaskState.SKIPPED: 4,
        TaskState.REMOVED: 5,
    }.get(state, 0)
    for state in TaskState
)
"""For each final state, the index of the word in a tally that counts tasks in this state."""
