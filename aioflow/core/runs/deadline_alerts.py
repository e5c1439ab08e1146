"""Deadlines of runs and their tasks, and the timeout of runs.

A deadline ends nothing; it causes an alert. The commit that creates the run adds an outbox row
for it. The commit in which it is reached replaces this row by the alert. So no alert is lost and
none is repeated. The rows of a run are deleted when it ends.

A run timeout needs no row: it follows from the start of the run and its DAG version.
"""

from __future__ import annotations

import msgspec

from aioflow.core import callbacks
from aioflow.core.state.memory import Memory, RunEnd
from aioflow.core.state.task_instance import Run
from aioflow.core.transaction import Transaction
from aioflow.model.ids import RunNo
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.effects import WakeAt
from aioflow.protocol.inputs import TimerFired
from aioflow.protocol.outbox import DEADLINE, Deadline

__all__ = (
    "arm",
    "arm_timeout",
    "index",
    "is_over",
    "is_timed_out",
    "schedule",
    "told",
    "write_off",
)

_decode = msgspec.msgpack.Decoder(Deadline).decode
_encode = msgspec.msgpack.Encoder().encode

_FEW = 1_000


def schedule(run: Run, tx: Transaction) -> None:
    """Schedule the deadline alerts of a new run: one outbox row per distinct deadline."""
    lengths = {task.deadline_us for task in run.spec.tasks} | {run.spec.deadline_us}
    for length in sorted(length for length in lengths if length is not None):
        at = tx.steady + length
        deadline = Deadline(run.run_no, at, length)
        number = tx.outbox.add(DEADLINE, _encode(deadline))
        tx.memory.deadlines.setdefault(run.run_no, {})[number] = deadline
        tx.wake_run(run.run_no, at)


def index(memory: Memory) -> None:
    """Rebuild the pending deadlines from the outbox."""
    memory.deadlines.clear()
    for number, (kind, body) in memory.outbox.items():
        if kind == DEADLINE:
            deadline = _decode(body)
            memory.deadlines.setdefault(deadline.run_no, {})[number] = deadline


def arm(tx: Transaction) -> None:
    """Arm timers for all pending deadlines after a restart; past ones fire at once."""
    for run_no, deadlines in tx.memory.deadlines.items():
        for deadline in deadlines.values():
            tx.effects.append(WakeAt(TimerFired(deadline.at, run_no=run_no)))


def arm_timeout(run: Run, tx: Transaction) -> None:
    """Arm the timeout of a run that has started, was restored, or was cleared.

    A second call for the same start does not change that start in steady time.
    """
    length, began = run.spec.run_timeout_us, run.row.started_at
    if length is None:
        tx.memory.run_ends.pop(run.run_no, None)  # an earlier version of the DAG had a timeout
    elif began is not None:
        ends = tx.memory.run_ends
        known = ends.get(run.run_no)
        if known is not None and known.began == began:
            started = known.started
        else:  # the row has wall time, which may have stepped before a restart
            started = min(began - tx.at.shift, tx.steady)
        at = started + length
        ends[run.run_no] = RunEnd(began, started, at)
        if len(ends) > 2 * len(tx.memory.runs) + _FEW:
            for run_no in [number for number in ends if number not in tx.memory.runs]:
                del ends[run_no]
        tx.wake_run(run.run_no, at)


def is_timed_out(run: Run, at: Timestamp, memory: Memory) -> bool:
    """Return whether a timer that fired is the timeout of a running run."""
    is_running = run.state is RunState.RUNNING and run.row.quarantine is None
    end = memory.run_ends.get(run.run_no)
    return is_running and end is not None and end.at == at


def is_over(run: Run, steady: Timestamp, memory: Memory) -> bool:
    """Return whether the timeout of a run has passed."""
    end = memory.run_ends.get(run.run_no)
    return end is not None and end.at <= steady


def told(run_no: RunNo, at: Timestamp, tx: Transaction) -> None:
    """Queue alerts for everything unfinished at its deadline. Idempotent."""
    memory = tx.memory
    deadline = memory.deadlines.get(run_no, {})
    run = memory.runs.get(run_no)
    for number, due in [(number, due) for number, due in deadline.items() if due.at == at]:
        del deadline[number]
        tx.outbox.write_off(number)
        if run is not None and run.state.is_live:
            # Rows of an earlier program version do not say the length.
            _tell(run, due.length_us or at - run.row.created_at, tx)


def _tell(run: Run, length: int, tx: Transaction) -> None:
    if run.spec.deadline_us == length:
        message = f"the run has not ended {length / 1e6:g} s after it was made"
        tx.outbox.alert_of(run.row, "deadline", message)
        _call_back(run, -1, tx)
    for position, task in enumerate(run.spec.tasks):
        if task.deadline_us == length and run.states[position] < TaskState.SUCCESS:
            message = f"the task has not ended {length / 1e6:g} s after its run was made"
            tx.outbox.alert_of(run.row, "deadline", message, task.task_id)
            _call_back(run, position, tx)


def _call_back(run: Run, position: int, tx: Transaction) -> None:
    tx.outbox.call_back(run.row.dag_id, callbacks.of_deadline(run, position, tx.now))


def write_off(run_no: RunNo, tx: Transaction) -> None:
    """Delete the pending deadlines of a run that has ended."""
    for number in tx.memory.deadlines.pop(run_no, {}):
        tx.outbox.write_off(number)
