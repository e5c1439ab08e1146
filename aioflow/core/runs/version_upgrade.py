"""Upgrade of a run to the newest version of its DAG while its tasks are cleared.

A run has a single version. Its ended tasks keep their rows and results; all other tasks run the
newest code. So every active task must be cleared in the same request. Otherwise the task would run
partly in one version and partly in the other.

The rows of a run refer to tasks by task index, and mapped children refer to items by map index. So
both versions need the same tasks at the same task indexes, with the same edges and expansions.
Code, retries, pools, limits and timeouts may differ.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec.structs import replace

from aioflow.core.repair.reset import renewed
from aioflow.core.runs.create import validate_conf
from aioflow.core.state.child_roles import async_role
from aioflow.core.state.graph import TALLY, DagVersion
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import Run, is_under_way, run_info
from aioflow.core.tasks.expand import leaves
from aioflow.core.transaction import Transaction
from aioflow.errors import BadConf, DagBroken, UnknownDag, VersionDiffers
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.ids import TaskNo
from aioflow.protocol.commands import ForgetRun

__all__ = (
    "check_idle",
    "differences",
    "move",
    "newest",
)

_ALIKE: tuple[tuple[str, Callable[[TaskSpec], object]], ...] = (
    ("follows other tasks", lambda task: (task.parents, task.argument_parents)),
    (
        "has another trigger rule",
        lambda task: (task.rule, task.min_success, task.groups, task.fails_run),
    ),
    ("is mapped otherwise", lambda task: task.mapped),
    ("is a stream in one of them only", lambda task: task.streams),
    ("is a setup or teardown in one of them only", lambda t: (t.is_setup, t.is_teardown)),
    ("chooses otherwise what is skipped", lambda task: task.chooses),
    (
        "waits for the run before in one of them only",
        lambda task: (task.depends_on_past, task.wait_for_downstream),
    ),
)


def differences(old: DagSpec, new: DagSpec) -> list[str]:
    """Return the reasons why a run cannot move from one version to another, in task order."""
    was, now = ([task.task_id for task in spec.tasks] for spec in (old, new))
    missing = [f"task {task_id!r} is gone" for task_id in was if task_id not in set(now)]
    added = [f"task {task_id!r} is new" for task_id in now if task_id not in set(was)]
    if missing or added:
        return missing + added
    if was != now:
        first = next(a for a, b in zip(was, now, strict=True) if a != b)
        return [f"the tasks are in another order, from {first!r} on"]
    return [
        reason for at in range(len(was)) for reason in _task_differences(old.tasks, new.tasks, at)
    ]


def _task_differences(
    old: Sequence[TaskSpec], new: Sequence[TaskSpec], task_index: int
) -> Iterator[str]:
    was, now = old[task_index], new[task_index]
    for reason, part in _ALIKE:
        if part(was) != part(now):
            yield f"task {was.task_id!r} {reason}"
    if was.map_limit != now.map_limit and _grows(old, was):
        # The row numbers of its children were reserved, up to this limit, when the task expanded.
        limit = "max_rounds" if was.mapped is not None and was.mapped.until >= 0 else "map_limit"
        yield f"task {was.task_id!r} has another {limit}"


def _grows(tasks: Sequence[TaskSpec], task: TaskSpec) -> bool:
    """Return whether the task is in a loop or expands over a stream."""
    if task.mapped is None:
        return False
    made = (leaf.task_index for leaf in leaves(task.mapped.sources))
    return task.mapped.until >= 0 or any(tasks[at].streams for at in made if at >= 0)


_FEW = 5


def newest(run: Run, memory: Memory) -> DagVersion | None:
    """Return the newest version to upgrade a run to; ``None`` if the run already has that version.

    Raises:
        RequestError: If no file defines the DAG now, or the versions are not compatible.
    """
    dag_id = run.row.dag_id
    row = memory.dags.get(dag_id)
    if row is None:
        raise UnknownDag(dag_id)
    if row.gone:
        raise DagBroken(dag_id, f"{row.file} no longer defines it")
    if row.version == run.row.version:
        return None
    dag_version = memory.dag_versions[row.version, dag_id]
    found = differences(run.spec, dag_version.graph.spec)
    if not found:
        try:
            validate_conf(dag_version.graph.spec, run.row.conf)
        except BadConf as exc:
            found = [str(exc)]
    if found:
        raise VersionDiffers(run.row.run_id, row.version, _listed(found))
    return dag_version


def check_idle(run: Run, dag_version: DagVersion, cleared: Collection[TaskNo]) -> None:
    """Check that all active tasks of a run are cleared.

    Args:
        cleared: Active tasks that are cleared in the turn of the request.

    Raises:
        VersionDiffers: If another task is active.
    """
    found: dict[str, None] = {}
    for task_index, state in enumerate(run.states):
        group, task_id = run.groups.get(task_index), run.spec.tasks[task_index].task_id
        if group is None:
            numbers = [run.row.first_task_no + task_index] if is_under_way(state) else []
        else:
            states = enumerate(group.states)
            numbers = [group.first_task_no + at for at, one in states if is_under_way(one)]
        if any(number not in cleared for number in numbers):
            found[task_id] = None
    if found:
        under_way = [f"task {task_id!r} is under way" for task_id in found]
        raise VersionDiffers(
            run.row.run_id,
            dag_version.version,
            _listed(under_way),
            hint="clear that, too, or wait until it has ended",
        )


def move(run: Run, dag_version: DagVersion, tx: Transaction) -> None:
    """Change the version of a run that has no active tasks and is being cleared.

    Child processes forget the run. They receive it again with the next task that they start.
    """
    old = run.row.version
    tx.batch.run_versions.append((run.run_no, old, dag_version.version))
    tx.effects.append(ForgetRun(run.run_no))
    tx.runs[run.run_no] = run
    run.row = replace(run.row, version=dag_version.version)
    run.dag_version, run.graph, run.spec = dag_version, dag_version.graph, dag_version.graph.spec
    run.async_role = async_role(run.spec)
    run.durations = dag_version.durations
    run.info = run_info(run.row, run.spec.file)
    run.tallies = array("q", bytes(8 * TALLY * run.graph.tallies))  # counted when the run continues
    for group in list(run.groups.values()):
        tx.expansions.take_over(renewed(group))


def _listed(reasons: list[str]) -> str:
    more = len(reasons) - _FEW
    return "; ".join(reasons[:_FEW]) + (f"; and {more} more" if more > 0 else "")
