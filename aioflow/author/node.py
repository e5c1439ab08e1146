"""One task of a DAG as its author defined it, its dependencies, and the bindings of its arguments.

A binding is data that says where an argument comes from. The DAG file creates it; the worker
process that runs the task resolves it to a value. A placeholder represents a value that does not
exist while a DAG is defined. It can be passed as an argument, which uses its binding. Any other use
raises an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Literal, NoReturn, Protocol, TypeAlias

import msgspec

from aioflow.author.decode import type_hints
from aioflow.author.deferral import START_FROM_TRIGGER, TRIGGER_KWARGS
from aioflow.author.options import Retry, Settings
from aioflow.author.source_location import SourceLocation, dag_error, misused
from aioflow.errors import UnknownParent
from aioflow.model.dag import Body, EdgeGroup, EventsSpec, Join, SensorSpec, TaskSpec
from aioflow.model.states import TriggerRule

__all__ = (
    "CHOOSING",
    "NO_FILL",
    "Binding",
    "FromContext",
    "FromParameter",
    "FromRound",
    "FromSource",
    "FromTask",
    "LiteralValue",
    "Loop",
    "Nested",
    "NoFill",
    "Node",
    "Part",
    "Placeholder",
    "Source",
    "Spread",
)


class LiteralValue(msgspec.Struct, frozen=True):
    """A value that is written in the DAG file."""

    value: object


class FromTask(msgspec.Struct, frozen=True):
    """The result of a parent, or the part of it that ``keys`` select.

    The worker process handles a parent without a result, or without the key.

    Attributes:
        is_last: Whether the parent is in a loop. The value is then the result of the last round
            that has one.
    """

    task_index: int
    keys: tuple[str | int, ...] = ()
    is_last: bool = False


class FromParameter(msgspec.Struct, frozen=True):
    """A parameter of the DAG: its value in the run's conf, else its default.

    Attributes:
        keys: Select a part of the value, as in ``FromTask``.
    """

    name: str
    keys: tuple[str | int, ...] = ()


class FromContext(msgspec.Struct, frozen=True):
    """A value of the run's context, named as in ``context_value``."""

    name: str


class FromSource(msgspec.Struct, frozen=True):
    """The item that a mapped child gets from the n-th source of its expansion, or a part of it."""

    source: int
    keys: tuple[str | int, ...] = ()


class FromRound(msgspec.Struct, frozen=True):
    """The result of the previous round of a loop, or a part of it.

    Attributes:
        first: The binding of the value for the first round.
    """

    first: object
    keys: tuple[str | int, ...] = ()


class Spread(msgspec.Struct, frozen=True):
    """Parameters of a mapped child, from an item that maps parameter names to values.

    Attributes:
        source: Index of the source in the expansion.
        names: Names that the item may have; ``None`` for any.
        required: Names that the item must have.
        given: Names that the item must not have, because ``partial`` has set them.
    """

    source: int
    names: tuple[str, ...] | None
    required: tuple[str, ...]
    given: tuple[str, ...]

    def refuse(self, item: object) -> str | None:
        """Return the error message for an item; ``None`` if the item is valid."""
        if not isinstance(item, Mapping):
            return f"expand_kwargs() takes mappings, and this item is a {type(item).__name__}"
        for name in item:
            if name in self.given:
                return f"an item of expand_kwargs() gives {name!r}, which partial() gives, too"
            if not isinstance(name, str) or (self.names is not None and name not in self.names):
                return f"an item of expand_kwargs() gives {name!r}, which is not a parameter"
        missing = [name for name in self.required if name not in item]
        if missing:
            return f"an item of expand_kwargs() does not give {missing[0]!r}"
        return None


class Nested(msgspec.Struct, frozen=True):
    """A list, tuple or dict of a DAG file with bindings somewhere inside.

    Every binding in ``value`` is resolved, at any depth of lists, tuples and dict values. All
    other values are used unchanged.
    """

    value: object


Binding: TypeAlias = (
    LiteralValue | FromTask | FromParameter | FromContext | FromSource | FromRound | Nested | Spread
)


