"""Invariants of waiting tasks: triggers, durable calls and streams, checked after every commit.

Their numbers are those of ``tests.sim.invariants``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from aioflow.model.decisions import PERSON
from aioflow.model.rows import FROM_START, RecordRow, TriggerRow
from aioflow.model.states import RecordState, TaskState, TriggerState
from aioflow.protocol.effects import AssignTrigger
from tests.sim.broken import Broken
from tests.sim.tables import changed_tasks
from tests.sim.told import names_itself

__all__ = ("hold",)


def hold(node: Any, turn: Any) -> None:
    """Check all invariants of waiting tasks that a commit may have broken."""
    waiting = _waiting(node)
    for task_no in _touched(turn.batch):
        records_are_the_calls_made(node, task_no)
        whoever_waits_has_for_what(node, task_no, waiting[task_no])
    events_resume_their_tasks(node, turn)
    consumed_events_are_answers(node)
    stored_events_are_known_once(node, turn)
    starts_touch_no_place(node, turn)


def _touched(batch: Any) -> list[int]:
    numbers = {row.task_no for row in changed_tasks(batch)}
    numbers |= {row.task_no for row in (*batch.new_records, *batch.record_changes)}
    return sorted(numbers | {task_no for task_no, _ in batch.dropped_records})


# ── I5: triggers ────────────────────────────────────────────────────────────────────────


def _waiting(node: Any) -> defaultdict[int, list[TriggerRow]]:
    """I5: check that a trigger row belongs to a waiting task, or to the call that opened it."""
    tables = node.tables
    rows: defaultdict[int, list[TriggerRow]] = defaultdict(list)
    for row in tables.triggers.values():
        if row.state is TriggerState.ENDING:
            continue
        task = tables.tasks.get(row.task_no)
        rows[row.task_no].append(row)
        if task is None or not task.state.is_live:
            raise Broken("I5 triggers", f"{row} is there for nobody")
        if row.window and row.ordinal < 0:
            if node.tables.spec_of_run(row.run_no).tasks[task.task_index].events is None:
                raise Broken("I5 triggers", f"{row} goes on for {task}, which takes one event")
        elif row.window:
            opened = tables.records.get((row.task_no, row.ordinal))
            if opened is None or opened.kind != "stream":
                raise Broken("I5 triggers", f"{row} is a stream that {opened} did not open")
        elif row.state is TriggerState.WAITING and task.state is not TaskState.DEFERRED:
            raise Broken("I5 triggers", f"{row} waits for {task}")
    return rows


def whoever_waits_has_for_what(node: Any, task_no: int, rows: list[TriggerRow]) -> None:
    """I5: check that a deferred task has a trigger or a timer that will resume it."""
    task = node.tables.tasks[task_no]
    once = [row for row in rows if not row.window]
    waiting = [row for row in once if row.state is TriggerState.WAITING]
    fired = [row for row in once if row.state is TriggerState.FIRED]
    last = node.tables.last_record(task_no)
    is_open = last is not None and last.state is RecordState.OPEN
    handled = [row for row in rows if row.window and row.ordinal < 0]
    if len(handled) > 1:
        raise Broken("I5 triggers", f"{task} takes the events of {handled}")
    if task.state is TaskState.DEFERRED and handled and not is_open:
        _waits_for_events(node, handled[0], once)
        return
    if task.state is not TaskState.DEFERRED:
        if any(row.ordinal >= 0 for row in fired) or len(fired) > 1:
            raise Broken("I5 triggers", f"{task} keeps {fired}")
        return
    if is_open and last.kind == "next":
        _waits_for_its_stream(node, last, [row for row in rows if row.window])
    elif is_open:
        others = [row for row in (*waiting, *fired) if row.ordinal not in {last.ordinal, -1, -2}]
        if not waiting or others or (fired and last.kind != "all_of" and fired[0].ordinal >= 0):
            raise Broken("I5 triggers", f"{last} of {task} waits for {once}")
    elif len(waiting) != 1 or waiting[0].ordinal >= 0 or fired:
        raise Broken("I5 triggers", f"{task} waits for {once} in {last}")


def _waits_for_events(node: Any, row: TriggerRow, others: list[TriggerRow]) -> None:
    """Check that an operator waits only for a slot, or while its trigger can fire again."""
    has_events = node.tables.pending_events(row.trigger_no) > 0
    if others or (row.state is not TriggerState.WAITING and not has_events):
        raise Broken("I5 triggers", f"task {row.task_no} waits for {row} and {others}")


def _waits_for_its_stream(node: Any, last: RecordRow, streams: list[TriggerRow]) -> None:
    opened = int(last.name.rpartition("#")[2])
    for row in streams:
        if row.ordinal == opened:
            pending = node.tables.pending_events(row.trigger_no)
            if row.state is not TriggerState.WAITING or pending:
                raise Broken("I5 triggers", f"{last} waits, and there are {pending} of {row}")
            return
    raise Broken("I5 triggers", f"{last} waits for a stream that is gone")


def starts_touch_no_place(node: Any, turn: Any) -> None:
    """I4: check that a task that starts deferred has no slot, and resumes in its method."""
    for start in turn.starts:
        task = node.tables.spec_of_run(start.start.run_no).tasks[start.start.task_index]
        trigger = task.start_trigger
        known = {"resume"} if trigger is None else {trigger.next_method, "resume"}
        if task.events is not None:
            known |= {task.events.method} | ({""} if start.start.is_closing else set())
        if trigger is not None and start.start.method not in known:
            raise Broken("I4 start", f"{start.start} begins though it waits from its start")
    for row in turn.batch.new_triggers:
        if row.ordinal == FROM_START:
            instance = node.memory.active_tasks.get(row.task_no)
            waits = instance is not None and instance.state is TaskState.DEFERRED
            if waits and (instance.worker >= 0 or instance.is_hosted):
                raise Broken("I4 start", f"{row} took a place")
    for effect in turn.effects:
        if isinstance(effect, AssignTrigger):
            _is_stored_as_hosted(node, effect)


def _is_stored_as_hosted(node: Any, effect: AssignTrigger) -> None:
    row = node.tables.triggers.get(effect.host.trigger_no)
    if row is not None and (row.ordinal == FROM_START) != effect.host.is_made_there:
        raise Broken("I4 start", f"{effect.host} is hosted for {row}")


# ── E5: records ─────────────────────────────────────────────────────────────────────────


def records_are_the_calls_made(node: Any, task_no: int) -> None:
    """E5: check that a task's records have no gaps, and that only its last one may be open."""
    tables = node.tables
    records = tables.records_of(task_no)
    task = tables.tasks[task_no]
    if len(records) != tables.record_counts[task_no]:
        raise Broken("E5 records", f"task {task_no} has a gap after {records}")
    if records and not task.state.is_live:
        raise Broken("E5 records", f"{task} has ended, and keeps {records}")
    if any(record.state is RecordState.OPEN for record in records[:-1]):
        raise Broken("E5 records", f"more than the last is open: {records}")
    is_open = bool(records) and records[-1].state is RecordState.OPEN
    if is_open and task.state is not TaskState.DEFERRED:
        raise Broken("E5 records", f"{records[-1]} is open, and its task is {task.state.label}")
    if task.state is TaskState.RETRYING:
        odd = [record for record in records if record.state is not RecordState.ANSWERED]
        if odd:
            raise Broken("E5 records", f"the next try of task {task_no} would begin with {odd}")


