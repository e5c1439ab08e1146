"""Votes of people on decisions: who may vote, and when the votes amount to an answer.

The row of a decision is read before the turn. Each person has one vote, no matter whether they use
the page, one of their tokens, or a link that was signed for them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from aioflow.core.state.accounts import Accounts, person_of
from aioflow.core.state.task_instance import TriggerInstance
from aioflow.core.transaction import Transaction
from aioflow.core.triggers.decisions import answer_event
from aioflow.core.triggers.lifecycle import fire
from aioflow.errors import AlreadyVoted, BadAnswer, DecisionEnded, NotAssigned, UnknownDecision
from aioflow.model.access import HOME, LINK, Actor, Role, caller_name
from aioflow.model.decisions import (
    PERSON,
    STARTER,
    DecisionQuestion,
    DecisionRow,
    DecisionVotes,
    Vote,
    question_of,
    votes_of,
)
from aioflow.model.ids import TriggerNo
from aioflow.model.states import TriggerState
from aioflow.protocol.inputs import Input, RequestReceived
from aioflow.protocol.requests import AnswerDecision, Answered

__all__ = ("answer_decision", "decision_nos", "link_account", "refusal", "takes_links")

_TOKEN = caller_name("", "token")
"""Prefix of the name of a caller with a token."""


_OLD_LINK = "this link does not answer it any more; log in"


def link_account(actor: Actor, accounts: Accounts) -> int | None:
    """Return the account number that the assignee of a signed link has now, if any."""
    account = accounts.account(actor.name.removeprefix(LINK))
    return None if account is None else account.account_no


def takes_links(question: DecisionQuestion, assignee: str, accounts: Accounts) -> bool:
    """Return whether a link that is signed for an assignee may be used to answer.

    All members of a group share one link. If several people must decide, or if the person who
    started the run is excluded, only links for single users are accepted, because a shared link
    does not tell who votes.
    """
    if assignee not in question.assignees:
        return False
    account = accounts.account(assignee)
    if account is not None:
        return not account.is_disabled
    return question.approvals == 1 and not question.not_by


def refusal(
    question: DecisionQuestion,
    actor: Actor,
    accounts: Accounts,
    *,
    started_by: str | None,
) -> str | None:
    """Return why a caller may not vote on a decision; ``None`` if the caller may.

    Args:
        started_by: The person who started the run.
    """
    person = person_of(actor.name, accounts)
    if actor.name.startswith(LINK):
        if not takes_links(question, actor.name.removeprefix(LINK), accounts):
            return _OLD_LINK
    elif actor.name.startswith(_TOKEN) and actor.role < Role.OPERATOR:
        return "a token with the role viewer answers nothing"
    elif actor.name != HOME and not _is_assigned(question, actor, person, accounts):
        who = ", ".join(question.assignees) or Role.OPERATOR.label
        return f"it waits for {who}"
    if question.not_by == STARTER and started_by is not None and person == started_by:
        return f"{person} started the run, so another person must decide"
    return None


def _is_assigned(question: DecisionQuestion, actor: Actor, person: str, accounts: Accounts) -> bool:
    if not question.assignees:
        return actor.role >= Role.OPERATOR
    account = accounts.account(person)
    groups = () if account is None or account.is_disabled else account.groups
    names = {person, *groups, *(role.label for role in Role if role <= actor.role)}
    return not names.isdisjoint(question.assignees)


def decision_nos(inputs: Iterable[Input]) -> list[TriggerNo]:
    """Return the numbers of the decisions that requests answer. Their rows must be loaded."""
    asked = (entry.request for entry in inputs if isinstance(entry, RequestReceived))
    return [request.decision_no for request in asked if isinstance(request, AnswerDecision)]


def answer_decision(request: AnswerDecision, tx: Transaction) -> Answered:
    """Count a vote. If it settles the decision, end it and resume its task in the same commit.

    Raises:
        UnknownDecision: If there is no such decision.
        DecisionEnded: If it has already ended, for example because another person was faster.
        NotAssigned: If the caller may not decide.
        AlreadyVoted: If the person has voted before.
        BadAnswer: If an approval is answered with anything but yes or no.
    """
    number = request.decision_no
    row = tx.memory.decisions.get(number)
    if row is None:
        raise UnknownDecision(number)
    wait = tx.memory.waits.get(number)
    if row.outcome is not None:
        raise DecisionEnded(number, row.outcome, row.answer)
    if wait is None or not _is_open(wait):
        raise DecisionEnded(number, "withdrawn", None)
    actor = tx.actor or Actor(name=HOME, role=Role.ADMIN)
    try:
        question = question_of(row.question)
    except msgspec.MsgspecError:
        raise NotAssigned(number, "its question is unreadable") from None
    run, accounts = wait.run.row, tx.memory.accounts
    why = refusal(question, actor, accounts, started_by=run.started_by)
    if actor.name.startswith(LINK) and request.link_account != link_account(actor, accounts):
        why = _OLD_LINK  # the user was deleted, or created since
    if why is not None:
        raise NotAssigned(number, why)
    person, before = person_of(actor.name, accounts), votes_of(row)
    if any(vote.person == person for vote in before):
        raise AlreadyVoted(number, person)
    is_yes = _is_yes(question, request.answer)
    votes = (*before, Vote(person, actor.name, tx.now, is_yes, request.comment))
    return _count(row, wait, question, votes, request.answer, tx)


def _is_open(wait: TriggerInstance) -> bool:
    is_waiting = wait.state is TriggerState.WAITING and wait.task is not None
    return is_waiting and wait.row.class_path == PERSON


def _is_yes(question: DecisionQuestion, answer: bytes) -> bool:
    if question.schema:
        return True
    try:
        return msgspec.msgpack.decode(answer, type=bool)
    except msgspec.MsgspecError:
        raise BadAnswer({"": "an approval is answered with true or false"}) from None


def _count(
    row: DecisionRow,
    wait: TriggerInstance,
    question: DecisionQuestion,
    votes: tuple[Vote, ...],
    answer: bytes,
    tx: Transaction,
) -> Answered:
    """Store the votes. End the decision if enough people approve, or if one person does not."""
    number, run = row.decision_no, wait.run.row
    task_id = "" if wait.task is None else wait.task.spec.task_id
    packed = msgspec.msgpack.encode(votes)
    tx.vote(DecisionVotes(number, row.vote_count, packed, len(votes)))
    row = msgspec.structs.replace(row, votes=packed, vote_count=len(votes))
    is_over = not votes[-1].is_yes or len(votes) >= question.approvals
    if is_over:
        row = msgspec.structs.replace(row, outcome="answered", answer=answer, ended_at=tx.now)
        tx.end_decision(number, "answered", answer)
        fire(wait, answer_event(wait, answer, tx), tx)
    tx.memory.decisions[number] = row
    return Answered(
        decision_no=number,
        run_id=run.run_id,
        task_id=task_id,
        is_yes=votes[-1].is_yes,
        has_form=bool(question.schema),
        votes=len(votes),
        approvals=question.approvals,
        is_over=is_over,
        link=votes[-1].actor.removeprefix(LINK) if votes[-1].actor.startswith(LINK) else "",
        comment=votes[-1].comment,
    )
