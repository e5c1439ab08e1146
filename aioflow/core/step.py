"""The decision of one turn of the engine loop: inputs in, one net batch and effects out.

``decide`` changes the memory as it proceeds. If it raises, or the store refuses its batch, the
memory no longer matches the rows. Then the engine rolls the transaction back (``core.rollback``),
restores the runs it touched from their rows, and repeats the inputs one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aioflow.core import crash_trials, file_changes, processes
from aioflow.core.repair import execution
from aioflow.core.repair.clear import has_to_wait
from aioflow.core.requests import answer
from aioflow.core.runs import backfills, create, next_runs, restart
from aioflow.core.runs.cancel import cancel_tasks, run_due
from aioflow.core.runs.run import end, go_on
from aioflow.core.scheduling import clock_steps
from aioflow.core.scheduling.slots import Slots
from aioflow.core.scheduling.workers import learn_duration
from aioflow.core.state.dag_triggers import DagTrigger
from aioflow.core.state.ids import IdBlock
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import TaskInstance
from aioflow.core.tasks import child_runs, durable_calls, stream_consumer, stream_producer
from aioflow.core.tasks.retry import INTERRUPTION_LIMIT_OWN
from aioflow.core.tasks.tries import (
    await_code,
    begin_try,
    drop_record,
    fail_or_retry,
    interrupt,
    keep_try,
    look_again,
    requeue,
    start,
    succeed,
    time_out_sensor,
    wake_due,
)
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import (
    assets,
    dag_triggers,
    event_runs,
    isolation,
    lifecycle,
    migration,
    pausing,
)
from aioflow.core.triggers.assignment import host_rest, want_host
from aioflow.errors import AioflowError
from aioflow.model.batch import Batch
from aioflow.model.states import CODE_MISSING, IMPORT_ERROR, RunState, TaskState
from aioflow.model.timestamps import Moment
from aioflow.protocol.effects import Effect, RestoreCode
from aioflow.protocol.inputs import (
    AlertRaised,
    AssignTriggers,
    ClockStepped,
    CodeRestored,
    ContinueBackfill,
    ContinueRun,
    CreateMissingRuns,
    DamageFound,
    Drain,
    FileBroken,
    FileDeleted,
    FileParsed,
    HostLost,
    HostUp,
    Input,
    Internal,
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
    WorkerUnresponsive,
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
    TaskStarted,
    TriggerEnded,
    TriggerFired,
)
from aioflow.protocol.requests import ClearTasks, Mark

__all__ = ("TURN_INPUTS", "TurnFailed", "decide", "runs_beyond")

TURN_INPUTS = 1_000
"""Maximum number of inputs of one turn."""


class TurnFailed(AioflowError):
    """Deciding raised. The parts of the memory that the transaction touched are not reliable."""

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
        at: The moment at which the whole turn happens.
        granting: Whether work that is ready is started. Otherwise only the inputs are processed.
        numbers: Must have ``memory.numbers_needed`` left for each input.

    Returns:
        The batch to commit, the effects to run after the commit, and the transaction, which records
            what the turn touched.

    Raises:
        TurnFailed: If a step raised, which is a defect.
    """
    tx = Transaction(memory, slots, at=at, random=random, numbers=numbers)
    try:
        clock_steps.heed_step(tx)
        for entry in inputs:
            _take(entry, tx)
            next_runs.settle(tx)
            _settle_ended(tx)
        assets.settle(tx)
        next_runs.settle(tx)
        _settle_ended(tx)
        event_runs.settle(tx)
        if granting and not memory.is_drained:
            _grant(tx)
            if memory.backpressured and _let_go_on(tx):
                _grant(tx)
            for role in sorted(slots.missing_hosts(memory.hosts_up)):
                want_host(role, tx)
        return tx.close(), tx.effects, tx
    except Exception as exc:
        raise TurnFailed(tx, repr(exc)) from exc


