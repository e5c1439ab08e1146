"""One task of a DAG as its author described it, and how two of them are linked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Literal, Protocol

from aioflow.author.annotations import hints
from aioflow.author.binding import Binding
from aioflow.author.options import Settings
from aioflow.author.retry import Retry
from aioflow.author.source_location import Place, wrong
from aioflow.author.start import START, START_KWARGS
from aioflow.errors import UnknownParent
from aioflow.model.dag import Body, EdgeGroup, EventsSpec, Join, SensorSpec, TaskSpec
from aioflow.model.states import TriggerRule

__all__ = ("CHOOSING", "NO_FILL", "Loop", "NoFill", "Node", "Part", "Source")


class Part(Enum):
    """What a task does for the others: most work.

    A branch chooses which of its children run; a short circuit, whether anything after it does.
    What stands for ``until`` says whether its loop has gone round often enough.
    """

    WORK = "work"
    BRANCH = "branch"
    SHORT_CIRCUIT = "short_circuit"
    GENTLE_SHORT_CIRCUIT = "gentle_short_circuit"
    SETUP = "setup"
    TEARDOWN = "teardown"
    TEARDOWN_THAT_MATTERS = "teardown_that_matters"
    UNTIL = "until"


CHOOSING = frozenset({Part.BRANCH, Part.SHORT_CIRCUIT, Part.GENTLE_SHORT_CIRCUIT})
"""Tasks whose result says which others run."""


class NoFill(Enum):
    """Says that nothing stands in for what a list does not have."""

    NO_FILL = "no fill"


NO_FILL = NoFill.NO_FILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a task is mapped over: a parent's list, the values themselves, or lists joined.

    Attributes:
        parameter: The argument of ``expand`` that it is; empty for a part of another.
        join, parts: See ``model.MapSource``.
        fill: What ``zip_longest`` puts in where a part has no item.
        functions: What each item is passed through, in order.
    """

    parameter: str = ""
    parent: Node | None = None
    values: Sequence[object] = ()
    join: Join = ""
    parts: tuple[Source, ...] = ()
    fill: object = NO_FILL
    functions: tuple[Callable[[Any], Any], ...] = ()

    @property
    def leaves(self) -> Iterator[Source]:
        """The lists it is made of, from left to right."""
        if not self.join:
            yield self
        for part in self.parts:
            yield from part.leaves

    @property
    def parents(self) -> Iterator[Node]:
        """Whose lists those are."""
        return (leaf.parent for leaf in self.leaves if leaf.parent is not None)


@dataclass(frozen=True, slots=True)
class Loop:
    """Tasks that run again, round after round.

    Attributes:
        value: The position of the one whose result is what a round comes to.
        until: That of the one that says whether it was good.
    """

    max_rounds: int
    value: int
    until: int


class Siblings(Protocol):
    """A DAG, as far as a task of it knows it."""

    nodes: list[Node]


