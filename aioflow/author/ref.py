"""References to results that do not exist yet, and the edges they draw."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Generic, Self, TypeVar

from aioflow.author.binding import FromTask
from aioflow.author.items import Items
from aioflow.author.node import Node, Source
from aioflow.author.options import RuleName, rule_of
from aioflow.author.source_location import misused, wrong
from aioflow.model.states import TriggerRule

__all__ = ("Linked", "Ref", "Teardown", "chain")

R_co = TypeVar("R_co", covariant=True)
Other = TypeVar("Other", bound="Linked | Sequence[Linked]")


class Linked:
    """What stands for a task of a DAG: a reference to its result, or an operator."""

    @property
    def node(self) -> Node:
        """The task it stands for."""
        raise NotImplementedError

    @property
    def heads(self) -> Sequence[Node]:
        """The tasks that run first where it is put after others."""
        return (self.node,)

    @property
    def tails(self) -> Sequence[Node]:
        """The tasks that others wait for where they are put after it."""
        return (self.node,)

    def after(
        self, *parents: Linked | Sequence[Linked], rule: RuleName | TriggerRule | None = None
    ) -> Self:
        """Run after these tasks, without taking their results. Returns itself.

        Args:
            parents: Tasks, or lists of them.
            rule: Judge these parents together by this rule, apart from the others: the task runs
                when every group says so, and the rule of the task leaves them out.
        """
        _link(parents, [self])
        if rule is not None:
            for head in self.heads:
                head.judge_apart(_tails_of(parents), _rule(rule))
        return self

    def as_setup(self) -> Self:
        """Make what other tasks need: none of them runs unless this has succeeded.

        Those are all that come after it and before its teardowns. Returns itself.
        """
        self.node.is_setup = True
        return self

    def as_teardown(
        self,
        *,
        setups: Linked | Sequence[Linked] = (),
        on_failure_fail_dagrun: bool = False,
    ) -> Teardown:
        """Run once everything between its setups and this has ended, however it did.

        A run does not care how it ends, unless ``on_failure_fail_dagrun``. In a ``with``, it
        comes after the tasks that are made inside, and its setups before them.
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
    """A task that takes away what its setups have made."""

    def __init__(self, node: Node) -> None:
        self._of = node
        self._first_inside: list[int] = []

    @property
    def node(self) -> Node:
        """The task it stands for."""
        return self._of

    def __enter__(self) -> Self:
        self._first_inside.append(len(self._of.dag.nodes))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        first = self._first_inside.pop()
        if kind is None:
            self._of.surround(self._of.dag.nodes[first:])


# Deriving from Any makes it fit wherever the result itself is asked for.
class Ref(Linked, Items, Any, Generic[R_co]):  # type: ignore[misc]
    """The result of a task that has not run yet.

    For type checkers it fits wherever the result does. Pass it to other tasks, take a part of
    it with ``ref["key"]``, order tasks with ``.after(...)``, ``>>`` and ``<<``; anything else
    raises ``ReferenceMisused`` with the line.
    """

    def __new__(cls, node: Node, keys: tuple[str | int, ...] = ()) -> Self:
        return object.__new__(cls)  # the one of Any hands arguments on that object refuses

    def __init__(self, node: Node, keys: tuple[str | int, ...] = ()) -> None:
        self._of = node
        self._keys = keys

    @property
    def node(self) -> Node:
        """The task whose result it is."""
        return self._of

    @property
    def output(self) -> Self:
        """Itself: a mapped operator is a reference, and reads like one that is not mapped."""
        return self

    @property
    def keys_inside(self) -> tuple[str | int, ...]:
        """What leads to the part of the result that is meant."""
        return self._keys

    def __getitem__(self, key: str | int) -> Ref[Any]:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise misused(self._label(), "a slice, or a key that is neither text nor a number")
        return Ref(self._of, (*self._keys, key))

    def _label(self) -> str:
        return self._of.task_id + "".join(f"[{key!r}]" for key in self._keys)

    def _source(self) -> Source:
        if self._keys:
            raise wrong(
                f"a task can expand over a whole result, not over {self!r}; "
                "let a task return that list"
            )
        return Source(parent=self._of)

    @property
    def binding(self) -> FromTask:
        """Where the value will come from."""
        return FromTask(self._of.position, self._keys)


def _heads_of(value: object) -> list[Node]:
    """Return the tasks that run first of references, operators, groups or lists of them."""
    return [node for item in _items(value) for node in item.heads]


def _tails_of(value: object) -> list[Node]:
    return [node for item in _items(value) for node in item.tails]


def _items(value: object) -> list[Linked]:
    if isinstance(value, Linked):
        return [value]
    if isinstance(value, list | tuple):
        return [found for item in value for found in _items(item)]
    raise wrong(f"{value!r} is no task; call the task first, inside the DAG")


def _link(parents: Sequence[object], children: Sequence[object]) -> None:
    tails = _tails_of(parents)
    for child in _heads_of(children):
        for parent in tails:
            child.run_after(parent)


def _rule(rule: RuleName | TriggerRule) -> TriggerRule:
    try:
        return rule_of(rule, "rule")
    except ValueError as exc:
        raise wrong(str(exc)) from exc


def chain(*items: Linked | Sequence[Linked]) -> None:
    """Run tasks one after the other; a list stands for tasks side by side.

    Two lists next to each other are linked item by item, as in Airflow, and so must be of the
    same length.

    Raises:
        DagError: If they are not, or an item is no task.
    """
    for left, right in pairwise(items):
        if isinstance(left, list | tuple) and isinstance(right, list | tuple):
            if len(left) != len(right):
                raise wrong(
                    f"chain() links neighbouring lists item by item, but one has {len(left)} "
                    f"items and the next {len(right)}"
                )
            for one, other in zip(left, right, strict=True):
                _link([one], [other])
        else:
            _link([left], [right])
