"""Decisions by people: drawn into the calls of coroutines, voted on at random, and checked.

A question replaces a wait, so that it meets the same crashes, clears and timeouts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec

from aioflow.model.access import Actor, Role
from aioflow.model.decisions import PERSON, DecisionRow, question_of, votes_of
from aioflow.model.states import Failure, TriggerState
from aioflow.protocol.requests import AnswerDecision
from tests.sim.broken import Broken
from tests.sim.script import Call
from tests.sim.workload import SECOND

__all__ = ("FROM", "Voters", "answer_is_true", "asks", "hold", "question", "with_questions")

FROM = 20_000
"""The first seed that may draw questions: lower seeds were chosen by tests and planted bugs."""

_PEOPLE = tuple(Actor(name=f"person{number}", role=Role.OPERATOR) for number in range(4))
_FORM = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}})
_DELAYS_US = (0, 0, 1_000, SECOND, 5 * SECOND, 60 * SECOND)


def asks(seed: int) -> bool:
    """Return whether tasks of a seed ask people."""
    return seed >= FROM and random.Random(f"asks {seed}").random() < 0.4


def with_questions(calls: list[Call], seed: int) -> list[Call]:
    """Replace most waits for a single trigger by questions. Every execution draws the same ones."""
    return [_asked(call, ordinal) for ordinal, call in enumerate(calls)] if asks(seed) else calls


def _asked(call: Call, ordinal: int) -> Call:
    rng = random.Random(f"asked {ordinal} {call.name}")
    if call.kind not in {"wait", "all_of", "sleep"} or call.topic or rng.random() < 0.2:
        return call
    timeout = rng.choice((None, None, 0, SECOND, 30 * SECOND))
    return msgspec.structs.replace(
        call,
        kind="ask_person",
        width=1,
        timeout_us=timeout,
        approvals=rng.choice((0, 1, 1, 2, 3)),
        has_default=timeout is not None and rng.random() < 0.5,
    )


def question(call: Call, task_no: int, ordinal: int) -> bytes:
    """Return the encoded fields of a question's trigger. The text of the question names its call.

    A call without approvals has a form.
    """
    fields: dict[str, Any] = {"question": f"{task_no}.{ordinal}"}
    fields |= {"approvals": call.approvals} if call.approvals else {"schema": _FORM}
    if call.has_default:
        fields["default"] = True if call.approvals else {"n": -1}
    return msgspec.msgpack.encode(fields)


# ── people ──────────────────────────────────────────────────────────────────────────────


class Voters:
    """People who vote on the decisions of a node at random times, some of them more than once."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._rng = random.Random(f"votes {node.seed}")

    def arrive(self) -> None:
        """Vote on all open decisions, for each new incarnation and when faults have ended."""
        for row in self._node.tables.decisions.values():
            if row.outcome is None:
                self.notice(row)

    def notice(self, row: DecisionRow) -> None:
        """Let random people vote on a decision. Once faults have ended, everyone votes."""
        is_patient = self._node.faults.healed
        for person in _PEOPLE:
            for _ in range(self._rng.choice((0, 0, 1, 1, 2))):
                self._later(row, person)
            if is_patient:
                self._later(row, person, is_sure=True)

    def _later(self, row: DecisionRow, person: Actor, *, is_sure: bool = False) -> None:
        is_yes = is_sure or self._rng.random() < 0.8
        answer: object = {"n": self._rng.randint(0, 9)} if _has_form(row) else is_yes
        if not is_sure and self._rng.random() < 0.05:
            answer = "neither"  # a form takes it, an approval does not
        request = AnswerDecision(decision_no=row.decision_no, answer=msgspec.msgpack.encode(answer))
        delay = self._rng.choice(_DELAYS_US)
        self._node.after(delay, lambda: self._node.ask(request, person))


def _has_form(row: DecisionRow) -> bool:
    return bool(question_of(row.question).schema)


# ── checks ──────────────────────────────────────────────────────────────────────────────


def hold(node: Any, turn: Any) -> None:
    """I27: check that a decision ends once, matches its votes, and ends in the resuming commit."""
    batch, tables = turn.batch, node.tables
    fired = {
        change.trigger_no: change.event
        for change in batch.trigger_changes
        if change.state is TriggerState.FIRED and change.was is not TriggerState.FIRED
    }
    for end in batch.decision_ends:
        row = tables.decisions.get(end.decision_no)
        if row is not None:
            _ends_with_its_wait(node, row, fired)
            node.points[f"decision {row.outcome}"] += 1
    for change in batch.decision_votes:
        row = tables.decisions.get(change.decision_no)
        if row is not None:
            _is_decided_by_its_votes(row)
    if batch.new_decisions or batch.decision_ends or batch.trigger_changes or batch.steps:
        _open_ones_wait(tables)


def _ends_with_its_wait(node: Any, row: DecisionRow, fired: dict[int, bytes | None]) -> None:
    number = row.decision_no
    is_resumed = row.outcome in {"answered", "default"}
    if is_resumed and number in node.tables.triggers:
        if fired.get(number, b"") != row.answer or node.tables.fired[number] != 1:
            raise Broken("I27 decisions", f"{row} has ended, its trigger fired {fired}")
    elif not is_resumed and number in fired:
        raise Broken("I27 decisions", f"{row} has no answer, and its trigger fired")


def _is_decided_by_its_votes(row: DecisionRow) -> None:
    votes, asked = votes_of(row), question_of(row.question)
    people = {vote.person for vote in votes}
    is_over = not votes[-1].is_yes or len(votes) >= asked.approvals
    if len(people) != len(votes) or len(votes) != row.vote_count:
        raise Broken("I27 decisions", f"a person counts twice: {votes}")
    if not all(vote.is_yes for vote in votes[:-1]) or len(votes) > asked.approvals:
        raise Broken("I27 decisions", f"{row} was decided before its last vote: {votes}")
    if is_over and row.outcome is None:
        raise Broken("I27 decisions", f"{row} is open after {votes}")
    if not is_over and row.outcome == "answered":
        raise Broken("I27 decisions", f"{row} is answered after {votes}")


def _open_ones_wait(tables: Any) -> None:
    """Check that a decision is open exactly as long as its trigger is waiting."""
    waiting = {
        row.trigger_no
        for row in tables.triggers.values()
        if row.class_path == PERSON and row.state is TriggerState.WAITING
    }
    is_open = {row.decision_no for row in tables.decisions.values() if row.outcome is None}
    if waiting != is_open:
        raise Broken("I27 decisions", f"triggers {waiting} wait, decisions {is_open} are open")


def answer_is_true(
    tables: Any, task_no: int, ordinal: int, body: bytes | None, failure: Failure | None
) -> None:
    """I27: check that a task receives the outcome of its own last question.

    Raises:
        Broken: If it receives another outcome.
    """
    name = f"{task_no}.{ordinal}"
    found: Sequence[DecisionRow] = [
        row for row in tables.decisions.values() if question_of(row.question).question == name
    ]
    if not found:
        raise Broken("I27 decisions", f"call {ordinal} of task {task_no} has no decision")
    row = max(found, key=lambda row: row.decision_no)
    match row.outcome:
        case "answered" | "default":
            is_true = failure is None and row.answer == body
        case "timeout":
            is_true = failure is not None and failure.reason == "timeout"
        case _:
            is_true = False
    if not is_true:
        raise Broken("I27 decisions", f"task {task_no} got {body!r} and {failure} of {row}")
