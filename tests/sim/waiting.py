"""Tasks with a ``max_wait``: how they are drawn, and a check that their wait has a deadline."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.rows import TaskRow
from aioflow.model.states import RunState, TaskState
from aioflow.protocol.outbox import DEADLINE, Deadline
from tests.sim import loops, streaming
from tests.sim.broken import Broken
from tests.sim.workload import SECOND

__all__ = ("FROM", "hold", "is_overdue", "with_max_wait")

FROM = 3_000
"""The first seed that may draw it: lower seeds were chosen by tests and planted bugs."""

_decode = msgspec.msgpack.Decoder(Deadline).decode


def with_max_wait(dags: list[DagSpec], seed: int) -> list[DagSpec]:
    """Limit the wait of some tasks, in half of the seeds."""
    rng = random.Random(f"max wait {seed}")
    if seed < FROM or rng.random() < 0.5:
        return dags
    return [
        msgspec.structs.replace(dag, tasks=tuple(_limited(task, rng) for task in dag.tasks))
        for dag in dags
    ]


def _limited(task: TaskSpec, rng: random.Random) -> TaskSpec:
    length = rng.choice((None, None, SECOND, 60 * SECOND, 900 * SECOND))
    return task if task.sensor is not None else msgspec.structs.replace(task, max_wait_us=length)


def is_overdue(row: TaskRow) -> bool:
    """Return whether a task failed because it had not begun in time, whatever its rule says."""
    failure = row.failure if row.state is TaskState.FAILED else None
    return failure is not None and failure.reason == "max_wait"


def hold(node: Any, run_no: int) -> None:
    """I26: check that the wait of each task that has not begun still has a deadline."""
    tables = node.tables
    row, spec = tables.runs[run_no], tables.spec_of_run(run_no)
    if all(task.max_wait_us is None for task in spec.tasks):
        return
    if row.state is not RunState.RUNNING or row.quarantine or tables.is_clearing(run_no):
        return
    rows = [_decode(owed.body) for owed in tables.outbox.values() if owed.kind == DEADLINE]
    counted = {due.length_us for due in rows if due.run_no == run_no and due.ends_wait}
    for task_index, task in enumerate(spec.tasks):
        is_counted = task.max_wait_us is None or task.max_wait_us in counted
        if not is_counted and _is_pending(tables, spec, run_no, task_index):
            raise Broken(
                "I26 waits", f"task {task_index} of run {run_no} waits, and no time ends it"
            )


def _is_pending(tables: Any, spec: DagSpec, run_no: int, task_index: int) -> bool:
    """Return whether a task is pending or, if it has expanded, any of its children is.

    Loops and expansions over a stream are excepted: their children are created later.
    """
    rows = [row for row in tables.present(run_no) if row.task_index == task_index]
    width = tables.widths.get((run_no, task_index))
    if width is None:
        return all(row.state is TaskState.PENDING for row in rows)
    if loops.is_round(spec, task_index) or streaming.source_of(spec, task_index) >= 0:
        return False
    return sum(row.state is not TaskState.PENDING for row in rows) < width
