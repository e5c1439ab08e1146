"""References to future results, and the dependencies they create."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Generic, Self, TypeVar

from aioflow.author.binding import FromTask
from aioflow.author.items import Items
from aioflow.author.node import Node, Source
from aioflow.author.options import RuleName, rule_of
from aioflow.author.source_location import dag_error, misused
from aioflow.model.states import TriggerRule

__all__ = ("Linked", "Ref", "Teardown", "chain")

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
        """The tasks that run first if this comes after others."""
        return (self.node,)

    @property
    def tails(self) -> Sequence[Node]:
        """The tasks that others wait for if they come after this."""
        return (self.node,)

    def after(
        self, *parents: Linked | Sequence[Linked], rule: RuleName | TriggerRule | None = None
    ) -> Self:
        """Run after these tasks, without using their results. Returns itself.

        Args:
            parents: Tasks, or lists of them.
            rule: Evaluate a separate trigger rule for these parents. The task runs if the rules of
                all groups of parents allow it; the task's own rule excludes these parents.
        """
        _link(parents, [self])
        if rule is not None:
            for head in self.heads:
                head.add_separate_rule(_tails_of(parents), _rule(rule))
        return self

    def as_setup(self) -> Self:
        """Make this the setup of other tasks: they run only if it has succeeded.

        This applies to all tasks between this and its teardowns. Returns itself.
        """
        self.node.is_setup = True
        return self

    def as_teardown(
        self,
        *,
        setups: Linked | Sequence[Linked] = (),
        on_failure_fail_dagrun: bool = False,
    ) -> Teardown:
        """Run after everything between its setups and this has ended, in whatever state.

        Its failure does not fail the run, unless ``on_failure_fail_dagrun`` is set. As a context
        manager it comes after the tasks that are created inside, and its setups before them.
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
    with ``ref["key"]``, order tasks with ``.after(...)``, ``>>`` and ``<<``. Any other use raises
    ``ReferenceMisused`` with the line.
    """

    def __new__(cls, node: Node, keys: tuple[str | int, ...] = ()) -> Self:
        return object.__new__(cls)  # that of Any passes on arguments, which object refuses

    def __init__(self, node: Node, keys: tuple[str | int, ...] = ()) -> None:
        self._of = node
        self._keys = keys

    @property
    def node(self) -> Node:
        """The task whose result it is."""
        return self._of

    @property
    def output(self) -> Self:
        """Itself, so that a mapped operator can be used like one that is not mapped."""
        return self

    @property
    def keys_inside(self) -> tuple[str | int, ...]:
        """The keys that select a part of the result; empty for the whole."""
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
        return FromTask(self._of.position, self._keys)


def _heads_of(value: object) -> list[Node]:
    """Return the tasks that run first in references, operators, groups or lists of them."""
    return [node for item in _items(value) for node in item.heads]


def _tails_of(value: object) -> list[Node]:
    return [node for item in _items(value) for node in item.tails]


def _items(value: object) -> list[Linked]:
    if isinstance(value, Linked):
        return [value]
    if isinstance(value, list | tuple):
        return [found for item in value for found in _items(item)]
    raise dag_error(f"{value!r} is no task; call the task first, inside the DAG")


def _link(parents: Sequence[object], children: Sequence[object]) -> None:
    tails = _tails_of(parents)
    for child in _heads_of(children):
        for parent in tails:
            child.run_after(parent)


def _rule(rule: RuleName | TriggerRule) -> TriggerRule:
    try:
        return rule_of(rule, "rule")
    except ValueError as exc:
        raise dag_error(str(exc)) from exc


def chain(*items: Linked | Sequence[Linked]) -> None:
    """Run tasks one after the other; a list contains tasks that run in parallel.

    Two lists next to each other are linked item by item, as in Airflow, so they must have the
    same length.

    Raises:
        DagError: If their lengths differ, or an item is no task.
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
