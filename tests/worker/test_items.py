"""Tasks that yield items while they run, and operators that consume events, in their hosts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aioflow.author.codec import decode, encode
from aioflow.protocol.commands import ItemsStored, Reply, StopTask
from aioflow.protocol.reports import EventsHandled, Failed, ItemYielded, Query, Succeeded
from aioflow.worker.query.messages import ResultsPage, ResultsWanted
from tests.worker.peer import Child, result_of, run_info, start, write_version

pytestmark = pytest.mark.process

HEAD = """
import asyncio, os, sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from aioflow import *
"""

GENERATOR = """
@task
async def pages():
    try:
        for number in range(3):
            print("at", number)
            yield {"page": number}
    finally:
        await asyncio.sleep(0)
        print("closed")
"""

STREAM = (
    GENERATOR
    + """
@task
def load(page: dict): return page["page"]

@task
def plain(page: list): return page

@dag
def pipeline():
    made = pages()
    load.expand(page=made)
    plain(made)
"""
)


@pytest.fixture
def child(home, spawn):
    """Return a function that starts a host of a role for a DAG file and announces a run to it."""

    def child(role: str, source: str) -> Child:
        write_version(home, flow=HEAD + source)
        spawned: Child = spawn(role)
        spawned.send(run_info())
        return spawned

    return child


def answer(child: Child, *items: Any, first: int = 0, more: bool = False) -> ResultsWanted:
    """Answer a query for items. Return the query."""
    ask = child.expect(Query)
    page = ResultsPage(
        -1,
        [(first + n, 1, 0, encode(item, "")) for n, item in enumerate(items)],
        [],
        first + len(items) - 1,
        more,
    )
    child.send(Reply(ask.question, msgspec.msgpack.encode(page)))
    return msgspec.msgpack.decode(ask.body, type=ResultsWanted)


def test_a_generator_yields_each_item_and_continues_when_it_is_stored(child):
    host = child("async", STREAM)
    host.send(start(0))
    for index in range(3):
        item = host.expect(ItemYielded)
        assert (item.index, decode(item.payload)) == (index, {"page": index})
        host.send(ItemsStored(item.task_no, item.start_no, index + 1))

    ended = host.expect(Succeeded)

    assert (ended.body, ended.size, ended.width) == (None, 0, None)


def test_items_that_an_earlier_try_yielded_are_not_yielded_again(child):
    host = child("async", STREAM)
    host.send(start(0, start_no=4, stored=2))

    item = host.expect(ItemYielded)

    assert (item.index, item.start_no) == (2, 4)
    host.send(ItemsStored(item.task_no, 4, 3))
    host.expect(Succeeded)


def test_a_generator_that_yields_less_than_before_ends_well(child):
    host = child("async", STREAM)
    host.send(start(0, start_no=4, stored=9))

    host.expect(Succeeded)


def test_a_generator_that_is_held_back_can_be_stopped_and_cleans_up(child):
    host = child("async", STREAM)
    host.send(start(0))
    host.expect(ItemYielded)

    host.send(StopTask(100, 1, "cancelled"), start(0, start_no=2))

    assert host.expect(ItemYielded).start_no == 2


def test_an_item_that_cannot_travel_fails_the_try_with_its_index(child):
    source = STREAM.replace('yield {"page": number}', "yield object()")
    host = child("async", source)
    host.send(start(0))

    failed = host.expect(Failed)

    assert failed.failure.reason == "unserializable"
    assert "item 0 of 'pages'" in failed.failure.message


def test_an_item_may_have_so_many_bytes_and_no_more(child):
    source = STREAM.replace('yield {"page": number}', "yield 'x' * 1024 * 1024")
    host = child("async", source)
    host.send(start(0))

    failed = host.expect(Failed)

    assert (failed.failure.type, failed.failure.reason) == ("ItemTooLarge", "payload_too_large")
    assert not failed.retryable


def test_a_generator_without_a_consumer_returns_a_list(child):
    host = child("async", GENERATOR + "\n@dag\ndef pipeline(): pages()\n")
    host.send(start(0))

    assert result_of(host.expect(Succeeded)) == [{"page": n} for n in range(3)]


def test_a_generator_that_takes_too_long_fails_where_it_stands(child):
    source = STREAM.replace(
        "@task\nasync def pages", "@task(execution_timeout=0.2)\nasync def pages"
    )
    host = child("async", source)
    host.send(start(0))
    host.expect(ItemYielded)  # and nothing confirms it

    assert host.expect(Failed).failure.reason == "timeout"


def test_a_child_takes_its_item_from_its_start(child):
    slot = child("slot", STREAM)
    slot.send(start(1, task_no=300, map_index=7, item=encode({"page": 7}, "")))

    assert result_of(slot.expect(Succeeded)) == 7


def test_a_child_asks_for_an_item_that_is_not_at_hand(child):
    slot = child("slot", STREAM)
    slot.send(start(1, task_no=300, map_index=7))

    wanted = answer(slot, {"page": 7}, {"page": 8}, first=7, more=True)

    assert (wanted.task_index, wanted.after) == (~100, 6)
    assert result_of(slot.expect(Succeeded)) == 7


def test_a_child_whose_item_is_gone_fails_saying_so(child):
    slot = child("slot", STREAM)
    slot.send(start(1, task_no=300, map_index=7))
    answer(slot)

    failed = slot.expect(Failed)

    assert failed.failure.reason == "argument"
    assert "item 7 of task 100 is gone" in failed.failure.message


def test_a_hosted_child_asks_for_its_item_before_it_begins(child):
    host = child("async", STREAM.replace("def load", "async def load"))
    host.send(start(1, task_no=300, map_index=7))

    answer(host, {"page": 7}, first=7)

    assert result_of(host.expect(Succeeded)) == 7


@pytest.mark.parametrize("role", ["slot", "async"])
def test_a_task_that_takes_the_whole_stream_gets_a_list(child, role):
    source = STREAM if role == "slot" else STREAM.replace("def plain", "async def plain")
    host = child(role, source)
    host.send(start(2))
    assert answer(host, 1, 2, more=True).after == -1
    assert answer(host, 3, first=2).after == 1

    assert result_of(host.expect(Succeeded)) == [1, 2, 3]


# ── operators ───────────────────────────────────────────────────────────────────────────────

OPERATOR = """
class Takes(Operator):
    def execute(self, context): ...
    def handle_trigger_events(self, events, context):
        print(context["task"].task_id)
        return {returned}
    def close(self, context, event=None, n=0): return ["closed", event, n]

