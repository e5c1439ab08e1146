"""Loops: groups whose tasks run again, round after round, until one of them says it is good."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from aioflow.author.binding import FromTask
from aioflow.author.items import Previous
from aioflow.author.node import Loop, Node, Part, Source
from aioflow.author.ref import Linked, Ref
from aioflow.author.source_location import wrong
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
"""What says whether a round was good, by its value: a function, or a task."""

ONE_ROUND = (Source(values=(None,)),)
"""What the tasks of a loop are mapped over: rounds are added to the first one."""


class GroupRef(Ref[R_co]):
    """What a group returned: the result of one of its tasks, linked as the whole group."""

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
    """What a loop comes to: the value of its last round."""

    def __getitem__(self, key: str | int) -> Ref[Any]:
        part = super().__getitem__(key)
        return LoopRef(self.node, part.keys_inside, self._group)

    @property
    def binding(self) -> FromTask:
        """Where the value will come from."""
        return FromTask(self.node.position, self.keys_inside, is_last=True)

    @property
    def rounds(self) -> Ref[Sequence[R_co]]:
        """The values of all its rounds, in order; one can map over them."""
        if self.keys_inside:
            raise wrong(f"{self!r} has no rounds; take those of the whole loop")
        return GroupRef(self.node, (), self._group)

    def _source(self) -> Source:
        raise wrong(
            f"a task cannot expand over what the loop {self._label()!r} comes to; "
            "expand over its .rounds, or let a task behind it return the list"
        )


def check_loop(until: object, max_rounds: object, owner: str) -> None:
    """Refuse what makes no loop.

    Raises:
        DagError: If nothing can be asked whether a round was good, or there can be no round.
    """
    if not (inspect.isfunction(until) or isinstance(until, TaskFunction)):
        raise wrong(f"{owner}: until takes a function or a task, got {until!r}")
    if isinstance(max_rounds, bool) or not isinstance(max_rounds, int) or max_rounds < 1:
        raise wrong(f"{owner}: max_rounds must be a whole number of at least 1, got {max_rounds!r}")


def with_previous(
    fn: Callable[..., Any], group: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call the function of a loop; its parameter ``previous``, if it has one, is what it says."""
    signature = inspect.signature(fn)
    if "previous" not in signature.parameters:
        return fn(*args, **kwargs)
    bound = signature.bind_partial(*args, **kwargs)
    default = signature.parameters["previous"].default
    first = bound.arguments.get("previous", None if default is inspect.Parameter.empty else default)
    bound.arguments["previous"] = Previous(group, first)
    return fn(*bound.args, **bound.kwargs)


def value_of(returned: object, inside: Sequence[Node]) -> Ref[Any]:
    """Return what a round comes to.

    Raises:
        DagError: If that is not the result of one of its tasks.
    """
    if not isinstance(returned, Ref) or returned.node not in inside or returned.keys_inside:
        raise wrong(
            f"a loop has to return the whole result of one of its tasks, it returned {returned!r}"
        )
    return returned


def add_decider(
    until: Until, returned: Ref[Any], inside: Sequence[Node], tails: Sequence[Node], max_rounds: int
) -> None:
    """Add the task that decides over each round, behind all others of the loop, and bind them.

    Args:
        returned: What a round comes to.
        inside: The tasks of the loop.
        tails: Those of them that nothing of it comes after.
    """
    task = until if isinstance(until, TaskFunction) else TaskFunction(until, {}, is_sensor=False)
    decider = task.override(task_id="until").as_part(Part.UNTIL)(returned).node
    if decider.sensor is not None:
        raise wrong(f"{decider.task_id!r} is a sensor; until takes a function or a task")
    for tail in tails:
        decider.run_after(tail)
    loop = Loop(max_rounds, returned.node.position, decider.position)
    for node in (*inside, decider):
        node.loop = loop
