"""Task groups: tasks under one name, linked to others as one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, overload

from aioflow.author.dag import DAG, open_dag
from aioflow.author.node import Node
from aioflow.author.options import SensorClassOptions, check_names
from aioflow.author.place import wrong
from aioflow.author.ref import Linked, Ref

__all__ = ("GroupFunction", "GroupOptions", "TaskGroup", "task_group")

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


class TaskGroup(Linked):
    """Tasks under one name: those made inside a ``with``.

    Their ids begin with that of the group and a dot. Put after another task, those of them run
    after it that have no parent in the group; put before one, it waits for those that have no
    child in it, teardowns left out.

    Attributes:
        group_id: With the ids of the groups around it.
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
        self._inside: list[range] = []
        self._first = 0

    def __enter__(self) -> Self:
        self._first = len(self._dag.nodes)
        self._dag.open_groups.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._dag.open_groups.pop()
        self._inside.append(range(self._first, len(self._dag.nodes)))

    def __repr__(self) -> str:
        return f"<TaskGroup {self.group_id}>"

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


class _GroupRef(Ref[Any]):
    """What a group returned: the result of one of its tasks, linked as the whole group."""

    def __new__(cls, inner: Ref[Any], group: TaskGroup) -> Self:
        return super().__new__(cls, inner.node, inner.keys_inside)

    def __init__(self, inner: Ref[Any], group: TaskGroup) -> None:
        super().__init__(inner.node, inner.keys_inside)
        self._group = group

    @property
    def heads(self) -> Sequence[Node]:
        return self._group.heads

    @property
    def tails(self) -> Sequence[Node]:
        return self._group.tails


class GroupFunction(Generic[P, R_co]):
    """A function that makes a group of tasks where a DAG calls it.

    Attributes:
        fn: The bare function.
    """

    def __init__(self, fn: Callable[P, Any], options: GroupFunctionOptions) -> None:
        if not inspect.isfunction(fn):
            raise wrong(f"@task_group takes a function, got {fn!r}")
        unknown = options.keys() - GroupFunctionOptions.__annotations__.keys()
        if unknown:
            raise wrong(f"@task_group {fn.__name__!r} has no option {unknown.pop()!r}")
        self.fn = fn
        self._options = options
        functools.update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Make the group, and return what the function returned.

        A reference is linked as the whole group; where the function returned nothing, the group
        itself is returned. A second call in one DAG makes ``name__1``.
        """
        options: dict[str, Any] = {**self._options}
        group = TaskGroup(options.pop("group_id", self.fn.__name__), **options)
        with group:
            returned: Any = self.fn(*args, **kwargs)
        if isinstance(returned, Ref):
            returned = _GroupRef(returned, group)
        made: Any = group if returned is None else returned
        return made  # type: ignore[no-any-return]  # what the decorator's overloads promise

    def override(self, **options: Unpack[GroupFunctionOptions]) -> GroupFunction[P, R_co]:
        """Return the same function as a group with other options."""
        return GroupFunction(self.fn, {**self._options, **options})


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
def task_group(**options: Unpack[GroupFunctionOptions]) -> _GroupDecorator: ...


def task_group(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a group of the tasks that a function calls; see ``TaskGroup``.

    Raises:
        DagError: If an option makes no sense.
    """

    def decorate(decorated: Callable[..., Any]) -> GroupFunction[..., Any]:
        made: GroupFunctionOptions = {**options}  # type: ignore[typeddict-item]  # checked by what it makes
        return GroupFunction(decorated, made)

    return decorate if fn is None else decorate(fn)
