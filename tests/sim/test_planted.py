"""The planted bugs fit the tree, so that the judge finds none of them stale when it is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATCHES = sorted((ROOT / "tests/sim/planted").glob("*.patch"))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_planted_bug_finds_the_lines_it_breaks(patch):
    stale = list(_stale_hunks(patch.read_text(), ROOT))

    assert not stale, f"{patch.name} is stale: bring it up to date with the tree"


FIRST = "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"


@pytest.mark.parametrize(
    ("hunks", "stale"),
    [
        pytest.param(FIRST, [], id="fits"),
        pytest.param("@@ -7,2 +7 @@\n two\n-three\n", [], id="has-moved"),
        pytest.param("@@ -1,2 +1 @@\n one\n-zwei\n", ["m.py: @@ -1,2 +1 @@"], id="has-changed"),
        pytest.param("@@ -1,2 +1 @@\n one\n-three\n", ["m.py: @@ -1,2 +1 @@"], id="comes-between"),
        pytest.param(FIRST + "@@ -4 +4,0 @@\n-four\n", [], id="all-fit"),
        pytest.param(
            FIRST + "@@ -2 +2,0 @@\n-two\n", ["m.py: @@ -2 +2,0 @@"], id="not-behind-the-first"
        ),
        pytest.param(
            "@@ -4 +4,0 @@\n-four\n--- a/n.py\n" + FIRST, ["n.py: @@ -1,3 +1,3 @@"], id="is-gone"
        ),
    ],
)
def test_a_hunk_is_stale_that_does_not_find_its_lines(tmp_path, hunks, stale):
    (tmp_path / "m.py").write_text("one\ntwo\nthree\nfour\n")

    found = list(_stale_hunks("What it breaks.\n--- a/m.py\n+++ b/m.py\n" + hunks, tmp_path))

    assert found == stale


def _stale_hunks(patch: str, root: Path) -> Iterator[str]:
    """Yield what of a patch finds nothing to change; as strict as ``git apply``."""
    rests: dict[str, list[str]] = {}
    for name, head, expected in _hunks(patch):
        file = root / name
        if name not in rests:
            rests[name] = file.read_text().splitlines() if file.exists() else []
        rest = rests[name]
        places = range(len(rest) - len(expected) + 1)
        at = next((i for i in places if rest[i : i + len(expected)] == expected), None)
        if at is None:
            yield f"{name}: {head}"
        else:
            del rest[: at + len(expected)]


def _hunks(patch: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the file, the head and the expected lines of each hunk."""
    name = ""
    lines = iter(patch.splitlines())
    for line in lines:
        counts = re.match(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", line)
        if line.startswith("--- a/"):
            name = line.removeprefix("--- a/")
        elif counts is not None:
            before, after = (int(count or 1) for count in counts.groups())
            expected = []
            while before or after:
                text = next(lines)
                before -= text[0] != "+"
                after -= text[0] != "-"
                if text[0] != "+":
                    expected.append(text[1:])
            yield name, line, expected
