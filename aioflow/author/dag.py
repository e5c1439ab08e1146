"""The ``DAG`` class and the ``@dag`` decorator. A new DAG is registered for its DAG file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from datetime import date, datetime
from types import TracebackType
from typing import Any, Protocol, Self, TypedDict, Unpack, overload

from aioflow.author.arguments import CallArguments
from aioflow.author.assets import AssetSchedule
from aioflow.author.callbacks import RUN_EVENTS, Callback, Callbacks, callbacks_of
from aioflow.author.context import ContextValue, Parameter, ParameterRef
from aioflow.author.decode import type_hints
from aioflow.author.duration import Duration, microseconds
from aioflow.author.node import FromContext, LiteralValue, Node, Placeholder, Source
from aioflow.author.options import (
    SENSOR_NAMES,
    TASK_NAMES,
    SensorClassOptions,
    check_names,
    executor_name,
    without_replaced,
)
from aioflow.author.params import Param
from aioflow.author.schedule import Schedule, Timetable, instant, time_zone
from aioflow.author.source_location import (
    SourceLocation,
    dag_error,
    function_location,
    here,
    importing,
    is_being_read,
)
from aioflow.author.trigger import Trigger
from aioflow.errors import DuplicateDag
from aioflow.model.dag import IfPaused, IntervalKind, MissedFireTimes
from aioflow.model.triggers import IfRunning

__all__ = (
    "DAG",
    "DagOptions",
    "current_dag",
    "dag",
    "forget_registered",
    "open_dag",
    "registered",
    "with_default_args",
)

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,250}")

_registered: list[DAG] = []
_open: ContextVar[tuple[DAG, ...]] = ContextVar("open_dags", default=())


class DagOptions(TypedDict, total=False):
    """Options of a DAG.

    ``default_args`` are options for its tasks, which a task may override. ``params`` are parameters
    with their defaults, in addition to those of the function. ``reads`` are the files that runs
    need, or glob patterns, relative to the folder of the DAG file; ``dags check`` reports missing
    ones. ``data_interval`` is either a point (``fire_time``), or begins at the ``previous`` fire
    time. ``description`` is Airflow's name for ``doc``, ``dagrun_timeout`` for ``run_timeout``, and
    ``on_failure_callback`` for ``on_failure``. Callbacks of a DAG are called for the run, not for
    its tasks. ``if_running`` and ``debounce`` require a trigger as ``schedule``: ``if_running``
    says what happens to an event while a run is active, and ``debounce`` how long there must be no
    further event before the last event starts a run. If ``isolated`` is set, the DAG's coroutines
    and triggers run in processes that no other DAG uses. ``executor`` is where its ``def`` tasks
    run, unless they name another executor; sensors stay on the daemon's machine. ``python`` is the
    name of the interpreter that the DAG file chooses in a comment, repeated here for readers.
    """

    schedule: Schedule | Trigger[Any] | AssetSchedule | Timetable
    if_running: IfRunning
    debounce: Duration | None
    timezone: str
    start_date: datetime | date | None
    end_date: datetime | date | None
    catchup: bool | MissedFireTimes
    data_interval: IntervalKind
    max_active_runs: int
    max_active_tasks: int | None
    run_timeout: Duration | None
    dagrun_timeout: Duration | None
    deadline: Duration | None
    on_success: Callbacks
    on_failure: Callbacks
    on_deadline: Callbacks
    on_success_callback: Callbacks
    on_failure_callback: Callbacks
    retry_budget: int | None
    if_paused: IfPaused
    isolated: bool
    python: str
    executor: str | None
    default_args: SensorClassOptions
    params: Mapping[str, Any]
    tags: Sequence[str]
    reads: Sequence[str]
    doc: str
    description: str


class OpenGroup(Protocol):
    """The interface of a task group to its DAG.

    Attributes:
        group_id: Includes the ids of the enclosing groups.
        prefix: The prefix of the ids of its tasks.
        sources: The sources that the group is mapped over; empty if it is not mapped.
        is_loop: Whether its tasks are mapped over the rounds of a loop.
    """

    group_id: str
    prefix: str
    sources: tuple[Source, ...]
    is_loop: bool
    default_args: SensorClassOptions

    @property
    def kind(self) -> tuple[str, str]:
        """The kind of mapped group, and advice for tasks that must not expand inside it."""
        ...


class DAG:
    """Tasks and their dependencies.

    A context manager that collects the tasks created inside. ``@dag`` makes a DAG from a function.
    A DAG registers itself for the file that creates it.

    Attributes:
        schedule: As the author wrote it; read by ``describe``.
        missed: Which missed fire times are run.
        nodes: Its tasks. A task's index is its index here.
        parameters: Its parameters by name, in order.
        unfinished: Operators whose ``__init__`` has not yet called ``Operator.__init__``, by
            Python's ``id``.
    """

    def __init__(self, dag_id: str, **options: Unpack[DagOptions]) -> None:
        self._set_up(dag_id, importing() or here(), options)
        _register(self)

    @classmethod
    def _from_function(cls, fn: Callable[..., object], dag_id: str, options: DagOptions) -> DAG:
        self = cls.__new__(cls)
        options.setdefault("doc", options.get("description") or inspect.getdoc(fn) or "")
        self._set_up(dag_id, _location_of(fn), options)
        self.parameters = {**_parameters_of(fn), **self.parameters}
        with self:
            fn(*(ParameterRef(self, name) for name in inspect.signature(fn).parameters))
        _register(self)
        return self

    def _set_up(self, dag_id: object, source_location: SourceLocation, options: DagOptions) -> None:
        unknown = options.keys() - DagOptions.__annotations__.keys()
        if unknown:
            raise dag_error(f"DAG {dag_id!r} has no option {unknown.pop()!r}")
        self.dag_id = _check_name(dag_id, "DAG")
        self.file, self.line = source_location.file, source_location.line
        self.nodes: list[Node] = []
        self.parameters: dict[str, Parameter] = {
            name: (
                Parameter.of(name, Any, value)
                if isinstance(value, Param)
                else Parameter(name, default=LiteralValue(value))
            )
            for name, value in options.get("params", {}).items()
        }
        self.default_args: SensorClassOptions = options.get("default_args", {})
        check_names(self.default_args, is_sensor=True, owner="default_args")
        self.tags = _texts(options.get("tags", ()), "tags")
        self.reads = _texts(options.get("reads", ()), "reads")
        self.doc = options.get("doc") or options.get("description") or ""
        self._set_times(options)
        self.max_active_runs = _limit(options.get("max_active_runs", 16), "max_active_runs")
        most = options.get("max_active_tasks")
        self.run_timeout_us = _length(options, "run_timeout", "dagrun_timeout")
        self.deadline_us = _length(options, "deadline")
        self.callbacks = _callbacks(options)
        self.max_active_tasks = None if most is None else _limit(most, "max_active_tasks")
        budget = options.get("retry_budget")
        self.retry_budget = None if budget is None else _limit(budget, "retry_budget", least=0)
        self.if_paused: IfPaused = _if_paused(options)
        self.isolated = _flag(options.get("isolated", False), "isolated")
        self.python = _python(options.get("python"))
        self.executor = _executor(options.get("executor"))
        self._uses: dict[str, int] = {}
        self.open_groups: list[OpenGroup] = []
        self.unfinished: dict[int, object] = {}
        self._tokens: list[Token[tuple[DAG, ...]]] = []

    def _set_times(self, options: DagOptions) -> None:
        self.timezone = options.get("timezone", "UTC")
        time_zone(self.timezone)
        self.schedule = options.get("schedule")
        self.if_running = options.get("if_running", "queue")
        self.debounce = options.get("debounce")
        self.start_date = instant(options.get("start_date"), self.timezone, "start_date")
        self.end_date = instant(options.get("end_date"), self.timezone, "end_date")
        self.missed = _missed(options.get("catchup", False))
        self.data_interval = _data_interval(options.get("data_interval", "fire_time"))

    def __enter__(self) -> Self:
        self._tokens.append(_open.set((*_open.get(), self)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _open.reset(self._tokens.pop())
        if kind is not None:
            self.open_groups.clear()

    def __call__(self, *_: object, **__: object) -> None:
        """Do nothing. Airflow's idiom of calling the DAG is allowed, but has no effect here."""

    def __repr__(self) -> str:
        return f"<DAG {self.dag_id} with {len(self.nodes)} tasks>"

    def add(self, node: Node, arguments: CallArguments) -> None:
        """Add a task with its arguments. The index of the task must be the next free one."""
        _check_name(node.task_id, "task")
        assert node.task_index == len(self.nodes)  # noqa: S101 - the caller took the index here
        self.nodes.append(node)
        self._uses.setdefault(node.task_id, 0)
        node.arguments, node.sources = arguments.bindings, self._sources_of(node, arguments)
        node.group = self.open_groups[-1].group_id if self.open_groups else ""
        for parent in arguments.parents:
            node.run_after(parent)
            node.argument_parents.add(parent.task_index)
        makers = [maker for source in arguments.sources for maker in source.parents]
        for maker in makers:
            node.run_after(maker)
        for parent in (*arguments.parents, *makers):
            if parent.loop is not None:  # a loop has a result only once it has ended
                node.run_after(self.nodes[parent.loop.until])

    @property
    def mapped_group(self) -> OpenGroup | None:
        """The mapped group among the open ones, if any."""
        return next((group for group in self.open_groups if group.sources), None)

    def _sources_of(self, node: Node, arguments: CallArguments) -> tuple[Source, ...]:
        group = self.mapped_group
        if group is None:
            return arguments.sources
        if arguments.sources:
            kind, advice = group.kind
            raise dag_error(f"task {node.task_id!r} expands inside the {kind}; {advice}")
        return group.sources

    def free_task_id(self, wanted: object) -> str:
        """Return the id, or ``id__1``, ``id__2`` ... if it is in use.

        The id starts with the prefix of the open groups.
        """
        name = first = self.grouped_task_id(wanted)
        while name in self._uses:
            self._uses[first] += 1
            name = f"{first}__{self._uses[first]}"
        return name

    def grouped_task_id(self, wanted: object) -> str:
        """Return the id with the prefix of the open groups, whether it is in use or not."""
        prefix = self.open_groups[-1].prefix if self.open_groups else ""
        return _check_name(f"{prefix}{_check_name(wanted, 'task')}", "task")

    def take_name(self, name: str) -> None:
        """Reserve an id."""
        self._uses.setdefault(name, 0)


