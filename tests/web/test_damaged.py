"""A damaged stored value is shown as damaged, with the reason; all other values are unaffected."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

import aioflow.api
from aioflow.api.schemas import plain_bytes, plain_fields
from aioflow.author.msgpack_forms import Tag
from aioflow.web.app import create_app
from aioflow.web.guard import Trusted
from aioflow.web.tokens import Token
from tests.web.node import CHAIN, ask, node
from tests.web.test_nasty import targets

pack = msgspec.msgpack.encode


def nested_tuples(levels: int) -> bytes:
    body = pack([])
    for _ in range(levels):
        body = pack(Ext(Tag.TUPLE, pack([msgspec.Raw(body)])))
    return body


DAMAGED = {
    "empty": b"",
    "cut-off": b"\xa5abc",
    "no-text": b"\xa2\xff\xfe",
    "more-than-there-is": b"\xdd\xff\xff\xff\xff\xc0",
    "unknown-extension": pack(Ext(99, b"x")),
    "endless-time": pack(Ext(Tag.TIMEDELTA, pack((10**12, 0, 0)))),
    "no-time": pack(Ext(Tag.TIMEDELTA, pack("x"))),
    "zone-that-is-a-folder": pack(Ext(Tag.DATETIME, b"2026-01-01T00:00:00;0;Europe")),
    "zone-with-a-long-name": pack(Ext(Tag.DATETIME, b"2026-01-01T00:00:00;0;" + b"x" * 5000)),
    "fold-that-is-none": pack(Ext(Tag.DATETIME, b"2026-01-01T00:00:00;7;")),
    "no-decimal": pack(Ext(Tag.DECIMAL, b"1.1.1")),
    "no-uuid": pack(Ext(Tag.UUID, b"1")),
    "no-pairs": pack(Ext(Tag.MAP, pack([1, 2]))),
    "deep-lists": b"\x91" * 500 + b"\xc0",
    "very-deep-lists": b"\x91" * 100_000 + b"\xc0",
    "deep-maps": b"\x81\xa1a" * 300 + b"\xc0",
    "deep-tuples": nested_tuples(200),
}


@pytest.mark.parametrize("body", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_value_is_shown_with_the_reason(body):
    shown = plain_bytes(body)

    assert list(shown) == ["unreadable"]
    assert 0 < len(shown["unreadable"]) <= 500
    assert msgspec.json.encode(shown)


TAGS = [getattr(Tag, name) for name in vars(Tag) if name.isupper()]
WRONG = st.binary(max_size=40) | st.tuples(
    st.sampled_from(TAGS),
    st.binary(max_size=20)
    | st.text(max_size=20).map(str.encode)
    | st.recursive(
        st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3),
    ).map(pack),
).map(lambda of: pack([Ext(*of)]))


@given(WRONG)
def test_any_damaged_bytes_are_shown_somehow(body):
    msgspec.json.encode(plain_bytes(body))
    assert isinstance(plain_fields(body), dict)


def test_named_values_that_are_none_are_said_to_be():
    assert plain_fields(pack(5)) == {"unreadable": "int instead of named values"}
    assert plain_fields(None) == {}


PLACES = [
    ("run", "conf"),
    ("result", "body"),
    ("record", "answer"),
    ("named_event", "data"),
]
SAMPLE = ["endless-time", "zone-that-is-a-folder", "deep-lists", "no-decimal"]


@pytest.mark.parametrize("kind", SAMPLE)
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_no_page_breaks_over_a_damaged_value_and_all_else_is_readable(kind, tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        await n.api.trigger("chain", run_id="r", conf={"n": 1})
        await n.succeed({"n": 2})
        await n.succeed("sound")
        await n.api.emit("e", data={"n": 3})
        web = Trusted(create_app(n.api, Token("t" * 43)))
        while len((await n.api.show_run("r")).tasks[1].result or "") != len("sound"):
            pass
        damage(tmp_path / "aioflow.db", DAMAGED[kind])
        described = (await ask(web, "GET", "/api/v1/openapi.json")).json
        answers = [(at, await ask(web, "GET", at)) for at in targets(described, "first")]
        run = (await ask(web, "GET", "/api/v1/runs/r")).json
        (event,) = (await ask(web, "GET", "/api/v1/events")).items

    assert [at for at, answer in answers if answer.status >= 500] == []
    first, second, _ = run["tasks"]
    assert run["state"] == "running"
    assert [list(shown) for shown in (run["conf"], first["result"], event["data"])] == [
        ["unreadable"]
    ] * 3
    assert (first["state"], second["result"]) == ("success", "sound")


def damage(path: Path, body: bytes) -> None:
    """Damage the values stored for authors, except the result of the second task."""
    with closing(sqlite3.connect(path)) as raw, raw:
        ((task_no, run_no),) = raw.execute("SELECT min(task_no), run_no FROM task").fetchall()
        raw.execute(
            "INSERT INTO record"
            " (task_no, ordinal, run_no, state, kind, name, source_location, answer)"
            " VALUES (?, 0, ?, 1, 'step', 'f', 'f.py:1', ?)",
            (task_no, run_no, body),
        )
        for table, column in PLACES:
            where = "" if table != "result" else f" WHERE task_no = {task_no}"
            assert raw.execute(f"UPDATE {table} SET {column} = ?{where}", (body,)).rowcount == 1


def test_one_place_alone_reads_what_authors_have_stored():
    readers = {
        path.name
        for path in Path(aioflow.api.__file__).parent.rglob("*.py")
        if ("author.codec import" in (text := path.read_text()) and "decode" in text)
        or "msgpack.decode" in text
    }  # fmt: skip

    # Values of secrets are read only to be hidden. Of a schedule, only an asset condition is
    # decoded, which the daemon itself has written.
    assert readers == {"schemas.py", "values.py", "schedule_texts.py"}
    assert sys.modules["aioflow.api.schemas"].plain_bytes is plain_bytes
