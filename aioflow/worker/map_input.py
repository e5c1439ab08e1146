"""Resolves a mapped child's item: picked from each list, joined, and mapped by functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias, get_args, get_origin

from aioflow.author.annotations import hints
from aioflow.author.node import Node, Source
from aioflow.core.tasks.expand import pick
from aioflow.model.dag import MapSpec
from aioflow.protocol.commands import StartTask

__all__ = ("Fetch", "MapInput", "MapRaised")

Fetch: TypeAlias = Callable[[Source, int, Any], Any]
"""Returns the item of a list for ``(leaf, index, annotation)``, decoded to the annotation's
type."""


class MapRaised(Exception):
    """A function given to ``map`` raised; ``problem`` is its exception."""

    def __init__(self, problem: BaseException) -> None:
        super().__init__(str(problem))
        self.problem = problem


class MapInput:
    """Resolves the items of one child."""

    def __init__(self, node: Node, spec: MapSpec, start: StartTask) -> None:
        self._sources = node.sources
        self._picks: Sequence[int] = (start.map_index,)
        if start.widths:  # a child of a stream gets the item at its own index
            self._picks = pick(spec, start.map_index, start.widths)

    def picked(self) -> Iterator[tuple[Source, int]]:
        """Yield each list from which an item is picked, with the item's index."""
        lists = (leaf for source in self._sources for leaf in source.leaves)
        for leaf, index in zip(lists, self._picks, strict=True):
            if index >= 0:
                yield leaf, index

    def item(self, number: int, annotation: Any, fetch: Fetch) -> Any:
        """Return the item of one source.

        Args:
            fetch: Called for each list from which an item is picked.

        Raises:
            MapRaised: If a function given to ``map`` raised.
        """
        first = sum(len(list(source.leaves)) for source in islice(self._sources, number))
        source = self._sources[number]
        return _made(source, self._picks[first:], annotation, fetch)


def _made(source: Source, picks: Sequence[int], annotation: Any, fetch: Fetch) -> Any:
    if source.functions:
        annotation = _taken_by(source.functions[0])
    if not source.join:
        value = fetch(source, picks[0], annotation)
    else:
        value = _joined(source, picks, annotation, fetch)
    for function in source.functions:
        try:
            value = function(value)
        except BaseException as exc:  # user code may raise anything
            raise MapRaised(exc) from exc
    return value


def _joined(source: Source, picks: Sequence[int], annotation: Any, fetch: Fetch) -> Any:
    wanted = _each_of(annotation, source)
    values = []
    for part, kind in zip(source.parts, wanted, strict=True):
        size = len(list(part.leaves))
        mine, picks = picks[:size], picks[size:]
        is_there = max(mine) >= 0
        if is_there or source.join != "concat":
            values.append(_made(part, mine, kind, fetch) if is_there else source.fill)
    return values[0] if source.join == "concat" else tuple(values)


def _each_of(annotation: Any, source: Source) -> list[Any]:
    """Return the expected item type of each part."""
    count = len(source.parts)
    if source.join == "concat":
        return [annotation] * count
    kinds = get_args(annotation) if get_origin(annotation) is tuple else ()
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return [kinds[0]] * count
    return list(kinds) if len(kinds) == count else [Any] * count


def _taken_by(function: Callable[..., Any]) -> Any:
    """Return the annotated type of a function's first parameter, else ``Any``."""
    if not inspect.isfunction(function):
        return Any
    names = function.__code__.co_varnames[:1]
    return hints(function).get(names[0], Any) if names else Any
