"""References to future results and lists, and the dependencies they create.

A task can expand over a future list, and over operations on such lists.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Generic, Self, TypeVar

from aioflow.author.node import NO_FILL, FromSource, FromTask, Node, Placeholder, Source
from aioflow.author.options import RuleName, rule_of
from aioflow.author.source_location import dag_error, misused
from aioflow.model.dag import Join
from aioflow.model.states import TriggerRule

__all__ = (
    "GroupItem",
    "Items",
    "Linked",
    "Previous",
    "Ref",
    "Teardown",
    "chain",
    "source_of",
)


class Items(Placeholder):
    """Items that a task can expand over: the result of a task, or an operation on such results."""

    def _source(self) -> Source:
        """Return the source of the items.

        Raises:
            DagError: If a task cannot expand over the items.
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
        return _DerivedItems(
            dataclasses.replace(source, functions=(*source.functions, fn)),
            f"{self._label()}.map({getattr(fn, '__name__', '...')})",
        )

    def zip(self, *others: Items | Sequence[Any], fillvalue: object = NO_FILL) -> Items:
        """Return tuples of the items with the same index, like Python's ``zip``.

        The result is as long as the shortest list. With a ``fillvalue`` for missing items, it is as
        long as the longest list.
        """
        join: Join = "zip" if fillvalue is NO_FILL else "zip_longest"
        parts = (self._source(), *(source_of(other, "zip() joins") for other in others))
        return _DerivedItems(
            Source(join=join, parts=parts, fill=fillvalue), f"{self._label()}.zip(...)"
        )

    def concat(self, *others: Items | Sequence[Any]) -> Items:
        """Return the items of all these lists, one list after the other."""
        own = self._source()
        joined = own.parts if own.join == "concat" and not own.functions else (own,)
        parts = (*joined, *(source_of(other, "concat() joins") for other in others))
        return _DerivedItems(Source(join="concat", parts=parts), f"{self._label()}.concat(...)")


class _DerivedItems(Items):
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
        """Always raises: a task can expand over these items, but not take them as arguments."""
        raise dag_error(
            f"{self._called} can be given to expand() only; take the result itself here"
        )


class GroupItem(Placeholder):
    """A placeholder for the item that a task of a mapped group gets, or for a part of the item.

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
        """Raise if the item is passed to a task outside of its group.

        Raises:
            DagError: If its group is not open.
        """
        group = dag.mapped_group
        if group is None or group.sources is not self._sources:
            raise dag_error(f"{owner} was given {self!r} outside of its mapped group")


class Previous(Placeholder):
    """A placeholder for the value of a loop's previous round.

    In the first round, it is the value that the call of the loop passes as ``previous``, or the
    default of that parameter.

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
        """Raise if the value is passed to a task outside of its loop.

        Raises:
            DagError: If its loop is not open.
        """
        if dag.mapped_group is not self._group:
            raise dag_error(f"{owner} was given {self!r} outside of its loop")


def source_of(value: object, what: str) -> Source:
    """Return the source for a value that a task expands over.

    Raises:
        DagError: If ``value`` is neither a list nor a reference to one.
    """
    if isinstance(value, Items):
        return value._source()  # noqa: SLF001 - the class is made for this
    if isinstance(value, Placeholder):
        raise dag_error(f"{what} {value!r}; let a task return the list")
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        kind = type(value).__name__
        raise dag_error(f"{what} a {kind}; give it a list or the result of a task")
    return Source(values=value)


R_co = TypeVar("R_co", covariant=True)
Other = TypeVar("Other", bound="Linked | Sequence[Linked]")


class Linked:
    """Represents a task of a DAG: a reference to its result, or an operator."""

    @property
    def node(self) -> Node:
        """The task it represents."""
        raise NotImplementedError

    @property
    def heads(self) -> Sequence[Node]:
        """The tasks of this object that must run after its predecessors."""
        return (self.node,)

    @property
    def tails(self) -> Sequence[Node]:
        """The tasks of this object that its successors must wait for."""
        return (self.node,)

    def after(
        self, *parents: Linked | Sequence[Linked], rule: RuleName | TriggerRule | None = None
    ) -> Self:
        """Run after ``parents``, without using their results. Return the object itself.

        Args:
            parents: Tasks, or lists of them.
            rule: Evaluate a separate trigger rule for these parents. The task runs if the rules of
                all groups of parents allow it; the task's own rule excludes these parents.
        """
        _link(parents, [self])
        if rule is not None:
            for head in self.heads:
                head.add_separate_rule(_tails_of(parents), _trigger_rule(rule))
        return self

    def as_setup(self) -> Self:
        """Make this the setup of other tasks, which run only if it has succeeded.

        These are all tasks between the setup and its teardowns. Return the object itself.
        """
        self.node.is_setup = True
        return self

    def as_teardown(
        self,
        *,
        setups: Linked | Sequence[Linked] = (),
        on_failure_fail_dagrun: bool = False,
    ) -> Teardown:
        """Make this a teardown: it runs after all tasks between it and its setups have ended.

        It runs whatever the final states of these tasks are. If it fails, the run fails only if
        ``on_failure_fail_dagrun`` is set. Used as a context manager, it runs after the tasks that
        are created inside, and its setups run before them.
        """
        self.node.become_teardown(_tails_of(setups), fails_run=on_failure_fail_dagrun)
        return Teardown(self.node)

    def __rshift__(self, other: Other) -> Other:
        _link([self], [other])
        return other

    def __lshift__(self, other: Other) -> Other:
        _link([other], [self])
        return other

    def __rrshift__(self, other: Sequence[Linked]) -> Self:
        _link([other], [self])
        return self

    def __rlshift__(self, other: Sequence[Linked]) -> Self:
        _link([self], [other])
        return self


