"""Invariants of writes: their owner, the results read, timestamps, and encryption.

Their numbers are those of ``tests.sim.invariants``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from aioflow.model.batch import Batch
from aioflow.model.dag import Body
from aioflow.model.rows import TaskRow
from aioflow.model.states import TaskState
from aioflow.protocol.commands import StartTask
from tests.sim.broken import Broken
from tests.sim.operating import is_marked
from tests.sim.script import CANARY
from tests.sim.tables import changed_tasks

__all__ = (
    "canaries_are_sealed",
    "canaries_stay_in_kwargs",
    "instants_follow_each_other",
    "labels_are_of_their_starts",
    "starts_read_the_last_success",
    "writes_are_of_the_newest_epoch",
)

COUNTERS = ("start_no", "try_number", "interruptions")


# ── I3: epochs ──────────────────────────────────────────────────────────────────────────


def writes_are_of_the_newest_epoch(node: Any) -> None:
    """I3: check that epochs never decrease, and that accepted writes have the newest epoch."""
    accepted = node.tables.accepted
    if not accepted:
        return
    epoch, number = accepted[-1]
    if epoch != node.newest_epoch:
        raise Broken("I3 epoch", f"accepted under {epoch}, but {node.newest_epoch} has begun")
    if len(accepted) > 1:
        before = accepted[-2]
        if before[0] > epoch or before[1] + 1 != number:
            raise Broken("I3 epoch", f"{accepted[-1]} was accepted after {before}")


# ── I15: secrets ────────────────────────────────────────────────────────────────────────


def canaries_stay_in_kwargs(batch: Batch, encoded: bytes) -> None:
    """I15 above the store: check that a secret appears only in the field that will be encrypted."""
    if CANARY not in encoded:
        return
    bare = [msgspec.structs.replace(row, kwargs=None) for row in batch.new_triggers]
    of_dags = [msgspec.structs.replace(row, kwargs=None) for row in batch.of_dags.triggers]
    moved = [msgspec.structs.replace(row, kwargs=None) for row in batch.of_dags.moved]
    changes = msgspec.structs.replace(batch.of_dags, triggers=of_dags, moved=moved)
    open_batch = msgspec.structs.replace(batch, new_triggers=bare, of_dags=changes)
    if CANARY in msgspec.msgpack.encode(open_batch):
        raise Broken("I15 canary", f"a secret lies open in batch {batch.number}")


def canaries_are_sealed(folder: Path) -> None:
    """I15 below the store: check that no file of the database has a secret in plain text."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and CANARY in path.read_bytes():
            raise Broken("I15 canary", f"a secret lies open in {path.name}")


# ── I17: results ────────────────────────────────────────────────────────────────────────


def starts_read_the_last_success(node: Any, start: StartTask) -> None:
    """I17: check that the results a start reads are those of its parents' last successes."""
    tables = node.tables
    run = tables.runs[start.run_no]
    spec = tables.specs[run.version, run.dag_id]
    for task_index in spec.tasks[start.task_index].argument_parents:
        row = tables.tasks.get(run.first_task_no + task_index)
        if row is None or row.state is not TaskState.SUCCESS or row.map_index >= 0:
            if task_index in start.at_hand:
                raise Broken("I17 results", f"{start} is given what {task_index} never returned")
            continue
        _reads(node, start, task_index, row)
    for source, (_, task_no, start_no) in enumerate(start.sources):
        row = tables.tasks[task_no]
        width = node.ledger.returned.get((task_no, start_no), (None, None))[1]
        if row.state is not TaskState.SUCCESS or row.start_no != start_no or width is None:
            raise Broken("I17 results", f"{start} expands over source {source}, start {start_no}")
        if width not in start.widths or tables.results[task_no].width != width:
            raise Broken("I17 results", f"{start}: source {source} has {width} items")


def _reads(node: Any, start: StartTask, task_index: int, row: TaskRow) -> None:
    # An operator that streams may end without a start; it returns nothing but its items. A marked
    # task returned nothing either, because a return of its last start was ignored.
    returned = {} if is_marked(row) else node.ledger.returned
    expected = returned.get((row.task_no, row.start_no), (None,))[0]
    if task_index in start.at_hand:
        found = start.results.get(task_index)
    else:
        stored = node.tables.results.get(row.task_no)
        if stored is not None and stored.start_no != row.start_no:
            raise Broken("I17 results", f"{stored} is not of the start that succeeded, {row}")
        found = None if stored is None else stored.body
    if found != expected:
        raise Broken("I17 results", f"{start} reads {found!r} of {row}, which gave {expected!r}")


# ── I18: timestamps and counters ────────────────────────────────────────────────────────


def instants_follow_each_other(node: Any, batch: Batch, before: dict[int, TaskRow]) -> None:
    """I18: check that counters never decrease, nor timestamps unless the wall clock was stepped.

    Even if the clock was stepped, nothing ends before it began, and a sensor keeps its deadline.
    """
    is_steady = getattr(node, "wall_is_steady", False)
    for change in changed_tasks(batch):
        row: TaskRow = node.tables.tasks[change.task_no]
        if row.ended_at is not None and row.ended_at < (row.started_at or row.ended_at):
            raise Broken("I18 instants", f"{row} ended before it began")
        if is_steady and row.ended_at is not None and row.ended_at < (row.queued_at or 0):
            raise Broken("I18 instants", f"{row} ended before it was ready")
        was = before.get(change.task_no)
        is_cleared = (change.task_no, TaskState.PENDING) in batch.steps
        if was is not None and was.state is not TaskState.PENDING and not is_cleared:
            task = node.tables.spec_of_run(row.run_no).tasks[row.task_index]
            forgets = task.sensor is None and task.body is Body.COROUTINE  # reset by each record
            forgets = forgets or task.events is not None
            _follows(row, was, COUNTERS[:-1] if forgets else COUNTERS, is_steady=is_steady)
            keeps = task.sensor is not None and was.deadline_at is not None
            if keeps and row.deadline_at != was.deadline_at:
                raise Broken("I18 instants", f"the deadline of {was} moved: {row}")
    for tried in batch.new_tries:
        if tried.ended_at < (tried.started_at or tried.ended_at):
            raise Broken("I18 instants", f"{tried} ended before it began")


def _follows(row: TaskRow, was: TaskRow, counters: Sequence[str], *, is_steady: bool) -> None:
    for name in counters:
        if getattr(row, name) < getattr(was, name):
            raise Broken("I18 instants", f"{name} of {was} went back: {row}")
    for name in ("queued_at", "started_at") if is_steady else ():
        later, earlier = getattr(row, name), getattr(was, name)
        if later is not None and earlier is not None and later < earlier:
            raise Broken("I18 instants", f"{name} of {was} went back: {row}")


# ── labels of mapped tasks ──────────────────────────────────────────────────────────────


def labels_are_of_their_starts(node: Any, batch: Batch, before: dict[int, TaskRow]) -> None:
    """Check that a stored label was set by the current start of its own task.

    In a single turn, one start of a task may end and the next may begin.
    """
    for task_no, run_no, label in batch.labels:
        row: TaskRow = node.tables.tasks[task_no]
        starts = {row.start_no, before.get(task_no, row).start_no}
        is_its_own = label in {f"{task_no}.{start_no}" for start_no in starts}
        if not is_its_own or row.run_no != run_no or row.map_index < 0:
            raise Broken("labels", f"{label} of run {run_no} is the label of {row}")
