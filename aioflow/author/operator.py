"""Tasks defined as classes, as in Airflow: ``Operator`` and ``Sensor``."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn, Self, TypeAlias, Unpack

from aioflow.author.arguments import CallArguments, bind_call, bind_expanded, bind_spread
from aioflow.author.dag import DAG, current_dag, open_dag, with_default_args
from aioflow.author.deferral import (
    BATCH_HANDLER,
    START_FROM_TRIGGER,
    TRIGGER_KWARGS,
    NotReady,
    PokeReturnValue,
    StartTriggerArgs,
    TaskDeferred,
    events_spec,
    poke_result,
)
from aioflow.author.duration import Duration
from aioflow.author.node import Node
from aioflow.author.options import (
    SENSOR_NAMES,
    TASK_NAMES,
    OperatorOptions,
    SensorClassOptions,
    settled,
)
from aioflow.author.ref import Linked, Ref
from aioflow.author.source_location import SourceLocation, dag_error, here
from aioflow.author.task import PartialTask
from aioflow.author.trigger import Trigger
from aioflow.model.dag import Body

__all__ = ("Context", "Operator", "Sensor", "missing_method", "runs_by_poke")

Context: TypeAlias = dict[str, Any]
"""The argument of ``execute`` and ``poke``: all values of the run's context, by name."""


class Operator(Linked):
    """A task defined as a class. Creating an instance inside a DAG adds the task to the DAG.

    Each execution creates a new instance with the same arguments, in which references are resolved.
    No other state is carried over from the DAG file, or across a deferral. A class that defines
    ``__init__`` must call ``super().__init__(**kwargs)``.

    Attributes:
        task_id: The id given by the author, prefixed with the ids of the enclosing groups.
        start_from_trigger: Whether the task starts deferred, before any of its code runs. Set on
            the class or in ``__init__``.
        start_trigger_args: The trigger to start with, and how to resume.
        many_events: Whether ``next_method`` is called for each event of a trigger. If not, the
            first event ends the trigger. A class with ``handle_trigger_events(events, context)``
            receives all events, in order and in batches.
        event_batch: The maximum number of events per call.
        event_delay: How long the first event of a batch waits for further events.
        event_window: The maximum number of events that its triggers may be ahead of the store.
        template_fields: Names of arguments in which literal texts are templates: ``"{{ ds }}"``.
            They are rendered before ``__init__``, in the process of the task.
    """

    start_from_trigger: bool = False
    start_trigger_args: StartTriggerArgs | None = None
    many_events: bool = False
    event_batch: int = 100
    event_delay: Duration = 0.05
    event_window: int = 64
    template_fields: Sequence[str] = ()

    _is_sensor = False
    _call: tuple[DAG, CallArguments, SourceLocation] | None
    _node: Node | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self._node = self._call = None
        dag = current_dag()
        if dag is not None:
            owner = f"{cls.__name__}()"
            arguments = bind_call(_init_of(cls), args, kwargs, dag=dag, owner=owner, injects=False)
            dag.unfinished[id(self)] = self
            self._call = dag, arguments, here()
        return self

    def __init__(self, task_id: str, **options: Unpack[OperatorOptions]) -> None:
        self.task_id = task_id
        self._register(options)

    def _register(self, options: Mapping[str, Any]) -> None:
        cls = type(self)
        if self._call is None:
            settled(options, is_sensor=cls._is_sensor, owner=f"{cls.__name__} {self.task_id!r}")
            return
        dag, arguments, source_location = self._call
        self._node = _added(cls, self.task_id, options, dag, arguments, source_location)
        self._node.instance = self
        self.task_id = self._node.task_id
        self._call = None
        del dag.unfinished[id(self)]

    def execute(self, context: Context) -> Any:
        """Do the work of one try and return its result. ``def`` or ``async def``."""
        raise NotImplementedError(f"{type(self).__name__} needs a method execute()")

    def defer(
        self,
        *,
        trigger: Trigger[Any],
        method_name: str | None = "",
        kwargs: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        on_timeout: str | None = None,
    ) -> NoReturn:
        """Release the slot and wait for a trigger; a new instance resumes in ``method_name``.

        The method is called with ``context``, ``event`` and ``kwargs``. ``defer`` may be called
        from a nested call, too.

        Args:
            trigger: The trigger to wait for.
            method_name: A method of this class; ``None`` if the trigger ends the task itself, with
                ``TaskSuccessEvent`` and the like. In a class with ``handle_trigger_events`` it is
                optional, and is called once, with ``event=None``, after the last event.
            kwargs: Serializable arguments for the method.
            timeout: How long to wait before the try fails.
            on_timeout: A method to resume in after the timeout, instead of failing. Its ``event``
                is ``None``.
        """
        for name in (method_name, on_timeout):
            if name and not callable(getattr(self, name, None)):
                raise dag_error(f"{type(self).__name__} has no method {name!r} to resume in")
        needs_one = method_name is not None or self.many_events
        if needs_one and not method_name and not hasattr(self, BATCH_HANDLER):
            raise dag_error(
                f"{type(self).__name__}.defer() needs a method_name to resume in; "
                "None if the trigger ends the task itself"
            )
        raise TaskDeferred(
            trigger=trigger,
            method_name=method_name or None,
            kwargs=kwargs,
            timeout=timeout,
            on_timeout=on_timeout,
        )

    @property
    def node(self) -> Node:
        """The task in its DAG."""
        if self._node is None:
            raise dag_error(f"{self!r} was not made inside a DAG")
        return self._node

    @property
    def output(self) -> Ref[Any]:
        """A reference to the future result."""
        return Ref(self.node)

    @property
    def log(self) -> logging.Logger:
        """A logger that writes to the log of the task."""
        return logging.getLogger(f"aioflow.task.{type(self).__name__}")

    @classmethod
    def partial(cls, **fixed: Any) -> PartialTask[Any]:
        """Fix the values of some arguments and options for all children of a mapped task."""
        expand, spread = functools.partial(_expanded, cls), functools.partial(_spread, cls)
        return PartialTask(expand, spread, fixed)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {getattr(self, 'task_id', '?')}>"


