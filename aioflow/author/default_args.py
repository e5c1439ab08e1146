"""Default options of tasks: merges the ``default_args`` of the DAG and of its groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aioflow.author.dag import DAG
from aioflow.author.options import SENSOR_NAMES, TASK_NAMES, without_replaced

__all__ = ("with_default_args",)


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
