"""Operators that consume every event of a trigger: in batches, in order, each event once."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core.tasks import start_command, streams
from aioflow.model.dag import (
    Body,
    EventsSpec,
    MapSource,
    MapSpec,
    RetryPolicy,
    StartTriggerSpec,
    TaskSpec,
)
from aioflow.model.states import Failure, WaitKind
from aioflow.protocol.commands import StartTask
from aioflow.protocol.effects import AssignTrigger, ConfirmEvents, ReleaseTrigger
from aioflow.protocol.inputs import HostLost, HostUp
from aioflow.protocol.reports import Deferred, EventsHandled, TriggerEnded, TriggerFired
from aioflow.protocol.requests import CancelRun, Explain
from tests.core.world import SECOND, World

KILLED = Failure(type="Killed", message="SIGKILL", reason="killed")
BROKEN = Failure(type="ValueError", message="no", reason="trigger")
TWICE = RetryPolicy(tries=2, delay_us=5 * SECOND, jitter=False)
BATCHES = EventsSpec(method="handle_trigger_events", batch=3, delay_us=50_000, window=8)
ALONE = EventsSpec(method="")


def deferred(
    world: World | None = None,
    events: EventsSpec = BATCHES,
    *,
    next_method: str = "close",
    timeout_us: int | None = None,
    timeout_method: str = "",
    **fields: Any,
) -> World:
    """Return a world in which an operator is deferred to a trigger that yields several events."""
    world = world or World()
    fields.setdefault("retry", TWICE)
    world.begin(TaskSpec(task_id="o", events=events, **fields))
    start = start_of(world)
    world.starts.clear()
    world.turn(
        Deferred(
            start.task_no,
            start.start_no,
            world.now,
            world.now,
            "m:Ticks",
            b"\x80",
            next_method,
            None,
            timeout_us,
            timeout_method,
        )
    )
    return world


def start_of(world: World) -> StartTask:
    effect = world.started("o")
    assert effect is not None, "it has not been started"
    return effect.start


def hosting(world: World) -> tuple[int, int]:
    """Return the operator's trigger and its assignment."""
    host = next(e for e in reversed(world.effects) if isinstance(e, AssignTrigger)).host
    return host.trigger_no, host.assignment_id


def fire(world: World, *events: int, key: bool = True) -> list[Any]:
    """Have the trigger yield the next events of its assignment."""
    number, hosted = hosting(world)
    first = world.memory.waits[number].stream.index
    return world.turn(
        *(
            TriggerFired(
                number, hosted, first + n, world.now, bytes([event]), str(event) if key else None
            )
            for n, event in enumerate(events)
        )
    )


def end(world: World, failure: Failure | None = None) -> list[Any]:
    return world.turn(TriggerEnded(*hosting(world), world.now, failure))


def given(world: World) -> list[int]:
    """Return the events given to the running start."""
    return [payload[0] for payload, _ in start_of(world).events]


def handle(world: World, *items: bytes) -> list[Any]:
    """Let the running start consume its batch and yield items."""
    start = world.starts.pop(start_of(world).task_no).start
    at = (start.task_no, start.start_no, world.now, world.now)
    return world.turn(EventsHandled(*at, start.upto, tuple(items), start.is_closing))


def state(world: World) -> str:
    return world.state(next(iter(world.rows.runs)), "o")


def test_events_come_in_batches_that_wait_for_others_as_long_as_they_may():
    world = deferred()
    fire(world, 1)
    fire(world, 2)
    assert not world.starts

    world.pass_time(0.05)

    assert given(world) == [1, 2]
    assert start_of(world).method == "handle_trigger_events"


def test_a_full_batch_waits_for_nothing():
    world = deferred()
    fire(world, 1, 2, 3, 4)

    assert given(world) == [1, 2, 3]
    handle(world)
    assert given(world) == [4]


def test_its_trigger_continues_and_gets_confirmations():
    world = deferred()

    [host] = [e.host for e in world.effects if isinstance(e, AssignTrigger)]
    [taken] = [e.confirmed for e in fire(world, 1, 2) if isinstance(e, ConfirmEvents)]

    assert (host.window, taken.upto) == (8, 2)


