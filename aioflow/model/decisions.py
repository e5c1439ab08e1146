"""Decisions of people that tasks wait for: the question, the votes, and the outcome."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

import msgspec

from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.timestamps import Timestamp

__all__ = (
    "APPROVALS",
    "ASSIGNEES",
    "ASSIGNEE_LENGTH",
    "COMMENT_LENGTH",
    "DETAILS_LENGTH",
    "PERSON",
    "QUESTION_LENGTH",
    "SCHEMA_LENGTH",
    "STARTER",
    "DecisionEnd",
    "DecisionOutcome",
    "DecisionQuestion",
    "DecisionRow",
    "DecisionVotes",
    "Vote",
    "question_misfit",
    "question_of",
    "schema_misfit",
    "votes_of",
)

PERSON = "aioflow.author.person:PersonTrigger"
"""The class path of a trigger that fires when people have decided. No host runs it."""

STARTER = "starter"
"""The value of ``not_by`` that excludes the person who started the run."""

QUESTION_LENGTH = 500
DETAILS_LENGTH = 10_000
SCHEMA_LENGTH = 64 * 1024
ASSIGNEES = 50
"""Maximum number of assignees."""

ASSIGNEE_LENGTH = 100
APPROVALS = 20
COMMENT_LENGTH = 500
"""Maximum length of the comment of a vote."""

DecisionOutcome: TypeAlias = Literal["answered", "default", "timeout", "withdrawn"]
"""How a decision ended.

People answered; the default was used after the timeout; the timeout passed without a default; or
the task does not wait any more.
"""


class DecisionQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The question of a task: the fields of its ``PersonTrigger``.

    Attributes:
        question: One line.
        details: Further text.
        schema: JSON Schema of the form; empty for an approval, whose answer is yes or no.
        assignees: Names of users, groups or roles; empty for all operators.
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
        person: The user who voted. A vote with a token counts for the creator of the token.
        actor: The caller's name, as in the audit log.
        is_yes: Whether the person approves, or has filled in the form.
        comment: Why, in the words of the person: one line. Unlike the answer it is not encrypted.
    """

    person: str
    actor: str
    at: Timestamp
    is_yes: bool
    comment: str = ""


class DecisionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that a task waits for, or has waited for.

    Attributes:
        decision_no: The number of the trigger that the task waits for.
        question: msgpack of the ``DecisionQuestion``, stored encrypted; empty if no key of this
            home decrypts it or the ``answer``.
        deadline_at: When it times out, in steady time.
        vote_count: The number of ``votes``. Each change expects the previous number.
        votes: msgpack of the votes so far.
        outcome: How it ended; ``None`` while it is open.
        answer: msgpack of the answer, in plain JSON types, stored encrypted.
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
    """Return the question in the fields of its trigger.

    Raises:
        msgspec.MsgspecError: If they are not the fields of a ``PersonTrigger``.
    """
    return _questions.decode(fields)


def schema_misfit(schema: str) -> str | None:
    """Return why a text is not a valid JSON Schema of a form; ``None`` if it may be one."""
    if len(schema) > SCHEMA_LENGTH:
        return f"its schema has more than {SCHEMA_LENGTH} characters"
    try:
        found: Any = json.loads(schema)
    except (ValueError, RecursionError) as exc:
        return f"its schema is not JSON: {exc}"
    return None if isinstance(found, dict) else "its schema is not a JSON object"


def question_misfit(question: DecisionQuestion) -> str | None:
    """Return why a question is invalid; ``None`` if it is valid.

    ``PersonTrigger`` makes the same checks, but the fields may come from elsewhere.
    """
    if not question.question.strip() or len(question.question) > QUESTION_LENGTH:
        return f"its question is one line of 1 to {QUESTION_LENGTH} characters"
    if len(question.details) > DETAILS_LENGTH:
        return f"its details have more than {DETAILS_LENGTH} characters"
    if len(question.assignees) > ASSIGNEES:
        return f"it has more than {ASSIGNEES} assignees"
    if not all(0 < len(name) <= ASSIGNEE_LENGTH for name in question.assignees):
        return f"the name of an assignee has 1 to {ASSIGNEE_LENGTH} characters"
    if not 1 <= question.approvals <= (1 if question.schema else APPROVALS):
        return f"it cannot take {question.approvals} approvals"
    if question.not_by not in {"", STARTER}:
        return f"its not_by is {question.not_by[:20]!r}"
    if question.schema and (wrong := schema_misfit(question.schema)):
        return wrong
    return None if question.default is msgspec.UNSET else _default_misfit(question.default)


def _default_misfit(default: msgspec.Raw) -> str | None:
    try:
        msgspec.json.encode(msgspec.msgpack.decode(default))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as exc:
        return f"its default is not a JSON value: {exc}"
    return None


def votes_of(row: DecisionRow) -> tuple[Vote, ...]:
    """Return the votes of a decision, in order."""
    return _votes.decode(row.votes)
