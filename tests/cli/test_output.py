"""Task output cannot control a terminal, and a followed log is complete and has no repetitions."""

from __future__ import annotations

import argparse
import json
import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.cli import logs, run_progress
from aioflow.cli.client import Refused
from aioflow.cli.logs import _decoded, found_lines, pieces_until
from aioflow.cli.output import checks_text, print_json, safe, safe_text, wait_text
from aioflow.errors import DaemonAway

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
def test_terminal_control_characters_are_escaped(text):
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


def test_a_wait_is_shown_with_its_last_and_its_next_poll():
    now = datetime.now(UTC)
    wait = {"kind": "trigger", "detail": "for the file /in/bank.csv", "until": None}
    soon = {"last_check_at": now - timedelta(seconds=3), "next_check_at": now + timedelta(hours=5)}

    told = wait_text({**wait, "trigger_id": 4711, **{k: at.isoformat() for k, at in soon.items()}})

    assert told == (
        "trigger: for the file /in/bank.csv; checked 3 s ago, next in 5 h (trigger 4711)"
    )
    assert wait_text(wait) == "trigger: for the file /in/bank.csv"
    last = {"last_check_at": soon["last_check_at"].isoformat(), "last_answer": "HTTP\x1b 503"}
    assert checks_text({**wait, **last}) == "checked 3 s ago: HTTP\\x1b 503"


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
    """A log that grows between polls. The task has ended by poll number ``ends_at``."""

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
    late = len(growth)  # output that arrives until one poll after the end is still shown
    log = Log(list(growth), max(ends_at, late))

    assert log.followed() == b"".join(growth)


def test_output_that_arrives_a_moment_after_the_end_is_shown():
    assert Log([b"a", b"", b"end"], ends_at=2).followed() == b"aend"


class Restarting:
    """A daemon that restarts while the log of a task is followed.

    Args:
        fates: The outcome of each request in order: an error, or a response. The last one applies
            to all further requests.
    """

    def __init__(self, *fates: Exception | None) -> None:
        self._fates = list(fates)

    def _meet(self) -> None:
        fate = self._fates.pop(0) if len(self._fates) > 1 else self._fates[0]
        if fate is not None:
            raise fate

    def get(self, *path: str, **query: object) -> Any:
        self._meet()
        return {"causes": [{"state": "running" if len(self._fates) > 1 else "success"}]}

    def get_bytes(self, *path: str, offset: int, **query: object) -> bytes:
        self._meet()
        return b"one two "[offset : offset + 4]


def followed(daemon: Restarting, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr(logs, "connect", lambda arguments: daemon)
    monkeypatch.setattr(run_progress, "_EVERY_SECONDS", 0.0)
    words = argparse.Namespace(run_id="r", task="t", map=-1, try_number=None)
    return b"".join(logs._follow(words))


AWAY = DaemonAway("home")
STOPPING = Refused("daemon.stopping", "the daemon is stopping", 503)
CUT = Refused("daemon.away", "the daemon of home does not answer: reset", 0)


def test_a_log_is_followed_over_a_restart_of_the_daemon(monkeypatch, capsys):
    daemon = Restarting(None, None, None, STOPPING, CUT, AWAY, AWAY, None, AWAY, None)

    assert followed(daemon, monkeypatch) == b"one two "
    assert "waiting for it to come back" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fates", "error"),
    [
        ((AWAY,), DaemonAway),
        ((None, Refused("request.unknown_run", "gone", 404)), Refused),
        ((None, None, AWAY), DaemonAway),
    ],
    ids=["no-daemon-from-the-start", "another-error", "it-never-comes-back"],
)
def test_a_log_is_not_followed_without_end(monkeypatch, fates, error):
    monkeypatch.setattr(run_progress, "_AWAY_SECONDS", 0.01)

    with pytest.raises(error):
        followed(Restarting(*fates), monkeypatch)


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


def test_a_line_without_end_is_not_buffered_whole():
    pieces = [b"x" * 700_000, b"y" * 700_000, b"z", b"needle\n"]

    [(at, line)] = found_lines(pieces, b"needle")

    assert (at, line) == (1_400_000, b"zneedle")