def test_between_two_batches_it_holds_no_place_and_waits_for_its_trigger():
    world = deferred(World(cpu_slots=1))
    fire(world, 1, 2, 3)
    handle(world)

    assert state(world) == "deferred"
    assert world.slots.workers[0].is_idle
    run = next(iter(world.rows.runs.values()))
    why = world.ask(Explain(run_id=run.run_id, tasks=((0, -1),)))[0, -1]
    assert (why.kind, why.detail[:7]) == (WaitKind.TRIGGER, "m:Ticks")


@pytest.mark.parametrize("events", [BATCHES, ALONE])
def test_a_wait_for_the_end_of_a_stream_explains_that_it_ends_with_its_trigger(events):
    world = World(cpu_slots=4)
    world.begin(
        TaskSpec(task_id="o", events=events, streams=True),
        TaskSpec(task_id="each", parents=(0,), mapped=MapSpec((MapSource("x", 0, -1),))),
        TaskSpec(task_id="total", parents=(1,)),
        TaskSpec(task_id="last", parents=(0,)),
    )
    run = next(iter(world.rows.runs.values()))

    found = world.ask(Explain(run_id=run.run_id, tasks=((2, -1), (3, -1))))

    said = "of o events are accepted until its trigger ends"
    assert found[2, -1].detail == f"each (0 of 1 ended); {said}"
    assert found[3, -1].detail == f"o (0 of 1 ended); {said}"


def test_handled_events_are_consumed_in_the_commit_that_moves_the_task():
    world = deferred()
    fire(world, 1, 2, 3)
    assert all(row.payload for row in world.rows.events.values())

    handle(world, b"\x01", b"\x02")

    assert [row.payload for row in world.rows.events.values()] == [None, None, None]
    assert [row.payload for row in world.rows.items.values()] == [b"\x01", b"\x02"]


def test_a_report_of_handled_events_that_comes_twice_changes_nothing():
    world = deferred()
    fire(world, 1, 2, 3)
    start = start_of(world)
    handle(world, b"\x01")
    fire(world, 4)

    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(EventsHandled(*at, start.upto, (b"\x01",)))

    assert len(world.rows.items) == 1
    assert [row.payload for row in world.rows.events.values()] == [None, None, None, b"\x04"]


def test_a_handler_that_fails_gets_the_same_events_again_in_its_next_try():
    world = deferred()
    fire(world, 1, 2, 3)
    handle(world, b"\x07")
    fire(world, 4, 5, 6)
    world.fail("o")
    assert state(world) == "retrying"
    fire(world, 7)  # its trigger continues before the retry

    world.pass_time(5)

    assert given(world) == [4, 5, 6]
    assert start_of(world).try_number == 2
    handle(world)
    assert given(world) == [7]


def test_a_handler_that_dies_with_its_process_gets_the_same_events_again_uncharged():
    world = deferred()
    fire(world, 1, 2, 3)
    world.fail("o", interrupted=True)

    assert given(world) == [1, 2, 3]
    assert start_of(world).try_number == 1


def test_a_restart_hands_out_the_first_unconsumed_batch():
    world = deferred()
    fire(world, 1, 2, 3)
    handle(world)
    fire(world, 4, 5, 6)
    world.restart()

    assert given(world) == [4, 5, 6]
    handle(world)
    fire(world, 1, 4, 6, 7, 8, 9)  # another assignment starts from the first event
    assert given(world) == [7, 8, 9]


def test_a_restart_while_a_batch_waits_for_others_gives_it_at_once():
    world = deferred()
    fire(world, 1)
    world.restart()

    assert given(world) == [1]


def test_a_restart_finds_one_that_waits_with_its_stream():
    world = deferred()
    fire(world, 1, 2, 3)
    handle(world)
    world.restart()
    assert not world.starts

    fire(world, 4, 5, 6)

    assert given(world) == [4, 5, 6]


def test_a_restart_between_two_tries_finds_the_stream_too():
    world = deferred()
    fire(world, 1, 2, 3)
    world.fail("o")
    world.restart()

    world.pass_time(5)

    assert given(world) == [1, 2, 3]
    assert start_of(world).try_number == 2


