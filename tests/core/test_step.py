"""Turns from a user's view: how a run changes with the reports on its tasks."""

from __future__ import annotations

import itertools
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from aioflow.core import transaction
from aioflow.core.runs import cancel
from aioflow.errors import (
    BadConf,
    BadPool,
    DagBroken,
    DagPresent,
    DagRunning,
    RequestError,
    RunExists,
    UnknownDag,
    UnknownRun,
)
from aioflow.model.dag import (
    Body,
    DagSpec,
    MapSource,
    MapSpec,
    RetryPolicy,
    ScheduleSpec,
    SensorSpec,
)
from aioflow.model.rows import PoolRow
from aioflow.model.states import Failure, TriggerRule, WaitKind
from aioflow.protocol.effects import (
    AssignTrigger,
    RecallTries,
    ReleaseTrigger,
    RestoreCode,
    StartTry,
    StopTry,
)
from aioflow.protocol.inputs import (
    AlertRaised,
    CodeRestored,
    Drain,
    FileBroken,
    FileDeleted,
    FileParsed,
    HostLost,
    HostUp,
    RequestReceived,
)
from aioflow.protocol.reports import (
    CallAnswered,
    Deferred,
    Failed,
    Labelled,
    Recalled,
    SensorNotReady,
    Succeeded,
    TaskStarted,
    TriggerEnded,
    TriggerFired,
)
from aioflow.protocol.requests import (
    CancelRun,
    CreateRun,
    DeleteDag,
    Explain,
    SetPaused,
    SetPool,
    ShowPools,
)
from tests.core.specs import mapped, task
from tests.core.test_schedules import fire_times_run
from tests.core.world import SECOND, World

ONCE = RetryPolicy(tries=1)


KILLED = Failure(type="Killed", message="SIGKILL", reason="killed")
SEGFAULT = Failure(type="Killed", message="SIGSEGV", reason="crashed")


# ── a run from end to end ───────────────────────────────────────────────────────────────


def test_a_chain_runs_in_order_and_the_run_succeeds():
    world = World()
    run = world.begin(task("a"), task("b", 0), task("c", 1))
    assert world.started("a")
    assert not world.started("b")

    world.succeed("a")
    world.succeed("b")
    assert world.run_state(run) == "running"
    world.succeed("c")

    assert [world.state(run, name) for name in "abc"] == ["success"] * 3
    assert world.run_state(run) == "success"
    assert not world.memory.runs
    assert not world.memory.active_tasks


def test_a_small_result_travels_with_the_start_of_the_task_that_takes_it():
    world = World()
    world.begin(task("a"), task("b", 0))

    world.succeed("a", body=b"\x2a", size=1)

    start = world.started("b").start
    assert (start.results, start.at_hand) == ({0: b"\x2a"}, (0,))


def test_a_none_result_is_at_hand_without_a_body():
    world = World()
    world.begin(task("a"), task("b", 0))

    world.succeed("a")

    start = world.started("b").start
    assert (start.results, start.at_hand) == ({}, (0,))
    assert not world.rows.results


def test_a_large_result_is_left_for_the_child_to_ask_for():
    world = World()
    world.begin(task("a"), task("b", 0))

    world.succeed("a", body=b"x" * 2000, size=2000)

    assert world.started("b").start.at_hand == ()


def test_a_hundred_thousand_tasks_wide_fan_out_makes_no_object_per_child():
    world = World()
    run = world.begin(task("list", feeds_limit=200_000), mapped("work", 0, map_limit=200_000))

    world.succeed("list", size=9, width=100_000)

    assert len(world.memory.active_tasks) == 2
    assert world.rows.expansions[run, 1].width == 100_000
    assert len([row for row in world.rows.tasks.values() if row.task_index == 1]) == 2


# ── retries ─────────────────────────────────────────────────────────────────────────────


def test_a_failed_try_runs_again_after_its_delay_and_keeps_its_story():
    world = World(random=0.0)
    run = world.begin(task("a", retry=RetryPolicy(tries=3, delay_us=2 * SECOND, jitter=False)))

    world.fail("a")
    assert world.state(run, "a") == "retrying"
    world.pass_time(1.9)
    assert world.started("a") is None
    world.pass_time(0.2)

    assert world.started("a").start.try_number == 2
    world.succeed("a")
    assert world.run_state(run) == "success"
    assert [(row.try_number, row.state.label) for row in world.rows.tries] == [
        (1, "failed"),
        (2, "success"),
    ]


def test_the_last_try_fails_the_task_and_what_follows():
    world = World()
    run = world.begin(task("a", retry=ONCE), task("b", 0), task("c", 1))

    world.fail("a")

    assert [world.state(run, name) for name in "abc"] == [
        "failed",
        "upstream_failed",
        "upstream_failed",
    ]
    assert world.run_state(run) == "failed"


def test_a_failure_that_no_try_can_help_is_not_retried():
    world = World()
    run = world.begin(task("a"))

    world.fail("a", retryable=False)

    assert world.state(run, "a") == "failed"


def test_a_clock_that_is_set_neither_holds_up_nor_hurries_a_retry():
    world = World()
    world.begin(task("a", retry=RetryPolicy(tries=2, delay_us=2 * SECOND, jitter=False)))
    world.fail("a")
    due = world.armed.pop()

    world.now -= 3600 * SECOND
    world.turn(due.due)

    assert world.started("a").start.try_number == 2


# ── outcomes ────────────────────────────────────────────────────────────────────────────


def test_a_failure_without_a_handler_makes_a_green_run_partial():
    world = World()
    run = world.begin(task("a", retry=ONCE), task("b", 0, rule=TriggerRule.ALL_DONE))

    world.fail("a")
    world.succeed("b")

    assert world.run_state(run) == "partial"


def test_a_failover_is_a_plain_success():
    world = World()
    run = world.begin(
        task("first", retry=ONCE),
        task("second"),
        task("use", 0, 1, rule=TriggerRule.ONE_SUCCESS),
    )

    world.fail("first")
    world.succeed("second")
    world.succeed("use")

    assert world.run_state(run) == "success"


def test_an_early_decision_does_not_wait_for_the_siblings():
    world = World()
    run = world.begin(task("a", retry=ONCE), task("b"), task("c", 0, 1))

    world.fail("a")

    assert world.state(run, "c") == "upstream_failed"
    assert world.run_state(run) == "running"
    world.succeed("b")
    assert world.run_state(run) == "failed"


# ── fan-out ─────────────────────────────────────────────────────────────────────────────


def test_children_are_counted_one_by_one_by_the_fan_in():
    world = World()
    run = world.begin(task("list", feeds_limit=9), mapped("work", 0, map_limit=9), task("sum", 1))
    world.succeed("list", size=9, width=5)

    for index in range(5):
        assert world.started("sum") is None
        world.succeed("work", index)
    world.succeed("sum")

    assert world.run_state(run) == "success"


def test_an_empty_list_skips_the_mapped_task_and_what_needs_it():
    world = World()
    run = world.begin(task("list", feeds_limit=9), mapped("work", 0), task("sum", 1))

    world.succeed("list", width=0)

    assert world.state(run, "work") == "skipped"
    assert world.state(run, "sum") == "skipped"
    assert world.run_state(run) == "success"


