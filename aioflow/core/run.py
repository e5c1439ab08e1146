"""One run in memory: what follows when one of its tasks ends.

``end`` writes an end down, tells the children's tallies, and steps: each child whose rule
can now be judged is made ready, expanded, skipped or failed, and so on down the graph with
a list, never by recursion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from aioflow.core import growing, mapping
from aioflow.core.draft import Draft
from aioflow.core.graph import Graph, Judged
from aioflow.core.hosting import let_go
from aioflow.core.live import TALLY, Group, Live, Run
from aioflow.core.rules import Verdict, together
from aioflow.core.rules import decide as judge
from aioflow.core.rules import decide_share as judge_share
from aioflow.core.scopes import is_ignorable
from aioflow.core.slots import Slots
from aioflow.model import Failure, Instant, RunState, TaskState, TriggerRule, TriggerState
from aioflow.orders import ForgetRun
from aioflow.rows import Alert, ExpansionRow

__all__ = (
    "AT_HAND_BYTES",
    "begin",
    "end",
    "end_unstarted",
    "outcome",
    "resume",
    "step",
)

AT_HAND_BYTES = 1024
"""Results up to this size stay in memory for the tasks that take them as arguments."""

_FAILURE_AWAITED = frozenset(
    {TriggerRule.ONE_SUCCESS, TriggerRule.ONE_DONE, TriggerRule.ONE_FAILED, TriggerRule.ALL_FAILED}
)
"""Rules that provide for a failed parent: their runs are no ``partial`` for it."""


def begin(run: Run, draft: Draft, slots: Slots) -> None:
    """Start a queued run: whatever waits for nobody becomes ready."""
    draft.change_run(run, state=RunState.RUNNING, started_at=draft.now)
    graph = run.graph
    step(run, (p for p in graph.order if _waits_for_nobody(graph, p)), draft, slots)


def _waits_for_nobody(graph: Graph, position: int) -> bool:
    return all(look.rule is TriggerRule.ALWAYS for look in graph.judged[position])


def resume(run: Run, draft: Draft, slots: Slots) -> None:
    """Judge everything of a restored run again that had not been decided."""
    undecided = [p for p in run.graph.order if run.states[p] == TaskState.PENDING]
    for group in run.groups.values():
        if group.has_fresh:
            slots.offer(group)
    step(run, undecided, draft, slots)


def end(
    live: Live,
    state: TaskState,
    draft: Draft,
    slots: Slots,
    *,
    at: Instant | None = None,
    skips: tuple[int, ...] = (),
) -> None:
    """End a task in a final state, and step.

    Args:
        at: When it ended; now by default.
        skips: Tasks that are skipped by it unless they have begun, before any rule is judged.
    """
    draft.move(live, state)
    ended_at = draft.now if at is None else at
    live.ended_at = max(ended_at, live.started_at or ended_at)  # the clock may have been set
    live.due_at = None
    if live.spec.sensor is None:  # that of a sensor is part of its story
        live.deadline_at = None
    run = live.run
    slots.release(live)
    run.live.pop(live.task_no, None)
    draft.memory.live.pop(live.task_no, None)
    done = [
        w for w in live.waits if w.is_handled or (w.state is TriggerState.FIRED and not w.stream)
    ]
    for wait in (*done, *live.streams.values()):
        let_go(wait, "finished", draft)
    if live.resumed is not None:
        let_go(live.resumed, "finished", draft)
    draft.drop_records(live)
    if live.task_no in run.items and not live.spec.streams:
        draft.batch.gone_items.append(live.task_no)  # its result has them all
        del run.items[live.task_no]
    if run.state is RunState.RUNNING:
        follows = list(_ended(run, live.position, live.map_index, state, draft))
        for position in skips:
            if run.states[position] == TaskState.PENDING:
                end_unstarted(run, position, TaskState.SKIPPED, draft)
                follows += _ended(run, position, -1, TaskState.SKIPPED, draft)
        step(run, follows, draft, slots)
        slots.unblock(live)


def end_unstarted(
    run: Run,
    position: int,
    state: TaskState,
    draft: Draft,
    *,
    failure: Failure | None = None,
) -> None:
    """Write the row of a task that ends before it ever was ready."""
    live = Live(run, run.task_no(position, -1), position, -1)
    live.try_number = 0
    live.ended_at = draft.now
    live.failure = failure
    draft.move(live, state)
    run.states[position] = state


def outcome(run: Run) -> RunState:
    """Return how a run ends whose tasks all have.

    Its leaves decide. Where they went well though something failed that no rule was
    waiting for, the run is ``partial``.
    """
    bad = (TaskState.FAILED, TaskState.UPSTREAM_FAILED, TaskState.CANCELLED)
    if any(run.states[leaf] in bad for leaf in run.graph.leaves):
        return RunState.FAILED
    for position, task in enumerate(run.spec.tasks):
        if run.states[position] != TaskState.FAILED or is_ignorable(task):
            continue
        if not any(
            _awaits_failure(run.graph, child, position) for child in run.graph.judges[position]
        ):
            return RunState.PARTIAL
    return RunState.SUCCESS


def _awaits_failure(graph: Graph, child: int, parent: int) -> bool:
    """Whether the rule a child asks of this parent provides for its failure."""
    return any(
        look.rule in _FAILURE_AWAITED and look.min_success is None and parent in look.parents
        for look in graph.judged[child]
    )


def _ended(
    run: Run, position: int, map_index: int, state: TaskState, draft: Draft
) -> tuple[int, ...]:
    """Write one ended instance down; return the tasks whose rule may now be judged."""
    run.count_ended(position, state)
    if map_index < 0:
        run.states[position] = state
        run.unfinished -= 1
        if run.spec.tasks[position].streams:
            return (*run.graph.judges[position], *growing.close(run, position, draft))
    else:
        group = run.groups[position]
        if group.is_over:
            run.states[position] = group.outcome()
            run.unfinished -= 1
    return run.graph.judges[position]


def step(run: Run, first: Iterable[int], draft: Draft, slots: Slots) -> None:
    """Judge these tasks, and all that follows from it."""
    agenda = deque(first)
    while agenda:
        position = agenda.popleft()
        if run.states[position] != TaskState.PENDING:
            continue
        verdict = _verdict(run, position)
        if verdict is Verdict.WAIT or (verdict is Verdict.RUN and _lacks_a_list(run, position)):
            continue
        ended: TaskState | None
        if verdict is Verdict.RUN:
            ended = _make_ready(run, position, draft, slots)
        else:
            ended = TaskState.SKIPPED if verdict is Verdict.SKIP else TaskState.UPSTREAM_FAILED
            end_unstarted(run, position, ended, draft)
        if ended is not None:
            agenda.extend(_ended(run, position, -1, ended, draft))
    if run.unfinished == 0 and run.state is RunState.RUNNING:
        draft.change_run(run, state=outcome(run), ended_at=draft.now)
        draft.effects.append(ForgetRun(run.run_no))
        draft.memory.drop_run(run)
        draft.ended_runs.append(run)


def _verdict(run: Run, position: int) -> Verdict:
    """Return what the rules say, also of a stream that has begun as if it had ended well."""
    if growing.has_begun(run, position):
        source = growing.source_of(run, position)
        if _judged(run, position, source) is Verdict.RUN:
            return Verdict.RUN
    return _judged(run, position)


def _judged(run: Run, position: int, assumed: int = -1) -> Verdict:
    """Return it, taking one parent for ended well."""
    looks = run.graph.judged[position]
    if len(looks) == 1:
        return _look(run, looks[0], assumed)
    return together([_look(run, look, assumed) for look in looks])


def _look(run: Run, look: Judged, assumed: int) -> Verdict:
    tallies, at = run.tallies, look.tally * TALLY
    total, success, failed, upstream_failed, skipped, removed = tallies[at : at + TALLY]
    success += assumed in look.parents
    if look.min_success is not None:
        return judge_share(
            look.min_success,
            total=total,
            success=success,
            failed=failed,
            upstream_failed=upstream_failed,
            skipped=skipped,
            removed=removed,
        )
    setups = look.setups
    return judge(
        look.rule,
        total=total,
        success=success,
        failed=failed,
        upstream_failed=upstream_failed,
        skipped=skipped,
        removed=removed,
        setup_total=len(setups),
        setup_success=sum(p == assumed or run.states[p] == TaskState.SUCCESS for p in setups),
        setup_skipped=sum(run.states[p] == TaskState.SKIPPED for p in setups),
    )


def _lacks_a_list(run: Run, position: int) -> bool:
    """Whether a mapped task may run by its rule, and a list it expands over is still to come."""
    mapped = run.spec.tasks[position].mapped
    if mapped is None or growing.source_of(run, position) >= 0:  # a stream may begin empty
        return False
    sources = (source.position for source in mapped.sources if source.position >= 0)
    return any(run.states[source] < TaskState.SUCCESS for source in sources)


def _make_ready(run: Run, position: int, draft: Draft, slots: Slots) -> TaskState | None:
    """Queue a task, or expand it; return a state if it ended at once instead."""
    if run.spec.tasks[position].mapped is not None:
        return _expand(run, position, draft, slots)
    run.states[position] = TaskState.QUEUED
    live = Live(run, run.task_no(position, -1), position, -1)
    live.queued_at = draft.now
    draft.move(live, TaskState.QUEUED)
    run.live[live.task_no] = live
    draft.memory.live[live.task_no] = live
    slots.offer(live)
    return None


def _expand(run: Run, position: int, draft: Draft, slots: Slots) -> TaskState | None:
    spec = run.spec.tasks[position]
    assert spec.mapped is not None  # noqa: S101 - the caller looked
    stream = growing.source_of(run, position)
    if stream >= 0 and run.states[stream] < TaskState.SUCCESS:
        growing.open_group(run, position, draft, slots)
        return None
    widths = []
    for source in mapping.leaves(spec.mapped.sources):
        width = source.width if source.position < 0 else run.widths.get(source.position)
        if width is None:
            ended = _without_source(run.states[source.position])
            end_unstarted(run, position, ended, draft)
            return ended
        widths.append(width)
    width = mapping.width(spec.mapped, widths)
    if width == 0:
        end_unstarted(run, position, TaskState.SKIPPED, draft)
        return TaskState.SKIPPED
    capped = mapping.check_cap(width, spec.map_limit)
    if capped is not None:
        failure = Failure(type="FanOutCapped", message=str(capped), reason="fanout_cap")
        end_unstarted(run, position, TaskState.FAILED, draft, failure=failure)
        alert(run, position, failure, draft)
        return TaskState.FAILED
    expansion = ExpansionRow(
        run_no=run.run_no,
        position=position,
        width=width,
        first_task_no=draft.numbers.take(width),
    )
    draft.batch.new_expansions.append(expansion)
    group = run.groups[position] = Group(run, expansion)
    run.states[position] = TaskState.RUNNING
    run.widen(position, width)
    slots.offer(group)
    return None


def _without_source(parent: int) -> TaskState:
    """What becomes of a mapped task whose list nobody made."""
    if parent == TaskState.SKIPPED:
        return TaskState.SKIPPED
    return TaskState.UPSTREAM_FAILED


def alert(run: Run, position: int, failure: Failure, draft: Draft) -> None:
    """Owe the people on call a word about a task."""
    draft.alert(
        Alert(
            reason=failure.reason,
            dag_id=run.row.dag_id,
            run_id=run.row.run_id,
            task_id=run.spec.tasks[position].task_id,
            message=failure.message,
        )
    )