def test_at_the_end_of_its_stream_it_is_called_once_without_an_event():
    world = deferred()
    fire(world, 1)
    end(world)
    handle(world, b"\x05")

    start = start_of(world)
    assert (start.method, start.event, start.events) == ("close", None, ())
    assert (start.is_closing, start.stored) == (True, 1)
    world.succeed("o", body=b"\x09", size=1)
    assert state(world) == "success"
    assert not world.rows.triggers
    assert not world.rows.events
    assert not world.rows.items


def test_a_stream_without_an_event_is_closed_too():
    world = deferred()
    end(world)

    assert start_of(world).is_closing


def test_one_without_a_method_for_the_end_is_started_once_more_for_its_output():
    world = deferred(next_method="")
    fire(world, 1)
    end(world)
    handle(world, b"\x05")

    start = start_of(world)
    assert (start.method, start.is_closing, start.stored) == ("", True, 1)


def test_each_event_is_given_alone_to_the_method_of_one_that_takes_many():
    world = deferred(events=ALONE, next_method="each")
    fire(world, 1, 2)

    assert (given(world), start_of(world).method) == ([1], "each")
    handle(world)
    assert (given(world), start_of(world).method) == ([2], "each")
    end(world)
    handle(world)
    assert (start_of(world).method, start_of(world).is_closing) == ("", True)


def test_events_are_given_up_to_a_number_of_bytes_and_one_always(monkeypatch):
    monkeypatch.setattr(start_command, "EVENT_BYTES", 2)
    world = deferred()
    fire(world, 1, 2, 3)
    assert given(world) == [1, 2]

    monkeypatch.setattr(start_command, "EVENT_BYTES", 0)
    handle(world)
    assert given(world) == [3]


def test_a_trigger_that_fails_fails_the_try_when_its_events_are_consumed():
    world = deferred(retry=RetryPolicy(tries=1))
    fire(world, 1)
    end(world, BROKEN)
    assert given(world) == [1]

    handle(world)

    assert state(world) == "failed"
    assert not world.rows.triggers
    assert not world.rows.events


def test_after_a_trigger_failed_the_next_try_hosts_it_again_and_knows_its_keys():
    world = deferred()
    fire(world, 1, 2, 3)
    handle(world, b"\x01")
    before = hosting(world)
    end(world, BROKEN)
    assert state(world) == "retrying"

    world.pass_time(5)

    assert state(world) == "deferred"
    assert hosting(world) > before
    assert hosting(world)[0] == before[0]
    fire(world, 1, 2, 3, 4, 5, 6)
    assert given(world) == [4, 5, 6]
    assert start_of(world).try_number == 2
    assert len(world.rows.tries) == 1


def test_a_trigger_that_fails_in_every_try_fails_its_task_for_good():
    world = deferred()
    end(world, BROKEN)
    world.pass_time(5)
    end(world, BROKEN)

    assert state(world) == "failed"
    assert [row.try_number for row in world.rows.tries] == [1, 2]


def test_a_wait_for_the_next_event_that_takes_too_long_fails_the_try():
    world = deferred(timeout_us=2 * SECOND, retry=RetryPolicy(tries=1))
    world.pass_time(1)
    fire(world, 1, 2, 3)
    handle(world)  # the timeout counts from here again
    world.pass_time(1.5)
    assert state(world) == "deferred"

    world.pass_time(1)

    assert state(world) == "failed"
    (row,) = world.rows.tasks.values()
    assert row.failure.message == "m:Ticks gave no event in 2 s"


def test_a_wait_that_takes_too_long_resumes_in_the_method_for_that():
    world = deferred(timeout_us=2 * SECOND, timeout_method="late")
    world.pass_time(2)

    start = start_of(world)
    assert (start.method, start.upto, start.is_closing) == ("late", 0, False)


def test_an_event_that_came_is_no_wait_that_took_too_long():
    events = EventsSpec(method="handle_trigger_events", batch=3, delay_us=3 * SECOND)
    world = deferred(events=events, timeout_us=2 * SECOND)
    fire(world, 1)

    world.pass_time(2)

    assert given(world) == [1]


