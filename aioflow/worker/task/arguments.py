"""Resolution of the arguments of a try from the DAG file, the run, and results of its parents.

A process knows a run once it has received the command for it, and the run's DAG once a try of the
run has started. For the templates in arguments see ``template_rendering``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, get_args

from aioflow.author.codec import decode
from aioflow.author.context import RunContext, context_value, parameter_values
from aioflow.author.dag import DAG
from aioflow.author.decode import restore
from aioflow.author.node import (
    FromContext,
    FromParameter,
    FromRound,
    FromSource,
    FromTask,
    LiteralValue,
    Nested,
    Node,
    Source,
    Spread,
)
from aioflow.author.schedule import clock_schedule, schedule_spec
from aioflow.errors import Unserializable
from aioflow.model.dag import TaskSpec
from aioflow.model.ids import clear_number
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import RunInfo, StartTask
from aioflow.results import ResultFiles, read_item
from aioflow.worker.code.loader import CodeCache
from aioflow.worker.query.messages import only
from aioflow.worker.task.items import (
    MapInput,
    MapRaised,
    Pages,
    Results,
    all_items,
    decode_item,
    one_item,
)
from aioflow.worker.task.template_rendering import FieldTemplates, unrendered

__all__ = (
    "Arguments",
    "BadArgument",
    "KnownRun",
    "RunUnknown",
    "Runs",
    "data_interval",
    "spec_of",
    "streamed_from",
    "wanted_children",
    "wanted_parents",
)


class BadArgument(Exception):
    """Raised if an argument of a task is unavailable or has the wrong type."""


class KnownRun:
    """A run known to this process: its start data and its DAG."""

    __slots__ = ("_asking", "_context", "dag", "info")

    def __init__(self, info: RunInfo, dag: DAG) -> None:
        self.info = info
        self.dag = dag
        self._context: RunContext | None = None
        self._asking: dict[int, bool] = {}

    def asks_for_results(self, node: Node) -> bool:
        """Return whether a try of this task may need results other than its own mapped item.

        If not, the caller need not search for results to fetch. Most children of a fan-out need no
        results.
        """
        asks = self._asking.get(node.task_index)
        if asks is None:
            asks = self._asking[node.task_index] = _takes_results(self.dag, node)
        return asks

    def context(self, node: Node, start: StartTask) -> RunContext:
        """Return the context of this try: data about the task instance and the run.

        Raises:
            BadConf: If the conf does not fit the DAG's parameters.
        """
        return replace(
            self.own_context(),
            task_id=node.task_id,
            try_number=start.try_number,
            map_index=start.map_index if node.loop is None else -1,
            round=None if node.loop is None else start.map_index,
            task_no=start.task_no,
            clear_number=clear_number(start.start_no),
        )

    def own_context(self) -> RunContext:
        """Return the context of the run, without a task; see ``context``."""
        if self._context is None:
            self._context = self._of_run()
        return self._context

    def _of_run(self) -> RunContext:
        info = self.info
        bare = RunContext(
            run_id=info.run_id,
            dag_id=info.dag_id,
            logical_date=info.logical_date,
            created_at=info.created_at,
            timezone=self.dag.timezone,
            conf={} if info.conf is None else decode(info.conf, where="conf"),
            cause=info.cause,
            interval=data_interval(self.dag, info),
        )
        return replace(bare, params=parameter_values(self.dag.parameters, bare))


def data_interval(dag: DAG, info: RunInfo) -> tuple[Timestamp, Timestamp] | None:
    """Return the data interval of a run, which ends at the last fire time at or before the run.

    ``None`` means a point in time: the DAG uses no intervals, or has fewer than two fire times up
    to the run. For a manual run, the interval is the last complete one.
    """
    if dag.data_interval == "fire_time":
        return None
    # Import the calendar lazily, because most children never need it.
    from aioflow.core.scheduling.timetable import interval_up_to

    schedule = schedule_spec(
        clock_schedule(dag.schedule),
        timezone=dag.timezone,
        anchor=dag.start_date or 0,
    )
    at = info.created_at if info.logical_date is None else info.logical_date
    if schedule is None or not schedule.has_fire_times:
        return None
    return interval_up_to(schedule, dag.timezone, at)


def spec_of(node: Node) -> TaskSpec:
    """Return the spec of a described node. Every node in ``Code`` has one."""
    assert node.spec is not None  # noqa: S101 - see above
    return node.spec


def wanted_parents(run: KnownRun, node: Node, start: StartTask) -> list[int]:
    """Return the parents whose results to query, as ``ResultsWanted.task_index`` values."""
    wanted = {
        binding.task_index
        for argument in node.arguments.values()
        for binding in _bindings(argument, start)
        if isinstance(binding, FromTask)
    }
    nodes = run.dag.nodes
    asked = [
        _asked_for(run, task_index)
        for task_index in wanted
        if (task_index not in start.at_hand or nodes[task_index].is_mapped)
        and not is_along(node, task_index)
    ]
    if start.is_closing and not start.method:
        asked.append(~start.task_no)  # the task's own output is its result
    return sorted(asked)


def is_along(node: Node, task_index: int) -> bool:
    """Return whether a parent is in the task's mapped group, so that its results are per child."""
    mapped = spec_of(node).mapped
    return mapped is not None and task_index in mapped.along


