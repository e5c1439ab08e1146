"""Logs over HTTP: as lines, by range, searched, downloaded, and for a whole run."""

from __future__ import annotations

from contextlib import asynccontextmanager
from urllib.parse import quote

import pytest

from aioflow.api.logs import lines as log_lines
from aioflow.clock import SystemClock
from aioflow.executors.worker_process import log_key
from aioflow.model.dag import DagSpec, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import Failure
from aioflow.processes import line_search
from aioflow.protocol.reports import Failed, Labelled
from aioflow.web.app import create_app
from aioflow.web.guard import Trusted
from aioflow.web.tokens import Token
from aioflow.worker.log_text import LineFilter
from tests.web.node import CHAIN, FAN, ONCE, ask, node

LOG = "/api/v1/runs/r/tasks/first/logs?format=lines"
RUN_LOG = "/api/v1/runs/r/logs"


@asynccontextmanager
async def printed(tmp_path, *texts: bytes, spec=CHAIN):
    """Run a task that has printed texts. Yield the node, a request function, and the log."""
    async with node(tmp_path) as n:
        n.define(spec)
        await n.api.set_paused(spec.dag_id, paused=False)
        await n.api.trigger(spec.dag_id, run_id="r")
        log = n.api._tasklog.open(log_key((await n.effects.next_start()).start))
        for text in texts:
            log.offer(text)
        web = Trusted(create_app(n.api, Token("t" * 43)))

        async def get(path: str):
            return await ask(web, "GET", path)

        yield n, get, log


def texts(answer):
    return [line["text"] for line in answer.json["lines"]]


def numbers(answer):
    return [line["line"] for line in answer.json["lines"]]


MANY = b"".join(b"line %d\n" % number for number in range(1, 5_001))


async def test_a_line_has_its_number_time_level_and_try(tmp_path):
    text = b"plain\n2026-01-31 03:00:00,123 WARNING my.code: careful\n  more of it\nopen"
    async with printed(tmp_path, text) as (_, get, _log):
        found = (await get(LOG)).json

    assert [line["level"] for line in found["lines"]] == [None, "warning", "warning", None]
    assert [line["line"] for line in found["lines"]] == [1, 2, 3, 4]
    assert [line["is_open"] for line in found["lines"]] == [False, False, False, True]
    assert {line["try_number"] for line in found["lines"]} == {1}
    assert all(line["at"].endswith("Z") for line in found["lines"])
    assert (found["next_offset"], found["before_offset"], found["is_live"]) == (None, None, True)


@pytest.mark.parametrize("block", [64, 1_000, 256 * 1024])
async def test_lines_are_read_by_number_from_the_end_and_backwards(tmp_path, monkeypatch, block):
    monkeypatch.setattr(log_lines, "_PIECE_BYTES", block)
    async with printed(tmp_path, MANY) as (_, get, _log):
        at = await get(f"{LOG}&line=4321&limit=2")
        tail = await get(f"{LOG}&tail=true&limit=3")
        before = await get(f"{LOG}&before={tail.json['before_offset']}&limit=2")
        beyond = await get(f"{LOG}&line=99999")

    assert texts(at) == ["line 4321", "line 4322"]
    assert texts(tail) == ["line 4998", "line 4999", "line 5000"]
    assert texts(before) == ["line 4996", "line 4997"]
    assert numbers(at) + numbers(tail) + numbers(before) == [
        4321, 4322, 4998, 4999, 5000, 4996, 4997,
    ]  # fmt: skip
    assert texts(beyond) == []


async def test_next_and_previous_hits_are_found(tmp_path):
    async with printed(tmp_path, MANY) as (_, get, _log):
        hit = await get(f"{LOG}&search=line 4&line=100&limit=1")
        here = hit.json["lines"][0]["offset"]
        after = await get(f"{LOG}&search=LINE 41&offset={hit.json['next_offset']}&limit=1")
        previous = await get(f"{LOG}&search=line 4&before={here}&limit=1")
        cased = await get(f"{LOG}&search=LINE 41&case=true")

    assert (texts(hit), texts(after), texts(previous)) == (["line 400"], ["line 410"], ["line 49"])
    assert (numbers(hit), numbers(after), numbers(previous)) == ([400], [410], [49])
    assert texts(cased) == []


