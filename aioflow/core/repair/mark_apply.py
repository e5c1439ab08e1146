"""What a slice does for a mark: tasks end as was said, and what their earlier ends let is stopped.

A task that is marked is stopped wherever it is, or its end is taken back; then it ends as was
said, under a number that no start of it has had.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final

from msgspec.structs import replace

from aioflow.core.repair import pending_clears
from aioflow.core.repair.reset import dissolve, ended, forget_result, reset, stopped
from aioflow.core.runs import iterations
from aioflow.core.runs.evaluation import WHOLE, verdict
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance, is_under_way
from aioflow.core.tasks import one_to_one, retry_budget, stream_expand
from aioflow.core.tasks.readiness import fresh, is_cleared
from aioflow.core.tasks.recount import retally
from aioflow.core.tasks.trigger_rules import Verdict
from aioflow.core.transaction import Transaction
from aioflow.model.ids import TaskNo
from aioflow.model.rows import ResultRow
from aioflow.model.states import MARKED, Failure, RunState, TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.outbox import Clearing, Marking

__all__ = ("begin_anew", "end", "end_again", "marked", "overtake", "stop_overtaken", "takers")

_UNDER_WAY: Final = re.compile(
    b"[" + bytes((TaskState.QUEUED,)) + b"-" + bytes((TaskState.RETRYING,)) + b"]"
)


# ── the tasks themselves ────────────────────────────────────────────────────────────────────


def end(run: Run, position: int, index: int, draft: Transaction, slots: Slots) -> None:
    """Have a task end as its mark says."""
    assert run.clearing is not None  # noqa: S101 - the caller looked
    mark = run.clearing.mark
    assert mark is not None  # noqa: S101
    state, task_no = mark.state, run.task_no(position, index)
    begun = _take_away(run, task_no, draft, slots)
    live = fresh(run, position, index)
    live.try_number, live.started_at = begun
    live.ended_at = max(draft.now, live.started_at or draft.now)  # the clock may have been set
    live.failure = marked(state)
    draft.move(live, state)
    if iterations.is_decided(run, position, index):
        _end_loop(run, position, draft)
    if index >= 0:
        return
    run.states[position] = state
    forget_result(run, position)
    if run.spec.tasks[position].streams:
        _close(run, live, state, draft)


def marked(state: TaskState) -> Failure:
    """Return what stands with a task, or child, that a person marked."""
    return Failure(type="Marked", message=f"a person marked it {state.label}", reason=MARKED)


def _take_away(
    run: Run, task_no: TaskNo, draft: Transaction, slots: Slots
) -> tuple[int, Timestamp | None]:
    """Take a task away from wherever it is; return which try it was in, and since when."""
    live, row = run.live.get(task_no), draft.memory.recalled.get(task_no)
    if live is not None:
        retry_budget.end_otherwise(run, live)
        begun = live.try_number, live.started_at
        begin_anew(stopped(live, draft, slots), draft, keeps_items=True)
        return begun
    if row is None or row.state.is_live:
        return 0, None
    retry_budget.end_otherwise(run, row)
    begin_anew(ended(run, row, draft), draft, keeps_items=True)
    return row.try_number, row.started_at


def begin_anew(old: TaskInstance, draft: Transaction, *, keeps_items: bool = False) -> None:
    """Let a task be pending; it may go on in this turn.

    Args:
        keeps_items: What a stream has given on stays.
    """
    run = old.run
    given = run.items.pop(old.task_no, None) if keeps_items and old.spec.streams else None
    live = reset(old, draft)
    run.cleared.hold(live.task_no, live)
    if given is not None:
        run.items[old.task_no] = given


def _end_loop(run: Run, decider: int, draft: Transaction) -> None:
    """No round follows the one in which what decides was marked."""
    for group in iterations.groups_of(run, decider):
        if group.is_open:
            draft.change_group(group, group.width)
            group.is_open = False


def _close(run: Run, live: TaskInstance, state: TaskState, draft: Transaction) -> None:
    """A stream ends where it is; what has come of it is kept."""
    position = live.position
    given = run.items.get(live.task_no)
    if state is TaskState.SUCCESS:
        width = 0 if given is None else given.count
        run.widths[position] = width
        run.source_starts[position] = live.start_no
        draft.batch.results.append(
            ResultRow(
                task_no=live.task_no,
                run_no=run.run_no,
                start_no=live.start_no,
                body=None,
                size=0,
                width=width,
            )
        )
    for taker in stream_expand.takers(run, position):
        group = run.groups.get(taker)
        if group is None:
            continue
        if group.is_open:
            draft.change_group(group, group.width)
            group.is_open = False
        group.cut = stream_expand.cut_of(run, position, group.width)


# ── what comes after them ───────────────────────────────────────────────────────────────────


def overtake(run: Run, draft: Transaction, slots: Slots) -> bool:
    """Stop what is under way though its rule no longer says so, as far as it is not mapped.

    Returns:
        Whether more may have to be: children, for ``stop_overtaken``, or what comes after all of
        these.
    """
    chosen = run.clearing
    mark = None if chosen is None else chosen.mark
    if chosen is None or mark is None or mark.is_cut_short:
        return False
    for position in chosen.anew:
        if position in run.groups:
            dissolve(run, position, draft)
    retally(run)
    stopped_in = {at for at in mark.overtaken if at in run.groups and is_cleared(run.groups[at])}
    whole, groups = _overtaken(run, {*mark.changed, *stopped_in})
    if not whole and not groups:
        return False
    # Their items are gone; but what is marked is what it is.
    anew = (takers(run, whole) & run.groups.keys()) - {place[0] for place in mark.places}
    for position in whole:
        _stop(run, run.task_no(position, WHOLE), draft, slots)
    pending_clears.owe(run, _further(chosen, mark, whole, groups, anew), draft)
    return True


def _further(
    chosen: Clearing, mark: Marking, whole: set[int], groups: set[int], anew: set[int]
) -> Clearing:
    """Return what is still owed, now that all that was chosen at first is done."""
    return replace(
        chosen,
        whole=tuple(sorted({*chosen.whole, *anew})),
        anew=tuple(sorted(anew)),
        unrun=(),
        mark=replace(mark, changed=tuple(sorted(whole | anew)), overtaken=tuple(sorted(groups))),
    )


def takers(run: Run, positions: Iterable[int]) -> set[int]:
    """Return the fan-outs over streams among these: how those end, they do."""
    found = (stream_expand.takers(run, p) for p in positions if run.spec.tasks[p].streams)
    return {taker for of_stream in found for taker in of_stream}


def _overtaken(run: Run, changed: Iterable[int]) -> tuple[set[int], set[int]]:
    """Return the tasks behind these that are to be stopped, and the fan-outs to be looked at."""
    whole, groups = set[int](), set[int]()
    for position in {judge for parent in changed for judge in run.graph.judges[parent]}:
        if stream_expand.source_of(run, position) >= 0:
            continue  # how its stream ended matters to what comes after it alone
        group = run.groups.get(position)
        if group is None:
            if is_under_way(run.states[position]) and verdict(run, position) is not Verdict.RUN:
                whole.add(position)
        elif group.unfinished and _may_be_overtaken(group):
            groups.add(position)
    return whole, groups


def _may_be_overtaken(group: MappedTask) -> bool:
    return group.lockstep is not None or verdict(group.run, group.position) is not Verdict.RUN


def stop_overtaken(run: Run, draft: Transaction, slots: Slots, limit: int) -> int:
    """Stop children that are under way though their rule no longer says so.

    Args:
        limit: How many are looked at.

    Returns:
        How many were; fewer, if no more are left.
    """
    mark = None if run.clearing is None else run.clearing.mark
    count = 0
    for position in () if mark is None else mark.overtaken:
        group = run.groups.get(position)
        if group is None or not _may_be_overtaken(group):
            continue
        found = _UNDER_WAY.finditer(bytes(group.states), run.looked.get(position, 0))
        for index in [match.start() for match in islice(found, limit - count)]:
            count += 1
            run.looked[position] = index + 1
            if group.lockstep is None or one_to_one.child_verdict(group, index) is not Verdict.RUN:
                _stop(run, group.first_task_no + index, draft, slots)
    return count


def _stop(run: Run, task_no: TaskNo, draft: Transaction, slots: Slots) -> None:
    """Stop a task under way that should not be; it is as if it had not begun."""
    live = run.live[task_no]
    retry_budget.take_back(run, live)
    begin_anew(stopped(live, draft, slots), draft)


# ── the run ─────────────────────────────────────────────────────────────────────────────────


def end_again(run: Run, state: RunState, mark: Marking, draft: Transaction) -> None:
    """A run that had ended has ended so; one that was cut short stays as it was."""
    assert mark.ended is not None  # noqa: S101 - the caller looked
    was, ended_at = mark.ended
    if run.row.ended_at is None:  # it took more than one turn
        if not mark.is_cut_short:
            draft.change_run(run, state=RunState.RUNNING, is_told=False)
            draft.change_run(run, state=state, is_told=state is not was)
        draft.change_run(run, ended_at=ended_at)
    elif state is not was:
        for step in (RunState.QUEUED, RunState.RUNNING, state):
            draft.change_run(run, state=step)
    for position in range(len(run.states)):
        draft.task_over(run, position)  # the run behind looked at it as at one that goes on
    draft.memory.drop_run(run)
    draft.held_dags.add(run.row.dag_id)  # another run may be the first of its line now
