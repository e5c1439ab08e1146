"""Decisions of people that tasks wait for: the question, the votes, and the outcome."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.timestamps import Timestamp

__all__ = (
    "PERSON",
    "STARTER",
    "DecisionEnd",
    "DecisionOutcome",
    "DecisionQuestion",
    "DecisionRow",
    "DecisionVotes",
    "Vote",
    "question_of",
    "votes_of",
)

PERSON = "aioflow.author.person:PersonTrigger"
"""The class path of a trigger that fires when people have decided. No host runs it."""

STARTER = "starter"
"""The value of ``not_by`` that excludes the person who started the run."""

DecisionOutcome: TypeAlias = Literal["answered", "default", "timeout", "withdrawn"]
"""How a decision ended: people answered; the default was used after the timeout; the timeout
passed without a default; or the task does not wait any more."""


class DecisionQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The question of a task: the fields of its ``PersonTrigger``.

    Attributes:
        question: One line.
        details: Further text.
        schema: JSON Schema of the form; empty for an approval, whose answer is yes or no.
        assignees: Names of users, groups or roles; empty for operators.
        approvals: How many people must approve.
        not_by: ``STARTER`` to exclude the person who started the run.
        default: The answer after the timeout; ``UNSET`` for none.
    """

    question: str
    details: str = ""
    schema: str = ""
    assignees: tuple[str, ...] = ()
    approvals: int = 1
    not_by: str = ""
    default: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Vote(msgspec.Struct, frozen=True, array_like=True):
    """The vote of one person.

    Attributes:
        person: The user who voted; that of a token is its creator.
        actor: The caller, as the audit names it.
        is_yes: Whether the person approves, or has filled in the form.
    """

    person: str
    actor: str
    at: Timestamp
    is_yes: bool


class DecisionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that a task waits for, or has waited for.

    Attributes:
        decision_no: The number of the trigger that the task waits for.
        question: msgpack of the ``DecisionQuestion``.
        deadline_at: When it times out, in steady time.
        vote_count: The number of ``votes``; each change expects the previous one.
        votes: msgpack of the votes so far.
        outcome: How it ended; ``None`` while it is open.
        answer: msgpack of the answer, in plain JSON types.
    """

    decision_no: TriggerNo
    run_no: RunNo
    task_no: TaskNo
    question: bytes
    asked_at: Timestamp
    deadline_at: Timestamp | None = None
    vote_count: int = 0
    votes: bytes = b"\x90"
    outcome: DecisionOutcome | None = None
    answer: bytes | None = None
    ended_at: Timestamp | None = None


class DecisionVotes(msgspec.Struct, frozen=True, array_like=True):
    """The votes of an open decision after one more person has voted.

    Attributes:
        was: The number of votes before.
    """

    decision_no: TriggerNo
    was: int
    votes: bytes
    vote_count: int


class DecisionEnd(msgspec.Struct, frozen=True, array_like=True):
    """The end of a decision."""

    decision_no: TriggerNo
    outcome: DecisionOutcome
    answer: bytes | None
    ended_at: Timestamp


_questions = msgspec.msgpack.Decoder(DecisionQuestion)
_votes = msgspec.msgpack.Decoder(tuple[Vote, ...])


def question_of(fields: bytes) -> DecisionQuestion:
    """Return the question from the fields of its trigger.

    Raises:
        msgspec.MsgspecError: If they are not those of a ``PersonTrigger``.
    """
    return _questions.decode(fields)


def votes_of(row: DecisionRow) -> tuple[Vote, ...]:
    """Return the votes of a decision, in order."""
    return _votes.decode(row.votes)