def test_a_product_over_the_cap_fails_before_a_single_child_exists():
    world = World()
    both = MapSpec(sources=(MapSource("x", 0, -1), MapSource("y", -1, 100)))
    run = world.begin(
        task("list", feeds_limit=50), task("work", 0, mapped=both, map_limit=50), task("sum", 1)
    )

    world.succeed("list", size=9, width=2)

    assert world.state(run, "work") == "failed"
    assert not world.rows.expansions
    assert [alert.kind for alert in world.alerts()] == ["alert"]
    assert world.run_state(run) == "failed"


def test_an_upstream_refused_for_its_width_alerts():
    world = World()
    run = world.begin(task("list", feeds_limit=9), mapped("work", 0))

    world.fail("list", reason="fanout_cap", retryable=False)

    assert world.state(run, "list") == "failed"
    assert len(world.alerts()) == 1
    assert world.rows.outbox


def test_a_window_bounds_the_children_in_flight():
    world = World(cpu_slots=10)
    world.begin(task("list", feeds_limit=9), mapped("work", 0, window=3))
    world.succeed("list", size=9, width=9)
    assert len(world.starts) == 3

    world.succeed("work", 0)

    assert len(world.starts) == 3
    assert world.started("work", 3)


def test_a_child_that_waits_for_its_limit_is_not_blocked_by_the_window_of_later_ones():
    world = World(cpu_slots=9)
    retry = RetryPolicy(tries=2, delay_us=SECOND, jitter=False)
    work = mapped("work", 0, window=3, max_active_tis_per_dagrun=1, retry=retry)
    world.begin(task("list", feeds_limit=9), work)
    world.succeed("list", size=9, width=9)
    world.fail("work", 0)
    world.pass_time(2)

    for child in (1, 2):
        start = world.starts.pop(world.started("work", child).start.task_no).start
        times = (start.task_no, start.start_no, world.now, world.now)
        world.turn(Deferred(*times, "x:Y", b"\x80", "resume", None))

    assert world.started("work", 0)


def test_a_task_that_ended_while_a_limit_blocked_it_takes_no_slot():
    world = World(cpu_slots=9)
    retry = RetryPolicy(tries=2, delay_us=SECOND, jitter=False)
    sensor = SensorSpec(interval_us=SECOND, timeout_us=3 * SECOND)
    world.begin(
        task("urgent", priority=2, retry=retry),
        task("file", priority=1, sensor=sensor),
        task("long"),
        task("last"),
        max_active_tasks=1,
    )
    world.fail("urgent")
    look = world.starts.pop(world.started("file").start.task_no).start
    world.turn(SensorNotReady(look.task_no, look.start_no, world.now, world.now))
    world.pass_time(2)
    world.pass_time(2)
    world.succeed("long")

    world.succeed("urgent")

    assert world.started("last")


def test_a_task_that_no_longer_fits_its_pool_blocks_no_task_of_its_run():
    world = World(cpu_slots=9)
    world.begin(
        task("first", priority=2),
        task("wide", priority=1, pool="narrow", slots=2),
        task("last"),
        max_active_tasks=1,
    )
    world.ask(SetPool(name="narrow", slots=1))

    world.succeed("first")

    assert world.started("last")


# ── slots ───────────────────────────────────────────────────────────────────────────────


def test_no_more_functions_run_than_there_are_slots():
    world = World(cpu_slots=2)
    run = world.begin(*(task(f"t{i}") for i in range(5)))

    running = [row for row in world.rows.tasks.values() if row.state.label == "running"]
    assert len(running) == 2
    assert world.state(run, "t4") == "queued"
    assert sum(effect.claimed for effect in world.starts.values()) == 0


def test_short_tasks_are_claimed_ahead_behind_a_running_one():
    world = World(cpu_slots=1)
    world.begin(task("list", feeds_limit=99), mapped("work", 0, map_limit=99))
    world.succeed("list", size=9, width=50)
    assert len(world.starts) == 1

    world.succeed("work", 0)  # 50 microseconds: now it is known how short they are

    claimed = [e.start.map_index for e in world.starts.values() if e.claimed]
    assert claimed == list(range(2, 50))
    running = [row for row in world.rows.tasks.values() if row.state.label == "running"]
    assert [row.map_index for row in running] == [1]


def test_as_many_are_claimed_as_fit_into_five_milliseconds():
    world = World(cpu_slots=1)
    world.begin(task("list", feeds_limit=500), mapped("work", 0, map_limit=500))
    world.succeed("list", size=9, width=500)

    world.succeed("work", 0)  # 50 microseconds, so a hundred fit with the one that runs

    assert sum(effect.claimed for effect in world.starts.values()) == 99


def test_a_claimed_try_begins_in_the_slot_of_the_one_before_it():
    world = World(cpu_slots=1)
    world.begin(task("list", feeds_limit=99), mapped("work", 0, map_limit=99))
    world.succeed("list", size=9, width=4)
    world.succeed("work", 0)
    first, second = world.started("work", 1).start, world.started("work", 2).start

    world.turn(
        Succeeded(first.task_no, first.start_no, world.now, world.now + 9),
        TaskStarted(second.task_no, second.start_no, world.now + 9),
    )

    states = [world.rows.tasks[start.task_no].state.label for start in (first, second)]
    assert states == ["success", "running"]


def test_a_cancel_stops_what_is_claimed_as_it_does_what_runs():
    world = World(cpu_slots=1)
    run = world.begin(task("list", feeds_limit=99), mapped("work", 0, map_limit=99))
    world.succeed("list", size=9, width=4)
    world.succeed("work", 0)
    sent = {(e.start.task_no, e.start.start_no): e.claimed for e in world.starts.values()}

    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    stops = [effect for effect in world.effects if isinstance(effect, StopTry)]
    assert sorted(sent.values()) == [False, True, True]
    assert {(stop.task_no, stop.start_no) for stop in stops} == set(sent)


def test_a_child_is_called_what_its_last_start_says_and_a_late_word_changes_nothing():
    world = World(cpu_slots=1)
    world.begin(task("list", feeds_limit=99), mapped("work", 0, map_limit=99))
    world.succeed("list", size=9, width=2)
    start = world.started("work", 0).start

    world.turn(Labelled(start.task_no, start.start_no, "anna"))
    world.turn(Labelled(start.task_no, start.start_no - 1, "bert"))
    assert world.rows.labels == {start.task_no: "anna"}

    world.fail("work", 0, retryable=False)
    world.turn(Labelled(start.task_no, start.start_no, "carl"))
    assert world.rows.labels == {start.task_no: "anna"}


def given_back(world: World) -> tuple[tuple[int, int], ...]:
    """Remove the claimed tries, as a worker that returns them does. Return their keys."""
    tries = tuple((e.start.task_no, e.start.start_no) for e in world.starts.values() if e.claimed)
    for task_no, _ in tries:
        world.starts.pop(task_no)
    return tries


