"""Blocks of an event loop are counted, and a trigger class with too many is quarantined."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core.state.crash_attribution import BLOCK_WINDOW_US, BLOCKER_LIMIT, LoopBlockers
from aioflow.core.triggers import migration
from aioflow.errors import RequestError
from aioflow.model.dag import Body, DagSpec, RetryPolicy, TaskSpec
from aioflow.model.states import Failure, TriggerState
from aioflow.protocol.commands import StartTrigger
from aioflow.protocol.effects import AssignTrigger, ReleaseTrigger, Warn
from aioflow.protocol.inputs import (
    HostLost,
    HostUp,
    IsolateTriggerClass,
    LoopBlocked,
    RequestReceived,
)
from aioflow.protocol.reports import Awaiting, Deferred, StreamOpened, TriggerEnded, TriggerFired
from aioflow.protocol.requests import CancelRun, FireTrigger, Unquarantine
from tests.core.world import SECOND, World

SLOW, GOOD = "dag:Slow", "dag:Good"
BLOCKED = Failure(type="Blocked", message="the loop stood still for 30 s", reason="blocked")
KILLED = Failure(type="Killed", message="SIGKILL", reason="killed")
SEGFAULT = Failure(type="Crashed", message="SIGSEGV", reason="crashed")
ONCE = RetryPolicy(tries=1)


def spec(*names: str, body: Body = Body.FUNCTION) -> DagSpec:
    tasks = tuple(TaskSpec(task_id=name, retry=ONCE, body=body) for name in names)
    return DagSpec(dag_id="dag", file="dag.py", tasks=tasks)


def defer(world: World, name: str, class_path: str) -> None:
    effect = world.started(name)
    assert effect is not None, "it has not been started"
    start = world.starts.pop(effect.start.task_no).start
    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(Deferred(*at, class_path, b"\x80", "after"))


def waiting(*class_paths: str) -> tuple[World, int]:
    """Start a run with one task per class, named ``t0`` and so on, all of them deferred."""
    world = World(cpu_slots=len(class_paths))
    names = [f"t{number}" for number in range(len(class_paths))]
    world.load(spec(*names))
    run = world.trigger()
    for name, class_path in zip(names, class_paths, strict=True):
        defer(world, name, class_path)
    return world, run


def hosted(effects: list[Any]) -> list[tuple[str, str]]:
    """Return the classes that were assigned to hosts, with the role of each host."""
    return [(e.host.class_path, e.role) for e in effects if isinstance(e, AssignTrigger)]


def host_of(world: World, class_path: str) -> StartTrigger:
    """Return the last assignment of a trigger of the class."""
    orders = [e.host for e in world.effects if isinstance(e, AssignTrigger)]
    return next(host for host in reversed(orders) if host.class_path == class_path)


def ended(effects: list[Any]) -> list[tuple[int, str, str]]:
    return [
        (e.end.assignment_id, e.end.reason, e.role)
        for e in effects
        if isinstance(e, ReleaseTrigger)
    ]


def told(effects: list[Any]) -> list[str]:
    return [effect.message for effect in effects if isinstance(effect, Warn)]


def stall(world: World, incident: int, milliseconds: int = 120, **fields: Any) -> list[Any]:
    """Report that the trigger of class ``Slow`` blocks its event loop."""
    number = fields.pop("culprit", None) or host_of(world, SLOW).trigger_no
    return world.turn(
        LoopBlocked(
            role=fields.pop("role", "triggers"),
            culprit=number,
            incident=f"1.{incident}",
            milliseconds=milliseconds,
            source_location="dag.py:7 in Slow.run",
            **fields,
        )
    )


def left(world: World, host: StartTrigger) -> list[Any]:
    """Have the host confirm that it has released a trigger as requested."""
    at = (host.trigger_no, host.assignment_id, world.now)
    return world.turn(TriggerEnded(*at, None, "reassigned"))


def lose(world: World, role: str, culprit: int, failure: Failure = BLOCKED) -> list[Any]:
    return world.turn(HostLost(role=role, culprit=culprit, failure=failure, at=world.now))


def quarantined() -> tuple[World, int]:
    """Return a world with a slow trigger in the quarantine host, and a good one outside."""
    world, run = waiting(SLOW, GOOD)
    stall(world, 1, milliseconds=5_000)
    left(world, host_of(world, SLOW))
    world.turn(HostUp("quarantine"))
    assert hosted(world.effects)[-1] == (SLOW, "quarantine")
    return world, run


# ── counting ────────────────────────────────────────────────────────────────────────────


def test_stalls_are_counted_by_class_with_where_the_last_one_stood():
    world, _ = waiting(SLOW)
    stall(world, 1, 120)
    stall(world, 1, 1_000)
    stall(world, 1, 1_400, is_over=True)
    stall(world, 2, 200)

    [known] = world.memory.loop_blockers.all()
    assert (known.kind, known.name, known.task_id) == ("trigger", SLOW, "t0")
    assert (known.count, known.longest_ms, known.total_ms) == (2, 1_400, 1_600)
    assert known.source_location == "dag.py:7 in Slow.run"


def test_coroutines_are_counted_by_task_and_stay_where_they_are():
    world = World()
    world.load(spec("a", body=Body.COROUTINE))
    world.trigger()
    effect = world.started("a")
    assert effect is not None

    for incident in range(5):
        effects = stall(world, incident, 9_000, role="async", culprit=effect.start.task_no)
        assert not any(isinstance(effect, IsolateTriggerClass) for effect in effects)

    [known] = world.memory.loop_blockers.all()
    assert (known.kind, known.name, known.count) == ("task", "dag.a", 5)


def test_a_stall_of_a_trigger_without_a_wait_counts_for_its_class():
    """The trigger has fired its event, and its host has not released it yet."""
    world, _ = waiting(GOOD, GOOD)
    gone = {"culprit": 12_345, "class_path": SLOW}

    stall(world, 1, 300, **gone)
    [known] = world.memory.loop_blockers.all()
    assert (known.kind, known.name, known.count, known.is_quarantined) == (
        "trigger",
        SLOW,
        1,
        False,
    )

    blocked = HostLost(
        role="triggers", culprit=12_345, failure=BLOCKED, at=world.now, class_path=SLOW
    )
    world.turn(blocked)
    assert known.is_quarantined
    assert hosted(world.turn(HostUp("triggers"))) == [(GOOD, "triggers")] * 2


def test_a_stall_of_something_unknown_counts_for_no_class():
    world, _ = waiting(SLOW)

    assert stall(world, 1, culprit=12_345) == []
    assert world.memory.loop_blockers.all() == []


def test_a_stall_is_reported_with_owner_and_location():
    world, _ = waiting(SLOW)

    [warning] = [e for e in stall(world, 1, 120) if isinstance(e, Warn)]

    assert warning.message == "user code holds up the loop of its host"
    run = next(iter(world.rows.runs.values()))
    assert warning.facts == {
        "trigger": SLOW,
        "trigger_id": host_of(world, SLOW).trigger_no,
        "run_id": run.run_id,
        "task_id": "t0",
        "source_location": "dag.py:7 in Slow.run",
        "milliseconds": 120,
        "count": 1,
        "host": "triggers",
    }


def test_constant_stalls_are_reported_once_a_second():
    world, _ = quarantined()
    lines = 0
    for incident in range(2, 42):
        world.pass_time(0.1)
        lines += len(told(stall(world, incident, role="quarantine")))

    assert 4 <= lines <= 5


def test_no_more_names_are_stored_than_are_shown():
    stalls = LoopBlockers()
    stalls.find("trigger", SLOW).is_quarantined = True
    for number in range(2 * BLOCKER_LIMIT):
        stalls.find("task", f"dag.t{number}")

    assert len(stalls.all()) == BLOCKER_LIMIT
    assert stalls.is_quarantined(SLOW)


# ── quarantine ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("stalls", "moves"),
    [
        pytest.param([(0, 4_999)], False, id="one-below-five-seconds"),
        pytest.param([(0, 5_000)], True, id="one-of-five-seconds"),
        pytest.param([(0, 120), (1, 120)], False, id="two"),
        pytest.param([(0, 120), (1, 120), (1, 120)], True, id="three"),
        pytest.param([(0, 120), (1, 120), (BLOCK_WINDOW_US / 1e6, 120)], False, id="three-in-long"),
    ],
)
def test_a_class_goes_into_quarantine_after(stalls, moves):
    world, _ = waiting(SLOW, GOOD)
    before = host_of(world, SLOW)
    effects: list[Any] = []

    for incident, (seconds, milliseconds) in enumerate(stalls):
        world.pass_time(seconds)
        effects = stall(world, incident, milliseconds)

    assert ended(effects) == ([(before.assignment_id, "reassigned", "triggers")] if moves else [])


def test_a_second_report_of_one_stall_is_not_another_stall():
    world, _ = waiting(SLOW)
    for milliseconds in (120, 1_000, 2_000, 4_900):
        assert not ended(stall(world, 1, milliseconds))


def test_a_long_import_is_reported_but_not_counted():
    world, _ = waiting(SLOW)
    for incident in range(5):
        assert not ended(stall(world, incident, 9_000, is_loading=True))

    assert world.memory.loop_blockers.all()[0].count == 5


def test_a_stall_whose_turn_was_taken_back_counts_once():
    world, _ = waiting(SLOW)
    stalled = LoopBlocked(
        role="triggers", culprit=host_of(world, SLOW).trigger_no, incident="1.1",
        milliseconds=5_000, source_location="dag.py:7",
    )  # fmt: skip

    world.refuse(stalled)

    assert world.memory.loop_blockers.all()[0].count == 1
    assert ended(world.effects) == [(host_of(world, SLOW).assignment_id, "reassigned", "triggers")]


def test_an_offender_moves_once_it_has_left_and_the_others_stay():
    world, run = waiting(SLOW, GOOD)
    before = host_of(world, SLOW)
    world.now += 7 * SECOND
    assert "a trigger class goes into quarantine" in told(stall(world, 1, 5_000))

    # There is no quarantine host yet. The first command starts it, and is repeated later.
    assert hosted(left(world, before)) == [(SLOW, "quarantine")]
    assert hosted(world.turn(HostUp("quarantine"))) == [(SLOW, "quarantine")]

    after = host_of(world, SLOW)
    assert after.trigger_no == before.trigger_no
    assert after.since == before.since
    world.turn(TriggerFired(after.trigger_no, after.assignment_id, 0, world.now, b"\x01"))
    world.succeed("t0")
    assert world.state(run, "t0") == "success"


def test_reports_of_a_moved_trigger_from_its_old_host_are_late():
    world, run = quarantined()
    now = host_of(world, SLOW)

    world.turn(TriggerFired(now.trigger_no, now.assignment_id - 1, 0, world.now, b"\x01"))

    assert world.state(run, "t0") == "deferred"


def test_a_new_trigger_of_the_class_goes_straight_into_quarantine():
    world, _ = quarantined()
    world.trigger()
    defer(world, "t0", SLOW)
    defer(world, "t1", GOOD)

    assert hosted(world.effects)[-2:] == [(SLOW, "quarantine"), (GOOD, "triggers")]


def test_the_quarantine_host_is_not_given_what_another_host_still_has():
    world, _ = waiting(SLOW, GOOD)
    before = host_of(world, SLOW)
    stall(world, 1, 5_000)

    assert hosted(world.turn(HostUp("quarantine"))) == []
    assert hosted(left(world, before)) == [(SLOW, "quarantine")]


def test_a_class_with_many_triggers_moves_in_several_turns(monkeypatch):
    monkeypatch.setattr(migration, "REHOST_AT_ONCE", 20)
    world = World(cpu_slots=25)
    world.load(spec(*(f"t{number}" for number in range(25))))
    world.trigger()
    for number in range(25):
        defer(world, f"t{number}", SLOW)

    effects = stall(world, 1, 5_000)

    assert len(ended(effects)) == 25
    moves = [effect for effect in effects if isinstance(effect, IsolateTriggerClass)]
    assert [move.after < 0 for move in moves] == [True, False]


def test_a_stream_that_moves_continues_where_it_was():
    world = World()
    world.load(spec("t0", body=Body.COROUTINE))
    world.trigger()
    effect = world.started("t0")
    assert effect is not None
    start = effect.start
    world.turn(StreamOpened(start.task_no, start.start_no, 0, "stream", "s", "p", SLOW, b"\x80", 4))
    before = host_of(world, SLOW)
    world.turn(TriggerFired(before.trigger_no, before.assignment_id, 0, world.now, b"\x01", "one"))
    stall(world, 1, 5_000)

    left(world, before)

    assert host_of(world, SLOW).last == (b"\x01", "one")
    assert hosted(world.effects)[-1] == (SLOW, "quarantine")


def test_a_task_that_is_cancelled_tells_the_host_that_has_its_trigger():
    world, run = quarantined()
    now = host_of(world, SLOW)

    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    assert (now.assignment_id, "cancelled", "quarantine") in ended(world.effects)


def is_on_its_way() -> tuple[World, int, StartTrigger]:
    """Assign a slow trigger to a quarantine host that has not sent its ``HostUp`` yet."""
    world, run = waiting(SLOW)
    stall(world, 1, milliseconds=5_000)
    left(world, host_of(world, SLOW))
    assert "quarantine" not in world.memory.hosts_up
    return world, run, host_of(world, SLOW)


def test_a_trigger_whose_host_may_be_up_already_is_released_before_its_row_is_deleted():
    world, run, now = is_on_its_way()

    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    assert ended(world.effects)[-1] == (now.assignment_id, "cancelled", "quarantine")
    assert world.rows.triggers[now.trigger_no].state is TriggerState.ENDING
    world.turn(HostUp("quarantine"))
    assert host_of(world, SLOW) == now
    world.turn(TriggerEnded(now.trigger_no, now.assignment_id, world.now, None, "cancelled"))
    assert now.trigger_no not in world.rows.triggers


def test_a_trigger_assigned_and_released_in_one_turn_stays_stored():
    world, run = waiting(SLOW)
    stall(world, 1, milliseconds=5_000)
    before = host_of(world, SLOW)
    cancel = CancelRun(run_id=world.rows.runs[run].run_id)

    world.turn(
        TriggerEnded(before.trigger_no, before.assignment_id, world.now, None, "reassigned"),
        RequestReceived(1, cancel),
    )

    now = host_of(world, SLOW)
    assert (now.assignment_id, "cancelled", "quarantine") in ended(world.effects)
    assert world.rows.triggers[now.trigger_no].state is TriggerState.ENDING


def test_a_manual_event_ends_the_assignment_to_a_host_that_may_be_up_already():
    world, _, now = is_on_its_way()

    world.ask(FireTrigger(trigger_no=now.trigger_no, payload=b"\x01"))

    assert ended(world.effects)[-1] == (now.assignment_id, "finished", "quarantine")


def test_those_beside_the_culprit_are_not_ended_in_the_host_that_is_gone():
    world = World()
    run = world.begin(TaskSpec(task_id="t0", retry=ONCE, body=Body.COROUTINE))
    effect = world.started("t0")
    assert effect is not None
    start = world.starts.pop(effect.start.task_no).start
    at = (start.task_no, start.start_no, world.now, world.now)
    wanted = ((SLOW, b"\x80"), (GOOD, b"\x80"))
    world.turn(Awaiting(*at, 0, "any_of", "both", "dag.py:4", wanted, None))

    lose(world, "triggers", host_of(world, SLOW).trigger_no, SEGFAULT)

    assert world.state(run, "t0") == "failed"
    assert ended(world.effects) == []
    assert world.rows.triggers == {}


def test_a_restart_forgets_it():
    world, _ = quarantined()

    world.restart()

    assert hosted(world.effects) == [(SLOW, "triggers"), (GOOD, "triggers")]
    assert world.memory.loop_blockers.all() == []


# ── coming back ─────────────────────────────────────────────────────────────────────────


def test_a_class_leaves_quarantine_on_request():
    world, _ = quarantined()
    apart = host_of(world, SLOW)

    assert world.ask(Unquarantine(class_path=SLOW)) is True
    assert ended(world.effects)[-1] == (apart.assignment_id, "reassigned", "quarantine")
    assert hosted(left(world, apart)) == [(SLOW, "triggers")]
    assert world.ask(Unquarantine(class_path=SLOW)) is False


def test_a_class_that_left_quarantine_has_its_chances_again():
    world, _ = quarantined()
    world.ask(Unquarantine(class_path=SLOW))
    left(world, host_of(world, SLOW))

    assert not ended(stall(world, 7) + stall(world, 8))
    assert ended(stall(world, 9))


def test_an_unknown_class_cannot_leave_quarantine():
    world, _ = waiting(SLOW)

    with pytest.raises(RequestError, match="triggers slow"):
        world.ask(Unquarantine(class_path="dag:Typo"))


# ── a loop that is blocked for too long ─────────────────────────────────────────────────


def test_a_trigger_that_blocked_for_too_long_gets_another_chance_in_quarantine():
    world, run = waiting(SLOW, GOOD)

    effects = lose(world, "triggers", host_of(world, SLOW).trigger_no)

    assert hosted(effects) == [(SLOW, "quarantine")]
    assert hosted(world.turn(HostUp("quarantine"), HostUp("triggers"))) == [
        (SLOW, "quarantine"),
        (GOOD, "triggers"),
    ]
    assert world.state(run, "t0") == "deferred"


def test_a_trigger_that_blocks_there_too_fails_without_charging_others():
    world, run = waiting(SLOW, SLOW, GOOD)
    culprit = host_of(world, SLOW).trigger_no
    lose(world, "triggers", culprit)
    world.turn(HostUp("quarantine"), HostUp("triggers"))

    lose(world, "quarantine", culprit)
    again = world.turn(HostUp("quarantine"))

    states = {name: world.state(run, name) for name in ("t0", "t1", "t2")}
    assert sorted(states.values()) == ["deferred", "deferred", "failed"]
    [failed] = [row for row in world.rows.tasks.values() if row.state.label == "failed"]
    assert failed.failure.reason == "stalled"
    assert hosted(again) == [(SLOW, "quarantine")]


def test_a_trigger_that_crashes_its_host_fails_at_once():
    world, run = waiting(SLOW)

    lose(world, "triggers", host_of(world, SLOW).trigger_no, SEGFAULT)

    assert world.state(run, "t0") == "failed"


def test_tasks_that_ran_when_their_host_was_killed_continue_uncharged():
    world, run = waiting(SLOW)
    first = host_of(world, SLOW)

    lose(world, "triggers", first.trigger_no, KILLED)
    world.turn(HostUp("triggers"))

    again = host_of(world, SLOW)
    assert (again.trigger_no, again.assignment_id > first.assignment_id) == (first.trigger_no, True)
    assert world.state(run, "t0") == "deferred"
    assert not world.rows.tries


def test_a_trigger_that_runs_whenever_its_host_is_killed_fails_at_the_sixth_time():
    world, run = waiting(SLOW, GOOD)
    number = host_of(world, SLOW).trigger_no

    for _ in range(6):
        assert world.state(run, "t0") == "deferred"
        lose(world, "triggers", number, KILLED)
        world.pass_time(1)
        world.turn(HostUp("triggers"))

    assert (world.state(run, "t0"), world.state(run, "t1")) == ("failed", "deferred")
    [failed] = [row for row in world.rows.tasks.values() if row.state.label == "failed"]
    assert failed.failure.reason == "interrupted"
    assert "6 times" in failed.failure.message


def test_a_kill_whose_turn_was_taken_back_counts_once():
    world, run = waiting(SLOW)
    number = host_of(world, SLOW).trigger_no

    for _ in range(5):
        world.refuse(HostLost(role="triggers", culprit=number, failure=KILLED, at=world.now))
        world.pass_time(1)
        world.turn(HostUp("triggers"))

    assert world.state(run, "t0") == "deferred"


def test_the_death_of_one_host_takes_nothing_from_the_other():
    world, _ = quarantined()
    good = host_of(world, GOOD)

    lose(world, "quarantine", -1)

    assert world.memory.waits[good.trigger_no].assignment_id == good.assignment_id
    assert hosted(world.turn(HostUp("quarantine"))) == [(SLOW, "quarantine")]
