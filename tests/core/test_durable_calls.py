"""Durable calls as the engine sees them: recorded, suspended on, answered and forgotten."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aioflow.model.dag import Body, RetryPolicy, TaskSpec
from aioflow.model.states import Failure, RecordState, TriggerState
from aioflow.protocol.commands import ForgetRun, StartTask
from aioflow.protocol.effects import AssignTrigger, ConfirmCall, ReleaseTrigger, StartTry, StopTry
from aioflow.protocol.inputs import HostLost, HostUp, RequestReceived
from aioflow.protocol.reports import (
    Awaiting,
    CallAnswered,
    Deferred,
    Failed,
    NotSuspended,
    RecordDropped,
    Succeeded,
    TriggerEnded,
    TriggerFired,
)
from aioflow.protocol.requests import CancelRun, ClearTasks, Explain
from tests.core.world import SECOND, World

CRASHED = Failure(type="Crashed", message="SIGSEGV", reason="crashed")
KILLED = Failure(type="Killed", message="SIGKILL", reason="killed")
BROKEN = Failure(type="ValueError", message="no", reason="step")
NOW_AND_THEN = RetryPolicy(tries=3, delay_us=0, jitter=False)


def begun(world: World | None = None, **fields: Any) -> tuple[World, int]:
    """Start a run of a single coroutine."""
    world = world or World()
    fields.setdefault("retry", NOW_AND_THEN)
    return world, world.begin(TaskSpec(task_id="c", body=Body.COROUTINE, **fields))


def start_of(world: World) -> StartTask:
    effect = world.started("c")
    assert effect is not None, "it has not been started"
    return effect.start


def resumed(world: World) -> Any:
    """Return the command that resumes the coroutine, or ``None`` if it runs from the start."""
    effect = world.started("c")
    assert effect is not None, "it has not been started"
    return effect.resume


def step(
    world: World, ordinal: int, answer: bytes | None = b"\x01", failure: Failure | None = None
) -> list[Any]:
    start = start_of(world)
    return world.turn(
        CallAnswered(
            start.task_no, start.start_no, ordinal, "step", "m:f", "flow.py:3", answer, failure
        )
    )


def await_(
    world: World,
    ordinal: int,
    *classes: str,
    kind: str = "wait",
    seconds: float | None = None,
    label: str = "",
) -> Awaiting:
    """Suspend the coroutine in a wait, and remove it from the started tasks."""
    start = start_of(world)
    del world.starts[start.task_no]
    report = Awaiting(
        start.task_no,
        start.start_no,
        world.now,
        world.now,
        ordinal,
        kind,
        ", ".join(classes),
        "flow.py:4",
        tuple((name, b"\x80") for name in classes),
        None if seconds is None else int(seconds * SECOND),
        label,
    )
    world.turn(report)
    return report


def hosted(world: World, name: str) -> Any:
    """Return the last assignment of a trigger of this class."""
    hosts = [e.host for e in world.effects if isinstance(e, AssignTrigger)]
    return next(host for host in reversed(hosts) if host.class_path == name)


def fire(world: World, name: str, payload: object = None) -> None:
    host = hosted(world, name)
    body = msgspec.msgpack.encode(payload)
    world.turn(TriggerFired(host.trigger_no, host.assignment_id, 0, world.now, body))


def answers(world: World) -> list[Any]:
    """Return the answers of the recorded calls, in order."""
    return [
        None if row.answer is None else msgspec.msgpack.decode(row.answer)
        for _, row in sorted(world.rows.records.items())
    ]


def waiting(world: World) -> list[str]:
    return [
        row.class_path for row in world.rows.triggers.values() if row.state is TriggerState.WAITING
    ]


def of_kind(effects: list[Any], kind: type) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


# ── steps ───────────────────────────────────────────────────────────────────────────────


def test_a_step_is_confirmed_once_it_is_recorded():
    world, _ = begun()

    effects = step(world, 0, answer=b"\x07")

    assert answers(world) == [7]
    (confirmed,) = of_kind(effects, ConfirmCall)
    start = start_of(world)
    assert confirmed.recorded.task_no == start.task_no
    assert (confirmed.recorded.start_no, confirmed.recorded.ordinal) == (start.start_no, 0)


def test_a_step_reported_twice_is_recorded_once_and_confirmed_each_time():
    world, _ = begun()
    step(world, 0, answer=b"\x07")

    effects = step(world, 0, answer=b"\x08")

    assert answers(world) == [7]
    assert len(of_kind(effects, ConfirmCall)) == 1


def test_a_step_of_an_earlier_start_is_late():
    world, _ = begun()
    old = start_of(world)
    world.restart()

    effects = world.turn(
        CallAnswered(old.task_no, old.start_no, 0, "step", "m:f", "flow.py:3", b"\x01")
    )

    assert answers(world) == []
    assert not of_kind(effects, ConfirmCall)


def test_a_start_says_how_many_calls_are_recorded():
    world, _ = begun()
    for ordinal in range(3):
        step(world, ordinal)
    world.restart()

    assert start_of(world).recorded == 3


def test_interruptions_are_forgotten_with_progress():
    world, run = begun()
    for ordinal in range(60):  # more often than a task may be interrupted
        step(world, ordinal)
        world.restart()

    world.succeed("c")

    assert world.run_state(run) == "success"


def test_a_task_that_gets_no_further_runs_out_of_interruptions():
    world, run = begun()
    step(world, 0)
    for _ in range(7):
        world.restart()
        while world.state(run, "c") == "queued":  # the daemon lives for as long as the task waits
            world.pass_time(1)

    assert world.state(run, "c") == "failed"


# ── waits ───────────────────────────────────────────────────────────────────────────────


def test_a_wait_releases_its_slot_and_continues_with_the_event():
    world, run = begun(World(async_slots=1))
    began = start_of(world)
    await_(world, 0, "m:T")
    assert world.state(run, "c") == "deferred"
    assert world.slots.running_coroutines == 0

    fire(world, "m:T", "here")

    resume = resumed(world)
    assert (resume.was_start_no, resume.start_no) == (began.start_no, began.start_no + 1)
    assert msgspec.msgpack.decode(resume.answer) == "here"
    assert answers(world) == ["here"]
    assert world.rows.triggers == {}


def test_the_label_of_a_wait_is_stored_with_its_call():
    world, _ = begun()
    await_(world, 0, "m:T", label="the bank's answer")

    (record,) = world.rows.records.values()
    assert record.label == "the bank's answer"


def test_a_resumed_task_is_served_before_a_fresh_one():
    world = World(async_slots=1)
    world.begin(
        TaskSpec(task_id="c", body=Body.COROUTINE),
        TaskSpec(task_id="d", body=Body.COROUTINE, priority=9),
        TaskSpec(task_id="e", body=Body.COROUTINE, priority=9),
    )
    world.succeed("d")
    world.succeed("e")
    await_(world, 0, "m:T")
    world.trigger()  # the fresh ones of this run have the higher priority
    assert world.started("d") is not None

    fire(world, "m:T")
    world.succeed("d")

    assert world.started("c") is not None
    assert resumed(world) is not None


def test_the_first_of_several_answers_and_the_others_are_released_in_the_same_commit():
    world, _ = begun()
    await_(world, 0, "m:A", "m:B", "m:C", kind="any_of")
    before = world.rows.commit_no

    fire(world, "m:B", "b")

    assert answers(world) == [[1, "b"]]
    assert world.rows.commit_no == before + 1
    assert {row.state for row in world.rows.triggers.values()} == {TriggerState.ENDING}
    assert len(of_kind(world.effects, ReleaseTrigger)) == 2


def test_the_rows_of_losers_are_gone_when_their_host_has_released_them():
    world, _ = begun()
    await_(world, 0, "m:A", "m:B", kind="any_of")
    loser = hosted(world, "m:B")
    fire(world, "m:A")

    world.turn(TriggerEnded(loser.trigger_no, loser.assignment_id, world.now))

    assert world.rows.triggers == {}


def test_a_loser_that_fires_as_well_changes_nothing():
    world, _ = begun()
    await_(world, 0, "m:A", "m:B", kind="any_of")
    fire(world, "m:A", "a")
    fire(world, "m:B", "b")

    assert answers(world) == [[0, "a"]]
    assert msgspec.msgpack.decode(resumed(world).answer) == [0, "a"]


def test_all_have_to_fire_and_their_events_come_in_the_order_of_the_call():
    world, _ = begun()
    await_(world, 0, "m:A", "m:B", "m:C", kind="all_of")
    for name in "BCA":
        assert world.started("c") is None
        fire(world, f"m:{name}", name)

    assert msgspec.msgpack.decode(resumed(world).answer) == ["A", "B", "C"]
    assert world.rows.triggers == {}


@pytest.mark.parametrize("fired", ["", "A", "CA", "BC"])
def test_a_half_answered_call_waits_for_the_rest_after_a_restart(fired):
    world, _ = begun()
    await_(world, 0, "m:A", "m:B", "m:C", kind="all_of")
    for name in fired:
        fire(world, f"m:{name}", name)
    world.restart()

    assert sorted(waiting(world)) == [f"m:{n}" for n in "ABC" if n not in fired]
    for name in "ABC":
        if name not in fired:
            fire(world, f"m:{name}", name)

    assert answers(world) == [["A", "B", "C"]]
    assert (start_of(world).recorded, resumed(world)) == (1, None)
    assert world.rows.triggers == {}


def test_a_sleep_has_no_host_and_ends_on_time():
    world, run = begun()
    await_(world, 0, kind="sleep", seconds=60)

    world.pass_time(59)
    assert world.state(run, "c") == "deferred"
    world.pass_time(2)

    assert not of_kind(world.effects, AssignTrigger)
    assert (resumed(world).answer, resumed(world).failure) == (None, None)
    assert world.rows.triggers == {}


def test_a_sleep_counts_from_its_first_call_whatever_happens():
    world, _ = begun()
    await_(world, 0, kind="sleep", seconds=60)
    world.pass_time(40)
    world.restart()

    world.pass_time(21)

    assert start_of(world).recorded == 1


@pytest.mark.parametrize("kind", ["wait", "any_of", "all_of"])
def test_a_timeout_is_raised_in_the_call_and_releases_its_triggers(kind):
    world, run = begun()
    await_(world, 0, "m:T", kind=kind, seconds=60)

    world.pass_time(61)

    failure = resumed(world).failure
    assert (failure.type, failure.reason) == ("TimeoutError", "timeout")
    assert world.state(run, "c") == "running"
    assert [end.end.reason for end in of_kind(world.effects, ReleaseTrigger)] == ["timeout"]


def test_a_timeout_releases_what_had_fired_of_a_call_for_all():
    world, _ = begun()
    await_(world, 0, "m:A", "m:B", kind="all_of", seconds=60)
    fire(world, "m:A")

    world.pass_time(61)
    loser = hosted(world, "m:B")
    world.turn(TriggerEnded(loser.trigger_no, loser.assignment_id, world.now))

    assert resumed(world).failure.type == "TimeoutError"
    assert world.rows.triggers == {}


def test_the_time_of_the_try_ends_it_and_stops_the_suspended_coroutine():
    world, run = begun(execution_timeout_us=30 * SECOND, retry=RetryPolicy(tries=1))
    suspended = await_(world, 0, "m:T", seconds=60)

    world.pass_time(31)

    assert world.state(run, "c") == "failed"
    (stop,) = of_kind(world.effects, StopTry)
    assert (stop.task_no, stop.start_no) == (suspended.task_no, suspended.start_no)
    assert world.rows.records == {}


@pytest.mark.parametrize(
    ("reason", "state", "tries"), [("trigger", "retrying", 1), ("trigger_fail", "failed", 1)]
)
def test_fail_in_a_trigger_uses_no_further_tries(reason, state, tries):
    world, run = begun(retry=RetryPolicy(tries=3))
    await_(world, 0, "m:T")
    host = hosted(world, "m:T")

    failure = Failure(type="Fail", message="no use", reason=reason)
    world.turn(TriggerEnded(host.trigger_no, host.assignment_id, world.now, failure))

    assert world.state(run, "c") == state
    assert len(world.rows.tries) == tries


def test_a_trigger_that_fails_fails_the_try_and_the_coroutine_is_stopped():
    world, run = begun(retry=RetryPolicy(tries=1))
    suspended = await_(world, 0, "m:A", "m:B", kind="any_of")
    host = hosted(world, "m:A")

    world.turn(TriggerEnded(host.trigger_no, host.assignment_id, world.now, BROKEN))

    assert world.state(run, "c") == "failed"
    assert [stop.start_no for stop in of_kind(world.effects, StopTry)] == [suspended.start_no]
    assert [end.end.trigger_no for end in of_kind(world.effects, ReleaseTrigger)] == [
        hosted(world, "m:B").trigger_no
    ]


# ── tries ───────────────────────────────────────────────────────────────────────────────


def test_a_retry_keeps_what_was_recorded_before_the_first_failure():
    world, _ = begun()
    step(world, 0, answer=b"\x00")
    step(world, 1, answer=None, failure=BROKEN)
    step(world, 2, answer=b"\x02")  # its body caught the failure

    world.fail("c")
    world.pass_time(1)

    assert (start_of(world).try_number, start_of(world).recorded) == (2, 1)
    assert answers(world) == [0]


def test_a_retry_keeps_everything_where_no_call_failed():
    world, _ = begun()
    step(world, 0)
    step(world, 1)

    world.fail("c")
    world.pass_time(1)

    assert start_of(world).recorded == 2


def test_a_retry_after_a_timeout_waits_again():
    world, _ = begun()
    step(world, 0, answer=b"\x00")
    await_(world, 1, "m:T", seconds=60)
    world.pass_time(61)

    world.fail("c")
    world.pass_time(1)

    assert start_of(world).recorded == 1
    await_(world, 1, "m:T")
    fire(world, "m:T", "late")
    assert answers(world) == [0, "late"]


def test_the_first_failure_is_known_after_a_restart():
    world, _ = begun()
    step(world, 0)
    step(world, 1, answer=None, failure=BROKEN)
    step(world, 2)
    world.restart()

    world.fail("c")
    world.pass_time(1)

    assert start_of(world).recorded == 1


def test_an_open_call_is_made_again_by_the_next_try():
    world, _ = begun()
    await_(world, 0, "m:T")
    host = hosted(world, "m:T")
    world.turn(TriggerEnded(host.trigger_no, host.assignment_id, world.now, BROKEN))
    world.pass_time(1)

    assert start_of(world).recorded == 0
    await_(world, 0, "m:T")
    fire(world, "m:T", "again")

    assert answers(world) == ["again"]


@pytest.mark.parametrize("end", ["succeed", "fail", "cancel"])
def test_records_are_gone_when_their_task_has_ended(end):
    world, run = begun(retry=RetryPolicy(tries=1))
    step(world, 0)
    step(world, 1)

    if end == "cancel":
        world.ask(CancelRun(run_id=world.rows.runs[run].run_id))
    else:
        getattr(world, end)("c")

    assert world.rows.records == {}


@pytest.mark.parametrize("waits", [False, True], ids=["while-it-computes", "while-it-waits"])
def test_a_task_that_is_cleared_begins_with_an_empty_record(waits):
    world, run = begun()
    step(world, 0, answer=b"\x07")
    before = start_of(world)
    if waits:
        await_(world, 1, "m:T")

    world.ask(ClearTasks(run_id=world.rows.runs[run].run_id, tasks=("c",)))

    assert world.rows.records == {}
    assert start_of(world).start_no > before.start_no
    assert (start_of(world).recorded, resumed(world)) == (0, None)
    step(world, 0, answer=b"\x08")
    world.restart()
    assert (start_of(world).recorded, answers(world)) == (1, [8])


def test_a_method_a_task_resumes_in_makes_calls_of_its_own():
    world, _ = begun()
    step(world, 0)
    start = start_of(world)
    world.turn(
        Deferred(start.task_no, start.start_no, world.now, world.now, "m:T", b"\x80", "resume")
    )
    fire(world, "m:T")

    assert (start_of(world).method, start_of(world).recorded) == ("resume", 0)
    assert world.rows.records == {}


# ── hosts that start and end ────────────────────────────────────────────────────────────


def lose(world: World, role: str, culprit: int = -1, failure: Failure = KILLED) -> None:
    lost = HostLost(role=role, culprit=culprit, failure=failure, at=world.now)
    world.turn(lost, HostUp(role))


def test_a_start_that_the_next_host_was_given_already_is_taken_back_from_it():
    """The command of the start was in flight when the host died, and reached the next host."""
    world, _ = begun()
    first = start_of(world)

    lose(world, "async")

    stopped = of_kind(world.effects, StopTry)
    assert [(stop.task_no, stop.start_no) for stop in stopped] == [(first.task_no, first.start_no)]
    started = [e.start.start_no for e in of_kind(world.effects, StartTry)]
    assert started == [first.start_no, first.start_no + 1]
    assert world.effects.index(stopped[0]) < world.effects.index(
        of_kind(world.effects, StartTry)[-1]
    )


def test_a_coroutine_its_host_no_longer_has_runs_again_from_the_top_uncharged():
    world, run = begun()
    await_(world, 0, "m:T")
    fire(world, "m:T", "here")
    asked = start_of(world)

    world.turn(NotSuspended(asked.task_no, asked.start_no))

    start = start_of(world)
    assert resumed(world) is None
    assert (start.start_no, start.recorded) == (asked.start_no + 1, 1)
    (row,) = world.rows.tasks.values()
    assert (row.try_number, row.interruptions) == (1, 0)
    assert world.state(run, "c") == "running"


def test_word_of_an_earlier_start_that_is_not_suspended_is_late():
    world, _ = begun()
    await_(world, 0, "m:T")
    fire(world, "m:T")
    asked = start_of(world)

    world.turn(NotSuspended(asked.task_no, asked.start_no - 1))

    assert start_of(world) == asked


def test_suspended_coroutines_are_not_charged_for_the_death_of_their_host():
    world, run = begun()
    suspended = await_(world, 0, "m:T")

    lose(world, "async", culprit=suspended.task_no)

    assert world.state(run, "c") == "deferred"
    fire(world, "m:T", "here")
    assert (resumed(world), start_of(world).recorded) == (None, 1)
    assert next(iter(world.rows.tasks.values())).interruptions == 0


def test_a_wait_continues_when_the_trigger_host_is_replaced():
    world, _ = begun()
    await_(world, 0, "m:T")
    first = hosted(world, "m:T")

    lose(world, "triggers")
    world.turn(TriggerFired(first.trigger_no, first.assignment_id, 0, world.now, b"\x01"))  # late
    assert world.started("c") is None
    fire(world, "m:T", "here")

    assert msgspec.msgpack.decode(resumed(world).answer) == "here"


def test_the_trigger_that_killed_its_host_fails_its_try_and_lets_the_others_of_its_call_go():
    world, run = begun(retry=RetryPolicy(tries=1))
    await_(world, 0, "m:A", "m:B", kind="any_of")

    lose(world, "triggers", hosted(world, "m:A").trigger_no, CRASHED)

    assert world.state(run, "c") == "failed"
    assert world.rows.triggers == {}


def test_an_open_call_continues_after_a_restart_and_the_task_from_the_top():
    world, run = begun()
    step(world, 0)
    await_(world, 1, "m:T")
    world.restart()
    assert world.state(run, "c") == "deferred"

    fire(world, "m:T", "here")

    assert (resumed(world), start_of(world).recorded) == (None, 2)
    assert answers(world) == [1, "here"]


@pytest.mark.parametrize("kind", ["wait", "any_of", "sleep"])
def test_the_deadline_of_an_open_call_continues_over_a_restart(kind):
    world, run = begun()
    triggers = () if kind == "sleep" else ("m:T",)
    await_(world, 0, *triggers, kind=kind, seconds=30)
    world.pass_time(20)
    world.restart()
    world.pass_time(9)
    assert world.state(run, "c") == "deferred"

    world.pass_time(2)

    assert start_of(world).recorded == 1
    failed = next(iter(world.rows.records.values())).failure
    assert failed is None if kind == "sleep" else failed.type == "TimeoutError"


def test_an_answered_call_is_not_asked_again_after_a_restart():
    world, _ = begun(World(async_slots=1))
    await_(world, 0, "m:T")
    fire(world, "m:T", "here")
    world.restart()

    assert answers(world) == ["here"]
    assert (resumed(world), start_of(world).recorded) == (None, 1)
    assert waiting(world) == []


def test_a_cancelled_run_stops_the_suspended_coroutine_and_lets_its_triggers_go():
    world, run = begun()
    suspended = await_(world, 0, "m:A", "m:B", kind="all_of")
    fire(world, "m:A")

    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    assert world.state(run, "c") == "cancelled"
    assert [stop.start_no for stop in of_kind(world.effects, StopTry)] == [suspended.start_no]
    assert [row.class_path for row in world.rows.triggers.values()] == ["m:B"]
    assert len(of_kind(world.effects, ReleaseTrigger)) == 1
    assert world.rows.records == {}


# ── a coroutine that leaves its own call ────────────────────────────────────────────────


def leave(world: World, suspended: Awaiting, *, interrupted: bool = False) -> None:
    """Let the body of the suspended coroutine end nevertheless."""
    failure = Failure(type="CallCutShort", message="cut short", reason="call_cut_short")
    world.turn(
        Failed(
            suspended.task_no,
            suspended.start_no,
            world.now,
            world.now,
            failure,
            retryable=False,
            interrupted=interrupted,
        )
    )


def test_a_body_that_ends_while_its_call_waits_fails_and_its_trigger_is_released():
    world, run = begun()
    suspended = await_(world, 0, "m:T")

    leave(world, suspended)

    assert world.state(run, "c") == "failed"
    assert not of_kind(world.effects, StopTry)  # it has ended already
    assert len(of_kind(world.effects, ReleaseTrigger)) == 1
    assert world.rows.records == {}


def test_a_body_that_ends_after_its_call_was_answered_runs_again_from_the_top():
    world, run = begun(World(async_slots=1))
    suspended = await_(world, 0, "m:T")
    world.trigger()  # takes the only slot
    fire(world, "m:T", "here")
    assert world.state(run, "c") == "queued"

    leave(world, suspended)
    other = world.starts.popitem()[1].start
    world.turn(Succeeded(other.task_no, other.start_no, world.now, world.now))

    assert (resumed(world), start_of(world).recorded) == (None, 1)


def test_a_coroutine_lost_by_its_host_continues_waiting():
    world, run = begun()
    suspended = await_(world, 0, "m:T")

    leave(world, suspended, interrupted=True)

    assert world.state(run, "c") == "deferred"
    fire(world, "m:T")
    assert (resumed(world), start_of(world).recorded) == (None, 1)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("another fires", "finished"),
        ("another fails", "finished"),
        ("its body ends", "finished"),
        ("its time is over", "timeout"),
        ("a person clears it", "cancelled"),
        ("a person cancels", "cancelled"),
    ],
)
def test_only_what_a_person_ends_gets_the_reason_cancelled(end, reason):
    world, run = begun(retry=RetryPolicy(tries=1))
    suspended = await_(world, 0, "m:A", "m:B", kind="any_of", seconds=60)
    host, run_id = hosted(world, "m:A"), world.rows.runs[run].run_id

    match end:
        case "another fires":
            fire(world, "m:A")
        case "another fails":
            world.turn(TriggerEnded(host.trigger_no, host.assignment_id, world.now, BROKEN))
        case "its body ends":
            leave(world, suspended)
        case "its time is over":
            world.pass_time(61)
        case "a person clears it":
            world.ask(ClearTasks(run_id=run_id, tasks=("c",)))
        case _:
            world.ask(CancelRun(run_id=run_id))

    told = {
        effect.end.trigger_no: effect.end.reason
        for effect in of_kind(world.effects, ReleaseTrigger)
    }
    assert told[hosted(world, "m:B").trigger_no] == reason
    assert set(told.values()) == {reason}


# ── changed code ────────────────────────────────────────────────────────────────────────


def drop(world: World, first: int, *, starts_over: bool) -> list[Any]:
    start = start_of(world)
    return world.turn(RecordDropped(start.task_no, start.start_no, first, starts_over))


def test_calls_that_no_longer_match_are_dropped_and_recorded_again():
    world, _ = begun()
    for ordinal in range(3):
        step(world, ordinal, answer=bytes([ordinal]))

    drop(world, 1, starts_over=False)
    step(world, 1, answer=b"\x09")

    assert answers(world) == [0, 9]


def test_a_failure_before_what_was_dropped_is_still_the_first():
    world, _ = begun()
    step(world, 0, answer=None, failure=BROKEN)
    step(world, 1)
    drop(world, 1, starts_over=False)
    step(world, 1)

    world.fail("c")
    world.pass_time(1)

    assert start_of(world).recorded == 0


def test_a_task_that_starts_over_has_an_empty_record_and_is_not_charged():
    world, _ = begun()
    step(world, 0)
    step(world, 1)
    was = start_of(world)

    drop(world, 0, starts_over=True)

    start = start_of(world)
    assert (start.start_no, start.recorded, start.try_number) == (was.start_no + 1, 0, 1)
    assert world.rows.records == {}
    assert world.slots.running_coroutines == 1


def test_a_record_is_not_dropped_on_the_word_of_an_earlier_start():
    world, _ = begun()
    step(world, 0)
    old = start_of(world)
    world.restart()

    world.turn(RecordDropped(old.task_no, old.start_no, 0, starts_over=True))

    assert answers(world) == [1]


# ── turns taken back ────────────────────────────────────────────────────────────────────


def test_a_refused_step_is_recorded_once_when_it_is_repeated():
    world, _ = begun()
    step(world, 0)
    start = start_of(world)
    report = CallAnswered(start.task_no, start.start_no, 1, "step", "m:f", "flow.py:3", b"\x05")

    world.refuse(report)

    assert answers(world) == [1, 5]
    assert world.slots.running_coroutines == 1


def test_a_refused_wait_suspends_when_it_is_repeated():
    world, run = begun()
    start = start_of(world)
    report = Awaiting(
        start.task_no,
        start.start_no,
        world.now,
        world.now,
        0,
        "wait",
        "m:T",
        "flow.py:4",
        (("m:T", b"\x80"),),
    )

    world.refuse(report)
    del world.starts[start.task_no]
    fire(world, "m:T", "here")

    assert msgspec.msgpack.decode(resumed(world).answer) == "here"
    assert world.slots.running_coroutines == 1
    assert world.state(run, "c") == "running"


def test_a_refused_event_answers_once_when_it_is_repeated():
    world, _ = begun()
    await_(world, 0, "m:A", "m:B", kind="all_of")
    fire(world, "m:A", "a")
    host = hosted(world, "m:B")

    world.refuse(TriggerFired(host.trigger_no, host.assignment_id, 0, world.now, b"\xa1b"))

    assert answers(world) == [["a", "b"]]
    assert start_of(world).recorded == 1
    assert world.rows.triggers == {}


def test_the_host_hears_of_the_end_of_a_run_whose_coroutine_was_forgotten_suspended():
    world, run = begun()
    await_(world, 0, "m:T")
    cancel = RequestReceived(99, CancelRun(run_id=world.rows.runs[run].run_id))

    world.refuse(cancel)

    assert of_kind(world.effects, ForgetRun)  # it releases a suspended coroutine
    assert world.run_state(run) == "cancelled"


def test_a_suspended_coroutine_forgotten_in_a_refused_turn_runs_again_from_the_top():
    world, run = begun()
    await_(world, 0, "m:T")
    _, _, tx = world.decide([RequestReceived(99, CancelRun(run_id=world.rows.runs[run].run_id))])

    world.take_back(tx)
    fire(world, "m:T", "here")

    assert (resumed(world), start_of(world).recorded) == (None, 1)
    assert answers(world) == ["here"]


def test_records_are_ordered_and_without_gaps_whatever_is_reported():
    world, _ = begun()
    step(world, 1)  # no call 0 was ever made

    assert world.rows.records == {}
    step(world, 0)
    assert [row.state for row in world.rows.records.values()] == [RecordState.ANSWERED]
    assert isinstance(world.started("c"), StartTry)


# ── methods ─────────────────────────────────────────────────────────────────────────────


def in_method(world: World) -> None:
    """Let the coroutine resume in a method that receives an event."""
    start = start_of(world)
    world.turn(
        Deferred(start.task_no, start.start_no, world.now, world.now, "m:D", b"\x80", "resume")
    )
    fire(world, "m:D", "given")


@pytest.mark.parametrize("restarts", [False, True])
def test_a_method_that_waits_itself_continues_as_that_method_with_its_event(restarts):
    world, run = begun()
    in_method(world)
    await_(world, 0, "m:T", seconds=60)
    if restarts:
        world.restart()
    fire(world, "m:T", "here")

    start = start_of(world)
    assert start.event is not None
    assert (start.method, msgspec.msgpack.decode(start.event)) == ("resume", "given")
    assert (start.recorded, answers(world)) == (1, ["here"])
    world.succeed("c")
    assert world.run_state(run) == "success"
    assert world.rows.triggers == {}


def test_a_wait_of_a_method_has_its_own_deadline_after_a_restart():
    world, _ = begun()
    in_method(world)
    await_(world, 0, "m:T", seconds=60)
    world.restart()

    world.pass_time(61)

    assert world.rows.records[start_of(world).task_no, 0].failure.type == "TimeoutError"


def test_the_next_try_does_not_replay_the_calls_of_a_method_it_does_not_begin_in():
    world, _ = begun()
    in_method(world)
    step(world, 0)

    world.fail("c")
    world.pass_time(1)

    assert (start_of(world).method, start_of(world).recorded) == ("", 0)
    assert not world.rows.records
    assert not world.rows.triggers


# ── times, and their texts ──────────────────────────────────────────────────────────────


def test_a_clock_that_was_set_back_makes_no_timeout_of_the_end_of_a_try():
    world, run = begun(execution_timeout_us=30 * SECOND, retry=RetryPolicy(tries=1))
    await_(world, 0, "m:T")
    (due,) = {wake.due for wake in world.armed}

    world.now -= 7_200 * SECOND
    world.turn(due)

    assert world.state(run, "c") == "failed"


def test_a_call_for_all_says_what_it_still_waits_for():
    world, run = begun()
    await_(world, 0, "m:A", "m:B", kind="all_of")
    fire(world, "m:A")

    found = world.ask(Explain(run_id=world.rows.runs[run].run_id, tasks=((0, -1),)))

    assert found[0, -1].detail.startswith("m:B")


def test_a_sleep_waits_for_no_host():
    world, run = begun()
    await_(world, 0, kind="sleep", seconds=60)

    found = world.ask(Explain(run_id=world.rows.runs[run].run_id, tasks=((0, -1),)))

    assert (found[0, -1].kind, found[0, -1].until) == ("trigger", world.now + 60 * SECOND)


def test_a_refused_drop_of_the_record_leaves_it_as_it_was():
    world, _ = begun()
    step(world, 0)
    step(world, 1)
    start = start_of(world)
    _, _, tx = world.decide([RecordDropped(start.task_no, start.start_no, 1, False)])

    world.take_back(tx)
    step(world, 2)

    assert len(answers(world)) == 3