def wanted_children(node: Node, start: StartTask) -> list[tuple[int, int]]:
    """Return the task index and map index of each other child whose result a child needs."""
    mapped = spec_of(node).mapped
    if mapped is None:
        return []
    wanted = {
        (binding.task_index, start.map_index)
        for argument in node.arguments.values()
        for binding in _bindings(argument, start)
        if isinstance(binding, FromTask) and binding.task_index in mapped.along
    }
    if node.loop is not None and any(_looks_back(node, start)):
        wanted.add((node.loop.value, start.map_index - 1))
    for leaf, index in MapInput(node, mapped, start).picked():
        if leaf.parent is not None and leaf.parent.is_mapped:
            wanted.add((leaf.parent.task_index, index))
    return sorted(wanted)


def _takes_results(dag: DAG, node: Node) -> bool:
    leaves = [leaf for source in node.sources for leaf in source.leaves]
    parents = [leaf.parent for leaf in leaves if leaf.parent is not None]
    if any(parent.is_mapped or spec_of(parent).streams for parent in parents):
        return True
    bound = (part for argument in node.arguments.values() for part in _parts(argument))
    return any(isinstance(part, FromTask | FromRound) for part in bound)


def _looks_back(node: Node, start: StartTask) -> Iterator[FromRound]:
    """Yield the bindings to results of the previous iteration; nothing in the first iteration."""
    for argument in node.arguments.values():
        for binding in _bindings(argument, start):
            if isinstance(binding, FromRound):
                yield binding


def _asked_for(run: KnownRun, task_index: int) -> int:
    """Return the query index of a parent's results, or of its items if it streams."""
    is_stream = spec_of(run.dag.nodes[task_index]).streams
    return ~(run.info.first_task_no + task_index) if is_stream else task_index


def streamed_from(run: KnownRun, node: Node, start: StartTask) -> int | None:
    """Return the query index of the stream that a child gets its item from.

    Return ``None`` if the task is not such a child.
    """
    mapped = spec_of(node).mapped
    if mapped is None or start.map_index < 0 or len(mapped.sources) != 1:
        return None
    task_index = mapped.sources[0].task_index
    if task_index < 0 or not spec_of(run.dag.nodes[task_index]).streams:
        return None
    return _asked_for(run, task_index)


def _bindings(value: object, start: StartTask) -> Iterator[object]:
    """Yield the bindings of this execution. A first loop iteration has those of initial values."""
    for part in _parts(value):
        if isinstance(part, FromRound) and start.map_index <= 0:
            yield from _bindings(part.first, start)
        else:
            yield part


def _parts(value: object) -> Iterator[object]:
    """Yield the bindings that an argument is made of."""
    match value:
        case Nested(inner):
            yield from _parts(inner)
        case list() | tuple():
            for item in value:
                yield from _parts(item)
        case dict():
            for item in value.values():
                yield from _parts(item)
        case _:
            yield value


