"""Requests on existing runs (clear, mark, delete): how they are drawn, and their invariant.

I22 of ``tests.sim.invariants``: a marked task or run has the requested state before the run
continues; a deleted run is invisible; no other run is affected.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from aioflow.model.batch import Batch
from aioflow.model.rows import RunRow, TaskChange, TaskRow
from aioflow.model.states import MARKED, RunState, TaskState
from aioflow.protocol.effects import Acknowledge, Effect
from aioflow.protocol.inputs import Input, RequestReceived
from aioflow.protocol.outbox import Clearing
from aioflow.protocol.requests import ClearTasks, DeleteRun, Mark, Request
from tests.sim.broken import Broken
from tests.sim.loops import is_round
from tests.sim.streaming import source_of
from tests.sim.tables import changed_tasks

__all__ = ("KEYS", "Operator", "answers_hold", "is_marked", "says")

KEYS = tuple(f"key{number}" for number in range(4))
_NEWEST = 6
_BAD = (TaskState.FAILED, TaskState.SKIPPED)
_ENDS = {TaskState.SUCCESS: RunState.SUCCESS, TaskState.FAILED: RunState.FAILED}


class Operator:
    """Draws operations on runs, each kind from its own random generator."""

    def __init__(self, seed: int, tables: Any) -> None:
        self._tables = tables
        self._clears = random.Random(f"clears {seed}")
        self._is_clearer = self._clears.random() < 0.5
        self._marks = random.Random(f"marks {seed}")
        self._is_marker = self._marks.random() < 0.7
        self._deletes = random.Random(f"deletes {seed}")
        self._is_deleter = self._deletes.random() < 0.4

    def clear(self) -> ClearTasks | None:
        """Return a request to clear tasks of an active or ended run, or ``None``."""
        rng = self._clears
        run = self._run(rng) if self._is_clearer else None
        if run is None or rng.random() < 0.7:
            return None
        tasks, child = self._tasks(run, rng)
        if child >= 0 and self._is_round(run, tasks) and rng.random() < 0.7:
            behind = rng.random() < 0.5  # its whole loop, whichever round is drawn
            return ClearTasks(run_id=run.run_id, tasks=tasks, downstream=behind)
        if self._tables.said[run.run_id] and rng.random() < 0.5:
            tasks, child = (), -1  # take back what was marked
        return ClearTasks(
            run_id=run.run_id,
            tasks=tasks,
            map_index=child,
            downstream=rng.random() < 0.5,
            failed=rng.random() < 0.3,
            key=rng.choice((None, rng.choice(KEYS))),
        )

    def mark(self) -> Mark | None:
        """Return a request to mark tasks of a run or, now and then, the run itself; or ``None``."""
        rng = self._marks
        run = self._run(rng) if self._is_marker else None
        if run is None or rng.random() < 0.5:
            return None
        names = [task.task_id for task in self._tables.spec_of_run(run.run_no).tasks]
        tasks, child = self._tasks(run, rng)
        state = rng.choice((TaskState.SUCCESS, TaskState.FAILED))
        present = self._tables.present(run.run_no)
        rows = [row for row in present if row.state in _BAD]
        if any(row.state is TaskState.RETRYING for row in present) and rng.random() < 0.3:
            return Mark(run_id=run.run_id, state=TaskState.SUCCESS)
        if rows and rng.random() < 0.5:  # the usual reason to mark
            tasks, child = (names[rng.choice(rows).task_index],), -1
            state = TaskState.SUCCESS
        elif not tasks and rng.random() < 0.7:
            tasks = tuple(rng.sample(names, rng.randint(1, len(names))))
        if rng.random() < 0.8:  # most marks of tasks in loops and streams are refused
            tasks = self._markable(run, tasks) or self._markable(run, names)[:1] or tasks
        return Mark(run_id=run.run_id, state=state, tasks=tasks, map_index=child)

    def delete(self) -> DeleteRun | None:
        """Return a request to delete a run, usually one that has ended; or ``None``."""
        rng = self._deletes
        run = self._run(rng) if self._is_deleter else None
        if run is None or rng.random() < 0.3:
            return None
        hosted = {row.run_no for row in self._tables.triggers.values()}
        held = [one for one in self._tables.seen() if one.ended_at and one.run_no in hosted]
        if held:  # hosts have not released it yet
            run = rng.choice(held)
        elif rng.random() < 0.6 or (run.ended_at is None and rng.random() < 0.8):
            return None
        return DeleteRun(run_id=run.run_id)

    def _markable(self, run: RunRow, names: Sequence[str]) -> tuple[str, ...]:
        """Return those of the named tasks that are neither in a loop nor part of a stream."""
        spec = self._tables.spec_of_run(run.run_no)
        return tuple(
            task.task_id
            for task_index, task in enumerate(spec.tasks)
            if task.task_id in names
            and not is_round(spec, task_index)
            and not task.streams
            and source_of(spec, task_index) < 0
        )

    def _is_round(self, run: RunRow, tasks: tuple[str, ...]) -> bool:
        spec = self._tables.spec_of_run(run.run_no)
        return any(is_round(spec, at) for at, t in enumerate(spec.tasks) if t.task_id in tasks)

    def _run(self, rng: random.Random) -> RunRow | None:
        runs = list(self._tables.seen())
        return rng.choice(runs[-_NEWEST:]) if runs else None

    def _tasks(self, run: RunRow, rng: random.Random) -> tuple[tuple[str, ...], int]:
        """Return one task, one child of a mapped task, or all tasks of the run."""
        tables = self._tables
        names = [task.task_id for task in tables.spec_of_run(run.run_no).tasks]
        tasks = tuple(rng.sample(names, 1)) if rng.random() < 0.7 else ()
        widths = [
            (at, row.width) for (no, at), row in tables.expansions.items() if no == run.run_no
        ]
        if widths and rng.random() < 0.3:
            task_index, width = rng.choice(sorted(widths))
            return (names[task_index],), rng.randrange(max(1, width))
        return tasks, -1


def is_marked(row: TaskRow | TaskChange) -> bool:
    """Return whether a client has marked the task with its final state."""
    return row.failure is not None and row.failure.reason == MARKED


def says(request: Request) -> tuple[str, RunState] | None:
    """Return the run and the final state if the request marks a whole run, or ``None``."""
    if isinstance(request, Mark) and not request.tasks:
        return request.run_id, _ENDS[request.state]
    return None


# ── invariant ───────────────────────────────────────────────────────────────────────────


def answers_hold(
    node: Any, inputs: Iterable[Input], batch: Batch, effects: Sequence[Effect]
) -> None:
    """I22: check that the answers to requests are true."""
    for owed in node.tables.just_marked if not batch.is_empty else ():
        _stands_as_owed(node, owed)
    answers = {entry.ticket: entry for entry in effects if isinstance(entry, Acknowledge)}
    for entry in inputs:
        said = answers.get(entry.ticket) if isinstance(entry, RequestReceived) else None
        match entry:
            case RequestReceived(request=Mark() as request):
                _nothing_else_begins_anew(node, request.run_id, batch)
                if said is not None and said.error is None:
                    _stands_as_marked(node, request, said.answer, batch)
            case RequestReceived(request=ClearTasks() as request):
                _nothing_else_begins_anew(node, request.run_id, batch)
            case RequestReceived(request=DeleteRun() as request) if said is not None:
                _is_deleted(node, request, is_refused=said.error is not None)


def _nothing_else_begins_anew(node: Any, run_id: str, batch: Batch) -> None:
    tables = node.tables
    begun_anew = {no for no, state in batch.steps if state is TaskState.PENDING}
    said = {row.task_no for row in changed_tasks(batch) if is_marked(row)}
    touched = {tables.run_ids[tables.tasks[no].run_no] for no in begun_anew | said}
    if touched - {run_id}:
        raise Broken("I22 operated", f"of {run_id} was asked, touched are {touched}")


def _stands_as_marked(node: Any, request: Mark, answer: Any, batch: Batch) -> None:
    tables = node.tables
    row = tables.find(request.run_id)
    if row is None:
        raise Broken("I22 operated", f"{request} is answered {answer}, and there is none")
    if not request.tasks:
        ended = {change.run_no for change in batch.run_changes if change.ended_at is not None}
        was_ending = not row.state.is_live and (row.ended_at is None or row.run_no in ended)
        if row.state is not _ENDS[request.state] and not was_ending:
            raise Broken("I22 operated", f"{request} is answered {answer}, and it is {row}")
        return
    if tables.is_clearing(row.run_no):
        return  # some of it is still to be marked
    if any(
        change.run_no == row.run_no and change.state is RunState.CANCELLED
        for change in batch.run_changes
    ):
        return  # a newer run replaced this one in the turn of the mark, and ended the mark
    spec = tables.spec_of_run(row.run_no)
    marked = {at for at, task in enumerate(spec.tasks) if task.task_id in request.tasks}
    rows = {(task.task_index, task.map_index): task for task in tables.present(row.run_no)}
    for task_index in marked:
        width = tables.widths.get((row.run_no, task_index))
        indexes = range(width) if width is not None else (-1,)
        for index in indexes if request.map_index < 0 else (request.map_index,):
            task = rows.get((task_index, index))
            if task is None or task.state is not request.state:
                raise Broken("I22 operated", f"{request} is answered {answer}, stored is {task}")


def _stands_as_owed(node: Any, owed: Clearing) -> None:
    """Check that a mark is complete, unless the run was cut short in the meantime."""
    mark, row = owed.mark, node.tables.runs[owed.run_no]
    assert mark is not None
    is_over = row.state in {RunState.CANCELLED, RunState.FAILED} or node.tables.said[row.run_id]
    if is_over and not mark.is_cut_short:
        return
    spec = node.tables.spec_of_run(row.run_no)
    rows = {(task.task_index, task.map_index): task for task in node.tables.present(row.run_no)}
    for task_index, first, end in mark.ranges:
        is_gone = end > 0 and (row.run_no, task_index) not in node.tables.widths
        if is_gone or is_round(spec, task_index):
            continue  # its stream was stopped, or it ran another iteration since
        for index in (first,) if first < 0 else range(first, end):
            task = rows.get((task_index, index))
            if task is None or task.state is not mark.state:
                raise Broken("I22 operated", f"{owed} has been marked, stored is {task}")


def _is_deleted(node: Any, request: DeleteRun, *, is_refused: bool) -> None:
    row = node.tables.find(request.run_id)
    if row is not None and not is_refused:
        raise Broken("I22 operated", f"{request} is answered, and it is still seen")
    if row is not None and row.ended_at is not None:
        raise Broken("I22 operated", f"{request} is refused, and it has ended: {row}")