def _location_of(fn: Callable[..., object]) -> SourceLocation:
    """Return where a function is defined, or where its factory in another file is called."""
    own, file = function_location(fn), importing()
    return own if file is None or file.file == own.file else file


def _check_name(name: object, kind: str) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise dag_error(
        f"{name!r} is not a valid name for a {kind}: "
        "a to z, A to Z, digits, '_', '-' and '.', at most 250"
    )


def _if_paused(options: DagOptions) -> IfPaused:
    value = options.get("if_paused", "stay")
    if value not in {"stay", "stop"}:
        raise dag_error(f"if_paused must be 'stay' or 'stop', not {value!r}")
    return value


def _executor(value: object) -> str | None:
    try:
        return executor_name(value)
    except ValueError as exc:
        raise dag_error(str(exc)) from None


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise dag_error(f"{name} must be True or False, got {value!r}")
    return value


def _python(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise dag_error(f"python must be the name of an interpreter in the settings, not {value!r}")


def _missed(value: object) -> MissedFireTimes:
    """Return which missed fire times are run, from Airflow's ``catchup`` or aioflow's values."""
    match value:
        case True | "all":
            return "all"
        case False | "latest":
            return "latest"
        case "skip":
            return "skip"
        case _:
            raise dag_error(
                f"catchup must be True, False, 'all', 'latest' or 'skip', not {value!r}"
            )


def _data_interval(value: object) -> IntervalKind:
    match value:
        case "fire_time":
            return "fire_time"
        case "previous":
            return "previous"
        case _:
            raise dag_error(f"data_interval must be 'fire_time' or 'previous', not {value!r}")


def _limit(value: object, name: str, *, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise dag_error(f"{name} must be a whole number of at least {least}, got {value!r}")
    return value


def _length(options: DagOptions, *names: str) -> int | None:
    """Return the duration given under one of the names, in microseconds."""
    for name in names:
        value: Any = options.get(name)
        if value is None:
            continue
        try:
            length = microseconds(value, name)
        except ValueError as exc:
            raise dag_error(str(exc)) from exc
        if length == 0:
            raise dag_error(f"{name} must be longer than nothing")
        return length
    return None


def _callbacks(options: DagOptions) -> dict[str, tuple[Callback, ...]]:
    said = {name.removesuffix("_callback"): value for name, value in options.items()}
    try:
        return callbacks_of(said, RUN_EVENTS)
    except ValueError as exc:
        raise dag_error(str(exc)) from exc


def _texts(texts: Sequence[str], name: str) -> tuple[str, ...]:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise dag_error(f"{name} must be a list of texts, got {texts!r}")
    return tuple(texts)


def _parameters_of(fn: Callable[..., object]) -> dict[str, Parameter]:
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):
        raise dag_error(f"@dag takes a plain function, {fn.__name__!r} is none")
    annotations = type_hints(fn)
    found = {}
    for name, declared in inspect.signature(fn).parameters.items():
        if declared.kind in {declared.VAR_POSITIONAL, declared.VAR_KEYWORD, declared.KEYWORD_ONLY}:
            raise dag_error(f"parameter {name!r} of a DAG must be an ordinary one")
        if isinstance(declared.default, Param):
            found[name] = Parameter.of(name, annotations.get(name, Any), declared.default)
            continue
        default: LiteralValue | FromContext | None = LiteralValue(declared.default)
        if declared.default is declared.empty:
            default = None
        elif isinstance(declared.default, ContextValue):
            default = declared.default.binding
        elif isinstance(declared.default, Placeholder):
            raise dag_error(f"{declared.default!r} cannot be the default of a DAG's parameter")
        found[name] = Parameter(name, annotations.get(name, Any), default)
    return found


def _register(new: DAG) -> None:
    for known in _registered:
        if known.dag_id == new.dag_id and known.file == new.file:
            if is_being_read(new.file):
                raise DuplicateDag(new.dag_id, f"{known.file}:{known.line}")
            _registered.remove(known)  # for example if each test defines a DAG with this id
            break
    _registered.append(new)


def registered(file: str | None = None) -> list[DAG]:
    """Return the DAGs registered since ``forget_registered``, in order.

    Args:
        file: Return only the DAGs defined in this file, named as in its code objects.
    """
    return [known for known in _registered if file is None or known.file == file]


def forget_registered() -> None:
    """Clear the registry before the next file is imported."""
    _registered.clear()


def current_dag() -> DAG | None:
    """Return the DAG that is being defined, if any."""
    current = _open.get()
    return current[-1] if current else None


def open_dag(what: str) -> DAG:
    """Return the DAG that is being defined.

    Raises:
        DagError: If there is none.
    """
    current = current_dag()
    if current is None:
        raise dag_error(
            f"{what} was called outside a DAG; call it inside a @dag function or `with DAG(...)`, "
            "or use its .fn to run it right here"
        )
    return current


@overload
def dag(dag_id: Callable[..., object], /) -> DAG: ...


@overload
def dag(
    dag_id: str | None = None, **options: Unpack[DagOptions]
) -> Callable[[Callable[..., object]], DAG]: ...


def dag(
    dag_id: Callable[..., object] | str | None = None, **options: Unpack[DagOptions]
) -> DAG | Callable[[Callable[..., object]], DAG]:
    """Make a DAG from a function that calls tasks. The function runs once, immediately.

    The function's parameters become the parameters of the DAG: inside the function they are
    references, and each run supplies values or uses the defaults. Use ``dag`` bare, or with an id
    and options.

    Raises:
        DagError: If the DAG cannot run as written.
    """
    if callable(dag_id):
        return DAG._from_function(dag_id, dag_id.__name__, options)  # noqa: SLF001 - a second constructor

    def decorate(fn: Callable[..., object]) -> DAG:
        return DAG._from_function(fn, dag_id or fn.__name__, options)  # noqa: SLF001

    return decorate


def with_default_args(dag: DAG, options: Mapping[str, Any], *, is_sensor: bool) -> dict[str, Any]:
    """Return the options of a task, with defaults from ``default_args``.

    The ``default_args`` of enclosing groups override those of the DAG, and those of an inner
    group override those of an outer group.
    """
    known = SENSOR_NAMES if is_sensor else TASK_NAMES
    said: dict[str, Any] = {}
    for layer in (dag.default_args, *(group.default_args for group in dag.open_groups)):
        concerned = {name: value for name, value in layer.items() if name in known}
        said = {**without_replaced(said, concerned), **concerned}
    return {**without_replaced(said, options), **options}
