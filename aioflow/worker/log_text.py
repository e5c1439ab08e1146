"""Lines of task output as shown to users, and a program that finds lines that match a pattern.

Only the standard library is imported, so that the program starts quickly. It runs in a separate
process, because a search with one of Python's regular expressions may take forever and cannot be
interrupted. The process limits its processor time and memory.

The program reads a JSON line with the filter, then blocks: a length and that many bytes. For each
block it writes the number of matches, and the position in the block of each matching line. All
numbers are 32 bits, little-endian.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import BinaryIO, NamedTuple

__all__ = ("LEVELS", "LINE_BYTES", "Levels", "LineFilter", "main", "plain_text", "shown_text")

LINE_BYTES = 4 * 1024
"""Maximum length of a line as shown and searched. Longer lines are cut."""

LEVELS = ("debug", "info", "warning", "error", "critical")

_MEMORY_BYTES = 512 * 1024 * 1024
_NUMBER = struct.Struct("<I")

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_NAMES = {"notice": "info", "warn": "warning", "fatal": "critical"}
_WORDS = "DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL"
_TIME = r"\[?\d{4}-\d\d-\d\d[ T][\d:.,]{8,15}(?:Z|[+-]\d\d:?\d\d)?\]?[ |\[<]{1,6}"


def _record_with(words: str) -> str:
    """Return a pattern for the beginning of a record whose level is one of these words."""
    return rf"(?:{_TIME})?(?:[\[<]?({words})[\]>]?(?=[\s:|])|\[({words.lower()}) *\])"


_RECORD = re.compile(_record_with(_WORDS), re.ASCII)
_NOT_BY_LINE = re.compile(r"\\[AZ]|\(\?[aiLmsux-]")
"""Matches the parts of a pattern that would have another meaning in a text of several lines."""

_JSON_RECORD = re.compile(r'\{.{0,300}?"(?:level|levelname|severity)": *"(\w{1,12})"')
_TRACEBACK = ("Traceback (most recent call last):", "  + Exception Group Traceback")


def shown_text(line: bytes) -> str:
    r"""Return a line as a terminal would show it, without the text that a ``\r`` overwrites.

    Escape sequences remain. A long line is cut.
    """
    line = line.rstrip(b"\r\n")
    if b"\r" in line:
        line = line[line.rfind(b"\r") + 1 :]
    return line[:LINE_BYTES].decode(errors="replace")


def plain_text(text: str) -> str:
    """Return a text without terminal escape sequences."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


class Levels:
    """Finds the levels of consecutive lines.

    A line has a level if it begins like a log record: with the level, or with a time and the level,
    in the form of ``logging`` or another known form, or as JSON. Indented lines after a record have
    the record's level. A traceback has the level ``error``.
    """

    def __init__(self) -> None:
        self._level: str | None = None
        self._is_traceback = False

    @property
    def is_between(self) -> bool:
        """Whether the next line continues neither a record nor a traceback."""
        return self._level is None and not self._is_traceback

    def skip(self) -> None:
        """Treat the current record as ended, because its lines are not wanted.

        A traceback continues.
        """
        if not self._is_traceback:
            self._level = None

    def of(self, text: str) -> str | None:
        """Return the level of the next line; ``None`` if the line has none."""
        if text.startswith(_TRACEBACK):
            self._level, self._is_traceback = "error", True
            return self._level
        if text.startswith((" ", "\t")):
            return self._level
        if self._is_traceback:  # the line that names the exception ends it
            self._is_traceback = text == ""
            level, self._level = self._level, None if text else self._level
            return level
        self._level = _level_of(text)
        return self._level


def _level_of(text: str) -> str | None:
    found = _RECORD.match(text) or (_JSON_RECORD.match(text) if text[:1] == "{" else None)
    if found is None:
        return None
    name = next(group for group in found.groups() if group).lower()
    name = _NAMES.get(name, name)
    return name if name in LEVELS else None


