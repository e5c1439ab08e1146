"""Live runs and their tasks in memory: a few machine words per task, and no object per child.

A pending or ended task is one byte in its run, or in its mapped task if it is a child. Only a task
between these states (queued as an individual task, running, sensing, deferred, retrying) has a
``TaskInstance``, so memory grows with the number of active tasks, not with the width of mapped
tasks. A task that only waits is packed, see ``packed``. A pending task has a row only if it was
cleared.

The ``execution_timeout`` of a try includes both its running and its deferred time. It is measured
in steady time from the start of the try. The row stores the end of the timeout in ``due_at``, which
is otherwise unused during a try.

The classes of this module only maintain the consistency of their own data. Decisions are made in
``runs.progress``, ``scheduling.slots``, ``triggers`` and ``step``.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from aioflow.core.state.child_roles import async_role
from aioflow.core.state.graph import TALLY, TALLY_OFFSET, DagVersion
from aioflow.core.state.mapped_task import MappedChildren
from aioflow.core.state.packed_maps import Numbers, PackedMap, Pages
from aioflow.model.batch import Batch
from aioflow.model.dag import Body, DagSpec, TaskSpec
from aioflow.model.ids import RunNo, StartNo, TaskNo
from aioflow.model.rows import ExpansionChange, ExpansionRow, RunRow, TaskRow, TriggerRow
from aioflow.model.states import Failure, RunState, TaskState, TriggerState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import RunInfo
from aioflow.protocol.outbox import Clearing

__all__ = (
    "NOWHERE",
    "RECENT_BYTES",
    "ActiveTasks",
    "ClearedTasks",
    "EventStream",
    "Expansions",
    "Fire",
    "MappedTask",
    "Run",
    "StreamOutput",
    "TaskInstance",
    "TriggerInstance",
    "is_under_way",
    "run_info",
    "stored_due",
    "stored_times",
    "time_left",
    "time_limit",
    "try_ends_at",
)

Uncommitted = TypeVar("Uncommitted")


class ClearedTasks(Generic[Uncommitted]):
    """Cleared tasks: each a ``TaskInstance`` until the clear is committed, then a ``start_no``."""

    __slots__ = ("_stored", "_uncommitted")

    def __init__(self) -> None:
        self._stored: Pages[StartNo] = Pages(Numbers)
        self._uncommitted: dict[TaskNo, Uncommitted] = {}

    def __contains__(self, task_no: TaskNo) -> bool:
        return task_no in self._uncommitted or task_no in self._stored

    def __bool__(self) -> bool:
        return bool(self._uncommitted) or bool(self._stored)

    def put_uncommitted(self, task_no: TaskNo, task: Uncommitted) -> None:
        """Add a task that this turn cleared. It may start in the same turn."""
        self._uncommitted[task_no] = task

    def put(self, task_no: TaskNo, start_no: StartNo) -> None:
        """Replace a cleared task by its last ``start_no``, because its clear is committed."""
        self._uncommitted.pop(task_no, None)
        self._stored.put(task_no, start_no)

    def take(self, task_no: TaskNo) -> Uncommitted | StartNo | None:
        """Remove a task that is no longer pending, and return its entry.

        The entry is its ``TaskInstance`` if its clear is not committed yet, else its last
        ``start_no``; ``None`` if the task was not cleared.
        """
        uncommitted = self._uncommitted.pop(task_no, None)
        return self._stored.take(task_no) if uncommitted is None else uncommitted

    def between(self, first: int, end: int) -> Iterator[TaskNo]:
        """Yield the cleared tasks with numbers from ``first`` on and below ``end``, ascending."""
        uncommitted = [number for number in self._uncommitted if first <= number < end]
        stored = self._stored.between(first, end)
        return iter(sorted({*uncommitted, *stored})) if uncommitted else stored

    def items(self) -> Iterator[tuple[TaskNo, StartNo]]:
        """Yield the entries whose clear is committed."""
        return self._stored.items()


RECENT_BYTES = 256 * 1024
"""Maximum size of the recent items of a task in memory. Children query the store for older ones."""


class EventStream:
    """The events of a trigger that fires more than once.

    Attributes:
        next_sequence: Sequence number of the next event to store.
        pending: ``(sequence, payload, key)`` of events that are stored but not consumed, in order.
        keys: Digests of the keys of all events that were ever stored.
        index: Index of the next event of the current assignment.
        confirmed: Events below this index were confirmed to the host as stored.
        last: Payload and key of the last stored event, for the next host of the trigger.
    """

    __slots__ = ("confirmed", "index", "keys", "last", "next_sequence", "pending", "pending_bytes")

    def __init__(self) -> None:
        self.next_sequence = 0
        self.pending: deque[tuple[int, bytes, str | None]] = deque()
        self.pending_bytes = 0
        self.keys: set[int] = set()
        self.index = 0
        self.confirmed = 0
        self.last: tuple[bytes, str | None] | None = None

    def store(self, sequence: int, payload: bytes, key: str | None) -> None:
        """Add an event, which stays pending until it is consumed."""
        self.pending.append((sequence, payload, key))
        self.pending_bytes += len(payload)
        self.next_sequence = sequence + 1


class StreamOutput:
    """The items that a task has yielded.

    Attributes:
        count: Number of all items.
    """

    __slots__ = ("_recent", "_size", "count")

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self._recent: deque[bytes] = deque()
        self._size = 0

    def add(self, payload: bytes) -> None:
        """Add an item. Beyond ``RECENT_BYTES``, the oldest items are dropped from memory."""
        self.count += 1
        self._recent.append(payload)
        self._size += len(payload)
        while self._size > RECENT_BYTES:
            self._size -= len(self._recent.popleft())

    def at_hand(self, index: int) -> bytes | None:
        """Return an item if it is still in memory, else ``None``."""
        offset = index - (self.count - len(self._recent))
        return self._recent[offset] if 0 <= offset < len(self._recent) else None


NOWHERE = (-1, False, False)
"""Worker, claim and host of a task that is not in any process."""

_NO_STREAMS: Mapping[int, TriggerInstance] = MappingProxyType({})

_DEFERRED = re.compile(re.escape(bytes([TaskState.DEFERRED])))


class Fire(NamedTuple):
    """An event that a trigger fired. The trigger of a DAG has no run and no task."""

    class_path: str
    key: str | None
    run_no: RunNo | None = None
    task_no: TaskNo | None = None


class TriggerInstance:
    """A trigger in memory: its row, the task that waits for it, and its host.

    Attributes:
        task: The waiting task; ``None`` if the task no longer waits and the host has yet to confirm
            that it stopped the trigger.
        assignment_id: Current assignment number; 0 while it has no host.
        role: Role of the host it was last assigned to.
        has_capacity: Whether the host had capacity for it, as last reported.
        version: Newest version of its DAG when it was assigned. The trigger class is loaded from
            this version if the class accepts the fields.
        stream: Its events, if it fires more than once.
    """

    __slots__ = ("assignment_id", "has_capacity", "role", "row", "run", "stream", "task", "version")

    def __init__(self, row: TriggerRow, run: Run, task: TaskInstance | None) -> None:
        self.row = row
        self.run = run
        self.task = task
        self.assignment_id = 0
        self.role = "triggers"
        self.has_capacity = True
        self.version = run.row.version
        self.stream = EventStream() if row.window else None

    @property
    def state(self) -> TriggerState:
        """State of its row."""
        return self.row.state

    def fire(self, key: str | None) -> Fire:
        """Return the record of an event that this trigger fires now."""
        return Fire(self.row.class_path, key, self.row.run_no, self.row.task_no)

    @property
    def is_handled(self) -> bool:
        """Whether this is a stream whose events are handled by an operator, one batch per start."""
        return self.stream is not None and self.row.ordinal < 0

    @property
    def must_resume(self) -> bool:
        """Whether the operator that handles this stream must wait for the trigger to continue.

        True if no event is pending, unless the stream has ended without a failure. False if no
        operator handles the stream, see ``is_handled``.
        """
        if not self.is_handled or self.stream is None or self.stream.pending:
            return False
        return self.state is not TriggerState.FIRED or self.row.failure is not None


class TaskInstance:
    """A task that is neither pending nor ended.

    Attributes:
        spec: Specification by its author.
        stored_state: State of its row; ``PENDING`` while it has none.
        stored_start: ``start_no`` of its row.
        stored_slot: ``(worker, is_claimed, is_hosted)`` when its row was last written.
        worker: Worker in which it runs or is claimed; -1 for none.
        is_claimed: Whether it was sent to a worker that still runs another try, and has not
            started.
        is_hosted: Whether it is a coroutine that was sent to the async host.
        waits: Trigger instances it waits for. Only a coroutine can wait for several.
        resumed: Trigger instance whose event it resumes from, which determines the method; ``None``
            if it runs from the start. For an operator that handles many events: the trigger of
            their stream, even between two tries.
        streams: Streams that its coroutine has opened, by the ordinal of the opening call.
        recorded: Number of durable calls of its coroutine that have a record.
        first_failed: First recorded call that failed; -1 for none.
        ends_at: When its try reaches its ``execution_timeout``, in steady time; ``None`` without a
            limit, and while no try has started.
        open_kind: Kind of the last durable call while that call waits for its answer, else empty.
        suspended_start: ``start_no`` under which its coroutine is suspended in the async host; 0 if
            the coroutine is not suspended and must run again from the start.
        answer: Value that the suspended coroutine is resumed with.
        pokes: Number of pokes of a sensor since it was added to memory.
    """

    __slots__ = (
        "answer",
        "deadline_at",
        "due_at",
        "ended_at",
        "ends_at",
        "failure",
        "first_failed",
        "interruptions",
        "is_claimed",
        "is_hosted",
        "map_index",
        "open_kind",
        "pokes",
        "queued_at",
        "recorded",
        "resumed",
        "run",
        "spec",
        "start_no",
        "started_at",
        "state",
        "stored_slot",
        "stored_start",
        "stored_state",
        "streams",
        "suspended_start",
        "task_index",
        "task_no",
        "try_number",
        "waits",
        "worker",
    )

    def __init__(self, run: Run, task_no: TaskNo, task_index: int, map_index: int) -> None:
        self.run = run
        self.spec: TaskSpec = run.spec.tasks[task_index]
        self.task_no = task_no
        self.task_index = task_index
        self.map_index = map_index
        self.state = TaskState.PENDING
        self.try_number = 1
        self.start_no: StartNo = 0
        self.interruptions = 0
        self.due_at: Timestamp | None = None
        self.deadline_at: Timestamp | None = None
        self.queued_at: Timestamp | None = None
        self.started_at: Timestamp | None = None
        self.ended_at: Timestamp | None = None
        self.ends_at: Timestamp | None = None
        self.failure: Failure | None = None
        self.stored_state = TaskState.PENDING
        self.stored_start: StartNo = 0
        self.stored_slot = NOWHERE
        self.worker = -1
        self.is_claimed = False
        self.is_hosted = False
        self.waits: tuple[TriggerInstance, ...] = ()
        self.resumed: TriggerInstance | None = None
        self.streams: Mapping[int, TriggerInstance] = _NO_STREAMS
        self.recorded = 0
        self.first_failed = -1
        self.open_kind = ""
        self.suspended_start: StartNo = 0
        self.answer: tuple[bytes | None, Failure | None] = (None, None)
        self.pokes = 0

    @property
    def wait(self) -> TriggerInstance | None:
        """The first of ``waits``. All of them have the same timestamps."""
        return self.waits[0] if self.waits else None

    @property
    def waits_again(self) -> bool:
        """Whether the next try has no input yet, because its stream must deliver events first."""
        return self.resumed is not None and self.resumed.must_resume

    @property
    def waits_for_host(self) -> bool:
        """Whether this is a coroutine sensor that is due but not yet assigned to the async host."""
        is_coroutine = self.state is TaskState.SENSING and self.spec.body is Body.COROUTINE
        return is_coroutine and self.due_at is None and not self.is_hosted

    @property
    def name(self) -> str:
        """``task_id``, followed by the map index if there is one."""
        index = "" if self.map_index < 0 else f"[{self.map_index}]"
        return f"{self.spec.task_id}{index}"


class ActiveTasks(PackedMap[TaskInstance]):
    """The tasks of one run that are neither pending nor ended, by number.

    Args:
        first_task_no, states, groups: As in the run. The run itself is not passed, to avoid a
            reference cycle. So a dropped run is freed immediately, without a garbage collection.
    """

    __slots__ = ("_count", "_first_task_no", "_groups", "_packed", "_states")

    def __init__(
        self, first_task_no: TaskNo, states: bytearray, groups: dict[int, MappedTask]
    ) -> None:
        super().__init__()
        self._first_task_no = first_task_no
        self._states = states
        self._groups = groups
        self._count = 0
        self._packed: PackedMap[TaskInstance] | None = None

    def __len__(self) -> int:
        return len(self.objects) + self._count

    def unpack(self, number: TaskNo) -> TaskInstance | None:
        """See ``PackedMap``."""
        return None if self._packed is None or not self._count else self._packed.unpack(number)

    def packed_numbers(self) -> list[TaskNo]:
        """See ``PackedMap``."""
        if self._packed is None or not self._count:
            return []
        first = self._first_task_no
        numbers = [first + at for at, state in enumerate(self._states) if state]
        for group in self._groups.values():
            numbers += [group.first_task_no + at.start() for at in _DEFERRED.finditer(group.states)]
        packed = self._packed.packed_numbers()
        return [number for number in numbers if number in packed]

    def set_packed(self, count: int, packed: PackedMap[TaskInstance]) -> None:
        """Set the number of packed tasks and their cache, after the run was unpacked."""
        self._count = count
        self._packed = packed

    def replace_by_packed(self, number: TaskNo, packed: PackedMap[TaskInstance]) -> None:
        """Record that the cache has packed a task."""
        del self.objects[number]
        if not self.objects:
            self.objects = {}  # a dict that is emptied keeps its memory
        self.count_packed(packed)

    def count_packed(self, packed: PackedMap[TaskInstance]) -> None:
        """Record that the cache contains one more packed task, which was never an object."""
        self._count += 1
        self._packed = packed

    def count_unpacked(self, task: TaskInstance) -> None:
        """Record that the cache has unpacked a task."""
        self._count -= 1
        self.objects[task.task_no] = task


class MappedTask(MappedChildren):
    """The children of one mapped task, and their run.

    Attributes:
        spec: Specification by their author.
    """

    __slots__ = ("run", "spec")

    def __init__(self, run: Run, expansion: ExpansionRow) -> None:
        self.run = run
        self.spec: TaskSpec = run.spec.tasks[expansion.task_index]
        mapped = self.spec.mapped
        super().__init__(expansion, is_loop=mapped is not None and mapped.until >= 0)


def is_under_way(state: int) -> bool:
    """Return whether a task has started or is about to start, and has not ended."""
    return TaskState.PENDING < state < TaskState.SUCCESS


def run_info(row: RunRow, file: str) -> RunInfo:
    """Return the data that all tasks of a run share.

    Args:
        file: DAG file of the run.
    """
    return RunInfo(
        run_no=row.run_no,
        run_id=row.run_id,
        dag_id=row.dag_id,
        version=row.version,
        file=file,
        logical_date=row.logical_date,
        created_at=row.created_at,
        conf=row.conf,
        first_task_no=row.first_task_no,
        cause=row.cause,
    )


def backfill_queue(backfill_no: int) -> str:
    """Return the queue name of a backfill's runs. A DAG cannot have such a name."""
    return f"backfill {backfill_no}"