@dataclass(eq=False, kw_only=True)
class Node:
    """One task of a DAG.

    Attributes:
        dag: The DAG it belongs to.
        position: Its index in the DAG.
        fn: The bare function; ``None`` for an operator.
        operator: The class; ``None`` for a function.
        arguments: Those that are bound; a parameter that is missing keeps its default.
        sources: What it is mapped over, in order; empty for an unmapped task.
        along: Positions of the other tasks of the mapped group it is in.
        loop: The one it is in; its sources are but one item then.
        parents: Positions of all it depends on.
        argument_parents: Positions of those whose results it is given.
        groups: Parents that a rule of their own is asked of, in the order they were named.
        part: What its result says to the others.
        group: The id of the innermost group it is in; empty for none.
        is_setup, is_teardown, fails_run: See ``model.TaskSpec``.
        spec: Set by ``describe``.
        instance: Of an operator, the one its author made; never run.
        starts: Whether it waits straight from its start, where ``partial`` has said so.
        events: How an operator takes many events, if it does.
    """

    dag: Siblings
    task_id: str
    position: int
    kind: Literal["function", "operator"]
    settings: Settings
    place: Place
    body: Body
    fn: Callable[..., Any] | None = None
    operator: type[Any] | None = None
    arguments: dict[str, Binding] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    along: frozenset[int] = frozenset()
    loop: Loop | None = None
    parents: set[int] = field(default_factory=set)
    argument_parents: set[int] = field(default_factory=set)
    groups: list[EdgeGroup] = field(default_factory=list)
    part: Part = Part.WORK
    group: str = ""
    is_setup: bool = False
    is_teardown: bool = False
    fails_run: bool = False
    spec: TaskSpec | None = None
    instance: object = None
    starts: bool | None = None
    events: EventsSpec | None = None

    @property
    def retry(self) -> Retry | None:
        """What the author said about further tries, with ``on`` and ``unless``."""
        return self.settings.retry

    @property
    def sensor(self) -> SensorSpec | None:
        """How it looks, if it is a sensor."""
        return self.settings.sensor

    @property
    def doc(self) -> str:
        """The docstring of its function or class."""
        code = self.fn if self.operator is None else self.operator
        return inspect.cleandoc(getattr(code, "__doc__", None) or "")

    @property
    def is_mapped(self) -> bool:
        """Whether it fans out."""
        return bool(self.sources)

    @property
    def owner(self) -> Any:
        """What says of an operator how it waits: its instance, else its class."""
        return self.operator if self.instance is None else self.instance

    @property
    def starts_from_trigger(self) -> bool:
        """Whether it waits for a trigger before anything of it runs."""
        said = getattr(self.owner, START, False) if self.starts is None else self.starts
        return bool(said)

    @property
    def makes_items(self) -> bool:
        """Whether its result comes item by item."""
        is_generator = self.fn is not None and inspect.isasyncgenfunction(self.fn)
        return not self.is_mapped and (is_generator or self.events is not None)

    @cached_property
    def annotations(self) -> dict[str, Any]:
        """The types of its parameters, and ``return``; what cannot be resolved is missing.

        Looked up late, so that a task may name a class that its file defines further down.
        """
        target: Any = self.fn
        if self.operator is not None:
            target = self.operator.__init__
        return hints(target)

    def make_operator(self, arguments: Mapping[str, Any]) -> Any:
        """Make a new instance for one start, from resolved arguments.

        One that is mapped over what it waits for is made without its ``__init__``: the arguments
        are its attributes.
        """
        operator: Any = self.operator
        if operator is None:
            raise TypeError(f"{self.task_id!r} is a function")
        if not (self.is_mapped and self.starts_from_trigger and START_KWARGS in arguments):
            made = operator(**arguments)
            made.task_id = self.task_id
            return made
        made = operator.__new__(operator)
        vars(made).update(arguments, task_id=self.task_id)
        return made

    def run_after(self, parent: Node) -> None:
        """Make this task depend on another; a second time changes nothing.

        Raises:
            UnknownParent: If that one belongs to another DAG.
        """
        if parent.dag is not self.dag:
            raise UnknownParent(self.task_id, parent.task_id)
        if parent is self:
            raise wrong(f"task {self.task_id!r} cannot depend on itself")
        self.parents.add(parent.position)

    def judge_apart(self, parents: Sequence[Node], rule: TriggerRule) -> None:
        """Ask a rule of its own of these parents, which the rule of the task leaves out then.

        Naming the same parents with the same rule a second time changes nothing.
        """
        group = EdgeGroup(tuple(sorted({parent.position for parent in parents})), rule)
        if group.parents and group not in self.groups:
            self.groups.append(group)

    def become_teardown(self, setups: Sequence[Node], *, fails_run: bool) -> None:
        """Take away what these setups made, whatever became of the tasks between."""
        self.is_teardown = True
        self.fails_run = fails_run
        for setup in setups:
            setup.is_setup = True
            self.run_after(setup)

    @property
    def rule(self) -> TriggerRule:
        """What is asked of its parents, also where its author said nothing."""
        if self.settings.rule is not None:
            return self.settings.rule
        if self.is_teardown:
            return TriggerRule.ALL_DONE_SETUP_SUCCESS
        return TriggerRule.ALL_SUCCESS

    def surround(self, inside: Sequence[Node]) -> None:
        """Run after all of these tasks, and have them run after the setups of this one."""
        nodes = self.dag.nodes
        setups = [position for position in sorted(self.parents) if nodes[position].is_setup]
        own = {node.position for node in inside}
        followed = {parent for node in inside for parent in node.parents}
        for node in inside:
            if node is self:
                continue
            if not node.parents & own:
                node.parents.update(setups)
            if node.position not in followed:
                self.run_after(node)
