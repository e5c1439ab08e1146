"""Clearing: tasks of a run begin anew, as if they never had; the run goes on if it had ended.

A cleared task is pending, with a row that keeps the number of its last start. What it returned,
recorded and waited for is gone, its tries stay for people to read. The children of a fan-out
keep their numbers and its width, unless what it is made from is cleared, too: then they are
``removed``, and it is made anew with children of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from aioflow.core import budget, choosing, dag, growing, handling, waits
from aioflow.core.attempt import keep_try
from aioflow.core.draft import Draft
from aioflow.core.fresh import fresh, rewind
from aioflow.core.live import Group, Live, Run
from aioflow.core.lockstep import Lockstep
from aioflow.core.memory import Memory
from aioflow.core.restoring import restore
from aioflow.core.run import leave, resume
from aioflow.core.slots import Slots
from aioflow.core.tallies import TALLY
from aioflow.errors import RequestError, UnknownRun, UnknownTask
from aioflow.inputs import Asked, Input
from aioflow.model import RunState, TaskNo, TaskState
from aioflow.requests import ClearTasks, DeleteRun, Mark
from aioflow.rows import ExpansionRow, TaskRow, TryRow
from aioflow.unfinished import LiveRun

__all__ = ("Clearing", "clear", "portion", "recount", "wanted")


def wanted(inputs: Sequence[Input]) -> Iterator[ClearTasks | Mark | DeleteRun]:
    """Yield the requests whose runs have to be in ``memory.recalled`` before these are taken."""
    for entry in inputs:
        if isinstance(entry, Asked) and isinstance(entry.request, ClearTasks | Mark | DeleteRun):
            yield entry.request


def portion(inbox: Iterable[Input], limit: int) -> int:
    """Return how many inputs the next turn takes: what needs rows of a run is taken alone."""
    count = 0
    for count, entry in enumerate(islice(inbox, limit), 1):
        if isinstance(entry, Asked) and any(wanted([entry])):
            return max(1, count - 1)
    return count


def clear(request: ClearTasks, draft: Draft, slots: Slots) -> tuple[int, RunState]:
    """Have tasks begin anew. Returns how many were cleared, and how their run stands.

    Raises:
        RequestError: If there is no such run or task, or the run is being cancelled.
    """
    memory = draft.memory
    rows = memory.recalled.get(request.run_id)
    if rows is None:
        raise UnknownRun(request.run_id)
    _check(request, rows, memory)
    if not rows.run.state.is_live and rows.run.ended_at is None:
        raise RequestError(f"run {request.run_id!r} is being ended; clear it when it has")
    is_over = rows.run.ended_at is not None
    run = restore(rows, memory) if is_over else memory.runs[rows.run.run_no]
    chosen = choosing.choose(request, run, rows.tasks)
    cleared = Clearing(run, rows.tasks, draft, slots).clear(chosen)
    if not cleared:
        if is_over:
            memory.drop_run(run)
        return 0, run.state
    if is_over:
        draft.reopen_run(run)
        dag.run_reopened(run, draft, slots)
    elif run.state is RunState.RUNNING and run.row.quarantine is None:
        resume(run, draft, slots)
    return cleared, run.state


def _check(request: ClearTasks, rows: LiveRun, memory: Memory) -> None:
    """Refuse a request about tasks that are not there."""
    position_of = memory.plans[rows.run.version, rows.run.dag_id].graph.position_of
    widths = {row.position: row.width for row in rows.expansions}
    for task_id in request.tasks or position_of:
        if task_id not in position_of:
            raise UnknownTask(request.run_id, task_id)
        if request.map_index >= widths.get(position_of[task_id], 0):
            raise UnknownTask(request.run_id, task_id, request.map_index)


class Clearing:
    """What is cleared of one run, in one turn."""

    def __init__(self, run: Run, rows: Sequence[TaskRow], draft: Draft, slots: Slots) -> None:
        self._run = run
        self._rows = rows
        self._draft = draft
        self._slots = slots

    def clear(self, chosen: choosing.Chosen) -> int:
        """Clear these; return how many tasks that were."""
        run = self._run
        picked = [row for row in self._rows if chosen.has(row)]
        if not picked and not chosen.anew:
            return 0
        for row in picked:
            live = run.live.get(row.task_no)
            self.reset(self.ended(row) if live is None else self.stopped(live))
        for row in self._rows:  # also what was cleared before, and has not begun since
            is_child = row.position in chosen.anew and row.map_index >= 0
            if is_child and row.state is not TaskState.REMOVED:
                self._remove(row)
        for position in chosen.anew:
            self._dissolve(position)
        for position in {row.position for row in picked}:
            self._forget_result(position)
        for position in chosen.positions & run.groups.keys():
            self.renew(run.groups[position])
        recount(run)
        run.retried, run.is_over_budget = 0, False
        budget.recount(run, (row for row in self._rows if not chosen.has(row)))
        return len(picked)

    def restate(self, tasks: Collection[TaskNo], state: TaskState) -> None:
        """Know of these rows that their tasks have ended so meanwhile."""
        self._rows = [
            replace(row, state=state, failure=None) if row.task_no in tasks else row
            for row in self._rows
        ]

    def stopped(self, live: Live) -> Live:
        """Take a task away from wherever it is."""
        keep_try(live, TaskState.CANCELLED, None, self._draft)
        waits.stop(live, "cancelled", self._draft, self._slots)
        handling.cancel(live, self._draft)
        leave(live, self._draft, self._slots)
        self._slots.unblock(live)
        return live

    def ended(self, row: TaskRow) -> Live:
        """Make the object of a task that has ended."""
        live = Live(self._run, row.task_no, row.position, row.map_index)
        live.state = live.stored_state = row.state
        live.start_no = live.stored_start = row.start_no
        if row.state is TaskState.SUCCESS and row.try_number == 1 and row.ended_at is not None:
            self._draft.batch.new_tries.append(  # a first success has no row of its own
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

    def reset(self, old: Live) -> None:
        """Let a task be pending, under a number that no start of it has had."""
        run, draft = self._run, self._draft
        live = Live(run, old.task_no, old.position, old.map_index)
        live.state, live.start_no = old.state, old.start_no + 1
        live.stored_state, live.stored_start = old.stored_state, old.stored_start
        draft.move(live, TaskState.PENDING)
        old.state = TaskState.PENDING  # wherever that waits for a slot, it does so no longer
        run.cleared[live.task_no] = live
        if live.map_index < 0:
            run.states[live.position] = TaskState.PENDING
        draft.batch.gone_results.append(live.task_no)
        if run.items.pop(live.task_no, None) is not None:
            draft.batch.gone_items.append(live.task_no)

    def _remove(self, row: TaskRow) -> None:
        live = fresh(self._run, row.position, row.map_index)
        live.ended_at = self._draft.now
        self._draft.move(live, TaskState.REMOVED)

    def _dissolve(self, position: int) -> None:
        """Forget that a task was expanded: it will be, when its rule says so."""
        run = self._run
        group = run.groups.pop(position)
        group.cursor, group.lockstep = (
            group.width,
            None,
        )  # wherever it waits, it has nothing to give
        run.states[position] = TaskState.PENDING
        self._draft.batch.gone_expansions.append((run.run_no, position))

    def renew(self, old: Group) -> None:
        """Let children wait for the rule of their task again, unless others are under way."""
        run = self._run
        row = ExpansionRow(
            run_no=run.run_no,
            position=old.position,
            width=old.width,
            first_task_no=old.first_task_no,
            is_open=old.is_open,
        )
        group = run.groups[old.position] = Group(run, row)
        group.states, group.counts = old.states, old.counts
        group.cut, group.unfinished = old.cut, old.unfinished
        if old.lockstep is not None:
            group.lockstep = Lockstep(old.lockstep.widths, group.width)
        rewind(group)
        old.states, old.lockstep = bytearray(), None  # wherever it waits, it has nothing to give
        if not group.unfinished:
            run.states[group.position] = TaskState.PENDING
        else:
            run.states[group.position] = TaskState.RUNNING
            if group.lockstep is None:
                self._slots.offer(group)

    def _forget_result(self, position: int) -> None:
        run = self._run
        run.known[position] = 0
        run.results.pop(position, None)
        run.widths.pop(position, None)
        run.source_starts.pop(position, None)


def recount(run: Run) -> None:
    """Tell the tallies of a run what its tasks say now."""
    for at in range(len(run.tallies)):
        run.tallies[at] = 0
    for looks in run.graph.judged:
        for look in looks:
            run.tallies[look.tally * TALLY] = len(look.parents) - len(look.indexed)
    run.unfinished = 0
    for position, number in enumerate(run.states):
        state, group = TaskState(number), run.groups.get(position)
        run.unfinished += state.is_live
        if group is None:
            if not state.is_live:
                run.count_ended(position, state)
            continue
        for ended in filter(lambda one: not one.is_live, TaskState):
            for _ in range(group.counts[ended]):
                run.count_child(group, ended)
        if group.is_loop and group.is_over:
            run.count_ended(position, group.outcome())
        growing.count(group)