def test_a_host_that_died_hosts_the_trigger_of_a_running_handler_again():
    world = deferred()
    fire(world, 1, 2, 3)
    world.turn(HostLost(role="triggers", culprit=-1, failure=KILLED, at=world.now))
    world.turn(HostUp("triggers"))
    fire(world, 1, 2, 3, 4)

    handle(world)

    assert given(world) == [4]


def test_a_cancelled_run_tells_the_trigger_so():
    world = deferred()
    fire(world, 1, 2, 3)
    world.ask(CancelRun(run_id=next(iter(world.rows.runs.values())).run_id))

    [ended] = [e.end for e in world.effects if isinstance(e, ReleaseTrigger)]
    assert ended.reason == "cancelled"
    world.turn(TriggerEnded(*hosting(world), world.now))
    assert not world.rows.triggers
    assert not world.rows.events
    assert not world.memory.waits


def test_one_that_fails_for_good_lets_its_trigger_go():
    world = deferred(retry=RetryPolicy(tries=1))
    fire(world, 1, 2, 3)
    world.fail("o")

    assert state(world) == "failed"
    [ended] = [e.end for e in world.effects if isinstance(e, ReleaseTrigger)]
    assert ended.reason == "finished"
    world.turn(TriggerEnded(*hosting(world), world.now))
    assert not world.rows.triggers


def test_a_refused_turn_with_handled_events_is_taken_back_whole():
    world = deferred()
    fire(world, 1, 2, 3)
    fire(world, 4)
    start = world.starts.pop(start_of(world).task_no).start
    at = (start.task_no, start.start_no, world.now, world.now)

    world.refuse(EventsHandled(*at, start.upto, (b"\x01",)))

    assert [row.payload for row in world.rows.items.values()] == [b"\x01"]
    world.turn()
    assert given(world) == [4]


def test_a_task_that_starts_from_its_trigger_takes_its_events_without_a_start_before():
    world = World()
    trigger = StartTriggerSpec(class_path="dag:T", next_method="close")
    world.begin(TaskSpec(task_id="o", events=BATCHES, start_trigger=trigger, retry=TWICE))
    assert not world.starts

    fire(world, 1, 2, 3)
    assert given(world) == [1, 2, 3]
    world.fail("o")
    world.pass_time(5)
    assert given(world) == [1, 2, 3]
    handle(world)
    end(world)

    assert start_of(world).method == "close"


def test_a_trigger_made_of_a_task_is_hosted_again_as_from_its_beginning():
    world = World()
    trigger = StartTriggerSpec(class_path="dag:T", next_method="close")
    world.begin(TaskSpec(task_id="o", events=BATCHES, start_trigger=trigger))
    fire(world, 1, 2, 3)

    world.turn(HostLost(role="triggers", culprit=-1, failure=KILLED, at=world.now))
    world.turn(HostUp("triggers"))

    host = next(e for e in reversed(world.effects) if isinstance(e, AssignTrigger)).host
    assert (host.start.method, host.start.events, host.is_made_there) == ("", (), True)


def test_one_that_takes_no_events_resumes_from_the_first_as_ever():
    world = World()
    world.begin(TaskSpec(task_id="o"))
    start = start_of(world)
    world.turn(
        Deferred(start.task_no, start.start_no, world.now, world.now, "m:T", b"\x80", "after")
    )
    [host] = [e.host for e in world.effects if isinstance(e, AssignTrigger)]

    world.turn(TriggerFired(host.trigger_no, host.assignment_id, 0, world.now, b"\x07"))

    assert (host.window, start_of(world).event, start_of(world).events) == (0, b"\x07", ())


def test_a_defer_at_the_end_of_a_stream_waits_for_another_one():
    world = deferred()
    end(world)
    start = world.starts.pop(start_of(world).task_no).start
    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(Deferred(*at, "m:More", b"\x80", "close"))

    assert [row.class_path for row in world.rows.triggers.values()] == ["m:More"]
    fire(world, 1, 2, 3)
    assert given(world) == [1, 2, 3]


@pytest.mark.parametrize("body", list(Body))
def test_both_kinds_of_bodies_take_events(body):
    world = deferred(body=body)
    fire(world, 1, 2, 3)
    handle(world)
    fire(world, 4)
    world.pass_time(1)

    assert given(world) == [4]
    assert streams.has_batch(next(iter(world.memory.waits.values())))
