"""One live run in memory, and its tasks: a few words per task, never an object per child.

A task that is pending or ended is one byte in its run (or in its group, if it is a mapped
child). Only what is between the two - queued in its own right, running, sensing, deferred,
retrying - has a ``TaskInstance`` object, so memory grows with what is going on, not with width. One
that only waits is folded, see ``parking``.

The objects here only keep their own books straight; what happens is decided in ``run``,
``slots``, ``waits``, ``dag`` and ``turn``.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from aioflow.core.state.child_roles import async_role
from aioflow.core.state.cleared_tasks import ClearedTasks
from aioflow.core.state.dag_version import DagVersion
from aioflow.core.state.packed_map import PackedMap
from aioflow.core.state.siblings import MappedChildren
from aioflow.core.state.state_counts import TALLY, TALLY_OFFSET
from aioflow.core.state.streams import EventStream, StreamOutput
from aioflow.model.dag import Body, DagSpec, TaskSpec
from aioflow.model.ids import RunNo, StartNo, TaskNo
from aioflow.model.rows import ExpansionRow, RunRow, TriggerRow
from aioflow.model.states import Failure, RunState, TaskState, TriggerState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import RunInfo
from aioflow.protocol.outbox import Clearing

__all__ = (
    "NOWHERE",
    "ActiveTasks",
    "Fire",
    "MappedTask",
    "Run",
    "TaskInstance",
    "TriggerInstance",
    "is_under_way",
    "run_info",
)

NOWHERE = (-1, False, False)
"""The place of a task that no process has."""

_NO_STREAMS: Mapping[int, TriggerInstance] = MappingProxyType({})

_DEFERRED = re.compile(re.escape(bytes([TaskState.DEFERRED])))


class Fire(NamedTuple):
    """An event that was taken of a trigger; of that of a DAG, no task waited for it."""

    class_path: str
    key: str | None
    run_no: RunNo | None = None
    task_no: TaskNo | None = None


class TriggerInstance:
    """A trigger in memory: its row, the task that waits for it, and who hosts it.

    Attributes:
        task: The task; ``None`` once it no longer waits and the row only awaits its host.
        hosting: Which hosting it is in; 0 while no host has it.
        role: That of the host it was handed to last.
        has_room: Whether a host had room for it, as far as the triggerer has said.
        version: The newest version of its DAG when it was handed to its host; the class is taken
            from that if it takes the fields.
        stream: Its events, if it has more than one.
    """

    __slots__ = ("has_room", "hosting", "role", "row", "run", "stream", "task", "version")

    def __init__(self, row: TriggerRow, run: Run, task: TaskInstance | None) -> None:
        self.row = row
        self.run = run
        self.task = task
        self.hosting = 0
        self.role = "triggers"
        self.has_room = True
        self.version = run.row.version
        self.stream = EventStream() if row.window else None

    @property
    def state(self) -> TriggerState:
        """Where it stands."""
        return self.row.state

    def fire(self, key: str | None) -> Fire:
        """Return what is told of an event that it takes now."""
        return Fire(self.row.class_path, key, self.row.run_no, self.row.task_no)

    @property
    def is_handled(self) -> bool:
        """Whether it is a stream whose events an operator takes, start by start."""
        return self.stream is not None and self.row.ordinal < 0

    @property
    def has_to_go_on(self) -> bool:
        """Whether it is such a stream, has no event at hand, and has not ended well."""
        if not self.is_handled or self.stream is None or self.stream.pending:
            return False
        return self.state is not TriggerState.FIRED or self.row.failure is not None


class TaskInstance:
    """A task between pending and its end.

    Attributes:
        spec: What the author said of it.
        stored_state: What its row says; ``PENDING`` while it has none.
        stored_start: The ``start_no`` its row says.
        stored_place: ``(worker, is_claimed, is_hosted)`` when its row was last written.
        worker: The slot it runs or is claimed in, or -1.
        is_claimed: Sent to a worker behind another try, not begun.
        is_hosted: A coroutine that the async host has.
        waits: The trigger rows it waits for; one, but for a coroutine that waits for several at
            once.
        resumed: The one whose event it goes on from, which says in which method; ``None`` where
            it runs from the beginning. Of an operator that takes many events their stream, also
            between two tries.
        streams: Those its coroutine has opened, by the ordinal of the call that did.
        recorded: How many durable calls of its coroutine have a record.
        first_failed: The first of them that failed; -1 if none did.
        ends_at: When its try has had its ``execution_timeout``, in steady time; ``None`` while
            no try has begun, and without a limit.
        open_kind: The kind of the last one while it waits, else empty.
        parked_start: The start in which its coroutine is parked in the async host; 0 if it is
            not, and has to run again from the top.
        answer: What the parked coroutine is resumed with, once it is.
        looks: How often a sensor has looked in this memory.
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
        "looks",
        "map_index",
        "open_kind",
        "parked_start",
        "position",
        "queued_at",
        "recorded",
        "resumed",
        "run",
        "spec",
        "start_no",
        "started_at",
        "state",
        "stored_place",
        "stored_start",
        "stored_state",
        "streams",
        "task_no",
        "try_number",
        "waits",
        "worker",
    )

    def __init__(self, run: Run, task_no: TaskNo, position: int, map_index: int) -> None:
        self.run = run
        self.spec: TaskSpec = run.spec.tasks[position]
        self.task_no = task_no
        self.position = position
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
        self.stored_place = NOWHERE
        self.worker = -1
        self.is_claimed = False
        self.is_hosted = False
        self.waits: tuple[TriggerInstance, ...] = ()
        self.resumed: TriggerInstance | None = None
        self.streams: Mapping[int, TriggerInstance] = _NO_STREAMS
        self.recorded = 0
        self.first_failed = -1
        self.open_kind = ""
        self.parked_start: StartNo = 0
        self.answer: tuple[bytes | None, Failure | None] = (None, None)
        self.looks = 0

    @property
    def wait(self) -> TriggerInstance | None:
        """The first of ``waits``; all of them share their instants."""
        return self.waits[0] if self.waits else None

    @property
    def waits_again(self) -> bool:
        """Whether its next try has nothing to begin with: its stream has to go on first."""
        return self.resumed is not None and self.resumed.has_to_go_on

    @property
    def waits_for_host(self) -> bool:
        """Whether it is a sensor that looks in the async host, and is to be taken there."""
        is_coroutine = self.state is TaskState.SENSING and self.spec.body is Body.COROUTINE
        return is_coroutine and self.due_at is None and not self.is_hosted

    @property
    def name(self) -> str:
        """``task_id``, with the map index if it has one."""
        index = "" if self.map_index < 0 else f"[{self.map_index}]"
        return f"{self.spec.task_id}{index}"


