"""What a mapped child takes: its item out of each list, joined and passed through functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeAlias, get_args, get_origin

from aioflow.author.annotations import hints
from aioflow.author.node import Node, Source
from aioflow.core.mapping import pick
from aioflow.model import MapSpec
from aioflow.orders import Start

__all__ = ("Fetch", "MapRaised", "Taking")

Fetch: TypeAlias = Callable[[Source, int, Any], Any]
"""``(leaf, index, annotation)`` to an item of a list, restored as the annotation says."""


class MapRaised(Exception):
    """A function given to ``map`` raised; what, is its cause."""

    def __init__(self, problem: BaseException) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Taking:
    """Takes the items of one child.

    Args:
        fetch: Called for each leaf that it takes an item of.
    """

    def __init__(self, node: Node, spec: MapSpec, start: Start, fetch: Fetch) -> None:
        self._sources = node.sources
        self._fetch = fetch
        self._picks: Sequence[int] = (start.map_index,)
        if start.widths:  # a child of a stream takes what stands at its own index
            self._picks = pick(spec, start.map_index, start.widths)

    def item(self, number: int, annotation: Any) -> Any:
        """Return the item out of one source.

        Raises:
            MapRaised: If a function it is passed through raised.
        """
        first = sum(len(list(source.leaves)) for source in islice(self._sources, number))
        source = self._sources[number]
        return self._made(source, self._picks[first:], annotation)

    def _made(self, source: Source, picks: Sequence[int], annotation: Any) -> Any:
        if source.functions:
            annotation = _taken_by(source.functions[0])
        if not source.join:
            value = self._fetch(source, picks[0], annotation)
        else:
            value = self._joined(source, picks, annotation)
        for function in source.functions:
            try:
                value = function(value)
            except BaseException as exc:  # user code may raise anything
                raise MapRaised(exc) from exc
        return value

    def _joined(self, source: Source, picks: Sequence[int], annotation: Any) -> Any:
        wanted = _each_of(annotation, source)
        values = []
        for part, kind in zip(source.parts, wanted, strict=True):
            size = len(list(part.leaves))
            mine, picks = picks[:size], picks[size:]
            is_there = max(mine) >= 0
            if is_there or source.join != "concat":
                values.append(self._made(part, mine, kind) if is_there else source.fill)
        return values[0] if source.join == "concat" else tuple(values)


def _each_of(annotation: Any, source: Source) -> list[Any]:
    """Return of what type the item of each part is to be."""
    count = len(source.parts)
    if source.join == "concat":
        return [annotation] * count
    kinds = get_args(annotation) if get_origin(annotation) is tuple else ()
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return [kinds[0]] * count
    return list(kinds) if len(kinds) == count else [Any] * count


def _taken_by(function: Callable[..., Any]) -> Any:
    """Return of what type the first argument of a function is, as far as it says."""
    if not inspect.isfunction(function):
        return Any
    names = function.__code__.co_varnames[:1]
    return hints(function).get(names[0], Any) if names else Any
