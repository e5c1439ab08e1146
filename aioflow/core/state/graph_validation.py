"""Validation of a DAG's shape: ids, edges, cycles, expansions, and tasks without any edges.

Parsers call ``validate`` before they build a ``Graph``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aioflow.core.state.dependency_cycles import cycles
from aioflow.core.state.graph import IDENTIFIER, children_of
from aioflow.core.tasks.expand import leaves
from aioflow.errors import CycleError, DagError, DuplicateTask, UnknownParent
from aioflow.model.dag import MapSource, TaskSpec

__all__ = (
    "orphans",
    "validate",
)


def validate(tasks: Sequence[TaskSpec], dag_id: str) -> list[DagError]:
    """Return all errors of a DAG, in the order of its tasks, cycles last.

    If several cycles share a task, only one of them is reported. The next one is reported once the
    first is fixed.
    """
    findings: list[DagError] = []
    _check_id("DAG", dag_id, findings)
    if not tasks:
        findings.append(DagError(f"DAG {dag_id!r} has no tasks; call at least one in its body"))
    seen: set[str] = set()
    for task_index, task in enumerate(tasks):
        if task.task_id in seen:
            findings.append(DuplicateTask(dag_id, task.task_id))
        seen.add(task.task_id)
        _check_id("task", task.task_id, findings)
        findings.extend(
            UnknownParent(task.task_id, f"#{parent}")
            for parent in task.parents
            if not 0 <= parent < len(tasks)
        )
        _check_expansion(tasks, task_index, findings)
        _check_numbers(task, findings)
    findings.extend(
        CycleError(tuple(tasks[task_index].task_id for task_index in cycle))
        for cycle in cycles(children_of(tasks))
    )
    return findings


def orphans(tasks: Sequence[TaskSpec]) -> list[str]:
    """Return the tasks without any edges, if the DAG has several tasks.

    Such tasks cause a warning, not an error.
    """
    if len(tasks) < 2:
        return []
    connected = {parent for task in tasks for parent in task.parents}
    return [
        task.task_id
        for task_index, task in enumerate(tasks)
        if not task.parents and task_index not in connected
    ]


def _check_id(kind: str, name: str, findings: list[DagError]) -> None:
    if not IDENTIFIER.fullmatch(name):
        shown = name if len(name) <= 80 else f"{name[:77]}..."
        findings.append(
            DagError(
                f"{kind} id {shown!r} cannot be used; take 1 to 250 letters, digits, '_', '-' or "
                "'.' of ASCII"
            )
        )
    elif name.startswith("-") or name in {".", ".."}:
        findings.append(
            DagError(
                f"{kind} id {name!r} reads like an option or a folder; "
                "begin it with a letter or a digit"
            )
        )


def _check_expansion(tasks: Sequence[TaskSpec], task_index: int, findings: list[DagError]) -> None:
    task = tasks[task_index]
    if task.mapped is None:
        return
    if not task.mapped.sources:
        findings.append(
            DagError(f"task {task.task_id!r} expands over nothing; give expand() an argument")
        )
    for whole in task.mapped.sources:
        _check_source(tasks, task, whole, findings)


def _check_source(
    tasks: Sequence[TaskSpec], task: TaskSpec, whole: MapSource, findings: list[DagError]
) -> None:
    if whole.join and not whole.parts:
        findings.append(
            DagError(f"task {task.task_id!r} expands {whole.parameter!r} over nothing joined")
        )
    # In a mapped group, the source is a parent of the group's first tasks.
    is_along = task.mapped is not None and bool(task.mapped.along)
    for source in leaves((whole,)):
        if source.task_index == -1:
            if source.width < 0:
                findings.append(
                    DagError(
                        f"task {task.task_id!r} expands {whole.parameter!r} over a literal "
                        "without a length; give it a list"
                    )
                )
        elif source.task_index not in task.parents and not is_along:
            name = (
                tasks[source.task_index].task_id
                if 0 <= source.task_index < len(tasks)
                else f"#{source.task_index}"
            )
            findings.append(
                DagError(
                    f"task {task.task_id!r} expands {whole.parameter!r} over the result of "
                    f"{name!r}, which is not among its parents; pass the parent's result to "
                    "expand()"
                )
            )


def _check_numbers(task: TaskSpec, findings: list[DagError]) -> None:
    least: tuple[tuple[str, int | None, int], ...] = (
        ("slots", task.slots, 1),
        ("window", task.window, 1),
        ("map_limit", task.map_limit, 1),
        ("max_active_tis_per_dagrun", task.max_active_tis_per_dagrun, 1),
        ("execution_timeout", task.execution_timeout_us, 1),
        ("retry tries", task.retry.tries, 1),
        ("retry delay", task.retry.delay_us, 0),
        ("retry max_delay", task.retry.max_delay_us, 0),
    )
    if task.sensor is not None:
        least += (
            ("sensor interval", task.sensor.interval_us, 0),
            ("sensor timeout", task.sensor.timeout_us, 0),
            ("sensor max_interval", task.sensor.max_interval_us, 0),
        )
    findings.extend(
        DagError(f"task {task.task_id!r} has {name}={number}; it must be at least {minimum}")
        for name, number, minimum in least
        if number is not None and number < minimum
    )
    factors = [("retry factor", task.retry.factor)]
    if task.sensor is not None:
        factors.append(("sensor backoff", task.sensor.backoff))
    findings.extend(
        DagError(f"task {task.task_id!r} has {name}={factor}; it must be a number above 0")
        for name, factor in factors
        if not (math.isfinite(factor) and factor > 0)
    )
