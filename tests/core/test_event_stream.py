"""Streams of events as the engine sees them: stored, consumed one by one, each exactly once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aioflow.core.triggers import event_stream
from aioflow.model.dag import Body, RetryPolicy, TaskSpec
from aioflow.model.states import Failure
from aioflow.protocol.commands import StartTask
from aioflow.protocol.effects import AssignTrigger, ConfirmCall, ConfirmEvents, ReleaseTrigger
from aioflow.protocol.inputs import HostLost, HostUp
from aioflow.protocol.reports import (
    CallAnswered,
    Failed,
    NextEventRequested,
    StreamOpened,
    TriggerEnded,
    TriggerFired,
)
from aioflow.protocol.requests import CancelRun
from tests.core.world import SECOND, World

KILLED = Failure(type="Killed", message="SIGKILL", reason="killed")
BROKEN = Failure(type="ValueError", message="no", reason="trigger")


def opened(world: World | None = None, **fields: Any) -> World:
    """Start a run of a single coroutine that has opened a stream in its first durable call."""
    world = world or World()
    fields.setdefault("retry", RetryPolicy(tries=2, delay_us=0, jitter=False))
    world.begin(TaskSpec(task_id="c", body=Body.COROUTINE, **fields))
    start = start_of(world)
    world.turn(
        StreamOpened(
            start.task_no, start.start_no, 0, "stream", "Ticks", "f.py:3", "m:Ticks", b"\x80", 4
        )
    )
    return world


def start_of(world: World) -> StartTask:
    effect = world.started("c")
    assert effect is not None, "it has not been started"
    return effect.start


def hosting(world: World) -> tuple[int, int]:
    """Return the stream's trigger and its assignment."""
    host = next(e for e in reversed(world.effects) if isinstance(e, AssignTrigger)).host
    return host.trigger_no, host.assignment_id


def fire(world: World, *events: int, index: int | None = None, key: bool = True) -> list[Any]:
    """Have the trigger yield the next events of its assignment, or those from ``index`` on."""
    number, hosted = hosting(world)
    first = world.memory.waits[number].stream.index if index is None else index
    return world.turn(
        *(
            TriggerFired(
                number, hosted, first + n, world.now, bytes([event]), str(event) if key else None
            )
            for n, event in enumerate(events)
        )
    )


def want(world: World, ordinal: int, timeout_us: int | None = None) -> list[Any]:
    """Request the next event in the durable call with this number."""
    start = start_of(world)
    at = (start.task_no, start.start_no, world.now, world.now)
    return world.turn(
        NextEventRequested(*at, ordinal, "next", "Ticks#0", "f.py:3", 0, timeout_us=timeout_us)
    )


def told(effects: list[Any]) -> list[bytes | None]:
    """Return the answers that the coroutine got immediately."""
    return [effect.recorded.answer for effect in effects if isinstance(effect, ConfirmCall)]


def resumed(world: World) -> Any:
    effect = world.started("c")
    assert effect is not None, "it has not been started"
    return effect.resume


def test_a_stream_is_hosted_while_its_coroutine_continues():
    world = opened()

    assert [e.host.window for e in world.effects if isinstance(e, AssignTrigger)] == [4]
    assert told(world.effects) == [None]
    assert world.state(next(iter(world.rows.runs)), "c") == "running"


def test_events_that_came_before_they_were_wanted_are_given_at_once_in_order():
    world = opened()
    fire(world, 7, 8)

    assert told(want(world, 1)) == [b"\x07"]
    assert told(want(world, 2)) == [b"\x08"]


def test_a_coroutine_that_wants_an_event_is_suspended_until_it_comes():
    world = opened()
    want(world, 1)
    assert world.memory.active_tasks[start_of(world).task_no].state.label == "deferred"
    assert world.slots.running_coroutines == 0

    fire(world, 9)

    assert resumed(world).answer == b"\x09"
    assert world.slots.running_coroutines == 1


def test_an_event_reported_twice_is_stored_once():
    world = opened()
    fire(world, 1)
    fire(world, 1, index=0, key=False)

    assert len(world.rows.events) == 1


def test_a_key_that_was_stored_is_dropped_when_another_hosting_yields_it_again():
    world = opened()
    fire(world, 1, 2)
    want(world, 1)
    world.turn(HostLost(role="triggers", culprit=-1, failure=KILLED, at=world.now))
    world.turn(HostUp("triggers"))

    fire(world, 1, 2, 3)

    assert [row.key for row in world.rows.events.values()] == ["1", "2", "3"]
    assert told(want(world, 2)) == [b"\x02"]
    assert told(want(world, 3)) == [b"\x03"]