def runs_beyond(inputs: Sequence[Input]) -> int:
    """Return how many runs these inputs may create in addition to one each."""
    slots = sum(
        bool(entry.dag_id) for entry in inputs if isinstance(entry, TimerFired | CreateMissingRuns)
    )
    filled = {entry.backfill_no for entry in inputs if isinstance(entry, ContinueBackfill)}
    return slots * create.MISSED_SLOTS_AT_ONCE + len(filled) * backfills.SLOTS_AT_ONCE


def _settle_ended(tx: Transaction) -> None:
    while tx.ended_runs:
        run = tx.ended_runs.pop()
        create.run_ended(run, was=RunState.RUNNING, tx=tx)
        child_runs.ended(run, tx)
        next_runs.settle(tx)


def _grant(tx: Transaction) -> None:
    """Start what may start. Work that does not fit into the batch follows in the next turn."""
    crash_trials.go_on(tx, is_open=tx.slots.is_open and not tx.slots.is_held)
    if tx.memory.may_host_more and tx.slots.is_open:
        tx.memory.may_host_more = False
        host_rest(tx)
        dag_triggers.place_all(tx)
    for grant in tx.slots.grant(tx.memory):
        if grant.is_waiting:
            lifecycle.start(grant.task, tx)
            stream_consumer.go_on(grant.task, tx)
        else:
            start(grant, tx)
        if tx.is_full:
            tx.put_off(grant.task.run)
            return


def _let_go_on(tx: Transaction) -> bool:
    """Resume backpressured tasks that have capacity now. Return whether one needs a slot."""
    for task in (waiting := stream_producer.go_on(tx)):
        stream_consumer.go_on(task, tx)
    return bool(waiting)


def _take(entry: Input, tx: Transaction) -> None:
    match entry:
        case (
            TaskStarted()
            | Succeeded()
            | Failed()
            | Skipped()
            | SensorNotReady()
            | Deferred()
            | Awaiting()
        ):
            _take_report(entry, tx)
        case EventsHandled():
            _take_report(entry, tx)
        case (
            ItemYielded()
            | CallAnswered()
            | StreamOpened()
            | NextEventRequested()
            | EventEmitted()
            | RunCalled()
        ):
            _take_call(entry, tx)
        case NotSuspended() | RecordDropped() | Labelled() | ResultWriteFailed():
            _take_call(entry, tx)
        case TriggerFired() | TriggerEnded() | TriggerCapacityChanged():
            _take_trigger_report(entry, tx)
        case MigrateTriggers() | IsolateTriggerClass() | PauseTriggers() | CodeRestored():
            _move_triggers(entry, tx)
        case Recalled():
            _take_recalled(entry, tx)
        case FileParsed() | FileBroken() | FileDeleted():
            file_changes.take(entry, tx, tx.slots.pools)
        case (
            HostUp()
            | HostLost()
            | AssignTriggers()
            | LoopBlocked()
            | Restarted()
            | Drain()
            | AlertRaised()
        ):
            processes.take(entry, tx)
        case (
            RequestReceived()
            | TimerFired()
            | OutboxDelivered()
            | OutboxLoaded()
            | ContinueRun()
            | PreviousRunLoaded()
            | ContinueBackfill()
        ):
            _take_word(entry, tx)
        case CreateMissingRuns() | ClockStepped() | WorkerUnresponsive() | DamageFound():
            _take_word(entry, tx)


def _take_word(entry: Internal, tx: Transaction) -> None:
    """Handle an input that no child reported: a request, a timer, or a message of the engine."""
    match entry:
        case RequestReceived():
            tx.effects.append(_answered(entry, tx))
        case TimerFired():
            _take_due(entry, tx)
        case OutboxDelivered():
            tx.outbox.write_off(entry.outbox_no)
            tx.memory.callbacks_failed += entry.is_failed
        case OutboxLoaded():
            tx.outbox.take_read(entry)
        case ContinueRun():
            _take_continue(entry, tx)
        case PreviousRunLoaded():
            next_runs.looked_back(entry, tx)
        case ContinueBackfill():
            backfills.go_on(entry, tx)
        case CreateMissingRuns():
            create.make_slots(entry, tx)
        case WorkerUnresponsive():
            tx.slots.note_silence(entry)
        case DamageFound(damage=damage):
            restart.damage_found(damage, tx)
        case ClockStepped():
            pass  # every turn checks the clock


