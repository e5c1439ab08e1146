"""Fan-out by numbers: how wide a task becomes, and which items child ``i`` takes.

The product of several sources is counted like an odometer: the last one varies fastest. Widths
are plain integers and never wrap, so that a cap is compared with the true product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aioflow.errors import FanOutCapped
from aioflow.model import MapSpec

__all__ = ("WIDTH_LIMIT", "check_cap", "split", "width")

WIDTH_LIMIT = 2**31 - 1
"""Children a task may have whatever its ``map_limit`` says; keeps every ``task_no`` storable."""


def width(spec: MapSpec, widths: Sequence[int]) -> int:
    """Return how many children there are: the product of all ``widths``, however large.

    Args:
        spec: The expansion.
        widths: Of each of its sources, literals too, in order.

    Raises:
        ValueError: If there is not one width per source, or one is negative. Two that are
            "not known yet" (-1) would multiply to 1.
    """
    if len(widths) != len(spec.sources) or not widths:
        raise ValueError(f"{len(spec.sources)} sources, but {len(widths)} widths")
    if min(widths) < 0:
        raise ValueError(f"a width is not known: {tuple(widths)}")
    return math.prod(widths)


def split(index: int, widths: Sequence[int]) -> tuple[int, ...]:
    """Return which item of each source child ``index`` takes.

    With widths (2, 3) the children take (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2).

    Raises:
        IndexError: If there is no such child.
    """
    if len(widths) == 1:
        if not 0 <= index < widths[0]:
            raise IndexError(f"child {index} of {widths[0]}")
        return (index,)
    rest = index
    items = [0] * len(widths)
    for place in range(len(widths) - 1, -1, -1):
        if widths[place] < 1:
            raise IndexError(f"child {index} of a product that is empty")
        rest, items[place] = divmod(rest, widths[place])
    # A negative index leaves -1 here, one that is too large at least 1.
    if rest:
        raise IndexError(f"child {index} of {math.prod(widths)}")
    return tuple(items)


def check_cap(width: int, limit: int) -> FanOutCapped | None:
    """Return the error to fail with if ``width`` children are more than ``limit`` allows."""
    allowed = min(limit, WIDTH_LIMIT)
    return FanOutCapped(width, allowed) if width > allowed else None
