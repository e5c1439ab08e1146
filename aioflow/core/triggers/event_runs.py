"""Runs that are started by events of triggers and assets. An event and its outcome are one commit.

A host reports the events of a DAG's trigger in order. Each report contains the index of the event
in the current assignment, by which repeated reports are detected. An event with a key is processed
only once, even if a later assignment reports it again. An event without a key counts as new if a
later assignment yields it again. Stored events are confirmed to the host. The trigger may be ahead
of the confirmed events by its window. If too many runs of the DAG are queued, events are not
confirmed, so the trigger stops.

The commit in which a task succeeds emits the events of its assets, and each DAG that depends on an
asset records them in the same commit. Once the pending events meet the condition of the DAG, see
``asset_conditions``, all of them together start one run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from aioflow.core.runs import create, run_queue
from aioflow.core.runs.cancel import cancel
from aioflow.core.state.dag_triggers import DagTrigger
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import Fire
from aioflow.core.transaction import Transaction
from aioflow.core.triggers.asset_conditions import is_condition_met, record_asset_event
from aioflow.core.triggers.assignment import is_stopped
from aioflow.core.triggers.dag_triggers import fail, retry, spec_of, wake
from aioflow.core.triggers.migration import failure_of_culprit
from aioflow.errors import RequestError
from aioflow.model.dag import DagSpec
from aioflow.model.ids import TriggerNo
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import (
    ASSET,
    BY_EVENT,
    DagEventRow,
    DagTriggerSpec,
    EventOutcome,
    HeldEvent,
    OutcomeChange,
)
from aioflow.protocol.commands import EventsStored
from aioflow.protocol.inputs import HostLost
from aioflow.protocol.reports import TriggerFired
from aioflow.protocol.requests import CreateRun

__all__ = (
    "LONGEST_HOLD",
    "RUNS_AHEAD",
    "TRIGGERING_EVENTS",
    "asked_keys",
    "conf_of",
    "continue_triggers",
    "due",
    "fire",
    "has_full_queue",
    "lose_host",
    "record_asset_events",
    "restarted",
    "start_run",
)

RUNS_AHEAD = 10_000
"""Number of queued runs of one DAG at which its trigger must pause.

