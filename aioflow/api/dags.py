"""A cache of the rows of DAGs, and the next fire times of DAGs.

The rows of DAGs and files are read once, then updated by each commit. In the daemon's first
seconds, requests may wait until all DAG files have been parsed.

The code of a custom timetable runs in a child process only, so previews are requested from it.
The daemon already knows the fire time that each timetable waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from aioflow.api.page.schemas import ImportErrorView
from aioflow.api.schemas import DagView, iso
from aioflow.clock import Clock
from aioflow.core.scheduling import timetable
from aioflow.core.state.child_roles import TRIGGERS
from aioflow.core.state.memory import Memory
from aioflow.core.triggers.assignment import role_of
from aioflow.errors import TimetableAway, TimetableFailed, TimetableSilent
from aioflow.model.batch import Batch
from aioflow.model.dag import DagSpec
from aioflow.model.ids import TriggerNo
from aioflow.model.rows import DagFileRow, DagRow
from aioflow.model.states import CODE_MISSING, Failure
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import DagTriggerRow
from aioflow.protocol.commands import StartTrigger
from aioflow.protocol.reports import FireTimesPreviewed
from aioflow.store import Store

__all__ = (
    "GONE",
    "Catalogue",
    "FirstScan",
    "HostedTimetables",
    "KnownDags",
    "TimetableHost",
    "Timetables",
    "broken_view",
    "calendar_fire_times",
    "import_error",
    "import_errors",
    "next_run_at",
    "timetable_fire_times",
    "timetable_preview_command",
)


class KnownDags(NamedTuple):
    """DAGs and files by name. Read-only."""

    dags: Mapping[str, DagRow]
    files: Mapping[str, DagFileRow]


class Catalogue:
    """Rows of DAGs and their files as of the last commit.

    Args:
        follows: Whether ``committed`` is called for each batch. If not, there is no cache, and
            every call reads all rows.
    """

    def __init__(self, store: Store, *, follows: bool) -> None:
        self._store = store
        self._follows = follows
        self._dags: dict[str, DagRow] = {}
        self._files: dict[str, DagFileRow] = {}
        self._missed: list[Batch] | None = None
        self._is_read = False
        self._order: list[str] | None = None

    async def known(self) -> KnownDags:
        """Return all DAGs and files."""
        if not self._is_read:
            dags, files = await self._read()
            if not self._follows:
                return KnownDags(dags, files)
        return KnownDags(self._dags, self._files)

    async def names(self) -> list[str]:
        """Return the sorted ids of all DAGs that a file defines."""
        dags, _ = await self.known()
        if not self._follows:
            return _ordered(dags.values())
        if self._order is None:
            self._order = _ordered(dags.values())
        return self._order

    def committed(self, batch: Batch) -> None:
        """Apply the changes that a batch makes to DAGs and files."""
        if not (batch.dags or batch.dag_files or batch.gone_dags or batch.gone_files):
            return
        if self._is_read:
            self._take(batch)
        elif self._missed is not None:
            self._missed.append(batch)

    def forget(self) -> None:
        """Drop the cache, because another node has changed rows. They are re-read when needed."""
        self._is_read, self._missed, self._order = False, None, None

    async def _read(self) -> tuple[dict[str, DagRow], dict[str, DagFileRow]]:
        mine = self._missed = []
        dags = {row.dag_id: row for row in await self._store.list_dags()}
        files = {row.file: row for row in await self._store.list_dag_files()}
        if not self._follows or self._is_read or self._missed is not mine:
            return dags, files  # a later reader has set the cache, or will set it
        self._dags, self._files = dags, files
        self._is_read, self._missed = True, None
        for batch in mine:  # the rows read may be older than these batches, never newer
            self._take(batch)
        return dags, files

    def _take(self, batch: Batch) -> None:
        before = self._dags
        if any(_is_other(before.get(row.dag_id), row) for row in batch.dags) or batch.gone_dags:
            self._order = None
        self._dags.update((row.dag_id, row) for row in batch.dags)
        self._files.update((row.file, row) for row in batch.dag_files)
        for dag_id in batch.gone_dags:
            self._dags.pop(dag_id, None)
        for file in batch.gone_files:
            self._files.pop(file, None)


def _is_other(before: DagRow | None, row: DagRow) -> bool:
    return before is None or before.gone != row.gone


def _ordered(dags: Iterable[DagRow]) -> list[str]:
    return sorted(row.dag_id for row in dags if not row.gone)


GONE = "gone: no file defines it any more; its active runs continue"
"""Error text of a DAG whose file was deleted."""


def import_errors(known: KnownDags) -> list[ImportErrorView]:
    """Return the files that cannot be imported, sorted by name."""
    return [
        ImportErrorView(
            file=name,
            reason=row.reason,
            message=row.message or "",
            at=iso(row.parsed_at),
            last_good_version=row.version,
        )
        for name, row in sorted(known.files.items())
        if row.reason is not None
    ]


def import_error(file: DagFileRow | None) -> str | None:
    """Return why a file cannot be imported; ``None`` if it can."""
    if file is None or file.reason is None:
        return None
    return f"{file.reason}: {file.message}" if file.message else file.reason


def broken_view(file: DagFileRow) -> DagView:
    """Return the entry of the DAG list for a file that defines no DAG."""
    return DagView(
        dag_id=None,
        file=file.file,
        version=None,
        paused=False,
        schedule=None,
        timezone=None,
        next_run_at=None,
        import_error=import_error(file),
    )


FIRST_SCAN_SECONDS = 10.0
"""Time limit after the daemon's start, so that a hanging import cannot block requests."""

