"""An event provided by a person counts as if the trigger had yielded it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aioflow.errors import RequestError
from aioflow.model.dag import Body, MapSource, MapSpec, RetryPolicy, StartTriggerSpec, TaskSpec
from aioflow.protocol.commands import StartTask, StartTrigger
from aioflow.protocol.effects import AssignTrigger, ReleaseTrigger
from aioflow.protocol.reports import (
    Awaiting,
    Deferred,
    NextEventRequested,
    StreamOpened,
    TriggerEnded,
    TriggerFired,
)
from aioflow.protocol.requests import FireTrigger
from tests.core.world import World

GIVEN = msgspec.msgpack.encode({"by": "mia"})
NULL = msgspec.msgpack.encode(None)


def begun(**fields: Any) -> tuple[World, int]:
    world = World()
    return world, world.begin(TaskSpec(task_id="t", retry=RetryPolicy(tries=1), **fields))


def start_of(world: World) -> StartTask:
    effect = world.started("t")
    assert effect is not None, "it has not been started"
    return effect.start


def suspended(world: World) -> tuple[int, int, int, int]:
    """Remove the task from the started tasks. Return the first fields of its report."""
    start = world.starts.pop(start_of(world).task_no).start
    return start.task_no, start.start_no, world.now, world.now


def deferred() -> tuple[World, int, StartTrigger]:
    world, run = begun()
    world.turn(Deferred(*suspended(world), "m:T", b"\x80", "after"))
    return world, run, hosts(world)[0]


def awaiting(kind: str, *classes: str) -> World:
    world, _ = begun(body=Body.COROUTINE)
    wanted = tuple((name, b"\x80") for name in classes)
    world.turn(Awaiting(*suspended(world), 0, kind, ", ".join(classes), "f.py:4", wanted, None))
    return world


def hosts(world: World) -> list[StartTrigger]:
    return [effect.host for effect in world.effects if isinstance(effect, AssignTrigger)]


def let_go(world: World) -> list[tuple[int, str]]:
    ended = [effect.end for effect in world.effects if isinstance(effect, ReleaseTrigger)]
    return [(end.trigger_no, end.reason) for end in ended]


def give(world: World, host: StartTrigger, payload: bytes = GIVEN, key: str | None = None) -> Any:
    return world.ask(FireTrigger(trigger_no=host.trigger_no, payload=payload, key=key))


def resumed(world: World) -> Any:
    effect = world.started("t")
    assert effect is not None, "it has not been resumed"
    resume: Any = effect.resume
    return msgspec.msgpack.decode(resume.answer)


def test_a_deferred_task_resumes_with_it_and_the_host_releases_the_trigger():
    world, run, host = deferred()

    run_id = world.rows.runs[run].run_id

    assert give(world, host) == (run_id, "t", -1)

    assert (start_of(world).method, start_of(world).event) == ("after", GIVEN)
    assert let_go(world) == [(host.trigger_no, "finished")]


def test_later_events_of_the_trigger_are_late():
    world, run, host = deferred()
    give(world, host)
    at = (host.trigger_no, host.assignment_id)

    world.turn(
        TriggerFired(*at, 0, world.now, b"\x01"), TriggerEnded(*at, world.now, reason="finished")
    )

    assert start_of(world).event == GIVEN
    world.succeed("t")
    assert world.run_state(run) == "success"
    assert not world.rows.triggers


def test_it_is_given_once():
    world, _, host = deferred()
    give(world, host)

    with pytest.raises(RequestError, match="that waits; see `aioflow triggers list`"):
        give(world, host, b"\x02")

    assert start_of(world).event == GIVEN


def test_it_outlives_a_restart():
    world, _, host = deferred()
    give(world, host)

    world.restart()

    assert (start_of(world).method, start_of(world).event) == ("after", GIVEN)


def test_the_event_of_one_of_several_triggers_answers_and_all_are_released():
    world = awaiting("any_of", "A", "B")
    first, second = hosts(world)

    give(world, second)

    assert resumed(world) == [1, {"by": "mia"}]
    assert sorted(let_go(world)) == [
        (first.trigger_no, "finished"),
        (second.trigger_no, "finished"),
    ]


def test_a_wait_for_all_continues_with_the_last_event_of_any_source():
    world = awaiting("all_of", "A", "B")
    first, second = hosts(world)

    give(world, first)
    assert world.started("t") is None
    assert let_go(world) == [(first.trigger_no, "finished")]
    world.turn(TriggerFired(second.trigger_no, second.assignment_id, 0, world.now, b"\x02"))

    assert resumed(world) == [{"by": "mia"}, 2]


def with_stream() -> tuple[World, StartTrigger]:
    """Return a world whose coroutine has opened a stream, and the assignment of its trigger."""
    world, _ = begun(body=Body.COROUTINE)
    start = start_of(world)
    at = (start.task_no, start.start_no)
    world.turn(StreamOpened(*at, 0, "stream", "T", "f.py:3", "m:T", b"\x80", 4))
    (host,) = hosts(world)
    return world, host


def test_a_stream_continues_after_it_and_misses_nothing_of_its_host():
    world, host = with_stream()

    give(world, host)
    world.turn(TriggerFired(host.trigger_no, host.assignment_id, 0, world.now, b"\x01"))

    assert let_go(world) == []
    assert [row.payload for row in world.rows.events.values()] == [GIVEN, b"\x01"]


def test_a_stream_drops_it_where_its_key_is_known():
    world, host = with_stream()

    give(world, host, key="a")
    give(world, host, b"\x02", key="a")

    assert [row.payload for row in world.rows.events.values()] == [GIVEN]


def test_a_suspended_coroutine_takes_it_as_the_next_of_its_stream():
    world, host = with_stream()
    world.turn(
        NextEventRequested(*suspended(world), 1, "next", "T#0", "f.py:3", 0, timeout_us=None)
    )

    give(world, host)

    assert resumed(world) == {"by": "mia"}


@pytest.mark.parametrize(("payload", "result"), [(GIVEN, [GIVEN]), (NULL, [])])
def test_an_event_that_ends_the_task_is_its_result(payload, result):
    trigger = StartTriggerSpec(class_path="dag:T", next_method="", next_kwargs=None)
    world, run = begun(start_trigger=trigger)
    (host,) = hosts(world)

    give(world, host, payload)

    assert world.run_state(run) == "success"
    assert [row.body for row in world.rows.results.values()] == result
    assert let_go(world) == [(host.trigger_no, "finished")]
    assert not world.rows.triggers


def test_a_result_that_others_expand_over_is_not_set_manually():
    trigger = StartTriggerSpec(class_path="dag:T", next_method="", next_kwargs=None)
    world = World()
    world.begin(
        TaskSpec(task_id="t", start_trigger=trigger, feeds_limit=9),
        TaskSpec(task_id="b", parents=(0,), mapped=MapSpec(sources=(MapSource("x", 0, -1),))),
    )
    (host,) = hosts(world)

    with pytest.raises(RequestError, match="mark the task instead"):
        give(world, host)

    assert world.rows.triggers
