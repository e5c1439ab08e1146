"""Decisions as shown to users, votes on them, and signed links, each for one decision."""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

import anyio
import msgspec
from anyio import BrokenWorkerProcess, to_process
from anyio.lowlevel import RunVar

from aioflow.api.access.login_throttle import LinkThrottle
from aioflow.api.answer_check import answer_problems, is_quick, limited_problems
from aioflow.api.paging import Page, number_after, page_of
from aioflow.api.queries import PAGE, RunReader
from aioflow.api.schemas import iso, plain_bytes, unreadable
from aioflow.api.validation import packed_payload
from aioflow.clock import Clock
from aioflow.core.state.accounts import Accounts
from aioflow.core.triggers.votes import link_account, refusal, takes_links
from aioflow.crypto import Vault
from aioflow.errors import BadAnswer, BadLink, NotAssigned, UnknownDecision
from aioflow.model.access import HOME, LINK, Actor, Role
from aioflow.model.dag import DagSpec
from aioflow.model.decisions import (
    COMMENT_LENGTH,
    DecisionQuestion,
    DecisionRow,
    Vote,
    question_of,
    votes_of,
)
from aioflow.model.history import DAY_US
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.outbox import Asked
from aioflow.protocol.requests import AnswerDecision, Answered, Request
from aioflow.redaction import LINK_PREFIX

__all__ = (
    "AnsweredView",
    "DecisionView",
    "Decisions",
    "VoteView",
    "check_answer",
    "decision_text",
    "described",
    "link_token",
)

_DOWNSTREAM = 10
_UNREADABLE = "its question is unreadable"

LINK_DAYS = 7
"""Maximum validity of a signed link, in days."""

_PURPOSE = "decision link"
_CHECK_SECONDS = 5
_WALL_SECONDS = 60.0
_CHECKS = 2
"""Maximum number of answers that are checked in other processes at the same time."""

