"""Output of commands: tables for people, JSON for machines, and colours on a terminal."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = (
    "checks_text",
    "hint",
    "on_terminal",
    "print_json",
    "print_table",
    "progress_text",
    "safe",
    "safe_text",
    "say",
    "state",
    "task_name",
    "wait_text",
)


class _Escapes(dict[int, str]):
    """A table for ``str.translate`` that maps each character to its displayed form. Filled lazily.

    Args:
        known: The fixed replacements of some characters, by code point.
        escape: Returns the escaped form of a character that could control a terminal.
    """

    def __init__(self, known: dict[str, str], escape: Callable[[int], str]) -> None:
        super().__init__({ord(character): shown for character, shown in known.items()})
        self._escape = escape

    def __missing__(self, code: int) -> str:
        from unicodedata import category

        character = chr(code)
        is_shown = category(character) not in _STEERING
        self[code] = shown = character if is_shown else self._escape(code)
        return shown


_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of invisible characters: control and format characters (which include changes
of the writing direction), surrogates, and separators."""


def _escaped(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _as_in_json(code: int) -> str:
    return json.dumps(chr(code))[1:-1]


_IN_A_CELL = _Escapes({"\n": "\\n", "\r": "\\r", "\t": "\\t"}, _escaped)
_IN_A_TEXT = _Escapes({"\n": "\n", "\t": "\t"}, _escaped)
_IN_JSON = _Escapes({"\n": "\n"}, _as_in_json)
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
    """Print one JSON document. With ``line``, print it on a single line, as streams need it."""
    text = json.dumps(value, ensure_ascii=False, indent=None if line else 2)
    print(text.translate(_IN_JSON), flush=line)


def hint(text: str) -> None:
    """Print a message for people to standard error."""
    print(safe_text(text), file=sys.stderr, flush=True)


def on_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def safe(text: object) -> str:
    """Return ``text`` as one line, with characters escaped that could control a terminal."""
    return str(text).translate(_IN_A_CELL)


def safe_text(text: str) -> str:
    """Return a text with characters escaped that could control a terminal.

    Line breaks and tabs are not escaped.
    """
    return text.translate(_IN_A_TEXT)


def state(name: str) -> str:
    """Return the name of a state; on a terminal, in the colour of the state."""
    code = _COLORS.get(name)
    if code is None or not on_terminal() or os.environ.get("NO_COLOR"):
        return name
    return f"\x1b[{code}m{name}\x1b[0m"


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows in columns. If there are no rows, print ``empty`` to standard error.

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
    """Return a short description of a wait."""
    if wait is None:
        return ""
    until = f" until {wait['until']}" if wait["until"] else ""
    detail = f" {wait['detail']}" if wait["detail"] else ""
    label = f" {wait['label']};" if wait.get("label") else ""
    checks = checks_text(wait)
    number = "" if wait.get("trigger_id") is None else f" (trigger {wait['trigger_id']})"
    return f"{wait['kind']}:{label}{detail}{f'; {checks}' if checks else ''}{number}{until}"


def checks_text(wait: Mapping[str, Any]) -> str:
    """Return when the last check was and what it found, and when the next one will be.

    Empty if unknown.
    """
    now = None
    parts = []
    for name, text in (("last_check_at", "checked {} ago"), ("next_check_at", "next in {}")):
        if wait.get(name) is None:
            continue
        now = _now() if now is None else now
        seconds = (_instant(wait[name]) - now) / 1e6
        part = text.format(_length_text(seconds if name == "next_check_at" else -seconds))
        if name == "last_check_at" and wait.get("last_answer"):
            part += f": {safe(wait['last_answer'])}"
        parts.append(part)
    return ", ".join(parts)


def _now() -> int:
    from aioflow.clock import SystemClock

    return SystemClock().now()


def _instant(text: str) -> int:
    from datetime import datetime

    from aioflow.model.timestamps import to_timestamp

    return to_timestamp(datetime.fromisoformat(text))


def _length_text(seconds: float) -> str:
    """Return a duration in its largest unit, rounded: ``0.2 s``, ``5 min``, ``2 h``."""
    if seconds < 1:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if whole >= 2 * size:
            return f"{round(whole / size)} {unit}"
    return f"{whole} s"


def task_name(task: dict[str, Any]) -> str:
    """Return the display name of a task instance, with the map label of a child if it has one."""
    name, index, number = str(task["task_id"]), task["map_index"], task.get("round", 0)
    if index >= 0:
        label = task.get("map_label")
        return f"{name}[{index}]" + (f" {label}" if label else "")
    return f"{name}, round {number}" if number else name


def progress_text(counts: dict[str, int]) -> str:
    """Return how many tasks of a run have ended, and the count of each state."""
    total = sum(counts.values())
    ended = sum(counts.get(name, 0) for name in _ENDED)
    others = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{ended}/{total} tasks ended ({others})"


def say(arguments: argparse.Namespace, answer: object, text: str) -> int:
    """Report success: print the JSON answer if JSON is wanted, else the text. Return 0."""
    if arguments.json:
        print_json(answer)
    else:
        hint(text)
    return 0