def _answered(entry: RequestReceived, tx: Transaction) -> Effect:
    """Return the response, or the request itself if rows must be loaded first."""
    match entry.request:
        case ClearTasks() | Mark() as request if has_to_wait(request, tx.memory):
            return entry
        case _:
            return answer(entry, tx)


def _take_continue(entry: ContinueRun, tx: Transaction) -> None:
    """Continue a run's clear, cancel or rule evaluation. Starts that were put off need no call."""
    run = tx.memory.runs.get(entry.run_no)
    if run is None:
        return
    if run.clearing is not None:
        execution.go_on(run, tx)
    elif not run.state.is_live:
        cancel_tasks(run, tx)
    elif run.row.quarantine is None:
        go_on(run, tx)


# ── reports ─────────────────────────────────────────────────────────────────────────────


def _take_report(report: TaskStarted | Ended, tx: Transaction) -> None:
    task = tx.memory.active_tasks.get(report.task_no)
    if task is None or task.start_no != report.start_no:
        return  # late: the task was cancelled or started again
    if tx.slots.begin(task):
        if task.started_at is None:  # otherwise it resumes: the time of its try continues
            started_at = report.at if isinstance(report, TaskStarted) else report.began_at
            begin_try(task, tx, started_at)
        tx.move(task, TaskState.RUNNING)
    if task.state is not TaskState.RUNNING and not task.is_hosted:
        if isinstance(report, Failed) and task.parked_start == report.start_no:
            lifecycle.fail_parked(task, report, tx)
        return
    if not isinstance(report, TaskStarted):
        _take_end(report, task, tx)


def _take_end(report: Ended, task: TaskInstance, tx: Transaction) -> None:
    if report.began_at is not None:
        learn_duration(task, report.at - report.began_at)
    match report:
        case Succeeded():
            succeed(task, report, tx)
        case Failed():
            _failed(task, report, tx)
        case Skipped():
            keep_try(task, TaskState.SKIPPED, None, tx)
            end(task, TaskState.SKIPPED, tx, at=report.at)
        case SensorNotReady():
            look_again(task, tx, recheck_in_us=report.recheck_in_us)
        case Deferred():
            lifecycle.defer(task, report, tx)
        case Awaiting():
            lifecycle.await_triggers(task, report, tx)
        case EventsHandled():
            stream_consumer.handled(task, report, tx)


def _take_call(
    report: ItemYielded
    | CallAnswered
    | StreamOpened
    | NextEventRequested
    | EventEmitted
    | RunCalled
    | NotSuspended
    | RecordDropped
    | Labelled
    | ResultWriteFailed,
    tx: Transaction,
) -> None:
    task = tx.memory.active_tasks.get(report.task_no)
    if task is None or task.start_no != report.start_no:
        return  # late report
    match report:
        case ItemYielded():
            stream_producer.take(task, report, tx)
        case CallAnswered():
            durable_calls.answered(task, report, tx)
        case StreamOpened():
            lifecycle.open_stream(task, report, tx)
        case NextEventRequested():
            lifecycle.next_event(task, report, tx)
        case EventEmitted():
            durable_calls.emit(task, report, tx)
        case RunCalled():
            child_runs.call(task, report, tx)
        case NotSuspended():
            durable_calls.not_parked(task, report, tx)
        case RecordDropped():
            drop_record(task, report, tx)
        case Labelled() | ResultWriteFailed():
            _take_note(task, report, tx)


def _take_note(task: TaskInstance, report: Labelled | ResultWriteFailed, tx: Transaction) -> None:
    match report:
        case Labelled():
            if not task.looks:  # a sensor that pokes again already has a label
                tx.batch.labels.append((task.task_no, task.run.run_no, report.label))
        case ResultWriteFailed():
            tx.slots.note_kept_result(task, disk_is_full=report.disk_is_full)