_SCAN_POLL_SECONDS = 0.05


class FirstScan:
    """Tracks whether the DAG folders have been read once since the daemon was started.

    Args:
        is_read: Returns whether the folders have been read.
    """

    def __init__(self, clock: Clock, is_read: Callable[[], bool]) -> None:
        self._clock = clock
        self._is_read = is_read
        self._until_us = clock.monotonic_us() + round(FIRST_SCAN_SECONDS * 1e6)

    @property
    def is_read(self) -> bool:
        """Whether the folders have been read."""
        return self._is_read()

    @property
    def is_over(self) -> bool:
        """Whether requests need not wait: the folders have been read, or the time is up."""
        return self._is_read() or self._clock.monotonic_us() >= self._until_us

    async def wait_for(self, is_known: Callable[[], bool]) -> None:
        """Wait until ``is_known`` returns true or ``is_over`` is true."""
        while not self.is_over and not is_known():
            await self._clock.sleep(_SCAN_POLL_SECONDS)


_FOREVER = 1 << 62

_TIMETABLE_SILENT = frozenset({"timeout", "lost"})


class Timetables(Protocol):
    """Access to custom timetables."""

    def expected(self) -> Mapping[str, Timestamp]:
        """Return the fire time that each DAG with a hosted timetable waits for."""

    def expected_of(self, dag_id: str) -> Timestamp | None:
        """Return the fire time that one DAG waits for."""

    async def preview(
        self, row: DagTriggerRow, version: str, after: Timestamp, count: int
    ) -> FireTimesPreviewed | None:
        """Preview a timetable's next fire times; ``None`` if no child process can compute them."""


class TimetableHost(Protocol):
    """The daemon's view of a process that hosts triggers."""

    @property
    def expected(self) -> Mapping[TriggerNo, Timestamp]:
        """The fire time that each hosted timetable waits for, by trigger number."""

    async def preview(
        self, host: StartTrigger, *, after: Timestamp, count: int
    ) -> FireTimesPreviewed | None:
        """Preview a timetable's next fire times after a timestamp."""


