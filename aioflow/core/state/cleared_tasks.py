"""Pending tasks of a run that have a row because they were cleared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from aioflow.core.state.pages import Numbers, Pages
from aioflow.model.ids import StartNo, TaskNo

__all__ = ("ClearedTasks",)

Held = TypeVar("Held")


class ClearedTasks(Generic[Held]):
    """Cleared tasks with their last ``start_no``, or with the task until the clear is committed."""

    __slots__ = ("_held", "_stored")

    def __init__(self) -> None:
        self._stored: Pages[StartNo] = Pages(Numbers)
        self._held: dict[TaskNo, Held] = {}

    def __contains__(self, task_no: TaskNo) -> bool:
        return task_no in self._held or task_no in self._stored

    def __bool__(self) -> bool:
        return bool(self._held) or bool(self._stored)

    def hold(self, task_no: TaskNo, task: Held) -> None:
        """Add a task that this turn cleared. It may start in the same turn."""
        self._held[task_no] = task

    def put(self, task_no: TaskNo, start_no: StartNo) -> None:
        """Record the last ``start_no`` of a cleared task: its clear is committed."""
        self._held.pop(task_no, None)
        self._stored.put(task_no, start_no)

    def take(self, task_no: TaskNo) -> Held | StartNo | None:
        """Remove a task that is no longer pending. Return its task or ``start_no``, or ``None``."""
        held = self._held.pop(task_no, None)
        return self._stored.take(task_no) if held is None else held

    def between(self, first: int, end: int) -> Iterator[TaskNo]:
        """Yield the task numbers in ``[first, end)``, ascending."""
        held = [number for number in self._held if first <= number < end]
        stored = self._stored.between(first, end)
        return iter(sorted({*held, *stored})) if held else stored

    def items(self) -> Iterator[tuple[TaskNo, StartNo]]:
        """Yield the committed entries."""
        return self._stored.items()
