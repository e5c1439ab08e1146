"""Packing of structured values into one column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from aioflow.model.states import Failure

__all__ = ("encode", "last_of_each", "packed_failure")

Row = TypeVar("Row")

encode = msgspec.msgpack.Encoder().encode


def packed_failure(failure: Failure | None) -> bytes | None:
    """Return a failure encoded for its column."""
    return None if failure is None else encode(failure)


def last_of_each(rows: Iterable[Row], key: Callable[[Row], object]) -> Sequence[Row]:
    """Return the last row for each key."""
    return list({key(row): row for row in rows}.values())
