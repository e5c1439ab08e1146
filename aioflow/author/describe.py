"""Describes a DAG as data, and reports everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aioflow.author.binding import Literal
from aioflow.author.callbacks import callback_spec
from aioflow.author.dag import DAG
from aioflow.author.event_schedule import clock_schedule, dag_trigger_spec
from aioflow.author.node import CHOOSING, Node, Part, Source
from aioflow.author.operator import missing_method
from aioflow.author.param import json_text
from aioflow.author.retry import Retry
from aioflow.author.schedule import schedule_spec
from aioflow.author.start import start_spec
from aioflow.author.template_fields import wrong_templates
from aioflow.author.type_check import misfits
from aioflow.author.type_names import ANY, type_name
from aioflow.core.scheduling import timetable
from aioflow.core.state import graph
from aioflow.core.state.child_roles import ASKED_FOR
from aioflow.core.tasks import expand
from aioflow.errors import AioflowError, BadSchedule, CycleError, DagError, Unserializable
from aioflow.model.dag import Chooses, DagSpec, MapSource, MapSpec, ParamSpec, TaskSpec
from aioflow.model.dag_triggers import DagTriggerSpec
from aioflow.model.schedule import ScheduleSpec
from aioflow.protocol.parse_results import DagFailure

__all__ = ("describe",)

_CHOOSES = {
    Part.BRANCH: Chooses.CHILDREN,
    Part.SHORT_CIRCUIT: Chooses.ALL,
    Part.GENTLE_SHORT_CIRCUIT: Chooses.CHILDREN,
    Part.UNTIL: Chooses.ROUNDS,
}


def describe(dag: DAG, *, file: str | None = None) -> tuple[DagSpec | None, list[DagFailure]]:
    """Return the description of a DAG, or every error found in it.

    Sets the ``spec`` of every node.

    Args:
        dag: A completely defined DAG.
        file: The file name for the description; by default the one in its code objects.
    """
    tasks, failures = _tasks(dag)
    if failures:
        return None, failures
    problems: list[DagError] = []
    trigger = _trigger(dag, problems)
    schedule = _schedule(dag, problems)
    problems += graph.validate(tasks, dag.dag_id)
    problems += _more_problems(dag, schedule)
    if problems:
        return None, [_failure(problem, dag) for problem in problems]
    spec = DagSpec(
        dag_id=dag.dag_id,
        file=file or dag.file,
        tasks=tasks,
        schedule=schedule,
        trigger=trigger,
        timezone=dag.timezone,
        start_date=dag.start_date,
        end_date=dag.end_date,
        catchup=dag.missed == "all",
        skips_missed=dag.missed == "skip",
        max_active_runs=dag.max_active_runs,
        max_active_tasks=dag.max_active_tasks,
        run_timeout_us=dag.run_timeout_us,
        deadline_us=dag.deadline_us,
        callbacks=callback_spec(dag.callbacks),
        retry_budget=dag.retry_budget,
        if_paused=dag.if_paused,
        isolated=(ASKED_FOR,) if dag.isolated else (),
        parameters=tuple(dag.parameters),
        required=tuple(_required(dag)),
        params=tuple(_params(dag)),
        types=dict(_types(dag)),
        tags=dag.tags,
        doc=dag.doc,
        line=dag.line,
    )
    return spec, []


def _tasks(dag: DAG) -> tuple[tuple[TaskSpec, ...], list[DagFailure]]:
    """Return the task descriptions, and the failures of tasks that cannot be described."""
    limits = _feeds_limits(dag)
    failures = []
    for node in dag.nodes:
        try:
            node.spec = _task_spec(dag, node, limits.get(node.position))
        except AioflowError as exc:
            message = f"task {node.task_id!r}: {exc}"
            failures.append(DagFailure(exc.code, message, _line(dag, node)))
    return tuple(node.spec for node in dag.nodes if node.spec is not None), failures


def _line(dag: DAG, node: Node) -> int:
    return node.place.line if node.place.file == dag.file else dag.line


def _feeds_limits(dag: DAG) -> dict[int, int]:
    limits: dict[int, int] = {}
    for node in dag.nodes:
        for source in node.sources:
            for parent in source.parents:
                if parent.is_mapped:
                    continue  # its children's results are items, and need not be lists
                position, own = parent.position, node.settings.map_limit
                limits[position] = min(limits.get(position, own), own)
    return limits


def _task_spec(dag: DAG, node: Node, feeds_limit: int | None) -> TaskSpec:
    settings = node.settings
    _check_work(node)
    return TaskSpec(
        task_id=node.task_id,
        body=node.body,
        parents=tuple(sorted(node.parents)),
        argument_parents=tuple(sorted(node.argument_parents)),
        rule=node.rule,
        min_success=settings.min_success,
        groups=tuple(node.groups),
        group=node.group,
        is_setup=node.is_setup,
        is_teardown=node.is_teardown,
        fails_run=node.fails_run,
        chooses=_CHOOSES.get(node.part, Chooses.NOTHING),
        retry=(node.retry or Retry()).policy(),
        values=settings.values,
        callbacks=callback_spec(settings.callbacks, settings.values),
        outlets=settings.outlets,
        pool=settings.pool,
        slots=settings.slots,
        priority=settings.priority,
        mapped=_map_spec(node),
        map_limit=settings.map_limit if node.loop is None else node.loop.max_rounds,
        window=settings.window,
        feeds_limit=feeds_limit,
        sensor=settings.sensor,
        execution_timeout_us=settings.execution_timeout_us,
        deadline_us=settings.deadline_us,
        max_active_tis_per_dagrun=settings.max_active_tis_per_dagrun,
        max_active_tis_per_dag=settings.max_active_tis_per_dag,
        depends_on_past=settings.depends_on_past,
        wait_for_downstream=settings.wait_for_downstream,
        start_trigger=start_spec(node.owner) if node.starts_from_trigger else None,
        events=node.events,
        streams=node.makes_items and feeds_limit is not None,
        doc=settings.doc or node.doc,
        line=_line(dag, node),
    )


def _check_work(node: Node) -> None:
    """Raise if a class has no method to run. One that starts as a trigger may need none."""
    if node.operator is None or node.starts_from_trigger:
        return
    missing = missing_method(node.owner)
    if missing:
        raise DagError(f"{node.operator.__name__} needs a method {missing}()")


def _map_spec(node: Node) -> MapSpec | None:
    if not node.is_mapped:
        return None
    until = -1 if node.loop is None else node.loop.until
    return MapSpec(tuple(map(_map_source, node.sources)), tuple(sorted(node.along)), until)


def _map_source(source: Source) -> MapSource:
    if source.join:
        parts = tuple(map(_map_source, source.parts))
        return MapSource(source.parameter, -1, -1, source.join, parts)
    if source.parent is None:
        return MapSource(source.parameter, -1, len(source.values))
    return MapSource(source.parameter, source.parent.position, -1)


def _trigger(dag: DAG, problems: list[DagError]) -> DagTriggerSpec | None:
    """Return the trigger whose events start runs, if the schedule is one."""
    try:
        return dag_trigger_spec(
            dag.schedule,
            if_running=dag.if_running,
            debounce=dag.debounce,
            catchup=dag.missed == "all",
            begin=dag.start_date,
            end=dag.end_date,
        )
    except DagError as exc:
        problems.append(exc)
    except (Unserializable, ValueError) as exc:
        problems.append(BadSchedule(f"schedule of DAG {dag.dag_id!r}: {exc}"))
    return None


def _schedule(dag: DAG, problems: list[DagError]) -> ScheduleSpec | None:
    try:
        spec = schedule_spec(
            clock_schedule(dag.schedule),
            timezone=dag.timezone,
            anchor=dag.start_date or 0,
        )
    except BadSchedule as exc:
        problems.append(exc)
        return None
    wrong = None if spec is None else timetable.validate(spec, dag.timezone)
    if wrong is not None:
        problems.append(wrong)
    return spec


def _required(dag: DAG) -> list[str]:
    return [name for name, parameter in dag.parameters.items() if parameter.required]


def _params(dag: DAG) -> Iterator[ParamSpec]:
    for name, parameter in dag.parameters.items():
        if parameter.schema:
            known = parameter.default
            default = json_text(known.value) if isinstance(known, Literal) else None
            yield ParamSpec(name=name, schema=parameter.schema, default=default)


def _types(dag: DAG) -> Iterator[tuple[str, str]]:
    for name, parameter in dag.parameters.items():
        text = type_name(parameter.annotation)
        if not parameter.schema and text != ANY:
            yield name, text


def _more_problems(dag: DAG, schedule: ScheduleSpec | None) -> Iterator[DagError]:
    for owner in dag.unfinished.values():
        name = type(owner).__name__
        yield DagError(
            f"{name}.__init__ does not call super().__init__(**kwargs), so it is no task"
        )
    required = _required(dag)
    if schedule is not None and required:
        yield DagError(
            f"DAG {dag.dag_id!r} has a schedule, so its parameters need defaults: "
            + ", ".join(required)
        )
    goes_far_back = schedule is not None and (schedule.cron or schedule.every_us or schedule.parts)
    if dag.missed == "all" and goes_far_back and dag.start_date is None:
        yield BadSchedule(f"DAG {dag.dag_id!r} has catchup=True, so it needs a start_date")
    if dag.start_date is not None and dag.end_date is not None and dag.end_date < dag.start_date:
        yield BadSchedule(f"DAG {dag.dag_id!r} has an end_date before its start_date")
    for node in dag.nodes:
        yield from _too_wide(node)
        yield from _mixed_stream(node)
        yield from _late_choice(node, dag.nodes)
        yield from wrong_templates(node)
    yield from misfits(dag.nodes, dag.parameters)


def _too_wide(node: Node) -> Iterator[DagError]:
    """Report an expansion over literal lists that is larger than its ``map_limit``."""
    if node.spec is None or node.spec.mapped is None:
        return
    leaves = [leaf for source in node.sources for leaf in source.leaves]
    if any(leaf.parent is not None for leaf in leaves):
        return
    width = expand.width(node.spec.mapped, [len(leaf.values) for leaf in leaves])
    if width > node.settings.map_limit:
        yield DagError(
            f"task {node.task_id!r} expands over {width} items, more than its map_limit of "
            f"{node.settings.map_limit}; raise it if that many are meant"
        )


def _mixed_stream(node: Node) -> Iterator[DagError]:
    """Report a stream that is expanded together with another source: its size is unknown."""
    is_alone = len(node.sources) < 2 and not node.along
    if is_alone and not any(source.join for source in node.sources):
        return
    for maker in (maker for source in node.sources for maker in source.parents):
        if maker.makes_items:
            yield DagError(
                f"task {node.task_id!r} expands over the stream of {maker.task_id!r} and "
                "over something else; a stream is expanded over alone. Give the rest by partial(), "
                "or let a task return all of the stream as a list"
            )


def _late_choice(node: Node, nodes: Sequence[Node]) -> Iterator[DagError]:
    """Report a branching task in a mapped group some of whose tasks may expand later.

    A child can only skip tasks that exist, so all tasks of the group must expand at once.
    """
    if node.part not in CHOOSING or not node.is_mapped:
        return
    group = node.along | {node.position}
    makers = {maker.position for source in node.sources for maker in source.parents}
    for position in sorted(group):
        for outside in sorted(nodes[position].parents - group - makers):
            yield DagError(
                f"task {node.task_id!r} chooses what runs in a mapped group, so its tasks can come "
                f"after each other and their items alone, but {nodes[position].task_id!r} comes "
                f"after {nodes[outside].task_id!r}; let that come before the list"
            )


def _failure(problem: AioflowError, dag: DAG) -> DagFailure:
    task_id = getattr(problem, "task_id", None)
    if isinstance(problem, CycleError):
        task_id = problem.path[0]
    lines = [
        node.spec.line for node in dag.nodes if node.task_id == task_id and node.spec is not None
    ]
    # If two tasks have the same id, the second is the one to rename.
    return DagFailure(problem.code, str(problem), lines[-1] if lines else dag.line)
