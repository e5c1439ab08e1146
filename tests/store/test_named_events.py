"""Named events are found by name and by request, in order, and stored once per request."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aioflow.errors import BatchRefused
from aioflow.model.rows import NamedEventRow, NamedEventSummary
from tests.journal_replay import compare_with_replay
from tests.store.samples import NOON, RUN, batch, first_batch

FIRST = NamedEventRow(event_no=40, name="approved", key="a", data=b"\x01", at=NOON, run_no=1)
SECOND = replace(FIRST, event_no=41, key=None, run_no=None, request="r-1")
THIRD = replace(FIRST, event_no=43, data=b"\xc0")
OTHER = replace(FIRST, event_no=42, name="a name ☃ with / in it", key="☃", request="r-1")
ALL = [SECOND, OTHER, FIRST, THIRD]


def with_events(*rows: NamedEventRow):
    return replace(first_batch(), named_events=list(rows))


async def test_the_events_of_a_name_come_in_their_order_and_in_pages(store):
    await store.commit(with_events(*ALL))

    assert await store.list_named_events("approved") == [FIRST, SECOND, THIRD]
    assert await store.list_named_events("approved", after=40, limit=1) == [SECOND]
    assert await store.list_named_events("approved", after=43) == []
    assert await store.list_named_events(OTHER.name) == [OTHER]
    assert await store.list_named_events("nobody") == []


async def test_the_latest_events_come_first_and_may_be_those_of_one_name(store):
    await store.commit(with_events(*ALL))

    assert await store.latest_named_events(limit=2) == [THIRD, OTHER]
    assert await store.latest_named_events(limit=2, before=42) == [SECOND, FIRST]
    assert await store.latest_named_events(name="approved", before=43) == [SECOND, FIRST]


async def test_the_newest_event_of_each_name_is_found_without_its_data(store):
    await store.commit(with_events(*ALL))

    found = await store.latest_updates(["approved", OTHER.name, "nobody", "approved", "\0"])

    assert found == {
        "approved": NamedEventSummary(43, "approved", NOON, 1),
        OTHER.name: NamedEventSummary(42, OTHER.name, NOON, 1),
    }
    assert await store.latest_updates([]) == {}


async def test_an_event_is_found_by_the_request_that_brought_it(store):
    await store.commit(with_events(*ALL))

    assert await store.find_named_event("approved", "r-1") == SECOND
    assert await store.find_named_event(OTHER.name, "r-1") == OTHER
    assert await store.find_named_event("approved", "r-2") is None
    assert await store.find_named_event("approved", "no \0 text") is None


async def test_a_request_that_brought_an_event_brings_no_other(store):
    await store.commit(with_events(SECOND))

    with pytest.raises(BatchRefused):
        await store.commit(batch(2, named_events=[replace(SECOND, event_no=50)]))

    assert await store.list_named_events("approved") == [SECOND]


async def test_the_journal_tells_of_events_and_of_who_called_a_run(store):
    called = replace(RUN, run_no=2, run_id="etl-2", key=None, cause="task", caller=77)
    await store.commit(with_events(*ALL))
    await store.commit(batch(2, new_runs=[called]))

    assert await compare_with_replay(store) == []
    assert await store.find_run("etl-2") == called


async def test_an_event_of_a_megabyte_comes_back_whole(store):
    large = replace(FIRST, data=b"x" * 1024 * 1024)

    await store.commit(with_events(large))

    assert await store.list_named_events("approved") == [large]
