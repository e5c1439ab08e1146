from __future__ import annotations

import json

import pytest

from aioflow import TriggerEvent, Unserializable
from aioflow.author.trigger import construct, serialize
from aioflow_triggers import http_client
from aioflow_triggers.http import HttpUnexpected
from aioflow_triggers.http_client import Forbidden
from aioflow_triggers.pages import HttpPagesTrigger
from tests.triggers.conftest import as_hosted, stream
from tests.triggers.site import Reply, site


def page(*numbers, **more):
    """Return a page with items of the given numbers."""
    return Reply(body=json.dumps({"data": {"items": [{"id": n} for n in numbers]}, **more}))


def by_cursor(url, **more):
    return HttpPagesTrigger(
        url + "/list",
        **{"items": "data.items", "key": "id", "next_cursor": "next", "interval": None, **more},
    )


def by_number(url, **more):
    fields = {"items": "data.items", "key": "id", "page_parameter": "page", "interval": None}
    return HttpPagesTrigger(url + "/list", **{**fields, **more})


def by_link(url, **more):
    fields = {"items": "data.items", "key": "id", "next_link": "next", "interval": None}
    return HttpPagesTrigger(url + "/list", **{**fields, **more})


async def events_of(trigger, limit=100):
    """Return the events until the stream ends, or the first ``limit`` events."""
    events = []
    async with stream(trigger) as all_of_it:
        async for event in all_of_it:
            events.append(event)
            if len(events) == limit:
                break
    return events


def ids(events):
    return [item["id"] for event in events for item in event.payload["items"]]


@pytest.fixture
async def three_pages():
    """Serve five items on three pages, for each method of paging."""
    async with site() as here:
        pages = [page(1, 2, next="b c"), page(3, 4, next="d"), page(5, next=None)]
        for path, reply in zip(["/list", "/list?cursor=b+c", "/list?cursor=d"], pages, strict=True):
            here.pages[path] = reply
        for number, reply in enumerate(pages, start=1):
            here.pages[f"/list?page={number}"] = reply
        yield here


async def test_a_cursor_leads_from_page_to_page(three_pages, pauses):
    events = await events_of(by_cursor(three_pages.url))

    assert ids(events) == [1, 2, 3, 4, 5]
    assert [event.key for event in events] == ["1", "2", "3", "4", "5"]
    assert events[2].payload["page"] == three_pages.url + "/list?cursor=b+c"
    assert three_pages.connections == 1
    assert not http_client._pools


async def test_pages_are_counted_until_there_is_none(three_pages, pauses):
    events = await events_of(by_number(three_pages.url))

    assert ids(events) == [1, 2, 3, 4, 5]
    assert three_pages.asked[-1].path == "/list?page=4"


async def test_an_empty_page_is_the_end_of_a_count(three_pages, pauses):
    three_pages.pages["/list?page=3"] = page()

    assert ids(await events_of(by_number(three_pages.url))) == [1, 2, 3, 4]


async def test_a_link_in_the_page_leads_to_the_next(pauses):
    async with site() as here:
        here.pages = {"/list": page(1, next="/more?x=1"), "/more?x=1": page(2)}

        assert ids(await events_of(by_link(here.url))) == [1, 2]


async def test_a_link_in_the_headers_leads_to_the_next(pauses):
    async with site() as here:
        first = page(1)
        first.headers["Link"] = f'</list>; rel="first", <{here.url}/b>; title="x"; rel="next"'
        here.pages = {"/list": first, "/b": page(2)}

        assert ids(await events_of(by_link(here.url, next_link="link"))) == [1, 2]


async def test_a_link_elsewhere_is_not_followed(pauses):
    async with site() as here, site() as elsewhere:
        here.pages = {"/list": page(1, next=elsewhere.url)}

        with pytest.raises(Forbidden, match="another origin"):
            await events_of(by_link(here.url, headers={"Authorization": "secret"}))

        assert elsewhere.asked == []


async def test_a_page_can_be_one_event(three_pages, pauses):
    events = await events_of(by_cursor(three_pages.url, per="page"))

    assert [[item["id"] for item in event.payload["items"]] for event in events] == [
        [1, 2],
        [3, 4],
        [5],
    ]
    assert [event.key for event in events] == ["2", "4", "5"]


