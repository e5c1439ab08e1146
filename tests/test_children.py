"""The children of a mapped task in the API: counts, cells, grouped errors, and clearing."""

from __future__ import annotations

import re
import time
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.api import children
from aioflow.api.children import grouped, ranges_text, shape_of
from aioflow.errors import RequestError, UnknownTask
from aioflow.model.children import Cell, ChildCount
from aioflow.model.states import Failure, TaskState
from tests.databases import DATABASES
from tests.web.node import FAN, STREAM, node

SHAPES = (
    ("scoring-api answered 503", "scoring-api answered <n>"),
    ("took 1.5 s of 10,000 ms at 12:30:01", "took <n> s of <n> ms at <n>"),
    ("no such file: '/data/a b.csv'", "no such file: <text>"),
    ('key "x-1" is `missing`', "key <text> is <text>"),
    ("can't read 'x', isn't it", "can't read <text>, isn't it"),
    ("at 0x7f3aDE in d41d8cd98f00b204", "at <hex> in <hex>"),
    ("user 1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed left", "user <id> left"),
    ("deadbeef and cafe are words", "deadbeef and cafe are words"),
    ("item42 of batch-7", "item<n> of batch-<n>"),
    ("", ""),
)


@pytest.mark.parametrize(("message", "shape"), SHAPES)
def test_what_varies_in_a_message_becomes_a_placeholder(message, shape):
    assert shape_of(message) == shape


@pytest.mark.parametrize("piece", ["'", '"', "a1", "0x", "1.", "-", "aaaa1111-", "'a\"`"])
def test_a_hostile_message_has_its_shape_in_no_time(piece):
    began = time.process_time()

    for _ in range(20):
        shape_of(piece * 4_096)

    assert time.process_time() - began < 1


@given(st.sets(st.integers(0, 300)))
def test_ranges_name_each_number_once(numbers):
    text = ranges_text(sorted(numbers))

    found = []
    for piece in filter(None, text.split(",")):
        first, _, last = piece.partition("-")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(numbers)


def failure(message, type_="ConnectionError", reason="raised"):
    return Failure(type=type_, message=message, reason=reason)


def test_errors_are_grouped_by_type_reason_and_shape_with_the_largest_group_first():
    groups = grouped(
        [
            (0, failure("answered 503")),
            (2, failure("answered 503", type_="OSError")),
            (3, failure("answered 500")),
            (4, failure("answered 503")),
            (7, failure("answered 503", reason="timeout")),
        ]
    )

    assert [(g.type, g.reason, g.count, g.children) for g in groups] == [
        ("ConnectionError", "raised", 3, "0,3-4"),
        ("OSError", "raised", 1, "2"),
        ("ConnectionError", "timeout", 1, "7"),
    ]
    assert (groups[0].shape, groups[0].message) == ("answered <n>", "answered 503")


@asynccontextmanager
async def fan(tmp_path, width, *, failing=(), ended=None, url=None):
    """Run ``fan`` until its children have ended, those in ``failing`` with an error."""
    async with node(tmp_path, cpu_slots=max(1, width), url=url) as n:
        n.define(FAN)
        await n.api.trigger("fan", run_id="r")
        await n.succeed(width=width)
        for index in range(width if ended is None else ended):
            await (n.fail(f"no {index}") if index in failing else n.succeed())
        await n.api.list_pools()
        yield n


@pytest.fixture(params=DATABASES)
def url(request):
    return request.getfixturevalue(f"migrated_{request.param}_url")


async def test_a_mapped_task_is_shown_in_numbers_cells_and_groups_of_errors(tmp_path, url):
    async with fan(tmp_path, 14, failing={3, 4, 9}, ended=12, url=url) as n:
        shown = await n.api.reads.children.summary("r", "each")
        cells = await n.api.reads.children.cells("r", "each")
        errors = await n.api.reads.children.errors("r", "each")

    assert shown.counts == {"failed": 3, "running": 2, "success": 9}
    assert (shown.width, shown.is_open, shown.is_loop) == (14, False, False)
    assert sum(entry.count for entry in shown.durations) == 12
    assert {one.map_index for one in shown.slowest} == set(range(12))
    assert (shown.ended_last_minute, shown.seconds_left) == (12, 10.0)
    names = [cells.letters[letter] for letter in cells.states]
    assert names[2:5] == ["success", "failed", "failed"]
    assert names[12:] == ["running"] * 2
    assert (cells.size, cells.offsets, cells.durations[12:]) == (1, [], "..")
    assert (errors.failed, errors.grouped, errors.more) == (3, 3, 0)
    (group,) = errors.items
    assert (group.type, group.shape, group.children) == ("ValueError", "no <n>", "3-4,9")