def test_a_stream_whose_events_are_stored_is_no_suspect_however_often_its_host_is_killed():
    world = opened(retry=RetryPolicy(tries=1))
    number, _ = hosting(world)

    for event in range(8):
        world.turn(HostLost(role="triggers", culprit=number, failure=KILLED, at=world.now))
        world.pass_time(1)
        world.turn(HostUp("triggers"))
        fire(world, event, index=0)

    assert not world.memory.waits[number].row.failure
    assert told(want(world, 1)) == [b"\x00"]


def test_an_event_of_an_earlier_hosting_is_late():
    world = opened()
    number, before = hosting(world)
    world.turn(HostLost(role="triggers", culprit=-1, failure=KILLED, at=world.now))
    world.turn(HostUp("triggers"))

    world.turn(TriggerFired(number, before, 0, world.now, b"\x05", None))

    assert not world.rows.events


def test_the_trigger_gets_confirmations():
    world = opened()

    [taken] = [e.confirmed for e in fire(world, 1, 2, 3) if isinstance(e, ConfirmEvents)]

    assert taken.upto == 3


def test_a_trigger_that_is_far_ahead_is_not_asked_for_more_until_events_are_consumed(monkeypatch):
    monkeypatch.setattr(event_stream, "EVENTS_AHEAD", 3)
    world = opened()
    assert any(isinstance(e, ConfirmEvents) for e in fire(world, 1, 2))
    assert not any(isinstance(e, ConfirmEvents) for e in fire(world, 3, 4))

    want(world, 1)
    effects = want(world, 2)

    [taken] = [e.confirmed for e in effects if isinstance(e, ConfirmEvents)]
    assert taken.upto == 4


def test_large_events_are_bounded_by_their_bytes(monkeypatch):
    monkeypatch.setattr(event_stream, "BYTES_AHEAD", 2)
    world = opened()

    [taken] = [e.confirmed for e in fire(world, 1, 2, 3) if isinstance(e, ConfirmEvents)]

    assert taken.upto == 1


def test_a_restart_continues_after_the_last_event_that_was_consumed():
    world = opened()
    fire(world, 1, 2, 3)
    want(world, 1)
    world.restart()
    assert start_of(world).recorded == 2

    assert told(want(world, 2)) == [b"\x02"]
    fire(world, 1, 2, 3, 4)  # another assignment starts from the first event
    assert told(want(world, 3)) == [b"\x03"]
    assert told(want(world, 4)) == [b"\x04"]


def test_a_restart_finds_a_coroutine_that_waits_for_an_event():
    world = opened()
    want(world, 1)
    world.restart()

    fire(world, 6)

    assert start_of(world).recorded == 2
    assert world.rows.records[start_of(world).task_no, 1].answer == b"\x06"


def test_a_stream_whose_trigger_ended_ends_when_its_events_are_consumed():
    world = opened()
    fire(world, 1)
    number, hosted = hosting(world)
    world.turn(TriggerEnded(number, hosted, world.now))
    assert told(want(world, 1)) == [b"\x01"]

    assert told(want(world, 2)) == [None]
    assert told(want(world, 3)) == [None]


def test_a_suspended_coroutine_learns_that_its_stream_has_ended():
    world = opened()
    want(world, 1)
    number, hosted = hosting(world)

    world.turn(TriggerEnded(number, hosted, world.now))

    assert resumed(world).answer is None
    assert resumed(world).failure is None


def test_a_trigger_that_ended_is_not_hosted_again_after_a_restart():
    world = opened()
    number, hosted = hosting(world)
    world.turn(TriggerEnded(number, hosted, world.now))
    world.restart()

    assert not any(isinstance(e, AssignTrigger) for e in world.effects)
    assert told(want(world, 1)) == [None]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_trigger_that_fails_fails_the_try_once_its_events_are_consumed(restarts):
    world = opened(retry=RetryPolicy(tries=1))
    run_no = next(iter(world.rows.runs))
    fire(world, 1)
    number, hosted = hosting(world)
    world.turn(TriggerEnded(number, hosted, world.now, BROKEN))
    if restarts:
        world.restart()
    assert told(want(world, 1)) == [b"\x01"]

    want(world, 2)

    assert world.state(run_no, "c") == "failed"
    assert not world.rows.triggers
    assert not world.rows.events