class ActiveTasks(PackedMap[TaskInstance]):
    """The tasks of one run that are between pending and their end, by number.

    Args:
        first_task_no: Of the run; as are ``states`` and ``groups``. It does not know the run
            itself: one that is let go of is then gone at once, not when the collector comes by.
    """

    __slots__ = ("_count", "_first_task_no", "_groups", "_shelf", "_states")

    def __init__(
        self, first_task_no: TaskNo, states: bytearray, groups: dict[int, MappedTask]
    ) -> None:
        super().__init__()
        self._first_task_no = first_task_no
        self._states = states
        self._groups = groups
        self._count = 0
        self._shelf: PackedMap[TaskInstance] | None = None

    def __len__(self) -> int:
        return len(self.objects) + self._count

    def unfold(self, number: TaskNo) -> TaskInstance | None:
        """See ``PackedMap``."""
        return None if self._shelf is None or not self._count else self._shelf.unfold(number)

    def folded(self) -> list[TaskNo]:
        """See ``PackedMap``."""
        if self._shelf is None or not self._count:
            return []
        first = self._first_task_no
        numbers = [first + at for at, state in enumerate(self._states) if state]
        for group in self._groups.values():
            numbers += [group.first_task_no + at.start() for at in _DEFERRED.finditer(group.states)]
        shelf = self._shelf.folded()
        return [number for number in numbers if number in shelf]

    def lie(self, count: int, shelf: PackedMap[TaskInstance]) -> None:
        """So many of them lie folded on the shelf, and there is no other."""
        self._count = count
        self._shelf = shelf

    def put_away(self, number: TaskNo, shelf: PackedMap[TaskInstance]) -> None:
        """One of them lies folded on the shelf from now on."""
        del self.objects[number]
        if not self.objects:
            self.objects = {}  # an emptied one keeps its room
        self.lay(shelf)

    def lay(self, shelf: PackedMap[TaskInstance]) -> None:
        """One more of them lies folded on the shelf, which never was an object."""
        self._count += 1
        self._shelf = shelf

    def bring_back(self, task: TaskInstance) -> None:
        """One of them is an object again."""
        self._count -= 1
        self.objects[task.task_no] = task