class Part(Enum):
    """The role of a task in its DAG. Most tasks do work.

    A branch selects which of its children run. A short circuit decides whether anything after it
    runs. The ``until`` task of a loop decides whether the loop ends.
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
"""Roles of tasks whose result selects which other tasks run."""


class NoFill(Enum):
    """The type of the marker for a missing fill value."""

    NO_FILL = "no fill"


NO_FILL = NoFill.NO_FILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source that a task is mapped over: a parent's list, literal values, or joined lists.

    Attributes:
        parameter: The argument of ``expand``; empty for a part of another source.
        join, parts: See ``model.MapSource``.
        fill: The value that ``zip_longest`` uses for missing items.
        functions: Functions applied to each item, in order.
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
        """The single lists of which the source consists, from left to right."""
        if not self.join:
            yield self
        for part in self.parts:
            yield from part.leaves

    @property
    def parents(self) -> Iterator[Node]:
        """The tasks whose results are among the lists of the source."""
        return (leaf.parent for leaf in self.leaves if leaf.parent is not None)


@dataclass(frozen=True, slots=True)
class Loop:
    """A group of tasks that run in rounds, until a condition is met.

    Attributes:
        value: Index of the task whose result is the value of a round.
        until: Index of the task that decides whether the loop ends.
    """

    max_rounds: int
    value: int
    until: int


class Siblings(Protocol):
    """The part of a DAG that its tasks use."""

    nodes: list[Node]


@dataclass(eq=False, kw_only=True)
class Node:
    """One task of a DAG.

    Attributes:
        dag: The DAG it belongs to.
        task_index: Its index in the DAG.
        fn: The bare function; ``None`` for an operator.
        operator: The class; ``None`` for a function.
        arguments: Bindings by parameter name. A parameter without one keeps its default.
        sources: The sources that it is mapped over, in order; empty for an unmapped task.
        along: Indexes of the other tasks in its mapped group.
        loop: The loop that it is in, if any. ``sources`` then has a single item.
        parents: Indexes of all tasks it depends on.
        argument_parents: Indexes of the tasks whose results are its arguments.
        groups: Groups of parents with a separate trigger rule, in the order they were named.
        part: Its role in the DAG.
        group: The id of the innermost group it is in, or an empty string.
        is_setup, is_teardown, fails_run: See ``model.TaskSpec``.
        spec: The description of the task; ``None`` until ``describe`` has set it.
        instance: The operator instance that the author created. It is never executed.
        starts: Whether it starts deferred, if that was passed to ``partial``, else ``None``.
        events: How an operator handles many events; ``None`` if it resumes at the first.
    """

    dag: Siblings
    task_id: str
    task_index: int
    kind: Literal["function", "operator"]
    settings: Settings
    source_location: SourceLocation
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
        """The retry options as the author set them, including ``on`` and ``unless``."""
        return self.settings.retry

    @property
    def sensor(self) -> SensorSpec | None:
        """How the task polls; ``None`` if it is not a sensor."""
        return self.settings.sensor

    @property
    def doc(self) -> str:
        """The docstring of the task's function or class."""
        code = self.fn if self.operator is None else self.operator
        return inspect.cleandoc(getattr(code, "__doc__", None) or "")

    @property
    def is_mapped(self) -> bool:
        """Whether the task is mapped."""
        return bool(self.sources)

    @property
    def owner(self) -> Any:
        """The object that has an operator's start options: its instance, else its class."""
        return self.operator if self.instance is None else self.instance

    @property
    def starts_from_trigger(self) -> bool:
        """Whether the task starts deferred, before any of its code runs."""
        said = (
            getattr(self.owner, START_FROM_TRIGGER, False) if self.starts is None else self.starts
        )
        return bool(said)

    @property
    def makes_items(self) -> bool:
        """Whether the task yields its result item by item."""
        is_generator = self.fn is not None and inspect.isasyncgenfunction(self.fn)
        return not self.is_mapped and (is_generator or self.events is not None)

    @cached_property
    def annotations(self) -> dict[str, Any]:
        """The types of its parameters and, as ``return``, of its result, if they can be resolved.

        Evaluated late, so that a task may name a class that its file defines further down.
        """
        target: Any = self.fn
        if self.operator is not None:
            target = self.operator.__init__
        return type_hints(target)

    def make_operator(self, arguments: Mapping[str, Any]) -> Any:
        """Create a new instance for one execution, from resolved arguments.

        A mapped operator that starts deferred and has ``trigger_kwargs`` as an argument is created
        without calling ``__init__``: the arguments become its attributes.
        """
        operator: Any = self.operator
        if operator is None:
            raise TypeError(f"{self.task_id!r} is a function")
        if not (self.is_mapped and self.starts_from_trigger and TRIGGER_KWARGS in arguments):
            made = operator(**arguments)
            made.task_id = self.task_id
            return made
        made = operator.__new__(operator)
        vars(made).update(arguments, task_id=self.task_id)
        return made

    def run_after(self, parent: Node) -> None:
        """Make this task depend on another. Idempotent.

        Raises:
            UnknownParent: If the other task belongs to another DAG.
        """
        if parent.dag is not self.dag:
            raise UnknownParent(self.task_id, parent.task_id)
        if parent is self:
            raise dag_error(f"task {self.task_id!r} cannot depend on itself")
        self.parents.add(parent.task_index)

    def add_separate_rule(self, parents: Sequence[Node], rule: TriggerRule) -> None:
        """Evaluate a separate trigger rule for ``parents``, and exclude them from the task's rule.

        Idempotent for the same parents with the same rule.
        """
        group = EdgeGroup(tuple(sorted({parent.task_index for parent in parents})), rule)
        if group.parents and group not in self.groups:
            self.groups.append(group)

    def become_teardown(self, setups: Sequence[Node], *, fails_run: bool) -> None:
        """Make this task the teardown of ``setups``. It runs however the tasks between them end."""
        self.is_teardown = True
        self.fails_run = fails_run
        for setup in setups:
            setup.is_setup = True
            self.run_after(setup)

    @property
    def rule(self) -> TriggerRule:
        """The effective trigger rule, with the default applied."""
        if self.settings.rule is not None:
            return self.settings.rule
        if self.is_teardown:
            return TriggerRule.ALL_DONE_SETUP_SUCCESS
        return TriggerRule.ALL_SUCCESS

    def surround(self, inside: Sequence[Node]) -> None:
        """Make this task run after all tasks in ``inside``, and those tasks after its setups."""
        nodes = self.dag.nodes
        setups = [task_index for task_index in sorted(self.parents) if nodes[task_index].is_setup]
        own = {node.task_index for node in inside}
        followed = {parent for node in inside for parent in node.parents}
        for node in inside:
            if node is self:
                continue
            if not node.parents & own:
                node.parents.update(setups)
            if node.task_index not in followed:
                self.run_after(node)


