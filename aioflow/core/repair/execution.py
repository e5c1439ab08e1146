"""Clearing and marking, slice by slice: until all that was chosen is done, its run does not go on.

A cleared task is pending, with a row that keeps the number of its last start. What it returned,
recorded and waited for is gone, its tries stay for people to read. The children of a fan-out
keep their numbers and its width, unless what it is made from is cleared, too: then they are
``removed``, and it is made anew with children of their own.

A loop may also go back to a round, see ``rewinding``. What is marked ends as was said, and what
had been decided by its earlier end is cleared, see ``mark``; then what is under way though its
rule no longer says so is stopped, see ``marking``.

How far it has come the states of the tasks say, so a restart goes on where it stood.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice, takewhile
from typing import Final, NamedTuple

from aioflow.core.repair import mark_apply, pending_clears
from aioflow.core.repair.reset import dissolve, ended, remove, renewed, reset, stopped
from aioflow.core.repair.selection import FAILED, skipped_children
from aioflow.core.runs import create, deadline_alerts, version_upgrade
from aioflow.core.runs.iterations import reopen
from aioflow.core.runs.run import outcome, resume
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.dag_version import DagVersion
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance, is_under_way
from aioflow.core.tasks import retry_budget, rewind, stream_expand
from aioflow.core.tasks.readiness import fresh
from aioflow.core.tasks.recount import recount, retally
from aioflow.core.transaction import Transaction
from aioflow.model.ids import TaskNo
from aioflow.model.states import RunState, TaskState
from aioflow.protocol.outbox import Clearing

__all__ = (
    "SLICE_TASKS",
    "begin",
    "begin_mark",
    "count",
    "give_up",
    "go_on",
    "hold",
    "needed",
    "undecided",
    "under_way",
)

SLICE_TASKS = 1_500
"""Tasks cleared, or marked, in one turn at most: of each change its row, tries and result."""


def _but(*states: TaskState) -> re.Pattern[bytes]:
    return re.compile(b"[^" + re.escape(bytes(states)) + b"]")


def _of(*states: TaskState) -> re.Pattern[bytes]:
    return re.compile(b"[" + re.escape(bytes(states)) + b"]")


_BEGUN: Final = _but(TaskState.PENDING)
_PRESENT: Final = _but(TaskState.PENDING, TaskState.REMOVED)
_FAILED: Final = _of(*FAILED)
_LIVE: Final = _of(*(state for state in TaskState if state.is_live))
_UNRUN: Final = _of(TaskState.UPSTREAM_FAILED, TaskState.SKIPPED)
_OTHERS: Final = {state: _but(state) for state in (TaskState.SUCCESS, TaskState.FAILED)}


class _Place(NamedTuple):
    """A task that is still to be cleared, or marked."""

    task_no: TaskNo
    position: int
    map_index: int
    state: TaskState
    is_marked: bool = False


def count(run: Run, chosen: Clearing) -> int:
    """Return how many tasks begin anew."""
    total = sum(_is_begun(run, chosen, position) for position in chosen.whole)
    rounds = dict(chosen.rounds)
    for position, group in run.groups.items():
        if position in chosen.whole:
            stay = (TaskState.PENDING, TaskState.REMOVED)[: 1 + (position in chosen.anew)]
            total += group.width - sum(group.counts[state] for state in stay)
            total -= sum(byte.bit_count() for byte in _spared(chosen, position))
        elif position in chosen.failed:
            total += sum(group.counts[state] for state in FAILED)
        elif position in rounds:
            total += rewind.begun_in(group, rounds[position])
        else:
            total += sum(1 for _ in _indexes(group, chosen, position))
    return total


def undecided(run: Run) -> Iterable[TaskNo]:
    """Return the unmapped tasks that have ended, and others of which more is asked before."""
    first = run.row.first_task_no
    ended = (at for at, state in enumerate(run.states) if state >= TaskState.SUCCESS)
    whole = (first + at for at in ended if at not in run.groups)
    return [*whole, *run.removed, *skipped_children(run)]


def needed(run: Run) -> Iterable[TaskNo]:
    """Return whose rows the next slice needs."""
    return [place.task_no for place in _next(run) if place.state >= TaskState.SUCCESS]


def under_way(run: Run, chosen: Clearing) -> list[_Place]:
    """Return what is to be cleared and is under way; no rounds that a loop takes back."""
    places = chain(_unmapped_places(run, chosen), _children(run, chosen))
    return [place for place in places if is_under_way(place.state)]


def begin(
    run: Run, tx: Transaction, slots: Slots, *, dag_version: DagVersion | None = None
) -> None:
    """Clear the unmapped tasks that were chosen; the rest follows.

    What these have decided for others is thus taken back before anything else is decided.

    Args:
        plan: The version that the run is moved to once nothing of it is under way.
    """
    chosen = run.clearing
    assert chosen is not None  # noqa: S101 - the caller holds it still
    _step_back(run, tx)
    if dag_version is not None:
        _clear(run, under_way(run, chosen), tx, slots)
        version_upgrade.move(run, dag_version, tx)
    _clear(run, list(islice(_unmapped_places(run, chosen), SLICE_TASKS)), tx, slots)
    tx.put_off(run)


def hold(run: Run, chosen: Clearing, tx: Transaction) -> None:
    """Have a run not go on until all of this is done; one that had ended is remembered again."""
    memory = tx.memory
    pending_clears.owe(run, chosen, tx)
    if run.row.ended_at is not None:
        memory.touch(run.row.run_id)
        memory.dag_versions.setdefault((run.row.version, run.row.dag_id), run.dag_version)
        memory.add_run(run)
        for wait in memory.waits.objects.values():
            if wait.run.run_no == run.run_no:
                wait.run = run  # its host has not let go of it


def _step_back(run: Run, tx: Transaction) -> None:
    """A run has not ended, nor waits for its turn, until what is left of this is done."""
    mark = None if run.clearing is None else run.clearing.mark
    if run.row.ended_at is None:
        if run.state is RunState.QUEUED:
            create.step_back(run, tx)
    elif mark is not None and mark.is_cut_short:
        tx.hold_run(run)
    else:
        tx.reopen_run(run)


def begin_mark(run: Run, tx: Transaction, slots: Slots) -> None:
    """Mark at least the loops, which must not go round meanwhile; all, if that is a slice."""
    _clear(run, list(_marked(run, in_loops=True)), tx, slots)
    _mark(run, tx, slots)
    if run.clearing is not None:
        _step_back(run, tx)


def go_on(run: Run, tx: Transaction, slots: Slots) -> None:
    """Do the next slice, or let the run go on."""
    if run.clearing is not None and run.clearing.mark is not None:
        _mark(run, tx, slots)
        return
    places = _next(run)
    if not places:
        _finish(run, tx, slots)
        return
    _clear(run, places, tx, slots)
    rewind.shorten(run, tx)
    tx.put_off(run)


def _mark(run: Run, tx: Transaction, slots: Slots) -> None:
    """Do a slice of a mark, as far as the rows are at hand; let the run go on if that is all."""
    rows, left = tx.memory.prefetched_tasks, SLICE_TASKS
    while run.clearing is not None:
        places = _next(run)
        at_hand = takewhile(lambda place: place.state.is_live or place.task_no in rows, places)
        done = list(islice(at_hand, left))
        _clear(run, done, tx, slots)
        left -= len(done)
        if not places:
            left -= mark_apply.stop_overtaken(run, tx, slots, left)
        if left <= 0 or len(done) < len(places):
            tx.put_off(run)
            return
        if not places and not mark_apply.overtake(run, tx, slots):
            _finish(run, tx, slots)


def give_up(run: Run, tx: Transaction) -> None:
    """A run is cut short: what was not cleared, or marked, stays as it is."""
    if run.clearing is not None:
        for position in run.clearing.positions:
            tx.task_over(run, position)  # the run behind was not to look at it
        pending_clears.let_go(run, tx)


# ── what is to be cleared ───────────────────────────────────────────────────────────────


def _next(run: Run) -> list[_Place]:
    """Return what the next slice is about, unmapped tasks first; of a loop rounds as a whole."""
    chosen = run.clearing
    if chosen is None:
        return []
    cleared = chain(_unmapped_places(run, chosen), _children(run, chosen))
    first = chain(_marked(run), cleared, _unrun(run))
    places = list(islice(first, SLICE_TASKS))
    for found in rewind.taken_back(run):
        if len(places) >= SLICE_TASKS:
            break
        places += [_child(group, index) for group, index in found]
    return places


def _child(group: MappedTask, index: int) -> _Place:
    state = TaskState(group.states[index])
    return _Place(group.first_task_no + index, group.position, index, state)


def _unmapped_places(run: Run, chosen: Clearing) -> Iterator[_Place]:
    first = run.row.first_task_no
    for position in chosen.whole:
        if _is_begun(run, chosen, position):
            yield _Place(first + position, position, -1, TaskState(run.states[position]))
        elif position in chosen.anew and first + position in run.removed:
            yield _Place(first + position, position, -1, TaskState.REMOVED)


def _children(run: Run, chosen: Clearing) -> Iterator[_Place]:
    for position in sorted(run.groups):
        group = run.groups[position]
        for index in _indexes(group, chosen, position):
            yield _child(group, index)
        if position in chosen.anew:
            end = group.first_task_no + group.width
            for task_no in run.cleared.between(group.first_task_no, end):
                index = task_no - group.first_task_no
                yield _Place(task_no, position, index, TaskState.PENDING)


def _marked(run: Run, *, in_loops: bool = False) -> Iterator[_Place]:
    """Yield what stands otherwise than was said; of a loop no round that has ended by itself.

    Args:
        in_loops: Nothing else than rounds.
    """
    mark = None if run.clearing is None else run.clearing.mark
    if mark is None:
        return
    for position, first, end in mark.places:
        group = run.groups.get(position)
        if in_loops and (group is None or not group.is_loop):
            continue
        if first < 0:
            state = TaskState(run.states[position])
            if group is None and state is not mark.state:
                yield _Place(run.task_no(position, -1), position, -1, state, is_marked=True)
        elif group is not None:
            wanted = _LIVE if group.is_loop else _OTHERS[mark.state]
            for match in wanted.finditer(bytes(group.states[first:end])):
                yield _child(group, first + match.start())._replace(is_marked=True)


def _unrun(run: Run) -> Iterator[_Place]:
    """Yield children that have ended and, as far as memory knows, never ran."""
    chosen = run.clearing
    if chosen is None:
        return
    for position in chosen.unrun:
        group = run.groups.get(position)
        if group is None:
            continue
        spared = _spared(chosen, position)
        places = () if chosen.mark is None else chosen.mark.places
        meant = {first for at, first, _ in places if at == position}
        for match in _UNRUN.finditer(bytes(group.states), run.looked.get(position, 0)):
            index = match.start()
            if not _has(spared, index) and index not in meant:
                yield _child(group, index)


def _is_begun(run: Run, chosen: Clearing, position: int) -> bool:
    """Whether an unmapped task, or a mapped one that has not expanded, is not pending."""
    is_there = position not in run.groups and position not in chosen.kept
    return is_there and run.states[position] != TaskState.PENDING


def _indexes(group: MappedTask, chosen: Clearing, position: int) -> Iterator[int]:
    """Yield the children that are still to be cleared."""
    if position in chosen.whole:
        wanted = _PRESENT if position in chosen.anew else _BEGUN
    elif position in chosen.failed:
        wanted = _FAILED
    else:
        found = (index for of, index in chosen.children if of == position)
        present = (index for index in found if group.states[index] != TaskState.PENDING)
        yield from (index for index in present if not _has(_spared(chosen, position), index))
        return
    spared = _spared(chosen, position)
    for match in wanted.finditer(bytes(group.states)):
        if not _has(spared, match.start()):
            yield match.start()


def _spared(chosen: Clearing, position: int) -> bytes:
    return next((bits for of, bits in chosen.spared if of == position), b"")


def _has(bits: bytes, index: int) -> bool:
    return bool(bits) and bool(bits[index >> 3] >> (index & 7) & 1)


# ── a slice ─────────────────────────────────────────────────────────────────────────────


def _clear(run: Run, places: Iterable[_Place], tx: Transaction, slots: Slots) -> None:
    """Clear these, or mark them."""
    chosen = run.clearing
    assert chosen is not None  # noqa: S101 - the callers looked
    anew, rounds = frozenset(chosen.anew), dict(chosen.rounds)
    for place in places:
        position, index = place.position, place.map_index
        if place.is_marked:
            mark_apply.end(run, position, index, tx, slots)
        elif place.state is TaskState.PENDING:
            remove(fresh(run, position, index), tx)
        elif position in chosen.unrun:
            _clear_unrun(run, place, tx)
        else:
            task = _begin_anew(run, place, tx, slots)
            if (index >= 0 and position in anew) or index > rounds.get(position, index):
                remove(task, tx)
            elif chosen.mark is not None:  # it may go on in this turn
                run.cleared.hold(task.task_no, task)


def _begin_anew(run: Run, place: _Place, tx: Transaction, slots: Slots) -> TaskInstance:
    if place.state.is_live:
        retry_budget.take_back(run, run.active_tasks[place.task_no])
        old = stopped(run.active_tasks[place.task_no], tx, slots)
    else:
        row = tx.memory.prefetched_tasks[place.task_no]
        retry_budget.take_back(run, row)
        old = ended(run, row, tx)
    return reset(old, tx)


def _clear_unrun(run: Run, place: _Place, tx: Transaction) -> None:
    """Clear a child, unless it ran and asked to be skipped itself."""
    run.looked[place.position] = place.map_index + 1
    row = tx.memory.prefetched_tasks[place.task_no]
    if row.try_number == 0:
        mark_apply.begin_anew(ended(run, row, tx), tx)


# ── the end ─────────────────────────────────────────────────────────────────────────────


def _finish(run: Run, tx: Transaction, slots: Slots) -> None:
    """All is done: let the run go on, or be over as it was."""
    chosen = run.clearing
    assert chosen is not None  # noqa: S101 - the caller looked
    tx.runs[run.run_no] = run
    mark = chosen.mark
    if mark is not None and mark.is_cut_short:
        retally(run)  # what its fan-outs come to: the run behind is told
        give_up(run, tx)
        mark_apply.end_again(run, run.state, mark, tx)
        return
    for position in run.groups.keys() & chosen.anew:
        dissolve(run, position, tx)
    reopen(run, tx)
    for group in list(run.groups.values()):
        tx.expansions.take_over(renewed(group))
    stream_expand.close_left_open(run, tx)
    give_up(run, tx)
    run.blocked, run.blocked_at = [], {}
    recount(run)
    if mark is not None:
        _pass_on(run, tx)
    if mark is not None and mark.ended is not None and run.unfinished == 0:
        mark_apply.end_again(run, outcome(run), mark, tx)
        return
    if run.row.ended_at is not None:
        tx.reopen_run(run)
    if run.state is RunState.QUEUED:
        if run not in tx.memory.queued_runs.get(run.queue, ()):
            create.run_reopened(run, tx, slots)
    elif run.row.quarantine is None:
        deadline_alerts.arm_timeout(run, tx)  # it may have been moved to another version
        slots.offer_again(run)
        resume(run, tx, slots)


def _pass_on(run: Run, tx: Transaction) -> None:
    """Let the run behind know of what is over, with all that ended for it."""
    for position, state in enumerate(run.states):
        if state >= TaskState.SUCCESS:
            tx.task_over(run, position)