def test_recalled_tries_wait_again_uncharged():
    world = World(cpu_slots=1)
    run = world.begin(task("list", feeds_limit=99), mapped("work", 0, map_limit=99))
    world.succeed("list", size=9, width=4)
    world.succeed("work", 0)
    tries = given_back(world)
    world.fail("work", 1, reason="crashed")

    world.turn(Recalled(tries))

    assert world.started("work", 2).claimed is False
    assert world.rows.tasks[tries[0][0]].interruptions == 0
    assert world.state(run, "work", 2) == "running"


def test_a_pool_lets_in_only_its_weight():
    world = World(cpu_slots=8)
    world.slots.pools["ledger"] = PoolRow(name="ledger", slots=3)
    run = world.begin(*(task(f"t{i}", pool="ledger", slots=2) for i in range(3)), task("other"))

    assert world.started("t0")
    assert world.started("other")
    assert not world.started("t1")
    answer = world.ask(Explain(run_id=world.rows.runs[run].run_id, tasks=((1, -1),)))
    assert answer[1, -1].kind is WaitKind.SLOT
    assert "ledger" in answer[1, -1].detail
    world.succeed("t0")
    assert world.started("t1")


def test_a_higher_priority_goes_first():
    world = World(cpu_slots=1)
    world.begin(task("low"), task("lower", priority=-1), task("high", priority=5))

    world.finish_all()

    order = [e.start.task_index for e in world.effects if isinstance(e, StartTry)]
    assert order == [2, 0, 1]


def test_max_active_tasks_keeps_the_rest_waiting():
    world = World(cpu_slots=8)
    world.begin(task("a"), task("b"), task("c"), max_active_tasks=2)
    assert len(world.starts) == 2

    world.finish_all()

    assert [row.state.label for row in world.rows.tasks.values()] == ["success"] * 3


# ── deferring ───────────────────────────────────────────────────────────────────────────


def defer(world: World, name: str, **fields: Any) -> AssignTrigger | None:
    start = world.starts.pop(world.started(name).start.task_no).start
    effects = world.turn(
        Deferred(
            start.task_no,
            start.start_no,
            world.now,
            world.now + 9,
            "m:T",
            b"\x80",
            "resumed",
            **fields,
        )
    )
    return next((e for e in effects if isinstance(e, AssignTrigger)), None)


def test_a_deferred_task_holds_no_slot_and_resumes_first():
    world = World(cpu_slots=1)
    run = world.begin(task("wait"), task("x"), task("y"))
    hosted = defer(world, "wait")
    assert world.state(run, "wait") == "deferred"
    assert world.started("x")
    assert len(world.rows.triggers) == 1

    world.turn(
        TriggerFired(hosted.host.trigger_no, hosted.host.assignment_id, 0, world.now, b"\x01")
    )
    world.succeed("x")

    start = world.started("wait").start
    assert (start.method, start.event, start.try_number) == ("resumed", b"\x01", 1)
    world.finish_all()
    assert not world.rows.triggers
    assert world.run_state(run) == "success"


def test_an_event_of_an_old_hosting_is_late():
    world = World()
    run = world.begin(task("wait"))
    hosted = defer(world, "wait")
    world.turn(HostLost(role="triggers", culprit=-1, failure=SEGFAULT, at=world.now))
    again = next(e for e in world.turn(HostUp("triggers")) if isinstance(e, AssignTrigger))

    world.turn(
        TriggerFired(hosted.host.trigger_no, hosted.host.assignment_id, 0, world.now, b"\x01")
    )
    assert world.state(run, "wait") == "deferred"
    world.turn(TriggerFired(again.host.trigger_no, again.host.assignment_id, 0, world.now, b"\x01"))

    assert world.state(run, "wait") == "running"


def test_a_wait_that_begins_and_ends_in_the_turn_in_which_its_host_is_lost_is_hosted_nowhere():
    world = World()
    run = world.begin(task("wait"))
    start = world.starts.pop(world.started("wait").start.task_no).start
    effects = world.turn(
        Deferred(start.task_no, start.start_no, world.now, world.now, "m:T", b"\x80", "resumed"),
        RequestReceived(1, CancelRun(run_id=world.rows.runs[run].run_id)),
        HostLost(role="triggers", culprit=-1, failure=SEGFAULT, at=world.now),
        HostUp("triggers"),
    )

    assert world.state(run, "wait") == "cancelled"
    assert not world.rows.triggers
    assert not [one for one in effects if isinstance(one, AssignTrigger | ReleaseTrigger)]


def test_the_end_of_an_old_hosting_is_late():
    world = World()
    run = world.begin(task("wait", retry=RetryPolicy(tries=1)))
    hosted = defer(world, "wait")
    world.turn(HostLost(role="triggers", culprit=-1, failure=SEGFAULT, at=world.now))
    again = next(e for e in world.turn(HostUp("triggers")) if isinstance(e, AssignTrigger))

    world.turn(TriggerEnded(hosted.host.trigger_no, hosted.host.assignment_id, world.now, SEGFAULT))
    assert world.state(run, "wait") == "deferred"
    world.turn(TriggerEnded(again.host.trigger_no, again.host.assignment_id, world.now, SEGFAULT))

    assert world.state(run, "wait") == "failed"


def test_the_same_event_twice_resumes_once():
    world = World()
    run = world.begin(task("wait"))
    hosted = defer(world, "wait")
    fired = TriggerFired(hosted.host.trigger_no, hosted.host.assignment_id, 0, world.now, b"\x01")

    world.turn(fired, fired)
    world.turn(fired)

    assert world.state(run, "wait") == "running"
    assert world.started("wait").start.start_no == 2


def test_a_wait_that_lasts_too_long_fails_its_task_and_is_released():
    world = World()
    run = world.begin(task("wait", retry=ONCE))
    hosted = defer(world, "wait", timeout_us=5 * SECOND)

    world.pass_time(5.1)

    assert world.state(run, "wait") == "failed"
    assert any(isinstance(e, ReleaseTrigger) and e.end.reason == "timeout" for e in world.effects)
    world.turn(TriggerEnded(hosted.host.trigger_no, hosted.host.assignment_id, world.now))
    assert not world.rows.triggers


def test_a_trigger_that_ends_without_an_event_fails_its_task():
    world = World()
    run = world.begin(task("wait", retry=ONCE))
    hosted = defer(world, "wait")

    world.turn(TriggerEnded(hosted.host.trigger_no, hosted.host.assignment_id, world.now))

    assert world.state(run, "wait") == "failed"
    assert not world.rows.triggers


def test_a_new_try_begins_at_the_beginning_not_where_it_was_resumed():
    world = World()
    world.begin(task("wait", retry=RetryPolicy(tries=2, delay_us=0, jitter=False)))
    hosted = defer(world, "wait")
    world.turn(
        TriggerFired(hosted.host.trigger_no, hosted.host.assignment_id, 0, world.now, b"\x01")
    )

    world.fail("wait")
    world.pass_time(1)

    start = world.started("wait").start
    assert (start.method, start.event, start.try_number) == ("", None, 2)
    assert not world.rows.triggers


