"""Packed runs: a byte string instead of objects for runs whose tasks all wait."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from aioflow.core.state.graph import DagVersion
from aioflow.core.state.packed_maps import Interner, PackedMap, Pages, Rows, packed
from aioflow.core.state.task_instance import Run, TaskInstance
from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.rows import RunRow
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Timestamp

__all__ = ("PackedRuns",)


class _PackedRun(msgspec.Struct, frozen=True, array_like=True):
    """A packed run. Its tallies are not stored, because they follow from the states.

    Attributes:
        dag_version: Number of its DAG version in ``PackedRuns._dag_versions``.
        tasks: Number of its packed tasks.
    """

    dag_version: int
    run_no: RunNo
    run_id: str
    cause: str
    first_task_no: TaskNo
    logical_date: Timestamp | None
    conf: bytes | None
    key: str | None
    created_at: Timestamp
    started_at: Timestamp | None
    caller: TriggerNo | None
    states: bytes
    known: bytes
    results: dict[int, bytes]
    widths: dict[int, int]
    source_starts: dict[int, StartNo]
    tasks: int
    retried: int
    is_over_budget: bool
    beyond_budget: int
    started_by: str | None = None


_decode_run = msgspec.msgpack.Decoder(_PackedRun).decode


class PackedRuns(PackedMap[Run]):
    """Live runs by number, packed or not.

    Attributes:
        loose: Runs that may be packed after the commit.
    """

    __slots__ = ("_bodies", "_dag_versions", "_tasks", "loose")

    def __init__(self, tasks: PackedMap[TaskInstance]) -> None:
        super().__init__()
        self.loose: dict[RunNo, Run] = {}
        self._dag_versions: Interner[DagVersion] = Interner()
        self._bodies: Pages[bytes] = Pages(Rows)
        self._tasks = tasks

    def __len__(self) -> int:
        return len(self.objects) + len(self._bodies)

    def packed_numbers(self) -> Pages[bytes]:
        """See ``PackedMap``."""
        return self._bodies

    def unpack(self, number: RunNo) -> Run | None:
        """See ``PackedMap``."""
        body = self._bodies.take(number)
        if body is None:
            return None
        one = _decode_run(body)
        run = self.objects[number] = self.loose[number] = self._unpack(one)
        self._dag_versions.release(one.dag_version)
        return run

    def peek(self, number: RunNo) -> Run:
        """Return a run for reading only. A packed run stays packed.

        Raises:
            KeyError: If there is no such run.
        """
        run, body = self.objects.get(number), self._bodies.get(number)
        if run is not None:
            return run
        if body is None:
            raise KeyError(number)
        return self._unpack(_decode_run(body))

    def logical_date(self, number: RunNo) -> Timestamp | None:
        """Return the logical date of a run. A packed run stays packed.

        Raises:
            KeyError: If there is no such run.
        """
        body = self._bodies.get(number)
        return (
            self.objects[number].row.logical_date
            if body is None
            else _decode_run(body).logical_date
        )

    def count_dag_versions(self) -> Iterator[tuple[DagVersion, int]]:
        """Yield each DAG version that packed runs have, with the number of these runs."""
        return self._dag_versions.counts()

    def pack(self) -> None:
        """Pack the runs in ``loose`` that only wait."""
        for run in self.loose.values():
            if self._only_waits(run):
                self._pack(run)
        self.loose.clear()

    def _only_waits(self, run: Run) -> bool:
        """Return whether this is the current object of the run and can be packed without loss."""
        row = run.row
        return (
            self.objects.get(row.run_no) is run
            and row.state is RunState.RUNNING
            and row.backfill is None
            and not run.active_tasks.objects
            and len(run.active_tasks) > 0
            and not run.groups
            and not run.items
            and not run.cleared
            and run.clearing is None
            and run.running == 0
            and row.quarantine is None
            and row.ended_at is None
            and not run.blocked
            and not any(run.blocked_at.values())
        )

    def _pack(self, run: Run) -> None:
        row = run.row
        one = _PackedRun(
            self._dag_versions.acquire(run.dag_version),
            row.run_no,
            row.run_id,
            row.cause,
            row.first_task_no,
            row.logical_date,
            row.conf,
            row.key,
            row.created_at,
            row.started_at,
            row.caller,
            bytes(run.states),
            bytes(run.known) if any(run.known) else b"",
            run.results,
            run.widths,
            run.source_starts,
            len(run.active_tasks),
            run.retried,
            run.is_over_budget,
            run.beyond_budget,
            row.started_by,
        )
        del self.objects[row.run_no]
        self._bodies.put(row.run_no, packed(one))

    def _unpack(self, one: _PackedRun) -> Run:
        """Rebuild a packed run."""
        dag_version = self._dag_versions[one.dag_version]
        row = RunRow(
            run_no=one.run_no,
            run_id=one.run_id,
            dag_id=dag_version.graph.spec.dag_id,
            version=dag_version.version,
            state=RunState.RUNNING,
            cause=one.cause,
            first_task_no=one.first_task_no,
            logical_date=one.logical_date,
            conf=one.conf,
            key=one.key,
            created_at=one.created_at,
            started_at=one.started_at,
            caller=one.caller,
            started_by=one.started_by,
        )
        run = Run(row, dag_version)
        run.states[:] = one.states
        run.known[:] = one.known or run.known
        run.results, run.widths = one.results, one.widths
        run.source_starts = one.source_starts
        run.retried, run.is_over_budget = one.retried, one.is_over_budget
        run.beyond_budget = one.beyond_budget
        _rebuild_tallies(run)
        run.active_tasks.set_packed(one.tasks, self._tasks)
        return run


def _rebuild_tallies(run: Run) -> None:
    """Rebuild the tallies from the states of a run without expanded tasks."""
    for task_index, number in enumerate(run.states):
        state = TaskState(number)
        if not state.is_live:
            run.count_ended(task_index, state)
            run.unfinished -= 1
