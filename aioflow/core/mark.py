"""Marking: a person says how tasks of a run have ended, or the run itself.

A task that is marked is stopped wherever it is, or its earlier end is taken back; then it ends
as was said, under a number that no start of it has had. What comes after it is decided by the
rules as if it had ended so: also what had been decided by its earlier end, unless that ran and
has ended. A run that had ended goes on where something of it has to; one that was cut short stays
so, and only its task's row changes.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from aioflow.core import budget, choosing, dag, following, growing, past, rounds
from aioflow.core.cancel import mark_ended, mark_live, marked
from aioflow.core.choosing import Chosen, named
from aioflow.core.draft import BATCH_ROWS, Draft
from aioflow.core.following import Entry
from aioflow.core.fresh import fresh, rewind
from aioflow.core.judging import WHOLE, verdict
from aioflow.core.line import order_of
from aioflow.core.live import Group, Live, Run
from aioflow.core.memory import Memory
from aioflow.core.recount import retally
from aioflow.core.resetting import Resetting, ended, forget_result, stopped
from aioflow.core.restoring import restore
from aioflow.core.rules import Verdict
from aioflow.core.run import follow, outcome, resume
from aioflow.core.slots import Slots
from aioflow.errors import RequestError, UnknownRun, UnknownTask
from aioflow.inputs import Asked, Input
from aioflow.model import Instant, RunState, TaskNo, TaskState
from aioflow.requests import DeleteRun, Mark
from aioflow.rows import ResultRow, TaskRow
from aioflow.unfinished import LiveRun

__all__ = ("asks", "mark", "needs_rows", "needs_tasks")

_UNRUN = frozenset({TaskState.UPSTREAM_FAILED, TaskState.SKIPPED})


def asks(inputs: Iterable[Input]) -> Iterator[Mark | DeleteRun]:
    """Yield the requests among inputs whose runs may have to be in ``memory.recalled_runs``."""
    for entry in inputs:
        if isinstance(entry, Asked) and isinstance(entry.request, Mark | DeleteRun):
            yield entry.request


def needs_rows(request: Mark | DeleteRun, memory: Memory) -> bool:
    """Whether memory does not know all there is to know for a request."""
    run = memory.find_run(request.run_id)
    if run is None or not isinstance(request, Mark):
        return run is None
    try:
        return any(_state(run, place) >= TaskState.SUCCESS for place in _places(request, run))
    except UnknownTask:
        return False


def needs_tasks(request: Mark | DeleteRun) -> bool:
    """Whether what is needed of its run is more than how it stands."""
    return isinstance(request, Mark) and bool(request.tasks)


def mark(request: Mark, draft: Draft, slots: Slots) -> tuple[int, RunState] | Mark:
    """Have tasks of a run, or the run, end as a person says.

    Returns:
        How many tasks were marked, and how their run stands; or what is left of the request.

    Raises:
        RequestError: If there is no such run or task, or the run is being ended.
    """
    memory = draft.memory
    rows = memory.recalled_runs.get(request.run_id)
    live = memory.find_run(request.run_id)
    if live is None and (rows is None or rows.run.ended_at is None):
        raise UnknownRun(request.run_id)
    if live is None:
        memory.touch(request.run_id)
    if not request.tasks:
        return 0, _mark_run(request, live, rows, draft, slots)
    run = live
    if run is None:
        assert rows is not None  # noqa: S101 - see above
        run = restore(rows, memory)
    elif not run.state.is_live:
        raise RequestError(f"run {request.run_id!r} is being ended; mark it when it has")
    elif run.clearing is not None:
        raise RequestError(f"run {request.run_id!r} is held still while it is being cleared")
    try:
        found = [p for p in _places(request, run) if _state(run, p) is not request.state]
        if found:
            marking = _Marking(run, [] if rows is None else rows.tasks, draft, slots)
            marking.mark(found[:BATCH_ROWS], request.state)
    finally:
        if live is None and run.row.ended_at is not None:
            memory.drop_run(run)
    count = request.marked + len(found[:BATCH_ROWS])
    return (count, run.state) if len(found) <= BATCH_ROWS else replace(request, marked=count)


def _mark_run(
    request: Mark, live: Run | None, rows: LiveRun | None, draft: Draft, slots: Slots
) -> RunState:
    state = RunState.SUCCESS if request.state is TaskState.SUCCESS else RunState.FAILED
    if live is not None:
        return mark_live(live, state, draft, slots)
    assert rows is not None  # noqa: S101 - the caller looked
    run = Run(rows.run, draft.memory.plans[rows.run.version, rows.run.dag_id])
    mark_ended(run, state, draft, is_told=False)
    order = order_of(run.row)
    if order is not None:  # what has no row has ended with its run
        past.forget(run.row.dag_id, order, draft)
    return run.state


def _places(request: Mark, run: Run) -> Iterator[Entry]:
    """Yield position and map index of the tasks that are meant.

    Raises:
        UnknownTask: If the run has no such task, or the task no such child.
    """
    for task_id in request.tasks:
        position = named(run, task_id, request.map_index)
        group = run.groups.get(position)
        if group is None:
            yield position, WHOLE
        elif request.map_index >= 0:
            yield position, request.map_index
        else:
            yield from ((position, index) for index in range(group.width))


def _state(run: Run, place: Entry) -> TaskState:
    """Return how a task stands; of one that is under way no more than that."""
    position, index = place
    return TaskState(run.states[position] if index < 0 else run.groups[position].states[index])


class _Marking:
    """What is marked of one run, in one turn."""

    def __init__(self, run: Run, rows: Sequence[TaskRow], draft: Draft, slots: Slots) -> None:
        self._run = run
        self._rows = rows
        self._draft = draft
        self._slots = slots
        self._resetting = Resetting(run, rows, draft, slots)
        self._begun: dict[TaskNo, tuple[int, Instant | None]] = {}
        self._settled: set[int] = set()

    def mark(self, places: Sequence[Entry], state: TaskState) -> None:
        """Have these end so; none of them has."""
        run, is_over = self._run, self._run.row.ended_at is not None
        is_cut_short = is_over and run.unfinished > 0
        taken_back = {p for p, i in places if _state(run, (p, i)) >= TaskState.SUCCESS}
        self._check_loops(taken_back)
        again = Chosen() if is_cut_short else self._decided_by(taken_back, set(places))
        self._resetting.clear(again)
        self._begin_anew(places)
        for place in places:
            self._end(place, state)
        self._resetting.restate({run.task_no(*place) for place in places}, state)
        marked = {position for position, _ in places}
        for position in marked:
            self._end_whole(position, state)
        retally(run)
        self._pass_on(marked)
        if is_cut_short:
            return
        self._reconsider(taken_back | self._takers(taken_back) | again.positions)
        if is_over:
            self._reopen()
        elif run.state is RunState.RUNNING and run.row.quarantine is None:
            follow(run, places, self._draft, self._slots)
            resume(run, self._draft, self._slots)

    def _check_loops(self, taken_back: set[int]) -> None:
        """Refuse to take back what a loop has come to: the rounds that followed would not fit."""
        for task in (self._run.spec.tasks[position] for position in taken_back):
            if task.mapped is not None and task.mapped.until >= 0:
                raise RequestError(f"task {task.task_id!r} has ended in a loop; clear it instead")

    def _pass_on(self, marked: set[int]) -> None:
        """Let the run behind know of what is over, with all that ended for it."""
        run = self._run
        for position in sorted(marked | self._settled):
            if run.states[position] >= TaskState.SUCCESS:
                self._draft.task_over(run, position)

    def _reopen(self) -> None:
        """A run that had ended has ended otherwise, or goes on."""
        if self._run.unfinished == 0:
            mark_ended(self._run, outcome(self._run), self._draft, is_told=True)
        else:
            self._draft.reopen_run(self._run)
            dag.run_reopened(self._run, self._draft, self._slots)

    # ── the tasks themselves ────────────────────────────────────────────────────────────

    def _begin_anew(self, places: Iterable[Entry]) -> None:
        """Take them away from wherever they are."""
        run, draft = self._run, self._draft
        numbers = [run.task_no(*place) for place in places]
        wanted = set(numbers)
        over = {row.task_no: row for row in self._rows if row.task_no in wanted}
        for task_no in numbers:
            live = run.live.get(task_no)
            if live is not None:
                budget.end_otherwise(run, live)
                old = stopped(live, draft, self._slots)
                self._reset(old, live.try_number, live.started_at)
            elif task_no in over and task_no not in run.cleared:
                row = over[task_no]
                budget.end_otherwise(run, row)
                self._reset(ended(run, row, draft), row.try_number, row.started_at)

    def _reset(self, live: Live, try_number: int, started_at: Instant | None) -> None:
        self._begun[live.task_no] = try_number, started_at
        streams = live.spec.streams  # what its children took stays
        given = self._run.items.pop(live.task_no, None) if streams else None
        self._resetting.reset(live)
        if given is not None:
            self._run.items[live.task_no] = given

    def _end(self, place: Entry, state: TaskState) -> None:
        run, draft = self._run, self._draft
        position, index = place
        live = fresh(run, position, index)
        live.try_number, live.started_at = self._begun.get(live.task_no, (0, None))
        live.ended_at = max(draft.now, live.started_at or draft.now)  # the clock may have been set
        live.failure = marked(state)
        draft.move(live, state)
        if rounds.is_decided(run, position, index):
            self._end_loop(position)
        if index >= 0:
            return
        run.states[position] = state
        forget_result(run, position)
        if run.spec.tasks[position].streams:
            self._close(live, state)

    def _end_loop(self, decider: int) -> None:
        """No round follows the one in which what decides was marked."""
        for group in rounds.groups_of(self._run, decider):
            if group.is_open:
                self._draft.change_group(group, group.width)
                group.is_open = False
                self._settle(group)

    def _close(self, live: Live, state: TaskState) -> None:
        """A stream ends where it is; what has come of it is kept."""
        run, draft, position = self._run, self._draft, live.position
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
        for taker in growing.takers(run, position):
            group = run.groups.get(taker)
            if group is None:
                continue
            if group.is_open:
                draft.change_group(group, group.width)
                group.is_open = False
            group.cut = growing.cut_of(run, position, group.width)
            self._settle(group)

    def _end_whole(self, position: int, state: TaskState) -> None:
        """Let the other children of a fan-out go on, if there are any."""
        group = self._run.groups.get(position)
        if group is None:
            return
        rewind(group)
        if group.lockstep is not None:
            ended = [i for i, stands in enumerate(group.states) if stands == state]
            group.lockstep.withdraw(frozenset(ended))
        self._settle(group)

    def _settle(self, group: Group) -> None:
        if group.is_over:
            self._run.states[group.position] = group.outcome()
            self._settled.add(group.position)

    # ── what comes after them ───────────────────────────────────────────────────────────

    def _decided_by(self, taken_back: set[int], places: set[Entry]) -> Chosen:
        """Return what never ran because of these ends, and what was made from what they gave."""
        run, again = self._run, Chosen()
        if not taken_back:
            return again
        unrun = self._unrun(taken_back, places)
        marked = {position for position, _ in places}
        before = None
        while before != again.anew:  # what had come of those is taken back, too
            before = set(again.anew)
            changed = taken_back | again.anew | self._takers(taken_back)
            for position in _reached(changed, run, unrun):
                if position not in again.whole:
                    _choose(unrun[position], again)
            self._make_anew(again, taken_back, marked)
        return again

    def _unrun(self, taken_back: set[int], places: set[Entry]) -> dict[int, list[TaskRow]]:
        """Return what never ran, and may do so when these ends are taken back."""
        found: defaultdict[int, list[TaskRow]] = defaultdict(list)
        marked = Chosen()
        marked.whole = set(taken_back)
        for row in self._rows:
            is_meant = (row.position, row.map_index) in places
            if is_meant or row.state not in _UNRUN or row.try_number > 0:
                continue
            if not choosing.is_chosen_away(row, marked, self._run):
                found[row.position].append(row)
        return found

    def _make_anew(self, again: Chosen, taken_back: set[int], marked: set[int]) -> None:
        """Add the fan-outs whose lists will be others, or none. What is marked is what it is."""
        run, before = self._run, -1
        lists = {p for p in taken_back if not run.spec.tasks[p].streams}  # a stream keeps its items
        everything = Chosen()
        while len(again.anew) > before:
            before = len(again.anew)
            everything.whole = again.positions | lists | self._takers(again.positions)
            everything.anew = again.anew
            for position in run.groups.keys() - marked:
                if choosing.is_made_anew(position, everything, run):
                    again.anew.add(position)
        again.whole |= again.anew
        for position in again.whole:
            again.children.pop(position, None)

    def _takers(self, positions: Iterable[int]) -> set[int]:
        """Return the fan-outs over streams among these: how those end, they do."""
        run, tasks = self._run, self._run.spec.tasks
        found = (growing.takers(run, p) for p in positions if tasks[p].streams)
        return {taker for takers in found for taker in takers}

    def _reconsider(self, changed: set[int]) -> None:
        """Stop what is under way though its rule no longer says so, and judge what is to come."""
        while changed:
            found = self._overtaken(changed)
            self._resetting.clear(found)
            changed = found.positions

    def _overtaken(self, changed: set[int]) -> Chosen:
        run, found = self._run, Chosen()
        for position in {judge for parent in changed for judge in run.graph.judges[parent]}:
            if growing.source_of(run, position) >= 0:
                continue  # how its stream ended matters to what comes after it alone
            group = run.groups.get(position)
            if group is not None:
                self._judge_anew(group, found)
                continue
            is_live = run.task_no(position, WHOLE) in run.live
            if is_live and verdict(run, position) is not Verdict.RUN:
                anew = self._takers({position}) & run.groups.keys()  # their items are gone
                found.whole |= {position} | anew
                found.anew |= anew
        return found

    def _judge_anew(self, group: Group, found: Chosen) -> None:
        """Stop children that are under way, where that is so; the rest is judged once more."""
        run, position = self._run, group.position
        if group.is_over or run.states[position] == TaskState.PENDING:
            return
        said = verdict(run, position)
        if group.lockstep is None and said is Verdict.RUN:
            return
        children = set(_under_way(group))
        if group.lockstep is not None:
            children = {i for i in children if following.child_verdict(group, i) is not Verdict.RUN}
        if children:
            found.children[position] = children
        elif group.counts[TaskState.PENDING]:  # else it is a loop, between two rounds
            self._resetting.renew(group)


def _choose(rows: Iterable[TaskRow], chosen: Chosen) -> None:
    for row in rows:
        if row.map_index < 0:
            chosen.whole.add(row.position)
        else:
            chosen.children[row.position].add(row.map_index)


def _under_way(group: Group) -> Iterator[int]:
    for index, state in enumerate(group.states):
        if TaskState.PENDING < state < TaskState.SUCCESS:
            yield index


def _reached(first: Iterable[int], run: Run, unrun: dict[int, list[TaskRow]]) -> list[int]:
    """Return the positions of what never ran behind these, with only such in between."""
    found: list[int] = []
    agenda = deque(first)
    while agenda:
        for judge in run.graph.judges[agenda.popleft()]:
            if judge in unrun and judge not in found:
                found.append(judge)
                agenda.append(judge)
    return found