class Teardown(Linked):
    """A task that cleans up after its setups."""

    def __init__(self, node: Node) -> None:
        self._of = node
        self._first_inside: list[int] = []

    @property
    def node(self) -> Node:
        """The task it represents."""
        return self._of

    def __enter__(self) -> Self:
        self._first_inside.append(len(self._of.dag.nodes))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        first = self._first_inside.pop()
        if kind is None:
            self._of.surround(self._of.dag.nodes[first:])


# Derived from Any, so that type checkers accept it in place of the result.
class Ref(Linked, Items, Any, Generic[R_co]):  # type: ignore[misc]
    """The result of a task that has not run yet.

    Type checkers accept it in place of the result. Pass it to other tasks, select a part of it
    with ``ref["key"]``, or order tasks with ``.after(...)``, ``>>`` and ``<<``. Any other use
    raises ``ReferenceMisused``, which names the line.
    """

    def __new__(cls, node: Node, keys: tuple[str | int, ...] = ()) -> Self:
        return object.__new__(cls)  # Any.__new__ passes arguments, which object refuses

    def __init__(self, node: Node, keys: tuple[str | int, ...] = ()) -> None:
        self._of = node
        self._keys = keys

    @property
    def node(self) -> Node:
        """The task whose result it is."""
        return self._of

    @property
    def output(self) -> Self:
        """The reference itself, so that a mapped operator can be used like an unmapped one."""
        return self

    @property
    def keys_inside(self) -> tuple[str | int, ...]:
        """The keys that select a part of the result; empty for the whole result."""
        return self._keys

    def __getitem__(self, key: str | int) -> Ref[Any]:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise misused(self._label(), "a slice, or a key that is neither text nor a number")
        return Ref(self._of, (*self._keys, key))

    def _label(self) -> str:
        return self._of.task_id + "".join(f"[{key!r}]" for key in self._keys)

    def _source(self) -> Source:
        if self._keys:
            raise dag_error(
                f"a task can expand over a whole result, not over {self!r}; "
                "let a task return that list"
            )
        return Source(parent=self._of)

    @property
    def binding(self) -> FromTask:
        """The binding that resolves to the value."""
        return FromTask(self._of.task_index, self._keys)


def _heads_of(value: object) -> list[Node]:
    """Return the tasks that run first in a reference, an operator, a group, or a list of these."""
    return [node for item in _linked_in(value) for node in item.heads]


def _tails_of(value: object) -> list[Node]:
    return [node for item in _linked_in(value) for node in item.tails]


def _linked_in(value: object) -> list[Linked]:
    if isinstance(value, Linked):
        return [value]
    if isinstance(value, list | tuple):
        return [found for item in value for found in _linked_in(item)]
    raise dag_error(f"{value!r} is not a task; call the task first, inside the DAG")


def _link(parents: Sequence[object], children: Sequence[object]) -> None:
    tails = _tails_of(parents)
    for child in _heads_of(children):
        for parent in tails:
            child.run_after(parent)


def _trigger_rule(rule: RuleName | TriggerRule) -> TriggerRule:
    try:
        return rule_of(rule, "rule")
    except ValueError as exc:
        raise dag_error(str(exc)) from exc


def chain(*items: Linked | Sequence[Linked]) -> None:
    """Run tasks one after the other; a list contains tasks that run in parallel.

    If two lists are next to each other, they are linked item by item, as in Airflow, so they must
    have the same length.

    Raises:
        DagError: If the lengths of two such lists differ, or an item is not a task.
    """
    for left, right in pairwise(items):
        if isinstance(left, list | tuple) and isinstance(right, list | tuple):
            if len(left) != len(right):
                raise dag_error(
                    f"chain() links neighbouring lists item by item, but one has {len(left)} "
                    f"items and the next {len(right)}"
                )
            for one, other in zip(left, right, strict=True):
                _link([one], [other])
        else:
            _link([left], [right])
