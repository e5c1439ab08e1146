"""Progress of a run when one of its tasks ends.

``end`` records the end, updates the tallies of the task's children in the graph, and steps: each of
them whose trigger rule can be decided now is made ready, expanded, skipped or failed. This
continues down the graph, with a queue instead of recursion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from aioflow.core.repair import selection
from aioflow.core.runs import iterations, previous
from aioflow.core.runs.run_outcome import outcome
from aioflow.core.state.graph import Graph
from aioflow.core.state.mapped_task import OneToOne
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance
from aioflow.core.tasks import expand, one_to_one, stream_expand
from aioflow.core.tasks.one_to_one import Entry
from aioflow.core.tasks.readiness import fresh
from aioflow.core.tasks.trigger_rules import WHOLE, Verdict, verdict
from aioflow.core.transaction import Transaction
from aioflow.core.triggers.assignment import release_trigger
from aioflow.model.rows import ExpansionRow
from aioflow.model.states import Failure, RunState, TaskState, TriggerRule, TriggerState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import ForgetRun

__all__ = (
    "AT_HAND_BYTES",
    "EVALUATED_CHILDREN",
    "alert",
    "begin",
    "continue_evaluation",
    "end",
    "end_unstarted",
    "release_task",
    "resume",
    "step",
)


AT_HAND_BYTES = 1024
"""Maximum size of results that stay in memory for tasks that take them as arguments."""

EVALUATED_CHILDREN = 2_000
"""Maximum number of children evaluated for the first time in one turn. The rest follow later."""


def begin(run: Run, tx: Transaction) -> None:
    """Start a queued run: make the tasks without parents ready."""
    tx.change_run(run, state=RunState.RUNNING, started_at=tx.now)
    if run.cleared or any(run.states):
        resume(run, tx)
        return
    graph = run.graph
    step(run, (p for p in graph.order if _waits_for_no_parent(graph, p)), tx)


def _waits_for_no_parent(graph: Graph, task_index: int) -> bool:
    return all(look.rule is TriggerRule.ALWAYS for look in graph.evaluated[task_index])


def resume(run: Run, tx: Transaction) -> None:
    """Evaluate all undecided tasks of a restored run.

    If a loop is between two iterations, only the next iteration is evaluated.
    """
    for task_index, group in run.groups.items():
        if group.is_between_rounds:
            run.states[task_index] = TaskState.RUNNING
    undecided = [p for p in run.graph.order if run.states[p] == TaskState.PENDING]
    for group in run.groups.values():
        if group.has_fresh and run.states[group.task_index] == TaskState.RUNNING:
            tx.slots.offer(group)
    step(run, undecided, tx)
    continue_evaluation(run, tx)


def end(
    task: TaskInstance,
    state: TaskState,
    tx: Transaction,
    *,
    at: Timestamp | None = None,
    skips: tuple[int, ...] = (),
    again: bool = False,
) -> None:
    """End a task in a final state, and evaluate the tasks that depend on it.

    Args:
        at: When the task ended; now by default.
        skips: Tasks to skip before any rule is evaluated, unless they have started. If the task is
            a mapped child, the children of these tasks with the same index are skipped.
        again: Whether the loop that the task decides continues with another iteration.
    """
    if task.state is TaskState.RETRYING:
        task.run.retried -= 1  # the task ends before its scheduled retry
    tx.move(task, state)
    ended_at = tx.now if at is None else at
    task.ended_at = max(ended_at, task.started_at or ended_at)  # the clock may have been set back
    task.due_at = task.ends_at = None
    if task.spec.sensor is None:  # a sensor's deadline remains visible
        task.deadline_at = None
    run = task.run
    release_task(task, tx)
    if task.task_no in run.items and not task.spec.streams:
        tx.batch.gone_items.append(task.task_no)  # its result includes all items
        del run.items[task.task_no]
    if run.state is RunState.RUNNING:
        grown = iterations.add_iteration(run, task.task_index, tx) if again else []
        follows = _ended(run, task.task_index, task.map_index, state, tx)
        for group in grown:
            follows += [(group.task_index, WHOLE), *_evaluate_children(group, tx)]
        for task_index in skips:
            follows += _skip(run, task_index, task.map_index, tx)
        _step(run, follows, tx)
        tx.slots.unblock(task)
    elif task.map_index < 0:  # the run was cut short, so only tasks of the next run are evaluated
        run.states[task.task_index] = state


def _skip(run: Run, task_index: int, map_index: int, tx: Transaction) -> list[Entry]:
    """Skip a task, or its child with this index, unless it has started."""
    if map_index >= 0:
        group = run.groups.get(task_index)
        if group is None or not one_to_one.may_skip(group, map_index):
            return []
    elif run.states[task_index] != TaskState.PENDING:
        return []
    end_unstarted(run, task_index, TaskState.SKIPPED, tx, map_index=map_index)
    selection.exclude_task(run, task_index, map_index, tx)
    return _ended(run, task_index, map_index, TaskState.SKIPPED, tx)


def release_task(task: TaskInstance, tx: Transaction) -> None:
    """Release everything that a task holds: its slot, triggers and durable calls."""
    tx.slots.release(task)
    task.run.active_tasks.pop(task.task_no, None)
    tx.memory.active_tasks.pop(task.task_no, None)
    if task.waits or task.streams or task.resumed is not None:
        _release_triggers(task, tx)
    tx.runs[task.run.run_no] = task.run
    if task.recorded:
        tx.drop_records(task)


def _release_triggers(task: TaskInstance, tx: Transaction) -> None:
    done = [
        w for w in task.waits if w.is_handled or (w.state is TriggerState.FIRED and not w.stream)
    ]
    for wait in (*done, *task.streams.values()):
        release_trigger(wait, "finished", tx)
    if task.resumed is not None:
        release_trigger(task.resumed, "finished", tx)


def end_unstarted(
    run: Run,
    task_index: int,
    state: TaskState,
    tx: Transaction,
    *,
    failure: Failure | None = None,
    map_index: int = WHOLE,
) -> None:
    """Write the row of a task or child that ends before it became ready."""
    task = fresh(run, task_index, map_index)
    task.try_number = 0
    task.ended_at = tx.now
    task.failure = failure
    tx.move(task, state)
    if map_index < 0:
        run.states[task_index] = state


def _ended(
    run: Run, task_index: int, map_index: int, state: TaskState, tx: Transaction
) -> list[Entry]:
    """Record the end of one instance. Return the tasks to evaluate."""
    evaluators = run.graph.evaluators[task_index]
    if map_index < 0:
        run.count_ended(task_index, state)
        run.states[task_index] = state
        run.unfinished -= 1
        tx.task_ended(run, task_index)
        if run.spec.tasks[task_index].streams:
            evaluators = (*evaluators, *stream_expand.close(run, task_index, tx))
    else:
        group = run.groups[task_index]
        run.count_child(group, state)
        if group.is_over:
            run.end_group(group)
            tx.task_ended(run, task_index)
    if iterations.is_last_decider(run, task_index, map_index):
        evaluators = (*evaluators, *iterations.close_loop(run, task_index, tx))
    entries = [(evaluator, WHOLE) for evaluator in evaluators]
    if map_index >= 0 and run.graph.followers[task_index]:
        entries += one_to_one.followers(run, task_index, map_index)
    return entries


def step(run: Run, first: Iterable[int], tx: Transaction) -> None:
    """Evaluate tasks, and then the tasks whose trigger rules can be decided as a result."""
    _step(run, [(task_index, WHOLE) for task_index in first], tx)


def _step(run: Run, first: Iterable[Entry], tx: Transaction) -> None:
    if run.clearing is not None:
        return  # all tasks are evaluated when the clear is complete
    agenda = deque(first)
    while agenda:
        task_index, index = agenda.popleft()
        group = run.groups.get(task_index)
        if index >= 0 and group is not None and group.one_to_one is not None:
            agenda.extend(_evaluate_child(group, group.one_to_one, index, tx))
        elif run.states[task_index] == TaskState.PENDING:
            agenda.extend(_evaluate(run, task_index, tx))
    if run.unfinished == 0 and run.state is RunState.RUNNING:
        tx.change_run(run, state=outcome(run), ended_at=tx.now)
        tx.effects.append(ForgetRun(run.run_no))
        tx.memory.drop_run(run)
        tx.ended_runs.append(run)


def _evaluate(run: Run, task_index: int, tx: Transaction) -> list[Entry]:
    """Evaluate a task as a whole. Return the tasks to evaluate next."""
    said = verdict(run, task_index)
    ended: TaskState | None
    if said is Verdict.RUN or (said is Verdict.WAIT and _may_open(run, task_index)):
        if task_index in run.graph.past and not previous.admits(run, task_index, tx):
            return []
        ended = _make_ready(run, task_index, tx)
    elif said is Verdict.WAIT:
        return []
    else:
        ended = TaskState.SKIPPED if said is Verdict.SKIP else TaskState.UPSTREAM_FAILED
        if task_index in run.groups:
            return _end_children(run, task_index, ended, tx)
        end_unstarted(run, task_index, ended, tx)
    if ended is not None:
        return _ended(run, task_index, WHOLE, ended, tx)
    group = run.groups.get(task_index)
    if group is None:
        return []
    entries = [(follower, WHOLE) for follower in run.graph.followers[task_index]]
    return entries + _evaluate_children(group, tx)


def _may_open(run: Run, task_index: int) -> bool:
    return bool(run.graph.indexed[task_index]) and one_to_one.may_open(run, task_index)


def _evaluate_children(group: MappedTask, tx: Transaction) -> list[Entry]:
    """Evaluate the children that have not been evaluated since the expansion.

    Return the tasks to evaluate next.
    """
    entries: list[Entry] = []
    pairing = group.one_to_one if group.run.clearing is None else None
    while pairing is not None and pairing.evaluated < group.width:
        if tx.is_full or tx.evaluated >= EVALUATED_CHILDREN:
            tx.postpone(group.run)
            break
        tx.evaluated += 1
        pairing.evaluated += 1
        entries += _evaluate_child(group, pairing, pairing.evaluated - 1, tx)
    return entries


def _evaluate_child(
    group: MappedTask, pairing: OneToOne, index: int, tx: Transaction
) -> list[Entry]:
    if group.states[index] != TaskState.PENDING:
        return []
    said = one_to_one.child_verdict(group, index)
    if said is Verdict.WAIT:
        return []
    run, task_index = group.run, group.task_index
    if said is Verdict.RUN:
        had_fresh = group.has_fresh
        pairing.allow(index)
        if not had_fresh and group.has_fresh:
            tx.slots.offer(group)
        return []
    ended = TaskState.SKIPPED if said is Verdict.SKIP else TaskState.UPSTREAM_FAILED
    end_unstarted(run, task_index, ended, tx, map_index=index)
    return _ended(run, task_index, index, ended, tx)


def continue_evaluation(run: Run, tx: Transaction) -> None:
    """Evaluate children that did not fit into an earlier turn."""
    for group in list(run.groups.values()):
        if run.states[group.task_index] == TaskState.PENDING and run.state is RunState.RUNNING:
            step(run, [group.task_index], tx)
        # As long as the mapped task itself is undecided, its children are not evaluated.
        is_evaluated = run.states[group.task_index] == TaskState.RUNNING
        if group.one_to_one is not None and is_evaluated and run.state is RunState.RUNNING:
            _step(run, _evaluate_children(group, tx), tx)


def _lacks_a_list(run: Run, task_index: int) -> bool:
    """Return whether any list that a mapped task expands over has yet to be produced."""
    mapped = run.spec.tasks[task_index].mapped
    if mapped is None or stream_expand.source_of(run, task_index) >= 0:  # a stream may begin empty
        return False
    lists = [leaf.task_index for leaf in expand.leaves(mapped.sources) if leaf.task_index >= 0]
    plain = [task_index for task_index in lists if run.spec.tasks[task_index].mapped is None]
    return any(run.states[task_index] < TaskState.SUCCESS for task_index in plain)


def _make_ready(run: Run, task_index: int, tx: Transaction) -> TaskState | None:
    """Queue or expand a task. If it ended immediately instead, return its final state."""
    if run.spec.tasks[task_index].mapped is not None:
        return _expand(run, task_index, tx)
    run.states[task_index] = TaskState.QUEUED
    task = fresh(run, task_index, -1)
    task.queued_at = tx.now
    tx.move(task, TaskState.QUEUED)
    run.active_tasks[task.task_no] = task
    tx.memory.active_tasks[task.task_no] = task
    tx.slots.offer(task)
    return None


def _end_children(run: Run, task_index: int, state: TaskState, tx: Transaction) -> list[Entry]:
    """End the cleared children of a mapped task, because they will not run again."""
    group = run.groups[task_index]
    run.states[task_index] = TaskState.RUNNING
    entries: dict[Entry, None] = {}  # each child has its own followers
    index = group.pending_from(0)
    while index < group.width:
        if tx.is_full or tx.evaluated >= EVALUATED_CHILDREN:
            tx.postpone(run)
            run.states[task_index] = TaskState.PENDING  # the other children follow later
            break
        tx.evaluated += 1
        end_unstarted(run, task_index, state, tx, map_index=index)
        entries.update(dict.fromkeys(_ended(run, task_index, index, state, tx)))
        index = group.pending_from(index + 1)
    return list(entries)


def _expand(run: Run, task_index: int, tx: Transaction) -> TaskState | None:
    if task_index in run.groups:  # the task was cleared and keeps its width
        run.states[task_index] = TaskState.RUNNING
        if run.groups[task_index].one_to_one is None:
            tx.slots.offer(run.groups[task_index])
        return None
    spec = run.spec.tasks[task_index]
    assert spec.mapped is not None  # noqa: S101 - checked by the caller
    stream = stream_expand.source_of(run, task_index)
    if stream >= 0 and run.states[stream] < TaskState.SUCCESS:
        stream_expand.open_group(run, task_index, tx)
        return None
    if _lacks_a_list(run, task_index) or not one_to_one.is_known(run, task_index):
        return None
    widths = []
    for leaf, known in zip(
        expand.leaves(spec.mapped.sources), one_to_one.widths(run, spec.mapped), strict=True
    ):
        if known is None:
            ended = _without_source(run.states[leaf.task_index])
            end_unstarted(run, task_index, ended, tx)
            return ended
        widths.append(known)
    width = expand.width(spec.mapped, widths)
    if width == 0:
        end_unstarted(run, task_index, TaskState.SKIPPED, tx)
        return TaskState.SKIPPED
    capped = expand.check_cap(width, spec.map_limit)
    if capped is not None:
        failure = Failure(type="FanOutCapped", message=str(capped), reason="fanout_cap")
        end_unstarted(run, task_index, TaskState.FAILED, tx, failure=failure)
        alert(run, task_index, failure, tx)
        return TaskState.FAILED
    group = _make_group(run, task_index, width, tx)
    if run.graph.indexed[task_index]:
        group.one_to_one = OneToOne(widths, group.width)
    else:
        tx.slots.offer(group)
    return None


def _make_group(run: Run, task_index: int, width: int, tx: Transaction) -> MappedTask:
    """Expand a task.

    In a loop, the task gets one child per started iteration, and may stay open for more.
    """
    spec, is_open = run.spec.tasks[task_index], False
    numbers = width
    if spec.mapped is not None and spec.mapped.until >= 0:
        width, is_open = iterations.started_iterations(run, task_index)
        numbers = spec.map_limit
    row = ExpansionRow(
        run_no=run.run_no,
        task_index=task_index,
        width=width,
        first_task_no=tx.numbers.take(numbers),
        is_open=is_open,
    )
    stream_expand.remove_unexpanded(run, task_index, tx)
    group = run.groups[task_index] = MappedTask(run, row)
    run.states[task_index] = TaskState.RUNNING
    tx.change_group(group, -1)
    if not group.is_loop:
        run.widen(task_index, width)
    return group


def _without_source(parent: int) -> TaskState:
    """Return the state of a mapped task that has no list to expand over.

    If the source succeeded but has no list, a person has marked it.
    """
    if parent in {TaskState.SKIPPED, TaskState.SUCCESS}:
        return TaskState.SKIPPED
    return TaskState.UPSTREAM_FAILED


def alert(run: Run, task_index: int, failure: Failure, tx: Transaction) -> None:
    """Queue an alert about a task, or about the run for task index -1."""
    task_id = run.spec.tasks[task_index].task_id if task_index >= 0 else ""
    tx.outbox.alert_of(run.row, failure.reason, failure.message, task_id)
