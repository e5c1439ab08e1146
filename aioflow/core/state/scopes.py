"""Scopes between setups and teardowns, and the conditions they add to the tasks within.

A task with a setup among its parents is a teardown of that setup if it says so. The scope of a
setup is everything after it and before one of its teardowns; without teardowns, everything after
it. As in Airflow, no task in a scope runs unless its setup has succeeded, whatever its own rule
is. Exceptions are the rule ``always`` and the direct children of the setup. No teardown runs
before everything in its scope has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aioflow.model.dag import TaskSpec
from aioflow.model.states import TriggerRule

__all__ = ("ParentScope", "is_ignorable", "own_parents", "reached", "scope_groups")


_WAITS_FOR_ALL = frozenset({TriggerRule.ALL_DONE, TriggerRule.ALL_DONE_SETUP_SUCCESS})


class ParentScope(NamedTuple):
    """A trigger rule for some parents of a task."""

    parents: tuple[int, ...]
    rule: TriggerRule
    min_success: float | None = None


def scope_groups(
    tasks: Sequence[TaskSpec], children: Sequence[Sequence[int]]
) -> dict[int, list[ParentScope]]:
    """Return the rules that scopes add to those of the authors, by position.

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
        for position in scope - set(teardowns):
            if setup not in tasks[position].parents:  # else its own rule evaluates it
                setups[position].append(setup)
    for position, indirect in setups.items():
        if tasks[position].rule is not TriggerRule.ALWAYS:
            # As a share, so that the order in which the setups end does not matter.
            asked[position].append(ParentScope(tuple(indirect), TriggerRule.ALL_SUCCESS, 1.0))
    for teardown, positions in between.items():
        task = tasks[teardown]
        unseen = positions.difference(own_parents(task) if task.rule in _WAITS_FOR_ALL else ())
        if unseen:
            asked[teardown].append(ParentScope(tuple(sorted(unseen)), TriggerRule.ALL_DONE))
    return asked


def own_parents(task: TaskSpec) -> tuple[int, ...]:
    """Return the parents that the rule of the task itself evaluates: those in no group."""
    if not task.groups:
        return task.parents
    grouped = {parent for group in task.groups for parent in group.parents}
    return tuple(parent for parent in task.parents if parent not in grouped)


def is_ignorable(task: TaskSpec) -> bool:
    """Return whether the state of the task does not affect the run."""
    return task.is_teardown and not task.fails_run


def reached(first: Iterable[int], neighbours: Sequence[Sequence[int]]) -> set[int]:
    """Return these positions and everything reachable from them."""
    seen = set(first)
    agenda = list(seen)
    while agenda:
        for position in neighbours[agenda.pop()]:
            if position not in seen:
                seen.add(position)
                agenda.append(position)
    return seen
