"""What a store promises to those who look through it: people, and what answers them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.rows import NamedEventRow, NodeRow, RunRow, TaskRow, TriggerRow, TryRow
from aioflow.model.states import TaskState, TriggerState
from aioflow.model.timestamps import Timestamp

__all__ = ("AGE_SECONDS", "Browsed", "CommitsAbove", "Counted", "WaitCount")

AGE_SECONDS = (60, 600, 3_600, 6 * 3_600, 24 * 3_600)
"""Waits are counted by how old they are: up to these, and older."""

Counted: TypeAlias = tuple[int, TaskState, int, Timestamp | None, Timestamp | None]
"""Position, state, count, when the first of them began, and when the last ended."""

WaitCount: TypeAlias = tuple[str, Timestamp, tuple[int, ...]]
"""Class path, since when the oldest waits, and the counts by age, see ``AGE_SECONDS``."""


class CommitsAbove(NamedTuple):
    """What the journal has above the number of the last commit, where it should have nothing.

    Both are written in one transaction, so one of the two is damaged.

    Attributes:
        number: Of the last commit, as the row of the node has it.
        rows: How many there are above it.
        first, newest: The numbers of the first and the last row above it.
        last: That of the last row that is not above it; ``None`` if there is none.
    """

    number: int
    rows: int
    first: int
    newest: int
    last: int | None

    def __str__(self) -> str:
        """Say which row is damaged, and how to mend it."""
        if self._is_node_damaged:
            row = f"table node, row node_no=1, column commit_no: {self.number}"
            why = f"the journal goes on to {self.newest}"
            mend = f"UPDATE node SET commit_no = {self.newest} WHERE node_no = 1"
        else:
            row = f"table journal, row commit_no={self.newest}, column commit_no"
            why = f"that is above the last commit of the node, {self.number}"
            mend = f"DELETE FROM journal WHERE commit_no > {self.number}"
            if self.rows == 1 and self.last == self.number - 1:  # it is the row that is missing
                new = f"SET commit_no = {self.number} WHERE commit_no = {self.newest}"
                mend = f"UPDATE journal {new}"
        return f"damaged: {row}: {why}; copy the database, then mend it: {mend}"

    @property
    def _is_node_damaged(self) -> bool:
        """Whether the journal goes on without a gap, behind the row of that commit if it has it."""
        if self.newest - self.first + 1 != self.rows:
            return False
        if self.last == self.number:
            return self.first == self.number + 1
        return self.last is None or self.last != self.number - 1 or self.rows > 1


class Browsed(Protocol):
    """The part of a store that only people ask; see ``Store``."""

    async def list_recent_runs(
        self, dag_ids: Sequence[str], *, limit: int = 20
    ) -> dict[str, list[RunRow]]:
        """Return the newest runs of each of these DAGs."""

    async def count_failed_since(self, since: Timestamp, *, limit: int = 1_000) -> int:
        """Return how many of the newest failed runs, ``limit`` at most, ended since."""

    async def count_versions_of_dag(
        self, dag_id: str, *, limit: int = 10_000
    ) -> list[tuple[str, int]]:
        """Return which versions the newest runs of a DAG have, and how many of them."""

    async def find_live_dags(self) -> set[str]:
        """Return the DAGs that have a run which has not ended."""

    async def find_made_at(self, versions: Collection[str]) -> dict[str, Timestamp]:
        """Return when these versions were seen first, those that there are."""

    async def find_runs_by_no(self, run_nos: Collection[RunNo]) -> dict[RunNo, RunRow]:
        """Return those that there are, by number; not those being deleted."""

    async def list_tries_between(
        self, first: TaskNo, end: TaskNo, limit: int = 1_000
    ) -> list[TryRow]:
        """Return kept tries by task and start, ``end`` excluded."""

    async def count_states_between(self, first: TaskNo, end: TaskNo) -> list[Counted]:
        """Return how the task rows of a range of numbers stand, all but removed ones."""

    async def count_tasks_in(self, first: TaskNo, end: TaskNo, state: TaskState) -> int:
        """Return how many task rows of a range of numbers stand so."""

    async def find_first_failed(self, run_no: RunNo) -> TaskRow | None:
        """Return the task of a run that has failed first, if one has. Reads all of its rows."""

    async def list_task_nos_in(
        self, first: TaskNo, end: TaskNo, state: TaskState, *, offset: int, limit: int
    ) -> list[TaskNo]:
        """Return their numbers, in order."""

    async def find_waits_of_task(
        self, run_no: RunNo, task_no: TaskNo, *, limit: int = 10
    ) -> list[TriggerRow]:
        """Return the triggers of one task."""

    async def browse_triggers(
        self,
        *,
        paths: Sequence[str] = (),
        prefixes: Sequence[str] = (),
        dag_id: str | None = None,
        state: TriggerState | None = None,
        after: TriggerNo = -1,
        limit: int = 1_000,
    ) -> list[TriggerRow]:
        """Return trigger rows by number.

        Args:
            paths, prefixes: Of these classes, or of those whose paths begin so; of all if there
                are neither.
            dag_id: Of live runs of this DAG.
        """

    async def browse_trigger_nos(
        self,
        *,
        state: TriggerState,
        paths: Sequence[str] = (),
        prefixes: Sequence[str] = (),
        dag_id: str | None = None,
        after: TriggerNo = -1,
        limit: int = 1_000,
    ) -> list[TriggerNo]:
        """Return the numbers of such rows, in order; see ``browse_triggers``."""

    async def find_triggers(self, numbers: Collection[TriggerNo]) -> list[TriggerRow]:
        """Return those of these that there are, by number."""

    async def count_waits(self, now: Timestamp) -> list[WaitCount]:
        """Return what waits, by class."""

    async def find_named_event_no(self, event_no: int) -> NamedEventRow | None:
        """Return the named event of that number."""

    async def list_started_by(self, paths: Sequence[str], key: str, *, limit: int) -> list[RunNo]:
        """Return the runs that triggers of DAGs of classes started for an event with that key."""

    async def list_nodes(self) -> list[NodeRow]:
        """Return every node that ever claimed this database."""

    async def commits_above(self, number: int) -> CommitsAbove | None:
        """Return what the journal has above the number of a commit; ``None`` if nothing."""

    async def oldest_commit(self) -> int | None:
        """Return the number of the first row of the journal; ``None`` if it has none."""