_checks: RunVar[anyio.CapacityLimiter] = RunVar("aioflow checks of answers")
_TOKEN_LENGTH = 1_000
_TOKEN = re.compile(LINK_PREFIX + r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class VoteView(msgspec.Struct, frozen=True, kw_only=True):
    """The vote of one person.

    Attributes:
        vote: ``yes``, ``no`` or ``form``.
        by_link: Whether the vote was cast through a signed link.
        comment: The reason in the words of the person; empty if none was given.
    """

    person: str
    vote: str
    at: str
    by_link: bool
    comment: str = ""


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that a task waits for, or has waited for.

    Attributes:
        map_label: Label of the mapped child that asks, if the DAG gives one.
        form: The JSON Schema of the form; ``None`` for an approval.
        not_by: ``starter`` if the person who started the run is excluded.
        default: The answer after the deadline, if ``has_default``.
        state: ``open``, ``answered``, ``default``, ``timeout`` or ``withdrawn``.
        waits_for: Whom the decision waits for, in words; empty once it has ended.
        may_answer: Whether the caller may answer now.
        reason: Why the caller may not answer.
        as_admin: Whether the caller may answer as the admin of this home, without being assigned.
        downstream: The tasks directly downstream of the asking task, at most ``_DOWNSTREAM``.

    If the stored row is damaged, ``question`` says so, and the decision cannot be answered.
    """

    decision_id: int
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    map_label: str | None
    question: str
    details: str
    form: Any
    assignees: tuple[str, ...]
    approvals: int
    not_by: str
    has_default: bool
    default: Any
    state: str
    waits_for: str
    asked_at: str
    deadline: str | None
    votes: Sequence[VoteView]
    answer: Any
    ended_at: str | None
    may_answer: bool
    reason: str | None
    as_admin: bool
    downstream: Sequence[str]


class AnsweredView(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a vote.

    Attributes:
        decided: Whether this vote has ended the decision. If not, more people must approve.
    """

    decision_id: int
    run_id: str
    task_id: str
    votes: int
    approvals: int
    decided: bool


class Decisions:
    """Lists decisions, and votes on them through the engine.

    Args:
        send: Sends a request to the engine on behalf of an actor.
        actor: The caller; ``None`` for the daemon itself.
        accounts: Returns the accounts, tokens and groups in memory.
        shift: Returns the offset of the wall clock from the steady clock.
        vault: Verifies signed links; ``None`` if there are none.
        throttle: Limits the use of signed links.
    """

    def __init__(
        self,
        reader: RunReader,
        clock: Clock,
        send: Callable[[Request, Actor | None], Awaitable[object]],
        *,
        actor: Actor | None,
        accounts: Callable[[], Accounts],
        shift: Callable[[], int],
        vault: Vault | None,
        throttle: LinkThrottle,
    ) -> None:
        self._reader = reader
        self._store = reader.store
        self._clock = clock
        self._send = send
        self._actor = actor or Actor(name=HOME, role=Role.ADMIN)
        self._accounts = accounts
        self._shift = shift
        self._vault = vault
        self._throttle = throttle

    async def page(
        self,
        *,
        is_open: bool | None = True,
        dag_id: str | None = None,
        run_id: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[DecisionView]:
        """Return a page of decisions, the newest first.

        Args:
            is_open: ``True`` for decisions that have not ended, ``False`` for those that have,
                ``None`` for all.

        Raises:
            UnknownRun: If there is no such run.
            RequestError: If the cursor does not belong to this list.
        """
        run = None if run_id is None else await self._reader.run(run_id)
        found = await self._store.list_decisions(
            is_open=is_open,
            dag_id=dag_id,
            run_no=None if run is None else run.run_no,
            before=number_after("decisions", cursor),
            limit=limit + 1,
        )
        page = page_of("decisions", found, limit, lambda row: (row.decision_no,))
        return Page(await self._views(page.items), page.next)

    async def newest(
        self, *, is_open: bool = True, run_id: str | None = None
    ) -> Sequence[DecisionView]:
        """Return the newest decisions, at most one page."""
        return (await self.page(is_open=is_open, run_id=run_id, limit=PAGE)).items

    async def show(self, decision_id: int) -> DecisionView:
        """Return one decision.

        Raises:
            UnknownDecision: If there is no such decision.
        """
        found = await self._views([await self._row(decision_id)])
        if not found:
            raise UnknownDecision(decision_id)
        return found[0]

    async def dag_of(self, decision_id: int) -> str:
        """Return the DAG of a decision."""
        return (await self.show(decision_id)).dag_id

    async def answer(self, decision_id: int, answer: Any, comment: str = "") -> AnsweredView:
        """Vote on a decision. The first vote that decides resumes the task.

        Args:
            comment: Why. It is shown with the vote, and is in the audit log.

        Raises:
            UnknownDecision: If there is no such decision.
            BadAnswer: If the answer does not fit the form. The error has a message for each wrong
                field.
            DecisionEnded: If the decision has ended.
            NotAssigned: If the caller may not answer.
            AlreadyVoted: If the same person has voted before.
        """
        return await self._answer(decision_id, answer, self._actor, comment=comment)

    async def _answer(
        self,
        decision_id: int,
        answer: Any,
        actor: Actor,
        account_no: int | None = None,
        *,
        comment: str,
    ) -> AnsweredView:
        row = await self._row(decision_id)
        packed = packed_payload(answer)
        said_why = _comment_line(comment)
        if row.outcome is None:  # otherwise the engine says how it ended
            question = _readable(row)
            await self._admit(row, question, actor)
            await check_answer(question, answer, len(packed))
        request = AnswerDecision(
            decision_no=decision_id, answer=packed, link_account=account_no, comment=said_why
        )
        said = cast(Answered, await self._send(request, actor))
        return AnsweredView(
            decision_id=decision_id,
            run_id=said.run_id,
            task_id=said.task_id,
            votes=said.votes,
            approvals=said.approvals,
            decided=said.is_over,
        )

    async def _admit(self, row: DecisionRow, question: DecisionQuestion, actor: Actor) -> None:
        """Raise if the caller may not vote.

        Called before the answer is checked. The engine checks the caller again.

        Raises:
            NotAssigned: If the caller may not answer.
        """
        run = (await self._store.find_runs_by_no([row.run_no])).get(row.run_no)
        started_by = None if run is None else run.started_by
        why = refusal(question, actor, self._accounts(), started_by=started_by)
        if why is not None:
            raise NotAssigned(row.decision_no, why)

    # ── signed links ────────────────────────────────────────────────────────────────────

    async def show_link(self, token: str, address: str) -> DecisionView:
        """Return the decision of a signed link. Does not vote.

        Raises:
            BadLink: If the link is invalid, or has expired.
            TooManyAnswers: If the address has tried too often.
        """
        link, actor = self._link(token, address)
        return (await self._views([await self._row(link.decision_no)], actor))[0]

    async def answer_link(
        self, token: str, address: str, answer: Any, comment: str = ""
    ) -> AnsweredView:
        """Vote on the decision of a signed link; see ``answer`` and ``show_link``."""
        link, actor = self._link(token, address)
        return await self._answer(link.decision_no, answer, actor, link.account_no, comment=comment)

    def _link(self, token: str, address: str) -> tuple[_Link, Actor]:
        self._throttle.take(address, self._clock.monotonic_us() / 1e6)
        found = None if self._vault is None else _opened(token, self._vault)
        if found is None or found.expires_at <= self._clock.now():
            raise BadLink
        actor = Actor(name=f"{LINK}{found.assignee}", role=Role.VIEWER, address=address)
        if found.account_no != link_account(actor, self._accounts()):
            raise BadLink  # the user was deleted, or created since
        return found, actor

    # ── views ───────────────────────────────────────────────────────────────────────────

    async def _row(self, decision_id: int) -> DecisionRow:
        found = await self._store.find_decisions([decision_id])
        if not found:
            raise UnknownDecision(decision_id)
        return found[0]

    def _masked(self, view: DecisionView) -> DecisionView:
        """Mask the secrets that the daemon knows, perhaps only since the question was asked."""
        masked = self._reader.public_fields.masked_text
        votes = [msgspec.structs.replace(vote, comment=masked(vote.comment)) for vote in view.votes]
        return msgspec.structs.replace(
            view, question=masked(view.question), details=masked(view.details), votes=votes
        )

    async def _views(
        self, rows: Sequence[DecisionRow], actor: Actor | None = None
    ) -> Sequence[DecisionView]:
        layouts = await self._reader.layouts(row.run_no for row in rows)
        labels = await self._store.find_labels([row.task_no for row in rows])
        accounts, shift = self._accounts(), self._shift()
        views: list[DecisionView] = []
        for row in rows:
            run, layout = layouts.get(row.run_no, (None, None))
            location = None if layout is None else layout.find(row.task_no)
            if run is None or layout is None or location is None:
                continue  # the run is being deleted
            task_id = layout.spec.tasks[location.task_index].task_id
            where = _Place(
                run.dag_id,
                run.run_id,
                task_id,
                layout.shown(location)[0],
                labels.get(row.task_no),
                (actor or self._actor).name == HOME,
                _downstream(layout.spec, location.task_index),
            )
            try:
                question = question_of(row.question)
                why = _why_not(row, question, actor or self._actor, accounts, run.started_by)
                views.append(self._masked(_view(row, question, where, why, shift)))
            except (ValueError, RecursionError) as exc:  # one damaged row hides no other
                damaged = msgspec.structs.replace(row, votes=b"\x90", answer=None)
                views.append(_view(damaged, _damaged(row, exc), where, _UNREADABLE, shift))
        return views


class _Place(NamedTuple):
    """The task that asks for a decision.

    Attributes:
        is_home: Whether the caller has the token of the home.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    map_label: str | None
    is_home: bool
    downstream: list[str]


def _downstream(spec: DagSpec, task_index: int) -> list[str]:
    names = (task.task_id for task in spec.tasks if task_index in task.parents)
    return list(islice(names, _DOWNSTREAM))


def _damaged(row: DecisionRow, problem: Exception) -> DecisionQuestion:
    """Return the placeholder for a damaged question."""
    if not row.question:
        return DecisionQuestion(question="unreadable: no key of this home decrypts it")
    return DecisionQuestion(question=f"unreadable: {unreadable(problem)['unreadable']}")


def _readable(row: DecisionRow) -> DecisionQuestion:
    """Return the question of a decision that a caller wants to answer.

    Raises:
        NotAssigned: If the question is damaged. It cannot be shown, so it cannot be answered.
    """
    try:
        return question_of(row.question)
    except msgspec.MsgspecError:
        raise NotAssigned(row.decision_no, _UNREADABLE) from None


def decision_text(row: DecisionRow) -> str:
    """Return what a task waits for: people, the approvals so far, and the question in quotes."""
    try:
        question = question_of(row.question)
    except msgspec.MsgspecError as exc:
        return _damaged(row, exc).question
    if row.outcome is not None:
        return question.question
    count = f" ({row.vote_count} of {question.approvals})" if question.approvals > 1 else ""
    return f'{_deciders(question)}{count}: "{question.question}"'


def _deciders(question: DecisionQuestion) -> str:
    who = ", ".join(question.assignees) or "an operator"
    return f"{who}, but not the starter of the run" if question.not_by else who


def _waits_for(row: DecisionRow, question: DecisionQuestion) -> str:
    if row.outcome is not None:
        return ""
    count = f"{row.vote_count} of {question.approvals}, " if question.approvals > 1 else ""
    return f"{count}waiting for {_deciders(question)}"


def _why_not(
    row: DecisionRow,
    question: DecisionQuestion,
    actor: Actor,
    accounts: Accounts,
    started_by: str | None,
) -> str | None:
    if row.outcome is not None:
        return "it has ended"
    return refusal(question, actor, accounts, started_by=started_by)


def _view(
    row: DecisionRow,
    question: DecisionQuestion,
    where: _Place,
    why: str | None,
    shift: int,
) -> DecisionView:
    default = question.default
    has_default = default is not msgspec.UNSET
    return DecisionView(
        decision_id=row.decision_no,
        dag_id=where.dag_id,
        run_id=where.run_id,
        task_id=where.task_id,
        map_index=where.map_index,
        map_label=where.map_label,
        question=question.question,
        details=question.details,
        form=msgspec.json.decode(question.schema) if question.schema else None,
        assignees=question.assignees,
        approvals=question.approvals,
        not_by=question.not_by,
        has_default=has_default,
        default=None if default is msgspec.UNSET else plain_bytes(bytes(default)),
        state=row.outcome or "open",
        waits_for=_waits_for(row, question),
        asked_at=iso(row.asked_at) or "",
        deadline=None if row.deadline_at is None else iso(row.deadline_at + shift),
        votes=[_vote_view(vote, question) for vote in votes_of(row)],
        answer=plain_bytes(row.answer),
        ended_at=iso(row.ended_at),
        may_answer=why is None,
        reason=why,
        as_admin=why is None and where.is_home and bool(question.assignees),
        downstream=where.downstream,
    )


def _vote_view(vote: Vote, question: DecisionQuestion) -> VoteView:
    said = "form" if question.schema else ("yes" if vote.is_yes else "no")
    return VoteView(
        person=vote.person.removeprefix(LINK),
        vote=said,
        at=iso(vote.at) or "",
        by_link=vote.actor.startswith(LINK),
        comment=vote.comment,
    )


def _comment_line(text: str) -> str:
    """Return a comment as one line without control characters.

    Raises:
        BadAnswer: If it is too long.
    """
    line = "".join(filter(str.isprintable, " ".join(text.split())))
    if len(line) > COMMENT_LENGTH:
        raise BadAnswer({"comment": f"it has more than {COMMENT_LENGTH} characters"})
    return line


async def check_answer(
    question: DecisionQuestion, answer: Any, size: int, *, seconds: int = _CHECK_SECONDS
) -> None:
    """Check an answer against the form. Use another process unless the check is quick.

    Args:
        size: The size of the encoded answer.
        seconds: The CPU time of the other process.

    Raises:
        BadAnswer: If it does not fit, or cannot be checked in time.
    """
    if not question.schema:
        if not isinstance(answer, bool):
            raise BadAnswer({"": "an approval is answered with true or false"})
        return
    if not isinstance(answer, dict):
        raise BadAnswer({"": "a form is answered with an object"})
    if is_quick(question.schema, size):
        problems = answer_problems(question.schema, answer)
    else:
        problems = await _check_apart(question.schema, answer, seconds)
    if problems:
        raise BadAnswer(problems)


async def _check_apart(schema: str, answer: dict[str, Any], seconds: int) -> dict[str, str]:
    try:
        checks = _checks.get()
    except LookupError:
        checks = anyio.CapacityLimiter(_CHECKS)
        _checks.set(checks)
    async with checks:
        try:
            with anyio.fail_after(_WALL_SECONDS):  # its start takes a while on a busy machine
                return await to_process.run_sync(
                    limited_problems, schema, answer, seconds, cancellable=True
                )
        except (TimeoutError, BrokenWorkerProcess, MemoryError):
            return {"": "it could not be checked in time"}


def described(
    row: DecisionRow,
    *,
    public_url: str,
    accounts: Accounts,
    vault: Vault,
    now: Timestamp,
    shift: int,
) -> Asked:
    """Return an open decision for a message, with signed links for assignees that may have one.

    Args:
        public_url: The address of the page; empty for a message without links.
        shift: The offset of the wall clock from the steady clock.
    """
    question = question_of(row.question)
    links = {}
    for assignee in question.assignees if public_url else ():
        token = link_token(row, assignee, accounts, vault, now)
        if token is not None:
            links[assignee] = f"{public_url}/decide#{token}"
    url = f"{public_url}/decisions/{row.decision_no}" if public_url else ""
    personal = [name for name in links if accounts.account(name) is not None]
    return Asked.about(row, url=url, links=links, personal=personal, shift=shift)


# ── tokens of links ─────────────────────────────────────────────────────────────────────


class _Link(msgspec.Struct, frozen=True, array_like=True):
    """The content of a signed link.

    Attributes:
        account_no: The account of the assignee; ``None`` if the assignee is a group. If a group or
            another account later has the same name, it is a different assignee.
    """

    decision_no: int
    assignee: str
    expires_at: Timestamp
    account_no: int | None


_LINKS = msgspec.msgpack.Decoder(_Link)


def link_token(
    row: DecisionRow, assignee: str, accounts: Accounts, vault: Vault, now: Timestamp
) -> str | None:
    """Return the token of a link for an assignee of a decision; ``None`` if there must be none.

    The link expires after ``LINK_DAYS``. It is valid for this decision only, and starts no session.
    """
    if not takes_links(question_of(row.question), assignee, accounts):
        return None
    actor = Actor(name=f"{LINK}{assignee}", role=Role.VIEWER)
    expires_at, account_no = now + LINK_DAYS * DAY_US, link_account(actor, accounts)
    body = msgspec.msgpack.encode(_Link(row.decision_no, assignee, expires_at, account_no))
    return f"{LINK_PREFIX}{_armoured(body)}.{_armoured(vault.sign(_PURPOSE, body))}"


def _opened(token: str, vault: Vault) -> _Link | None:
    if len(token) > _TOKEN_LENGTH or not _TOKEN.fullmatch(token):
        return None
    try:
        body, signature = map(_bare, token.removeprefix(LINK_PREFIX).split("."))
        if not vault.has_signed(_PURPOSE, body, signature):
            return None
        return _LINKS.decode(body)
    except (ValueError, msgspec.MsgspecError):
        return None


def _armoured(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bare(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
