"""The fired events that a turn reports for each kind of wait: each event once, with its owner."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core.state.task_instance import Fire
from aioflow.protocol.reports import TriggerFired
from tests.core import test_durable_calls as calls
from tests.core import test_event_runs as event_runs
from tests.core import test_event_stream as streams
from tests.core.world import World


def fires(world: World, *reports: Any) -> list[Fire]:
    """Return the fired events that the turn with these inputs reports."""
    _, _, tx = world.decide(reports)
    return tx.fires


def of(world: World, name: str, key: str | None, index: int = 0) -> TriggerFired:
    host = calls.hosted(world, name)
    return TriggerFired(host.trigger_no, host.assignment_id, index, world.now, b"\x01", key)


@pytest.mark.parametrize("kind", ["wait", "any_of", "all_of"])
def test_a_call_that_waits_says_what_fired_also_where_its_row_goes_at_once(kind):
    world, _ = calls.begun()
    suspended = calls.await_(world, 0, "m:A", *([] if kind == "wait" else ["m:B"]), kind=kind)
    (run_no,) = world.rows.runs

    assert fires(world, of(world, "m:A", "7")) == [Fire("m:A", "7", run_no, suspended.task_no)]


def test_late_events_are_not_reported():
    world, _ = calls.begun()
    calls.await_(world, 0, "m:A")
    report = of(world, "m:A", "7")
    world.turn(report)

    assert fires(world, report) == []


def test_each_event_of_a_stream_is_reported_once():
    world = streams.opened()
    report = of(world, "m:Ticks", "a")
    known, another = of(world, "m:Ticks", "a", 1), of(world, "m:Ticks", "b", 2)

    told = fires(world, report, report, known, another)

    assert [(fire.class_path, fire.key) for fire in told] == [("m:Ticks", "a"), ("m:Ticks", "b")]


def test_an_event_of_the_trigger_of_a_dag_is_of_no_task():
    world = event_runs.waiting()

    told = fires(world, event_runs.fired(world, 1, "one"))

    assert told == [Fire("m:Ticks", "one")]
