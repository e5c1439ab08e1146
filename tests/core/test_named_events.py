"""Named events as the engine sees them: stored once, whatever is repeated or rolled back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aioflow.core.triggers import named_events
from aioflow.model.states import RecordState
from aioflow.protocol.effects import Acknowledge, ConfirmCall
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.reports import EventEmitted
from aioflow.protocol.requests import EmitEvent
from tests.core.test_durable_calls import begun, of_kind, start_of, step
from tests.core.world import World


def emitted(world: World, ordinal: int = 0, name: str = "approved", data: object = 1) -> Any:
    """Return the coroutine's report that it emits an event."""
    start = start_of(world)
    at = (start.task_no, start.start_no, ordinal, "emit", "emit", "flow.py:5")
    return EventEmitted(*at, name, "k", msgspec.msgpack.encode(data))


def request(name: str = "approved", key: str | None = None, again: str | None = None) -> EmitEvent:
    return EmitEvent(name=name, key=key, data=b"\x01", request=again)


# ── from a task ─────────────────────────────────────────────────────────────────────────


def test_an_event_and_its_record_are_one_commit_that_is_confirmed():
    world, run_no = begun()
    commits = world.rows.commit_no

    effects = world.turn(emitted(world))

    assert world.rows.commit_no == commits + 1
    (event,) = world.rows.named_events.values()
    assert (event.name, event.key, event.data, event.run_no) == ("approved", "k", b"\x01", run_no)
    assert [row.state for row in world.rows.records.values()] == [RecordState.ANSWERED]
    (confirmed,) = of_kind(effects, ConfirmCall)
    assert (confirmed.recorded.ordinal, confirmed.recorded.failure) == (0, None)


def test_a_repeated_report_of_an_event_is_confirmed_and_stores_nothing():
    world, _ = begun()
    report = emitted(world)
    world.turn(report)

    effects = world.turn(report)

    assert len(world.rows.named_events) == 1
    assert len(of_kind(effects, ConfirmCall)) == 1


def test_a_late_report_of_an_event_stores_nothing():
    world, _ = begun()
    report = emitted(world)
    world.restart()

    assert world.turn(report) == []
    assert world.rows.named_events == {}


def test_a_task_that_runs_again_continues_after_what_it_emitted():
    world, _ = begun()
    world.turn(emitted(world))
    world.restart()

    start = start_of(world)
    world.turn(emitted(world, 1, data=2))

    assert start.recorded == 1
    assert [event.data for event in world.rows.named_events.values()] == [b"\x01", b"\x02"]


def test_an_event_of_a_turn_that_is_taken_back_is_stored_once():
    world, _ = begun()
    step(world, 0)

    world.refuse(emitted(world, 1))

    assert len(world.rows.named_events) == 1
    assert [ordinal for _, ordinal in sorted(world.rows.records)] == [0, 1]


def test_events_are_numbered_behind_the_runs_that_were_there_and_before_those_that_come():
    world, earlier = begun()

    number, _ = world.ask(request())
    world.restart()
    later = world.trigger()

    assert earlier < number < later


# ── from outside ────────────────────────────────────────────────────────────────────────


def test_an_event_without_an_idempotency_key_is_a_new_one_each_time():
    world = World()

    answers = [world.ask(request()) for _ in range(2)]

    assert [created for _, created in answers] == [True, True]
    assert len(world.rows.named_events) == 2


@pytest.mark.parametrize("at_once", [True, False])
def test_the_same_idempotency_key_of_a_name_is_one_event(at_once):
    world = World()
    asked = [RequestReceived(100 + number, request(again="r")) for number in range(2)]

    effects = world.turn(*asked) if at_once else [*world.turn(asked[0]), *world.turn(asked[1])]

    (first, _), (second, _) = answers = [e.answer for e in of_kind(effects, Acknowledge)]
    assert [created for _, created in answers] == [True, False]
    assert first == second
    assert len(world.rows.named_events) == 1


def test_the_same_idempotency_key_of_another_name_is_another_event():
    world = World()

    world.ask(request("a", again="r"))

    assert world.ask(request("b", again="r"))[1]


def test_a_key_of_a_turn_that_is_taken_back_is_not_remembered():
    world = World()
    _, _, tx = world.decide([RequestReceived(1, request(again="r"))])
    world.take_back(tx)

    assert world.ask(request(again="r"))[1]
    assert len(world.rows.named_events) == 1


def test_only_the_latest_idempotency_keys_are_in_memory(monkeypatch):
    monkeypatch.setattr(named_events, "REQUESTS_LIMIT", 3)
    world = World()

    for number in range(5):
        world.ask(request(again=f"r{number}"))

    assert [key for _, key in world.memory.event_requests] == ["r2", "r3", "r4"]
