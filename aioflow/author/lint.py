"""Lints a DAG: ``dags check`` reports the findings as warnings; the DAG runs all the same."""

from __future__ import annotations

import glob
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aioflow.author.airflow_context import context_hint
from aioflow.author.binding import FromContext, FromParameter, FromTask, Nested
from aioflow.author.dag import DAG
from aioflow.author.node import Node
from aioflow.author.template_fields import odd_templates
from aioflow.author.type_check import fits
from aioflow.core.state.graph import orphans
from aioflow.model.dag import TaskSpec
from aioflow.model.states import TriggerRule
from aioflow.protocol.parse_results import DagFailure

__all__ = ("advice",)

_OF_AIRFLOW = frozenset({"dag_run", "task_instance", "ti"})
"""Parameter names that have no use but as keys of Airflow's context."""

_NEEDS_NO_PARENT = frozenset({TriggerRule.ALL_SUCCESS, TriggerRule.ALWAYS})
_ASKS_ALL_TO_SUCCEED = frozenset({TriggerRule.ALL_SUCCESS})


def advice(dag: DAG) -> list[DagFailure]:
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
        for name in _unused(dag)
    )
    found += (said for node in dag.nodes for said in _none_arguments(node, dag.nodes))
    found += (said for spec in specs for said in _without_effect(spec))
    found += (said for node in dag.nodes for said in _templates(node))
    found += (said for node in dag.nodes for said in _never_filled(node))
    found += (
        DagFailure("odd.source", f"nothing is there that the DAG reads: {pattern}", dag.line)
        for pattern in dag.reads
        if not _is_there(pattern, Path(dag.file).parent)
    )
    return found


def _templates(node: Node) -> Iterator[DagFailure]:
    for said in odd_templates(node):
        line = 0 if node.spec is None else node.spec.line
        yield DagFailure("odd.template", f"task {node.task_id!r}: {said}", line)


def _never_filled(node: Node) -> Iterator[DagFailure]:
    """Report parameters that Airflow fills from its context and that stay ``None`` here."""
    if node.fn is None or node.spec is None:
        return
    parameters = inspect.signature(node.fn).parameters
    for name in sorted(_OF_AIRFLOW & parameters.keys() - node.arguments.keys()):
        if parameters[name].default is None:
            yield DagFailure(
                "odd.context",
                f"the parameter {name!r} of task {node.task_id!r} stays None{context_hint(name)}",
                node.spec.line,
            )


def _is_there(pattern: str, folder: Path) -> bool:
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


def _unused(dag: DAG) -> list[str]:
    """Return the DAG's parameters that no argument uses; none if a task reads the whole context."""
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
    """Report arguments that are ``None`` if a parent did not succeed, against their annotation."""
    if node.fn is None or node.spec is None:
        return
    for name, binding in node.arguments.items():
        if not isinstance(binding, FromTask) or binding.keys or name not in node.annotations:
            continue
        parent = nodes[binding.position]
        is_fan_in = parent.is_mapped and parent.position not in node.along
        is_safe = is_fan_in or _needs_success(node.spec, binding.position)
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
    return bool(rules & _ASKS_ALL_TO_SUCCEED) or spec.min_success == 1