@task
def load(item): return item

@dag
def pipeline():
    takes = Takes(task_id="takes")
    {more}
"""


def operator(returned: str, more: str = "") -> str:
    return OPERATOR.replace("{returned}", returned).replace("{more}", more)


def batch(*events: Any, **changes: Any) -> Any:
    changes.setdefault("method", "handle_trigger_events")
    given = tuple((encode(event, ""), str(event)) for event in events)
    return start(0, start_no=3, events=given, upto=len(given) + 4, **changes)


@pytest.mark.parametrize("role", ["slot", "async"])
def test_an_operator_is_given_events_with_their_keys_and_says_what_it_has_handled(child, role):
    source = operator("[(event.payload, event.key) for event in events]")
    if role == "async":
        source = source.replace("    def execute", "    async def execute").replace(
            "    def handle", "    async def handle"
        )
    host = child(role, source)
    host.send(batch(5, 6))

    handled = host.expect(EventsHandled)

    assert (handled.upto, handled.is_last) == (6, False)
    assert [decode(item) for item in handled.items] == [(5, "5"), (6, "6")]


@pytest.mark.parametrize(
    ("returned", "items"),
    [
        ("None", []),
        ("[]", []),
        ("(1, 2)", [1, 2]),
        ("(n for n in (1, 2))", [1, 2]),
        ("{'a': 1}", [{"a": 1}]),
        ("'text'", ["text"]),
        ("[None]", [None]),
    ],
)
def test_return_values_of_a_handler_become_items(child, returned, items):
    slot = child("slot", operator(returned))
    slot.send(batch(5))

    assert [decode(item) for item in slot.expect(EventsHandled).items] == items


def test_a_handler_that_raises_fails_its_try(child):
    slot = child("slot", operator("1 / 0"))
    slot.send(batch(5))

    assert slot.expect(Failed).failure.type == "ZeroDivisionError"


def test_a_handler_that_defers_gets_an_error_that_its_stream_continues(child):
    slot = child("slot", operator("self.defer(trigger=Trigger(), method_name='close')"))
    slot.send(batch(5))

    failed = slot.expect(Failed)

    assert (failed.failure.reason, failed.retryable) == ("defer_in_stream", False)


def test_the_return_value_of_the_last_method_is_the_result(child):
    slot = child("slot", operator("None"))
    slot.send(start(0, start_no=3, method="close", is_closing=True, kwargs=encode({"n": 4}, "")))

    assert result_of(slot.expect(Succeeded)) == ["closed", None, 4]


def test_the_return_value_of_the_last_method_is_yielded_if_others_expand_over_it(child):
    slot = child("slot", operator("None", "load.expand(item=takes.output)"))
    slot.send(start(0, start_no=3, method="close", is_closing=True))

    handled = slot.expect(EventsHandled)

    assert handled.is_last
    assert [decode(item) for item in handled.items] == ["closed", None, 0]


@pytest.mark.parametrize("role", ["slot", "async"])
def test_without_a_last_method_the_result_is_all_that_was_returned(child, role):
    source = operator("None")
    if role == "async":
        source = source.replace("    def execute", "    async def execute").replace(
            "    def handle", "    async def handle"
        )
    host = child(role, source)
    host.send(start(0, start_no=3, is_closing=True))
    wanted = answer(host, 1, 2, more=True)
    assert (wanted.task_index, wanted.after) == (~100, -1)
    answer(host, 3, first=2)

    assert result_of(host.expect(Succeeded)) == [1, 2, 3]


def test_one_that_takes_many_events_is_given_each_alone(child):
    source = """
class Each(Operator):
    many_events = True
    def execute(self, context): ...
    def each(self, context, event=None, n=0): return event + n

@dag
def pipeline(): Each(task_id="each")
"""
    slot = child("slot", source)
    slot.send(batch(5, method="each", kwargs=encode({"n": 10}, "")))

    assert [decode(item) for item in slot.expect(EventsHandled).items] == [15]
