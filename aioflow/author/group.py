"""Task groups: tasks under one name, which can be linked to other tasks as a whole.

A loop is a group whose tasks run round after round until a condition is met.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, overload

from aioflow.author.arguments import CallArguments, Mappable
from aioflow.author.dag import DAG, open_dag
from aioflow.author.node import FromTask, Loop, Node, Part, Source
from aioflow.author.options import SensorClassOptions, check_names
from aioflow.author.ref import GroupItem, Items, Linked, Previous, Ref
from aioflow.author.source_location import dag_error
from aioflow.author.task import TaskFunction

__all__ = (
    "MAX_ROUNDS",
    "ONE_ROUND",
    "GroupFunction",
    "GroupOptions",
    "GroupRef",
    "LoopRef",
    "MappedGroup",
    "TaskGroup",
    "Until",
    "add_decider",
    "call_with_previous",
    "check_loop",
    "round_value",
    "task_group",
)

MAX_ROUNDS = 100

R_co = TypeVar("R_co", covariant=True)

Until = Callable[..., object] | TaskFunction[..., Any]
"""The condition that ends a loop: a function or a task that takes the value of a round."""

ONE_ROUND = (Source(values=(None,)),)
"""The initial source of a loop's tasks: one item for the first round. Later rounds are added."""


class GroupRef(Ref[R_co]):
    """The result of a group, which is the result of one of its tasks.

    A dependency on this reference is a dependency on the whole group.
    """

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
        return FromTask(self.node.task_index, self.keys_inside, is_last=True)

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


