"""Pending tasks of a run that have a row, since they were cleared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from aioflow.core.state.pages import Numbers, Pages
from aioflow.model.ids import StartNo, TaskNo

__all__ = ("ClearedTasks",)

Held = TypeVar("Held")


class ClearedTasks(Generic[Held]):
    """The numbers of their last starts; until it is stored that one was cleared, the task."""

    __slots__ = ("_held", "_stored")

    def __init__(self) -> None:
        self._stored: Pages[StartNo] = Pages(Numbers)
        self._held: dict[TaskNo, Held] = {}

    def __contains__(self, task_no: TaskNo) -> bool:
        return task_no in self._held or task_no in self._stored

    def __bool__(self) -> bool:
        return bool(self._held) or bool(self._stored)

    def hold(self, task_no: TaskNo, task: Held) -> None:
        """A task may go on in the turn that has cleared it."""
        self._held[task_no] = task

    def put(self, task_no: TaskNo, start_no: StartNo) -> None:
        """It is stored that a task was cleared."""
        self._held.pop(task_no, None)
        self._stored.put(task_no, start_no)

    def take(self, task_no: TaskNo) -> Held | StartNo | None:
        """Forget one that does not wait any more; return what is known of it."""
        held = self._held.pop(task_no, None)
        return self._stored.take(task_no) if held is None else held

    def between(self, first: int, end: int) -> Iterator[TaskNo]:
        """Yield the numbers from ``first`` on, ``end`` excluded, in order."""
        held = [number for number in self._held if first <= number < end]
        stored = self._stored.between(first, end)
        return iter(sorted({*held, *stored})) if held else stored

    def items(self) -> Iterator[tuple[TaskNo, StartNo]]:
        """Yield what is stored."""
        return self._stored.items()