def test_an_interrupted_resume_is_resumed_again_with_its_event():
    world = World()
    world.begin(task("wait"))
    hosted = defer(world, "wait")
    world.turn(
        TriggerFired(hosted.host.trigger_no, hosted.host.assignment_id, 0, world.now, b"\x01")
    )

    world.restart()

    start = world.started("wait").start
    assert (start.method, start.event, start.try_number) == ("resumed", b"\x01", 1)


# ── sensors ─────────────────────────────────────────────────────────────────────────────

HOURLY = SensorSpec(interval_us=60 * SECOND, timeout_us=600 * SECOND)


def test_a_hosted_sensor_senses_and_holds_no_slot():
    world = World(async_slots=1)
    run = world.begin(
        task("look", sensor=HOURLY, body=Body.COROUTINE), task("co", body=Body.COROUTINE)
    )

    assert world.state(run, "look") == "sensing"
    assert world.state(run, "co") == "running"


def test_a_hosted_sensor_that_looks_too_long_is_stopped_fails_and_alerts():
    world = World()
    run = world.begin(task("look", sensor=HOURLY, body=Body.COROUTINE))

    world.pass_time(601)

    assert world.state(run, "look") == "failed"
    assert any(isinstance(effect, StopTry) for effect in world.effects)
    assert len(world.alerts()) == 1


def test_a_sensor_in_a_slot_pokes_again_after_its_interval():
    world = World()
    run = world.begin(task("look", sensor=HOURLY))
    start = world.starts.pop(world.started("look").start.task_no).start

    world.turn(SensorNotReady(start.task_no, start.start_no, world.now, world.now))
    assert world.state(run, "look") == "sensing"
    world.pass_time(61)

    assert world.state(run, "look") == "running"
    assert world.started("look").start.try_number == 1


def test_a_sensor_may_skip_at_its_timeout():
    world = World()
    sensor = SensorSpec(interval_us=SECOND, timeout_us=10 * SECOND, on_timeout="skip")
    run = world.begin(task("look", sensor=sensor, body=Body.COROUTINE))

    world.pass_time(11)

    assert world.state(run, "look") == "skipped"


# ── processes die ───────────────────────────────────────────────────────────────────────


def test_when_the_async_host_dies_only_the_culprit_is_charged_a_try():
    world = World()
    run = world.begin(
        task("bad", body=Body.COROUTINE, retry=ONCE),
        task("good", body=Body.COROUTINE, retry=ONCE),
        task("deferred", sensor=HOURLY, body=Body.COROUTINE, retry=ONCE),
    )
    culprit = world.started("bad").start.task_no

    world.turn(HostLost(role="async", culprit=culprit, failure=SEGFAULT, at=world.now))
    assert world.state(run, "bad") == "failed"
    assert world.state(run, "good") == "queued"
    assert world.state(run, "deferred") == "sensing"
    world.turn(HostUp("async"))

    rows = {row.task_index: row for row in world.rows.tasks.values()}
    assert (rows[1].interruptions, rows[2].interruptions) == (1, 0)
    assert world.started("good").start.start_no == 2
    assert world.started("deferred").start.start_no == 2


def lose_async_host(world: World, name: str, failure: Failure = KILLED) -> int:
    """Kill the async host while the code of a task runs, and start another host."""
    number = world.started(name).start.task_no
    world.turn(HostLost(role="async", culprit=number, failure=failure, at=world.now))
    world.turn(HostUp("async"))
    world.pass_time(1)
    return number


def test_a_coroutine_that_ran_when_its_host_was_killed_is_not_charged():
    world = World()
    run = world.begin(task("unlucky", body=Body.COROUTINE, retry=ONCE))

    number = lose_async_host(world, "unlucky")

    assert world.started("unlucky").start.start_no == 2
    assert (world.rows.tasks[number].try_number, world.rows.tasks[number].interruptions) == (1, 1)
    world.succeed("unlucky")
    assert world.run_state(run) == "success"


def test_a_coroutine_whose_host_is_killed_again_and_again_is_charged_at_the_sixth_time():
    world = World()
    run = world.begin(task("deadly", body=Body.COROUTINE, retry=ONCE))

    for _ in range(5):
        lose_async_host(world, "deadly")
        assert world.state(run, "deadly") == "running"
    number = lose_async_host(world, "deadly")

    assert world.state(run, "deadly") == "failed"
    assert world.rows.tasks[number].failure.reason == "interrupted"


def test_progress_between_two_kills_is_no_suspicion():
    world = World()
    run = world.begin(task("slow", body=Body.COROUTINE, retry=ONCE))

    for ordinal in range(8):
        start = world.started("slow").start
        world.turn(
            CallAnswered(start.task_no, start.start_no, ordinal, "step", "m:f", "f.py:1", b"\x01")
        )
        lose_async_host(world, "slow")

    assert world.state(run, "slow") == "running"


def test_a_task_that_takes_every_incarnation_down_fails_in_the_end():
    world = World()
    run = world.begin(task("deadly"))

    for _ in range(7):
        assert world.state(run, "deadly") == "running"
        world.restart()
        while world.state(run, "deadly") == "queued":  # the daemon lives while the task waits
            world.pass_time(1)

    assert world.state(run, "deadly") == "failed"
    assert world.run_state(run) == "failed"


def test_a_late_report_of_an_earlier_start_changes_nothing():
    world = World()
    run = world.begin(task("a"))
    old = world.started("a").start
    world.restart()

    world.turn(Succeeded(old.task_no, old.start_no, world.now, world.now))

    assert world.state(run, "a") == "running"


def test_a_restart_continues_from_the_rows():
    world = World()
    run = world.begin(task("list", feeds_limit=9), mapped("work", 0, map_limit=9), task("sum", 1))
    world.succeed("list", size=9, width=5)
    world.succeed("work", 0)

    world.restart()
    world.finish_all()

    assert world.run_state(run) == "success"
    assert {row.map_index for row in world.rows.tasks.values() if row.task_index == 1} == set(
        range(5)
    )


# ── people ──────────────────────────────────────────────────────────────────────────────


def test_cancel_stops_what_runs_and_starts_nothing_more():
    world = World()
    run = world.begin(task("a"), task("b", 0))
    run_id = world.rows.runs[run].run_id

    world.ask(CancelRun(run_id=run_id))

    assert world.run_state(run) == "cancelled"
    assert (world.state(run, "a"), world.state(run, "b")) == ("cancelled", "cancelled")
    assert not world.starts
    assert not world.memory.runs


