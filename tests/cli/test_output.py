"""Nothing a task says steers a terminal, and what is followed comes once and whole."""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.cli.logs import _decoded, found_lines, pieces_until
from aioflow.cli.output import print_json, safe, safe_text, wait_text

STEERING = [
    "\x1b]0;owned\x07",
    "\x1b[2J\x1b[H",
    "\x1b]52;c;cm0gLXJmIH4=\x07",
    "\x1b[31mred",
    "\x9b31m",
    "good\rEVIL",
    "a\x08b",
    "\x7f",
    "\u202etxt.exe",
    "\u2066\u2069",
    "\u200b\u200f\ufeff",
    "line\u2028line",
    "\udc9b",
    "\U000e0041",
]


def steers(text: str) -> bool:
    kinds = {unicodedata.category(character) for character in text if character not in "\n\t"}
    return bool(kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"})


@pytest.mark.parametrize("text", STEERING, ids=ascii)
def test_what_would_steer_a_terminal_is_shown_escaped(text):
    assert steers(text)
    assert not steers(safe_text(text))
    assert "\\" in safe_text(text)
    assert not steers(safe(text))


@pytest.mark.parametrize("text", STEERING, ids=ascii)
def test_json_says_the_same_without_a_character_that_steers(capsys, text):
    print_json({text: [text]}, line=True)

    out = capsys.readouterr().out
    assert not steers(out)
    assert json.loads(out) == {text: [text]}


def test_a_wait_is_told_with_how_long_ago_it_was_looked_for_and_when_it_is_next():
    now = datetime.now(UTC)
    wait = {"kind": "trigger", "detail": "for the file /in/bank.csv", "until": None}
    soon = {"last_check_at": now - timedelta(seconds=3), "next_check_at": now + timedelta(hours=5)}

    told = wait_text({**wait, "trigger_id": 4711, **{k: at.isoformat() for k, at in soon.items()}})

    assert told == (
        "trigger: for the file /in/bank.csv; checked 3 s ago, next in 5 h (trigger 4711)"
    )
    assert wait_text(wait) == "trigger: for the file /in/bank.csv"


@given(st.text())
def test_no_text_whatsoever_steers(text):
    assert not steers(safe_text(text))
    assert "\n" not in safe(text)
    assert "\t" not in safe(text)


def test_letters_of_any_script_and_lines_stay_as_they_are():
    assert safe_text("naïve 数\n\tשלום 🙂\n") == "naïve 数\n\tשלום 🙂\n"
    assert safe("a\tb\nc") == "a\\tb\\nc"


@given(st.text(), st.integers(1, 5))
def test_a_character_that_is_cut_in_two_is_shown_once(text, size):
    data = text.encode("utf-8", "replace")
    pieces = [data[at : at + size] for at in range(0, len(data), size)]

    assert "".join(_decoded(pieces)) == data.decode()


# ── following ───────────────────────────────────────────────────────────────────────────


class Log:
    """A log that grows between looks; the task ends before the look number ``ends_at``."""

    def __init__(self, growth: list[bytes], ends_at: int) -> None:
        self.growth, self.ends_at = growth, ends_at
        self.data, self.looks = b"", 0

    def is_over(self) -> bool:
        self.looks += 1
        if self.growth:
            self.data += self.growth.pop(0)
        return self.looks >= self.ends_at

    def more(self, offset: int) -> bytes:
        return self.data[offset : offset + 3]

    def followed(self) -> bytes:
        pauses = iter([None] * 1_000)
        return b"".join(pieces_until(self.is_over, self.more, pauses))


@given(st.lists(st.binary(max_size=8), max_size=8), st.integers(1, 8))
def test_every_byte_comes_once_whenever_it_was_printed(growth, ends_at):
    late = len(growth)  # what comes up to one look after the end is still seen
    log = Log(list(growth), max(ends_at, late))

    assert log.followed() == b"".join(growth)


def test_what_reaches_the_log_a_moment_after_the_end_is_shown():
    assert Log([b"a", b"", b"end"], ends_at=2).followed() == b"aend"


# ── searching ───────────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.text("ab\n", max_size=6).map(str.encode), max_size=8),
    st.text("ab", min_size=1, max_size=3).map(str.encode),
)
def test_a_search_finds_the_lines_and_where_they_begin_however_they_come(pieces, wanted):
    whole = b"".join(pieces)
    expected = [line for line in whole.split(b"\n") if wanted in line]

    found = list(found_lines(pieces, wanted))

    assert [line for _, line in found] == expected
    assert all(whole[at : at + len(line)] == line for at, line in found)
    assert all(at == 0 or whole[at - 1 : at] == b"\n" for at, _ in found)


def test_a_line_without_end_is_not_kept_whole():
    pieces = [b"x" * 700_000, b"y" * 700_000, b"z", b"needle\n"]

    [(at, line)] = found_lines(pieces, b"needle")

    assert (at, line) == (1_400_000, b"zneedle")
