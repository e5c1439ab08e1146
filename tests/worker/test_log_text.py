"""Lines of task output: the text that is shown, their levels, and filters for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.worker.log_text import LEVELS, Levels, LineFilter, plain_text, shown_text


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("plain", None),
        ("2026-01-31 03:00:00,123 WARNING my.code: careful", "warning"),
        ("2026-01-31T03:00:00.123Z | INFO     | begun", "info"),
        ("2026-01-31 03:00:00 [error    ] no such file", "error"),
        ("ERROR: bad", "error"),
        ("[CRITICAL] worse", "critical"),
        ("WARN old name", "warning"),
        ('{"event": "x", "level": "debug"}', "debug"),
        ('{"event": "x", "level": "other"}', None),
        ("ERRORS are no level", None),
        ("an ERROR in the middle", None),
    ],
)
def test_a_line_that_begins_like_a_record_has_its_level(text, level):
    assert Levels().of(text) == level


def test_a_traceback_and_indented_lines_have_a_level_and_what_follows_has_none():
    levels = Levels()
    text = ["INFO: a", "  more", "b", "Traceback (most recent call last):", "  File", "E: x", "c"]

    assert [levels.of(line) for line in text] == [
        "info", "info", None, "error", "error", "error", None,
    ]  # fmt: skip


def test_what_a_terminal_would_show_is_shown():
    assert shown_text(b"10 %\r20 %\r\n") == "20 %"
    assert shown_text(b"x" * 5_000) == "x" * 4_096
    assert plain_text("\x1b[31mred\x1b[0m and \x1b]8;;x\x07link") == "red and link"


LINES = st.lists(st.text(st.sampled_from("ab A\t"), max_size=5), max_size=8)


@given(LINES, st.sampled_from(["a", "a b", "^a", "b$", r"a\s+b", "^$", "a|b", r"(a)\1", "[^b]"]))
def test_a_block_that_is_searched_as_a_whole_has_the_same_matches_as_its_lines(lines, pattern):
    data = "".join(f"{line}\n" for line in lines).encode()
    wanted = LineFilter(pattern, is_regex=True)
    starts = [sum(len(line) + 1 for line in lines[:at]) for at in range(len(lines))]
    expected = [
        start
        for start, line in zip(starts, lines, strict=True)
        if wanted.compile().search(line) is not None
    ]

    assert wanted.find(data, 100) == expected
    assert wanted.find(data, 2, is_backward=True) == expected[-2:]


RECORDS = st.lists(
    st.sampled_from(
        [
            "plain", "", "  indented", "INFO: a", "ERROR: bad", "[warning] b", "WARN", "FATAL x",
            "2026-01-31 03:00:00,123 ERROR my.code: failed", "2026-01-31 03:00:00 [info ] x",
            "Traceback (most recent call last):", "ValueError: no", '{"level": "error"}',
            '{"level": "info", "a": "error"}', "an ERROR in it", "\u00e9ERROR: x", "DEBUG|y",
        ]
    ),
    max_size=12,
)  # fmt: skip


@given(RECORDS, st.sampled_from(LEVELS), st.sampled_from(["", "a", "b"]))
def test_lines_of_a_level_are_found_as_if_each_line_was_examined(lines, level, search):
    data = "".join(f"{line}\n" for line in lines).encode()
    levels, expected, start = Levels(), [], 0
    for line in lines:
        of_line = levels.of(line)
        if of_line and LEVELS.index(of_line) >= LEVELS.index(level) and search in line:
            expected.append(start)
        start += len(line.encode()) + 1

    assert LineFilter(search, is_case=True, level=level).find(data, 100) == expected


@given(LINES, st.sampled_from(["a", "A", "a b", " ", "\u212a"]), st.booleans())
def test_a_text_is_found_in_a_block_as_in_its_lines(lines, search, is_case):
    data = "".join(f"{line}\n" for line in lines).encode()
    wanted = LineFilter(search, is_case=is_case)
    starts = [sum(len(line) + 1 for line in lines[:at]) for at in range(len(lines))]

    assert wanted.find(data, 100) == [
        start
        for start, line in zip(starts, lines, strict=True)
        if wanted.compile().search(line) is not None
    ]