def slice_at(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (transaction, cancel):
        monkeypatch.setattr(module, "BATCH_ROWS", rows)


def test_a_cancel_of_more_than_fits_a_batch_continues_by_itself(monkeypatch):
    slice_at(100, monkeypatch)
    world = World(async_slots=250)
    run = world.begin(
        task("list", feeds_limit=300),
        mapped("work", 0, map_limit=300, body=Body.COROUTINE),
    )
    world.succeed("list", size=9, width=250)
    assert len(world.starts) == 250

    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    assert not world.starts
    active = [row for row in world.rows.tasks.values() if row.state.is_live]
    assert not active


def test_a_cancel_cut_short_by_a_crash_is_finished_at_the_next_start(monkeypatch):
    slice_at(100, monkeypatch)
    world = World(async_slots=250)
    run = world.begin(
        task("list", feeds_limit=300),
        mapped("work", 0, map_limit=300, body=Body.COROUTINE),
    )
    world.succeed("list", size=9, width=250)
    world._turn([RequestReceived(99, CancelRun(run_id=world.rows.runs[run].run_id))])
    assert [row for row in world.rows.tasks.values() if row.state.is_live]

    world.restart()

    assert not [row for row in world.rows.tasks.values() if row.state.is_live]
    assert not world.starts


def test_asking_twice_with_one_key_makes_one_run():
    world = World()
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task("a"),)))
    first = world.ask(CreateRun(dag_id="dag", key="k"))
    second = world.ask(CreateRun(dag_id="dag", key="k"))

    assert first[1]
    assert not second[1]
    assert first[0] == second[0]
    assert len(world.rows.runs) == 1


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        pytest.param(CreateRun(dag_id="none"), UnknownDag, id="no-such-dag"),
        pytest.param(
            CreateRun(dag_id="dag", conf=msgspec.msgpack.encode({"nope": 1})),
            BadConf,
            id="unknown-parameter",
        ),
        pytest.param(CreateRun(dag_id="needy"), BadConf, id="missing-parameter"),
        pytest.param(CancelRun(run_id="none"), UnknownRun, id="no-such-run"),
        pytest.param(SetPaused(dag_id="none", paused=True), UnknownDag, id="pause-nothing"),
    ],
)
def test_impossible_requests_are_answered_with_their_error(request_, error):
    world = World()
    world.load(
        DagSpec(dag_id="dag", file="dag.py", tasks=(task("a"),)),
        DagSpec(
            dag_id="needy", file="dag.py", tasks=(task("a"),), parameters=("x",), required=("x",)
        ),
    )

    with pytest.raises(error):
        world.ask(request_)
    assert not world.rows.runs


def test_a_run_id_of_another_request_is_refused():
    world = World()
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task("a"),), parameters=("x",)))
    world.ask(CreateRun(dag_id="dag", run_id="mine"))

    with pytest.raises(RunExists):
        world.ask(CreateRun(dag_id="dag", run_id="mine", conf=msgspec.msgpack.encode({"x": 1})))


def test_why_names_the_parents_that_are_waited_for():
    world = World()
    run = world.begin(task("a"), task("b", 0))

    answer = world.ask(Explain(run_id=world.rows.runs[run].run_id, tasks=((1, -1), (0, -1))))

    assert answer[1, -1].kind is WaitKind.UPSTREAM
    assert "a" in answer[1, -1].detail
    assert answer[0, -1] is None


# ── DAGs and schedules ──────────────────────────────────────────────────────────────────


def test_a_schedule_makes_one_run_per_fire_time():
    world = World()
    world.load(
        DagSpec(
            dag_id="dag",
            file="dag.py",
            tasks=(task("a"),),
            schedule=ScheduleSpec(every_us=60 * SECOND),
        )
    )
    for _ in range(3):
        world.pass_time(60)
        world.finish_all()

    dates = [run.logical_date or 0 for run in world.rows.runs.values()]
    assert len(dates) == 3
    assert {b - a for a, b in itertools.pairwise(dates)} == {60 * SECOND}


def test_without_catchup_only_the_latest_missed_fire_time_runs():
    world = World()
    spec = DagSpec(
        dag_id="dag",
        file="dag.py",
        tasks=(task("a"),),
        schedule=ScheduleSpec(every_us=60 * SECOND),
    )
    world.load(spec)
    world.now += 3600 * SECOND

    world.restart()
    world.pass_time(0)

    assert len(world.rows.runs) == 1


def test_a_paused_dag_starts_no_scheduled_run():
    world = World()
    world.load(
        DagSpec(
            dag_id="dag",
            file="dag.py",
            tasks=(task("a"),),
            schedule=ScheduleSpec(every_us=60 * SECOND),
        )
    )
    world.ask(SetPaused(dag_id="dag", paused=True))
    world.pass_time(200)
    assert not world.rows.runs

    world.ask(SetPaused(dag_id="dag", paused=False))
    world.pass_time(0)

    assert len(world.rows.runs) == 1


def test_more_runs_than_allowed_wait_in_order():
    world = World(cpu_slots=8)
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task("a"),), max_active_runs=1))
    first, second, third = (world.trigger() for _ in range(3))
    assert [world.run_state(run) for run in (first, second, third)] == [
        "running",
        "queued",
        "queued",
    ]

    world.succeed("a")

    assert [world.run_state(run) for run in (first, second, third)] == [
        "success",
        "running",
        "queued",
    ]


def test_a_dag_of_another_file_keeps_its_name():
    world = World()
    world.load(DagSpec(dag_id="dag", file="one.py", tasks=(task("a"),)), file="one.py")

    world.load(
        DagSpec(dag_id="dag", file="two.py", tasks=(task("b"),)),
        DagSpec(dag_id="fine", file="two.py", tasks=(task("b"),)),
        version="v2",
        file="two.py",
    )

    assert world.memory.dags["dag"].file == "one.py"
    assert "fine" in world.memory.dags
    assert world.memory.files["two.py"].reason == "dag.duplicate_dag"


def test_a_broken_file_keeps_its_last_good_version():
    world = World()
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task("a"),)))

    world.turn(FileBroken(file="dag.py", reason="syntax_error", message="line 3"))

    run = world.trigger()
    assert world.state(run, "a") == "running"
    assert world.memory.files["dag.py"].reason == "syntax_error"


def test_problems_of_the_whole_node_are_alerted():
    world = World()

    world.turn(AlertRaised(reason="damaged", message="page 7"))

    [alert] = world.alerts()
    assert b"page 7" in alert.body


def test_a_file_that_breaks_is_alerted_once():
    world = World()
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task("a"),)))

    for _ in range(2):
        world.turn(FileBroken(file="dag.py", reason="syntax_error", message="line 3"))
        world.turn(FileBroken(file="never.py", reason="exit", message="sys.exit(1)"))

    [alert] = world.alerts()
    assert b"dag.py cannot be parsed" in alert.body


def test_a_try_whose_code_is_missing_begins_again_uncharged_when_it_is_back():
    world = World()
    run = world.begin(task("a", retry=ONCE))
    start = world.started("a").start
    missing = Failure(type="CodeMissing", message="not there", reason="code_missing")

    effects = world.turn(Failed(start.task_no, start.start_no, None, 1, missing))

    assert RestoreCode(("v1",)) in effects
    assert world.state(run, "a") == "retrying"
    found = world.ask(Explain(run_id=world.rows.runs[run].run_id, tasks=((0, -1),)))
    assert found[0, -1].kind is WaitKind.CODE_MISSING
    world.restart()
    world.pass_time(3)
    assert world.started("a").start.try_number == 1
    world.succeed("a")
    assert world.rows.tries == []
    assert world.run_state(run) == "success"


