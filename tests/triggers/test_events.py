"""Waiting for what somebody emits."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from aioflow import NamedEvent, TriggerEvent
from aioflow.author.asking import asker
from aioflow.author.trigger import construct, serialize
from aioflow.errors import WrongField
from aioflow_triggers.events import EventTrigger


class Daemon:
    """Has three events of each name, and tells those behind a number."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []
        self.is_closed = False

    async def named_events(self, name, *, key, after):
        self.asked.append({"name": name, "key": key, "after": after})
        try:
            for number in (5, 7, 9):
                if after is None or number > after:
                    yield NamedEvent(number, name, "k", {"n": number})
        finally:
            self.is_closed = True


@pytest.fixture
def daemon():
    return Daemon()


async def test_an_event_says_its_name_key_data_and_number(hosted, daemon):
    asker.set(daemon)
    async with aclosing(hosted(EventTrigger("approved", key="k")).run()) as events:
        event = await anext(events)

    assert event.payload == {"name": "approved", "key": "k", "data": {"n": 5}, "id": 5}
    assert event.key == "5"
    assert daemon.asked == [{"name": "approved", "key": "k", "after": None}]
    assert daemon.is_closed


async def test_a_stream_that_is_hosted_again_goes_on_behind_its_last_event(hosted, daemon):
    asker.set(daemon)
    last = TriggerEvent({"name": "e", "key": None, "data": None, "id": 7}, "7")

    events = [e async for e in hosted(EventTrigger("e", after=3), last=last).run()]

    assert [event.payload["id"] for event in events] == [9]


async def test_a_wait_behind_an_event_is_told_of_later_ones_alone(hosted, daemon):
    asker.set(daemon)
    trigger = EventTrigger("e", "k")

    later = trigger.behind({"name": "e", "key": "k", "data": None, "id": 5})
    events = [e async for e in hosted(later).run()]

    assert [event.payload["id"] for event in events] == [7, 9]
    assert later.series() == trigger.series()


def test_waits_for_another_name_or_key_are_a_series_of_their_own():
    triggers = [
        EventTrigger("a"),
        EventTrigger("a", "k"),
        EventTrigger("b"),
        EventTrigger("b", "k"),
    ]

    assert len({trigger.series() for trigger in triggers}) == 4


@pytest.mark.parametrize("fields", [{"name": 5}, {"name": "e", "key": 5}])
def test_a_name_or_key_that_is_no_text_is_refused_where_it_is_written(fields):
    with pytest.raises(WrongField):
        EventTrigger(**fields)


def test_it_survives_storing():
    trigger = EventTrigger("approved", key="k", after=7)

    path, kwargs = serialize(trigger)

    assert path == "aioflow_triggers.events:EventTrigger"
    assert construct(EventTrigger, kwargs) == trigger