Asset events then stay pending for the next run.
"""

LONGEST_HOLD = 10
"""Multiple of ``debounce`` after which an event starts a run even if the trigger is never quiet."""

_raw = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
KEY_LENGTH = 1_000
"""Maximum length of a key. An event with a longer key starts no run: PostgreSQL cannot index it."""

_pack = msgspec.msgpack.Encoder().encode
_NOTHING = _pack(None)


def asked_keys(inputs: list[TriggerFired], memory: Memory) -> dict[TriggerNo, set[str]]:
    """Return the keys of these events of DAG triggers. They must be looked up in the store."""
    keys: dict[TriggerNo, set[str]] = {}
    for report in inputs:
        if report.key is not None and report.trigger_no in memory.dag_triggers:
            keys.setdefault(report.trigger_no, set()).add(_stored_key(report.key))
    return keys


def _stored_key(key: str) -> str:
    """Return a key in a form that every database can store.

    If this form differs from the key, the event starts no run.
    """
    return key[:KEY_LENGTH].replace("\0", "\N{REPLACEMENT CHARACTER}")


def fire(one: DagTrigger, report: TriggerFired, tx: Transaction) -> None:
    """Process an event, unless it is already known.

    An event is also dropped if an earlier event of its assignment was not processed. Otherwise the
    next assignment, which resumes after the last stored event, would never yield the earlier event
    again.
    """
    spec = spec_of(one, tx.memory)
    if report.assignment_id != one.assignment_id or report.index != one.index or spec is None:
        return
    tx.dag_triggers.note(one)
    one.index = report.index + 1
    known = tx.memory.known_keys
    key = (one.row.trigger_no, None if report.key is None else _stored_key(report.key))
    if report.key is None or key not in known:
        known.add(key)
        _store(one, spec, report, tx)
    _confirm_events(one, tx)


def _store(one: DagTrigger, spec: DagTriggerSpec, report: TriggerFired, tx: Transaction) -> None:
    number, sequence = one.row.trigger_no, one.row.sequence
    key = None if report.key is None else _stored_key(report.key)
    tx.memory.crash_suspects.clear(number)
    one.failures, one.failure = 0, None
    one.row = msgspec.structs.replace(
        one.row, sequence=sequence + 1, event=report.payload, event_key=key
    )
    event_no = tx.numbers.take()
    outcome, run_no, reason = EventOutcome.HELD, None, None
    if key != report.key:
        outcome, reason = (
            EventOutcome.REFUSED,
            f"its key holds a NUL, or has over {KEY_LENGTH} characters",
        )
        _alert_rejected_event(one, sequence, reason, tx)
    elif spec.debounce_us is None:
        outcome, run_no, reason = start_run(one, spec, sequence, report.key, report.payload, tx)
    else:
        _hold(one, spec.debounce_us, event_no, report, tx)
    tx.fires.append(Fire(one.row.class_path, report.key))
    tx.batch.of_dags.events.append(
        DagEventRow(
            event_no=event_no,
            trigger_no=number,
            sequence=sequence,
            key=key,
            at=tx.now,
            outcome=outcome,
            run_no=run_no,
            reason=reason,
        )
    )


def _hold(
    one: DagTrigger, quiet_us: int, event_no: int, report: TriggerFired, tx: Transaction
) -> None:
    """Hold the event until the trigger is quiet.

    If an earlier event is already held, it is replaced and starts no run.
    """
    before = one.row.held
    since = tx.steady if before is None else before.since
    due_at = min(tx.steady + quiet_us, since + LONGEST_HOLD * quiet_us)
    held = HeldEvent(one.row.sequence - 1, event_no, report.key, report.payload, since, due_at)
    one.row = msgspec.structs.replace(one.row, held=held)
    if before is not None:
        tx.batch.of_dags.outcomes.append(OutcomeChange(before.event_no, EventOutcome.REPLACED))
    if one.check_at is None:
        one.check_at = due_at
        wake(one, due_at, tx)


def due(trigger_no: TriggerNo, at: Timestamp, tx: Transaction) -> None:
    """Handle a timer of a DAG's trigger.

    Depending on the timer, assign the trigger to a host again, or start a run for the event that
    was held until the trigger is quiet (``debounce``).
    """
    one = tx.memory.dag_triggers.get(trigger_no)
    if one is None:
        return
    retry(one, at, tx)
    held, spec = one.row.held, spec_of(one, tx.memory)
    if held is None or one.check_at != at:
        return
    tx.dag_triggers.note(one)
    if spec is not None and held.due_at > at:  # later events arrived
        one.check_at = held.due_at
        wake(one, held.due_at, tx)
        return
    one.check_at = None
    one.row = msgspec.structs.replace(one.row, held=None)
    if spec is None:
        change = OutcomeChange(
            held.event_no, EventOutcome.REFUSED, None, "its DAG takes no events any more"
        )
    else:
        of = (held.sequence, held.key, held.payload)
        change = OutcomeChange(held.event_no, *start_run(one, spec, *of, tx))
    tx.batch.of_dags.outcomes.append(change)


def restarted(tx: Transaction) -> None:
    """Set the timers of held events again after a restart."""
    for one in tx.memory.dag_triggers:
        if one.row.held is not None:
            one.check_at = one.row.held.due_at
            wake(one, one.check_at, tx)


def start_run(
    one: DagTrigger,
    spec: DagTriggerSpec,
    sequence: int,
    key: str | None,
    payload: bytes,
    tx: Transaction,
) -> tuple[EventOutcome, int | None, str | None]:
    """Create the run of an event. Return the outcome of the event."""
    memory, dag_id = tx.memory, one.row.dag_id
    if spec.if_running == "skip" and run_queue.is_running(dag_id, memory):
        return EventOutcome.SKIPPED, None, "a run of the DAG was active"
    newest = memory.newest(dag_id)
    try:
        conf = None if newest is None else conf_of(payload, newest)
        date = _fire_time(key) if spec.is_timetable else None
        request = CreateRun(dag_id=dag_id, conf=conf, logical_date=date)
        if spec.if_running == "cancel_old":
            create.check_conf(request, tx)  # if the run cannot be created, no run is cancelled
            _cancel_old(one, tx)
        run = create.make_run(request, tx, cause=BY_EVENT)
    except RequestError as exc:
        _alert_rejected_event(one, sequence, str(exc), tx)
        return EventOutcome.REFUSED, None, str(exc)[:1_000]
    one.is_refusing = False
    one.row = msgspec.structs.replace(one.row, run_no=run.run_no)
    return EventOutcome.RUN, run.run_no, None


def has_full_queue(dag_id: str, memory: Memory) -> bool:
    """Return whether so many runs of a DAG are queued that events must not start more."""
    return len(memory.queued_runs.get(dag_id, ())) >= RUNS_AHEAD


def conf_of(payload: bytes, spec: DagSpec) -> bytes | None:
    """Return the conf of the run that an event starts.

    If the payload is a mapping, the conf consists of its values for the DAG's parameters. Any other
    payload becomes the value of the DAG's parameter, if there is exactly one.
    """
    try:
        given: dict[str, Any] = _raw.decode(payload)
    except msgspec.DecodeError:
        if payload == _NOTHING or len(spec.parameters) != 1:
            return None
        given = {spec.parameters[0]: msgspec.Raw(payload)}
    arguments = {name: given[name] for name in spec.parameters if name in given}
    return _pack(arguments) if arguments else None


def _fire_time(key: str | None) -> Timestamp:
    """Return the fire time of a timetable's event.

    Raises:
        RequestError: If its key is not a timestamp.
    """
    if key is None or not key.lstrip("-").isdecimal() or len(key) > 18:
        raise RequestError(f"a timetable's event has the key {key!r}, which is not a timestamp")
    return int(key)


def _cancel_old(one: DagTrigger, tx: Transaction) -> None:
    """Cancel runs that earlier events started: the last run, and all queued ones."""
    memory, dag_id = tx.memory, one.row.dag_id
    queued = [*memory.queued_runs.get(dag_id, ()), *run_queue.suspended(dag_id, memory)]
    old = [run for run in queued if run.row.cause == BY_EVENT]
    last = None if one.row.run_no is None else memory.runs.get(one.row.run_no)
    if last is not None and last not in old:
        old.append(last)
    for run in old:
        cancel(run, tx)


def _alert_rejected_event(one: DagTrigger, sequence: int, reason: str, tx: Transaction) -> None:
    """Alert that an event cannot start a run.

    If several consecutive events cannot, only the first one causes an alert.
    """
    if one.is_refusing:
        return
    one.is_refusing = True
    message = f"event {sequence} of the trigger of DAG {one.row.dag_id} starts no run: {reason}"
    tx.outbox.alert("trigger_event", message[:1_000], run_id="", dag_id=one.row.dag_id)


def _confirm_events(one: DagTrigger, tx: Transaction) -> None:
    """Confirm events so that the trigger continues, unless too many runs are queued."""
    if (
        one.confirmed < one.index
        and one.assignment_id
        and not has_full_queue(one.row.dag_id, tx.memory)
    ):
        one.confirmed = one.index
        tx.confirm_events(EventsStored(one.row.trigger_no, one.assignment_id, one.confirmed))


def continue_triggers(tx: Transaction) -> None:
    """Continue triggers that waited for runs of their DAGs to end."""
    for dag_id in sorted(tx.eased_dags):
        one = tx.memory.dag_triggers.of(dag_id)
        if one is not None and one.confirmed < one.index:
            tx.dag_triggers.note(one)
            _confirm_events(one, tx)
    tx.eased_dags.clear()


def lose_host(lost: HostLost, tx: Transaction) -> None:
    """Unassign the triggers of a lost host. The culprit is assigned again only after a delay."""
    for one in tx.memory.dag_triggers:
        if one.role != lost.role or not one.assignment_id:
            continue
        tx.dag_triggers.note(one)
        one.unhost()
        if one.row.trigger_no == lost.culprit:
            failure = failure_of_culprit(one.row.class_path, lost, tx.memory)
            if failure is not None:
                fail(one, failure, tx)


TOLD_LIMIT = 100
"""Maximum number of events per asset that are passed to a run. The latest are passed."""


TRIGGERING_EVENTS = "triggering_events"
"""The parameter of a DAG that receives the events that started a run."""


def record_asset_events(tx: Transaction) -> None:
    """Record this turn's asset events for the DAGs that wait for them.

    Each DAG starts at most one run.
    """
    dag_triggers = tx.memory.dag_triggers
    affected: dict[TriggerNo, DagTrigger] = {}
    for event in tx.asset_events:
        for taker in dag_triggers.consumers(event.name.removeprefix(ASSET)):
            if spec_of(taker, tx.memory) is not None:
                record_asset_event(taker, event, tx)
                affected[taker.row.trigger_no] = taker
    tx.asset_events.clear()
    for taker in affected.values():
        _start_if_met(taker, tx)
    tx.checked_dags += sorted(tx.eased_dags)  # fewer runs wait: pending events may start a run
    while tx.checked_dags:  # pending events may meet a changed condition, or start a run again
        one = dag_triggers.of(tx.checked_dags.pop())
        if one is not None:
            _start_if_met(one, tx)


def _start_if_met(one: DagTrigger, tx: Transaction) -> None:
    """Start a run with all pending events, if they meet the condition."""
    memory, dag_id = tx.memory, one.row.dag_id
    spec = spec_of(one, memory)
    condition = one.condition
    if condition is None or spec is None or is_stopped(dag_id, memory):
        return
    if has_full_queue(dag_id, memory):
        return
    there = {name for name in condition.names() if one.pending.get(name)}
    if not is_condition_met(condition, there):
        return
    tx.dag_triggers.note(one)
    pending, one.pending = one.pending, {}
    told = {
        name: [msgspec.Raw(event.data) for event in events[-TOLD_LIMIT:]]
        for name, events in pending.items()
        if name in there
    }
    last = max(event.sequence for events in pending.values() for event in events)
    payload = _pack({TRIGGERING_EVENTS: told})
    outcome = start_run(one, spec, last, None, payload, tx)
    for events in pending.values():
        tx.batch.of_dags.outcomes += [OutcomeChange(event.event_no, *outcome) for event in events]
