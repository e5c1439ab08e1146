"""Decisions that tasks request from people. They start and end with the wait of the task.

A decision is a trigger that no host runs. Its row is stored in the commit that defers the task. The
decision ends in the commit that resumes the task, or in which the task stops waiting.
"""

from __future__ import annotations

import msgspec

from aioflow.core.state.task_instance import TaskInstance, TriggerInstance
from aioflow.core.transaction import Transaction
from aioflow.core.triggers.event_stream import MANUAL_INDEX
from aioflow.model.decisions import PERSON, DecisionRow, question_misfit, question_of
from aioflow.model.states import Failure, TriggerState
from aioflow.protocol.outbox import Callback
from aioflow.protocol.reports import TriggerFired

__all__ = ("answer_event", "ask", "default_event", "misfit", "time_out")

_ENDING_CALLS = frozenset({"wait", "ask_person"})
"""Kinds of calls that a default may answer, because they wait for nothing but the decision."""


def misfit(class_path: str, fields: bytes, *, is_stream: bool = False) -> Failure | None:
    """Return why a trigger is not a valid decision; ``None`` if it is valid or not a decision."""
    if class_path != PERSON:
        return None
    if is_stream:
        message = "a decision is one event; an operator that takes many cannot wait for it"
        return Failure(type="TriggerFailed", message=message, reason="trigger")
    try:
        wrong = question_misfit(question_of(fields))
    except msgspec.MsgspecError as exc:
        wrong = str(exc)
    if wrong is None:
        return None
    message = f"the fields of a PersonTrigger are invalid: {wrong}"
    return Failure(type="TriggerFailed", message=message, reason="trigger")


def ask(wait: TriggerInstance, tx: Transaction) -> None:
    """Store the decision if the trigger is one, and notify people."""
    row, task = wait.row, wait.task
    if row.class_path != PERSON or row.kwargs is None or task is None:
        return
    tx.new_decision(
        DecisionRow(
            decision_no=row.trigger_no,
            run_no=row.run_no,
            task_no=row.task_no,
            question=row.kwargs,
            asked_at=tx.now,
            deadline_at=row.deadline_at,
        )
    )
    callbacks = task.spec.callbacks
    if callbacks is not None and "ask" in callbacks.events:
        message = Callback(
            event="ask",
            run_no=row.run_no,
            task_index=task.task_index,
            state=task.state.label,
            at=tx.now,
            task_no=task.task_no,
            map_index=task.map_index,
            try_number=task.try_number,
            start_no=task.start_no,
            decision_no=row.trigger_no,
        )
        tx.outbox.call_back(task.run.row.dag_id, message)


def time_out(task: TaskInstance, tx: Transaction) -> TriggerFired | None:
    """End the decisions of a task whose wait has timed out.

    Return the event with the default answer, if there is one. The task then resumes with this
    event.
    """
    for wait in task.waits:
        if wait.row.class_path != PERSON or wait.state is not TriggerState.WAITING:
            continue
        event = default_event(wait, task, tx)
        if event is not None:
            tx.end_decision(wait.row.trigger_no, "default", event.payload)
            return event
        tx.end_decision(wait.row.trigger_no, "timeout", None)
    return None


def default_event(
    wait: TriggerInstance, task: TaskInstance, tx: Transaction
) -> TriggerFired | None:
    """Return the event with the default answer of a decision; ``None`` if there is no default.

    There is none either if the question is damaged.
    """
    if wait.row.kwargs is None:
        return None
    try:
        question = question_of(wait.row.kwargs)
    except msgspec.MsgspecError:
        return None
    is_alone = wait.row.ordinal < 0 or task.open_kind in _ENDING_CALLS
    if question.default is msgspec.UNSET or not is_alone:
        return None
    return answer_event(wait, bytes(question.default), tx)


def answer_event(wait: TriggerInstance, answer: bytes, tx: Transaction) -> TriggerFired:
    """Return the event with an answer. If the task has no method to resume in, it is its result."""
    ends = wait.row.ordinal < 0 and not wait.row.next_method
    return TriggerFired(
        trigger_no=wait.row.trigger_no,
        assignment_id=wait.assignment_id,
        index=MANUAL_INDEX,
        at=tx.now,
        payload=answer,
        key=None,
        ends="success" if ends else "",
    )