class HostedTimetables:
    """The custom timetables of a running daemon.

    Args:
        hosts: The current hosts by role.
        memory: The memory of the engine, from which the role of each class is derived.
        start: Starts the host that serves a role.
    """

    def __init__(
        self,
        hosts: Mapping[str, TimetableHost],
        memory: Callable[[], Memory],
        start: Callable[[str], None],
    ) -> None:
        self._hosts = hosts
        self._memory = memory
        self._start = start

    def expected(self) -> Mapping[str, Timestamp]:
        """See ``Timetables``."""
        dag_triggers = self._memory().dag_triggers
        fire_times = [
            fire_time for host in self._hosts.values() for fire_time in host.expected.items()
        ]
        known = [(dag_triggers.get(number), at) for number, at in fire_times]
        return {one.row.dag_id: at for one, at in known if one is not None}

    def expected_of(self, dag_id: str) -> Timestamp | None:
        """See ``Timetables``."""
        one = self._memory().dag_triggers.of(dag_id)
        if one is None or not one.assignment_id:
            return None
        host = self._hosts.get(one.role)
        return None if host is None else host.expected.get(one.row.trigger_no)

    async def preview(
        self, row: DagTriggerRow, version: str, after: Timestamp, count: int
    ) -> FireTimesPreviewed | None:
        """See ``Timetables``."""
        memory = self._memory()
        one = memory.dag_triggers.get(row.trigger_no)
        host = timetable_preview_command(row, version, 0 if one is None else one.assignment_id)
        plan = memory.dag_versions.get((version, row.dag_id))
        role = TRIGGERS if plan is None else role_of(row.class_path, plan, memory)
        asked = self._hosts.get(role)
        if asked is None:
            self._start(role)
            return None
        return await asked.preview(host, after=after, count=count)


def timetable_preview_command(row: DagTriggerRow, version: str, assignment_id: int) -> StartTrigger:
    """Return the command that makes a child process create a timetable for a preview.

    Args:
        version: The newest version of the timetable's DAG.
        assignment_id: The timetable's current assignment, to which its output is attributed; 0 if
            it is not hosted.
    """
    return StartTrigger(
        trigger_no=row.trigger_no,
        assignment_id=assignment_id,
        run_no=row.trigger_no,
        task_no=-1,
        version=version,
        class_path=row.class_path,
        kwargs=row.kwargs or b"",
        since=row.since,
        logical_date=None,
        dag_id=row.dag_id,
    )


async def timetable_fire_times(
    timetables: Timetables | None,
    dag: DagRow,
    own: DagTriggerRow | None,
    after: Timestamp,
    count: int,
) -> tuple[Timestamp, ...]:
    """Return the next fire times of a custom timetable, computed by its newest code.

    Args:
        own: The stored trigger of the DAG.

    Raises:
        TimetableAway: If no child process can compute them.
        TimetableSilent: If the timetable takes too long or crashes its host.
        TimetableFailed: If the timetable raised or returned invalid fire times, or if no key can
            decrypt its fields.
    """
    if timetables is None or own is None:
        raise TimetableAway(dag.dag_id)
    if own.kwargs is None:
        raise TimetableFailed(dag.dag_id, "no key of this home can decrypt its fields", dag.file)
    answer = await timetables.preview(own, dag.version, after, count)
    if answer is None:
        raise TimetableAway(dag.dag_id)
    failure = answer.failure
    if failure is None:
        return answer.fire_times
    if failure.reason in _TIMETABLE_SILENT:
        raise TimetableSilent(dag.dag_id, failure.message)
    raise TimetableFailed(dag.dag_id, _timetable_error(failure), dag.file)


def _timetable_error(failure: Failure) -> str:
    if failure.reason == CODE_MISSING:
        return f"its code is missing: {failure.message}"
    return f"{failure.type}: {failure.message}"


def calendar_fire_times(
    row: DagRow, spec: DagSpec, after: Timestamp, count: int
) -> list[Timestamp]:
    """Return the next fire times of a built-in schedule; empty if they depend on earlier runs.

    ``@once`` has one fire time until its run has been created.
    """
    if spec.schedule is None or spec.schedule.gap_us is not None:
        return []
    if spec.schedule.once:
        at = next_run_at(row, spec)
        return [] if at is None or count < 1 else [at]
    if spec.start_date is not None:
        after = max(after, spec.start_date - 1)
    until = _FOREVER if spec.end_date is None else spec.end_date
    return timetable.fire_times_between(
        spec.schedule, spec.timezone, after=after, until=until, limit=count
    )


def next_run_at(row: DagRow, spec: DagSpec) -> Timestamp | None:
    """Return the stored next fire time, provided that a run will be created then.

    If the schedule has ended or the DAG was deleted, a fire time is still stored but no run is
    created. If each run is scheduled after the end of the previous one, the next fire time is
    unknown.
    """
    at = row.next_run_at
    if at is None or row.gone or spec.schedule is None or spec.schedule.gap_us is not None:
        return None
    return None if spec.end_date is not None and at > spec.end_date else at