def test_a_try_that_cannot_be_imported_fails_and_its_code_is_checked():
    world = World()
    run = world.begin(task("a", retry=RetryPolicy(tries=2, delay_us=SECOND, jitter=False)))
    start = world.started("a").start
    failure = Failure(type="ModuleNotFoundError", message="helper", reason="import_error")

    effects = world.turn(Failed(start.task_no, start.start_no, None, 1, failure))
    world.pass_time(2)

    assert RestoreCode(("v1",)) in effects
    assert world.started("a").start.try_number == 2
    assert world.state(run, "a") == "running"


def test_a_try_that_did_not_find_a_file_fails_and_its_code_is_checked():
    world = World()
    world.begin(task("a"))
    start = world.started("a").start
    failure = Failure(type="FileNotFoundError", message="query.sql", reason="raised")

    effects = world.turn(Failed(start.task_no, start.start_no, 1, 2, failure))

    assert RestoreCode(("v1",)) in effects


def test_a_trigger_whose_code_is_missing_is_hosted_again_when_it_is_back():
    world = World()
    run = world.begin(task("a"))
    hosted = defer(world, "a").host
    missing = Failure(type="CodeMissing", message="not there", reason="code_missing")

    effects = world.turn(TriggerEnded(hosted.trigger_no, hosted.assignment_id, 0, missing))

    assert RestoreCode(("v1",), hosted.trigger_no) in effects
    found = world.ask(Explain(run_id=world.rows.runs[run].run_id, tasks=((0, -1),)))
    assert found[0, -1].kind is WaitKind.CODE_MISSING
    effects = world.turn(CodeRestored(hosted.trigger_no))
    (again,) = [e.host for e in effects if isinstance(e, AssignTrigger)]
    assert again.trigger_no == hosted.trigger_no
    assert again.assignment_id != hosted.assignment_id


def test_a_dag_is_deleted_when_its_file_is_gone_and_no_run_is_active():
    world = World()
    run = world.begin(task("a"))

    with pytest.raises(DagPresent, match=r"dag\.py"):
        world.ask(DeleteDag(dag_id="dag"))
    world.turn(FileDeleted("dag.py"))
    with pytest.raises(DagRunning, match="1 active runs"):
        world.ask(DeleteDag(dag_id="dag"))
    world.succeed("a")
    assert world.run_state(run) == "success"
    world.ask(DeleteDag(dag_id="dag", only_asks=True))
    assert "dag" in world.memory.dags
    world.ask(DeleteDag(dag_id="dag"))

    assert world.batches[-1].gone_dags == ["dag"]
    assert "dag" not in world.memory.dags
    with pytest.raises(UnknownDag):
        world.ask(DeleteDag(dag_id="dag"))
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task("a"),)), version="v2")
    assert world.memory.dags["dag"].version == "v2"


def test_a_deleted_file_starts_no_run_but_its_live_runs_continue():
    world = World()
    run = world.begin(task("a"))

    world.turn(FileDeleted("dag.py"))
    with pytest.raises(DagBroken):
        world.trigger()
    world.succeed("a")

    assert world.run_state(run) == "success"


def test_a_run_keeps_the_version_it_began_with():
    world = World()
    run = world.begin(task("a"), task("b", 0))
    world.turn(
        FileParsed(
            file="dag.py",
            version="v2",
            dags=(DagSpec(dag_id="dag", file="dag.py", tasks=(task("z"),)),),
            sources={},
        )
    )

    world.succeed("a")

    assert world.started("b").info.version == "v1"
    assert world.rows.runs[world.trigger()].version == "v2"
    assert world.run_state(run) == "running"


def test_draining_starts_nothing_more_and_recalls_what_is_claimed():
    world = World(cpu_slots=1)
    run = world.begin(task("list", feeds_limit=99), mapped("work", 0, map_limit=99))
    world.succeed("list", size=9, width=40)
    world.succeed("work", 0)

    effects = world.turn(Drain())
    assert any(isinstance(effect, RecallTries) for effect in effects)
    world.turn(Drain(is_over=True))

    assert world.state(run, "work", 1) == "queued"


def test_a_trigger_row_left_by_an_ended_run_is_swept_at_the_next_start():
    world = World()
    run = world.begin(task("wait"))
    defer(world, "wait")
    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))
    assert [row.state.name for row in world.rows.triggers.values()] == ["ENDING"]

    world.restart()

    assert not world.rows.triggers


# ── pools ───────────────────────────────────────────────────────────────────────────────


def test_a_pool_that_is_limited_while_tasks_run_drains_to_its_new_size():
    world = World(cpu_slots=8)
    world.begin(*(task(f"t{i}", pool="ledger") for i in range(6)))
    assert len(world.starts) == 6

    world.ask(SetPool(name="ledger", slots=1))
    run = world.trigger()
    for index in range(5):
        first = next(e for e in world.starts.values() if e.info.run_no != run)
        world.starts.pop(first.start.task_no)
        world.turn(Succeeded(first.start.task_no, first.start.start_no, 1, 2))
        assert len(world.starts) == 5 - index

    assert world.ask(ShowPools())[0][1] == 1


def test_lifting_a_limit_lets_the_waiting_in():
    world = World(cpu_slots=8)
    world.ask(SetPool(name="ledger", slots=1))
    world.begin(*(task(f"t{i}", pool="ledger") for i in range(4)))
    assert len(world.starts) == 1

    world.ask(SetPool(name="ledger", slots=None))

    assert len(world.starts) == 4
    assert world.ask(ShowPools()) == []


@pytest.mark.parametrize(("name", "slots"), [("", 1), ("a/b", 1), ("-x", 1), ("fine", 0)])
def test_a_pool_that_cannot_be_is_refused(name, slots):
    with pytest.raises(BadPool):
        World().ask(SetPool(name=name, slots=slots))


# ── limits hold, also with claims, and cost what they should ────────────────────────────


def test_claims_count_against_the_limit_of_their_run():
    world = World(cpu_slots=2)
    world.begin(task("list", feeds_limit=99), mapped("work", 0, map_limit=99))
    world.succeed("list", size=9, width=10)
    world.succeed("work", 0)
    limited = DagSpec(dag_id="one", file="one.py", tasks=(task("x"), task("y")), max_active_tasks=1)
    world.load(limited, version="v1", file="one.py")

    world.trigger("one")
    world.finish_all()

    starts = [e for e in world.effects if isinstance(e, StartTry) and e.info.dag_id == "one"]
    assert len(starts) == 2
    assert all(world.memory.active_runs[dag] == 0 for dag in world.memory.active_runs)


def test_a_task_too_heavy_for_its_pool_says_so_and_blocks_no_other():
    world = World(cpu_slots=8)
    world.ask(SetPool(name="ledger", slots=2))
    run = world.begin(
        task("heavy", pool="ledger", slots=3, priority=9), task("light", pool="ledger")
    )
    assert world.state(run, "light") == "running"
    run_id = world.rows.runs[run].run_id
    why = world.ask(Explain(run_id=run_id, tasks=((0, -1),)))[0, -1]
    assert "needs 3" in why.detail

    world.ask(SetPool(name="ledger", slots=4))

    assert world.state(run, "heavy") == "running"


