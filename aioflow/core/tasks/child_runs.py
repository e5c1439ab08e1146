"""Runs that a task of another run starts and may wait for.

The run, the record of the call and the wait for the run's end are one commit. No host has such a
wait; the commit that ends the run also answers it.
"""

from __future__ import annotations

import msgspec

from aioflow.core.runs import create
from aioflow.core.state.task_instance import Run, TaskInstance
from aioflow.core.tasks import durable_calls
from aioflow.core.tasks.tries import requeue
from aioflow.core.transaction import Transaction
from aioflow.core.triggers.assignment import RUN
from aioflow.errors import DagBroken, DagRunFailed, RequestError, UnknownDag
from aioflow.model.states import Failure, RecordState, RunState, TaskState, TriggerState
from aioflow.protocol.reports import RunCalled
from aioflow.protocol.requests import CreateRun

__all__ = ("call", "ended")

_encode = msgspec.msgpack.Encoder().encode

_WENT_WELL = frozenset({RunState.SUCCESS, RunState.PARTIAL})


def call(task: TaskInstance, report: RunCalled, tx: Transaction) -> None:
    """Start a run for a coroutine, which is suspended until the run has ended if it waits for it.

    If the run cannot be created, the failure is recorded as the answer and the coroutine continues.
    """
    if report.ordinal != task.recorded or task.state is not TaskState.RUNNING:
        return  # repeated report
    number = tx.numbers.take()
    request = CreateRun(dag_id=report.dag_id, conf=report.conf)
    try:
        caller = number if report.waits else None
        run = create.make_run(request, tx, cause="task", caller=caller)
    except RequestError as exc:
        failure, arguments = _refused(exc)
        durable_calls.record(
            task, report, RecordState.FAILED, tx, answer=arguments, failure=failure
        )
        durable_calls.confirm(task, report.ordinal, tx, arguments, failure)
        return
    if not report.waits:
        answer = _encode(run.row.run_id)
        durable_calls.record(task, report, RecordState.ANSWERED, tx, answer=answer)
        durable_calls.confirm(task, report.ordinal, tx, answer, None)
        return
    durable_calls.park(task, report, tx)
    until = durable_calls.deadline(task, None, tx.steady)
    kwargs = _encode({"dag": run.row.dag_id, "run_id": run.row.run_id})
    task.waits = (durable_calls.wait_for(task, 0, (RUN, kwargs), until, tx, number=number),)
    tx.wake_task(task, until)


def ended(run: Run, tx: Transaction) -> None:
    """Resume the task that waits for a run, now that the run is in its final state."""
    caller = run.row.caller
    wait = None if caller is None else tx.memory.waits.get(caller)
    if wait is None or wait.task is None or wait.state is not TriggerState.WAITING:
        return  # the task was cancelled, or restarts
    task, row = wait.task, run.row
    if row.state in _WENT_WELL:
        answer = {"state": row.state.label, "run_id": row.run_id, "result": None}
        durable_calls.give_answer(task, _encode(answer), None, tx)
    else:
        arguments = (row.dag_id, row.run_id, row.state.label)
        failure = _failure(DagRunFailed(*arguments), "dag_run_failed")
        durable_calls.give_answer(task, _encode(arguments), failure, tx)
    tx.drop_wait(wait)
    wait.task, task.waits = None, ()
    requeue(task, tx)


def _refused(problem: RequestError) -> tuple[Failure, bytes]:
    """Return the failure of the call, and the encoded arguments of its exception."""
    match problem:
        case UnknownDag():
            arguments = [problem.dag_id]
        case DagBroken():
            arguments = [problem.dag_id, problem.reason]
        case _:
            arguments = [str(problem)]
    return _failure(problem, "run_refused"), _encode(arguments)


def _failure(problem: Exception, reason: str) -> Failure:
    cls = type(problem)
    return Failure(type=f"{cls.__module__}:{cls.__qualname__}", message=str(problem), reason=reason)