class LineFilter(NamedTuple):
    """A filter that selects lines.

    Attributes:
        search: Text or pattern that a line contains; empty for any line.
        is_regex: Whether ``search`` is a regular expression.
        is_case: Whether upper and lower case differ.
        level: The lowest level. Lines without a level are excluded then. ``None`` for any line.
    """

    search: str = ""
    is_regex: bool = False
    is_case: bool = False
    level: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the filter selects every line."""
        return not self.search and self.level is None

    def compile(self) -> re.Pattern[str]:
        """Return the pattern.

        Raises:
            re.error: If ``search`` is not a valid regular expression.
        """
        pattern = self.search if self.is_regex else re.escape(self.search)
        return re.compile(pattern, 0 if self.is_case else re.IGNORECASE)

    def problem(self) -> str:
        """Return why the pattern is invalid; empty if it is valid."""
        try:
            self.compile()
        except (re.error, OverflowError, RecursionError) as exc:
            return str(exc) or type(exc).__name__
        return ""

    def find(self, data: bytes, limit: int, *, is_backward: bool = False) -> list[int]:
        """Return the positions of the first matching lines of a block, or of the last ones.

        Args:
            data: Whole lines.
        """
        matches = self._matches(data)
        if is_backward:
            return list(deque(matches, maxlen=limit))
        return [position for position, _ in zip(matches, range(limit), strict=False)]

    def _matches(self, data: bytes) -> Iterator[int]:
        if self.level is not None:
            yield from self._matches_of_level(data, LEVELS.index(self.level))
        elif not self.search:
            yield from (start for start, _ in _lines(data))
        elif not self._is_simple(data):
            pattern = self.compile()
            for start, end in _lines(data):
                if pattern.search(plain_text(shown_text(data[start:end]))) is not None:
                    yield start
        elif self.is_regex or not self.search.isascii():
            yield from _search_block(data, self.compile())
        else:
            yield from _find_in_block(data, self.search, is_case=self.is_case)

    def _matches_of_level(self, data: bytes, least: int) -> Iterator[int]:
        """Yield the starts of matching lines with at least a level.

        Only records, and the lines that belong to them, can have the level. So after a line without
        the level, the search continues at the next line that may begin a record with it.
        """
        pattern = self.compile() if self.search else None
        begins = _begins_of(least)
        is_quick = b"\r" not in data and b"\x1b" not in data
        levels, position = Levels(), 0
        while position < len(data):
            if is_quick and levels.is_between:
                found = begins.search(data, position)
                if found is None:
                    return
                position = found.start()
            start, position = position, data.find(b"\n", position) + 1 or len(data)
            text = plain_text(shown_text(data[start:position]))
            level = levels.of(text)
            if level is None or LEVELS.index(level) < least:
                levels.skip()
            elif pattern is None or pattern.search(text) is not None:
                yield start

    def _is_simple(self, data: bytes) -> bool:
        """Return whether a block can be searched as a whole, which is many times faster."""
        is_plain = data.isascii() and b"\x1b" not in data and b"\r" not in data
        return is_plain and not (self.is_regex and _NOT_BY_LINE.search(self.search))


@cache
def _begins_of(least: int) -> re.Pattern[bytes]:
    """Return a pattern for lines that may begin a traceback, or a record with at least a level."""
    wanted = LEVELS[least:]
    names = [*wanted, *(name for name, level in _NAMES.items() if level in wanted)]
    record = _record_with("|".join(names).upper())
    tracebacks = "|".join(re.escape(text) for text in _TRACEBACK)
    pattern = rf"^(?:{record}|\{{[^\n]*?(?i:{'|'.join(names)})|{tracebacks})"
    return re.compile(pattern.encode(), re.MULTILINE)


def _find_in_block(data: bytes, search: str, *, is_case: bool) -> Iterator[int]:
    """Yield the starts of lines that contain an ASCII text, in an ASCII block."""
    wanted = search.encode() if is_case else search.lower().encode()
    text = data if is_case else data.lower()
    position = 0
    while (found := text.find(wanted, position)) >= 0:
        start = text.rfind(b"\n", 0, found) + 1
        position = text.find(b"\n", found) + 1 or len(text)
        if wanted in text[start : min(position, start + LINE_BYTES)].rstrip(b"\n"):
            yield start


def _search_block(data: bytes, pattern: re.Pattern[str]) -> Iterator[int]:
    """Yield the starts of matching lines.

    A match in the block shows only which lines to check, because it may extend over several lines.
    """
    text = data.decode("ascii")
    by_line = re.compile(pattern.pattern, pattern.flags | re.MULTILINE)
    position = 0
    while position < len(text) and (found := by_line.search(text, position)) is not None:
        start = text.rfind("\n", 0, found.start()) + 1
        end = text.find("\n", start) + 1 or len(text)
        if start < len(text) and pattern.search(shown_text(data[start:end])) is not None:
            yield start
        position = end


def _lines(data: bytes) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        yield start, end
        start = end


def main() -> None:
    """Search blocks from standard input until it ends.

    The first answer is empty if the pattern is valid, and otherwise contains the reason why it is
    not. The argument is a limit on the processor time for the pattern, and for each block. At the
    limit the process is killed by ``SIGPROF``, since Python cannot interrupt a search.
    """
    import resource
    import signal

    seconds = float(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    signal.setitimer(signal.ITIMER_PROF, seconds)
    wanted = LineFilter(**json.loads(source.readline()))
    problem = wanted.problem().encode()
    target.write(_NUMBER.pack(len(problem)) + problem)
    target.flush()
    while not problem and (head := source.read(9)) and len(head) == 9:
        size, limit, is_backward = struct.unpack("<II?", head)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        _answer(target, wanted.find(source.read(size), limit, is_backward=is_backward))


def _answer(target: BinaryIO, found: list[int]) -> None:
    target.write(_NUMBER.pack(len(found)) + struct.pack(f"<{len(found)}I", *found))
    target.flush()


if __name__ == "__main__":
    main()