class Arguments:
    """Resolves the bindings of one try.

    Args:
        pages: Fetches results of a parent. Called only for the parents in ``wanted_parents``.
        results: The files of large results.

    Raises:
        BadConf: If the conf of the run does not fit the DAG's parameters.
    """

    def __init__(
        self, run: KnownRun, node: Node, start: StartTask, pages: Pages, results: ResultFiles
    ) -> None:
        self._run = run
        self._node = node
        self._start = start
        self._pages = pages
        self._files = results
        run.own_context()  # validates the conf, even for a task that does not use it
        self._render: Callable[[Any], Any] = unrendered

    @cached_property
    def _templates(self) -> FieldTemplates:
        return FieldTemplates(self._node, partial(self._run.context, self._node, self._start))

    @property
    def context(self) -> RunContext:
        """The context of the try."""
        return self._templates.context

    def all(self) -> dict[str, Any]:
        """Return every argument of the task by name.

        Raises:
            BadArgument: If an argument is unavailable because a result lacks a key, a list item no
                longer exists, or a result does not fit the annotation.
            BaseException: Whatever a function given to ``map`` raises.
        """
        values: dict[str, Any] = {}
        may_render = self._node.operator is not None  # a function has no template fields
        for name, binding in self._node.arguments.items():
            if may_render:
                self._render = self._templates.renderer_of(name)
            try:
                if isinstance(binding, Spread):
                    values.update(self._spread(binding))
                else:
                    values[name] = self._value(binding, self._node.annotations.get(name, Any))
            except MapRaised as exc:
                raise exc.problem from None
            except (LookupError, TypeError, ValueError, OSError, Unserializable) as exc:
                raise BadArgument(f"argument {name!r}: {type(exc).__name__}: {exc}") from exc
            except Exception as exc:
                if self._render is unrendered:
                    raise
                raise BadArgument(f"argument {name!r}: {type(exc).__name__}: {exc}") from exc
        return values

    def rendered(self, fields: Any) -> Any:
        """Return fields from the DAG file, with those listed in ``template_fields`` rendered."""
        return self._templates.rendered(fields)

    def _value(self, binding: object, annotation: Any) -> Any:
        match binding:
            case LiteralValue(value):
                return self._render(value)
            case FromTask(task_index, keys, is_last):
                result = self._last if is_last else self._result
                return _inside(result(task_index, Any if keys else annotation), keys)
            case FromRound(first, keys):
                return _inside(self._previous(first, Any if keys else annotation), keys)
            case FromParameter(name, keys):
                return _inside(self.context.params[name], keys)
            case FromContext(name):
                return context_value(name, self.context)
            case FromSource(source, keys):
                if not keys:
                    return self._items.item(source, annotation, self._fetch)
                return _inside(self._items.item(source, Any, self._fetch), keys)
            case Nested(value):
                return self._nested(value)
            case _:
                return self._render(binding)

    def _nested(self, value: object) -> Any:
        match value:
            case list():
                return [self._nested(item) for item in value]
            case tuple():
                return tuple(self._nested(item) for item in value)
            case dict():
                return {key: self._nested(item) for key, item in value.items()}
            case _:
                return self._value(value, Any)

    def _result(self, task_index: int, annotation: Any) -> Any:
        parent = self._run.dag.nodes[task_index]
        if spec_of(parent).streams:
            task_no = self._run.info.first_task_no + task_index
            return all_items(self._pages, task_no, _item_annotation(annotation))
        is_list = spec_of(parent).feeds_limit is not None
        if is_along(self._node, task_index):
            return self._child(task_index, self._start.map_index, annotation)
        if parent.is_mapped:
            item = _item_annotation(annotation)
            return Results(
                partial(self._pages, task_index),
                lambda task_no, start_no, body: self._decoded(
                    task_no, start_no, body, item, is_list=is_list
                ),
            )
        if task_index in self._start.at_hand:
            body = self._start.results.get(task_index)
            return None if body is None else decode(body, annotation)
        page = self._pages(task_index, -2)
        if not page.items:
            return None
        _, task_no, start_no, body = page.items[0]
        return self._decoded(
            task_no,
            start_no,
            body,
            _item_annotation(annotation) if is_list and body is None else annotation,
            is_list=is_list,
        )

    def _last(self, task_index: int, annotation: Any) -> Any:
        """Return the result of the last loop iteration that has a result."""
        found = deque(self._rows(task_index), maxlen=1)
        return self._decoded(*found[0], annotation) if found else None

    def _rows(self, task_index: int) -> Iterator[tuple[int, int, bytes | None]]:
        after, more = -2, True
        while more:
            page = self._pages(task_index, after)
            after, more = page.last, page.more
            yield from (item[1:] for item in page.items)

    def _previous(self, first: object, annotation: Any) -> Any:
        """Return the previous iteration's result.

        In the first iteration, return the initial value.
        """
        index, loop = self._start.map_index, self._node.loop
        if index <= 0 or loop is None:
            return self._value(first, annotation)
        return self._child(loop.value, index - 1, annotation)

    @property
    def _items(self) -> MapInput:
        mapped = spec_of(self._node).mapped
        assert mapped is not None  # noqa: S101 - only such nodes have items
        return MapInput(self._node, mapped, self._start)

    def _fetch(self, leaf: Source, index: int, annotation: Any) -> Any:
        parent = leaf.parent
        if parent is None:
            return self._render(leaf.values[index])
        if spec_of(parent).streams:
            stream = streamed_from(self._run, self._node, self._start)
            if stream is not None:
                body = self._start.item
                if body is None:
                    body = one_item(self._pages, ~stream, index)
                return decode(body, annotation)
        task_index = parent.task_index
        if parent.sources:  # the parent is mapped
            return self._child(task_index, index, annotation)
        for at, task_no, start_no in self._start.sources:
            if at == task_index:
                read = partial(read_item, index=index)
                body = self._files.read(self._start.run_no, task_no, start_no, read)
                return decode(body, annotation)
        raise LookupError(f"the list of the task with index {task_index} was not named")

    def _child(self, task_index: int, index: int, annotation: Any) -> Any:
        """Return the result of one child; ``None`` if the child has none."""
        for at, task_no, start_no, body in self._pages(task_index, only(index)).items:
            if at == index:
                return self._decoded(task_no, start_no, body, annotation)
        return None

    def _decoded(
        self,
        task_no: int,
        start_no: int,
        body: bytes | None,
        annotation: Any,
        *,
        is_list: bool = False,
    ) -> Any:
        of_run = (self._start.run_no, task_no, start_no)
        return decode_item(self._files, *of_run, body, annotation, is_list=is_list)

    def _spread(self, spread: Spread) -> dict[str, Any]:
        """Return the arguments that a mapped item provides, by name."""
        item = self._items.item(spread.source, Any, self._fetch)
        refused = spread.refuse(item)
        if refused is not None:
            raise TypeError(refused)
        source, known = self._node.sources[spread.source], self._node.annotations
        if source.functions:
            return dict(item)
        if not any(source.parents):  # the list has not been encoded
            return dict(self.rendered(item))
        return {name: restore(value, known.get(name, Any), name) for name, value in item.items()}


