"""What the engine remembers: the catalog, live runs, their tasks, and what these wait for."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec

from aioflow.core.state.accounts import Accounts
from aioflow.core.state.dag_triggers import DagTriggers
from aioflow.core.state.dag_version import DagVersion
from aioflow.core.state.loop_blocking import LoopBlockers
from aioflow.core.state.outbox_quota import OutboxQuota
from aioflow.core.state.packing import PackedCache, Packing
from aioflow.core.state.run_sequence import RunSequence, ended_as, run_key
from aioflow.core.state.suspects import CrashSuspects
from aioflow.core.state.task_instance import Run, TaskInstance, TriggerInstance
from aioflow.errors import RequestError
from aioflow.model.backfill import BackfillRow
from aioflow.model.dag import DagSpec
from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.rows import DagFileRow, DagRow, OutboxRow, RunRow, TaskRow, TriggerRow, ValueRow
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.outbox import CLEAR, TRIAL, Clearing, Deadline, Trial

__all__ = ("WAITS_LIMIT", "Memory", "RetryMinute", "RunEnd")

_DIGITS = 20

_decode = msgspec.msgpack.Decoder(Clearing).decode
_decode_trial = msgspec.msgpack.Decoder(Trial).decode

WAITS_LIMIT = 100
"""Triggers a coroutine may wait for at once."""


class RetryMinute(msgspec.Struct, frozen=True):
    """A minute of one pool in which tasks ran again.

    Attributes:
        is_over: One of them was not to.
        is_known: People were told of that in the minute before.
    """

    began: Timestamp
    count: int = 0
    is_over: bool = False
    is_known: bool = False


class RunEnd(NamedTuple):
    """When a run that is limited has had its time.

    Attributes:
        began: What its row says of its start, in wall time.
        started: The same instant in steady time.
        at: The end, in steady time.
    """

    began: Timestamp
    started: Timestamp
    at: Timestamp


class Memory:
    """Everything the engine remembers of one node.

    Attributes:
        epoch: Under which the node writes.
        dag_versions: By ``(version, dag_id)``.
        stored_versions: Those the database has.
        lacking_code: Triggers that no host has, for their code was not on the disk.
        refused: By name, the files that define a DAG another file has, with spec and version.
        queued_runs: Runs of a DAG that wait for ``max_active_runs``, oldest first; those of a
            backfill have a queue of their own, see ``Run.queue``.
        active_runs: How many runs of a queue are running.
        backfills: Those that go on, by number.
        keyed_backfills: The number of what a request of this turn has begun before, by DAG and key.
        found_slots: The newest runs of slots that backfills of this turn look at, and by which
            version of their DAGs those are slots.
        found_ahead: The slots with a run, of the DAGs in this turn's ``CreateMissingRuns``.
        packing: What is behind runs, live and waits: what only waits is folded.
        run_keys: Runs by DAG and idempotency key.
        run_sequences: Of the DAGs with a task that waits for the run before: which run that is.
        active_tasks: Tasks between pending and their end, by number.
        waits: Trigger rows by number.
        trigger_code: By version, what the local trigger classes of its file stand on: digests by
            class path. Kept for the versions whose triggers are hosted; not over a restart.
        backpressured: Tasks whose output is ahead of its consumers; they continue when there is
            room, see ``tasks.stream_producer``.
        dag_triggers: The triggers that start runs of DAGs.
        known_keys: Of the events of these that this turn is told of, the keys that are known:
            number of the trigger, and key.
        stray_triggers: Rows that nobody needs since their host died with the last daemon.
        outbox: What is owed, kind and body by number: all that the engine works off itself, and
            what is handed out of the rest.
        outbox_quotas: How much is owed of each other kind.
        loaded_outbox: Rows of these that were read for this turn.
        callbacks_failed: How many came to nothing; not over a restart.
        deadlines: Those that are owed, by run: they, by their numbers in the outbox.
        hosting: The last hosting number given out. It begins above every number of an
            earlier incarnation, because the epoch is its upper half.
        hosts_up: Roles whose shared host is ready.
        node_no: Of this node.
        is_drained: It takes no more work, see ``draining``.
        event_requests: Idempotency keys of named events, the latest ones: their numbers by name
            and key. Not over a restart.
        sealed: What a request of this turn has to seal anew: values, and triggers.
        isolated: Rows of runs that cannot be gone on with, and are not among the others: their
            ``quarantine`` says why. Not over a restart, which tries them again.
        untold: Those of them whose rows do not say so yet.
        clearings: What of which run has to begin anew, and the number of the outbox it has.
        trial: What begins apart from everything else, see ``trials``; ``None`` if nothing does.
        trial_no: The number of the outbox it has.
        group_may_begin_since: Since when nothing but limits and pools keeps the first group of the
            trial from its places, in steady time. ``None`` while something else does, such as a
            drain. No row says so: a restart waits for the group as long again.
        may_host_more: Triggers that were held back for it may be handed to their hosts.
        unclaimed: Queued tasks that may have begun in the process that died: none is claimed behind
            another, so that its next start is stored before it begins.
        loaded: Ended runs that a request waits for, by their ids and the idempotency key of that;
            or why they cannot be.
        touched: In which commits runs that had ended were marked, deleted or had begun to go on,
            by their ids: what was read of them before is not so any more.
        accounts: Who is let in.
        prefetched_tasks: Rows of tasks that this turn needs.
        prefetched_runs: The rows of the runs that a mark or a deletion of this turn is about,
            by their ids.
        existing_runs, existing_runs_by_key: Stored runs, active ones included, with the run ids, or
            with the DAGs and idempotency keys, of this turn's requests; and whether they are being
            deleted.
        answered: The answers to those requests of this turn that were met before, by the id of
            their run and their idempotency key.
        loop_blockers: Who has held up a loop; not over a restart.
        retries_per_run: How often tasks of a run may run again in all, where its DAG does not say.
        retries_per_pool: How often those in one pool may within a minute.
        retries: Those of the present minute by pool. Neither taken back with a turn nor kept over
            a restart.
        late_after_us: How late the run of a slot may be before people are told; ``None`` for never.
        run_ends: When runs that are limited have had their time.
        schedules_late: How often they were; not over a restart.
        rests_after: Where the daemon ends once it is idle: a DAG whose runs follow each other
            has one after this instant, and no more.
        shift: By how much the wall clock is ahead of steady time, as the last turn found it.
        commit_us: How long a commit takes lately, as the engine measured it.
    """

    def __init__(self, *, epoch: int) -> None:
        self.epoch = epoch
        self.dags: dict[str, DagRow] = {}
        self.files: dict[str, DagFileRow] = {}
        self.refused: dict[str, dict[str, tuple[DagSpec, str]]] = {}
        self.dag_versions: dict[tuple[str, str], DagVersion] = {}
        self.stored_versions: set[str] = set()
        self.lacking_code: set[TriggerNo] = set()
        self.packing = Packing()
        self.runs = self.packing.runs
        self.run_keys: dict[tuple[str, str], RunNo] = {}
        self._named: dict[str, RunNo] = {}
        self.queued_runs: dict[str, deque[Run]] = {}
        self.active_runs: dict[str, int] = {}
        self.backfills: dict[int, BackfillRow] = {}
        self.keyed_backfills: dict[tuple[str, str], int] = {}
        self.found_slots: dict[int, tuple[str, dict[Timestamp, RunRow | None]]] = {}
        self.found_ahead: dict[str, set[Timestamp | None]] = {}
        self.run_sequences: dict[str, RunSequence] = {}
        self.active_tasks: PackedCache[TaskInstance] = self.packing.tasks
        self.waits: PackedCache[TriggerInstance] = self.packing.triggers
        self.trigger_code: dict[str, dict[str, str]] = {}
        self.backpressured: dict[TaskNo, TaskInstance] = {}
        self.dag_triggers = DagTriggers()
        self.known_keys: set[tuple[TriggerNo, str | None]] = set()
        self.stray_triggers: list[TriggerRow] = []
        self.outbox: dict[int, tuple[str, bytes]] = {}
        self.outbox_quotas: dict[str, OutboxQuota] = {}
        self.loaded_outbox: dict[str, list[OutboxRow]] = {}
        self.callbacks_failed = self.schedules_late = 0
        self.deadlines: dict[RunNo, dict[int, Deadline]] = {}
        self.hosting, self.node_no, self.trial_no = epoch << 32, 1, -1
        self.hosts_up: set[str] = set()
        self.is_drained = self.may_host_more = False
        self.event_requests: dict[tuple[str, str], int] = {}
        self.sealed: tuple[list[ValueRow], list[TriggerRow]] = ([], [])
        self.isolated: dict[RunNo, RunRow] = {}
        self.untold: list[RunRow] = []
        self.clearings: dict[RunNo, tuple[int, Clearing]] = {}
        self.trial: Trial | None = None
        self.group_may_begin_since: Timestamp | None = None
        self.unclaimed: set[TaskNo] = set()
        self.loaded: dict[tuple[str, str | None], Run | RequestError] = {}
        self.touched: dict[str, int] = {}
        self.accounts = Accounts()
        self.prefetched_tasks: dict[TaskNo, TaskRow] = {}
        self.prefetched_runs: dict[str, RunRow] = {}
        self.existing_runs: dict[str, tuple[RunRow, bool]] = {}
        self.existing_runs_by_key: dict[tuple[str, str], tuple[RunRow, bool]] = {}
        self.answered: dict[tuple[str, str], tuple[int, RunState]] = {}
        self.loop_blockers = LoopBlockers()
        self.crash_suspects = CrashSuspects()
        self.retries_per_run: int | None = None
        self.retries_per_pool: int | None = None
        self.retries: dict[str, RetryMinute] = {}
        self.late_after_us: int | None = None
        self.rests_after: Timestamp | None = None
        self.run_ends: dict[RunNo, RunEnd] = {}
        self.commit_us, self.commit_no, self.shift = 1_000.0, 0, 0
        self.numbers_needed = WAITS_LIMIT + 1

    @property
    def has_queued(self) -> bool:
        """Whether a task waits for its place."""
        return any(one.state is TaskState.QUEUED for one in self.active_tasks.objects.values())

    def on_wall(self, steady: Timestamp | None) -> Timestamp | None:
        """Return what the wall clock shows at an instant of steady time, as far as is known."""
        return None if steady is None else steady + self.shift

    def touch(self, run_id: str) -> None:
        """The rows of a run that had ended change with this turn."""
        self.touched[run_id] = self.commit_no + 1

    def index_outbox(self) -> None:
        """Learn from what is owed what is to begin anew, and what is on trial."""
        self.clearings.clear()
        self.trial, self.trial_no = None, -1
        for number, (kind, body) in self.outbox.items():
            if kind == CLEAR:
                clearing = _decode(body)
                self.clearings[clearing.run_no] = (number, clearing)
            elif kind == TRIAL:
                self.trial, self.trial_no = _decode_trial(body), number

    def add_plan(self, version: str, spec: DagSpec) -> DagVersion:
        """Know a version of a DAG. A second call returns the first plan."""
        key = (version, spec.dag_id)
        dag_version = self.dag_versions.get(key)
        if dag_version is None:
            dag_version = self.dag_versions[key] = DagVersion(version, spec)
            if dag_version.graph.past and spec.dag_id not in self.run_sequences:
                self._draw_line(spec.dag_id)
            self.numbers_needed = max(self.numbers_needed, dag_version.widest_run)
        return dag_version

    def newest(self, dag_id: str) -> DagSpec | None:
        """Return a DAG as its file defines it now, if one does."""
        row = self.dags.get(dag_id)
        dag_version = (
            None if row is None or row.gone else self.dag_versions.get((row.version, dag_id))
        )
        return None if dag_version is None else dag_version.graph.spec

    def _draw_line(self, dag_id: str) -> None:
        """A DAG has tasks that wait for the run before, as it had not until now."""
        line = self.run_sequences[dag_id] = RunSequence()
        for row in (self.runs.peek(number).row for number in self.runs):
            order = run_key(row)
            if row.dag_id == dag_id and order is not None:
                line.enter(order)

    def add_run(self, run: Run) -> None:
        """Remember a run."""
        row = run.row
        self.runs[row.run_no] = run
        if not _ends_with_number(row.run_id, row.run_no):
            self._named[row.run_id] = row.run_no
        if row.key is not None:
            self.run_keys[row.dag_id, row.key] = row.run_no
        line, order = self.run_sequences.get(row.dag_id), run_key(row)
        if line is not None and order is not None:
            line.enter(order)

    def find_run(self, run_id: str) -> Run | None:
        """Return a live run by its id."""
        _, _, number = run_id.rpartition(".")
        named = self._named.get(run_id)
        if named is None and number.isdecimal() and len(number) < _DIGITS:
            named = int(number)
        run = None if named is None else self.runs.get(named)
        return None if run is None or run.row.run_id != run_id else run

    def find_isolated(self, run_id: str) -> RunRow | None:
        """Return the row of a run that cannot be gone on with, by its id."""
        return next((row for row in self.isolated.values() if row.run_id == run_id), None)

    def drop_run(self, run: Run) -> None:
        """Forget a run and all of its tasks; its trigger rows stay until they are gone."""
        self.runs.pop(run.run_no, None)
        self._named.pop(run.row.run_id, None)
        if run.row.key is not None:
            self.run_keys.pop((run.row.dag_id, run.row.key), None)
        for task_no in run.active_tasks:
            self.active_tasks.pop(task_no, None)
        self.leave_line(run)

    def leave_line(self, run: Run) -> None:
        """A run has ended, or is not to be gone on with."""
        line, order = self.run_sequences.get(run.row.dag_id), run_key(run.row)
        if line is not None and order is not None:
            is_over = run.row.ended_at is not None
            groups = run.groups.values()
            ended = ended_as(run.row, run.graph, run.states, groups) if is_over else None
            line.leave(order, ended)

    def hosted_versions(self) -> set[str]:
        """Return the versions that triggers may be hosted with: what has them, or has the DAG."""
        versions = {row.version for row in self.dags.values()}
        versions |= {wait.version for wait in self.waits.objects.values()}
        versions |= {form.version for form, _ in self.packing.forms.numbered()}
        versions |= {one.version for one in self.dag_triggers}
        return versions

    def next_hosting(self) -> int:
        """Return a number that no hosting has had before, also in an earlier incarnation."""
        self.hosting += 1
        return self.hosting


def _ends_with_number(run_id: str, run_no: RunNo) -> bool:
    """Whether an id names the row, as those made here do."""
    return run_id.endswith(f".{run_no}")
