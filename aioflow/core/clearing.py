"""Clearing, slice by slice: until all that was chosen is pending, nothing of its run goes on.

A cleared task is pending, with a row that keeps the number of its last start. What it returned,
recorded and waited for is gone, its tries stay for people to read. The children of a fan-out
keep their numbers and its width, unless what it is made from is cleared, too: then they are
``removed``, and it is made anew with children of their own.

A loop may also go back to a round, see ``rewinding``.

How far it has come the states of the tasks say, so a restart goes on where it stood.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final, NamedTuple

from aioflow.core import budget, dag, growing, rewinding
from aioflow.core.choosing import FAILED, skipped_children
from aioflow.core.draft import Draft
from aioflow.core.fresh import fresh
from aioflow.core.live import Group, Run
from aioflow.core.recount import recount
from aioflow.core.resetting import dissolve, ended, remove, renewed, reset, stopped
from aioflow.core.run import resume
from aioflow.core.slots import Slots
from aioflow.model import RunState, TaskNo, TaskState
from aioflow.owed import Clearing

__all__ = ("SLICE_TASKS", "begin", "count", "give_up", "go_on", "needed", "undecided")

SLICE_TASKS = 1_500
"""Tasks cleared in one turn at most: of each change its row, its tries and its result."""


def _but(*states: TaskState) -> re.Pattern[bytes]:
    return re.compile(b"[^" + re.escape(bytes(states)) + b"]")


_BEGUN: Final = _but(TaskState.PENDING)
_PRESENT: Final = _but(TaskState.PENDING, TaskState.REMOVED)
_FAILED: Final = re.compile(b"[" + re.escape(bytes(sorted(FAILED))) + b"]")


class _Place(NamedTuple):
    """A task that is still to be cleared."""

    task_no: TaskNo
    position: int
    map_index: int
    state: TaskState


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
            total += rewinding.begun_in(group, rounds[position])
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


def begin(run: Run, draft: Draft, slots: Slots) -> None:
    """Clear the unmapped tasks that were chosen; the rest follows.

    What these have decided for others is thus taken back before anything else is decided.
    """
    _clear(run, list(islice(_unmapped_places(run), SLICE_TASKS)), draft, slots)
    draft.put_off(run)


def go_on(run: Run, draft: Draft, slots: Slots) -> None:
    """Clear the next slice, or let the run go on."""
    places = _next(run)
    if not places:
        _finish(run, draft, slots)
        return
    _clear(run, places, draft, slots)
    rewinding.shorten(run, draft)
    draft.put_off(run)


def give_up(run: Run, draft: Draft) -> None:
    """A run is cut short: what was not cleared stays as it is."""
    if run.clearing is not None:
        for position in run.clearing.positions:
            draft.task_over(run, position)  # the run behind was not to look at it
        run.clearing = None
        number, _ = draft.memory.clearings.pop(run.run_no)
        draft.owing.write_off(number)


# ── what is to be cleared ───────────────────────────────────────────────────────────────


def _next(run: Run) -> list[_Place]:
    """Return what the next slice clears, unmapped tasks first; of a loop rounds as a whole."""
    places = list(islice(chain(_unmapped_places(run), _children(run)), SLICE_TASKS))
    for found in rewinding.taken_back(run):
        if len(places) >= SLICE_TASKS:
            break
        places += [_child(group, index) for group, index in found]
    return places


def _child(group: Group, index: int) -> _Place:
    state = TaskState(group.states[index])
    return _Place(group.first_task_no + index, group.position, index, state)


def _unmapped_places(run: Run) -> Iterator[_Place]:
    chosen = run.clearing
    if chosen is None:
        return
    first = run.row.first_task_no
    for position in chosen.whole:
        if _is_begun(run, chosen, position):
            yield _Place(first + position, position, -1, TaskState(run.states[position]))
        elif position in chosen.anew and first + position in run.removed:
            yield _Place(first + position, position, -1, TaskState.REMOVED)


def _children(run: Run) -> Iterator[_Place]:
    chosen = run.clearing
    if chosen is None:
        return
    for position in sorted(run.groups):
        group = run.groups[position]
        for index in _indexes(group, chosen, position):
            yield _child(group, index)
        if position in chosen.anew:
            end = group.first_task_no + group.width
            for task_no in run.cleared.between(group.first_task_no, end):
                index = task_no - group.first_task_no
                yield _Place(task_no, position, index, TaskState.PENDING)


def _is_begun(run: Run, chosen: Clearing, position: int) -> bool:
    """Whether an unmapped task, or a mapped one that has not expanded, is not pending."""
    is_there = position not in run.groups and position not in chosen.kept
    return is_there and run.states[position] != TaskState.PENDING


def _indexes(group: Group, chosen: Clearing, position: int) -> Iterator[int]:
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


def _clear(run: Run, places: Iterable[_Place], draft: Draft, slots: Slots) -> None:
    """Clear these."""
    chosen = run.clearing
    assert chosen is not None  # noqa: S101 - the callers looked
    anew, rows, rounds = frozenset(chosen.anew), draft.memory.recalled, dict(chosen.rounds)
    for place in places:
        if place.state is TaskState.PENDING:
            remove(fresh(run, place.position, place.map_index), draft)
            continue
        if place.state.is_live:
            budget.take_back(run, run.live[place.task_no])
            old = stopped(run.live[place.task_no], draft, slots)
        else:
            budget.take_back(run, rows[place.task_no])
            old = ended(run, rows[place.task_no], draft)
        live = reset(old, draft)
        is_child_anew = place.map_index >= 0 and place.position in anew
        if is_child_anew or place.map_index > rounds.get(place.position, place.map_index):
            remove(live, draft)


# ── the end ─────────────────────────────────────────────────────────────────────────────


def _finish(run: Run, draft: Draft, slots: Slots) -> None:
    """All has been cleared: let the run go on."""
    chosen = run.clearing
    assert chosen is not None  # noqa: S101 - the caller looked
    draft.runs[run.run_no] = run
    for position in chosen.anew:
        dissolve(run, position, draft)
    for group in list(run.groups.values()):
        renewed(group)
    growing.close_left_open(run, draft)
    give_up(run, draft)
    run.blocked, run.blocked_at = [], {}
    recount(run)
    if run.state is RunState.QUEUED:
        dag.run_reopened(run, draft, slots)
    elif run.row.quarantine is None:
        slots.offer_again(run)
        resume(run, draft, slots)