def _inside(value: Any, keys: tuple[str | int, ...]) -> Any:
    for key in keys:
        value = value[key]
    return value


def _item_annotation(annotation: Any) -> Any:
    arguments = get_args(annotation)
    return arguments[0] if len(arguments) == 1 else Any


class RunUnknown(Exception):
    """Raised for a start command of a run that was never added to this process, or was dropped."""

    def __init__(self, run_no: int) -> None:
        super().__init__(f"this process does not know run {run_no}")


class Runs:
    """The runs known to this process.

    One thread calls ``add`` and ``forget``, another thread reads.
    """

    def __init__(self, code_cache: CodeCache) -> None:
        self._code_cache = code_cache
        self._infos: dict[int, RunInfo] = {}
        self._known: dict[int, KnownRun] = {}

    def add(self, info: RunInfo) -> None:
        """Add a run. Its code is loaded when its first try starts."""
        self._infos[info.run_no] = info

    def forget(self, run_no: int) -> None:
        """Drop a run that has ended."""
        self._infos.pop(run_no, None)
        self._known.pop(run_no, None)

    def loaded(self, run_no: int) -> KnownRun | None:
        """Return a run if a try of it has started here before."""
        return self._known.get(run_no)

    def of(self, start: StartTask) -> KnownRun:
        """Return the run of a try. The first call imports the DAG file, which is user code.

        Raises:
            RunUnknown: If ``add`` was not called for the run.
            CodeMissing: If the code version of the run is not on this machine.
        """
        return self.known(start.run_no)

    def known(self, run_no: int) -> KnownRun:
        """Return a run by its number; see ``of``."""
        known = self._known.get(run_no)
        if known is not None:
            return known
        info = self._infos.get(run_no)
        if info is None:
            raise RunUnknown(run_no)
        dag = self._code_cache.version(info.version).dag(info.file, info.dag_id)
        known = self._known[run_no] = KnownRun(info, dag)
        return known

    def info(self, run_no: int) -> RunInfo | None:
        """Return the data of a run, if it is known."""
        return self._infos.get(run_no)

    def versions(self) -> Collection[str]:
        """Return the versions of all known runs."""
        return {info.version for info in self._infos.values()}