def queue_of(row: RunRow) -> str:
    """Return the queue in which a run waits and is counted: that of its DAG or of its backfill."""
    return row.dag_id if row.backfill is None else backfill_queue(row.backfill)


class Run:
    """A live run.

    Attributes:
        spec: Specification by the author.
        states: One byte per task of the DAG. A mapped task is ``RUNNING`` from its expansion until
            its last child has ended.
        tallies: ``TALLY`` words per task and per group of parents: counts of their instances.
        unfinished: Number of tasks that have not ended.
        running: Number of tasks that hold a slot now, for the limits.
        running_at: ``running`` by task index, only for tasks with a limit.
        results: Small results of unmapped tasks, msgpack, for tasks that have yet to start.
        known: By task index, 1 if ``results`` is authoritative, even if the result is ``None``.
        widths: Number of items of each result that an expansion uses.
        source_starts: ``start_no`` of the try that wrote each of these results.
        items: Streamed output of tasks, by task number.
        durations: Expected durations of its DAG version.
        async_role: Role of the host of its coroutines, see ``child_roles``.
        info: Data that the tasks of the run share, created once.
        blocked: Ready entries that get no slot because of the run's limit, see
            ``scheduling.ready``.
        blocked_at: By task index, ready entries that get no slot because of the limits of tasks and
            windows. For entries whose start needs no worker, the key is the complement of the
            index.
        is_forgotten: Whether the run was dropped and loaded again, so references to this object are
            stale.
        retried: Number of retries of its tasks, including scheduled ones.
        is_over_budget: Whether an alert was sent that the retry budget is exhausted, see
            ``tasks.retry_budget``.
        beyond_budget: Number of tasks that failed because the retry budget was exhausted.
        cleared: Pending tasks with a row.
        removed: ``start_no`` of each mapped task that ended without expansion and therefore has a
            row.
        clearing: Clear or mark in progress. The run does not continue until it is complete.
        checked_children: For mapped tasks of this clear or mark, how many children were checked.
    """

    __slots__ = (
        "active_tasks",
        "async_role",
        "beyond_budget",
        "blocked",
        "blocked_at",
        "checked_children",
        "cleared",
        "clearing",
        "dag_version",
        "durations",
        "graph",
        "groups",
        "info",
        "is_forgotten",
        "is_over_budget",
        "items",
        "known",
        "removed",
        "results",
        "retried",
        "row",
        "running",
        "running_at",
        "source_starts",
        "spec",
        "states",
        "tallies",
        "unfinished",
        "widths",
    )

    def __init__(self, row: RunRow, dag_version: DagVersion) -> None:
        graph = dag_version.graph
        size = len(graph.spec.tasks)
        self.row = row
        self.dag_version = dag_version
        self.graph = graph
        self.spec: DagSpec = graph.spec
        self.async_role = async_role(graph.spec)
        self.states = bytearray(size)
        self.tallies = array("q", bytes(8 * TALLY * graph.tallies))
        for pokes in graph.evaluated:
            for look in pokes:
                self.tallies[look.tally * TALLY] = len(look.parents) - len(look.indexed)
        self.groups: dict[int, MappedTask] = {}
        self.active_tasks = ActiveTasks(row.first_task_no, self.states, self.groups)
        self.unfinished = size
        self.running = 0
        self.running_at: dict[int, int] = {}
        self.results: dict[int, bytes] = {}
        self.known = bytearray(size)
        self.widths: dict[int, int] = {}
        self.source_starts: dict[int, StartNo] = {}
        self.items: dict[TaskNo, StreamOutput] = {}
        self.durations = dag_version.durations
        self.info = run_info(row, graph.spec.file)
        self.blocked: list[tuple[int, int, int, TaskInstance | MappedTask]] = []
        self.blocked_at: dict[int, list[tuple[int, int, int, TaskInstance | MappedTask]]] = {}
        self.is_forgotten = False
        self.retried = 0
        self.is_over_budget = False
        self.beyond_budget = 0
        self.cleared: ClearedTasks[TaskInstance] = ClearedTasks()
        self.removed: dict[TaskNo, StartNo] = {}
        self.clearing: Clearing | None = None
        self.checked_children: dict[int, int] = {}

    @property
    def run_no(self) -> RunNo:
        """Number of the run's row."""
        return self.row.run_no

    @property
    def state(self) -> RunState:
        """State of its row."""
        return self.row.state

    @property
    def queue(self) -> str:
        """Queue in which the run waits and is counted; see ``queue_of``."""
        return queue_of(self.row)

    def task_no(self, task_index: int, map_index: int) -> TaskNo:
        """Return the row number of a task, whether the row exists or not."""
        if map_index < 0:
            return self.row.first_task_no + task_index
        return self.groups[task_index].first_task_no + map_index

    def count_ended(self, task_index: int, state: TaskState, times: int = 1) -> None:
        """Add ended instances of a task to the tallies of its children."""
        offset = TALLY_OFFSET[state]
        for tally in self.graph.counts_in[task_index]:
            self.tallies[tally * TALLY + offset] += times

    def count_child(self, group: MappedTask, state: TaskState, times: int = 1) -> None:
        """Add ended children of a mapped task to the tallies. Loop iterations are not counted."""
        if not group.is_loop:
            self.count_ended(group.task_index, state, times)

    def end_group(self, group: MappedTask) -> None:
        """Set the state of a mapped task whose children have all ended."""
        outcome = group.outcome()
        self.states[group.task_index] = outcome
        self.unfinished -= 1
        if group.is_loop:
            self.count_ended(group.task_index, outcome)

    def widen(self, task_index: int, width: int) -> None:
        """Count a task as ``width`` instances instead of one in the tallies of its children."""
        for tally in self.graph.counts_in[task_index]:
            self.tallies[tally * TALLY] += width - 1