class Sensor(Operator):
    """A task defined as a class that polls until a condition is met."""

    _is_sensor = True

    def __init__(self, task_id: str, **options: Unpack[SensorClassOptions]) -> None:
        self.task_id = task_id
        self._register(options)

    def execute(self, context: Context) -> Any:
        """Check the condition once, by calling ``poke``.

        A subclass that overrides this method is run like any operator. It may defer, raise
        ``NotReady``, or call ``super().execute(context)``, which raises ``NotReady`` if the
        condition is not met.
        """
        seen = self.poke(context)
        return _awaited_poke(seen) if inspect.isawaitable(seen) else _poke_value(seen)

    def poke(
        self, context: Context
    ) -> bool | PokeReturnValue[Any] | Awaitable[bool | PokeReturnValue[Any]]:
        """Check the condition once. ``False`` or ``NotReady`` means that it is not met yet.

        ``def`` or ``async def``.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method poke()")


def runs_by_poke(cls: type[Operator]) -> bool:
    """Return whether a sensor is run by calling ``poke``: it does not override ``execute``."""
    return cls.execute is Sensor.execute


def missing_method(owner: Any) -> str:
    """Return the name of the required method that is missing, or an empty string.

    Args:
        owner: An operator, or its class if it is mapped.
    """
    cls = owner if isinstance(owner, type) else type(owner)
    if issubclass(cls, Sensor) and runs_by_poke(cls):
        return "poke" if _is_of(Sensor, owner, "poke") else ""
    return "execute" if _is_of(Operator, owner, "execute") else ""


def _is_of(cls: type[Operator], owner: Any, name: str) -> bool:
    found = getattr(owner, name)  # the method may be set on the instance
    return getattr(found, "__func__", found) is getattr(cls, name)


async def _awaited_poke(seen: Awaitable[bool | PokeReturnValue[Any]]) -> Any:
    return _poke_value(await seen)


def _poke_value(seen: object) -> Any:
    is_done, value = poke_result(seen)
    if not is_done:
        raise NotReady
    return value


def _skipped(**arguments: object) -> None:
    """Stand in for the ``__init__`` of a mapped operator that is created without calling it."""


def _init_of(cls: type[Operator]) -> Callable[..., None]:
    """Return ``__init__`` with the signature that a caller sees, without ``self``."""
    return functools.partial(cls.__init__, None)  # type: ignore[arg-type]  # never called


def _added(
    cls: type[Operator],
    task_id: str,
    options: Mapping[str, Any],
    dag: DAG,
    arguments: CallArguments,
    source_location: SourceLocation,
) -> Node:
    is_sensor = cls._is_sensor
    said = with_default_args(dag, options, is_sensor=is_sensor)
    code = cls.poke if issubclass(cls, Sensor) and runs_by_poke(cls) else cls.execute
    if inspect.isasyncgenfunction(code):
        raise dag_error(
            f"{cls.__name__}.{code.__name__} is an async generator; let it return a list"
        )
    events = events_spec(cls, is_sensor=is_sensor, has_execute=cls.execute is not Operator.execute)
    if events is not None and events.method and code is Operator.execute:
        code = getattr(cls, BATCH_HANDLER)  # a task that starts deferred may have no other method
    node = Node(
        dag=dag,
        task_id=dag.grouped_task_id(task_id),
        task_index=len(dag.nodes),
        kind="operator",
        settings=settled(said, is_sensor=is_sensor, owner=f"{cls.__name__} {task_id!r}"),
        source_location=source_location,
        body=Body.COROUTINE if inspect.iscoroutinefunction(code) else Body.FUNCTION,
        operator=cls,
        events=events,
    )
    dag.add(node, arguments)
    return node


def _expanded(
    cls: type[Operator], fixed: Mapping[str, object], mapped: Mapping[str, object], /
) -> Ref[Sequence[Any]]:
    owner = f"{cls.__name__}.partial().expand()"
    dag, names = open_dag(owner), _option_names(cls)
    never = sorted(names & mapped.keys())
    if never:
        raise dag_error(f"{owner}: {never[0]!r} is an option of the task; give it to partial()")
    task_id = _named(fixed, owner)
    starts = _starts(cls, fixed, owner)
    init = _skipped if starts and TRIGGER_KWARGS in {*fixed, *mapped} else _init_of(cls)
    arguments = bind_expanded(init, fixed, mapped, dag=dag, owner=owner, injects=False)
    node = _added(cls, task_id, _options(fixed, names), dag, arguments, here())
    node.starts = starts
    return Ref(node)


def _spread(
    cls: type[Operator], fixed: Mapping[str, object], items: object, /
) -> Ref[Sequence[Any]]:
    owner = f"{cls.__name__}.partial().expand_kwargs()"
    dag, names = open_dag(owner), _option_names(cls)
    task_id = _named(fixed, owner)
    starts = _starts(cls, fixed, owner)
    init = _skipped if starts else _init_of(cls)
    arguments = bind_spread(
        init, fixed, items, dag=dag, owner=owner, injects=False, refused=frozenset(names)
    )
    node = _added(cls, task_id, _options(fixed, names), dag, arguments, here())
    node.starts = starts
    return Ref(node)


def _starts(cls: type[Operator], fixed: Mapping[str, object], owner: str) -> bool:
    """Return whether the children start deferred, according to ``partial()``, else to the class."""
    said = fixed.get(START_FROM_TRIGGER, cls.start_from_trigger)
    if not isinstance(said, bool):
        raise dag_error(
            f"{owner}: {START_FROM_TRIGGER} is True or False, known while the DAG is written"
        )
    return said


def _option_names(cls: type[Operator]) -> frozenset[str]:
    return frozenset(SENSOR_NAMES if issubclass(cls, Sensor) else TASK_NAMES)


def _named(fixed: Mapping[str, object], owner: str) -> str:
    task_id = fixed.get("task_id")
    if not isinstance(task_id, str):
        raise dag_error(f"{owner}: give a task_id to partial()")
    return task_id


def _options(fixed: Mapping[str, object], names: frozenset[str]) -> dict[str, object]:
    return {name: fixed[name] for name in names & fixed.keys() if name != "task_id"}
