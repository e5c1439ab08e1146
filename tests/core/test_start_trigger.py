"""Tasks that start deferred: they use no slot until they are resumed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aioflow.model.dag import (
    Body,
    DagSpec,
    MapSource,
    MapSpec,
    RetryPolicy,
    StartTriggerSpec,
    TaskSpec,
)
from aioflow.model.states import Failure, TriggerRule, WaitKind
from aioflow.protocol.commands import StartTrigger
from aioflow.protocol.effects import AssignTrigger, ReleaseTrigger
from aioflow.protocol.inputs import HostLost, HostUp
from aioflow.protocol.reports import Awaiting, Deferred, Succeeded, TriggerEnded, TriggerFired
from aioflow.protocol.requests import CancelRun, Explain, SetPool
from tests.core.world import SECOND, World

ONCE = RetryPolicy(tries=1)
TWICE = RetryPolicy(tries=2, delay_us=5 * SECOND, jitter=False)
KILLED = Failure(type="Killed", message="SIGKILL", reason="killed")
BROKEN = Failure(type="ValueError", message="no", reason="trigger")


def waiting(name: str = "a", *parents: int, **fields: Any) -> TaskSpec:
    """Return a task that starts deferred, and resumes in ``after`` unless its trigger ends it."""
    said = {
        "class_path": "dag:T",
        "next_method": fields.pop("next_method", "after"),
        "next_kwargs": fields.pop("next_kwargs", None),
        "timeout_us": fields.pop("timeout_us", None),
    }
    fields.setdefault("retry", ONCE)
    return TaskSpec(task_id=name, parents=parents, start_trigger=StartTriggerSpec(**said), **fields)


def hosts(world: World) -> list[StartTrigger]:
    return [effect.host for effect in world.effects if isinstance(effect, AssignTrigger)]


def fire(world: World, host: StartTrigger, payload: bytes = b"\x07", **fields: Any) -> list[Any]:
    return world.turn(
        TriggerFired(host.trigger_no, host.assignment_id, 0, world.now, payload, **fields),
        TriggerEnded(host.trigger_no, host.assignment_id, world.now),
    )


def ends(
    world: World, host: StartTrigger, how: str, payload: bytes = b"", **fields: Any
) -> list[Any]:
    return fire(world, host, payload, ends=how, **fields)


def test_it_is_hosted_at_once_and_no_worker_is_touched():
    world = World(cpu_slots=1)
    run = world.begin(waiting(execution_timeout_us=9 * SECOND))

    assert world.state(run, "a") == "deferred"
    assert not world.starts
    [host] = hosts(world)
    assert (host.start.task_index, host.start.try_number) == (0, 1)
    [effect] = [effect for effect in world.effects if isinstance(effect, AssignTrigger)]
    assert effect.info.run_no == run


def test_its_event_resumes_it_in_its_method():
    world = World()
    run = world.begin(waiting(next_kwargs=b"\x81\xa1n\x01"))
    fire(world, hosts(world)[0])

    start = world.started("a").start
    assert (start.method, start.kwargs, start.event) == ("after", b"\x81\xa1n\x01", b"\x07")
    assert start.try_number == 1
    world.succeed("a")
    assert world.run_state(run) == "success"
    assert not world.rows.triggers


def test_it_waits_for_its_parents_and_gets_their_results():
    world = World()
    run = world.begin(TaskSpec(task_id="p"), waiting("a", 0, argument_parents=(0,)))
    assert not hosts(world)

    world.succeed("p", body=b"\x2a", size=1)

    [host] = hosts(world)
    assert (host.start.results, host.start.at_hand) == ({0: b"\x2a"}, (0,))
    assert world.state(run, "a") == "deferred"


@pytest.mark.parametrize(
    ("how", "payload", "task", "run"),
    [
        pytest.param("success", b"\x2a", "success", "success", id="success"),
        pytest.param("skipped", b"\xc0", "skipped", "success", id="skipped"),
        pytest.param("failed", b"\xa2no", "failed", "failed", id="failed"),
    ],
)
def test_an_event_ends_the_task_without_a_worker(how, payload, task, run):
    world = World()
    run_no = world.begin(waiting(next_method=""))

    ends(world, hosts(world)[0], how, payload)

    assert (world.state(run_no, "a"), world.run_state(run_no)) == (task, run)
    assert not world.starts
    assert not world.rows.triggers


def test_a_deferred_task_without_a_method_is_ended_by_its_event():
    world = World()
    run = world.begin(TaskSpec(task_id="a", retry=ONCE))
    start = world.starts.pop(world.started("a").start.task_no).start
    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(Deferred(*at, "dag:T", b"\x80", ""))

    ends(world, hosts(world)[0], "success", b"\x2a")

    assert world.run_state(run) == "success"
    assert [row.body for row in world.rows.results.values()] == [b"\x2a"]


def test_an_event_that_ends_nothing_fails_a_try_that_has_no_method_to_resume_in():
    world = World()
    run = world.begin(waiting(next_method="", retry=TWICE))

    fire(world, hosts(world)[0])

    assert world.state(run, "a") == "retrying"
    assert not world.starts
    world.pass_time(6)
    fire(world, hosts(world)[-1])
    assert (world.state(run, "a"), world.run_state(run)) == ("failed", "failed")
    [row] = [row for row in world.rows.tasks.values() if row.run_no == run]
    assert row.failure is not None
    assert row.failure.reason == "trigger_yield"
    assert "TaskSuccessEvent" in row.failure.message
    assert not world.rows.triggers


def test_a_task_ended_by_an_event_has_its_result():
    world = World()
    world.begin(waiting(next_method=""), TaskSpec(task_id="b", parents=(0,), argument_parents=(0,)))

    ends(world, hosts(world)[0], "success", b"\x2a")

    assert [(row.body, row.size) for row in world.rows.results.values()] == [(b"\x2a", 1)]
    assert world.started("b").start.results == {0: b"\x2a"}


def test_an_end_event_whose_result_feeds_an_expand_says_how_wide_it_is():
    world = World(cpu_slots=9)
    run = world.begin(
        waiting(next_method="", feeds_limit=9),
        TaskSpec(task_id="b", parents=(0,), mapped=MapSpec(sources=(MapSource("x", 0, -1),))),
    )

    ends(world, hosts(world)[0], "success", b"", size=30, width=3)

    assert sorted(effect.start.map_index for effect in world.starts.values()) == [0, 1, 2]
    world.finish_all()
    assert world.run_state(run) == "success"


def test_a_deferred_task_whose_result_feeds_an_expand_may_be_ended_too():
    world = World(cpu_slots=9)
    run = world.begin(
        TaskSpec(task_id="a", feeds_limit=9),
        TaskSpec(task_id="b", parents=(0,), mapped=MapSpec(sources=(MapSource("x", 0, -1),))),
    )
    start = world.starts.pop(world.started("a").start.task_no).start
    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(Deferred(*at, "dag:T", b"\x80", "after"))
    [host] = hosts(world)
    assert (host.start.task_index, host.is_made_there) == (0, False)

    ends(world, host, "success", b"", size=30, width=3)

    assert sorted(effect.start.map_index for effect in world.starts.values()) == [0, 1, 2]
    world.finish_all()
    assert world.run_state(run) == "success"


def test_a_skip_by_an_event_skips_what_depends_on_it():
    world = World()
    run = world.begin(waiting(next_method=""), TaskSpec(task_id="b", parents=(0,)))

    ends(world, hosts(world)[0], "skipped", b"\xc0")

    assert world.state(run, "b") == "skipped"


def test_a_failure_by_an_event_says_why_and_is_retried_with_a_new_trigger():
    world = World()
    run = world.begin(waiting(next_method="", retry=TWICE))
    ends(world, hosts(world)[0], "failed", msgspec.msgpack.encode("disk full"))

    [row] = world.rows.tries
    assert (row.failure.message, row.failure.reason) == ("disk full", "raised")
    assert world.state(run, "a") == "retrying"
    world.pass_time(6)

    first, second = hosts(world)
    assert first.trigger_no != second.trigger_no
    assert second.start.try_number == 2
    ends(world, second, "success")
    assert world.run_state(run) == "success"


def test_a_trigger_that_fails_costs_a_try_and_no_slot():
    world = World()
    run = world.begin(waiting(retry=TWICE))
    [host] = hosts(world)
    world.turn(TriggerEnded(host.trigger_no, host.assignment_id, world.now, BROKEN))
    assert (world.state(run, "a"), world.starts) == ("retrying", {})

    world.pass_time(6)

    assert len(hosts(world)) == 2


def test_a_resumed_method_that_fails_is_retried_from_the_wait():
    world = World()
    run = world.begin(waiting(retry=TWICE))
    fire(world, hosts(world)[0])
    world.fail("a")
    world.pass_time(6)

    assert world.state(run, "a") == "deferred"
    assert hosts(world)[-1].start.try_number == 2


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"timeout_us": 30 * SECOND}, id="its-own"),
        pytest.param({"execution_timeout_us": 30 * SECOND}, id="that-of-the-try"),
    ],
)
def test_a_wait_that_takes_too_long_fails_the_try(limits):
    world = World()
    run = world.begin(waiting(**limits))
    world.pass_time(29)
    assert world.state(run, "a") == "deferred"

    effects = world.effects
    world.pass_time(2)

    assert world.state(run, "a") == "failed"
    assert [e.end.reason for e in effects if isinstance(e, ReleaseTrigger)] == ["timeout"]
    assert [row.failure.reason for row in world.rows.tries] == ["timeout"]


def test_a_deadline_holds_over_a_restart():
    world = World()
    run = world.begin(waiting(timeout_us=30 * SECOND))
    world.pass_time(20)
    world.restart()

    world.pass_time(11)

    assert world.state(run, "a") == "failed"


@pytest.mark.parametrize("restarts", [1, 3])
def test_a_restart_hosts_it_again_from_what_the_run_knows(restarts):
    world = World()
    run = world.begin(TaskSpec(task_id="p"), waiting("a", 0, argument_parents=(0,)))
    world.succeed("p", body=b"\x2a", size=1)
    before = hosts(world)[-1]

    for _ in range(restarts):
        world.pass_time(7)
        world.restart()

    after = hosts(world)[-1]
    assert (after.trigger_no, after.since) == (before.trigger_no, before.since)
    assert after.start.task_index == 1
    assert after.assignment_id > before.assignment_id
    fire(world, after)
    world.succeed("a")
    assert world.run_state(run) == "success"


def test_a_restart_between_its_event_and_its_method_resumes_it_once():
    world = World()
    run = world.begin(waiting())
    fire(world, hosts(world)[0])

    world.restart()

    assert world.started("a").start.event == b"\x07"
    world.succeed("a")
    assert world.run_state(run) == "success"
    assert world.rows.tasks[world.rows.runs[run].first_task_no].try_number == 1


def test_the_death_of_the_host_assigns_it_again_without_a_charged_try():
    world = World()
    run = world.begin(waiting())
    world.turn(HostLost(role="triggers", culprit=-1, failure=KILLED, at=world.now))
    world.turn(HostUp("triggers"))

    first, second = hosts(world)
    assert (second.trigger_no, second.start.try_number) == (first.trigger_no, 1)
    assert world.state(run, "a") == "deferred"


def test_an_event_of_an_earlier_hosting_ends_nothing():
    world = World()
    run = world.begin(waiting(next_method=""))
    [before] = hosts(world)
    world.restart()

    ends(world, before, "success", b"\x2a")

    assert world.state(run, "a") == "deferred"


def test_a_cancel_releases_its_trigger():
    world = World()
    run = world.begin(waiting())

    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    assert world.state(run, "a") == "cancelled"
    assert [e.end.reason for e in world.effects if isinstance(e, ReleaseTrigger)] == ["cancelled"]


def test_a_full_pool_does_not_keep_it_from_waiting_but_from_resuming():
    world = World(cpu_slots=9)
    world.ask(SetPool(name="narrow", slots=1))
    run = world.begin(
        TaskSpec(task_id="busy", pool="narrow", retry=ONCE), waiting("a", pool="narrow")
    )
    assert (world.state(run, "busy"), world.state(run, "a")) == ("running", "deferred")

    fire(world, hosts(world)[0])
    assert world.state(run, "a") == "queued"
    world.succeed("busy")

    assert world.state(run, "a") == "running"


def test_a_limit_of_its_run_does_not_keep_it_from_waiting():
    world = World(cpu_slots=9)
    run = world.begin(TaskSpec(task_id="busy"), waiting("a"), max_active_tasks=1)

    assert world.state(run, "a") == "deferred"


def test_a_parent_that_failed_keeps_it_from_waiting_at_all():
    world = World()
    run = world.begin(TaskSpec(task_id="p", retry=ONCE), waiting("a", 0))
    world.fail("p")

    assert world.state(run, "a") == "upstream_failed"
    assert not hosts(world)


def test_a_coroutine_resumes_on_the_async_host():
    world = World()
    run = world.begin(waiting(body=Body.COROUTINE))
    fire(world, hosts(world)[0])

    assert world.started("a").body is Body.COROUTINE
    world.succeed("a")
    assert world.run_state(run) == "success"


def fan(width: int, **fields: Any) -> TaskSpec:
    over = MapSpec(sources=(MapSource("trigger_kwargs", -1, width),))
    return waiting(mapped=over, map_limit=width, **fields)


def test_ten_thousand_children_wait_without_a_slot_between_them():
    width = 10_000
    world = World(cpu_slots=1)
    run = world.begin(fan(width, next_method=""))

    hosted = hosts(world)
    assert sorted(host.start.map_index for host in hosted) == list(range(width))
    assert not world.starts
    for first in range(0, width, 1_000):
        world.turn(
            *(
                TriggerFired(
                    host.trigger_no, host.assignment_id, 0, world.now, b"\x01", ends="success"
                )
                for host in hosted[first : first + 1_000]
            )
        )
    assert world.run_state(run) == "success"
    assert not world.rows.triggers


@pytest.mark.parametrize("how", ["it fires", "it fails", "its time is over"])
def test_the_end_of_one_child_changes_no_more_rows_if_others_wait(how):
    changed = []
    for others in (0, 2_000):
        world = World()
        world.begin(waiting(timeout_us=9 * SECOND))
        [host] = hosts(world)
        if others:
            of_others = DagSpec(dag_id="others", file="others.py", tasks=(fan(others),))
            world.load(of_others, version="v2", file="others.py")
            world.trigger("others")
        match how:
            case "it fires":
                fire(world, host)
            case "it fails":
                world.turn(TriggerEnded(host.trigger_no, host.assignment_id, world.now, BROKEN))
            case _:
                world.pass_time(10)
        batch = msgspec.structs.asdict(world.batches[-1])
        changed.append({name: len(rows) for name, rows in batch.items() if isinstance(rows, list)})

    assert changed[0] == changed[1]
    assert 0 < sum(changed[1].values()) < 9


def test_a_window_bounds_how_many_children_wait():
    world = World()
    run = world.begin(fan(5, window=2, next_method=""))
    assert len(hosts(world)) == 2

    ends(world, hosts(world)[0], "success")
    assert [host.start.map_index for host in hosts(world)] == [0, 1, 2]
    for _ in range(5):
        for host in hosts(world):
            ends(world, host, "success")

    assert world.run_state(run) == "success"
    assert len(hosts(world)) == 5


def test_a_window_holds_over_a_restart():
    world = World()
    run = world.begin(fan(5, window=2, next_method=""))
    world.restart()
    assert sorted(host.start.map_index for host in hosts(world)) == [0, 1]

    for _ in range(5):
        for host in hosts(world):
            ends(world, host, "success")

    assert world.run_state(run) == "success"


def test_children_end_each_as_its_event_says():
    world = World()
    run = world.begin(
        fan(3, next_method=""),
        TaskSpec(task_id="sum", parents=(0,), rule=TriggerRule.ALL_DONE),
    )
    hosted = hosts(world)

    ends(world, hosted[0], "success", b"\x01")
    ends(world, hosted[1], "failed", b"\xa2no")
    ends(world, hosted[2], "skipped", b"\xc0")

    states = [world.state(run, "a", index) for index in range(3)]
    assert states == ["success", "failed", "skipped"]
    assert world.started("sum") is not None


def test_a_refused_turn_leaves_no_second_wait():
    world = World()
    world.begin(TaskSpec(task_id="p"), waiting("a", 0))
    start = world.started("p").start
    world.starts.clear()

    world.refuse(Succeeded(start.task_no, start.start_no, world.now, world.now + 1))

    assert len(world.rows.triggers) == 1
    assert len(hosts(world)) == 1


def test_a_method_that_made_a_call_and_waited_does_not_begin_with_the_trigger_again():
    world = World()
    world.begin(waiting(body=Body.COROUTINE))
    fire(world, hosts(world)[0])
    start = world.starts.pop(world.started("a").start.task_no).start
    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(Awaiting(*at, 0, "wait", "T", "f.py:1", (("m:T", b"\x80"),)))

    fire(world, hosts(world)[-1])

    assert world.started("a").start.method == "after"
    assert [host.class_path for host in hosts(world)] == ["dag:T", "m:T"]


def test_a_limit_of_its_own_keeps_none_from_waiting():
    """A wait takes no slot, so nothing would wake up tasks that a limit had blocked."""
    world = World()
    run = world.begin(fan(3, max_active_tis_per_dagrun=1, retry=TWICE))
    hosted = hosts(world)
    assert len(hosted) == 3
    fire(world, hosted[0])  # this one takes the only slot

    for host in hosted[1:]:
        ends(world, host, "failed", b"\xa2no")
    world.pass_time(6)

    assert [world.state(run, "a", index) for index in range(3)] == [
        "running",
        "deferred",
        "deferred",
    ]


def test_a_pool_that_counts_what_waits_keeps_it_from_waiting():
    world = World(cpu_slots=9)
    world.ask(SetPool(name="narrow", slots=1, include_deferred=True))
    run = world.begin(waiting("a", pool="narrow"), waiting("b", pool="narrow"))
    assert (world.state(run, "a"), world.state(run, "b")) == ("deferred", "queued")

    why = world.ask(Explain(run_id=world.rows.runs[run].run_id, tasks=((1, -1),)))[1, -1]
    assert why.kind is WaitKind.SLOT
    assert why.detail == "pool narrow: 1 of 1 slots are taken, 1 of them by deferred tasks"
    ends(world, hosts(world)[0], "success")

    assert (world.state(run, "a"), world.state(run, "b")) == ("success", "deferred")


def test_one_too_heavy_for_a_pool_that_counts_deferred_tasks_blocks_no_other():
    world = World()
    world.ask(SetPool(name="narrow", slots=1, include_deferred=True))
    run = world.begin(
        waiting("heavy", pool="narrow", slots=2, priority=9), waiting("light", pool="narrow")
    )
    assert (world.state(run, "heavy"), world.state(run, "light")) == ("queued", "deferred")

    world.ask(SetPool(name="narrow", slots=3, include_deferred=True))

    assert world.state(run, "heavy") == "deferred"
