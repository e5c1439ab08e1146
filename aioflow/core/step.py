"""The decision of one turn of the engine loop: from its inputs to one net batch and its effects.

``decide`` changes the memory as it proceeds. If it raises, or if the store refuses its batch, the
memory no longer matches the rows. Then the engine rolls the transaction back (``core.rollback``),
restores the runs that it touched from their rows, and processes the inputs again one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from aioflow.core import crash_trials, dag_registry, processes
from aioflow.core.repair import execution
from aioflow.core.repair.clear import has_to_wait
from aioflow.core.requests import answer
from aioflow.core.runs import backfills, create, restore
from aioflow.core.runs.cancel import cancel_tasks, run_due
from aioflow.core.runs.progress import continue_evaluation
from aioflow.core.scheduling import clock_steps
from aioflow.core.scheduling.slots import Slots, learn_duration
from aioflow.core.state.dag_triggers import DagTrigger
from aioflow.core.state.id_block import IdBlock
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import TaskInstance, TriggerInstance
from aioflow.core.tasks import durable_calls, streams
from aioflow.core.tasks.tries import (
    begin_try,
    body_returned,
    drop_record,
    failed,
    labelled,
    not_ready,
    note_worker,
    recalled,
    result_write_failed,
    skipped,
    start,
    succeed,
    time_out_sensor,
    wake_due,
)
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import dag_triggers, event_runs, lifecycle, migration
from aioflow.core.triggers.assignment import assign_next, host_rest, request_host
from aioflow.errors import AioflowError
from aioflow.model.batch import Batch
from aioflow.model.ids import StartNo, TaskNo
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Moment, Timestamp
from aioflow.protocol.effects import Effect
from aioflow.protocol.inputs import (
    AlertRaised,
    AssignTriggers,
    BodyReturned,
    ClockStepped,
    CodeRestored,
    ContinueBackfill,
    ContinueRun,
    CreateMissingRuns,
    DamageFound,
    Drain,
    ExecutorUnavailable,
    FileBroken,
    FileDeleted,
    FileParsed,
    HostLost,
    HostUp,
    Input,
    IsolateTriggerClass,
    LoopBlocked,
    MigrateTriggers,
    OutboxDelivered,
    OutboxLoaded,
    PauseTriggers,
    PreviousRunLoaded,
    RequestReceived,
    Restarted,
    TimerFired,
    TriggerCapacityChanged,
    WorkerGone,
    WorkerIdle,
    WorkerUnresponsive,
    WorkerUp,
)
from aioflow.protocol.reports import (
    Awaiting,
    CallAnswered,
    Deferred,
    Ended,
    EventEmitted,
    EventsHandled,
    Failed,
    ItemYielded,
    Labelled,
    NextEventRequested,
    NotSuspended,
    Recalled,
    RecordDropped,
    ResultWriteFailed,
    RunCalled,
    SensorNotReady,
    Skipped,
    StreamOpened,
    Succeeded,
    TaskReport,
    TaskStarted,
    TriggerEnded,
    TriggerFired,
)
from aioflow.protocol.requests import ClearTasks, Mark

__all__ = ("HANDLERS", "TURN_INPUTS", "TurnFailed", "decide", "runs_beyond")

Handler: TypeAlias = Callable[[Any, Transaction], None]
"""Function that processes an input of one type within a transaction."""

TriggerReport: TypeAlias = TriggerFired | TriggerEnded | TriggerCapacityChanged

TURN_INPUTS = 1_000
"""Maximum number of inputs of one turn."""


class TurnFailed(AioflowError):
    """An error was raised while a turn was decided.

    The parts of the memory that the transaction touched are not reliable.
    """

    code = "defect.turn"

    def __init__(self, tx: Transaction, cause: str) -> None:
        super().__init__(f"a turn over runs {sorted(tx.runs)} raised {cause}")
        self.tx = tx


def decide(
    memory: Memory,
    slots: Slots,
    inputs: Sequence[Input],
    *,
    at: Moment,
    random: Callable[[], float],
    numbers: IdBlock,
    granting: bool = True,
) -> tuple[Batch, list[Effect], Transaction]:
    """Decide one turn.

    Args:
        at: The time at which the whole turn happens.
        granting: Whether ready work is started. If not, only the inputs are processed.
        numbers: Must have ``memory.numbers_needed`` left for each input.

    Returns:
        The batch to commit, the effects to run after the commit, and the transaction, which records
            what the turn touched.

    Raises:
        TurnFailed: If a step raised an error, which is a defect.
    """
    tx = Transaction(memory, slots, at=at, random=random, numbers=numbers)
    try:
        clock_steps.handle_step(tx)
        for entry in inputs:
            HANDLERS[type(entry)](entry, tx)
            create.advance_next_runs(tx)
            _process_ended_runs(tx)
        event_runs.record_asset_events(tx)
        create.advance_next_runs(tx)
        _process_ended_runs(tx)
        event_runs.continue_triggers(tx)
        if granting and not memory.is_drained:
            _grant(tx)
            if memory.backpressured and _release_backpressured(tx):
                _grant(tx)
            for role in sorted(slots.missing_hosts(memory.hosts_up)):
                request_host(role, tx)
        if granting and (slots.ready.has_remote or slots.remote):
            processes.demand_workers(tx)
        return tx.close(), tx.effects, tx
    except Exception as exc:
        raise TurnFailed(tx, repr(exc)) from exc


def runs_beyond(inputs: Sequence[Input]) -> int:
    """Return how many runs these inputs may create beyond one run per input."""
    fire_times = sum(
        bool(entry.dag_id) for entry in inputs if isinstance(entry, TimerFired | CreateMissingRuns)
    )
    filled = {entry.backfill_no for entry in inputs if isinstance(entry, ContinueBackfill)}
    return (
        fire_times * create.MISSED_FIRE_TIMES_AT_ONCE + len(filled) * backfills.FIRE_TIMES_AT_ONCE
    )


def _process_ended_runs(tx: Transaction) -> None:
    while tx.ended_runs:
        run = tx.ended_runs.pop()
        create.run_ended(run, was=RunState.RUNNING, tx=tx)
        durable_calls.resume_caller(run, tx)
        create.advance_next_runs(tx)


def _grant(tx: Transaction) -> None:
    """Start ready work. Work that does not fit into the batch follows in the next turn."""
    crash_trials.advance_trial(tx, is_open=tx.slots.is_open and not tx.slots.is_suspended)
    if tx.memory.may_host_more and tx.slots.is_open:
        tx.memory.may_host_more = False
        host_rest(tx)
        dag_triggers.update_assignments(tx)
    for grant in tx.slots.grant(tx.memory):
        if grant.is_waiting:
            lifecycle.start(grant.task, tx)
            streams.resume_with_events(grant.task, tx)
        else:
            start(grant, tx)
        if tx.is_full:
            tx.postpone(grant.task.run)
            return


def _release_backpressured(tx: Transaction) -> bool:
    """Resume backpressured tasks that have capacity now. Return whether any needs a slot."""
    for task in (waiting := streams.release_backpressure(tx)):
        streams.resume_with_events(task, tx)
    return bool(waiting)


# ── requests, timers and work that continues ────────────────────────────────────────────


def _request_received(entry: RequestReceived, tx: Transaction) -> None:
    """Answer a request, or return it to the inbox if it must wait for an earlier clear or mark."""
    match entry.request:
        case ClearTasks() | Mark() as request if has_to_wait(request, tx.memory):
            tx.effects.append(entry)
        case _:
            tx.effects.append(answer(entry, tx))


def _timer_fired(due: TimerFired, tx: Transaction) -> None:
    task = tx.memory.active_tasks.get(due.task_no)
    if due.dag_id:
        create.fire_time_due(due.dag_id, due.at, tx)
    elif due.trigger_no >= 0:
        event_runs.due(due.trigger_no, due.at, tx)
    elif due.run_no >= 0:
        run_due(due.run_no, due.at, tx)
    elif task is None:
        return  # the task has ended
    elif task.spec.sensor is not None and task.deadline_at == due.at:
        # Apply the timeout in any state, because a poke that hangs gets no more time than one that
        # returns.
        lifecycle.stop(task, "timeout", tx)
        time_out_sensor(task, tx)
    elif task.state is TaskState.DEFERRED:
        lifecycle.time_out(task, due.at, tx)
    else:
        wake_due(task, due.at, tx)


def _continue_run(entry: ContinueRun, tx: Transaction) -> None:
    """Continue a run's clear, cancellation or rule evaluation. Postponed starts continue anyway.

    If the run was quarantined, start the runs that waited for it.
    """
    run = tx.memory.runs.get(entry.run_no)
    row = tx.memory.isolated.get(entry.run_no) if run is None else run.row
    if row is not None and row.quarantine is not None:
        create.start_next(row, tx)
    if run is None:
        return
    if run.clearing is not None:
        execution.execute_slice(run, tx)
    elif not run.state.is_live:
        cancel_tasks(run, tx)
    elif run.row.quarantine is None:
        continue_evaluation(run, tx)


def _outbox_delivered(entry: OutboxDelivered, tx: Transaction) -> None:
    tx.outbox.delete(entry.outbox_no)
    tx.memory.callbacks_failed += entry.is_failed


def _outbox_loaded(entry: OutboxLoaded, tx: Transaction) -> None:
    tx.outbox.add_loaded(entry)


def _clock_stepped(_: ClockStepped, tx: Transaction) -> None:
    """Do nothing: every turn checks the clock."""


# ── reports ─────────────────────────────────────────────────────────────────────────────


def _current_task(task_no: TaskNo, start_no: StartNo, tx: Transaction) -> TaskInstance | None:
    """Return the task that a report is about; ``None`` if the report is outdated.

    A report is outdated if its try has ended, was cancelled, or was started again since.
    """
    task = tx.memory.active_tasks.get(task_no)
    return None if task is None or task.start_no != start_no else task


def _of_try(handle: Callable[[TaskInstance, Any, Transaction], object]) -> Handler:
    """Return the handler of a report from a running try. Outdated reports are dropped."""

    def handler(report: TaskReport, tx: Transaction) -> None:
        task = _current_task(report.task_no, report.start_no, tx)
        if task is not None:
            handle(task, report, tx)

    return handler


def _of_end(handle: Callable[[TaskInstance, Any, Transaction], object]) -> Handler:
    """Return the handler of a report that a try has ended, or has left its process."""

    def handler(report: Ended, tx: Transaction) -> None:
        task = _current_task(report.task_no, report.start_no, tx)
        if task is None or not _has_started(task, report, report.began_at, tx):
            return
        if report.began_at is not None:
            learn_duration(task, report.at - report.began_at)
        handle(task, report, tx)

    return handler


def _task_started(report: TaskStarted, tx: Transaction) -> None:
    task = _current_task(report.task_no, report.start_no, tx)
    if task is not None:
        _has_started(task, report, report.at, tx)


def _has_started(
    task: TaskInstance,
    report: TaskStarted | BodyReturned | Ended,
    at: Timestamp | None,
    tx: Transaction,
) -> bool:
    """Record that a try has started, if not yet recorded. Return whether the task runs."""
    if tx.slots.begin(task):
        note_worker(task, tx)
        if task.started_at is None:  # otherwise the task resumes, and the time of its try continues
            begin_try(task, tx, at)
        tx.move(task, TaskState.RUNNING)
    if task.state is TaskState.RUNNING or task.is_hosted:
        return True
    if isinstance(report, Failed) and task.suspended_start == report.start_no:
        lifecycle.fail_suspended(task, report, tx)
    return False


def _body_returned(report: BodyReturned, tx: Transaction) -> None:
    task = _current_task(report.task_no, report.start_no, tx)
    if task is not None and _has_started(task, report, report.began_at, tx):
        body_returned(task, report, tx)


def _recalled(report: Recalled, tx: Transaction) -> None:
    for task_no, start_no in report.tries:
        task = _current_task(task_no, start_no, tx)
        if task is not None and task.worker >= 0:
            recalled(task, tx)


def _of_trigger(
    of_task: Callable[[TriggerInstance, Any, Transaction], None],
    of_dag: Callable[[DagTrigger, Any, Transaction], None],
) -> Handler:
    """Return the handler of a report about a task's or DAG's trigger, if it still exists."""

    def handler(report: TriggerReport, tx: Transaction) -> None:
        one = tx.memory.dag_triggers.get(report.trigger_no)
        if one is not None:
            of_dag(one, report, tx)
            return
        wait = tx.memory.waits.get(report.trigger_no)
        if wait is not None:
            of_task(wait, report, tx)

    return handler


def _code_restored(entry: CodeRestored, tx: Transaction) -> None:
    of_dag = tx.memory.dag_triggers.get(entry.trigger_no)
    if of_dag is not None:
        dag_triggers.code_restored(of_dag, tx)
    else:
        lifecycle.code_restored(entry, tx)


# ── the table ───────────────────────────────────────────────────────────────────────────

HANDLERS: dict[type[Input], Handler] = {
    # A try starts, ends, or leaves its process.
    TaskStarted: _task_started,
    Succeeded: _of_end(succeed),
    Failed: _of_end(failed),
    Skipped: _of_end(skipped),
    SensorNotReady: _of_end(not_ready),
    Deferred: _of_end(lifecycle.defer),
    Awaiting: _of_end(lifecycle.await_triggers),
    EventsHandled: _of_end(streams.events_handled),
    Recalled: _recalled,
    # A try reports while it runs.
    ItemYielded: _of_try(streams.store_item),
    CallAnswered: _of_try(durable_calls.answered),
    StreamOpened: _of_try(lifecycle.open_stream),
    NextEventRequested: _of_try(lifecycle.next_event),
    EventEmitted: _of_try(durable_calls.emit),
    RunCalled: _of_try(durable_calls.start_run),
    NotSuspended: _of_try(durable_calls.not_suspended),
    RecordDropped: _of_try(drop_record),
    Labelled: _of_try(labelled),
    ResultWriteFailed: _of_try(result_write_failed),
    BodyReturned: _body_returned,
    # triggers
    TriggerFired: _of_trigger(lifecycle.fire, event_runs.fire),
    TriggerEnded: _of_trigger(lifecycle.trigger_ended, dag_triggers.ended),
    TriggerCapacityChanged: _of_trigger(migration.capacity_changed, migration.capacity_changed),
    MigrateTriggers: migration.migrate_triggers,
    IsolateTriggerClass: migration.move_class,
    PauseTriggers: migration.pause_triggers,
    CodeRestored: _code_restored,
    AssignTriggers: assign_next,
    # DAG files
    FileParsed: dag_registry.apply_parsed_file,
    FileBroken: dag_registry.file_broken,
    FileDeleted: dag_registry.file_gone,
    # Processes and the node.
    HostUp: processes.host_up,
    HostLost: processes.host_lost,
    LoopBlocked: migration.loop_blocked,
    WorkerUnresponsive: processes.worker_unresponsive,
    WorkerUp: processes.worker_up,
    WorkerGone: processes.worker_gone,
    WorkerIdle: processes.worker_idle,
    ExecutorUnavailable: processes.executor_unavailable,
    Restarted: restore.restarted,
    Drain: processes.shut_down,
    AlertRaised: processes.alert_raised,
    DamageFound: restore.alert_damage,
    ClockStepped: _clock_stepped,
    # Requests, timers, and work that continues.
    RequestReceived: _request_received,
    TimerFired: _timer_fired,
    ContinueRun: _continue_run,
    PreviousRunLoaded: create.previous_run_loaded,
    ContinueBackfill: backfills.continue_backfill,
    CreateMissingRuns: create.create_missing_runs,
    OutboxDelivered: _outbox_delivered,
    OutboxLoaded: _outbox_loaded,
}
"""The handler of each type of input."""
