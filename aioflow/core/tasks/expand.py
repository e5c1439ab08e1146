"""Widths of mapped tasks, and the items that each child receives.

The product of several sources is enumerated like an odometer: the last source varies fastest.
Widths are Python integers and never overflow, so a limit is compared with the true product. A
source is a tree of joined lists. Its *leaves* are these lists, numbered from left to right over all
sources. A leaf is either a list written in the DAG file (a literal) or the result of a task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from aioflow.errors import FanOutCapped
from aioflow.model.dag import MapSource, MapSpec

__all__ = ("WIDTH_LIMIT", "check_cap", "consumers", "leaves", "pick", "split", "width")

WIDTH_LIMIT = 2**31 - 1
"""Maximum number of children of a task, even if its ``map_limit`` is higher.

It ensures that every ``task_no`` can be stored.
"""


def leaves(sources: Sequence[MapSource]) -> Iterator[MapSource]:
    """Yield the leaves of sources, from left to right."""
    for source in sources:
        if source.join:
            yield from leaves(source.parts)
        else:
            yield source


def width(spec: MapSpec, widths: Sequence[int]) -> int:
    """Return the number of children: the product of the widths of all sources.

    Args:
        spec: The expansion.
        widths: As in ``pick``.

    Raises:
        ValueError: If there is not one width per leaf, or one is negative. Two unknown widths (-1)
            would multiply to 1.
    """
    return math.prod(_of_sources(spec.sources, widths))


def _of_sources(sources: Sequence[MapSource], widths: Sequence[int]) -> list[int]:
    """Return the number of items of each source."""
    count = sum(1 for _ in leaves(sources))
    if len(widths) != count or not widths:
        raise ValueError(f"{count} lists, but {len(widths)} widths")
    if min(widths) < 0:
        raise ValueError(f"a width is not known: {tuple(widths)}")
    rest = iter(widths)
    return [_of_source(source, rest) for source in sources]


def _of_source(source: MapSource, rest: Iterator[int]) -> int:
    """Return the number of items of a source, consuming the widths of its leaves from ``rest``."""
    parts = [_of_source(part, rest) for part in source.parts]
    match source.join:
        case "zip":
            return min(parts)
        case "zip_longest":
            return max(parts)
        case "concat":
            return sum(parts)
        case _:
            return next(rest)


def pick(spec: MapSpec, index: int, widths: Sequence[int]) -> tuple[int, ...]:
    """Return, for each leaf in order, the index of the item that child ``index`` takes from it.

    The index is -1 for a leaf from which the child takes no item.

    Args:
        widths: Number of items of each leaf in order, both literals and results.

    Raises:
        IndexError: If there is no such child.
    """
    sources = spec.sources
    if len(widths) == len(sources):  # nothing is joined
        return split(index, widths)
    found: list[int] = []
    items = split(index, _of_sources(sources, widths))
    for source, item in zip(sources, items, strict=True):
        _pick(source, item, widths, found)
    return tuple(found)


def _pick(source: MapSource, item: int, widths: Sequence[int], found: list[int]) -> None:
    """Append the indexes of the leaf items that make up one item of a source."""
    if not source.join:
        found.append(item)
    for part in source.parts:
        size = _of_source(part, iter(widths[len(found) :]))
        _pick(part, item if item < size else -1, widths, found)
        if source.join == "concat":
            item = item - size if item >= size else -1


def consumers(spec: MapSpec, leaf: int, item: int, widths: Sequence[int]) -> Iterator[int]:
    """Yield the children that take an item of a leaf, ascending. Inverse of ``pick``.

    Args:
        widths: As in ``pick``.
    """
    sources = spec.sources
    if len(sources) == len(widths) == 1:
        yield item
        return
    sizes, first = _of_sources(sources, widths), 0
    for number, source in enumerate(sources):
        count = sum(1 for _ in leaves((source,)))
        if leaf < first + count:
            own = widths[first : first + count]
            item_index = _index_in(source, leaf - first, item, own)
            inner = math.prod(sizes[number + 1 :])
            for outer in range(math.prod(sizes[:number]) if item_index >= 0 else 0):
                begin = (outer * sizes[number] + item_index) * inner
                yield from range(begin, begin + inner)
            return
        first += count


def _index_in(source: MapSource, leaf: int, item: int, widths: Sequence[int]) -> int:
    """Return the index of a source's item that contains an item of a leaf; -1 if there is none."""
    if not source.join:
        return item
    whole = widths
    behind = 0
    for part in source.parts:
        count = sum(1 for _ in leaves((part,)))
        own, widths = widths[:count], widths[count:]
        if leaf < count:
            item_index = _index_in(part, leaf, item, own)
            is_cut = source.join == "zip" and item_index >= _of_source(source, iter(whole))
            return -1 if item_index < 0 or is_cut else item_index + behind
        leaf -= count
        behind += _of_source(part, iter(own)) if source.join == "concat" else 0
    raise IndexError(f"no leaf {leaf}")


def split(index: int, widths: Sequence[int]) -> tuple[int, ...]:
    """Return the index of the item that child ``index`` takes from each source.

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
    for item_index in range(len(widths) - 1, -1, -1):
        if widths[item_index] < 1:
            raise IndexError(f"child {index} of a product that is empty")
        rest, items[item_index] = divmod(rest, widths[item_index])
    # For a negative index, the rest is negative here; for an index that is too large, it is at
    # least 1.
    if rest:
        raise IndexError(f"child {index} of {math.prod(widths)}")
    return tuple(items)


def check_cap(width: int, limit: int, *, is_whole: bool = True) -> FanOutCapped | None:
    """Return the error to fail with if ``width`` children exceed ``limit``, else ``None``.

    Args:
        is_whole: Whether the width is final. The width of a stream may still grow.
    """
    allowed = min(limit, WIDTH_LIMIT)
    return FanOutCapped(width, allowed, is_whole=is_whole) if width > allowed else None
