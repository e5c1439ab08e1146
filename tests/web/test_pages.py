"""Every list has the same form: items, and an opaque cursor for the next page."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from aioflow.api.paging import Page, decode_cursor, encode_cursor, page_of_all
from aioflow.errors import RequestError
from aioflow.web.app import create_app
from aioflow.web.guard import Trusted
from aioflow.web.openapi import ANSWERS
from aioflow.web.tokens import Token
from tests.web.node import CHAIN, FAN, ask, node

_PLAIN_LISTS = {"recent_runs"}


@asynccontextmanager
async def app(tmp_path, *specs):
    async with node(tmp_path) as n:
        n.define(*specs)
        yield n, Trusted(create_app(n.api, Token("t" * 43)))


async def read(web, path, *, status=200):
    answer = await ask(web, "GET", f"/api/v1{path}")
    assert answer.status == status, answer.body
    return answer.json


async def collect(web, path, limit):
    """Return the pages of a list."""
    pages, cursor = [], ""
    while cursor is not None:
        page = await read(web, f"{path}limit={limit}{cursor and f'&cursor={cursor}'}")
        pages.append(page["items"])
        cursor = page["next"]
    return pages


def test_every_list_is_described_as_a_page():
    lists = {name for name, answer in ANSWERS.items() if str(answer).startswith("list[")}

    assert lists <= _PLAIN_LISTS


async def test_runs_are_paged_without_gaps_while_others_start_and_end(tmp_path):
    async with app(tmp_path, CHAIN) as (n, web):
        for number in range(5):
            await n.api.trigger("chain", run_id=f"r{number}")
        first = await read(web, "/runs?limit=2")
        await n.api.trigger("chain", run_id="newer")
        await n.api.cancel("r3")
        await n.api.delete_run("r3")
        second = await read(web, f"/runs?limit=2&cursor={first['next']}")
        third = await read(web, f"/runs?limit=2&cursor={second['next']}")

    found = [[run["run_id"] for run in page["items"]] for page in (first, second, third)]
    assert found == [["r4", "r3"], ["r2", "r1"], ["r0"]]
    assert third["next"] is None


async def test_tasks_are_paged_by_their_place_in_the_dag(tmp_path):
    async with app(tmp_path, FAN) as (n, web):
        await n.api.trigger("fan", run_id="r")
        whole = (await read(web, "/runs/r/tasks"))["items"]
        pages = await collect(web, "/runs/r/tasks?", 1)
        spans = await collect(web, "/runs/r/gantt?", 2)
        pending = await collect(web, "/runs/r/tasks?state=pending&", 1)

    assert [task for page in pages for task in page] == whole
    assert [task["task_id"] for page in spans for task in page] == [t["task_id"] for t in whole]
    assert [t for page in pending for t in page] == [t for t in whole if t["state"] == "pending"]


@pytest.mark.parametrize(
    "path",
    ["/pools?", "/users?", "/secrets?", "/audit?", "/tokens?", "/nodes?", "/sessions?", "/events?"],
)
async def test_a_cursor_of_another_list_is_refused(tmp_path, path):
    async with app(tmp_path, CHAIN) as (n, web):
        await n.api.set_pool("a", 1)
        await n.api.emit("e")
        wrong = await ask(web, "GET", f"/api/v1{path}cursor={encode_cursor('other', (1,))}")
        broken = await ask(web, "GET", f"/api/v1{path}cursor=%00%ff")

    found = {answer.status for answer in (wrong, broken)}
    assert found == {400}


@pytest.mark.parametrize("cursor", ["", "x", "\u00e9", "bnVsbA", "W10", encode_cursor("l", ("a",))])
def test_what_is_no_cursor_is_refused(cursor):
    with pytest.raises(RequestError, match="cursor"):
        decode_cursor("l", cursor, (int,))


@pytest.mark.parametrize("is_descending", [False, True])
def test_a_complete_list_is_paged_by_its_keys(is_descending):
    names = ["c", "a", "d", "b"]

    def page(cursor):
        return page_of_all("l", names, 2, cursor, lambda name: (name,), is_descending=is_descending)

    first = page(None)
    names.remove(first.items[-1])
    second = page(first.next)

    ordered = ["d", "c", "b", "a"] if is_descending else ["a", "b", "c", "d"]
    assert [*first.items, *second.items] == ordered
    assert second == Page(ordered[2:], None)
