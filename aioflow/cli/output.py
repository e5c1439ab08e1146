"""How commands print: tables for people, JSON for machines, colours on a terminal only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

__all__ = (
    "hint",
    "on_terminal",
    "print_json",
    "print_table",
    "progress_text",
    "safe",
    "state",
    "task_name",
    "wait_text",
)

_CONTROL = dict.fromkeys((*range(32), *range(127, 160)), "�")
_COLORS = {
    "success": 32,
    "running": 34,
    "sensing": 36,
    "deferred": 36,
    "retrying": 33,
    "partial": 33,
    "failed": 31,
    "upstream_failed": 31,
}
_ENDED = ("success", "failed", "upstream_failed", "skipped", "cancelled", "removed")


def print_json(value: object, *, line: bool = False) -> None:
    """Print one document; with ``line`` on one line, for streams."""
    print(json.dumps(value, ensure_ascii=False, indent=None if line else 2), flush=line)


def hint(text: str) -> None:
    """Say something that is no data."""
    print(text, file=sys.stderr, flush=True)


def on_terminal() -> bool:
    """Whether a person looks at standard output."""
    return sys.stdout.isatty()


def safe(text: object) -> str:
    """Return text without what would steer a terminal."""
    return str(text).translate(_CONTROL)


def state(name: str) -> str:
    """Return a state, in its colour on a terminal."""
    code = _COLORS.get(name)
    if code is None or not on_terminal() or os.environ.get("NO_COLOR"):
        return name
    return f"\x1b[{code}m{name}\x1b[0m"


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows in columns; where there are none say so beside the data.

    A column named ``STATE`` is coloured.
    """
    cells = [[safe("-" if cell is None else cell) for cell in row] for row in rows]
    if not cells:
        hint(empty)
        return
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for row in [list(heads), *cells]:
        print("  ".join(_padded(row, widths, heads)).rstrip())


def _padded(row: Sequence[str], widths: Sequence[int], heads: Sequence[str]) -> Iterator[str]:
    for cell, width, head in zip(row, widths, heads, strict=True):
        shown = state(cell) if head == "STATE" else cell
        yield shown + " " * (width - len(cell))


def wait_text(wait: dict[str, Any] | None) -> str:
    """Return what something waits for, in a few words."""
    if wait is None:
        return ""
    until = f" until {wait['until']}" if wait["until"] else ""
    detail = f" {wait['detail']}" if wait["detail"] else ""
    return f"{wait['kind']}:{detail}{until}"


def task_name(task: dict[str, Any]) -> str:
    """Return a task as people write it; a child with a name has that behind it."""
    name, index, number = str(task["task_id"]), task["map_index"], task.get("round", 0)
    if index >= 0:
        label = task.get("map_label")
        return f"{name}[{index}]" + (f" {label}" if label else "")
    return f"{name}, round {number}" if number else name


def progress_text(counts: dict[str, int]) -> str:
    """Return how far a run is."""
    total = sum(counts.values())
    ended = sum(counts.get(name, 0) for name in _ENDED)
    others = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{ended}/{total} tasks ended ({others})"
