"""The description of a DAG as data, with all errors and warnings about it.

A DAG with an error has no description. A warning is a finding of the linter, which ``dags check``
reports. The DAG runs despite warnings.
"""

from __future__ import annotations

import glob
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aioflow.author.callbacks import callback_spec
from aioflow.author.context import context_hint
from aioflow.author.dag import DAG
from aioflow.author.deferral import start_spec
from aioflow.author.node import (
    CHOOSING,
    FromContext,
    FromParameter,
    FromTask,
    LiteralValue,
    Nested,
    Node,
    Part,
    Source,
)
from aioflow.author.operator import missing_method
from aioflow.author.options import Retry, Settings, executor_of
from aioflow.author.params import ANY_TYPE, json_text, type_name
from aioflow.author.schedule import clock_schedule, dag_trigger_spec, schedule_spec
from aioflow.author.templates import odd_templates, wrong_templates
from aioflow.author.type_check import fits, misfits
from aioflow.core.scheduling import timetable
from aioflow.core.state.child_roles import ASKED_FOR
from aioflow.core.state.graph_validation import orphans, validate
from aioflow.core.tasks import expand
from aioflow.errors import AioflowError, BadSchedule, CycleError, DagError, Unserializable
from aioflow.model.dag import (
    Chooses,
    DagSpec,
    MapSource,
    MapSpec,
    ParamSpec,
    ScheduleSpec,
    TaskSpec,
)
from aioflow.model.states import TriggerRule
from aioflow.model.triggers import DagTriggerSpec
from aioflow.protocol.reports import DagFailure

__all__ = (
    "COPIED_OPTIONS",
    "describe",
    "lint",
)

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
    tasks, failures = _task_specs(dag)
    if failures:
        return None, failures
    problems: list[DagError] = []
    trigger = _trigger_spec(dag, problems)
    schedule = _clock_spec(dag, problems)
    problems += validate(tasks, dag.dag_id)
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
        required=tuple(_required_parameters(dag)),
        params=tuple(_param_specs(dag)),
        types=dict(_parameter_types(dag)),
        tags=dag.tags,
        doc=dag.doc,
        line=dag.line,
    )
    return spec, []


def _task_specs(dag: DAG) -> tuple[tuple[TaskSpec, ...], list[DagFailure]]:
    """Return the task descriptions, and the failures of tasks that cannot be described."""
    limits = _feeds_limits(dag)
    failures = []
    for node in dag.nodes:
        try:
            node.spec = _task_spec(dag, node, limits.get(node.task_index))
        except AioflowError as exc:
            message = f"task {node.task_id!r}: {exc}"
            failures.append(DagFailure(exc.code, message, _line(dag, node)))
    return tuple(node.spec for node in dag.nodes if node.spec is not None), failures


def _line(dag: DAG, node: Node) -> int:
    return node.source_location.line if node.source_location.file == dag.file else dag.line


def _feeds_limits(dag: DAG) -> dict[int, int]:
    limits: dict[int, int] = {}
    for node in dag.nodes:
        for source in node.sources:
            for parent in source.parents:
                if parent.is_mapped:
                    continue  # its children's results are items, and need not be lists
                task_index, own = parent.task_index, node.settings.map_limit
                limits[task_index] = min(limits.get(task_index, own), own)
    return limits


_CONVERTED = frozenset({"callbacks", "doc", "executor", "map_limit", "retry", "rule"})
"""Options whose value in the specification depends on more than the author's value."""

COPIED_OPTIONS = tuple(
    name
    for name in Settings.__struct_fields__
    if name in TaskSpec.__struct_fields__ and name not in _CONVERTED
)
"""Options that the specification has under the same name, with the same value."""


