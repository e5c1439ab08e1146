"""Tags and assets of the current versions of DAGs, for lists.

Reading a version costs a query. So each version is read once, and its declarations are cached
while it is the current one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec
from anyio.lowlevel import checkpoint

from aioflow.api.dags import KnownDags
from aioflow.model.dag import DagSpec
from aioflow.model.triggers import ASSETS

__all__ = ("Declarations", "Declared", "TagView", "count_tags")

_DAGS_AT_ONCE = 200


class Declared(NamedTuple):
    """The tags and assets of one version of a DAG.

    Attributes:
        tags: Its tags.
        outlets: The assets that its tasks update, and these tasks.
        is_consumer: Whether its schedule is a condition over assets.
    """

    tags: tuple[str, ...]
    outlets: tuple[tuple[str, str], ...]
    is_consumer: bool


class TagView(msgspec.Struct, frozen=True, kw_only=True):
    """A tag and the number of DAGs that have it."""

    tag: str
    dags: int


class Declarations:
    """The declarations of all DAGs that a file defines.

    Args:
        spec: Returns the DAG in a given version.
    """

    def __init__(self, spec: Callable[[str, str], Awaitable[DagSpec]]) -> None:
        self._spec = spec
        self._found: dict[tuple[str, str], Declared] = {}

    async def read(self, known: KnownDags) -> Mapping[str, Declared]:
        """Return the declarations of each DAG by its id. Only new versions are read."""
        found: dict[tuple[str, str], Declared] = {}
        for row in list(known.dags.values()):
            if row.gone:
                continue
            key = (row.dag_id, row.version)
            before = self._found.get(key)
            if before is None:
                if len(found) % _DAGS_AT_ONCE == 0:
                    await checkpoint()
                before = _declared(await self._spec(row.version, row.dag_id))
            found[key] = before
        self._found = found
        return {dag_id: one for (dag_id, _), one in sorted(found.items())}


def count_tags(declared: Mapping[str, Declared]) -> list[TagView]:
    """Return all tags by name, each with the number of DAGs that have it."""
    counts: dict[str, int] = {}
    for one in declared.values():
        for tag in set(one.tags):
            counts[tag] = counts.get(tag, 0) + 1
    return [TagView(tag=tag, dags=count) for tag, count in sorted(counts.items())]


def _declared(spec: DagSpec) -> Declared:
    outlets = tuple((name, task.task_id) for task in spec.tasks for name, _ in task.outlets)
    is_consumer = spec.trigger is not None and spec.trigger.class_path == ASSETS
    return Declared(spec.tags, outlets, is_consumer)