def test_a_hosted_sensor_waits_for_no_pool_and_no_limit():
    world = World(cpu_slots=8)
    world.ask(SetPool(name="ledger", slots=1))
    run = world.begin(
        task("busy", pool="ledger"),
        task("look", pool="ledger", sensor=HOURLY, body=Body.COROUTINE),
        max_active_tasks=1,
    )

    assert world.state(run, "look") == "sensing"


def test_nothing_is_claimed_past_a_task_of_higher_priority_in_another_pool():
    world = World(cpu_slots=1)
    world.begin(task("list", feeds_limit=999), mapped("work", 0, map_limit=999))
    world.succeed("list", size=9, width=500)
    world.load(
        DagSpec(dag_id="urgent", file="u.py", tasks=(task("now", pool="other", priority=1000),)),
        version="v2",
        file="u.py",
    )
    world.trigger("urgent")

    for _ in range(3):
        running = next(e for e in world.starts.values() if not e.claimed)
        start = world.starts.pop(running.start.task_no).start
        world.turn(Succeeded(start.task_no, start.start_no, world.now, world.now + 50))
        if world.started("now"):
            break

    assert world.started("now") is not None


def test_tasks_that_a_limit_blocks_cost_one_entry_per_end():
    world = World(cpu_slots=8)
    world.begin(*(task(f"t{i}") for i in range(400)), max_active_tasks=2)
    looked_at = []
    while world.starts:
        world.succeed(world._spec(next(iter(world.starts.values()))).task_id)
        looked_at.append(sum(len(queue) for queue in world.slots.ready._queues.values()))

    assert max(looked_at) <= 2
    assert not world.memory.runs


# ── deadlines hold whatever a task is doing ─────────────────────────────────────────────

SHORT = SensorSpec(interval_us=SECOND, timeout_us=100 * SECOND)


def test_a_look_that_hangs_is_stopped_at_the_sensors_deadline():
    world = World()
    run = world.begin(task("look", sensor=SHORT))

    world.pass_time(101)

    assert world.state(run, "look") == "failed"
    assert any(isinstance(effect, StopTry) for effect in world.effects)


def test_a_sensor_that_waits_for_a_slot_times_out_there():
    world = World(cpu_slots=1)
    run = world.begin(task("busy", priority=1), task("look", sensor=SHORT))
    start = world.starts
    assert len(start) == 1
    # A sensor's time begins with its first poke, so it pokes once before the slot is occupied.
    world.turn()
    world.succeed("busy")
    sensing = world.starts.pop(world.started("look").start.task_no).start
    world.turn(SensorNotReady(sensing.task_no, sensing.start_no, world.now, world.now))
    world.trigger()
    world.pass_time(2)
    assert world.state(run, "look") == "queued"

    world.pass_time(100)

    assert world.state(run, "look") == "failed"


def test_a_sensors_deadline_is_armed_once_so_that_a_clock_that_is_set_does_not_move_it():
    world = World()
    world.begin(task("look", sensor=SHORT))
    number = world.started("look").start.task_no
    for _ in range(3):
        start = world.starts.pop(number).start
        world.turn(SensorNotReady(number, start.start_no, world.now, world.now))
        world.pass_time(2)

    deadline = world.rows.tasks[number].deadline_at
    assert deadline is not None
    assert [wake.due.at for wake in world.armed].count(deadline) == 1


def test_a_hosted_sensors_deadline_outlives_a_retry_and_a_restart():
    world = World()
    retrying = RetryPolicy(tries=3, delay_us=60 * SECOND, jitter=False)
    run = world.begin(task("look", sensor=SHORT, body=Body.COROUTINE, retry=retrying))
    world.pass_time(20)
    world.fail("look")
    world.restart()
    world.pass_time(70)
    assert world.state(run, "look") == "sensing"

    world.pass_time(20)

    assert world.state(run, "look") == "failed"


def test_each_look_of_a_sensor_in_a_slot_has_its_whole_time():
    world = World()
    run = world.begin(task("look", sensor=HOURLY, execution_timeout_us=30 * SECOND))
    for _ in range(3):
        assert world.started("look").timeout_us == 30 * SECOND
        start = world.starts.pop(world.started("look").start.task_no).start
        world.turn(SensorNotReady(start.task_no, start.start_no, world.now, world.now))
        world.pass_time(61)

    assert world.state(run, "look") == "running"


def test_a_sensor_that_deferred_waits_as_long_as_a_sensor_may_and_then_has_its_whole_time():
    world = World()
    run = world.begin(task("look", sensor=HOURLY, execution_timeout_us=30 * SECOND))
    hosted = defer(world, "look")
    world.pass_time(500)
    assert world.state(run, "look") == "deferred"

    world.turn(
        TriggerFired(hosted.host.trigger_no, hosted.host.assignment_id, 0, world.now, b"\x01")
    )

    assert world.started("look").timeout_us == 30 * SECOND


def test_a_sensor_that_deferred_still_times_out():
    world = World()
    run = world.begin(task("look", sensor=SHORT))
    defer(world, "look")

    world.pass_time(101)

    assert world.state(run, "look") == "failed"


def test_an_interrupted_try_gets_its_whole_time_again():
    world = World()
    world.begin(task("a", execution_timeout_us=600 * SECOND))
    world.now += 700 * SECOND

    world.restart()

    assert world.started("a").timeout_us == 600 * SECOND


def test_instants_that_no_longer_matter_are_not_armed_again():
    world = World()
    world.begin(task("wait"))
    for number in range(20):
        hosted = defer(world, "wait", timeout_us=7200 * SECOND)
        world.pass_time(60)
        world.turn(
            TriggerFired(
                hosted.host.trigger_no, hosted.host.assignment_id, number, world.now, b"\x01"
            )
        )
    assert len(world.armed) == 20

    world.pass_time(9000)

    assert not world.armed


def test_a_success_after_a_failure_leaves_no_failure_in_its_row():
    world = World()
    world.begin(task("a", retry=RetryPolicy(tries=2, delay_us=0, jitter=False)))
    world.fail("a")
    world.pass_time(1)

    world.succeed("a")

    (row,) = world.rows.tasks.values()
    assert row.failure is None
    assert [kept.failure is None for kept in world.rows.tries] == [False, True]


# ── schedules survive edits ─────────────────────────────────────────────────────────────


def scheduled(**fields: Any) -> DagSpec:
    fields.setdefault("schedule", ScheduleSpec(every_us=60 * SECOND))
    return DagSpec(dag_id="dag", file="dag.py", tasks=(task("a"),), **fields)


def test_a_catchup_dag_that_comes_back_continues_where_it_was():
    world = World(cpu_slots=50)
    spec = scheduled(catchup=True, start_date=world.now - 300 * SECOND)
    world.load(spec)
    for _ in range(5):
        world.pass_time(60)
        world.finish_all()
    world.turn(FileDeleted("dag.py"))
    world.pass_time(120)
    world.load(spec)
    for _ in range(3):
        world.pass_time(60)
        world.finish_all()

    fire_times = fire_times_run(world)
    assert len(fire_times) == len(set(fire_times))
    assert {b - a for a, b in pairwise(fire_times)} == {60 * SECOND}


