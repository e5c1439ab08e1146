"""One turn of the circle, decided: inputs in, one net batch and effects out.

``decide`` changes the memory as it goes. If it raises, or its batch is refused, the memory
no longer says what the rows say: the engine takes the draft back (``core.rollback``), restores
the runs it touched from their rows, and repeats the inputs one by one.
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
"""Inputs taken into one turn at most."""


class TurnFailed(AioflowError):
    """Deciding raised. What the draft touched in memory is no longer to be trusted."""

    code = "defect.turn"

    def __init__(self, draft: Transaction, cause: str) -> None:
        super().__init__(f"a turn over runs {sorted(draft.runs)} raised {cause}")
        self.draft = draft


def decide(
    memory: Memory,
    slots: Slots,
    inputs: Sequence[Input],
    *,
    at: Moment,
    chance: Callable[[], float],
    numbers: IdBlock,
    granting: bool = True,
) -> tuple[Batch, list[Effect], Transaction]:
    """Decide one turn.

    Args:
        at: The moment at which all of it happens.
        granting: Whether what may start then does; without, only the inputs are taken.
        numbers: Must have ``memory.numbers_needed`` left for each input.

    Returns:
        The batch to commit, the effects to do after it, and the draft, which knows what
        was touched.

    Raises:
        TurnFailed: If a step raised, which is a defect.
    """
    draft = Transaction(memory, at=at, chance=chance, numbers=numbers)
    try:
        clock_steps.heed_step(draft)
        for entry in inputs:
            _take(entry, draft, slots)
            next_runs.settle(draft, slots)
            _settle_ended(draft, slots)
        assets.settle(draft, slots)
        next_runs.settle(draft, slots)
        _settle_ended(draft, slots)
        event_runs.settle(draft)
        if granting and not memory.is_drained:
            _grant(draft, slots)
            if memory.held and _let_go_on(draft, slots):
                _grant(draft, slots)
            for role in sorted(slots.missing_hosts(memory.hosts_up)):
                want_host(role, draft)
        return draft.close(), draft.effects, draft
    except Exception as exc:
        raise TurnFailed(draft, repr(exc)) from exc


def runs_beyond(inputs: Sequence[Input]) -> int:
    """Return how many runs these inputs may make beyond one each."""
    slots = sum(
        bool(entry.dag_id) for entry in inputs if isinstance(entry, TimerFired | CreateMissingRuns)
    )
    filled = {entry.backfill_no for entry in inputs if isinstance(entry, ContinueBackfill)}
    return slots * create.MISSED_SLOTS_AT_ONCE + len(filled) * backfills.SLOTS_AT_ONCE


def _settle_ended(draft: Transaction, slots: Slots) -> None:
    while draft.ended_runs:
        run = draft.ended_runs.pop()
        create.run_ended(run, was=RunState.RUNNING, draft=draft, slots=slots)
        child_runs.ended(run, draft, slots)
        next_runs.settle(draft, slots)


def _grant(draft: Transaction, slots: Slots) -> None:
    """Start what may start; what does not fit into the batch follows in the next turn."""
    crash_trials.go_on(draft, is_open=slots.is_open and not slots.is_held)
    if draft.memory.may_host_more and slots.is_open:
        draft.memory.may_host_more = False
        host_rest(draft)
        dag_triggers.place_all(draft)
    for grant in slots.grant(draft.memory):
        if grant.is_waiting:
            lifecycle.start(grant.live, draft)
            stream_consumer.go_on(grant.live, draft, slots)
        else:
            start(grant, draft)
        if draft.is_full:
            draft.put_off(grant.live.run)
            return


def _let_go_on(draft: Transaction, slots: Slots) -> bool:
    """Those that were held may go on where there is room now; whether one waits for a place."""
    for live in (waiting := stream_producer.go_on(draft, slots)):
        stream_consumer.go_on(live, draft, slots)
    return bool(waiting)


def _take(entry: Input, draft: Transaction, slots: Slots) -> None:
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
            _take_report(entry, draft, slots)
        case EventsHandled():
            _take_report(entry, draft, slots)
        case (
            ItemYielded()
            | CallAnswered()
            | StreamOpened()
            | NextEventRequested()
            | EventEmitted()
            | RunCalled()
        ):
            _take_call(entry, draft, slots)
        case NotSuspended() | RecordDropped() | Labelled() | ResultWriteFailed():
            _take_call(entry, draft, slots)
        case TriggerFired() | TriggerEnded() | TriggerCapacityChanged():
            _take_trigger_report(entry, draft, slots)
        case MigrateTriggers() | IsolateTriggerClass() | PauseTriggers() | CodeRestored():
            _move_triggers(entry, draft)
        case Recalled():
            _take_recalled(entry, draft, slots)
        case FileParsed() | FileBroken() | FileDeleted():
            file_changes.take(entry, draft, slots.pools)
        case (
            HostUp()
            | HostLost()
            | AssignTriggers()
            | LoopBlocked()
            | Restarted()
            | Drain()
            | AlertRaised()
        ):
            processes.take(entry, draft, slots)
        case (
            RequestReceived()
            | TimerFired()
            | OutboxDelivered()
            | OutboxLoaded()
            | ContinueRun()
            | PreviousRunLoaded()
            | ContinueBackfill()
        ):
            _take_word(entry, draft, slots)
        case CreateMissingRuns() | ClockStepped() | WorkerUnresponsive() | DamageFound():
            _take_word(entry, draft, slots)


def _take_word(entry: Internal, draft: Transaction, slots: Slots) -> None:
    """What no child has said: people, timers, and the engine itself."""
    match entry:
        case RequestReceived():
            draft.effects.append(_answered(entry, draft, slots))
        case TimerFired():
            _take_due(entry, draft, slots)
        case OutboxDelivered():
            draft.owing.write_off(entry.outbox_no)
            draft.memory.callbacks_failed += entry.is_failed
        case OutboxLoaded():
            draft.owing.take_read(entry)
        case ContinueRun():
            _take_continue(entry, draft, slots)
        case PreviousRunLoaded():
            next_runs.looked_back(entry, draft, slots)
        case ContinueBackfill():
            backfills.go_on(entry, draft, slots)
        case CreateMissingRuns():
            create.make_slots(entry, draft, slots)
        case WorkerUnresponsive():
            slots.note_silence(entry)
        case DamageFound(damage=damage):
            restart.damage_found(damage, draft)
        case ClockStepped():
            pass  # every turn looks at the clock


def _answered(entry: RequestReceived, draft: Transaction, slots: Slots) -> Effect:
    """Return the answer, or the request itself where rows have to be loaded before."""
    match entry.request:
        case ClearTasks() | Mark() as request if has_to_wait(request, draft.memory):
            return entry
        case _:
            return answer(entry, draft, slots)


def _take_continue(entry: ContinueRun, draft: Transaction, slots: Slots) -> None:
    """Starts that were put off go on by themselves, cancels and verdicts do not."""
    run = draft.memory.runs.get(entry.run_no)
    if run is None:
        return
    if run.clearing is not None:
        execution.go_on(run, draft, slots)
    elif not run.state.is_live:
        cancel_tasks(run, draft, slots)
    elif run.row.quarantine is None:
        go_on(run, draft, slots)


# ── reports ─────────────────────────────────────────────────────────────────────────────


def _take_report(report: TaskStarted | Ended, draft: Transaction, slots: Slots) -> None:
    live = draft.memory.live.get(report.task_no)
    if live is None or live.start_no != report.start_no:
        return  # late: it was cancelled, or started again
    if slots.begin(live):
        if live.started_at is None:  # else it resumes: the time of its try runs on
            started_at = report.at if isinstance(report, TaskStarted) else report.began_at
            begin_try(live, draft, started_at)
        draft.move(live, TaskState.RUNNING)
    if live.state is not TaskState.RUNNING and not live.is_hosted:
        if isinstance(report, Failed) and live.parked_start == report.start_no:
            lifecycle.fail_parked(live, report, draft, slots)
        return
    if not isinstance(report, TaskStarted):
        _take_end(report, live, draft, slots)


def _take_end(report: Ended, live: TaskInstance, draft: Transaction, slots: Slots) -> None:
    if report.began_at is not None:
        learn_duration(live, report.at - report.began_at)
    match report:
        case Succeeded():
            succeed(live, report, draft, slots)
        case Failed():
            _failed(live, report, draft, slots)
        case Skipped():
            keep_try(live, TaskState.SKIPPED, None, draft)
            end(live, TaskState.SKIPPED, draft, slots, at=report.at)
        case SensorNotReady():
            look_again(live, draft, slots, recheck_in_us=report.recheck_in_us)
        case Deferred():
            lifecycle.defer(live, report, draft, slots)
        case Awaiting():
            lifecycle.await_triggers(live, report, draft, slots)
        case EventsHandled():
            stream_consumer.handled(live, report, draft, slots)


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
    draft: Transaction,
    slots: Slots,
) -> None:
    live = draft.memory.live.get(report.task_no)
    if live is None or live.start_no != report.start_no:
        return  # late
    match report:
        case ItemYielded():
            stream_producer.take(live, report, draft, slots)
        case CallAnswered():
            durable_calls.answered(live, report, draft)
        case StreamOpened():
            lifecycle.open_stream(live, report, draft)
        case NextEventRequested():
            lifecycle.next_event(live, report, draft, slots)
        case EventEmitted():
            durable_calls.emit(live, report, draft)
        case RunCalled():
            child_runs.call(live, report, draft, slots)
        case NotSuspended():
            durable_calls.not_parked(live, report, draft, slots)
        case RecordDropped():
            drop_record(live, report, draft, slots)
        case Labelled() | ResultWriteFailed():
            _take_note(live, report, draft, slots)


def _take_note(
    live: TaskInstance, report: Labelled | ResultWriteFailed, draft: Transaction, slots: Slots
) -> None:
    match report:
        case Labelled():
            if not live.looks:  # a sensor that looks again has its name already
                draft.batch.labels.append((live.task_no, live.run.run_no, report.label))
        case ResultWriteFailed():
            slots.note_kept_result(live, disk_is_full=report.disk_is_full)


def _failed(live: TaskInstance, report: Failed, draft: Transaction, slots: Slots) -> None:
    if report.interrupted:
        interrupt(live, report.failure, INTERRUPTION_LIMIT_OWN, draft, slots)
        return
    if report.failure.reason == CODE_MISSING and report.began_at is None:
        await_code(live, report.failure, draft, slots)
        return
    is_import = report.failure.reason == IMPORT_ERROR and report.began_at is None
    if is_import or report.failure.type == FileNotFoundError.__name__:
        # A module of the version, or a file beside it, may have gone from the disk.
        draft.effects.append(RestoreCode((live.run.row.version,)))
    sensor = live.spec.sensor
    if sensor is not None and sensor.on_error == "skip":
        keep_try(live, TaskState.SKIPPED, report.failure, draft)
        live.failure = report.failure
        end(live, TaskState.SKIPPED, draft, slots, at=report.at)
    else:
        fail_or_retry(
            live,
            report.failure,
            draft,
            slots,
            retryable=report.retryable,
            retry_after_us=report.retry_after_us,
        )


def _take_recalled(report: Recalled, draft: Transaction, slots: Slots) -> None:
    for task_no, start_no in report.tries:
        live = draft.memory.live.get(task_no)
        if live is None or live.start_no != start_no or live.worker < 0:
            continue
        slots.call_back(live)
        slots.unblock(live)
        if live.state is TaskState.QUEUED:
            draft.displace(live)
            slots.offer(live)
        else:  # the first in its process, which died before it could begin
            live.started_at = live.ends_at = None
            requeue(live, draft, slots)


def _move_triggers(
    entry: MigrateTriggers | IsolateTriggerClass | PauseTriggers | CodeRestored, draft: Transaction
) -> None:
    match entry:
        case MigrateTriggers():
            migration.rehost(entry, draft)
        case IsolateTriggerClass():
            isolation.move_class(entry, draft)
        case CodeRestored():
            _take_restored(entry, draft)
        case PauseTriggers():
            pausing.stop_waits(entry, draft)


def _take_restored(entry: CodeRestored, draft: Transaction) -> None:
    of_dag = draft.memory.standing.get(entry.trigger_no)
    if of_dag is not None:
        dag_triggers.code_restored(of_dag, draft)
    else:
        lifecycle.code_restored(entry, draft)


def _take_trigger_report(
    report: TriggerFired | TriggerEnded | TriggerCapacityChanged, draft: Transaction, slots: Slots
) -> None:
    of_dag = draft.memory.standing.get(report.trigger_no)
    if of_dag is not None:
        _take_dag_trigger_report(of_dag, report, draft, slots)
        return
    wait = draft.memory.waits.get(report.trigger_no)
    if wait is None:
        return  # late
    match report:
        case TriggerFired():
            lifecycle.fire(wait, report, draft, slots)
        case TriggerEnded():
            lifecycle.trigger_ended(wait, report, draft, slots)
        case TriggerCapacityChanged():
            migration.room_changed(report, wait)


def _take_dag_trigger_report(
    one: DagTrigger,
    report: TriggerFired | TriggerEnded | TriggerCapacityChanged,
    draft: Transaction,
    slots: Slots,
) -> None:
    match report:
        case TriggerFired():
            event_runs.fire(one, report, draft, slots)
        case TriggerEnded():
            dag_triggers.ended(one, report, draft)
        case TriggerCapacityChanged():
            migration.room_changed(report, one)


def _take_due(due: TimerFired, draft: Transaction, slots: Slots) -> None:
    live = draft.memory.live.get(due.task_no)
    if due.dag_id:
        create.slot_due(due.dag_id, due.at, draft, slots)
    elif due.trigger_no >= 0:
        event_runs.due(due.trigger_no, due.at, draft, slots)
    elif due.run_no >= 0:
        run_due(due.run_no, due.at, draft, slots)
    elif live is None:
        return  # its task has ended
    elif live.spec.sensor is not None and live.deadline_at == due.at:
        # Whatever it is doing: a look that hangs has no more time than one that does not.
        lifecycle.stop(live, "timeout", draft, slots)
        time_out_sensor(live, draft, slots)
    elif live.state is TaskState.DEFERRED:
        lifecycle.time_out(live, due.at, draft, slots)
    else:
        wake_due(live, due.at, draft, slots)
