"""Comparison of a table with the expected table, all rows at once."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ("differing",)


def differing(found: Mapping[str, object], expected: Mapping[str, object]) -> str:
    """Return one line per row that differs, or an empty text if none does.

    Pytest prints the message of an assertion in full, unlike the values that it compares: ``assert
    not (rows := differing(found, expected)), rows``.
    """
    assert found.keys() == expected.keys()
    return "\n".join(
        f"{row}: {found[row]!r}, expected {expected[row]!r}"
        for row in expected
        if found[row] != expected[row]
    )