def _task_spec(dag: DAG, node: Node, feeds_limit: int | None) -> TaskSpec:
    settings = node.settings
    copied: dict[str, Any] = {name: getattr(settings, name) for name in COPIED_OPTIONS}
    _check_work(node)
    return TaskSpec(
        **copied,
        task_id=node.task_id,
        body=node.body,
        parents=tuple(sorted(node.parents)),
        argument_parents=tuple(sorted(node.argument_parents)),
        rule=node.rule,
        groups=tuple(node.groups),
        group=node.group,
        is_setup=node.is_setup,
        is_teardown=node.is_teardown,
        fails_run=node.fails_run,
        chooses=_CHOOSES.get(node.part, Chooses.NOTHING),
        retry=(node.retry or Retry()).policy(),
        callbacks=callback_spec(settings.callbacks, settings.values),
        mapped=_map_spec(node),
        map_limit=settings.map_limit if node.loop is None else node.loop.max_rounds,
        feeds_limit=feeds_limit,
        start_trigger=start_spec(node.owner) if node.starts_from_trigger else None,
        events=node.events,
        streams=node.makes_items and feeds_limit is not None,
        executor=executor_of(
            settings.executor,
            dag.executor,
            node.body,
            is_sensor=settings.sensor is not None,
            has_requirements=bool(settings.resources or settings.executor_options),
        ),
        doc=settings.doc or node.doc,
        line=_line(dag, node),
    )


def _check_work(node: Node) -> None:
    """Raise if a class has no method to run. A class that starts deferred may need none."""
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
    return MapSource(source.parameter, source.parent.task_index, -1)


def _trigger_spec(dag: DAG, problems: list[DagError]) -> DagTriggerSpec | None:
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


def _clock_spec(dag: DAG, problems: list[DagError]) -> ScheduleSpec | None:
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


def _required_parameters(dag: DAG) -> list[str]:
    return [name for name, parameter in dag.parameters.items() if parameter.required]


def _param_specs(dag: DAG) -> Iterator[ParamSpec]:
    for name, parameter in dag.parameters.items():
        if parameter.schema:
            known = parameter.default
            default = json_text(known.value) if isinstance(known, LiteralValue) else None
            yield ParamSpec(name=name, schema=parameter.schema, default=default)


def _parameter_types(dag: DAG) -> Iterator[tuple[str, str]]:
    for name, parameter in dag.parameters.items():
        text = type_name(parameter.annotation)
        if not parameter.schema and text != ANY_TYPE:
            yield name, text


