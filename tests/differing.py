"""Compare a table with the expected one, all rows at once."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ("differing",)


def differing(found: Mapping[str, object], expected: Mapping[str, object]) -> str:
    """Return one line per row that differs; an empty text if none does.

    The message of an assertion is printed in full, unlike the values that pytest compares: ``assert
    not (rows := differing(found, expected)), rows``.
    """
    assert found.keys() == expected.keys()
    return "\n".join(
        f"{row}: {found[row]!r}, expected {expected[row]!r}"
        for row in expected
        if found[row] != expected[row]
    )