class Expansions:
    """The expansion changes of one transaction; ``close`` adds them to its batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._changed: dict[tuple[RunNo, int], tuple[MappedTask, int]] = {}

    def change(self, group: MappedTask, was: int) -> None:
        """Record the width of an expansion before its first change; -1 if it had no row."""
        self._changed.setdefault((group.run.run_no, group.task_index), (group, was))

    def take_over(self, group: MappedTask) -> None:
        """Replace the object of an expansion; changes recorded so far apply to the new one."""
        key = group.run.run_no, group.task_index
        if key in self._changed:
            self._changed[key] = group, self._changed[key][1]

    def dissolve(self, run_no: RunNo, task_index: int) -> None:
        """Delete the row of an expansion, and drop the changes that this turn made to it.

        The task may be expanded again in the same turn.
        """
        _, was = self._changed.pop((run_no, task_index), (None, 0))
        if was >= 0:  # an expansion of this turn has no row yet
            self._batch.gone_expansions.append((run_no, task_index))

    def close(self) -> None:
        """Add the recorded changes to the batch."""
        for group, was in self._changed.values():
            number, task_index = group.run.run_no, group.task_index
            if was < 0:
                row = ExpansionRow(
                    run_no=number,
                    task_index=task_index,
                    width=group.width,
                    first_task_no=group.first_task_no,
                    is_open=group.is_open,
                )
                self._batch.new_expansions.append(row)
            else:
                change = ExpansionChange(number, task_index, was, group.width, group.is_open)
                self._batch.expansion_changes.append(change)


_DUE_STATES = frozenset({TaskState.RETRYING, TaskState.SENSING})
"""States in which ``due_at`` of the row contains the time at which the task is due."""


def time_left(task: TaskInstance, steady: Timestamp) -> int | None:
    """Return the microseconds left until the try times out, at least 1; ``None`` without a limit.

    The timeout continues to run while the try is deferred. The minimum of 1 lets an expired try
    report its timeout. A sensor has the full ``execution_timeout`` for each poke; its ``timeout``
    limits the total time since its first poke.
    """
    if task.ends_at is None:  # shortcut for nearly every task: this is called for each start
        return task.spec.execution_timeout_us
    ends = try_ends_at(task, steady)
    return task.spec.execution_timeout_us if ends is None else max(1, ends - steady)


def try_ends_at(task: TaskInstance, steady: Timestamp) -> Timestamp | None:
    """Return when the try times out, at most its full timeout from now; ``None`` if never."""
    limit = time_limit(task.spec)
    return None if task.ends_at is None or limit is None else min(task.ends_at, steady + limit)


def time_limit(spec: TaskSpec) -> int | None:
    """Return the limit on the running and deferred time of a try; ``None`` without a limit.

    A sensor has no such limit, because its ``execution_timeout`` applies to each single poke.
    """
    return None if spec.sensor is not None else spec.execution_timeout_us


def stored_due(task: TaskInstance) -> Timestamp | None:
    """Return the value of ``due_at`` to store: when the task is due, or when its try times out."""
    return task.ends_at if task.due_at is None else task.due_at


def stored_times(
    spec: TaskSpec, row: TaskRow, shift: int
) -> tuple[Timestamp | None, Timestamp | None]:
    """Return when a restored task is due and when its try times out, according to its row.

    Args:
        shift: Offset of the wall clock from steady time.
    """
    limit = time_limit(spec)
    if row.state in _DUE_STATES or limit is None or row.started_at is None:
        return row.due_at, None
    # Rows written by earlier versions of aioflow contain the start of the try but not the time of
    # its timeout, so compute it.
    return None, row.started_at - shift + limit if row.due_at is None else row.due_at
