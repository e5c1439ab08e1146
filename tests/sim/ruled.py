"""Invariants of what ended tasks cause: in the tasks after them, and in their run.

Their numbers are those of ``tests.sim.invariants``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.rows import RunRow, TaskRow
from aioflow.model.states import RunState, TaskState, TriggerRule
from tests.sim import following, loops, operating, oracle, past, streaming, waiting
from tests.sim.broken import Broken

__all__ = ("runs_end_with_their_tasks", "tasks_start_when_their_rule_says")

_ENDED_RUN = (RunState.SUCCESS, RunState.FAILED, RunState.PARTIAL)


# ── I10: runs end with their tasks ──────────────────────────────────────────────────────


def runs_end_with_their_tasks(node: Any, run_no: int) -> None:
    """I10: check that a run has ended exactly if its tasks have, with the oracle's outcome."""
    row = node.tables.runs[run_no]
    if _was_cut_short(node, run_no):
        if row.ended_at is not None and any(t.state.is_live for t in node.tables.tasks_of(run_no)):
            raise Broken("I10 ends", f"run {run_no} was cut short and ended with live tasks")
        return
    states = _states(node, row)
    open_tasks = [p for p, state in enumerate(states) if state.is_live]
    if row.state in _ENDED_RUN and open_tasks:
        raise Broken("I10 ends", f"run {run_no} is {row.state.label}, not ended: {open_tasks}")
    has_stopped = row.state is RunState.RUNNING and not open_tasks and row.quarantine is None
    if has_stopped and not node.tables.is_clearing(run_no):
        raise Broken("I10 ends", f"run {run_no} runs with all its tasks ended")
    if row.state in _ENDED_RUN:
        expected = oracle.outcome(_spec(node, run_no), states)
        if row.state is not expected:
            raise Broken("I10 ends", f"run {run_no} is {row.state.label}, not {expected.label}")


def _was_cut_short(node: Any, run_no: int) -> bool:
    """Return whether a run was cancelled, marked or timed out, possibly with unfinished tasks."""
    row = node.tables.runs[run_no]
    if row.state is RunState.CANCELLED or row.state in node.tables.said[row.run_id]:
        return True
    return row.state is RunState.FAILED and row.run_id in node.tables.timed_out  # by its alert


def _was_ever_cut_short(node: Any, row: RunRow) -> bool:
    """Return whether a run was ever cut short, even if it has continued since."""
    tables = node.tables
    was_cancelled = RunState.CANCELLED in tables.ends[row.run_no]
    return was_cancelled or bool(tables.said[row.run_id]) or row.run_id in tables.timed_out


def _states(node: Any, row: RunRow) -> list[TaskState]:
    """Return one state per task of the DAG: a final one for a fan-out once all children ended."""
    spec = _spec(node, row.run_no)
    rows: defaultdict[int, list[TaskRow]] = defaultdict(list)
    for task_row in node.tables.present(row.run_no):
        rows[task_row.task_index].append(task_row)
    return [
        _together(_instances(node, row.run_no, task_index, rows[task_index]))
        for task_index in range(len(spec.tasks))
    ]


def _together(states: list[TaskState]) -> TaskState:
    if len(states) == 1:
        return states[0]
    if any(state.is_live for state in states):
        return TaskState.RUNNING
    for state in (TaskState.FAILED, TaskState.CANCELLED, TaskState.UPSTREAM_FAILED):
        if state in states:
            return state
    return TaskState.SUCCESS if TaskState.SUCCESS in states else TaskState.SKIPPED


# ── I13: rules ──────────────────────────────────────────────────────────────────────────


def tasks_start_when_their_rule_says(node: Any, run_no: int) -> None:
    """I13: check that each decision on a task follows its rule, and that none is missing."""
    row = node.tables.runs[run_no]
    if row.state is RunState.QUEUED or _was_cut_short(node, run_no):
        return
    if node.tables.is_clearing(run_no):
        return
    was_cleared = run_no in node.tables.cleared_runs  # then rows depend on deleted ones
    present = node.tables.present(run_no)
    was_marked = run_no in node.tables.marked_runs or any(map(operating.is_marked, present))
    if (was_cleared or was_marked) and row.quarantine is not None:
        return
    if was_marked and _was_ever_cut_short(node, row):
        return  # an interrupted mark changed nothing after the marked tasks
    spec = _spec(node, run_no)
    rows: defaultdict[int, list[TaskRow]] = defaultdict(list)
    for task_row in present:
        rows[task_row.task_index].append(task_row)
    instances = [_instances(node, run_no, p, rows[p]) for p in range(len(spec.tasks))]
    for task_index in range(len(spec.tasks)):
        if any(row.map_index < 0 and waiting.is_overdue(row) for row in rows[task_index]):
            continue
        begun = [row for row in rows[task_index] if row.state is not TaskState.PENDING]
        if following.indexed(spec, task_index):
            if not was_cleared and not was_marked:
                following.hold(node, run_no, task_index, begun, instances)
        elif was_cleared or was_marked:
            is_expanded = (run_no, task_index) in node.tables.widths
            if not is_expanded and all(_follows(row, was_cleared=was_cleared) for row in begun):
                _judged(run_no, task_index, spec, instances, begun, node)
        else:
            _judged(run_no, task_index, spec, instances, begun, node)


