"""How a task begins anew: stopped or taken back, then pending under a number of its own.

For a mark that is done in one turn, a batch of tasks at most, with what they had decided. What
there is of a whole run is cleared in slices, see ``clearing``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from aioflow.core import budget, handling, waits
from aioflow.core.attempt import keep_try
from aioflow.core.choosing import Chosen
from aioflow.core.draft import Draft
from aioflow.core.fresh import fresh, rewind
from aioflow.core.live import Group, Live, Run
from aioflow.core.lockstep import Lockstep
from aioflow.core.recount import retally
from aioflow.core.run import leave
from aioflow.core.slots import Slots
from aioflow.model import TaskNo, TaskState
from aioflow.rows import ExpansionRow, TaskRow, TryRow

__all__ = (
    "Resetting",
    "dissolve",
    "ended",
    "forget_result",
    "remove",
    "renewed",
    "reset",
    "stopped",
)


class Resetting:
    """What is cleared of one run, in one turn."""

    def __init__(self, run: Run, rows: Sequence[TaskRow], draft: Draft, slots: Slots) -> None:
        self._run = run
        self._rows = rows
        self._draft = draft
        self._slots = slots

    def clear(self, chosen: Chosen) -> int:
        """Clear these; return how many tasks that were."""
        run, draft = self._run, self._draft
        picked = [row for row in self._rows if chosen.has(row, run)]
        if not picked and not chosen.anew:
            return 0
        for row in picked:
            live = run.live.get(row.task_no)
            budget.take_back(run, row if live is None else live)
            self.reset(
                ended(run, row, draft) if live is None else stopped(live, draft, self._slots)
            )
        for row in self._rows:  # also what was cleared before, and has not begun since
            is_child = row.position in chosen.anew and row.map_index >= 0
            if is_child and row.state is not TaskState.REMOVED:
                remove(fresh(run, row.position, row.map_index), draft)
        for position in chosen.anew:
            dissolve(run, position, draft)
        for position in chosen.positions & run.groups.keys():
            self.renew(run.groups[position])
        retally(run)
        return len(picked)

    def restate(self, tasks: Collection[TaskNo], state: TaskState) -> None:
        """Know of these rows that their tasks have ended so meanwhile."""
        self._rows = [
            replace(row, state=state, failure=None) if row.task_no in tasks else row
            for row in self._rows
        ]

    def reset(self, old: Live) -> None:
        """Let a task be pending; it may go on in this turn."""
        live = reset(old, self._draft)
        self._run.cleared.hold(live.task_no, live)

    def renew(self, old: Group) -> None:
        """Let children wait for the rule of their task again, unless others are under way."""
        run, lockstep = self._run, old.lockstep
        group = renewed(old)
        if lockstep is not None:
            group.lockstep = Lockstep(lockstep.widths, group.width)
        rewind(group)
        if not group.unfinished:
            run.states[group.position] = TaskState.PENDING
        else:
            run.states[group.position] = TaskState.RUNNING
            if group.lockstep is None:
                self._slots.offer(group)


# ── one task, or one fan-out ────────────────────────────────────────────────────────────


def stopped(live: Live, draft: Draft, slots: Slots) -> Live:
    """Take a task away from wherever it is."""
    keep_try(live, TaskState.CANCELLED, None, draft)
    waits.stop(live, "cancelled", draft, slots)
    handling.cancel(live, draft)
    leave(live, draft, slots)
    slots.stop_keeping(live)  # it does not wait any longer
    slots.unblock(live)
    return live


def ended(run: Run, row: TaskRow, draft: Draft) -> Live:
    """Make the object of a task that has ended."""
    live = Live(run, row.task_no, row.position, row.map_index)
    live.state = live.stored_state = row.state
    live.start_no = live.stored_start = row.start_no
    if row.state is TaskState.SUCCESS and row.try_number == 1 and row.ended_at is not None:
        draft.batch.new_tries.append(  # a first success has no row of its own
            TryRow(
                task_no=row.task_no,
                start_no=row.start_no,
                run_no=row.run_no,
                try_number=row.try_number,
                state=row.state,
                started_at=row.started_at,
                ended_at=row.ended_at,
                failure=row.failure,
            )
        )
    return live


def reset(old: Live, draft: Draft) -> Live:
    """Let a task be pending, under a number that no start of it has had."""
    run = old.run
    live = Live(run, old.task_no, old.position, old.map_index)
    live.state, live.start_no = old.state, old.start_no + 1
    live.stored_state, live.stored_start = old.stored_state, old.stored_start
    draft.move(live, TaskState.PENDING)
    old.state = TaskState.PENDING  # wherever that waits for a slot, it does so no longer
    run.removed.pop(live.task_no, None)
    if live.map_index < 0:
        run.states[live.position] = TaskState.PENDING
        forget_result(run, live.position)
    draft.batch.gone_results.append(live.task_no)
    if run.items.pop(live.task_no, None) is not None:
        draft.batch.gone_items.append(live.task_no)
    return live


def remove(live: Live, draft: Draft) -> None:
    """Others will take the place of a child; its own again where it is a round."""
    live.ended_at = draft.now
    draft.move(live, TaskState.REMOVED)
    if live.run.groups[live.position].is_loop:
        live.run.removed[live.task_no] = live.start_no


def dissolve(run: Run, position: int, draft: Draft) -> None:
    """Forget that a task was expanded: it will be, when its rule says so."""
    group = run.groups.pop(position)
    if group.is_loop:
        first, end = group.first_task_no, group.first_task_no + run.spec.tasks[position].map_limit
        for task_no in [number for number in run.removed if first <= number < end]:
            del run.removed[task_no]
    group.states, group.lockstep = bytearray(), None  # wherever it waits, it has nothing to give
    run.states[position] = TaskState.PENDING
    draft.batch.gone_expansions.append((run.run_no, position))


def renewed(old: Group) -> Group:
    """Have what waits for slots as this group no longer do so; return what it is from now on."""
    run = old.run
    row = ExpansionRow(
        run_no=run.run_no,
        position=old.position,
        width=0,
        first_task_no=old.first_task_no,
        is_open=old.is_open,
    )
    group = run.groups[old.position] = Group(run, row)
    group.states, group.counts = old.states, old.counts
    group.cut, group.unfinished = old.cut, old.unfinished
    old.states, old.lockstep = bytearray(), None  # wherever it waits, it has nothing to give
    return group


def forget_result(run: Run, position: int) -> None:
    """Nothing is known any more of what a task has given."""
    run.known[position] = 0
    run.results.pop(position, None)
    run.widths.pop(position, None)
    run.source_starts.pop(position, None)
