"""The ledger of the demo reports work that was lost or done twice, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aioflow.cli.failover.display import Display, Figures, print_summary
from aioflow.cli.failover.ledger import Ledger, NotesFile
from aioflow.cli.failover.local_postgres import find_binaries
from aioflow.errors import SettingsError

US = 1_000


def begin(key: str, at_us: int) -> str:
    return f"begin name {key} {at_us * US}"


def end(key: str, at_us: int) -> str:
    return f"end name {key} {at_us * US}"


def ledger(records: dict[str, int], notes: Sequence[str], *, expected: str = "") -> Ledger:
    """Return the ledger of a demo that has ended."""
    made = Ledger()
    made.expect(expected or "a")
    made.record("abc", records)
    made.note(notes)
    return made


def test_a_task_that_began_and_ended_and_was_recorded_once_is_fine() -> None:
    made = ledger({"a": 30}, [begin("a", 10), end("a", 20)])
    made.close()
    assert (made.lost, made.doubled, made.begun_again) == (set(), [], 0)
    assert (made.done, made.expected, made.is_complete) == (1, 1, True)


def test_a_task_that_began_again_before_its_success_was_recorded_is_fine() -> None:
    made = ledger({"a": 50}, [begin("a", 10), begin("a", 30), end("a", 40)])
    assert (made.lost, made.doubled, made.begun_again) == (set(), [], 1)


def test_a_task_that_began_again_after_its_success_was_recorded_was_done_twice() -> None:
    notes = [begin("a", 10), end("a", 20), begin("a", 31), end("a", 40)]
    made = ledger({"a": 30}, notes)
    made.record("a", {"a": 45})  # a second success does not hide the first one
    assert (made.doubled, made.begun_again) == (["a"], 0)


def test_a_success_without_an_end_is_lost() -> None:
    made = ledger({"a": 30}, [begin("a", 10)])
    assert made.lost == {"a"}


def test_a_success_that_is_no_longer_there_is_lost() -> None:
    made = ledger({"a": 30}, [begin("a", 10), end("a", 20)])
    made.record("b", {})
    assert made.lost == set(), "nobody asked for it"
    made.record("ab", {})
    made.record("ab", {"a": 30})
    assert made.lost == {"a"}


def test_a_task_without_a_success_is_lost_only_in_the_end() -> None:
    made = ledger({"a": 30}, [begin("a", 10), end("a", 20)], expected="ab")
    assert (made.lost, made.is_complete) == (set(), False)
    made.close()
    assert made.lost == {"b"}


@given(st.lists(st.integers(0, 100), min_size=1, max_size=6), st.integers(0, 100))
def test_each_beginning_is_counted_once(times: list[int], recorded: int) -> None:
    made = ledger({"a": recorded}, [begin("a", at) for at in times])
    assert len(made.doubled) == sum(at > recorded for at in times)
    assert made.begun_again + len(made.doubled) == len(times) - 1


def test_a_line_is_read_once_and_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    notes = NotesFile(path)
    assert notes.new_lines() == []
    path.write_text("one\ntw")
    assert notes.new_lines() == ["one"]
    path.write_text("one\ntwo\nthree\n")
    assert notes.new_lines() == ["two", "three"]
    assert notes.new_lines() == []


def test_without_postgresql_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioflow.cli.failover.local_postgres._PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match="apt install postgresql"):
        find_binaries()
    with pytest.raises(SettingsError, match="has no initdb"):
        find_binaries(tmp_path)


def test_the_programs_are_found_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("initdb", "pg_ctl", "postgres"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 18.1'\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setattr("aioflow.cli.failover.local_postgres._PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binaries() == tmp_path
    assert find_binaries(tmp_path) == tmp_path


GOOD = Figures(
    seconds=61.0,
    active="b",
    tasks=11_247,
    done=10_000,
    settlements=2,
    takeovers=7,
    begun_again=3,
    lost=0,
    done_twice=0,
    wrong_totals=0,
)


@pytest.mark.parametrize("name", ["lost", "done_twice", "wrong_totals"])
def test_one_lost_doubled_or_wrong_task_makes_the_demo_fail(name: str) -> None:
    assert GOOD.is_good
    assert not replace(GOOD, **{name: 1}).is_good


def test_the_summary_says_what_was_lost(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(GOOD, is_json=False)
    print_summary(replace(GOOD, wrong_totals=1), is_json=False)
    good, bad = capsys.readouterr().out.splitlines()
    assert good == "11,247 tasks in 61 s, 2 settlements, 7 takeovers: 0 lost, 0 done twice"
    assert bad == f"{good}, 1 wrong totals"
    assert "node b is active, 10,000 of 11,247 tasks done" in GOOD.text()
    assert "no node is active" in replace(GOOD, active="").text()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_display_shows_events_and_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if is_terminal else "0")
    with Display() as display:
        display.tell("node a is killed")
        for seconds in (0.0, 1.0, 6.0):
            display.show(replace(GOOD, seconds=seconds))
    told = capsys.readouterr().err
    assert "node a is killed" in told
    assert told.count("10,000 of 11,247") >= 2
    assert ("takeovers, lost 0" in told) is not is_terminal