def _follows(row: TaskRow, *, was_cleared: bool) -> bool:
    """Return whether the state of a task must follow from the current states of its parents.

    After a clear, that holds for no final state, because it may be older. After a mark, a task that
    has run or was marked itself keeps its state.
    """
    if was_cleared or operating.is_marked(row):
        return False
    never_ran = row.state in {TaskState.SKIPPED, TaskState.UPSTREAM_FAILED} and not row.try_number
    return row.state.is_live or never_ran


def _judged(
    run_no: int,
    task_index: int,
    spec: DagSpec,
    instances: list[list[TaskState]],
    rows: list[TaskRow],
    node: Any,
) -> None:
    task = spec.tasks[task_index]
    parents = [state for parent in task.parents for state in instances[parent]]
    said = oracle.judge_task(spec, task_index, instances)
    if streaming.source_of(spec, task_index) >= 0:
        if (run_no, task_index) in node.tables.widths:
            return  # it began while its stream was active
        flowing = _flowing(node, run_no, task_index, instances)
        said = said if flowing is None or said == "run" else flowing
    where = f"run {run_no}, task {task_index} with {task.rule} over {[s.label for s in parents]}"
    if not rows and (run_no, task_index) not in node.tables.widths:
        # A task with rule ALWAYS is evaluated when a parent ends, not earlier.
        rules = {task.rule, *(group.rule for group in task.groups)}
        is_stream = streaming.source_of(spec, task_index) >= 0
        lacking = not is_stream and _lacks_a_list(task, instances)
        early = TriggerRule.ALWAYS in rules and not any(s >= TaskState.SUCCESS for s in parents)
        excused = said == "run" and (lacking or past.is_excused(node, run_no, task_index))
        if said != "wait" and not early and not excused:
            raise Broken("I13 rules", f"{where} should {said}, nothing came of it")
        return
    unstarted = [r for r in rows if r.try_number == 0 and not waiting.is_overdue(r)]
    if not unstarted:
        if said != "run":
            raise Broken("I13 rules", f"{where} started, the oracle says {said}")
        return
    state = unstarted[0].state
    verdicts = {TaskState.SKIPPED: "skip", TaskState.UPSTREAM_FAILED: "fail"}
    if verdicts.get(state) == said:
        return
    if (
        state is TaskState.SKIPPED
        and (
            task.rule is TriggerRule.ALL_SUCCESS
            or any(group.rule is TriggerRule.ALL_SUCCESS for group in task.groups)
        )
        and (TaskState.SKIPPED in parents)
    ):
        return  # a parent was skipped, then another failed: it stays skipped
    if task.mapped is not None and said == "run":
        return  # nothing to expand over, or too much
    raise Broken("I13 rules", f"{where} is {state.label}, the oracle says {said}")


def _lacks_a_list(task: TaskSpec, instances: list[list[TaskState]]) -> bool:
    """Return whether a list that the task expands over is not known yet."""
    sources = () if task.mapped is None else task.mapped.sources
    lists = [leaf for source in sources for leaf in following.leaves(source)]
    above = [instances[leaf.task_index] for leaf in lists if leaf.task_index >= 0]
    return any(state < TaskState.SUCCESS for states in above for state in states)


def _flowing(
    node: Any, run_no: int, task_index: int, instances: list[list[TaskState]]
) -> str | None:
    """Return ``run`` if the rule would allow it once the active stream succeeded, else ``None``."""
    tables, spec = node.tables, _spec(node, run_no)
    source = streaming.source_of(spec, task_index)
    maker = tables.tasks.get(tables.runs[run_no].first_task_no + source)
    if maker is None or not maker.state.is_live or not tables.items_of(maker.task_no):
        return None
    assumed = [*instances[:source], [TaskState.SUCCESS], *instances[source + 1 :]]
    said = oracle.judge_task(spec, task_index, assumed)
    return said if said == "run" else None


def _instances(node: Any, run_no: int, task_index: int, rows: list[TaskRow]) -> list[TaskState]:
    width = node.tables.widths.get((run_no, task_index))
    states = [row.state for row in rows]
    if width is not None and loops.is_round(_spec(node, run_no), task_index):
        return [loops.whole(node, run_no, task_index) or TaskState.PENDING]
    if width is None:
        return states or [TaskState.PENDING]
    mark = streaming.marker(node, run_no, task_index)
    ends = [] if mark is None else [mark]
    return states + [TaskState.PENDING] * (width - len(states)) + ends


def _spec(node: Any, run_no: int) -> Any:
    return node.tables.spec_of_run(run_no)