async def test_a_regular_expression_is_searched_for(tmp_path):
    async with printed(tmp_path, MANY) as (_, get, _log):
        pattern = quote(r"^line (\d)\1{3}$")
        found = await get(f"{LOG}&regex=true&search={pattern}")
        backward = await get(f"{LOG}&regex=true&tail=true&limit=1&search={pattern}")
        wrong = await get(f"{LOG}&regex=true&search={quote('a(')}")

    assert texts(found) == ["line 1111", "line 2222", "line 3333", "line 4444"]
    assert texts(backward) == ["line 4444"]
    assert (wrong.status, wrong.json["code"]) == (400, "request.pattern")


async def test_a_regular_expression_that_takes_for_ever_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(line_search, "BLOCK_SECONDS", 0.3)
    async with printed(tmp_path, b"a" * 60 + b"!\n") as (_, get, _log):
        answer = await get(f"{LOG}&regex=true&search={quote('(a+)+$')}")

    assert (answer.status, answer.json["code"]) == (400, "request.pattern")


async def test_the_daemon_never_compiles_a_regular_expression_of_a_caller(tmp_path, monkeypatch):
    def compile_here(wanted):
        raise AssertionError(f"compiled in the daemon: {wanted}")

    monkeypatch.setattr(LineFilter, "compile", compile_here)
    async with printed(tmp_path, MANY) as (_, get, _log):
        found = await get(f"{LOG}&regex=true&search={quote('^line 111$')}")
        wrong = await get(f"{LOG}&regex=true&search={quote('a(')}")

    assert texts(found) == ["line 111"]
    assert "not a regular expression" in wrong.json["detail"]


async def test_lines_of_a_level_are_found_with_their_tracebacks(tmp_path):
    text = (
        b"INFO: begun\nERROR: bad\nTraceback (most recent call last):\n"
        b'  File "x.py", line 1, in f\nValueError: no\nplain\n'
    )
    async with printed(tmp_path, text) as (_, get, _log):
        found = await get(f"{LOG}&level=warning")
        both = await get(f"{LOG}&level=warning&search=value")

    assert texts(found) == [
        "ERROR: bad",
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in f',
        "ValueError: no",
    ]
    assert texts(both) == ["ValueError: no"]


async def test_what_is_shown_is_searched(tmp_path):
    text = b"50%\r75%\r100% done\n\x1b[31mred\x1b[0m: alarm\n" + b"x" * 10_000 + b"\n"
    async with printed(tmp_path, text) as (_, get, _log):
        whole = (await get(LOG)).json["lines"]
        coloured = await get(f"{LOG}&search=red: alarm")
        overwritten = await get(f"{LOG}&search=75")

    assert [line["text"][:20] for line in whole] == [
        "100% done",
        "\x1b[31mred\x1b[0m: alarm",
        "x" * 20,
    ]
    assert [line["is_cut"] for line in whole] == [False, False, True]
    assert len(texts(coloured)) == 1
    assert texts(overwritten) == []


async def test_the_whole_text_is_downloaded_however_long_it_is(tmp_path):
    big = b"x" * 99 + b"\n"
    async with printed(tmp_path, *[big * 1_000] * 60) as (_, get, _log):
        answer = await get("/api/v1/runs/r/tasks/first/logs?download=true")

    assert len(answer.body) == 6_000_000
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


async def test_the_log_of_a_run_has_its_tasks_in_the_order_of_time(tmp_path):
    async with printed(tmp_path, spec=FAN) as (n, get, first):
        first.offer(b"making 2\n")
        await n.api._tasklog.catch_up()
        key = first.key
        other = n.api._tasklog.open(
            type(key)(
                run_no=key.run_no, task_index=1, map_index=1, task_no=7, start_no=9, try_number=1
            )
        )
        other.offer(b"ERROR: half ")
        await n.api._tasklog.catch_up()
        first.offer(b"in between\n")
        await n.api._tasklog.catch_up()
        other.offer(b"a line\n")
        whole = (await get(RUN_LOG)).json
        errors = (await get(f"{RUN_LOG}?level=error")).json
        of_one = (await get(f"{RUN_LOG}?task=list&search=%5Ein&regex=true")).json
        tail = (await get(f"{RUN_LOG}?tail=true&limit=1")).json
        text = (await get(f"{RUN_LOG}?download=true")).body.decode()
        other.offer(b"later\n")
        later = (await get(f"{RUN_LOG}?cursor={whole['resume']}")).json

    shown = [(line["task_id"], line["map_index"], line["text"]) for line in whole["items"]]
    names = [name for name, _, _ in shown]
    assert shown == [
        (names[0], -1, "making 2"),
        (names[0], -1, "in between"),
        (names[2], 1, "ERROR: half a line"),
    ]
    assert len(set(names)) == 2
    assert [line["text"] for line in errors["items"]] == ["ERROR: half a line"]
    assert [line["text"] for line in of_one["items"]] == ["in between"]
    assert [line["text"] for line in tail["items"]] == ["ERROR: half a line"]
    assert text.splitlines()[2].endswith(f" {names[2]}[1] ERROR: half a line")
    assert (whole["next"], whole["is_live"]) == (None, True)
    assert [line["text"] for line in later["items"]] == ["later"]