def test_a_schedule_that_comes_back_never_goes_back_over_fire_times_that_ran():
    world = World(cpu_slots=50)
    spec = scheduled(catchup=True, start_date=world.now - 300 * SECOND)
    world.load(spec)
    for _ in range(5):
        world.pass_time(60)
        world.finish_all()
    before = fire_times_run(world)
    world.load(msgspec.structs.replace(spec, schedule=None), version="v2")
    world.pass_time(120)
    assert fire_times_run(world) == before
    world.load(spec, version="v3")
    for _ in range(3):
        world.pass_time(60)
        world.finish_all()

    fire_times = fire_times_run(world)
    assert len(fire_times) == len(set(fire_times)) > len(before)


def test_a_changed_schedule_never_goes_back_over_fire_times_that_ran():
    world = World(cpu_slots=50)
    begins = world.now - 300 * SECOND
    world.load(scheduled(catchup=True, start_date=begins))
    for _ in range(3):
        world.pass_time(60)
        world.finish_all()
    before = fire_times_run(world)

    world.load(
        scheduled(catchup=True, start_date=begins, schedule=ScheduleSpec(every_us=30 * SECOND)),
        version="v2",
    )
    for _ in range(3):
        world.pass_time(60)
        world.finish_all()

    after = [fire_time for fire_time in fire_times_run(world) if fire_time not in before]
    assert after
    assert min(after) > max(before)


def test_a_start_date_moved_ahead_is_waited_for():
    world = World()
    world.load(scheduled())
    world.load(scheduled(start_date=world.now + 86_400 * SECOND), version="v2")

    for _ in range(5):
        world.pass_time(3600)

    assert not world.rows.runs


def test_a_flood_of_missed_fire_times_is_made_as_runs_end():
    world = World(cpu_slots=50)
    world.load(scheduled(catchup=True, start_date=world.now - 86_400 * SECOND, max_active_runs=1))
    world.pass_time(0)
    for _ in range(30):
        world.pass_time(0)
    assert len(world.memory.runs) <= 34

    for _ in range(100):
        world.finish_all()
        world.pass_time(0)

    assert len(world.rows.runs) > 100


def test_a_dag_moved_to_another_file_is_found_there():
    world = World()
    one = DagSpec(dag_id="x", file="a.py", tasks=(task("a"),))
    world.load(one, file="a.py")
    world.load(one, file="b.py", version="v2")
    assert world.memory.files["b.py"].reason == "dag.duplicate_dag"

    world.load(DagSpec(dag_id="y", file="a.py", tasks=(task("a"),)), file="a.py", version="v3")

    assert (world.memory.dags["x"].file, world.memory.dags["x"].gone) == ("b.py", False)
    assert world.memory.files["b.py"].reason is None
    assert world.trigger("x")


def test_a_request_may_not_use_the_form_of_a_generated_run_id():
    world = World()
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task("a"),)))

    with pytest.raises(RequestError):
        world.ask(CreateRun(dag_id="dag", run_id="dag.20260101T000000Z.7"))


def test_unused_dag_versions_are_forgotten():
    world = World()
    for number in range(20):
        world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task("a"),)), version=f"v{number}")

    assert len(world.memory.dag_versions) == 1


def test_a_task_that_always_runs_starts_with_its_run():
    world = World()
    world.begin(task("a"), task("b", 0, rule=TriggerRule.ALWAYS))

    assert world.started("b") is not None


def test_tries_recalled_from_a_slow_worker_are_not_claimed_there_again():
    world = World(cpu_slots=1)
    world.begin(task("list", feeds_limit=99), mapped("work", 0, map_limit=99))
    world.succeed("list", size=9, width=9)
    world.succeed("work", 0)
    tries = given_back(world)

    world.turn(Recalled(tries))
    assert [e.start.map_index for e in world.starts.values()] == [1]
    world.succeed("work", 1)

    assert world.started("work", 2) is not None
    assert not world.started("work", 2).claimed


def test_a_worker_holds_on_to_nothing_of_a_run_that_has_ended():
    world = World(cpu_slots=1)
    run = world.begin(task("list", feeds_limit=99), mapped("work", 0, map_limit=99))
    world.succeed("list", size=9, width=9)
    world.succeed("work", 0)
    tries = given_back(world)
    world.turn(Recalled(tries))

    world.finish_all()

    assert world.run_state(run) == "success"
    (worker,) = world.slots.workers
    assert (worker.current, worker.slow, worker.claims) == (None, None, [])


def test_a_pool_made_smaller_drains_though_short_tasks_follow_each_other():
    world = World(cpu_slots=2)
    world.ask(SetPool(name="ledger", slots=2))
    world.begin(task("list", feeds_limit=99), mapped("work", 0, map_limit=99, pool="ledger"))
    world.succeed("list", size=9, width=40)
    world.succeed("work", 0)

    world.ask(SetPool(name="ledger", slots=1))
    while sum(worker.current is not None for worker in world.slots.workers) > 1:
        worker = next(w for w in world.slots.workers if w.current is not None)
        world.succeed("work", worker.current.map_index)
        if worker.current is None and worker.claims:
            begins = worker.claims[0]
            world.turn(TaskStarted(begins.task_no, begins.start_no, world.now))

    assert world.ask(ShowPools())[0][1] == 1


def test_a_sensor_that_times_out_between_two_tries_keeps_one_row_of_each():
    world = World()
    slow = RetryPolicy(tries=3, delay_us=60 * SECOND, jitter=False)
    run = world.begin(task("look", sensor=SHORT, retry=slow))
    world.pass_time(90)
    world.fail("look")

    world.pass_time(11)

    assert world.state(run, "look") == "failed"
    keys = [(row.task_no, row.start_no) for row in world.rows.tries]
    assert len(keys) == len(set(keys)) == 1


def test_a_task_unblocked_during_granting_is_checked_before_it_starts():
    """A task too large for its pool unblocks another of its run, in a queue already served."""
    world = World()
    world.ask(SetPool(name="narrow", slots=1))
    run = world.begin(
        task("busy"),
        task("seen", body=Body.COROUTINE, sensor=SHORT),
        task("kept", 1, body=Body.COROUTINE, priority=5),
        task("wide", 1, body=Body.COROUTINE, pool="narrow", slots=2),
        max_active_tasks=1,
    )
    world.succeed("seen")
    other = DagSpec(dag_id="other", file="other.py", tasks=(task("z", body=Body.COROUTINE),))
    world.load(other, version="v2", file="other.py")

    world.turn(
        RequestReceived(100, CreateRun(dag_id="other")),
        RequestReceived(101, SetPool(name="narrow", slots=1)),
    )

    assert world.state(run, "busy") == "running"
    assert world.state(run, "kept") == "queued"
    assert world.started("z") is not None
