"""Expansion rows that one transaction adds, changes and deletes."""

from __future__ import annotations

from aioflow.core.state.task_instance import MappedTask
from aioflow.model.batch import Batch
from aioflow.model.ids import RunNo
from aioflow.model.rows import ExpansionChange, ExpansionRow

__all__ = ("Expansions",)


class Expansions:
    """The expansion changes of one transaction; ``close`` adds them to its batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._changed: dict[tuple[RunNo, int], tuple[MappedTask, int]] = {}

    def change(self, group: MappedTask, was: int) -> None:
        """Record the width that an expansion had before its first change; -1 if it had no row."""
        self._changed.setdefault((group.run.run_no, group.position), (group, was))

    def take_over(self, group: MappedTask) -> None:
        """Replace the object of an expansion; changes recorded so far apply to the new one."""
        key = group.run.run_no, group.position
        if key in self._changed:
            self._changed[key] = group, self._changed[key][1]

    def dissolve(self, run_no: RunNo, position: int) -> None:
        """Delete the row of an expansion and drop this turn's changes of it.

        The task may be expanded again in the same turn.
        """
        _, was = self._changed.pop((run_no, position), (None, 0))
        if was >= 0:  # an expansion of this turn has no row yet
            self._batch.gone_expansions.append((run_no, position))

    def close(self) -> None:
        """Add the recorded changes to the batch."""
        for group, was in self._changed.values():
            number, position = group.run.run_no, group.position
            if was < 0:
                row = ExpansionRow(
                    run_no=number,
                    position=position,
                    width=group.width,
                    first_task_no=group.first_task_no,
                    is_open=group.is_open,
                )
                self._batch.new_expansions.append(row)
            else:
                change = ExpansionChange(number, position, was, group.width, group.is_open)
                self._batch.expansion_changes.append(change)
