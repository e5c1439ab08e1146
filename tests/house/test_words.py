"""No text and no identifier contains a retired word; the field has a usual word for each.

Commands, JSON fields and metrics that are published keep their names: see ``ALLOWED``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WORDS = frozenset(
    {"anew", "askers", "crowds", "foresight", "guest", "kept", "lane", "lockstep", "nobody"}
    | {"nursery", "offspring", "outlets", "owe", "owed", "owing", "shelf", "somebody", "standing"}
    | {"tour", "whoever"}
)
PHRASES = frozenset(
    {"goes on", "has gone", "is owed", "is told", "let go", "lets go", "looked again"}
)

# A whole identifier, where the word is used as a noun. "taken over" is plain English, and so is
# the dashboard of a monitoring system.
NOUNS = ("board", "by_hand", "taken")

_ALL = WORDS | PHRASES
_NAME = re.compile(r"[A-Za-z_]\w*")
_NOUN = re.compile(rf"\b_*({'|'.join(NOUNS)})\b")
_TEXT = re.compile(r'"""(?:.|\n)*?"""|"[^"\n]*"|#.*')

# (files, word): the reason. A pattern of files is one of `Path.match`.
ALLOWED: dict[tuple[str, str], str] = {
    ("aioflow/cli/failover/local_postgres.py", "nobody"): "account of the operating system",
    ("*", "outlets"): "parameter of @task, as in Airflow: the assets that a task updates",
    ("aioflow/api/*.py", "owed"): "JSON field of /health/ready",
    ("aioflow/web/metrics.py", "owed"): "metric aioflow_owed",
    ("docs/how-to/run-in-production.md", "owed"): "JSON field of /health/ready",
    ("aioflow/web/metrics.py", "lane"): "label of metric aioflow_slots",
    ("docs/reference/metrics.md", "lane"): "label of metric aioflow_slots",
}

FOLDERS = ("aioflow", "triggers", "benchmarks", "docs", "ui/src")
SUFFIXES = frozenset({".py", ".md", ".ts", ".tsx", ".css", ".html"})
BUILT = ("aioflow/web/static/", "benchmarks/results/")


def _files() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    found += ROOT.glob("*.md")
    return sorted(path for path in found if path.suffix in SUFFIXES and not _is_built(path))


def _is_built(path: Path) -> bool:
    return path.relative_to(ROOT).as_posix().startswith(BUILT)


def _retired(source: str, *, is_python: bool) -> Iterator[tuple[int, str]]:
    """Yield the retired words in a file with their lines."""
    text = source.lower()
    for word in sorted(WORDS | PHRASES):
        if word in text:  # a search for whole words is slower by far
            for match in re.finditer(rf"\b{word}\b", text):
                yield text.count("\n", 0, match.start()) + 1, word
    if is_python:
        names = {name: _in_identifier(name) for name in set(_NAME.findall(source))}
        for match in _NAME.finditer(source) if any(names.values()) else ():
            if (part := names[match[0]]) is not None:
                yield source.count("\n", 0, match.start()) + 1, part
        for match in _NOUN.finditer(_TEXT.sub(_as_long, source)):
            yield source.count("\n", 0, match.start()) + 1, match[1].replace("_", " ")


def _as_long(text: re.Match[str]) -> str:
    return "\n" * text[0].count("\n")


@cache
def _in_identifier(name: str) -> str | None:
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_")
    if len(parts) == 1:
        return None  # found as text
    phrase = f" {' '.join(parts)} "
    return next(
        (word for word in (*parts, *PHRASES) if word in _ALL and f" {word} " in phrase), None
    )


def _is_allowed(path: str, word: str) -> bool:
    return any(word == known and Path(path).match(files) for files, known in ALLOWED)


def test_no_retired_word_is_used():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in _files()
        for line, word in _retired(path.read_text(), is_python=path.suffix == ".py")
        if not _is_allowed(path.relative_to(ROOT).as_posix(), word)
    ]
    assert not found, "use the field's word; a published name needs an entry in ALLOWED"


@pytest.mark.parametrize(("files", "word"), ALLOWED)
def test_every_exception_is_needed(files, word):
    paths = [path for path in _files() if path.relative_to(ROOT).match(files)]
    assert any(
        word == found
        for path in paths
        for _, found in _retired(path.read_text(), is_python=path.suffix == ".py")
    ), "this exception can go"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('"""Whoever asks is told."""\n', ["whoever", "is told"]),
        ("# the run goes on\n", ["goes on"]),
        ('raise ValueError("it has gone")\n', ["has gone"]),
        ("find_all = begin_anew(OwedRow)\n", ["anew", "owed"]),
        ("taken, _taken = 1, is_taken  # is taken\n", ["taken", "taken"]),
        ("class Guest: standing_seats: LetGo\n", ["guest", "standing", "let go"]),
        ("def f(by_hand): is_told = 'by hand'\n", ["is told", "by hand"]),
        ("plane = planes.understanding(tourist, detour, is_taken_over)\n", []),
    ],
)
def test_words_are_found_in_texts_and_in_parts_of_identifiers(source, words):
    assert sorted(word for _, word in _retired(source, is_python=True)) == sorted(words)