class MappedTask(MappedChildren):
    """The children of one mapped task, and the run they belong to.

    Attributes:
        spec: What the author said of them.
    """

    __slots__ = ("run", "spec")

    def __init__(self, run: Run, expansion: ExpansionRow) -> None:
        self.run = run
        self.spec: TaskSpec = run.spec.tasks[expansion.position]
        mapped = self.spec.mapped
        super().__init__(expansion, is_loop=mapped is not None and mapped.until >= 0)


def is_under_way(state: int) -> bool:
    """Return whether a task has begun, or is about to, and has not ended."""
    return TaskState.PENDING < state < TaskState.SUCCESS


def run_info(row: RunRow, file: str) -> RunInfo:
    """Return what all tasks of a run share.

    Args:
        file: That of its DAG.
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
    """Return the queue of the runs of a backfill; no DAG has such a name."""
    return f"backfill {backfill_no}"


class Run:
    """One live run.

    Attributes:
        spec: What the author said.
        states: One byte per task of the DAG; of a mapped one ``RUNNING`` from its expansion
            until its last child has ended.
        tallies: ``TALLY`` words per task and group of parents: how their instances stand.
        unfinished: Tasks of the DAG that have not ended.
        running: Tasks that hold a slot right now, for the limits.
        running_at: The same by position, only where a limit asks for it.
        results: Small results of unmapped tasks, msgpack, for tasks still to start.
        known: 1 where ``results`` speaks for the position, also when it returned ``None``.
        widths: Items of the results that feed an expansion.
        source_starts: The start that wrote such a result.
        items: What tasks have given on before they ended, by their numbers.
        durations: Those of its plan.
        async_role: The role of the host of its coroutines, see ``roles``.
        info: What its tasks share, made once.
        blocked: Ready entries that the limit of the run keeps from a slot, see ``ready``.
        blocked_at: The same by position, for the limits of tasks and windows; by its complement
            those that wait straight from their start.
        is_forgotten: It was dropped and read again; whatever still points here is stale.
        retried: How often a task of it has run again, or is to.
        is_over_budget: People were told that it may not any more, see ``budget``.
        beyond_budget: How many tasks failed because they may not.
        cleared: Pending tasks with a row.
        removed: Mapped tasks with a row from when they had ended unexpanded: the same.
        clearing: What of it is to begin anew, or is marked; until all of that is done, nothing of
            it goes on.
        looked: Of fan-outs that is about, the children that were looked at, from the first on.
    """

    __slots__ = (
        "active_tasks",
        "async_role",
        "beyond_budget",
        "blocked",
        "blocked_at",
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
        "looked",
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
        for looks in graph.judged:
            for look in looks:
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
        self.looked: dict[int, int] = {}

    @property
    def run_no(self) -> RunNo:
        """Its row."""
        return self.row.run_no

    @property
    def state(self) -> RunState:
        """Where it stands."""
        return self.row.state

    @property
    def queue(self) -> str:
        """Among whose runs it waits for its turn, and counts: its DAG's, or its backfill's."""
        number = self.row.backfill
        return self.row.dag_id if number is None else backfill_queue(number)

    def task_no(self, position: int, map_index: int) -> TaskNo:
        """Return the number of the row, whether it exists or not."""
        if map_index < 0:
            return self.row.first_task_no + position
        return self.groups[position].first_task_no + map_index

    def count_ended(self, position: int, state: TaskState, times: int = 1) -> None:
        """Add ended instances of a task to the tallies of its children."""
        offset = TALLY_OFFSET[state]
        for tally in self.graph.counts_in[position]:
            self.tallies[tally * TALLY + offset] += times

    def count_child(self, group: MappedTask, state: TaskState, times: int = 1) -> None:
        """Add ended children of a fan-out to the tallies; one of a loop is in none."""
        if not group.is_loop:
            self.count_ended(group.position, state, times)

    def end_group(self, group: MappedTask) -> None:
        """All children of a task have ended."""
        outcome = group.outcome()
        self.states[group.position] = outcome
        self.unfinished -= 1
        if group.is_loop:
            self.count_ended(group.position, outcome)

    def widen(self, position: int, width: int) -> None:
        """A parent turned out to be ``width`` instances instead of one."""
        for tally in self.graph.counts_in[position]:
            self.tallies[tally * TALLY] += width - 1