def _refused_use(operation: str) -> Callable[..., Any]:
    def refuse(self: Placeholder, *_: object) -> NoReturn:
        self._refuse(operation)

    return refuse


class Placeholder:
    """Base class of all references. A reference can only be passed as an argument."""

    def _label(self) -> str:
        """Return the author's name for the value."""
        raise NotImplementedError

    @property
    def binding(self) -> Binding:
        """The binding that resolves to the value."""
        raise NotImplementedError

    def _refuse(self, operation: str) -> NoReturn:
        raise misused(self._label(), operation)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._label()}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            # Python itself, dataclasses and copy probe for such names and expect an AttributeError.
            raise AttributeError(name)
        return self._refuse(f".{name}")

    __hash__ = object.__hash__
    __bool__ = _refused_use("a condition")
    __iter__ = _refused_use("a loop or unpacking")
    __len__ = _refused_use("len()")
    __contains__ = _refused_use("`in`")
    __str__ = _refused_use("text")
    __format__ = _refused_use("text")
    __int__ = _refused_use("int()")
    __float__ = _refused_use("float()")
    __index__ = _refused_use("an index")
    __call__ = _refused_use("a call")
    __eq__ = _refused_use("a comparison")
    __ne__ = _refused_use("a comparison")
    __lt__ = _refused_use("a comparison")
    __le__ = _refused_use("a comparison")
    __gt__ = _refused_use("a comparison")
    __ge__ = _refused_use("a comparison")
    __add__ = __radd__ = _refused_use("arithmetic")
    __sub__ = __rsub__ = _refused_use("arithmetic")
    __mul__ = __rmul__ = _refused_use("arithmetic")
    __truediv__ = __rtruediv__ = _refused_use("arithmetic")
    __mod__ = __rmod__ = _refused_use("arithmetic")
