"""A DAG version as its runs share it: its graph and the measured durations of its tasks."""

from __future__ import annotations

from array import array

from aioflow.core.state.graph import Graph
from aioflow.model.dag import DagSpec

__all__ = ("DagVersion",)


class DagVersion:
    """A DAG version, with measured durations of its tasks.

    Attributes:
        durations: Expected microseconds of user code by position; 0 while unknown.
        is_taken: 1 where a task takes the result of the position as an argument.
    """

    __slots__ = ("durations", "graph", "is_taken", "version")

    def __init__(self, version: str, spec: DagSpec) -> None:
        self.version = version
        self.graph = Graph(spec)
        self.durations = array("d", bytes(8 * len(spec.tasks)))
        self.is_taken = bytearray(len(spec.tasks))
        for task in spec.tasks:
            for parent in task.argument_parents:
                self.is_taken[parent] = 1

    @property
    def widest_run(self) -> int:
        """Upper bound of the row numbers that creating and starting one run needs."""
        tasks = self.graph.spec.tasks
        mapped = sum(task.map_limit for task in tasks if task.mapped is not None)
        spec = self.graph.spec
        deadlines = sum(task.deadline_us is not None for task in tasks)
        deadlines += spec.deadline_us is not None
        called = sum(task.callbacks is not None for task in tasks)
        return mapped + len(tasks) + deadlines + 2 * called + 5