# ── I6: events ──────────────────────────────────────────────────────────────────────────


def events_resume_their_tasks(node: Any, turn: Any) -> None:
    """I6: check that a trigger fires once, in the transaction that resumes its task."""
    for change in turn.batch.trigger_changes:
        if change.state is not TriggerState.FIRED or change.was is TriggerState.FIRED:
            continue
        row = node.tables.triggers[change.trigger_no]
        if row.window:
            continue
        if node.tables.fired[change.trigger_no] != 1:
            raise Broken("I6 events", f"trigger {change.trigger_no} fired twice")
        is_held = node.tables.runs[row.run_no].quarantine is not None  # for its first event
        is_asked = row.class_path == PERSON  # see ``asking``
        if not is_asked and not names_itself(change.event) and not is_held:
            raise Broken("I6 events", f"trigger {row.trigger_no} fired with {change.event!r}")
        if row.ordinal < 0 and (row.task_no, TaskState.QUEUED) not in turn.batch.steps:
            raise Broken("I6 events", f"trigger {change.trigger_no} resumed nothing")


def consumed_events_are_answers(node: Any) -> None:
    """I6: check that consuming an event stores it in the record of its call in the same commit."""
    for task_no, payload in node.tables.just_consumed:
        task = node.tables.tasks[task_no]
        if not task.state.is_live or task.state is TaskState.RETRYING:
            continue
        if not any(record.answer == payload for record in node.tables.records_of(task_no)):
            raise Broken("I6 streams", f"task {task_no} consumed {payload!r} and has no record")


def stored_events_are_known_once(node: Any, turn: Any) -> None:
    """I6: check that stream events are in order, unique by key, and belong to their stream."""
    for event in turn.batch.new_events:
        if (event.trigger_no, event.sequence) not in node.tables.events:
            continue  # its stream was stopped in the same turn
        if node.tables.is_held(event.run_no):
            continue  # for one of its events
        if not names_itself(event.payload):
            raise Broken("I6 streams", f"{event} is none of its stream")
        if event.key is not None and event.key != str(event.sequence):
            raise Broken("I6 streams", f"{event} does not come in its order")