RETRIED = DagSpec(
    dag_id="retried",
    file="retried.py",
    tasks=(
        TaskSpec(task_id="list", retry=ONCE, feeds_limit=10),
        TaskSpec(
            task_id="load",
            parents=(0,),
            retry=RetryPolicy(tries=2, delay_us=0, jitter=False),
            mapped=MapSpec((MapSource("region", 0, -1),)),
        ),
    ),
)


async def test_a_line_of_the_log_of_a_run_has_the_try_and_the_label_of_its_task(tmp_path):
    async with node(tmp_path) as n:
        n.define(RETRIED)
        await n.api.set_paused("retried", paused=False)
        await n.api.trigger("retried", run_id="r")
        web = Trusted(create_app(n.api, Token("t" * 43)))
        await n.succeed(["east"], width=1)
        for words in (b"no\n", b"yes\n"):
            start = (await n.effects.next_start()).start
            n.api._tasklog.open(log_key(start)).offer(words)
            n.engine.report([Labelled(start.task_no, start.start_no, "east")])
            now = SystemClock().now()
            failure = Failure(type="ValueError", message="no", reason="raised")
            if words == b"no\n":
                n.engine.report([Failed(start.task_no, start.start_no, now, now, failure)])
        await n.api._tasklog.catch_up()
        await n.api.list_pools()
        found = (await ask(web, "GET", RUN_LOG)).json["items"]
        last = (await ask(web, "GET", f"{RUN_LOG}?search=yes")).json["items"]
        text = (await ask(web, "GET", f"{RUN_LOG}?download=true")).body.decode()

    names = ("map_label", "try_number", "text")
    assert [tuple(line[name] for name in names) for line in found] == [
        ("east", 1, "no"),
        ("east", 2, "yes"),
    ]
    assert last == found[1:]
    assert [line.split(" ", 1)[1] for line in text.splitlines()] == [
        "load[0] east no",
        "load[0] east try 2 yes",
    ]


async def test_pages_of_the_log_of_a_run_together_are_the_whole(tmp_path):
    async with printed(tmp_path, MANY) as (_, get, _log):
        found, cursor = [], ""
        while cursor is not None:
            page = (await get(f"{RUN_LOG}?limit=999&cursor={cursor}")).json
            found += [line["text"] for line in page["items"]]
            cursor = page["next"]
        wrong = await get(f"{RUN_LOG}?cursor=1.2")

    assert found == MANY.decode().splitlines()
    assert wrong.status == 400


async def test_no_part_of_a_line_is_lost_between_two_pages_of_the_log_of_a_run(tmp_path):
    async with printed(tmp_path, spec=FAN) as (n, get, first):
        key = first.key
        other = n.api._tasklog.open(
            type(key)(
                run_no=key.run_no, task_index=1, map_index=0, task_no=7, start_no=9, try_number=1
            )
        )
        other.offer(b"half ")
        await n.api._tasklog.catch_up()
        first.offer(b"one\ntwo\nthree\n")
        await n.api._tasklog.catch_up()
        other.offer(b"a line\n")
        found, cursor = [], ""
        while cursor is not None:
            page = (await get(f"{RUN_LOG}?limit=1&cursor={cursor}")).json
            found += [line["text"] for line in page["items"]]
            cursor = page["next"]

    assert found == ["one", "half ", "two", "three", "a line"]
