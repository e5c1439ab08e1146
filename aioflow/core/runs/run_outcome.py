"""The outcome of a run: ``success``, ``partial`` or ``failed``, derived from its task states."""

from __future__ import annotations

from aioflow.core.state.graph import Graph, is_ignorable
from aioflow.core.state.task_instance import Run
from aioflow.model.states import RunState, TaskState, TriggerRule

__all__ = ("outcome",)

_FAILURE_AWAITED = frozenset(
    {TriggerRule.ONE_SUCCESS, TriggerRule.ONE_DONE, TriggerRule.ONE_FAILED, TriggerRule.ALL_FAILED}
)
"""Trigger rules that expect a failed parent.

The failure of a parent that such a rule expects does not make the run ``partial``.
"""


def outcome(run: Run) -> RunState:
    """Return the final state of a run whose tasks have all ended.

    The leaf tasks decide. If none of them failed but another task did, and no rule expected its
    failure, the run is ``partial``.
    """
    bad = (TaskState.FAILED, TaskState.UPSTREAM_FAILED, TaskState.CANCELLED)
    if any(run.states[leaf] in bad for leaf in run.graph.leaves):
        return RunState.FAILED
    for task_index, task in enumerate(run.spec.tasks):
        if run.states[task_index] != TaskState.FAILED or is_ignorable(task):
            continue
        if not any(
            _awaits_failure(run.graph, child, task_index)
            for child in run.graph.evaluators[task_index]
        ):
            return RunState.PARTIAL
    return RunState.SUCCESS


def _awaits_failure(graph: Graph, child: int, parent: int) -> bool:
    """Return whether a trigger rule of the child expects this parent to fail."""
    return any(
        look.rule in _FAILURE_AWAITED and look.min_success is None and parent in look.parents
        for look in graph.evaluated[child]
    )
