"""Upgrade of a run to the newest version of its DAG while its tasks are cleared.

A run has one version. Ended tasks keep their rows and results; all others run the newest code.
So every active task must be cleared in the same request, since else it would run partly in one
version and partly in the other.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection

from msgspec.structs import replace

from aioflow.core.repair.reset import renewed
from aioflow.core.runs.conf import require_fit
from aioflow.core.runs.version_diff import differences
from aioflow.core.state.child_roles import async_role
from aioflow.core.state.dag_version import DagVersion
from aioflow.core.state.memory import Memory
from aioflow.core.state.state_counts import TALLY
from aioflow.core.state.task_instance import Run, is_under_way, run_info
from aioflow.core.transaction import Transaction
from aioflow.errors import BadConf, DagBroken, UnknownDag, VersionDiffers
from aioflow.model.ids import TaskNo
from aioflow.protocol.commands import ForgetRun

__all__ = ("check_idle", "move", "newest")

_FEW = 5


def newest(run: Run, memory: Memory) -> DagVersion | None:
    """Return the newest version that a run may be upgraded to; ``None`` if it already has it.

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
            require_fit(dag_version.graph.spec, run.row.conf)
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
    for position, state in enumerate(run.states):
        group, task_id = run.groups.get(position), run.spec.tasks[position].task_id
        if group is None:
            numbers = [run.row.first_task_no + position] if is_under_way(state) else []
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
    """Change the version of a run that has no active tasks and whose clear is in progress.

    Child processes forget the run, and receive it again with the next task they start.
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