def _failed(task: TaskInstance, report: Failed, tx: Transaction) -> None:
    if report.interrupted:
        interrupt(task, report.failure, INTERRUPTION_LIMIT_OWN, tx)
        return
    if report.failure.reason == CODE_MISSING and report.began_at is None:
        await_code(task, report.failure, tx)
        return
    is_import = report.failure.reason == IMPORT_ERROR and report.began_at is None
    if is_import or report.failure.type == FileNotFoundError.__name__:
        # A module of the version, or a file beside it, may be missing on disk.
        tx.effects.append(RestoreCode((task.run.row.version,)))
    sensor = task.spec.sensor
    if sensor is not None and sensor.on_error == "skip":
        keep_try(task, TaskState.SKIPPED, report.failure, tx)
        task.failure = report.failure
        end(task, TaskState.SKIPPED, tx, at=report.at)
    else:
        fail_or_retry(
            task,
            report.failure,
            tx,
            retryable=report.retryable,
            retry_after_us=report.retry_after_us,
        )


def _take_recalled(report: Recalled, tx: Transaction) -> None:
    for task_no, start_no in report.tries:
        task = tx.memory.active_tasks.get(task_no)
        if task is None or task.start_no != start_no or task.worker < 0:
            continue
        tx.slots.call_back(task)
        tx.slots.unblock(task)
        if task.state is TaskState.QUEUED:
            tx.displace(task)
            tx.slots.offer(task)
        else:  # the first try in a process that died before it started
            task.started_at = task.ends_at = None
            requeue(task, tx)


def _move_triggers(
    entry: MigrateTriggers | IsolateTriggerClass | PauseTriggers | CodeRestored, tx: Transaction
) -> None:
    match entry:
        case MigrateTriggers():
            migration.rehost(entry, tx)
        case IsolateTriggerClass():
            isolation.move_class(entry, tx)
        case CodeRestored():
            _take_restored(entry, tx)
        case PauseTriggers():
            pausing.stop_waits(entry, tx)


def _take_restored(entry: CodeRestored, tx: Transaction) -> None:
    of_dag = tx.memory.dag_triggers.get(entry.trigger_no)
    if of_dag is not None:
        dag_triggers.code_restored(of_dag, tx)
    else:
        lifecycle.code_restored(entry, tx)


def _take_trigger_report(
    report: TriggerFired | TriggerEnded | TriggerCapacityChanged, tx: Transaction
) -> None:
    of_dag = tx.memory.dag_triggers.get(report.trigger_no)
    if of_dag is not None:
        _take_dag_trigger_report(of_dag, report, tx)
        return
    wait = tx.memory.waits.get(report.trigger_no)
    if wait is None:
        return  # late report
    match report:
        case TriggerFired():
            lifecycle.fire(wait, report, tx)
        case TriggerEnded():
            lifecycle.trigger_ended(wait, report, tx)
        case TriggerCapacityChanged():
            migration.room_changed(report, wait)


def _take_dag_trigger_report(
    one: DagTrigger,
    report: TriggerFired | TriggerEnded | TriggerCapacityChanged,
    tx: Transaction,
) -> None:
    match report:
        case TriggerFired():
            event_runs.fire(one, report, tx)
        case TriggerEnded():
            dag_triggers.ended(one, report, tx)
        case TriggerCapacityChanged():
            migration.room_changed(report, one)


def _take_due(due: TimerFired, tx: Transaction) -> None:
    task = tx.memory.active_tasks.get(due.task_no)
    if due.dag_id:
        create.slot_due(due.dag_id, due.at, tx)
    elif due.trigger_no >= 0:
        event_runs.due(due.trigger_no, due.at, tx)
    elif due.run_no >= 0:
        run_due(due.run_no, due.at, tx)
    elif task is None:
        return  # the task has ended
    elif task.spec.sensor is not None and task.deadline_at == due.at:
        # In any state: a poke that hangs gets no more time than one that returns.
        lifecycle.stop(task, "timeout", tx)
        time_out_sensor(task, tx)
    elif task.state is TaskState.DEFERRED:
        lifecycle.time_out(task, due.at, tx)
    else:
        wake_due(task, due.at, tx)
