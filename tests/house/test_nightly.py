"""The nightly ring reports the result of each part in its last line, and fails if a part fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nightly import PARTS, Part, main

pytestmark = pytest.mark.process

GOOD = "def test_a(): pass\ndef test_b(): pass\n"
BAD = "def test_a(): pass\ndef test_b(): assert False\n"
ENDLESS = "import time\ndef test_a(): pass\ndef test_b(): time.sleep(600)\n"


@pytest.fixture
def part(tmp_path, monkeypatch):
    """Return a function that creates a part with one test file, without other configuration."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "")

    def make(name: str, source: str, minutes: float = 5.0) -> Part:
        file = tmp_path / name / f"test_{name}.py"
        file.parent.mkdir()
        file.write_text(source)
        (file.parent / "pytest.ini").write_text("[pytest]\n")
        return Part(name, (str(file), "-q", "-p", "no:cacheprovider"), minutes)

    return make


def test_the_last_line_counts_the_cases_of_each_part(part, capsys):
    status = main([], [part("good", GOOD), part("bad", BAD)])

    assert status == 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        "nightly: 1 of 2 parts passed in 0 min: good passed (2 passed) in 0 min; "
        "bad failed with status 1 (1 passed, 1 failed) in 0 min"
    )


def test_named_parts_alone_are_run(part, capsys):
    assert main(["good"], [part("good", GOOD), part("bad", BAD)]) == 0
    assert "1 of 1 parts passed" in capsys.readouterr().out


def test_a_part_that_takes_too_long_is_interrupted_and_has_failed(part, capsys):
    assert main([], [part("endless", ENDLESS, minutes=0.05)]) == 1
    assert "endless interrupted (" in capsys.readouterr().out


def test_a_part_without_a_case_has_failed(part, capsys):
    assert main([], [part("empty", "")]) == 1
    assert "empty failed with status 5" in capsys.readouterr().out


def test_a_part_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["daily"])

    assert "unknown part daily: choose from suite, wide, kills, timed" in capsys.readouterr().err


def test_every_campaign_belongs_to_one_part():
    """A campaign belongs to a part by its name or as one of the rest; otherwise it would rot."""
    kills, timed = PARTS[2:]
    (named,) = [word for word in timed.arguments if word.startswith("tests/")]

    assert Path(named).exists()
    assert kills.arguments[kills.arguments.index("--ignore") + 1] == named
    assert "tests/campaigns" in PARTS[1].arguments
    assert "tests/campaigns" in kills.arguments
