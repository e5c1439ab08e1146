"""Shorthands for task specs in tests of runs."""

from __future__ import annotations

from typing import Any

from aioflow.model.dag import MapSource, MapSpec, TaskSpec

__all__ = ("mapped", "task")


def task(name: str, *parents: int, **fields: Any) -> TaskSpec:
    """Return a task. Its parents also provide its arguments, unless a field says otherwise."""
    fields.setdefault("argument_parents", parents)
    return TaskSpec(task_id=name, parents=parents, **fields)


def mapped(name: str, over: int, **fields: Any) -> TaskSpec:
    """Return a task that is expanded over the result of another task."""
    spec = MapSpec(sources=(MapSource("item", over, -1),))
    return task(name, over, mapped=spec, **fields)
