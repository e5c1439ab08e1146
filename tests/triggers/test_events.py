"""Waiting for emitted events."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

from aioflow import AioflowError, NamedEvent, Share, TriggerEvent
from aioflow.author.client import query_sender
from aioflow.author.durable_calls import checked_event
from aioflow.author.trigger import construct, serialize
from aioflow.errors import BadEvent, WrongField
from aioflow_triggers.events import Emissions, EventTrigger


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "x" * 251},
        {"name": "a\nb"},
        {"name": "a\0"},
        {"name": "a", "key": ""},
        {"name": "a", "key": "k" * 251},
        {"name": "a", "key": "\t"},
    ],
)
def test_a_name_or_key_that_no_event_can_have_is_refused(fields):
    with pytest.raises(BadEvent):
        checked_event(fields["name"], fields.get("key"), None)
    with pytest.raises(ValueError, match="1 to 250 printable characters"):
        EventTrigger(**fields)


def test_the_longest_name_and_key_are_waited_for():
    checked_event("x" * 250, "k" * 250, None)

    EventTrigger("x" * 250, "k" * 250)


class Daemon:
    """A daemon with three events of each name. It returns those after a given number."""

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

    def follow_events(self, name, tell):
        self.name, self.tell = name, tell
        return self

    def ask(self, of, *, key, after):
        self.asked.append({"of": of, "key": key, "after": after})

    def forget(self, of):
        self.asked.append({"forgotten": of})

    def run_start_id(self):
        return 4


@pytest.fixture
def daemon():
    return Daemon()


async def test_an_event_says_its_name_key_data_and_number(hosted, daemon):
    query_sender.set(daemon)
    async with aclosing(hosted(EventTrigger("approved", key="k")).run()) as events:
        event = await anext(events)

    assert event.payload == {"name": "approved", "key": "k", "data": {"n": 5}, "id": 5}
    assert event.key == "5"
    assert daemon.asked == [{"name": "approved", "key": "k", "after": None}]
    assert daemon.is_closed


async def test_a_stream_that_is_hosted_again_continues_after_its_last_event(hosted, daemon):
    query_sender.set(daemon)
    last = TriggerEvent({"name": "e", "key": None, "data": None, "id": 7}, "7")

    events = [e async for e in hosted(EventTrigger("e", after=3), last=last).run()]

    assert [event.payload["id"] for event in events] == [9]


async def test_a_wait_after_an_event_gets_only_later_ones(hosted, daemon):
    query_sender.set(daemon)
    trigger = EventTrigger("e", "k")

    later = trigger.behind({"name": "e", "key": "k", "data": None, "id": 5})
    events = [e async for e in hosted(later).run()]

    assert [event.payload["id"] for event in events] == [7, 9]
    assert later.series() == trigger.series()


# ── one event ───────────────────────────────────────────────────────────────────────────


async def test_one_event_is_waited_for_in_the_watch_of_its_name(hosted, daemon):
    query_sender.set(daemon)

    shares = [hosted(trigger).share() for trigger in (EventTrigger("e"), EventTrigger("e", "k", 9))]

    assert shares == [
        Share(Emissions, (None, 4), of=("e",)),
        Share(Emissions, ("k", 9), of=("e",)),
    ]


async def test_a_watch_tells_each_of_its_event_or_of_the_reason_why_there_is_none(daemon):
    query_sender.set(daemon)
    watch = Emissions("e")
    watch.joined(("k", 4))
    watch.joined((None, 9))
    watch.left((None, 9))
    watch.joined((None, 2))

    daemon.tell(("k", 4), NamedEvent(7, "e", "k", {"n": 7}))
    daemon.tell((None, 2), AioflowError("no"))
    run: Any = watch.run()
    async with aclosing(run) as told:
        (first, event), (second, refusal) = await anext(told), await anext(told)

    assert daemon.name == "e"
    assert daemon.asked == [
        {"of": ("k", 4), "key": "k", "after": 4},
        {"of": (None, 9), "key": None, "after": 9},
        {"forgotten": (None, 9)},
        {"of": (None, 2), "key": None, "after": 2},
    ]
    assert (first, event.key) == (("k", 4), "7")
    assert event.payload == {"name": "e", "key": "k", "data": {"n": 7}, "id": 7}
    assert (second, str(refusal)) == ((None, 2), "no")


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
