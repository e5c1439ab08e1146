"""The engine's memory: the catalog, live runs, their tasks, and the triggers they wait for."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec

from aioflow.core.state.accounts import Accounts
from aioflow.core.state.crash_attribution import CrashSuspects, LoopBlockers
from aioflow.core.state.dag_triggers import DagTriggers
from aioflow.core.state.graph import DagVersion
from aioflow.core.state.outbox_quota import OutboxQuota
from aioflow.core.state.packed import PackedCache, Packing
from aioflow.core.state.run_sequence import RunSequence, ended_as, run_key
from aioflow.core.state.task_instance import Run, TaskInstance, TriggerInstance
from aioflow.errors import RequestError
from aioflow.model.dag import BackfillRow, DagSpec
from aioflow.model.decisions import DecisionRow
from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.notes import NoteKey, NoteRow
from aioflow.model.rows import DagFileRow, DagRow, OutboxRow, RunRow, TaskRow, TriggerRow, ValueRow
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.outbox import CLEAR, TRIAL, Clearing, Deadline, Trial

__all__ = ("WAITS_LIMIT", "Memory", "RetryMinute", "RunEnd")

_DIGITS = 20

_decode = msgspec.msgpack.Decoder(Clearing).decode
_decode_trial = msgspec.msgpack.Decoder(Trial).decode

WAITS_LIMIT = 100
"""Maximum number of triggers that a coroutine may wait for at the same time."""


class RetryMinute(msgspec.Struct, frozen=True):
    """Retries of the tasks of one pool within one minute.

    Attributes:
        is_over: Whether a retry was refused because of the limit.
        is_known: Whether the previous minute was over the limit, so that an alert was already sent.
    """

    began: Timestamp
    count: int = 0
    is_over: bool = False
    is_known: bool = False


class RunEnd(NamedTuple):
    """The timeout of a run.

    Attributes:
        began: Start of the run in wall time, as in its row.
        started: The same start in steady time.
        at: When the run times out, in steady time.
    """

    began: Timestamp
    started: Timestamp
    at: Timestamp


class Memory:
    """The engine's memory of one node.

    Attributes:
        epoch: Epoch of the node's writes.
        dag_versions: Loaded DAG versions by ``(version, dag_id)``.
        stored_versions: Versions that are stored in the database.
        lacking_code: Triggers that have no host because their code is missing on disk.
        refused: By DAG name, files that define a DAG that another file already defines, with spec
            and version.
        queued_runs: Runs that wait for ``max_active_runs``, oldest first, by queue. The runs of a
            backfill have a separate queue, see ``Run.queue``.
        active_runs: Number of running runs by queue.
        backfills: Active backfills by number.
        keyed_backfills: Backfills that were started by an earlier copy of a request of this turn:
            number by DAG and idempotency key.
        found_fire_times: By backfill of this turn, the DAG version that its fire times were
            computed with, and the newest run of each fire time.
        found_ahead: Fire times that already have a run, for the DAGs in this turn's
            ``CreateMissingRuns``.
        packing: Store of ``runs``, ``active_tasks`` and ``waits``. It packs the entries that only
            wait.
        run_keys: Run numbers by DAG and idempotency key.
        run_sequences: Run order per DAG, only for DAGs that use ``depends_on_past``.
        active_tasks: Tasks that are neither pending nor ended, by number.
        waits: Trigger instances by number.
        trigger_code: By version and class path, digests of the code that the trigger classes
            defined in the DAG folder depend on. Present for versions whose triggers are assigned to
            hosts; lost at a restart.
        backpressured: Tasks whose output is ahead of its consumers. They continue when there is
            capacity, see ``tasks.streams``.
        dag_triggers: Triggers that start runs of DAGs.
        known_keys: Among the keys of DAG trigger events received in this turn, those that are
            already stored: trigger number and key.
        stray_triggers: Rows, to be deleted, of triggers that are no longer needed. Their host died
            with the previous daemon.
        outbox: Outbox entries in memory, kind and body by number: all entries of the kinds that
            the engine handles itself, and the entries of other kinds that are in flight.
        outbox_quotas: Outbox state of each kind that the engine does not handle itself.
        loaded_outbox: Rows of these kinds that were read for this turn.
        callbacks_failed: Number of failed callbacks; reset at a restart.
        deadlines: Pending deadlines by run and by outbox number.
        last_assignment_id: Last assignment number. Its upper half is the epoch, so it starts above
            every number of an earlier incarnation.
        hosts_up: Roles whose shared host is ready, and roles of workers that can be started; see
            ``child_roles``.
        host_processes: Process number of each of these hosts.
        interpreter_problems: Why interpreters are unusable, by name.
        node_no: Number of this node.
        is_drained: Whether the node accepts no more work, see ``processes``.
        event_requests: Idempotency keys of recent named events: event number by name and key. Lost
            at a restart.
        encrypted: Values, triggers and decisions that a request of this turn re-encrypts.
        isolated: Rows of quarantined runs that cannot continue. Such runs are in no other map, and
            the column ``quarantine`` contains the reason. They are loaded again at the next
            restart.
        untold: Rows in ``isolated`` whose quarantine is not stored yet.
        clearings: Pending clears by run: outbox number and content.
        trial: Crash trial in progress, see ``crash_trials``; ``None`` without one.
        trial_no: Outbox number of the trial.
        group_may_begin_since: Time since which only limits and pools delay the first group of the
            trial, in steady time. ``None`` while something else delays it, such as a drain. This is
            not stored, so the delay is measured from zero after a restart.
        may_host_more: Whether triggers that the trial delayed may now be assigned to hosts.
        unclaimed: Queued tasks that may have started in the process that died. None of them is
            prefetched, so that the next start of each is stored before the task begins.
        loaded: Ended runs that requests wait for, by run id and the idempotency key of the request.
            The value is the run, or the reason why it cannot be loaded.
        touched: By id of an ended run, the commit that marked, deleted or reopened it. Rows of the
            run that were read before that commit are outdated.
        accounts: Accounts, tokens and sessions.
        prefetched_tasks: Task rows that this turn needs.
        decisions: By number, the decisions that requests of this turn answer.
        noted_runs: By id, the ended runs whose notes are changed by requests of this turn.
        notes: By key, the present notes of those requests.
        prefetched_runs: By id, run rows that a mark or a deletion of this turn needs.
        existing_runs, existing_runs_by_key: Stored runs, including active ones, and whether each is
            being deleted; by the run ids, or by the DAGs and idempotency keys, of this turn's
            requests.
        answered: Responses to requests of this turn that were already executed in an earlier turn,
            by run id and idempotency key.
        loop_blockers: Code that blocked an event loop; reset at a restart.
        retries_per_run: Limit of retries per run if its DAG sets none.
        retries_per_pool: Limit of retries per pool and minute.
        retries: Retries in the current minute by pool. Neither rolled back nor stored.
        late_after_us: How late a scheduled run may be before an alert; ``None`` for no alerts.
        run_ends: Timeouts of runs that have one.
        schedules_late: Number of alerts about late schedules; reset at a restart.
        rests_after: Set if the daemon exits when idle. Each DAG with a continuous schedule gets
            only one run after this timestamp.
        shift: Offset of the wall clock from steady time, as of the last turn.
        commit_us: Recent duration of a commit, as measured by the engine.
        other_commits: The last commit of each other node that has committed. None of these nodes
            commits while this node is active.
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
        self.run_keys, self._named = dict[tuple[str, str], RunNo](), dict[str, RunNo]()
        self.queued_runs: dict[str, deque[Run]] = {}
        self.active_runs: dict[str, int] = {}
        self.backfills: dict[int, BackfillRow] = {}
        self.keyed_backfills: dict[tuple[str, str], int] = {}
        self.found_fire_times: dict[int, tuple[str, dict[Timestamp, RunRow | None]]] = {}
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
        self.last_assignment_id, self.node_no, self.trial_no = epoch << 32, 1, -1
        self.hosts_up, self.interpreter_problems = set[str](), dict[str, str]()
        self.is_drained = self.may_host_more = False
        self.host_processes, self.event_requests = dict[str, int](), dict[tuple[str, str], int]()
        self.encrypted: list[ValueRow] | list[TriggerRow] | list[DecisionRow] = []
        self.isolated: dict[RunNo, RunRow] = {}
        self.untold, self.other_commits = list[RunRow](), dict[int, int]()
        self.clearings: dict[RunNo, tuple[int, Clearing]] = {}
        self.trial: Trial | None = None
        self.group_may_begin_since: Timestamp | None = None
        self.unclaimed: set[TaskNo] = set()
        self.loaded: dict[tuple[str, str | None], Run | RequestError] = {}
        self.touched: dict[str, int] = {}
        self.accounts = Accounts()
        self.prefetched_tasks, self.prefetched_runs = dict[TaskNo, TaskRow](), dict[str, RunRow]()
        self.decisions: dict[int, DecisionRow] = {}
        self.noted_runs, self.notes = dict[str, RunRow](), dict[NoteKey, NoteRow]()
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
        """Whether any task is queued for a slot."""
        return any(one.state is TaskState.QUEUED for one in self.active_tasks.objects.values())

    def on_wall(self, steady: Timestamp | None) -> Timestamp | None:
        """Convert steady time to wall time with the last known offset."""
        return None if steady is None else steady + self.shift

    def touch(self, run_id: str) -> None:
        """Record that this turn changes the rows of an ended run."""
        self.touched[run_id] = self.commit_no + 1

    def index_outbox(self) -> None:
        """Rebuild ``clearings`` and ``trial`` from the outbox."""
        self.clearings.clear()
        self.trial, self.trial_no = None, -1
        for number, (kind, body) in self.outbox.items():
            if kind == CLEAR:
                clearing = _decode(body)
                self.clearings[clearing.run_no] = (number, clearing)
            elif kind == TRIAL:
                self.trial, self.trial_no = _decode_trial(body), number

    def add_plan(self, version: str, spec: DagSpec) -> DagVersion:
        """Add a DAG version, or return the existing one."""
        key = (version, spec.dag_id)
        dag_version = self.dag_versions.get(key)
        if dag_version is None:
            dag_version = self.dag_versions[key] = DagVersion(version, spec)
            if dag_version.graph.past and spec.dag_id not in self.run_sequences:
                self._build_sequence(spec.dag_id)
            self.numbers_needed = max(self.numbers_needed, dag_version.widest_run)
        return dag_version

    def newest(self, dag_id: str) -> DagSpec | None:
        """Return the current specification of a DAG; ``None`` if no file defines it."""
        row = self.dags.get(dag_id)
        dag_version = (
            None if row is None or row.gone else self.dag_versions.get((row.version, dag_id))
        )
        return None if dag_version is None else dag_version.graph.spec

    def _build_sequence(self, dag_id: str) -> None:
        """Create the run sequence of a DAG that did not use ``depends_on_past`` until now."""
        sequence = self.run_sequences[dag_id] = RunSequence()
        for row in (self.runs.peek(number).row for number in self.runs):
            key = run_key(row)
            if row.dag_id == dag_id and key is not None:
                sequence.add(key)

    def add_run(self, run: Run) -> None:
        """Add a live run."""
        row = run.row
        self.runs[row.run_no] = run
        if not _ends_with_number(row.run_id, row.run_no):
            self._named[row.run_id] = row.run_no
        if row.key is not None:
            self.run_keys[row.dag_id, row.key] = row.run_no
        sequence, key = self.run_sequences.get(row.dag_id), run_key(row)
        if sequence is not None and key is not None:
            sequence.add(key)

    def find_run(self, run_id: str) -> Run | None:
        """Return a live run by its id; ``None`` if no live run has this id."""
        _, _, number = run_id.rpartition(".")
        named = self._named.get(run_id)
        if named is None and number.isdecimal() and len(number) < _DIGITS:
            named = int(number)
        run = None if named is None else self.runs.get(named)
        return None if run is None or run.row.run_id != run_id else run

    def find_isolated(self, run_id: str) -> RunRow | None:
        """Return the row of a run in ``isolated`` by its id; ``None`` if there is none."""
        return next((row for row in self.isolated.values() if row.run_id == run_id), None)

    def drop_run(self, run: Run) -> None:
        """Remove a run and all of its tasks. Its triggers stay until their rows are deleted."""
        self.runs.pop(run.run_no, None)
        self._named.pop(run.row.run_id, None)
        if run.row.key is not None:
            self.run_keys.pop((run.row.dag_id, run.row.key), None)
        for task_no in run.active_tasks:
            self.active_tasks.pop(task_no, None)
        self.leave_line(run)

    def leave_line(self, run: Run) -> None:
        """Remove a run that has ended or cannot continue from the run sequence of its DAG."""
        sequence, key = self.run_sequences.get(run.row.dag_id), run_key(run.row)
        if sequence is not None and key is not None:
            is_over = run.row.ended_at is not None
            groups = run.groups.values()
            ended = ended_as(run.row, run.graph, run.states, groups) if is_over else None
            sequence.remove(key, ended)

    def hosted_versions(self) -> set[str]:
        """Return the newest versions of all DAGs, and the versions of assigned triggers."""
        versions = {row.version for row in self.dags.values()}
        versions |= {wait.version for wait in self.waits.objects.values()}
        versions |= {shape.version for shape in self.packing.shapes()}
        versions |= {one.version for one in self.dag_triggers}
        return versions

    def next_assignment_id(self) -> int:
        """Return an assignment number that no incarnation of this or another node has used."""
        self.last_assignment_id += 1
        return self.last_assignment_id


def _ends_with_number(run_id: str, run_no: RunNo) -> bool:
    """Return whether a run id ends with the row number of its run, as in generated ids."""
    return run_id.endswith(f".{run_no}")
