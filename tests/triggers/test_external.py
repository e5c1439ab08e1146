from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from aioflow import RunEnding
from aioflow.author.asking import asker
from aioflow.author.trigger import construct, serialize
from aioflow_triggers.external import RunTrigger
from tests.triggers.conftest import NOON


class Daemon:
    """Answers like a daemon that knows one ended run."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []

    async def run_ending(self, dag_id, **which):
        self.asked.append({"dag_id": dag_id, **which})
        return RunEnding("run-1", "partial", 42)


@pytest.fixture
def daemon():
    return Daemon()


async def event_of(trigger, daemon):
    asker.set(daemon)
    return [event async for event in trigger.run()]


async def test_any_final_state_is_an_event(hosted, daemon):
    (event,) = await event_of(hosted(RunTrigger("other")), daemon)

    assert event.payload == {"state": "partial", "run_id": "run-1", "result": 42}
    assert event.key == "run-1"
    assert daemon.asked == [
        {"dag_id": "other", "task_id": None, "run_id": None, "logical_date": None, "since": NOON}
    ]


async def test_a_task_of_it_has_a_key_of_its_own(hosted, daemon):
    (event,) = await event_of(hosted(RunTrigger("other", task="t")), daemon)

    assert event.key == "run-1/t"
    assert daemon.asked[0]["task_id"] == "t"


async def test_an_offset_is_added_to_the_logical_date(hosted, daemon):
    trigger = RunTrigger("other", logical_date=NOON, offset=timedelta(hours=-1))

    await event_of(hosted(trigger), daemon)

    assert daemon.asked[0]["logical_date"] == NOON - timedelta(hours=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"run_id": "r", "logical_date": NOON}, "not both", id="two-ways"),
        pytest.param({"logical_date": datetime(2030, 1, 1)}, "time zone", id="naive"),  # noqa: DTZ001
        pytest.param({"offset": timedelta(1)}, "logical_date", id="offset-from-nothing"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_written(fields, message):
    with pytest.raises(ValueError, match=message):
        RunTrigger("other", **fields)


def test_it_survives_storing():
    trigger = RunTrigger("other", "t", logical_date=NOON, offset=timedelta(hours=-1))

    path, stored = serialize(trigger)

    assert path == "aioflow_triggers.external:RunTrigger"
    assert construct(RunTrigger, stored) == trigger
