"""Secrets that were handed out are redacted in any spelling, and across pieces of output."""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioflow.clock import SystemClock
from aioflow.model.dag import ValueKind
from aioflow.redaction import MASK, Masks, Stream, secret_texts
from aioflow.telemetry.task_log import TaskLog
from tests.executors.processes import running
from tests.test_task_log import key

SECRET = 'pa"ss w/o\\rd ☃'


def masks(*texts: str) -> Masks:
    made = Masks()
    made.hide(texts)
    return made


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(SECRET, id="plain"),
        pytest.param(json.dumps(SECRET)[1:-1], id="json"),
        pytest.param(json.dumps(SECRET, ensure_ascii=False)[1:-1], id="json-unescaped"),
        pytest.param(repr(SECRET)[1:-1], id="repr"),
        pytest.param(quote(SECRET), id="in-a-path"),
        pytest.param(quote(SECRET, safe=""), id="in-a-url"),
        pytest.param(quote_plus(SECRET), id="in-a-query"),
        pytest.param(base64.b64encode(SECRET.encode()).decode(), id="base64"),
    ],
)
def test_a_secret_is_hidden_however_it_is_written(written):
    assert masks(SECRET).masked_text(f"<{written}>") == "<***>"


def test_the_lines_of_a_key_are_hidden_where_they_are_printed_indented():
    made = masks("-----BEGIN-----\nfirst-line-of-it\nsecond-line-of-it\n-----END-----\n")

    assert made.masked(b"  first-line-of-it\n  second-line-of-it") == b"  ***\n  ***"
    assert made.masked(b"-----BEGIN-----") == b"-----BEGIN-----"


def test_the_longer_of_two_values_with_the_same_start_is_redacted_completely():
    assert masks("abcde", "abcdefgh").masked(b"abcdefgh abcde") == b"*** ***"


def test_too_short_values_are_not_redacted_and_no_values_redact_nothing():
    assert masks("abcd", "").masked(b"abcd") == b"abcd"
    assert Masks().masked(b"abc") == b"abc"
    assert Masks().masked_text("\ud800") == "\ud800"


@given(
    secrets=st.lists(st.text("ab-\n", min_size=5, max_size=12), min_size=1, max_size=3),
    pieces=st.lists(st.text("ab-\n", max_size=9), max_size=12),
)
def test_no_secret_is_shown_wherever_the_pieces_end(secrets, pieces):
    made = masks(*secrets)
    stream = Stream(made)

    shown = b"".join(stream.feed(piece.encode()) for piece in pieces) + stream.finish()

    for secret in secrets:
        assert secret.encode() not in shown
    if not any(
        text in "".join(pieces) for text in (part for s in secrets for part in (s, s.strip()))
    ):
        assert shown.replace(MASK, b"") == "".join(pieces).encode()


def test_nothing_is_held_back_that_is_no_beginning():
    stream = Stream(masks("token-1"))

    assert stream.feed(b"all of it\n") == b"all of it\n"
    assert stream.feed(b"a to") == b"a "
    assert stream.feed(b"es") == b"toes"
    assert stream.feed(b"token-") == b""
    assert stream.finish() == b"token-"
    assert stream.finish() == b""


async def test_a_log_is_masked_before_it_is_cut(tmp_path):
    log = TaskLog(tmp_path, SystemClock(), cap_bytes=10, masks=masks("token-one"))
    async with running(log):
        of_try = log.open(key())
        await of_try.write(b"1234 to")
        await of_try.write(b"ken-one and more")

    data = await log.read(7, 0)
    assert data.startswith(b"1234 *** a\n[aioflow: ")
    assert b"token" not in data


async def test_delayed_output_is_in_the_log_once_it_is_closed(tmp_path):
    log = TaskLog(tmp_path, SystemClock(), masks=masks("token-one"))
    async with running(log):
        of_try = log.open(key())
        of_try.offer(b"it is a tok")
        of_try.close()
        of_try.close()

    assert await log.read(7, 0) == b"it is a tok"


@pytest.mark.parametrize(
    ("kind", "name", "value", "hidden"),
    [
        pytest.param(ValueKind.SECRET, "x", "text", ["text"], id="a-secret"),
        pytest.param(
            ValueKind.CONNECTION,
            "x",
            {"host": "h", "password": "pw", "extra": {"sslmode": "require", "api_key": ["k"]}},
            ["pw", "k"],
            id="of-a-connection-what-is-called-so",
        ),
        pytest.param(ValueKind.VARIABLE, "REGION", "eu-west", [], id="no-plain-variable"),
        pytest.param(ValueKind.VARIABLE, "API_TOKEN", {"a": ["t", 1]}, ["t"], id="but-a-token"),
    ],
)
def test_the_secret_parts_of_a_value(kind, name, value, hidden):
    assert list(secret_texts(kind, name, value)) == hidden


@given(st.integers(0, 60))
def test_a_signed_link_is_hidden_although_it_was_not_handed_out_here(cut):
    text = b"open https://flow/decide#aiolink_lAoB-_x.c2lnbmF0dXJl now\n"
    hidden = b"open https://flow/decide#*** now\n"
    for made in (Masks(), masks("another-secret")):
        stream = Stream(made)
        shown = stream.feed(text[:cut]) + stream.feed(text[cut:]) + stream.finish()
        assert with_first_letters(hidden).fullmatch(shown)
        assert made.masked_text(text.decode()) == hidden.decode()


def with_first_letters(masked: bytes) -> re.Pattern[bytes]:
    """Return a pattern for output in which up to three letters of each masked link are shown."""
    return re.compile(re.escape(masked).replace(rb"\*\*\*", rb"(?:a|ai|aio)?\*\*\*"))


@example(["ai", "olink_x", "ai", "olink_x"])
@given(st.lists(st.sampled_from(["a", "ai", "aiol", "ink_", "olink_x", "b", "\n"]), max_size=8))
def test_output_with_links_in_pieces_is_shown_once_and_without_their_tokens(pieces):
    stream, text = Stream(Masks()), "".join(pieces)
    shown = b"".join(stream.feed(piece.encode()) for piece in pieces) + stream.finish()
    assert with_first_letters(Masks().masked(text.encode())).fullmatch(shown)


def test_word_that_ends_in_letters_of_a_link_is_shown_at_once():
    stream = Stream(Masks())
    assert [stream.feed(piece) for piece in (b"data", b"a", b"ai", b"o")] == [
        *(b"data", b"a", b"ai", b"o")
    ]


def test_output_that_does_not_begin_a_link_is_not_held_back():
    stream = Stream(Masks())
    assert stream.feed(b"password: ") == b"password: "
    assert stream.feed(b"aiolink_" + b"x" * 2_000) == MASK