def test_nothing_is_left_of_a_stream_when_its_task_has_ended():
    world = opened()
    fire(world, 1, 2)
    world.succeed("c")
    number, hosted = hosting(world)
    assert any(isinstance(e, ReleaseTrigger) for e in world.effects)

    world.turn(TriggerEnded(number, hosted, world.now))

    assert not world.rows.triggers
    assert not world.rows.events
    assert not world.memory.waits


@pytest.mark.parametrize("waits", [True, False], ids=["while-it-waits", "while-it-computes"])
def test_a_cancelled_run_releases_its_streams_with_that_reason(waits):
    world = opened()
    if waits:
        want(world, 1)
    world.ask(CancelRun(run_id=next(iter(world.rows.runs.values())).run_id))

    [ended] = [e.end for e in world.effects if isinstance(e, ReleaseTrigger)]
    number, hosted = hosting(world)
    assert (ended.trigger_no, ended.reason) == (number, "cancelled")
    assert world.rows.triggers[number].state.name == "ENDING"
    world.turn(TriggerEnded(number, hosted, world.now, None, "cancelled"))
    assert not world.rows.triggers


def test_an_event_that_does_not_come_in_time_raises_and_the_stream_continues():
    world = opened()
    want(world, 1, timeout_us=2 * SECOND)
    world.pass_time(3)
    assert resumed(world).failure.type == "TimeoutError"

    fire(world, 5)

    assert told(want(world, 2)) == [b"\x05"]


def test_the_next_try_continues_with_the_first_unconsumed_event():
    """The first try recorded the event whose step failed, so that event is consumed."""
    world = opened()
    fire(world, 1, 2)
    want(world, 1)
    start = start_of(world)
    failed = Failure(type="ValueError", message="no", reason="step")
    world.turn(
        CallAnswered(start.task_no, start.start_no, 2, "step", "m:f", "f.py:4", None, failed)
    )
    world.fail("c")
    world.pass_time(1)

    assert start_of(world).recorded == 2
    assert world.rows.records[start.task_no, 1].answer == b"\x01"
    assert told(want(world, 2)) == [b"\x02"]


def test_a_refused_turn_with_events_is_taken_back_whole():
    world = opened()
    fire(world, 1)
    number, hosted = hosting(world)

    world.refuse(
        *(TriggerFired(number, hosted, n, world.now, bytes([n + 1]), None) for n in (1, 2))
    )

    assert [row.payload for row in world.rows.events.values()] == [b"\x01", b"\x02", b"\x03"]
    assert [told(want(world, n)) for n in (1, 2, 3)] == [[b"\x01"], [b"\x02"], [b"\x03"]]


def test_a_wanted_event_reported_twice_is_delivered_once():
    world = opened()
    fire(world, 1, 2)
    want(world, 1)
    want(world, 1)

    assert sum(row.payload is None for row in world.rows.events.values()) == 1
    assert msgspec.structs.asdict(world.rows.events[hosting(world)[0], 1])["payload"] == b"\x02"


def test_the_limit_of_an_event_ends_with_the_try_that_waited_for_it():
    world = opened()
    want(world, 1, timeout_us=60 * SECOND)
    number, hosted = hosting(world)

    world.turn(TriggerEnded(number, hosted, world.now, BROKEN))

    (row,) = world.rows.tasks.values()
    assert (row.state.label, row.deadline_at) == ("retrying", None)


@pytest.mark.parametrize("end", ["its trigger fails", "its body ends", "it is cancelled"])
def test_a_task_that_ends_while_it_waits_for_an_event_keeps_no_deadline(end):
    world = opened(retry=RetryPolicy(tries=1))
    start = start_of(world)
    want(world, 1, timeout_us=60 * SECOND)
    number, hosted = hosting(world)

    match end:
        case "its trigger fails":
            world.turn(TriggerEnded(number, hosted, world.now, BROKEN))
        case "its body ends":
            world.turn(Failed(start.task_no, start.start_no, world.now, world.now, BROKEN))
        case _:
            world.ask(CancelRun(run_id=next(iter(world.rows.runs.values())).run_id))

    (row,) = world.rows.tasks.values()
    assert not row.state.is_live
    assert row.deadline_at is None


def test_events_of_an_abandoned_stream_are_deleted_with_it():
    world = opened()
    fire(world, 1, 2)
    world.succeed("c")
    assert world.rows.events  # until its host has released the trigger; that host is gone now

    world.restart()

    assert not world.rows.events
    assert not world.rows.triggers
