"""Task groups: tasks under one name, linked to others as one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, overload

from aioflow.author.arguments import Mappable, Taken
from aioflow.author.dag import DAG, open_dag
from aioflow.author.items import GroupItem, Items
from aioflow.author.loop import (
    MAX_ROUNDS,
    ONE_ROUND,
    GroupRef,
    LoopRef,
    Until,
    add_decider,
    check_loop,
    value_of,
    with_previous,
)
from aioflow.author.node import Node, Source
from aioflow.author.options import SensorClassOptions, check_names
from aioflow.author.ref import Linked, Ref
from aioflow.author.source_location import wrong

__all__ = ("GroupFunction", "GroupOptions", "MappedGroup", "TaskGroup", "task_group")

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class GroupOptions(TypedDict, total=False):
    """What an author may say about a group.

    ``default_args`` are options of its tasks, over those of the DAG and of groups around it.
    Without ``prefix_group_id`` its tasks keep their bare names.
    """

    prefix_group_id: bool
    default_args: SensorClassOptions
    tooltip: str


class GroupFunctionOptions(GroupOptions, total=False):
    """Options of ``@task_group``."""

    group_id: str


class LoopOptions(GroupFunctionOptions, total=False):
    """Options of ``@task_group`` that make a loop of it."""

    until: Until
    max_rounds: int


class TaskGroup(Linked):
    """Tasks under one name: those made inside a ``with``.

    Their ids begin with that of the group and a dot. Put after another task, those of them run
    after it that have no parent in the group; put before one, it waits for those that have no
    child in it, teardowns left out.

    Attributes:
        group_id: With the ids of the groups around it.
        sources: What all of its tasks are mapped over; empty for nothing.
        is_loop: They run again, round after round.
    """

    def __init__(self, group_id: str, **options: Unpack[GroupOptions]) -> None:
        unknown = options.keys() - GroupOptions.__annotations__.keys()
        if unknown:
            raise wrong(f"TaskGroup {group_id!r} has no option {unknown.pop()!r}")
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
        """Have its children go index by index, the first of them after what it is mapped over."""
        nodes = self.nodes
        own = frozenset(node.position for node in nodes)
        for node in nodes:
            node.along = own - {node.position}
            if not node.parents & own:
                for maker in (maker for source in self.sources for maker in source.parents):
                    node.run_after(maker)

    def become_loop(self, *, has_items: bool) -> None:
        """Have its tasks run round after round.

        Raises:
            DagError: If it has items, or is in a mapped group or another loop.
        """
        if has_items or self._dag.mapped_group is not None:
            raise wrong(
                f"group {self.group_id!r} is a loop; that cannot be mapped, nor be in a mapped "
                "group or in another loop"
            )
        self.sources, self.is_loop = ONE_ROUND, True

    def __repr__(self) -> str:
        return f"<TaskGroup {self.group_id}>"

    @property
    def kind(self) -> tuple[str, str]:
        """What it is whose tasks are mapped, and what there is instead of mapping one of them."""
        if self.is_loop:
            return f"loop {self.group_id!r}", "let one of its tasks go over the list itself"
        return f"mapped group {self.group_id!r}", "that makes one child per item of it already"

    @property
    def nodes(self) -> list[Node]:
        """Its tasks, those of groups inside it as well."""
        return [self._dag.nodes[position] for made in self._inside for position in made]

    @property
    def node(self) -> Node:
        """A group stands for several tasks."""
        raise wrong(f"group {self.group_id!r} is no single task; name one of its tasks")

    @property
    def heads(self) -> Sequence[Node]:
        """Those of its tasks that have no parent in it."""
        own = {node.position for node in self.nodes}
        return self._some([node for node in self.nodes if not node.parents & own])

    @property
    def tails(self) -> Sequence[Node]:
        """Those of its tasks that no other one of it comes after, but for teardowns."""
        work = [node for node in self.nodes if not node.is_teardown]
        followed = {parent for node in work for parent in node.parents}
        return self._some([node for node in work if node.position not in followed])

    def _some(self, nodes: list[Node]) -> list[Node]:
        if not nodes:
            raise wrong(f"group {self.group_id!r} has no tasks to link; make them inside it first")
        return nodes


class _Make(Protocol):
    def __call__(
        self, sources: tuple[Source, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any], /
    ) -> Any: ...


class MappedGroup:
    """A group with some of its arguments; ``expand`` makes one run of its tasks per item.

    All of its tasks are mapped over the same items. Their children at one index belong together:
    each is judged by those of its parents at its own index, and given their results. Who takes the
    result of the group from outside gets that of all children, as of any mapped task.
    """

    def __init__(self, fn: Callable[..., Any], make: _Make, fixed: Mapping[str, Any]) -> None:
        self._fn = fn
        self._make = make
        self._fixed = fixed

    def expand(self, **mapped: Mappable) -> Any:
        """Make the group; with several lists, for each combination.

        Raises:
            DagError: If it is in a mapped group itself, or the arguments do not fit.
        """
        owner, taken = self._begin("expand")
        if not mapped:
            raise wrong(f"{owner} needs at least one argument to map over")
        both = self._fixed.keys() & mapped.keys()
        if both:
            raise wrong(f"{owner} got {both.pop()!r} from partial() and from expand()")
        sources = tuple(taken.source(name, value) for name, value in mapped.items())
        items = {name: GroupItem(sources, number, name) for number, name in enumerate(mapped)}
        return self._make(sources, (), {**self._fixed, **items})

    def expand_kwargs(self, items: Items | Sequence[Mapping[str, Any]]) -> Any:
        """Make the group; each item gives its parameters by their names, and has to give all.

        Raises:
            DagError: If it is in a mapped group itself, or the arguments do not fit.
        """
        _, taken = self._begin("expand_kwargs")
        sources = (taken.source("items", items),)
        names = [name for name in inspect.signature(self._fn).parameters if name not in self._fixed]
        given = {name: GroupItem(sources, 0, name, (name,)) for name in names}
        return self._make(sources, (), {**self._fixed, **given})

    def _begin(self, verb: str) -> tuple[str, Taken]:
        owner = f"{self._fn.__name__}.{verb}()"
        dag = open_dag(owner)
        if dag.mapped_group is not None:
            raise wrong(f"{owner}: a mapped group cannot be in another, or in a loop")
        return owner, Taken(dag, owner)


class GroupFunction(Generic[P, R_co]):
    """A function that makes a group of tasks where a DAG calls it.

    Attributes:
        fn: The bare function.
    """

    def __init__(self, fn: Callable[P, Any], options: LoopOptions) -> None:
        if not inspect.isfunction(fn):
            raise wrong(f"@task_group takes a function, got {fn!r}")
        owner = f"@task_group {fn.__name__!r}"
        unknown = options.keys() - LoopOptions.__annotations__.keys()
        if unknown:
            raise wrong(f"{owner} has no option {unknown.pop()!r}")
        if "until" in options:
            check_loop(options["until"], options.get("max_rounds", MAX_ROUNDS), owner)
        elif "max_rounds" in options:
            raise wrong(f"{owner} has max_rounds, but no until")
        self.fn = fn
        self._options = options
        functools.update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Make the group, and return what the function returned.

        A reference is linked as the whole group; where the function returned nothing, the group
        itself is returned. A second call in one DAG makes ``name__1``.
        """
        made: R_co = self._made((), args, kwargs)
        return made

    def expand(self, **mapped: Mappable) -> Any:
        """Make a group whose tasks run once per item each; see ``MappedGroup``."""
        return self.partial().expand(**mapped)

    def expand_kwargs(self, items: Items | Sequence[Mapping[str, Any]]) -> Any:
        """Make a group whose tasks run once per item each; see ``MappedGroup``."""
        return self.partial().expand_kwargs(items)

    def partial(self, **fixed: Any) -> MappedGroup:
        """Give all children of a mapped group the same values for these arguments."""
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
            returned = with_previous(self.fn, group, args, kwargs)
        value, inside = value_of(returned, group.nodes), group.nodes
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
    @overload  # one that returns None is told apart by its annotation
    def __call__(self, fn: Callable[P, None], /) -> GroupFunction[P, TaskGroup]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, fn: Callable[P, Ref[R]], /) -> GroupFunction[P, Ref[R]]: ...

    @overload
    def __call__(self, fn: Callable[P, R], /) -> GroupFunction[P, Ref[R]]: ...


@overload  # one that returns None is told apart by its annotation
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
    """Make a group of the tasks that a function calls; see ``TaskGroup``.

    With ``until=good`` it is a loop: its tasks run again, one round behind the other, until
    ``good(value)`` is true for what a round returned; that is asked in a task of its own. It fails
    where a round does, and where ``max_rounds`` were not enough. Its parameter ``previous`` is
    the value of the round before. It comes to the value of the last round, and has ``rounds``.

    Raises:
        DagError: If an option makes no sense.
    """

    def decorate(decorated: Callable[..., Any]) -> GroupFunction[..., Any]:
        made: LoopOptions = {**options}  # type: ignore[typeddict-item]  # checked by what it makes
        return GroupFunction(decorated, made)

    return decorate if fn is None else decorate(fn)