def call_with_previous(
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


def round_value(returned: object, inside: Sequence[Node]) -> Ref[Any]:
    """Return the reference to the value of a round.

    Raises:
        DagError: If ``returned`` is not the whole result of one of the loop's tasks.
    """
    if not isinstance(returned, Ref) or returned.node not in inside or returned.keys_inside:
        raise dag_error(
            f"a loop has to return the whole result of one of its tasks, it returned {returned!r}"
        )
    return returned


def add_decider(
    until: Until, returned: Ref[Any], inside: Sequence[Node], tails: Sequence[Node], max_rounds: int
) -> None:
    """Add the task that evaluates the condition, and mark all of these tasks as part of the loop.

    Args:
        returned: The reference to the value of a round.
        inside: The tasks of the loop.
        tails: The tasks of the loop that have no child in it. The new task runs after them.
    """
    task = until if isinstance(until, TaskFunction) else TaskFunction(until, {}, is_sensor=False)
    decider = task.override(task_id="until").as_part(Part.UNTIL)(returned).node
    if decider.sensor is not None:
        raise dag_error(f"{decider.task_id!r} is a sensor; until takes a function or a task")
    for tail in tails:
        decider.run_after(tail)
    loop = Loop(max_rounds, returned.node.task_index, decider.task_index)
    for node in (*inside, decider):
        node.loop = loop


P = ParamSpec("P")
R = TypeVar("R")


class GroupOptions(TypedDict, total=False):
    """Options of a task group.

    ``default_args`` are options for its tasks, which override those of the DAG and of enclosing
    groups. With ``prefix_group_id=False`` the ids of its tasks have no prefix.
    """

    prefix_group_id: bool
    default_args: SensorClassOptions
    tooltip: str


class GroupFunctionOptions(GroupOptions, total=False):
    """Options of ``@task_group``."""

    group_id: str


class LoopOptions(GroupFunctionOptions, total=False):
    """Options of ``@task_group`` that make the group a loop."""

    until: Until
    max_rounds: int


class TaskGroup(Linked):
    """A group of tasks: those created inside its ``with`` block.

    The ids of its tasks start with the id of the group and a dot. If the group comes after a task,
    the tasks that have no parent in the group run after that task. If the group comes before a
    task, that task waits for the tasks that have no child in the group; teardowns among them are
    ignored.

    Attributes:
        group_id: Includes the ids of the enclosing groups.
        sources: The sources that all of its tasks are mapped over; empty if it is not mapped.
        is_loop: Whether its tasks run in rounds, until a condition is met.
    """

    def __init__(self, group_id: str, **options: Unpack[GroupOptions]) -> None:
        unknown = options.keys() - GroupOptions.__annotations__.keys()
        if unknown:
            raise dag_error(f"TaskGroup {group_id!r} has no option {unknown.pop()!r}")
        dag = open_dag(f"TaskGroup {group_id!r}")
        self._dag: DAG = dag
        self.group_id = dag.free_task_id(group_id)
        dag.take_name(self.group_id)
        around = dag.open_groups[-1].prefix if dag.open_groups else ""
        self.prefix = f"{self.group_id}." if options.get("prefix_group_id", True) else around
        self.default_args: SensorClassOptions = options.get("default_args", {})
        check_names(self.default_args, is_sensor=True, owner=f"default_args of {group_id!r}")
        self.sources: tuple[Source, ...] = ()
        self.is_loop = False
        self._inside: list[range] = []
        self._first = 0

    def __enter__(self) -> Self:
        self._first = len(self._dag.nodes)
        self._dag.open_groups.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._dag.open_groups.pop()
        self._inside.append(range(self._first, len(self._dag.nodes)))
        if self.sources:
            self._go_along()

    def _go_along(self) -> None:
        """Pair the children of the group's tasks by index.

        Tasks without a parent in the group run after the tasks that the group is mapped over.
        """
        nodes = self.nodes
        own = frozenset(node.task_index for node in nodes)
        for node in nodes:
            node.along = own - {node.task_index}
            if not node.parents & own:
                for maker in (maker for source in self.sources for maker in source.parents):
                    node.run_after(maker)

    def become_loop(self, *, has_items: bool) -> None:
        """Turn the group into a loop, whose tasks run round after round.

        Raises:
            DagError: If the group is mapped, or is in a mapped group or another loop.
        """
        if has_items or self._dag.mapped_group is not None:
            raise dag_error(
                f"group {self.group_id!r} is a loop; that cannot be mapped, nor be in a mapped "
                "group or in another loop"
            )
        self.sources, self.is_loop = ONE_ROUND, True

    def __repr__(self) -> str:
        return f"<TaskGroup {self.group_id}>"

    @property
    def kind(self) -> tuple[str, str]:
        """The kind of mapped group, and what to do instead of expanding a task inside it."""
        if self.is_loop:
            return f"loop {self.group_id!r}", "let one of its tasks go over the list itself"
        return f"mapped group {self.group_id!r}", "that makes one child per item of it already"

    @property
    def nodes(self) -> list[Node]:
        """The tasks of the group, including those of nested groups."""
        return [self._dag.nodes[task_index] for made in self._inside for task_index in made]

    @property
    def node(self) -> Node:
        """Always raises, because a group consists of several tasks."""
        raise dag_error(f"group {self.group_id!r} is not a single task; name one of its tasks")

    @property
    def heads(self) -> Sequence[Node]:
        """The tasks of the group that have no parent in it."""
        own = {node.task_index for node in self.nodes}
        return self._some([node for node in self.nodes if not node.parents & own])

    @property
    def tails(self) -> Sequence[Node]:
        """The tasks of the group that have no child in it, except teardowns."""
        work = [node for node in self.nodes if not node.is_teardown]
        followed = {parent for node in work for parent in node.parents}
        return self._some([node for node in work if node.task_index not in followed])

    def _some(self, nodes: list[Node]) -> list[Node]:
        if not nodes:
            raise dag_error(
                f"group {self.group_id!r} has no tasks to link; make them inside it first"
            )
        return nodes


class _Make(Protocol):
    def __call__(
        self, sources: tuple[Source, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any], /
    ) -> Any: ...


class MappedGroup:
    """A task group with some of its arguments; ``expand`` runs its tasks once per item.

    All of its tasks are mapped over the same items, and children with the same index belong
    together. The trigger rule of a child considers only its parents' children with that index, and
    only their results are passed to the child. A task outside of the group that uses the group's
    result gets the results of all children, as from any mapped task.
    """

    def __init__(self, fn: Callable[..., Any], make: _Make, fixed: Mapping[str, Any]) -> None:
        self._fn = fn
        self._make = make
        self._fixed = fixed

    def expand(self, **mapped: Mappable) -> Any:
        """Create the group; with several lists, its tasks run for each combination.

        Raises:
            DagError: If it is in a mapped group itself, or the arguments do not match.
        """
        owner, arguments = self._begin("expand")
        if not mapped:
            raise dag_error(f"{owner} needs at least one argument to map over")
        both = self._fixed.keys() & mapped.keys()
        if both:
            raise dag_error(f"{owner} got {both.pop()!r} from partial() and from expand()")
        sources = tuple(arguments.source(name, value) for name, value in mapped.items())
        items = {name: GroupItem(sources, number, name) for number, name in enumerate(mapped)}
        return self._make(sources, (), {**self._fixed, **items})

    def expand_kwargs(self, items: Items | Sequence[Mapping[str, Any]]) -> Any:
        """Create the group; each item is a mapping that must contain all remaining parameters.

        Raises:
            DagError: If it is in a mapped group itself, or the arguments do not match.
        """
        _, arguments = self._begin("expand_kwargs")
        sources = (arguments.source("items", items),)
        names = [name for name in inspect.signature(self._fn).parameters if name not in self._fixed]
        given = {name: GroupItem(sources, 0, name, (name,)) for name in names}
        return self._make(sources, (), {**self._fixed, **given})

    def _begin(self, verb: str) -> tuple[str, CallArguments]:
        owner = f"{self._fn.__name__}.{verb}()"
        dag = open_dag(owner)
        if dag.mapped_group is not None:
            raise dag_error(f"{owner}: a mapped group cannot be in another, or in a loop")
        return owner, CallArguments(dag, owner)


class GroupFunction(Generic[P, R_co]):
    """A function that creates a group of tasks when a DAG calls it.

    Attributes:
        fn: The bare function.
    """

    def __init__(self, fn: Callable[P, Any], options: LoopOptions) -> None:
        if not inspect.isfunction(fn):
            raise dag_error(f"@task_group takes a function, got {fn!r}")
        owner = f"@task_group {fn.__name__!r}"
        unknown = options.keys() - LoopOptions.__annotations__.keys()
        if unknown:
            raise dag_error(f"{owner} has no option {unknown.pop()!r}")
        if "until" in options:
            check_loop(options["until"], options.get("max_rounds", MAX_ROUNDS), owner)
        elif "max_rounds" in options:
            raise dag_error(f"{owner} has max_rounds, but no until")
        self.fn = fn
        self._options = options
        functools.update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Create the group and return what the function returned.

        A returned reference is linked as the whole group. If the function returned nothing, the
        group itself is returned. A second call in one DAG creates ``name__1``.
        """
        made: R_co = self._made((), args, kwargs)
        return made

    def expand(self, **mapped: Mappable) -> Any:
        """Create a group whose tasks run once per item; see ``MappedGroup``."""
        return self.partial().expand(**mapped)

    def expand_kwargs(self, items: Items | Sequence[Mapping[str, Any]]) -> Any:
        """Create a group whose tasks run once per item; see ``MappedGroup``."""
        return self.partial().expand_kwargs(items)

    def partial(self, **fixed: Any) -> MappedGroup:
        """Fix the values of some arguments for all children of a mapped group."""
        return MappedGroup(self.fn, self._made, fixed)

    def _made(
        self, sources: tuple[Source, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        options: dict[str, Any] = {**self._options}
        until, max_rounds = options.pop("until", None), options.pop("max_rounds", MAX_ROUNDS)
        group = TaskGroup(options.pop("group_id", self.fn.__name__), **options)
        if until is not None:
            group.become_loop(has_items=bool(sources))
            return self._looped(group, args, kwargs, until, max_rounds)
        group.sources = sources
        with group:
            returned = self.fn(*args, **kwargs)
        if isinstance(returned, Ref):
            returned = GroupRef(returned.node, returned.keys_inside, group)
        return group if returned is None else returned

    def _looped(
        self,
        group: TaskGroup,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        until: Until,
        max_rounds: int,
    ) -> LoopRef[Any]:
        with group:
            returned = call_with_previous(self.fn, group, args, kwargs)
        value, inside = round_value(returned, group.nodes), group.nodes
        tails = group.tails
        with group:
            add_decider(until, value, inside, tails, max_rounds)
        return LoopRef(value.node, (), group)

    def override(self, **options: Unpack[LoopOptions]) -> GroupFunction[P, R_co]:
        """Return the same function as a group with other options."""
        return GroupFunction(self.fn, {**self._options, **options})


class _LoopDecorator(Protocol):
    @overload
    def __call__(self, fn: Callable[P, Ref[R]], /) -> GroupFunction[P, LoopRef[R]]: ...

    @overload
    def __call__(self, fn: Callable[P, R], /) -> GroupFunction[P, LoopRef[R]]: ...


class _GroupDecorator(Protocol):
    @overload  # the annotation distinguishes a function that returns None
    def __call__(self, fn: Callable[P, None], /) -> GroupFunction[P, TaskGroup]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, fn: Callable[P, Ref[R]], /) -> GroupFunction[P, Ref[R]]: ...

    @overload
    def __call__(self, fn: Callable[P, R], /) -> GroupFunction[P, Ref[R]]: ...


@overload  # the annotation distinguishes a function that returns None
def task_group(fn: Callable[P, None], /) -> GroupFunction[P, TaskGroup]: ...  # type: ignore[overload-overlap]


@overload
def task_group(fn: Callable[P, Ref[R]], /) -> GroupFunction[P, Ref[R]]: ...


@overload
def task_group(fn: Callable[P, R], /) -> GroupFunction[P, Ref[R]]: ...


@overload
def task_group(
    *, until: Until, max_rounds: int = MAX_ROUNDS, **options: Unpack[GroupFunctionOptions]
) -> _LoopDecorator: ...


@overload
def task_group(**options: Unpack[GroupFunctionOptions]) -> _GroupDecorator: ...


def task_group(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a group from the tasks that a function calls; see ``TaskGroup``.

    With ``until=good`` the group is a loop: its tasks run one round after the other, until
    ``good(value)`` returns true for the value that a round returned. That check is a separate task.
    The loop fails if a round fails, or if ``good`` is still false after ``max_rounds`` rounds. The
    function's parameter ``previous`` is the value of the previous round. The loop's result is the
    value of its last round; ``rounds`` has the values of all rounds.

    Raises:
        DagError: If an option is invalid.
    """

    def decorate(decorated: Callable[..., Any]) -> GroupFunction[..., Any]:
        made: LoopOptions = {**options}  # type: ignore[typeddict-item]  # checked by what it makes
        return GroupFunction(decorated, made)

    return decorate if fn is None else decorate(fn)