async def test_no_time_left_is_shown_below_ten_that_have_ended(tmp_path):
    async with fan(tmp_path, 12, ended=9) as n:
        shown = await n.api.reads.children.summary("r", "each")
        await n.succeed()
        await n.api.list_pools()
        later = await n.api.reads.children.summary("r", "each")

    assert (shown.ended_last_minute, shown.seconds_left) == (9, None)
    assert later.seconds_left == 12.0


async def test_more_children_than_cells_share_them_and_a_missing_row_is_pending(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(children, "CELLS", 4)
    monkeypatch.setattr(children, "_SLICE", 5)
    async with fan(tmp_path, 14, failing={6}) as n:
        cells = await n.api.reads.children.cells("r", "each")
        shown = await n.api.reads.children.summary("r", "each")

    assert cells.size == 4
    assert [cells.letters[letter] for letter in cells.states] == [
        "success",
        "failed",
        "success",
        "success",
    ]
    assert cells.offsets == [0, 2, 0, 0]
    assert re.fullmatch("[A-Z]{4}", cells.durations)
    assert shown.counts == {"failed": 1, "success": 13}
    assert len(shown.slowest) == 14


class PartlyStored:
    """A store in which only the first children have rows."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def list_cells(self, first, end, *, size):
        return [Cell(0, TaskState.SUCCESS, 0, 3, size - 1), Cell(1, TaskState.FAILED, 1, 3, 1)]

    async def count_children(self, first, end, *, since):
        return [ChildCount(TaskState.SUCCESS, 3, 2, 0)]


async def test_children_without_a_row_are_pending(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "CELLS", 3)
    async with fan(tmp_path, 6, ended=0) as n:
        n.api.store = PartlyStored(n.store)
        cells = await n.api.reads.children.cells("r", "each")
        shown = await n.api.reads.children.summary("r", "each")

    names = [cells.letters[letter] for letter in cells.states]
    assert names == ["pending", "failed", "pending"]
    assert shown.counts == {"pending": 4, "success": 2}


async def test_no_time_is_left_to_tell_while_a_stream_may_add_children(tmp_path):
    async with node(tmp_path) as n:
        n.define(STREAM)
        await n.api.trigger("stream", run_id="r")
        shown = await n.api.reads.children.summary("r", "each")
        cells = await n.api.reads.children.cells("r", "each")
        errors = await n.api.reads.children.errors("r", "each")
        with pytest.raises(UnknownTask):
            await n.api.reads.children.cells("r", "none")

    assert (shown.width, shown.counts, shown.slowest) == (0, {}, [])
    assert (cells.states, errors.items) == ("", [])


async def test_the_children_of_one_group_are_cleared_and_their_siblings_are_not(tmp_path):
    async with fan(tmp_path, 6, failing={1, 3, 4}) as n:
        answer = await n.api.clear("r", ["each"], map_indexes=[1, 4])
        started = [await n.effects.next_start() for _ in range(2)]
        cells = await n.api.reads.children.cells("r", "each")
        states = [cells.letters[letter] for letter in cells.states]

    assert answer["cleared"] == 2
    assert len(started) == 2
    assert states == ["success", "running", "success", "failed", "running", "success"]


@pytest.mark.parametrize(
    ("tasks", "wanted", "reason"),
    [
        ([], {"map_indexes": [1]}, "exactly one task"),
        (["each", "total"], {"map_indexes": [1]}, "exactly one task"),
        (["each"], {"map_indexes": [1], "map_index": 2}, "exactly one task"),
        (["each"], {"map_indexes": [1, 6]}, "6"),
        (["total"], {"map_indexes": [0]}, "total"),
    ],
)
async def test_children_that_do_not_exist_are_not_cleared(tmp_path, tasks, wanted, reason):
    async with fan(tmp_path, 6, failing={1}) as n:
        with pytest.raises(RequestError, match=reason):
            await n.api.clear("r", tasks, **wanted)

        assert (await n.api.show_run("r")).counts["failed"] == 1


async def test_only_the_failed_ones_of_some_children_are_cleared_on_request(tmp_path):
    async with fan(tmp_path, 6, failing={1, 3}) as n:
        answer = await n.api.clear("r", ["each"], map_indexes=[0, 1], failed=True)

    assert answer["cleared"] == 1
