"""Tasks defined as functions: ``@task``, ``@sensor``, ``@setup`` and ``@teardown``.

``latest_only`` adds a ready-made task that lets its children run only in the latest scheduled run.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from aioflow.author.arguments import CallArguments, Mappable, bind_call, bind_expanded, bind_spread
from aioflow.author.context import current
from aioflow.author.dag import open_dag, with_default_args
from aioflow.author.deferral import PokeReturnValue
from aioflow.author.node import CHOOSING, Node, Part
from aioflow.author.options import (
    SensorOptions,
    TaskOptions,
    check_names,
    settled,
    without_replaced,
)
from aioflow.author.ref import Items, Ref
from aioflow.author.schedule import Schedule, clock_schedule, schedule_spec
from aioflow.author.source_location import dag_error, here
from aioflow.model.dag import Body
from aioflow.model.timestamps import Timestamp, to_timestamp

__all__ = (
    "Node",
    "PartialTask",
    "TaskFunction",
    "latest_only",
    "sensor",
    "setup",
    "task",
    "teardown",
)

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
X = TypeVar("X")


class TaskFunction(Generic[P, R_co]):
    """A function that adds a task when a DAG calls it.

    Attributes:
        fn: The bare function, for tests and for calls from another function.
    """

    def __init__(
        self,
        fn: Callable[P, Any],
        options: Mapping[str, Any],
        *,
        is_sensor: bool,
        part: Part = Part.WORK,
    ) -> None:
        kind = "@sensor" if is_sensor else "@task"
        if not inspect.isfunction(fn):
            raise dag_error(f"{kind} takes a function, got {fn!r}")
        if is_sensor and inspect.isasyncgenfunction(fn):
            raise dag_error(
                f"{kind} {fn.__name__!r} is an async generator; let it return True or False"
            )
        for name, parameter in inspect.signature(fn).parameters.items():
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise dag_error(
                    f"parameter {name!r} of {fn.__name__!r} must not be positional-only"
                )
        settled(options, is_sensor=is_sensor, owner=f"{kind} {fn.__name__!r}")
        self.fn = fn
        self._options = dict(options)
        self._is_sensor = is_sensor
        self._part = part
        functools.update_wrapper(self, fn)

    def __repr__(self) -> str:
        return f"<task {self.fn.__qualname__}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Ref[R_co]:
        """Add a task to the DAG that is being defined, and return a reference to its result.

        Raises:
            DagError: If no DAG is being defined, or the arguments do not match.
        """
        dag = open_dag(f"{self.fn.__name__}()")
        arguments = bind_call(self.fn, args, kwargs, dag=dag, owner=f"{self.fn.__name__}()")
        return Ref(self._add(arguments))

    def partial(self, **fixed: Any) -> PartialTask[R_co]:
        """Fix the values of some arguments for all children of a mapped task."""
        return PartialTask(self._expanded, self._spread, fixed)

    def expand(self, **mapped: Mappable) -> Ref[Sequence[R_co]]:
        """Add a task that runs once per item; with several lists, once per combination.

        Its result is a lazy sequence of the children's results in map order.
        """
        return self._expanded({}, mapped)

    def expand_kwargs(self, items: Items | Sequence[Mapping[str, Any]]) -> Ref[Sequence[R_co]]:
        """Add a task that runs once per item; each item is a mapping of its parameters."""
        return self._spread({}, items)

    def override(self, **options: Unpack[SensorOptions]) -> TaskFunction[P, R_co]:
        """Return the same function as a task with other options."""
        merged = {**without_replaced(self._options, options), **options}
        return TaskFunction(self.fn, merged, is_sensor=self._is_sensor, part=self._part)

    def as_part(self, part: Part) -> TaskFunction[P, R_co]:
        """Return the same function as a task with another role."""
        return TaskFunction(self.fn, self._options, is_sensor=self._is_sensor, part=part)

    def _expanded(
        self, fixed: Mapping[str, object], mapped: Mapping[str, object]
    ) -> Ref[Sequence[R_co]]:
        owner = f"{self.fn.__name__}.expand()"
        if self._part in CHOOSING:
            raise dag_error(f"{owner}: a task that chooses what runs cannot be mapped itself")
        dag = open_dag(owner)
        return Ref(self._add(bind_expanded(self.fn, fixed, mapped, dag=dag, owner=owner)))

    def _spread(self, fixed: Mapping[str, object], items: object) -> Ref[Sequence[R_co]]:
        owner = f"{self.fn.__name__}.expand_kwargs()"
        if self._part in CHOOSING:
            raise dag_error(f"{owner}: a task that chooses what runs cannot be mapped itself")
        dag = open_dag(owner)
        return Ref(self._add(bind_spread(self.fn, fixed, items, dag=dag, owner=owner)))

    def _add(self, arguments: CallArguments) -> Node:
        name = self.fn.__name__
        dag = open_dag(f"{name}()")
        outer = dag.mapped_group
        if self._part in CHOOSING and outer is not None and outer.is_loop:
            raise dag_error(f"{name}(): a task that chooses what runs cannot be in a loop")
        options = with_default_args(dag, self._options, is_sensor=self._is_sensor)
        task_id = dag.free_task_id(options.get("task_id", name))
        node = Node(
            dag=dag,
            task_id=task_id,
            task_index=len(dag.nodes),
            kind="function",
            settings=settled(options, is_sensor=self._is_sensor, owner=f"task {task_id!r}"),
            source_location=here(),
            body=_body_of(self.fn),
            fn=self.fn,
        )
        dag.add(node, arguments)
        node.part = self._part
        node.is_setup = self._part is Part.SETUP
        node.is_teardown = self._part in {Part.TEARDOWN, Part.TEARDOWN_THAT_MATTERS}
        node.fails_run = self._part is Part.TEARDOWN_THAT_MATTERS
        return node


def _body_of(fn: Callable[..., Any]) -> Body:
    is_async = inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)
    return Body.COROUTINE if is_async else Body.FUNCTION


class _Expand(Protocol[R_co]):
    def __call__(
        self, fixed: Mapping[str, object], mapped: Mapping[str, object], /
    ) -> Ref[Sequence[R_co]]: ...


class _Spread(Protocol[R_co]):
    def __call__(self, fixed: Mapping[str, object], items: object, /) -> Ref[Sequence[R_co]]: ...


class PartialTask(Generic[R_co]):
    """A task with some of its arguments; ``expand`` or ``expand_kwargs`` supplies the others."""

    def __init__(
        self, expand: _Expand[R_co], spread: _Spread[R_co], fixed: Mapping[str, object]
    ) -> None:
        self._expand = expand
        self._spread = spread
        self._fixed = fixed

    def expand(self, **mapped: Mappable) -> Ref[Sequence[R_co]]:
        """Add the task; see ``TaskFunction.expand``."""
        return self._expand(self._fixed, mapped)

    def expand_kwargs(self, items: Items | Sequence[Mapping[str, Any]]) -> Ref[Sequence[R_co]]:
        """Add the task; see ``TaskFunction.expand_kwargs``."""
        return self._spread(self._fixed, items)


class _TaskDecorator(Protocol):
    @overload
    def __call__(self, fn: Callable[P, AsyncIterator[R]], /) -> TaskFunction[P, list[R]]: ...

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> TaskFunction[P, R]: ...

    @overload
    def __call__(self, fn: Callable[P, R], /) -> TaskFunction[P, R]: ...


class TaskDecorator:
    """Makes a task from a function; ``@task``.

    A ``def`` body runs in a worker process, an ``async def`` body on a shared event loop. The
    result of an ``async def`` with ``yield`` is the list of the yielded items; a task that expands
    over it starts a child for each item as soon as it is yielded. Use it bare or with options. The
    same function may be called in many DAGs.
    """

    @overload
    def __call__(self, fn: Callable[P, AsyncIterator[R]], /) -> TaskFunction[P, list[R]]: ...

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> TaskFunction[P, R]: ...

    @overload
    def __call__(self, fn: Callable[P, R], /) -> TaskFunction[P, R]: ...

    @overload
    def __call__(self, /, **options: Unpack[TaskOptions]) -> _TaskDecorator: ...

    def __call__(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a task from a function.

        Raises:
            DagError: If an option is invalid.
        """
        return _decorated(fn, options, is_sensor=False)

    @overload
    def branch(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> TaskFunction[P, R]: ...

    @overload
    def branch(self, fn: Callable[P, R], /) -> TaskFunction[P, R]: ...

    @overload
    def branch(self, /, **options: Unpack[TaskOptions]) -> _TaskDecorator: ...

    def branch(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a task that returns which of its children run: a task id, several, or ``None``.

        The id of a group selects its first tasks. The other children are skipped, unless they also
        come after a selected child. The task fails if an id does not select any child.
        """
        return _decorated(fn, options, is_sensor=False, part=Part.BRANCH)

    @overload
    def short_circuit(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> TaskFunction[P, R]: ...

    @overload
    def short_circuit(self, fn: Callable[P, R], /) -> TaskFunction[P, R]: ...

    @overload
    def short_circuit(
        self, /, *, ignore_downstream_trigger_rules: bool = True, **options: Unpack[TaskOptions]
    ) -> _TaskDecorator: ...

    def short_circuit(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        ignore_downstream_trigger_rules: bool = True,
        **options: Any,
    ) -> Any:
        """Make a task that skips everything after it if its result is false.

        Teardowns still run. With ``ignore_downstream_trigger_rules=False`` only its children are
        skipped, and the trigger rules of later tasks apply.
        """
        ignores = ignore_downstream_trigger_rules
        part = Part.SHORT_CIRCUIT if ignores else Part.GENTLE_SHORT_CIRCUIT
        return _decorated(fn, options, is_sensor=False, part=part)


task = TaskDecorator()


class _SensorDecorator(Protocol):
    @overload
    def __call__(
        self, fn: Callable[P, Coroutine[Any, Any, PokeReturnValue[X]]], /
    ) -> TaskFunction[P, X]: ...

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, bool]], /) -> TaskFunction[P, None]: ...

    @overload
    def __call__(self, fn: Callable[P, PokeReturnValue[X]], /) -> TaskFunction[P, X]: ...

    @overload
    def __call__(self, fn: Callable[P, bool], /) -> TaskFunction[P, None]: ...


@overload
def sensor(fn: Callable[P, Coroutine[Any, Any, PokeReturnValue[X]]], /) -> TaskFunction[P, X]: ...


@overload
def sensor(fn: Callable[P, Coroutine[Any, Any, bool]], /) -> TaskFunction[P, None]: ...


@overload
def sensor(fn: Callable[P, PokeReturnValue[X]], /) -> TaskFunction[P, X]: ...


@overload
def sensor(fn: Callable[P, bool], /) -> TaskFunction[P, None]: ...


@overload
def sensor(**options: Unpack[SensorOptions]) -> _SensorDecorator: ...


def sensor(fn: Callable[..., Any] | None = None, /, **options: Unpack[SensorOptions]) -> Any:
    """Make a sensor from a function that checks a condition.

    ``False`` or ``NotReady`` means that the condition is not met yet, ``True`` that it is met. A
    ``PokeReturnValue`` can say both. An ``async def`` uses no slot while it waits; a ``def`` uses
    one for each check.

    Raises:
        DagError: If an option is invalid.
    """
    return _decorated(fn, options, is_sensor=True)


def setup(fn: Callable[P, R] | TaskFunction[P, R], /) -> TaskFunction[P, R]:
    """Make a setup task, which other tasks need to succeed; see ``Ref.as_setup``.

    Accepts a function, or a task with its options: ``@setup`` above ``@task(...)``.
    """
    made = fn if isinstance(fn, TaskFunction) else TaskFunction[P, R](fn, {}, is_sensor=False)
    return made.as_part(Part.SETUP)


class _TeardownDecorator(Protocol):
    def __call__(self, fn: Callable[P, R] | TaskFunction[P, R], /) -> TaskFunction[P, R]: ...


@overload
def teardown(fn: Callable[P, R] | TaskFunction[P, R], /) -> TaskFunction[P, R]: ...


@overload
def teardown(*, on_failure_fail_dagrun: bool = False) -> _TeardownDecorator: ...


def teardown(
    fn: Callable[..., Any] | TaskFunction[..., Any] | None = None,
    /,
    *,
    on_failure_fail_dagrun: bool = False,
) -> Any:
    """Make a teardown task, which cleans up after its setups; see ``Ref.as_teardown``.

    Its setups are the setup tasks among its parents. Accepts a function, or a task with its
    options.
    """
    part = Part.TEARDOWN_THAT_MATTERS if on_failure_fail_dagrun else Part.TEARDOWN

    def decorate(decorated: Callable[..., Any] | TaskFunction[..., Any]) -> TaskFunction[..., Any]:
        if not isinstance(decorated, TaskFunction):
            decorated = TaskFunction(decorated, {}, is_sensor=False)
        return decorated.as_part(part)

    return decorate if fn is None else decorate(fn)


def _decorated(
    fn: Callable[..., Any] | None,
    options: Mapping[str, Any],
    *,
    is_sensor: bool,
    part: Part = Part.WORK,
) -> Any:
    if fn is not None:
        return TaskFunction(fn, options, is_sensor=is_sensor, part=part)
    check_names(options, is_sensor=is_sensor, owner="@sensor" if is_sensor else "@task")

    def decorate(decorated: Callable[..., Any]) -> TaskFunction[..., Any]:
        return TaskFunction(decorated, options, is_sensor=is_sensor, part=part)

    return decorate


def latest_only(task_id: str = "latest_only") -> Ref[bool]:
    """Add a task that skips its children if a later run of the schedule is already due.

    This is checked when the task runs, so a catch-up run, or a run that is cleared much later,
    skips the children. A run that was started manually or by another run never skips them.

    Raises:
        DagError: If no DAG is being defined.
    """
    dag = open_dag("latest_only()")
    options = {"task_id": task_id}
    part = Part.GENTLE_SHORT_CIRCUIT
    task: TaskFunction[..., bool] = TaskFunction(is_latest, options, is_sensor=False, part=part)
    return task(
        clock_schedule(dag.schedule),
        dag.timezone,
        first=dag.start_date,
        last=dag.end_date,
        cause=current.cause,
        logical_date=current.logical_date,
    )


def is_latest(
    schedule: Schedule,
    timezone: str,
    *,
    first: Timestamp | None,
    last: Timestamp | None,
    cause: str,
    logical_date: datetime,
) -> bool:
    """Return whether the children should run, because no later fire time has passed."""
    # Imported late, as most processes never need the timetable.
    from aioflow.core.scheduling.timetable import next_fire_time

    spec = schedule_spec(schedule, timezone=timezone, anchor=first or 0)
    if spec is None or cause != "schedule":
        return True
    following = next_fire_time(spec, timezone, after=to_timestamp(logical_date))
    if following is None or (last is not None and following > last):
        return True
    return following > time.time_ns() // 1_000  # noqa: TID251 - in a process of user code