def _more_problems(dag: DAG, schedule: ScheduleSpec | None) -> Iterator[DagError]:
    for owner in dag.unfinished.values():
        name = type(owner).__name__
        yield DagError(
            f"{name}.__init__ does not call super().__init__(**kwargs), so it is not a task"
        )
    required = _required_parameters(dag)
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
    """Report a branching task in a mapped group if other tasks of the group may expand later.

    A child can only skip tasks that exist, so all tasks of the group must expand at once.
    """
    if node.part not in CHOOSING or not node.is_mapped:
        return
    group = node.along | {node.task_index}
    makers = {maker.task_index for source in node.sources for maker in source.parents}
    for task_index in sorted(group):
        for outside in sorted(nodes[task_index].parents - group - makers):
            yield DagError(
                f"task {node.task_id!r} chooses what runs in a mapped group, so its tasks can come "
                f"after each other and their items alone, but {nodes[task_index].task_id!r} comes "
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


_AIRFLOW_PARAMETERS = frozenset({"dag_run", "task_instance", "ti"})
"""Parameter names that are only used as keys of Airflow's context."""

_NEEDS_NO_PARENT = frozenset({TriggerRule.ALL_SUCCESS, TriggerRule.ALWAYS})
_NEEDS_ALL_TO_SUCCEED = frozenset({TriggerRule.ALL_SUCCESS})


def lint(dag: DAG) -> list[DagFailure]:
    """Return warnings for a DAG in which ``describe`` found no error."""
    specs = [node.spec for node in dag.nodes if node.spec is not None]
    lines = {spec.task_id: spec.line for spec in specs}
    found = [
        DagFailure(
            "odd.orphan", f"task {name!r} has neither parents nor children", lines.get(name, 0)
        )
        for name in orphans(specs)
    ]
    found += (
        DagFailure("odd.parameter", f"nothing takes the parameter {name!r} of the DAG", dag.line)
        for name in _unused_parameters(dag)
    )
    found += (said for node in dag.nodes for said in _none_arguments(node, dag.nodes))
    found += (said for spec in specs for said in _without_effect(spec))
    found += (said for node in dag.nodes for said in _template_warnings(node))
    found += (said for node in dag.nodes for said in _never_filled(node))
    found += (
        DagFailure("odd.source", f"nothing is there that the DAG reads: {pattern}", dag.line)
        for pattern in dag.reads
        if not _matches_files(pattern, Path(dag.file).parent)
    )
    return found


def _template_warnings(node: Node) -> Iterator[DagFailure]:
    for said in odd_templates(node):
        line = 0 if node.spec is None else node.spec.line
        yield DagFailure("odd.template", f"task {node.task_id!r}: {said}", line)


def _never_filled(node: Node) -> Iterator[DagFailure]:
    """Report parameters that Airflow sets from its context, but that stay ``None`` here."""
    if node.fn is None or node.spec is None:
        return
    parameters = inspect.signature(node.fn).parameters
    for name in sorted(_AIRFLOW_PARAMETERS & parameters.keys() - node.arguments.keys()):
        if parameters[name].default is None:
            yield DagFailure(
                "odd.context",
                f"the parameter {name!r} of task {node.task_id!r} stays None{context_hint(name)}",
                node.spec.line,
            )


def _matches_files(pattern: str, folder: Path) -> bool:
    matches = glob.iglob(pattern, root_dir=folder, recursive=True)  # noqa: PTH207 - also absolute
    return next(matches, None) is not None


def _without_effect(spec: TaskSpec) -> Iterator[DagFailure]:
    if not spec.parents and (spec.rule not in _NEEDS_NO_PARENT or spec.min_success is not None):
        asked = spec.rule.value if spec.min_success is None else "min_success"
        yield DagFailure(
            "odd.rule",
            f"task {spec.task_id!r} has no parents, so {asked} asks nothing: it runs at once",
            spec.line,
        )
    sources = () if spec.mapped is None else spec.mapped.sources
    if any(source.width == 0 for source in sources):
        yield DagFailure(
            "odd.empty",
            f"task {spec.task_id!r} expands over an empty list, so it is always skipped",
            spec.line,
        )


def _unused_parameters(dag: DAG) -> list[str]:
    """Return the DAG's parameters that no argument uses.

    If a task reads the whole context, return none of them.
    """
    if any(node.operator is not None for node in dag.nodes):
        return []
    used: set[str] = set()
    for node in dag.nodes:
        for part in _parts(list(node.arguments.values())):
            if isinstance(part, FromParameter):
                used.add(part.name)
            elif isinstance(part, FromContext):
                if part.name in _CONTEXTS:
                    return []
                used.add(part.name.removeprefix("params."))
    return [name for name in dag.parameters if name not in used]


_CONTEXTS = frozenset({"context", "params", "dag_run", "conf"})


def _parts(value: Any) -> Iterator[object]:
    if isinstance(value, Nested):
        value = value.value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item)
    else:
        yield value


def _none_arguments(node: Node, nodes: list[Node]) -> Iterator[DagFailure]:
    """Report arguments that do not allow ``None``, but are ``None`` if a parent did not succeed."""
    if node.fn is None or node.spec is None:
        return
    for name, binding in node.arguments.items():
        if not isinstance(binding, FromTask) or binding.keys or name not in node.annotations:
            continue
        parent = nodes[binding.task_index]
        is_fan_in = parent.is_mapped and parent.task_index not in node.along
        is_safe = is_fan_in or _needs_success(node.spec, binding.task_index)
        if not is_safe and not fits(None, node.annotations[name]):
            yield DagFailure(
                "odd.none",
                f"task {node.task_id!r} may run although {parent.task_id!r} gave nothing; {name} "
                "is None then, which its annotation refuses",
                node.spec.line,
            )


def _needs_success(spec: TaskSpec, parent: int) -> bool:
    """Return whether a task runs only if this parent has succeeded."""
    rules = {group.rule for group in spec.groups if parent in group.parents}
    if not rules:
        rules = {spec.rule} if spec.min_success is None else set()
    return bool(rules & _NEEDS_ALL_TO_SUCCEED) or spec.min_success == 1
