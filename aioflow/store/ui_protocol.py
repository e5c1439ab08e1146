"""The protocol of the reads that serve the user interface and the API."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from aioflow.model.children import Cell, ChildCount, SlowChild
from aioflow.model.decisions import DecisionRow
from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.notes import NO_TASK, NoteRow
from aioflow.model.rows import NamedEventRow, NodeRow, RunRow, TaskRow, TriggerRow, TryRow
from aioflow.model.run_filter import RunCounts, RunFilter
from aioflow.model.states import TaskState, TriggerState
from aioflow.model.timestamps import Timestamp

__all__ = ("AGE_SECONDS", "Browsed", "CommitsAbove", "Counted", "JournalEnd", "WaitCount")

AUDIT_SEARCHED = 10_000
"""Number of the newest audit entries that are searched for the clears of a run."""

AGE_SECONDS = (60, 600, 3_600, 6 * 3_600, 24 * 3_600)
"""Upper limits of the age classes in which triggers are counted. The last class has no limit."""

Counted: TypeAlias = tuple[int, TaskState, int, Timestamp | None, Timestamp | None]
"""Task index, state, count, earliest start, and latest end."""

WaitCount: TypeAlias = tuple[str, Timestamp, tuple[int, ...]]
"""Class path, earliest start of a wait, and counts by age, see ``AGE_SECONDS``."""


class JournalEnd(NamedTuple):
    """The end of the journal in one committed state.

    Attributes:
        seq: The ``seq`` of the newest row; 0 if there is none.
        commits: Number of the last commit of each node.
    """

    seq: int
    commits: dict[int, int]


class CommitsAbove(NamedTuple):
    """Journal rows with commit numbers above the last commit of their node, which shows damage.

    The node's row and the journal row are written in one transaction, so one of the two numbers is
    damaged.

    Attributes:
        number: Number of the last commit, from the node's row.
        rows: How many journal rows have a higher number.
        first, newest: Lowest and highest number of the rows with a higher number.
        last: Highest number of the other journal rows; ``None`` if there are none.
    """

    number: int
    rows: int
    first: int
    newest: int
    last: int | None
    node_no: int = 1

    def __str__(self) -> str:
        """Describe which row is damaged, and how to repair it."""
        of_node = f"node_no = {self.node_no}"
        if self._is_node_damaged:
            row = f"table node, row node_no={self.node_no}, column commit_no: {self.number}"
            why = f"the journal continues to {self.newest}"
            mend = f"UPDATE node SET commit_no = {self.newest} WHERE {of_node}"
        else:
            row = f"table journal, row commit_no={self.newest}, column commit_no"
            why = f"that is above the last commit of the node, {self.number}"
            mend = f"DELETE FROM journal WHERE {of_node} AND commit_no > {self.number}"
            if self.rows == 1 and self.last == self.number - 1:  # the number of this row is damaged
                new = f"SET commit_no = {self.number}"
                mend = f"UPDATE journal {new} WHERE {of_node} AND commit_no = {self.newest}"
        return f"damaged: {row}: {why}; copy the database, then repair it: {mend}"

    @property
    def _is_node_damaged(self) -> bool:
        """Whether the row of the node is damaged, and not a row of the journal.

        This is assumed if the rows above ``number`` have no gap and, if the journal also has a row
        with ``number`` itself, start right after it.
        """
        if self.newest - self.first + 1 != self.rows:
            return False
        if self.last == self.number:
            return self.first == self.number + 1
        return self.last is None or self.last != self.number - 1 or self.rows > 1


class Browsed(Protocol):
    """The part of a store that serves only the user interface and the API; see ``Store``."""

    async def list_recent_runs(
        self, dag_ids: Sequence[str], *, limit: int = 20
    ) -> dict[str, list[RunRow]]:
        """Return the newest runs of each of these DAGs."""

    async def count_failed_since(self, since: Timestamp, *, limit: int = 1_000) -> int:
        """Return how many of the newest ``limit`` failed runs ended at or after ``since``."""

    async def count_versions_of_dag(
        self, dag_id: str, *, limit: int = 10_000
    ) -> list[tuple[str, int]]:
        """Return the versions of the newest ``limit`` runs of a DAG, each with its run count."""

    async def find_matching_runs(
        self, wanted: RunFilter, *, limit: int, before: RunNo | None = None
    ) -> list[RunRow]:
        """Return runs that match a filter, the newest first.

        Args:
            before: Only runs with a lower number.
        """

    async def count_matching_runs(self, wanted: RunFilter, *, limit: int) -> RunCounts:
        """Return the numbers of runs that match a filter, by DAG, state and cause.

        If the filter contains texts, or the database has more than a million runs, only the newest
        ``limit`` runs are counted.
        """

    async def find_live_dags(self) -> set[str]:
        """Return the DAGs with at least one run that has not ended."""

    async def find_made_at(self, versions: Collection[str]) -> dict[str, Timestamp]:
        """Return the creation times of the versions that exist."""

    async def find_runs_by_no(self, run_nos: Collection[RunNo]) -> dict[RunNo, RunRow]:
        """Return the existing runs by number, without those being deleted."""

    async def list_tries_between(
        self, first: TaskNo, end: TaskNo, limit: int = 1_000
    ) -> list[TryRow]:
        """Return the stored tries of the tasks in a range, by task and start.

        ``end`` is excluded.
        """

    async def count_states_between(self, first: TaskNo, end: TaskNo) -> list[Counted]:
        """Return the task rows in a range, counted by task and state.

        Removed tasks are excluded.
        """

    async def count_tasks_in(self, first: TaskNo, end: TaskNo, state: TaskState) -> int:
        """Return how many task rows in a range are in this state."""

    async def find_first_failed(self, run_no: RunNo) -> TaskRow | None:
        """Return the task of a run that failed first, if any. Reads all task rows of the run."""

    async def list_task_nos_in(
        self, first: TaskNo, end: TaskNo, state: TaskState, *, offset: int, limit: int
    ) -> list[TaskNo]:
        """Return the numbers of the tasks in a range that are in this state, in order."""

    async def count_children(
        self, first: TaskNo, end: TaskNo, *, since: Timestamp
    ) -> list[ChildCount]:
        """Return the task rows in a range, counted by state and duration.

        Removed tasks are excluded.

        Args:
            since: The time from which on an end counts as recent.
        """

    async def list_cells(self, first: TaskNo, end: TaskNo, *, size: int) -> list[Cell]:
        """Return the task rows in a range as cells of ``size`` numbers. Empty cells are omitted."""

    async def list_slowest(self, first: TaskNo, end: TaskNo, *, limit: int) -> list[SlowChild]:
        """Return the ended tasks in a range whose last try took longest."""

    async def list_failed(self, first: TaskNo, end: TaskNo, *, limit: int) -> list[TaskRow]:
        """Return the tasks in a range that have failed, by number."""

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
            paths, prefixes: Only triggers with one of these class paths, or with a class path that
                has one of these prefixes. If both are empty, all triggers.
            dag_id: Only triggers of live runs of this DAG.
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
        """Return the numbers of the rows that ``browse_triggers`` would return, in order."""

    async def find_triggers(self, numbers: Collection[TriggerNo]) -> list[TriggerRow]:
        """Return the existing triggers with these numbers, by number."""

    async def list_oldest_waits(
        self, outside: Sequence[tuple[TaskNo, TaskNo]], *, limit: int
    ) -> list[TriggerRow]:
        """Return the waiting triggers with the lowest numbers.

        Args:
            outside: Ranges of tasks whose triggers are left out. The end of a range is excluded.
        """

    async def list_clears(self, run_id: str) -> list[tuple[Timestamp, str, str]]:
        """Return when tasks of a run were cleared, by whom, and the target in the audit, in order.

        Clears of many runs at once are included, with the id of the run as target. Only the newest
        ``AUDIT_SEARCHED`` entries of the audit are searched.
        """

    async def list_decisions(
        self,
        *,
        is_open: bool | None = None,
        dag_id: str | None = None,
        run_no: RunNo | None = None,
        before: TriggerNo | None = None,
        limit: int = 100,
    ) -> list[DecisionRow]:
        """Return a page of decisions, the newest first.

        Args:
            is_open: If true, only decisions that have not ended; if false, only those that have.
            dag_id, run_no: Only decisions of runs of this DAG, or of this run.
            before: Only decisions with lower numbers.
        """

    async def find_decisions(self, numbers: Collection[TriggerNo]) -> list[DecisionRow]:
        """Return the existing decisions with these numbers, in no order."""

    async def find_decisions_of_task(
        self, run_no: RunNo, task_no: TaskNo, *, limit: int = 10
    ) -> list[DecisionRow]:
        """Return the newest decisions of one task, the newest first."""

    async def count_open_decisions(self) -> int:
        """Return how many decisions have not ended."""

    async def find_note(self, run_no: RunNo, task_index: int, map_index: int) -> NoteRow | None:
        """Return the note on a task instance, or on a run; ``None`` if it has none."""

    async def list_notes(
        self, run_no: RunNo, *, after: tuple[int, int] = NO_TASK, limit: int = 1_000
    ) -> list[NoteRow]:
        """Return the notes on a run and its tasks, the note on the run itself first.

        Args:
            after: Task index and map index of the last note of the previous page.
        """

    async def find_notes_of_runs(self, run_nos: Collection[RunNo]) -> dict[RunNo, NoteRow]:
        """Return the notes on runs, by run number. Notes on tasks of the runs are not included."""

    async def find_call_labels(self, numbers: Collection[TriggerNo]) -> dict[TriggerNo, str]:
        """Return the labels of the durable calls that wait for these triggers, if any."""

    async def find_labels(self, numbers: Collection[TaskNo]) -> dict[TaskNo, str]:
        """Return the labels of the mapped children with these numbers, if any."""

    async def find_try_starts(self, numbers: Collection[TaskNo]) -> dict[TaskNo, list[StartNo]]:
        """Return the last execution of each stored try of these tasks, in order."""

    async def count_waits(self, now: Timestamp) -> list[WaitCount]:
        """Return the number of waiting triggers by class and age."""

    async def find_named_event_no(self, event_no: int) -> NamedEventRow | None:
        """Return the named event with that number."""

    async def list_started_by(self, paths: Sequence[str], key: str, *, limit: int) -> list[RunNo]:
        """Return the runs that DAG triggers of these classes started for events with that key."""

    async def list_nodes(self) -> list[NodeRow]:
        """Return every node that has ever claimed this database."""

    async def find_journal_end(self) -> JournalEnd:
        """Return the end of the journal."""

    async def commits_above(self, number: int, *, node_no: int = 1) -> CommitsAbove | None:
        """Return a node's journal rows above a commit number; ``None`` if there are none."""

    async def oldest_commit(self) -> int | None:
        """Return the ``seq`` of the oldest journal row; ``None`` if the journal is empty."""

    async def newest_commit(self) -> int | None:
        """Return the ``seq`` of the newest journal row; ``None`` if the journal is empty."""
