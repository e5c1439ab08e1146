"""Handling of inputs that cannot be processed, and quarantine of the runs that cause this.

The engine processes a failed input again in a separate turn. If it fails again, ``consequence``
returns what to do with it.

An error is attributed to a run by the traceback of its exception. A turn that concerns all runs
processes them one after the other. So the innermost frame that refers to a run was processing that
run.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TypeAlias

import msgspec

from aioflow.core.rollback import Refused
from aioflow.core.runs import run_queue
from aioflow.core.runs.progress import alert
from aioflow.core.state.dag_triggers import DagTrigger
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance, TriggerInstance
from aioflow.core.transaction import Transaction
from aioflow.core.triggers.dag_triggers import REFUSED
from aioflow.model.ids import RunNo, TriggerNo
from aioflow.model.states import Failure
from aioflow.model.timestamps import Moment
from aioflow.protocol.effects import Acknowledge, WakeAt
from aioflow.protocol.inputs import (
    ContinueBackfill,
    ContinueRun,
    CreateMissingRuns,
    Input,
    RequestReceived,
    Restarted,
    TimerFired,
)
from aioflow.protocol.reports import TaskReport, TriggerEnded, TriggerFired
from aioflow.protocol.requests import FireTrigger

__all__ = (
    "Consequence",
    "Culprit",
    "DecideWithout",
    "Excluded",
    "FailBackfill",
    "QuarantineRuns",
    "RefuseRequest",
    "RepeatInput",
    "RetryTimer",
    "blamed",
    "consequence",
    "culprits",
    "excluded",
    "quarantine_run",
)

Culprit: TypeAlias = Run | DagTrigger


def culprits(exc: BaseException | None) -> list[Culprit]:
    """Return the runs and DAG triggers that caused an exception, usually one.

    They are found in the local variables of the innermost frame that refers to any of them.
    """
    frames = [] if exc is None else list(_frame_locals(exc.__traceback__))
    for known in reversed(frames):
        found: dict[int, Culprit] = {}
        for value in known.values():
            one = _culprit_of(value)
            if one is not None:
                found[id(one)] = one
        if found:
            return list(found.values())
    return []


def _frame_locals(traceback: TracebackType | None) -> list[dict[str, object]]:
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame.f_locals)
        traceback = traceback.tb_next
    return frames


def _culprit_of(value: object) -> Culprit | None:
    match value:
        case Run() | DagTrigger():
            return value
        case TaskInstance() | MappedTask() | TriggerInstance():
            return value.run
        case _:
            return None


def quarantine_run(run: Run, reason: str, tx: Transaction) -> None:
    """Quarantine a run, so that none of its tasks starts. Users see why and may cancel the run.

    The run no longer counts as active or queued, and its resumed tasks release the pool slots that
    they hold. Its running and deferred tasks hold their slots until they end. The engine then sends
    ``ContinueRun``, so that other runs start instead.
    """
    failure = Failure(type="Quarantined", message=reason[:1000], reason="quarantined")
    run_queue.withdraw(run, run.state, tx)
    tx.change_run(run, quarantine=failure.message)
    tx.slots.hold_pool_slots_of(run)
    alert(run, -1, failure, tx)


_RETRY_US = 60_000_000


class RefuseRequest(msgspec.Struct, frozen=True):
    """Respond to a request with the error."""

    answer: Acknowledge


class RetryTimer(msgspec.Struct, frozen=True):
    """Repeat a timer of a DAG after a minute. If it is the timer of its schedule, also alert."""

    timer: WakeAt
    dag_id: str
    is_scheduled: bool


class FailBackfill(msgspec.Struct, frozen=True):
    """Fail a backfill."""

    backfill_no: int


class RepeatInput(msgspec.Struct, frozen=True):
    """Process another input instead of the one that failed."""

    input: Input


class QuarantineRuns(msgspec.Struct, frozen=True):
    """Quarantine the run that the input is about, if it is in memory."""

    runs: list[Run]


class DecideWithout(msgspec.Struct, frozen=True):
    """Process an input that concerns all runs again, without the runs that make it fail."""


Consequence: TypeAlias = (
    RefuseRequest | RetryTimer | FailBackfill | RepeatInput | QuarantineRuns | DecideWithout
)


def consequence(entry: Input, exc: Exception, at: Moment, memory: Memory) -> Consequence:
    """Return what to do with an input that fails even in a separate turn.

    Args:
        at: The current time.
    """
    match entry:
        case RequestReceived():
            return RefuseRequest(Acknowledge(entry.ticket, error=exc))
        case CreateMissingRuns():
            due = TimerFired(entry.cursor, dag_id=entry.dag_id)
            return RetryTimer(WakeAt(due, at.now + _RETRY_US), entry.dag_id, is_scheduled=True)
        case TimerFired(task_no=-1, run_no=-1, dag_id=""):
            one = memory.dag_triggers.get(entry.trigger_no)
            dag_id = "" if one is None else one.row.dag_id
            return RetryTimer(WakeAt(entry, at.steady + _RETRY_US), dag_id, is_scheduled=False)
        case TimerFired(task_no=-1, run_no=-1):
            return RetryTimer(WakeAt(entry, at.now + _RETRY_US), entry.dag_id, is_scheduled=True)
        case ContinueBackfill():
            return FailBackfill(entry.backfill_no)
        case TriggerFired() if entry.trigger_no in memory.dag_triggers:
            # After the failure, the trigger is assigned again, and yields the event again.
            failure = Failure(type="Refused", message=str(exc)[:1000], reason=REFUSED)
            ended = TriggerEnded(entry.trigger_no, entry.assignment_id, entry.at, failure)
            return RepeatInput(ended)
        case _:
            if _is_of_one_run(entry):
                return QuarantineRuns(blamed(entry, memory))
            return DecideWithout()


def _is_of_one_run(entry: Input) -> bool:
    match entry:
        case TimerFired() | TaskReport() | TriggerFired() | TriggerEnded() | ContinueRun():
            return True
        case Restarted(runs=(_,)):
            return True
        case _:
            return False


def blamed(entry: Input, memory: Memory) -> list[Run]:
    """Return the run that an input is about, if known. It is quarantined if the input fails again.

    The run is returned even if processing failed before it reached the run, or changed other runs
    as well.
    """
    run: Run | None
    match entry:
        case TimerFired(run_no=run_no) if run_no >= 0:
            run = memory.runs.get(run_no)
        case TaskReport() | TimerFired():
            task = memory.active_tasks.get(entry.task_no)
            run = None if task is None else task.run
        case TriggerFired() | TriggerEnded():
            wait = memory.waits.get(entry.trigger_no)
            run = None if wait is None else memory.runs.get(wait.run.run_no)
        case ContinueRun():
            run = memory.runs.get(entry.run_no)
        case Restarted(runs=(run_no,)):
            run = memory.runs.get(run_no)
        case RequestReceived(request=FireTrigger(trigger_no=number)):
            wait = memory.waits.get(number)
            run = None if wait is None else memory.runs.get(wait.run.run_no)
        case RequestReceived(request=request):
            run = memory.find_run(getattr(request, "run_id", None) or "")
        case _:
            run = None
    return [] if run is None else [run]


def _named(numbers: Mapping[str, int], memory: Memory) -> list[RunNo]:
    """Return the number of the run to which a row belongs, as a list; empty if it is unknown.

    Args:
        numbers: The run, task or trigger number in the row, by column name.
    """
    if "run_no" in numbers:
        return [numbers["run_no"]]
    task = memory.active_tasks.get(numbers.get("task_no", -1))
    wait = memory.waits.get(numbers.get("trigger_no", -1))
    of = [one.run.run_no for one in (task, wait) if one is not None]
    return of[:1]


class Excluded(msgspec.Struct, frozen=True):
    """Runs and triggers to exclude when an input is processed again."""

    runs: list[Run]
    triggers: list[TriggerNo] = []


def excluded(
    exc: Exception,
    refused: Mapping[str, int],
    memory: Memory,
    *,
    else_touched: Mapping[RunNo, Run],
) -> Excluded:
    """Return the runs and triggers that made a turn fail.

    Args:
        exc: The error of the turn.
        refused: If the store refused a row, the numbers in that row, by column name.
        else_touched: The runs to exclude if it is not known which run failed. May be empty.
    """
    found = [] if isinstance(exc, Refused) else culprits(exc.__cause__)
    numbers = [one.run_no for one in found if isinstance(one, Run)]
    if isinstance(exc, Refused):
        numbers = _named(refused, memory)
    triggers = [
        one.row.trigger_no
        for one in found
        if isinstance(one, DagTrigger) and one.row.kwargs is not None  # other triggers are stopped
    ]
    runs = [memory.runs[number] for number in numbers if number in memory.runs]
    if not runs and not triggers:
        runs = [memory.runs[number] for number in else_touched if number in memory.runs]
    return Excluded(runs, triggers)