async def test_later_additions_to_the_last_page_are_reported_alone(three_pages, pauses):
    async with stream(by_cursor(three_pages.url, interval=9)) as told:
        before = [await anext(told) for _ in range(5)]
        three_pages.pages["/list?cursor=d"] = page(5, 6, next="e")
        three_pages.pages["/list?cursor=e"] = page(7)
        after = [await anext(told) for _ in range(2)]

    assert ids(before + after) == [1, 2, 3, 4, 5, 6, 7]
    assert pauses == [9.0]


async def test_the_last_page_of_a_count_may_get_more_items(three_pages, pauses):
    async with stream(by_number(three_pages.url, interval=9)) as told:
        before = [await anext(told) for _ in range(5)]
        three_pages.pages["/list?page=3"] = page(5, 6)
        after = [await anext(told)]
        three_pages.pages["/list?page=4"] = page(7)
        after.append(await anext(told))

    assert ids(before + after) == [1, 2, 3, 4, 5, 6, 7]


async def test_items_added_to_a_page_while_the_next_one_starts_are_not_lost(three_pages, pauses):
    async with stream(by_number(three_pages.url, interval=9)) as told:
        before = [await anext(told) for _ in range(5)]
        # The third page has been read. It had fewer items than the other pages.
        three_pages.pages["/list?page=3"] = page(5, 6)
        three_pages.pages["/list?page=4"] = page(7)
        after = [await anext(told) for _ in range(2)]

    assert ids(before + after) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("make", [by_cursor, by_number])
@pytest.mark.parametrize("last", range(5))
async def test_hosted_again_it_continues_after_its_last_event(three_pages, pauses, make, last):
    event = (await events_of(make(three_pages.url)))[last]

    trigger = as_hosted(make(three_pages.url), last=event)

    assert ids([event async for event in trigger.run()]) == [1, 2, 3, 4, 5][last + 1 :]


async def test_a_page_whose_last_item_is_gone_is_reported_again(three_pages, pauses):
    payload = {"items": [], "page": three_pages.url + "/list?cursor=d"}
    last = TriggerEvent(payload, key="no longer there")

    trigger = as_hosted(by_cursor(three_pages.url), last=last)

    assert ids([event async for event in trigger.run()]) == [5]


async def test_a_server_in_trouble_is_asked_again_ever_later(pauses):
    async with site() as here:
        for status in (503, 500, 429):
            here.reply(status, Retry_After="60" if status == 429 else "0")
        here.replies.append(page(1))

        assert ids(await events_of(by_cursor(here.url))) == [1]

    assert pauses == [1.0, 2.0, 60.0]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        pytest.param(Reply(401), "401", id="status"),
        pytest.param(Reply(404), "404", id="no-page"),
        pytest.param(Reply(body="<html>"), "not valid JSON", id="no-json"),
        pytest.param(Reply(body='{"data": {}}'), "no list", id="no-list"),
        pytest.param(Reply(body='{"data": {"items": [{"x": 1}]}}'), "nothing at 'id'", id="no-key"),
    ],
)
async def test_permanent_errors_fail_the_task(pauses, reply, message):
    async with site() as here:
        here.replies = [reply]

        with pytest.raises(HttpUnexpected, match=message):
            await events_of(by_cursor(here.url))


async def test_a_long_item_without_a_key_has_a_short_one(pauses):
    async with site() as here:
        here.replies = [Reply(body=json.dumps(["x" * 5_000, "y"]))]
        trigger = HttpPagesTrigger(here.url, next_cursor="0.none", interval=None)

        first, second = await events_of(trigger)

    assert len(first.key) == 64
    assert second.key == "y"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({}, "exactly one", id="no-way-on"),
        pytest.param({"next_link": "a", "next_cursor": "b"}, "exactly one", id="two-ways"),
        pytest.param({"next_link": "a", "per": "book"}, "per must be", id="per"),
        pytest.param({"next_link": "a", "interval": 0.01}, "interval must", id="interval"),
        pytest.param({"next_link": "a", "body_limit": 0}, "body_limit must", id="limit"),
    ],
)
def test_impossible_arguments_are_refused_where_they_are_written(fields, message):
    with pytest.raises((ValueError, Unserializable), match=message):
        HttpPagesTrigger("http://host", **fields)


def test_it_survives_storing():
    trigger = HttpPagesTrigger("http://host", next_link="next", headers={"a": "b"}, per="page")

    path, stored = serialize(trigger)

    assert path == "aioflow_triggers.pages:HttpPagesTrigger"
    assert construct(HttpPagesTrigger, stored) == trigger
