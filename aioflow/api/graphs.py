"""The graph of a DAG, its versions and their source code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aioflow._threads import in_thread
from aioflow.api.page_schemas import (
    CodeFileView,
    CodeView,
    EdgeView,
    GraphView,
    GroupView,
    TaskNodeView,
    VersionView,
)
from aioflow.api.queries import RunReader
from aioflow.api.schemas import iso
from aioflow.errors import UnknownDag, UnknownVersion
from aioflow.model.dag import Chooses, DagSpec, TaskSpec

__all__ = ("CODE_BYTES", "Graphs")

CODE_BYTES = 1024 * 1024
"""Limit for all files of a version together."""

_VERSIONS = 100


class Graphs:
    """Reads the versions of DAGs.

    Args:
        reader: Reads the database.
    """

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader

    async def graph(self, dag_id: str, version: str | None = None) -> GraphView:
        """Return nodes, edges and groups of a version, by default the newest.

        Raises:
            UnknownDag: If there is no such DAG.
            UnknownVersion: If it has no such version.
        """
        wanted, spec = await self._spec(dag_id, version)
        return GraphView(
            version=wanted,
            nodes=[_node(task) for task in spec.tasks],
            edges=[edge for task in spec.tasks for edge in _edges(task, spec)],
            groups=_groups(task.group for task in spec.tasks),
        )

    async def code(self, dag_id: str, version: str | None = None) -> CodeView:
        """Return the files of a version, the DAG's own file first.

        Raises:
            UnknownDag: If there is no such DAG.
            UnknownVersion: If it has no such version.
        """
        wanted, spec = await self._spec(dag_id, version)
        row = await self._reader.store.find_version(wanted)
        if row is None:
            raise UnknownVersion(dag_id, wanted)
        return CodeView(
            version=wanted,
            files=await in_thread(_files, row.sources, spec.file),
            made_at=iso(row.created_at),
        )

    async def versions(self, dag_id: str) -> list[VersionView]:
        """Return the current version of a DAG and those of its newest runs, the newest first."""
        row = await self._reader.shown_row(dag_id)
        store = self._reader.store
        runs = {row.version: 0} | dict(await store.count_versions_of_dag(dag_id))
        made_at = await store.find_made_at(runs)
        newest = sorted(runs, key=lambda version: (made_at.get(version, 0), version), reverse=True)
        return [
            VersionView(version=version, made_at=iso(made_at.get(version)), runs=runs[version])
            for version in newest[:_VERSIONS]
        ]

    async def _spec(self, dag_id: str, version: str | None) -> tuple[str, DagSpec]:
        if version is None:
            version = (await self._reader.shown_row(dag_id)).version
        try:
            return version, await self._reader.spec(version, dag_id)
        except UnknownDag:
            raise UnknownVersion(dag_id, version) from None


def _files(sources: Mapping[str, bytes], first: str) -> list[CodeFileView]:
    found, room = [], CODE_BYTES
    for name in sorted(sources, key=lambda name: (name != first, name)):
        text = sources[name][:room].decode(errors="replace")
        room -= len(sources[name][:room])
        found.append(CodeFileView(name=name, text=text))
    return found


def _node(task: TaskSpec) -> TaskNodeView:
    rule = task.rule.value if task.min_success is None else f"min_success={task.min_success:g}"
    return TaskNodeView(
        task_id=task.task_id,
        body=task.body.value,
        group=task.group or None,
        is_mapped=task.mapped is not None,
        is_sensor=task.sensor is not None,
        trigger_rule=rule,
        kind=_kind(task),
        doc=task.doc,
        line=task.line,
    )


def _kind(task: TaskSpec) -> str:
    if task.is_setup or task.is_teardown:
        return "setup" if task.is_setup else "teardown"
    if task.chooses is Chooses.ROUNDS:
        return "until"
    if task.chooses is not Chooses.NOTHING:
        return "branch"
    return "task" if task.sensor is None else "sensor"


def _edges(task: TaskSpec, spec: DagSpec) -> list[EdgeView]:
    rules = {parent: group.rule.value for group in task.groups for parent in group.parents}
    own = task.rule.value if task.min_success is None else f"min_success={task.min_success:g}"
    return [
        EdgeView(
            source=spec.tasks[parent].task_id, target=task.task_id, rule=rules.get(parent, own)
        )
        for parent in task.parents
    ]


def _groups(names: Iterable[str]) -> list[GroupView]:
    """Return the groups of tasks and their enclosing groups, derived from the dotted ids."""
    known: dict[str, str | None] = {}
    for name in filter(None, names):
        parts = name.split(".")
        around: str | None = None
        for end in range(1, len(parts) + 1):
            group_id = ".".join(parts[:end])
            known.setdefault(group_id, around)
            around = group_id
    return [GroupView(group_id=group_id, parent=parent) for group_id, parent in known.items()]
