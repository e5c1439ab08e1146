"""Decisions by people, as the engine sees them: asked for, voted on, and ended with the wait."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aioflow.errors import (
    AlreadyVoted,
    BadAnswer,
    DecisionEnded,
    NotAssigned,
    RequestError,
    UnknownDecision,
)
from aioflow.model.access import HOME, AccountRow, Actor, Role, TokenRow
from aioflow.model.dag import Body, CallbackSpec, DagSpec, RetryPolicy, StartTriggerSpec, TaskSpec
from aioflow.model.decisions import PERSON, STARTER, DecisionRow, votes_of
from aioflow.model.states import TaskState, WaitKind
from aioflow.protocol.effects import Acknowledge, AssignTrigger, DeliverOutbox, StartTry
from aioflow.protocol.inputs import FileParsed, HostUp, RequestReceived
from aioflow.protocol.outbox import Callback
from aioflow.protocol.reports import Awaiting, Deferred, NotSuspended
from aioflow.protocol.requests import (
    AnswerDecision,
    CancelRun,
    ClearTasks,
    CreateRun,
    Explain,
    FireTrigger,
)
from tests.core.world import SECOND, World

ANNA = Actor(name="anna", role=Role.VIEWER)
BOB = Actor(name="bob", role=Role.OPERATOR)
CARL = Actor(name="carl", role=Role.ADMIN)


def account(world: World, actor: Actor, *groups: str, disabled: bool = False) -> None:
    row = AccountRow(
        account_no=len(world.memory.accounts.accounts),
        name=actor.name,
        secret=b"hash",
        role=actor.role,
        is_disabled=disabled,
        created_at=1,
        changed_at=1,
        groups=groups,
    )
    world.memory.accounts.accounts[row.account_no] = row


def token(world: World, name: str, created_by: str, role: Role = Role.OPERATOR) -> Actor:
    number = len(world.memory.accounts.tokens)
    world.memory.accounts.tokens[number] = TokenRow(
        token_no=number,
        name=name,
        digest=b"",
        role=role,
        scopes=None,
        created_at=1,
        created_by=created_by,
    )
    return Actor(name=f"token:{name}", role=role)


def question(**fields: Any) -> bytes:
    return msgspec.msgpack.encode({"question": "Release the payment?", **fields})


def ask(
    world: World, *, seconds: float | None = None, kind: str = "ask_person", **fields: Any
) -> int:
    """Let the started coroutine ask for a decision. Return the number of the decision."""
    effect = world.started("c")
    assert effect is not None
    start = effect.start
    del world.starts[start.task_no]
    world.turn(
        Awaiting(
            start.task_no,
            start.start_no,
            world.now,
            world.now,
            0,
            kind,
            "PersonTrigger",
            "flow.py:4",
            ((PERSON, question(**fields)),),
            None if seconds is None else int(seconds * SECOND),
        )
    )
    return max(world.rows.decisions)


def begun(actor: Actor | None = None, **fields: Any) -> tuple[World, int]:
    """Return a world in which this person has started a run of a single coroutine."""
    world = World()
    account(world, ANNA, "finance")
    account(world, BOB)
    account(world, CARL)
    spec = TaskSpec(task_id="c", body=Body.COROUTINE, retry=RetryPolicy(tries=1), **fields)
    dag = DagSpec(dag_id="d", file="d.py", tasks=(spec,))
    world.turn(HostUp("async"), HostUp("triggers"))
    world.turn(FileParsed(file="d.py", version="v1", dags=(dag,), sources={}))
    world.turn(RequestReceived(1, CreateRun(dag_id="d"), actor))
    (run_no,) = world.rows.runs
    return world, run_no


def vote(
    world: World,
    number: int,
    answer: object,
    by: Actor | None = ANNA,
    account: int | None = None,
    comment: str = "",
) -> Any:
    """Vote on a decision. Return what the voter gets: the response or the error."""
    packed = msgspec.msgpack.encode(answer)
    request = AnswerDecision(
        decision_no=number, answer=packed, link_account=account, comment=comment
    )
    effects = world.turn(RequestReceived(9, request, by))
    (said,) = [effect for effect in effects if isinstance(effect, Acknowledge)]
    return said.error or said.answer


def outcome(world: World, number: int) -> DecisionRow:
    return world.rows.decisions[number]


def resumed_with(world: World) -> Any:
    effect = world.started("c")
    assert effect is not None, "the task waits"
    assert effect.resume is not None
    answer, failure = effect.resume.answer, effect.resume.failure
    return failure.type if failure is not None else msgspec.msgpack.decode(answer or b"")


def test_decision_is_stored_with_the_wait_and_holds_no_slot_and_no_host() -> None:
    world, _ = begun()
    number = ask(world, seconds=60, assignees=["finance"])
    row = outcome(world, number)
    assert (row.outcome, row.vote_count) == (None, 0)
    assert row.deadline_at == world.rows.triggers[number].deadline_at
    assert world.slots.used("default") == 0
    assert not [effect for effect in world.effects if isinstance(effect, AssignTrigger)]


def test_answer_ends_the_decision_in_the_commit_that_resumes_the_task() -> None:
    world, _ = begun()
    number = ask(world, assignees=["finance"])
    said = vote(world, number, True)
    assert (said.is_over, said.votes) == (True, 1)
    (batch,) = [one for one in world.batches if one.decision_ends]
    assert [end.outcome for end in batch.decision_ends] == ["answered"]
    assert [change.answer for change in batch.record_changes] == [msgspec.msgpack.encode(True)]
    assert resumed_with(world) is True


def test_second_answer_of_the_same_turn_gets_the_first_one() -> None:
    world, _ = begun()
    number = ask(world)
    yes, no = (
        RequestReceived(at, AnswerDecision(decision_no=number, answer=answer), by)
        for at, answer, by in ((1, b"\xc3", BOB), (2, b"\xc2", CARL))
    )
    effects = world.turn(yes, no)
    first, second = [effect for effect in effects if isinstance(effect, Acknowledge)]
    assert first.error is None
    assert isinstance(second.error, DecisionEnded)
    assert second.error.answer == b"\xc3"
    assert isinstance(vote(world, number, False, CARL), DecisionEnded)


@pytest.mark.parametrize(
    ("assignees", "may"),
    [
        ([], {"bob", "carl", HOME}),
        (["finance"], {"anna", HOME}),
        (["anna"], {"anna", HOME}),
        (["bob", "finance"], {"anna", "bob", HOME}),
        (["admin"], {"carl", HOME}),
        (["viewer"], {"anna", "bob", "carl", HOME}),
    ],
)
def test_only_assignees_may_answer(assignees: list[str], may: set[str]) -> None:
    home = Actor(name=HOME, role=Role.ADMIN)
    for actor in (ANNA, BOB, CARL, home):
        world, _ = begun()
        said = vote(world, ask(world, assignees=assignees), True, actor)
        assert isinstance(said, NotAssigned) is (actor.name not in may), (actor.name, said)


def test_token_answers_for_its_creator_unless_it_only_reads() -> None:
    world, _ = begun()
    number = ask(world, assignees=["finance"], approvals=2)
    assert isinstance(
        vote(world, number, True, token(world, "r", "anna", Role.VIEWER)), NotAssigned
    )
    assert vote(world, number, True, token(world, "ci", "anna")).votes == 1
    assert isinstance(vote(world, number, True), AlreadyVoted)
    assert [one.person for one in votes_of(outcome(world, number))] == ["anna"]


@pytest.mark.parametrize(
    ("role", "assignees", "may"),
    [
        (Role.VIEWER, [], False),
        (Role.VIEWER, ["viewer"], False),
        (Role.VIEWER, ["admin"], False),
        (Role.OPERATOR, [], True),
        (Role.OPERATOR, ["operator"], True),
        (Role.OPERATOR, ["admin"], False),
        (Role.OPERATOR, ["finance"], False),
        (Role.ADMIN, ["admin"], True),
    ],
)
def test_token_that_the_home_created_answers_by_its_own_role(
    role: Role, assignees: list[str], may: bool
) -> None:
    world, _ = begun()
    number = ask(world, assignees=assignees)
    first = token(world, "ci", HOME, role)
    assert isinstance(vote(world, number, True, first), NotAssigned) is not may
    world, _ = begun()
    number = ask(world, assignees=assignees)
    token(world, "ci", HOME, Role.ADMIN)
    later = token(world, "of-ci", "token:ci", role)
    assert isinstance(vote(world, number, True, later), NotAssigned) is not may


def test_several_people_must_approve_and_one_rejects() -> None:
    world, _ = begun()
    number = ask(world, approvals=2)
    assert vote(world, number, True, BOB).is_over is False
    assert isinstance(vote(world, number, True, BOB), AlreadyVoted)
    assert outcome(world, number).outcome is None
    assert vote(world, number, True, CARL).is_over is True
    assert resumed_with(world) is True
    world, _ = begun()
    number = ask(world, approvals=3)
    assert vote(world, number, True, BOB).is_over is False
    assert vote(world, number, False, CARL).is_over is True
    assert resumed_with(world) is False


def test_votes_outlive_a_crash() -> None:
    world, _ = begun()
    number = ask(world, approvals=2)
    vote(world, number, True, BOB)
    world.restart()
    account(world, BOB)
    account(world, CARL)
    assert isinstance(vote(world, number, True, BOB), AlreadyVoted)
    assert vote(world, number, True, CARL).is_over is True


@pytest.mark.parametrize("through", ["anna", "her token", "a link"])
def test_person_who_started_the_run_does_not_decide(through: str) -> None:
    world, run_no = begun(ANNA)
    assert world.rows.runs[run_no].started_by == "anna"
    number = ask(world, assignees=["anna", "bob"], not_by=STARTER)
    link = Actor(name="link:anna", role=Role.VIEWER)
    actors = {"anna": ANNA, "her token": token(world, "ci", "anna"), "a link": link}
    assert isinstance(vote(world, number, True, actors[through]), NotAssigned)
    assert vote(world, number, True, BOB).is_over is True


def test_run_that_a_token_starts_is_started_by_its_creator() -> None:
    world, _ = begun()
    by = token(world, "ci", "anna")
    world.turn(RequestReceived(1, CreateRun(dag_id="d"), by))
    assert world.rows.runs[max(world.rows.runs)].started_by == "anna"


def test_link_of_a_group_answers_only_what_one_person_decides() -> None:
    link = Actor(name="link:finance", role=Role.VIEWER)
    world, _ = begun()
    assert vote(world, ask(world, assignees=["finance"]), True, link).is_over is True
    others: tuple[dict[str, Any], ...] = (
        {"approvals": 2},
        {"not_by": STARTER},
        {"assignees": ["bob"]},
    )
    for more in others:
        world, _ = begun()
        number = ask(world, **{"assignees": ["finance"], **more})
        assert isinstance(vote(world, number, True, link), NotAssigned), more
    world, _ = begun()
    account(world, Actor(name="dora", role=Role.VIEWER), disabled=True)
    number = ask(world, assignees=["dora"])
    assert isinstance(
        vote(world, number, True, Actor(name="link:dora", role=Role.VIEWER)), NotAssigned
    )


def test_default_answers_after_the_timeout() -> None:
    world, _ = begun()
    number = ask(world, seconds=60, default=False)
    world.pass_time(61)
    assert outcome(world, number).outcome == "default"
    assert resumed_with(world) is False
    assert isinstance(vote(world, number, True, BOB), DecisionEnded)


def test_timeout_without_a_default_raises() -> None:
    world, _ = begun()
    number = ask(world, seconds=60)
    world.pass_time(61)
    assert outcome(world, number).outcome == "timeout"
    assert resumed_with(world) == "TimeoutError"


@pytest.mark.parametrize("request_", [CancelRun, ClearTasks])
def test_decision_is_withdrawn_with_its_wait(request_: Any) -> None:
    world, run_no = begun()
    number = ask(world)
    world.turn(RequestReceived(1, request_(run_id=world.rows.runs[run_no].run_id)))
    assert outcome(world, number).outcome == "withdrawn"
    said = vote(world, number, True, BOB)
    assert isinstance(said, DecisionEnded)
    assert said.outcome == "withdrawn"


def test_replay_after_a_crash_gives_the_recorded_answer() -> None:
    world, _ = begun()
    number = ask(world)
    vote(world, number, True, BOB)
    effect = world.started("c")
    assert effect is not None
    world.turn(NotSuspended(effect.start.task_no, effect.start.start_no))
    again = world.started("c")
    assert again is not None
    assert again.resume is None, "it runs from the top"
    assert [msgspec.msgpack.decode(row.answer or b"") for row in world.rows.records.values()] == [
        True
    ]


def test_operator_resumes_in_its_method_and_without_one_the_answer_is_its_result() -> None:
    for method in ("resume", ""):
        world = World()
        run_no = world.begin(TaskSpec(task_id="c"))
        effect = world.started("c")
        assert effect is not None
        start = effect.start
        del world.starts[start.task_no]
        world.turn(
            Deferred(
                start.task_no,
                start.start_no,
                world.now,
                world.now,
                PERSON,
                question(),
                method,
                b"\x80",
            )
        )
        number = max(world.rows.decisions)
        assert vote(world, number, True, BOB).is_over is True
        if method:
            assert any(isinstance(one, StartTry) and one.start.event for one in world.effects)
        else:
            (task,) = [row for row in world.rows.tasks.values() if row.run_no == run_no]
            assert task.state is TaskState.SUCCESS
            assert [row.body for row in world.rows.results.values()] == [b"\xc3"]


def test_task_that_waits_for_a_decision_says_so() -> None:
    world, run_no = begun()
    number = ask(world, assignees=["finance"])
    asked = Explain(run_id=world.rows.runs[run_no].run_id, tasks=((0, -1),))
    (said,) = [one for one in world.turn(RequestReceived(1, asked)) if isinstance(one, Acknowledge)]
    answer: Any = said.answer
    wait = answer[0, -1]
    assert (wait.kind, wait.detail) == (WaitKind.DECISION, 'a decision: "Release the payment?"')
    assert wait.checked_by == number


def test_trigger_of_a_decision_cannot_be_fired() -> None:
    world, _ = begun()
    number = ask(world, approvals=2)
    fired = world.turn(RequestReceived(1, FireTrigger(trigger_no=number, payload=b"\xc3"), CARL))
    (said,) = [one for one in fired if isinstance(one, Acknowledge)]
    assert isinstance(said.error, RequestError)
    assert outcome(world, number).outcome is None


def test_answers_that_cannot_be_are_refused() -> None:
    world, _ = begun()
    number = ask(world)
    assert isinstance(vote(world, number + 1000, True, BOB), UnknownDecision)
    assert isinstance(vote(world, number, {"yes": 1}, BOB), BadAnswer)
    assert outcome(world, number).vote_count == 0


def test_each_vote_is_an_audited_row() -> None:
    world, run_no = begun()
    number = ask(world, approvals=2)
    vote(world, number, True, BOB)
    vote(world, number, False, CARL, comment="amount differs")
    lines = [row.noted for batch in world.batches for row in batch.audit]
    run_id = world.rows.runs[run_no].run_id
    assert [(line.actor, line.action, line.target, line.after) for line in lines] == [
        ("bob", "decision.answer", str(number), f"{run_id} c: yes, 1 of 2"),
        ("carl", "decision.answer", str(number), f"{run_id} c: no, 2 of 2: amount differs"),
    ]
    comments = [one.comment for one in votes_of(outcome(world, number))]
    assert comments == ["", "amount differs"]


def test_vote_that_was_stored_before_there_were_comments_has_none() -> None:
    world, _ = begun()
    number = ask(world)
    row = msgspec.structs.replace(
        outcome(world, number), votes=msgspec.msgpack.encode([["anna", "anna", 7, True]])
    )
    (found,) = votes_of(row)
    assert (found.person, found.is_yes, found.comment) == ("anna", True, "")


def test_people_are_notified_when_a_task_asks() -> None:
    world, _ = begun(callbacks=CallbackSpec(events=("ask",), values=()))
    number = ask(world)
    (effect,) = [one for one in world.effects if isinstance(one, DeliverOutbox)]
    said = msgspec.msgpack.decode(effect.body, type=Callback)
    assert (said.event, said.decision_no, said.state) == ("ask", number, "deferred")


@pytest.mark.parametrize(
    "fields",
    [
        b"\x80",
        question(schema="{"),
        question(schema="[1]"),
        question(schema="1"),
        question(schema='{"title": "' + "x" * 70_000 + '"}'),
        question(schema="{}", approvals=2),
        question(approvals=0),
        question(approvals=21),
        question(assignees=["x" * 101]),
        question(assignees=["a"] * 51),
        question(not_by="everybody"),
        question(details="x" * 10_001),
        question(default=msgspec.msgpack.Ext(1, b"x")),
        msgspec.msgpack.encode({"question": " "}),
        msgspec.msgpack.encode({"question": "x" * 501}),
    ],
)
def test_invalid_question_fails_its_task_alone(fields: bytes) -> None:
    world, run_no = begun()
    effect = world.started("c")
    assert effect is not None
    start = effect.start
    at = (start.task_no, start.start_no, world.now, world.now, 0)
    triggers = ((PERSON, fields),)
    world.turn(Awaiting(*at, "wait", "PersonTrigger", "flow.py:4", triggers, None))
    (task,) = [row for row in world.rows.tasks.values() if row.run_no == run_no]
    assert task.state is TaskState.FAILED
    assert not world.rows.decisions


@pytest.mark.parametrize("tries", [1, 2])
def test_task_that_would_start_with_a_decision_fails_without_one(tries: int) -> None:
    world = World()
    trigger = StartTriggerSpec(class_path=PERSON, next_method="resume")
    retry = RetryPolicy(tries=tries, delay_us=SECOND)
    run_no = world.begin(TaskSpec(task_id="c", retry=retry, start_trigger=trigger))
    world.pass_time(2)
    (task,) = [row for row in world.rows.tasks.values() if row.run_no == run_no]
    assert task.state is TaskState.FAILED
    assert (task.try_number, world.rows.decisions, world.rows.triggers) == (tries, {}, {})


def test_damaged_question_is_explained_and_times_out_and_takes_no_answer() -> None:
    world, run_no = begun()
    number = ask(world, seconds=60, default=False)
    wait = world.memory.waits[number]
    wait.row = msgspec.structs.replace(wait.row, kwargs=b"\x80")
    world.rows.decisions[number] = msgspec.structs.replace(outcome(world, number), question=b"")
    asked = Explain(run_id=world.rows.runs[run_no].run_id, tasks=((0, -1),))
    (said,) = [one for one in world.turn(RequestReceived(1, asked)) if isinstance(one, Acknowledge)]
    answer: Any = said.answer
    assert answer[0, -1].detail == "a decision whose question is unreadable"
    assert isinstance(vote(world, number, True, BOB), NotAssigned)
    world.pass_time(61)
    assert outcome(world, number).outcome == "timeout"


def test_link_of_a_user_who_was_deleted_before_the_turn_decides_nothing() -> None:
    world, _ = begun()
    number = ask(world, assignees=["bob", "finance"])
    accounts = world.memory.accounts
    bob, group = (Actor(name=f"link:{name}", role=Role.VIEWER) for name in ("bob", "finance"))
    was = accounts.account("bob")
    assert was is not None
    del accounts.accounts[was.account_no]  # a name without an account is that of a group
    deleted = vote(world, number, True, bob, was.account_no)
    accounts.accounts[9] = msgspec.structs.replace(was, account_no=9)
    created_again = vote(world, number, True, bob, was.account_no)
    of_group = vote(world, number, True, group)

    assert isinstance(deleted, NotAssigned)
    assert isinstance(created_again, NotAssigned)
    assert of_group.is_over
