"""Future lists that a task can expand over, and operations on them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aioflow.author.binding import FromSource
from aioflow.author.node import NO_FILL, Source
from aioflow.author.placeholder import Unknown
from aioflow.author.source_location import dag_error, misused
from aioflow.model.dag import Join

__all__ = ("GroupItem", "Items", "Previous", "source_of")


class Items(Unknown):
    """Items that a task can expand over: the result of a task, or an operation on such results."""

    def _source(self) -> Source:
        """Return the source of the items.

        Raises:
            DagError: If a task cannot expand over them.
        """
        raise NotImplementedError

    def map(self, fn: Callable[[Any], Any]) -> Items:
        """Return the items with a function applied to each.

        The function runs in the child that gets the item. If it raises ``Skip``, that child is
        skipped; any other exception fails the child's try.

        Raises:
            DagError: If it is not a plain function.
        """
        if hasattr(fn, "expand"):
            raise dag_error(f"map() takes a plain function; of {fn!r} that is .fn")
        function: object = fn
        if not callable(function):
            raise dag_error(f"map() takes a function, got {fn!r}")
        if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
            raise dag_error(f"map() takes a plain function, {fn!r} is async")
        source = self._source()
        return _Made(
            dataclasses.replace(source, functions=(*source.functions, fn)),
            f"{self._label()}.map({getattr(fn, '__name__', '...')})",
        )

    def zip(self, *others: Items | Sequence[Any], fillvalue: object = NO_FILL) -> Items:
        """Return tuples of the items with the same index, like Python's ``zip``.

        Ends with the shortest list. With a ``fillvalue`` for missing items, ends with the longest.
        """
        join: Join = "zip" if fillvalue is NO_FILL else "zip_longest"
        parts = (self._source(), *(source_of(other, "zip() joins") for other in others))
        return _Made(Source(join=join, parts=parts, fill=fillvalue), f"{self._label()}.zip(...)")

    def concat(self, *others: Items | Sequence[Any]) -> Items:
        """Return the items of all these lists, one list after the other."""
        own = self._source()
        joined = own.parts if own.join == "concat" and not own.functions else (own,)
        parts = (*joined, *(source_of(other, "concat() joins") for other in others))
        return _Made(Source(join="concat", parts=parts), f"{self._label()}.concat(...)")


class _Made(Items):
    """The result of an operation on items."""

    def __init__(self, source: Source, label: str) -> None:
        self._made_of = source
        self._called = label

    def _source(self) -> Source:
        return self._made_of

    def _label(self) -> str:
        return self._called

    @property
    def binding(self) -> Any:
        """Always raises: these items can be expanded over, but not passed as an argument."""
        raise dag_error(
            f"{self._called} can be given to expand() only; take the result itself here"
        )


class GroupItem(Unknown):
    """The item that the tasks of a mapped group get, or a part of it.

    Args:
        sources: The sources of the group.
        number: The index of the source that the item comes from.
    """

    def __init__(
        self,
        sources: tuple[Source, ...],
        number: int,
        name: str,
        keys: tuple[str | int, ...] = (),
    ) -> None:
        self._sources = sources
        self._number = number
        self._name = name
        self._keys = keys

    def __getitem__(self, key: str | int) -> GroupItem:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise misused(self._label(), "a slice, or a key that is neither text nor a number")
        return GroupItem(self._sources, self._number, self._name, (*self._keys, key))

    def _label(self) -> str:
        return self._name + "".join(f"[{key!r}]" for key in self._keys)

    @property
    def binding(self) -> FromSource:
        """The binding that resolves to the value."""
        return FromSource(self._number, self._keys)

    def check(self, dag: Any, owner: str) -> None:
        """Raise if it is passed to a task outside of its group.

        Raises:
            DagError: If its group is not open.
        """
        group = dag.mapped_group
        if group is None or group.sources is not self._sources:
            raise dag_error(f"{owner} was given {self!r} outside of its mapped group")


class Previous(Unknown):
    """The value of the previous round; in the first round, the argument of the group's call.

    Args:
        group: The loop.
        first: The value for the first round.
    """

    def __init__(self, group: object, first: object, keys: tuple[str | int, ...] = ()) -> None:
        self._group = group
        self.first = first
        self.keys_inside = keys

    def __getitem__(self, key: str | int) -> Previous:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise misused(self._label(), "a slice, or a key that is neither text nor a number")
        return Previous(self._group, self.first, (*self.keys_inside, key))

    def _label(self) -> str:
        return "previous" + "".join(f"[{key!r}]" for key in self.keys_inside)

    def check(self, dag: Any, owner: str) -> None:
        """Raise if it is passed to a task outside of its loop.

        Raises:
            DagError: If its loop is not open.
        """
        if dag.mapped_group is not self._group:
            raise dag_error(f"{owner} was given {self!r} outside of its loop")


def source_of(value: object, what: str) -> Source:
    """Return the source for a value that a task expands over.

    Raises:
        DagError: If it is neither a list nor a reference to one.
    """
    if isinstance(value, Items):
        return value._source()  # noqa: SLF001 - what the class is for
    if isinstance(value, Unknown):
        raise dag_error(f"{what} {value!r}; let a task return the list")
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        kind = type(value).__name__
        raise dag_error(f"{what} a {kind}; give it a list or the result of a task")
    return Source(values=value)
