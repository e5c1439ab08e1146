"""Loops: groups whose tasks run round after round until a condition is met."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from aioflow.author.binding import FromTask
from aioflow.author.items import Previous
from aioflow.author.node import Loop, Node, Part, Source
from aioflow.author.ref import Linked, Ref
from aioflow.author.source_location import dag_error
from aioflow.author.task import TaskFunction

__all__ = (
    "MAX_ROUNDS",
    "ONE_ROUND",
    "GroupRef",
    "LoopRef",
    "Until",
    "add_decider",
    "check_loop",
    "value_of",
    "with_previous",
)

MAX_ROUNDS = 100

R_co = TypeVar("R_co", covariant=True)

Until = Callable[..., object] | TaskFunction[..., Any]
"""The condition that ends a loop: a function or a task that takes the value of a round."""

ONE_ROUND = (Source(values=(None,)),)
"""The initial source of the tasks of a loop; later rounds are added to the first one."""


class GroupRef(Ref[R_co]):
    """The result of a group: that of one of its tasks, but linked as the whole group."""

    def __new__(cls, node: Node, keys: tuple[str | int, ...], group: Linked) -> Self:
        return super().__new__(cls, node, keys)

    def __init__(self, node: Node, keys: tuple[str | int, ...], group: Linked) -> None:
        super().__init__(node, keys)
        self._group = group

    @property
    def heads(self) -> Sequence[Node]:
        return self._group.heads

    @property
    def tails(self) -> Sequence[Node]:
        return self._group.tails


class LoopRef(GroupRef[R_co], Generic[R_co]):
    """The result of a loop: the value of its last round."""

    def __getitem__(self, key: str | int) -> Ref[Any]:
        part = super().__getitem__(key)
        return LoopRef(self.node, part.keys_inside, self._group)

    @property
    def binding(self) -> FromTask:
        """The binding that resolves to the value."""
        return FromTask(self.node.position, self.keys_inside, is_last=True)

    @property
    def rounds(self) -> Ref[Sequence[R_co]]:
        """The values of all rounds, in order. A task can expand over them."""
        if self.keys_inside:
            raise dag_error(f"{self!r} has no rounds; take those of the whole loop")
        return GroupRef(self.node, (), self._group)

    def _source(self) -> Source:
        raise dag_error(
            f"a task cannot expand over what the loop {self._label()!r} comes to; "
            "expand over its .rounds, or let a task behind it return the list"
        )


def check_loop(until: object, max_rounds: object, owner: str) -> None:
    """Raise if the options of a loop are invalid.

    Raises:
        DagError: If ``until`` is neither a function nor a task, or ``max_rounds`` is not a whole
            number of at least 1.
    """
    if not (inspect.isfunction(until) or isinstance(until, TaskFunction)):
        raise dag_error(f"{owner}: until takes a function or a task, got {until!r}")
    if isinstance(max_rounds, bool) or not isinstance(max_rounds, int) or max_rounds < 1:
        raise dag_error(
            f"{owner}: max_rounds must be a whole number of at least 1, got {max_rounds!r}"
        )


def with_previous(
    fn: Callable[..., Any], group: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call the function of a loop, with a ``Previous`` for its parameter ``previous``, if any."""
    signature = inspect.signature(fn)
    if "previous" not in signature.parameters:
        return fn(*args, **kwargs)
    bound = signature.bind_partial(*args, **kwargs)
    default = signature.parameters["previous"].default
    first = bound.arguments.get("previous", None if default is inspect.Parameter.empty else default)
    bound.arguments["previous"] = Previous(group, first)
    return fn(*bound.args, **bound.kwargs)


def value_of(returned: object, inside: Sequence[Node]) -> Ref[Any]:
    """Return the reference to the value of a round.

    Raises:
        DagError: If it is not the whole result of one of the loop's tasks.
    """
    if not isinstance(returned, Ref) or returned.node not in inside or returned.keys_inside:
        raise dag_error(
            f"a loop has to return the whole result of one of its tasks, it returned {returned!r}"
        )
    return returned


def add_decider(
    until: Until, returned: Ref[Any], inside: Sequence[Node], tails: Sequence[Node], max_rounds: int
) -> None:
    """Add the task that evaluates the condition after all others, and mark them all as the loop.

    Args:
        returned: The reference to the value of a round.
        inside: The tasks of the loop.
        tails: The tasks of the loop that have no child in it.
    """
    task = until if isinstance(until, TaskFunction) else TaskFunction(until, {}, is_sensor=False)
    decider = task.override(task_id="until").as_part(Part.UNTIL)(returned).node
    if decider.sensor is not None:
        raise dag_error(f"{decider.task_id!r} is a sensor; until takes a function or a task")
    for tail in tails:
        decider.run_after(tail)
    loop = Loop(max_rounds, returned.node.position, decider.position)
    for node in (*inside, decider):
        node.loop = loop
