"""Packed tasks and runs: a byte string instead of objects, for tasks that only wait.

After each commit, a deferred task with a single trigger is packed together with the trigger.
Looking up either of them unpacks both, until the end of the next turn. Fields that many waits share
are in a ``TaskShape``. A run whose tasks all wait is packed as well. Decisions never see the
difference.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from aioflow.core.state.child_roles import ASYNC, async_role, kind_of
from aioflow.core.state.graph import DagVersion
from aioflow.core.state.packed_maps import Interner, Numbers, PackedMap, Pages, Rows, packed
from aioflow.core.state.task_instance import (
    NOWHERE,
    Run,
    TaskInstance,
    TriggerInstance,
    stored_times,
)
from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.rows import RunRow, TaskRow, TriggerRow
from aioflow.model.states import Failure, RunState, TaskState, TriggerState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.inputs import CoroutineProgress

__all__ = (
    "PackedCache",
    "PackedRuns",
    "PackedTask",
    "Packing",
    "TaskShape",
)


class _PackedRun(msgspec.Struct, frozen=True, array_like=True):
    """A packed run. Tallies are not stored, because the states determine them.

    Attributes:
        dag_version: Number of its DAG version in ``PackedRuns.dag_versions``.
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


_decode_run = msgspec.msgpack.Decoder(_PackedRun).decode


class PackedRuns(PackedMap[Run]):
    """Live runs by number.

    Attributes:
        loose: Runs that may be packed after the commit.
        dag_versions: DAG versions of the packed runs.
    """

    __slots__ = ("_bodies", "_tasks", "dag_versions", "loose")

    def __init__(self, tasks: PackedMap[TaskInstance]) -> None:
        super().__init__()
        self.loose: dict[RunNo, Run] = {}
        self.dag_versions: Interner[DagVersion] = Interner()
        self._bodies: Pages[bytes] = Pages(Rows)
        self._tasks = tasks

    def __len__(self) -> int:
        return len(self.objects) + len(self._bodies)

    def folded(self) -> Pages[bytes]:
        """See ``PackedMap``."""
        return self._bodies

    def unfold(self, number: RunNo) -> Run | None:
        """See ``PackedMap``."""
        body = self._bodies.take(number)
        if body is None:
            return None
        one = _decode_run(body)
        run = self.objects[number] = self.loose[number] = self._thaw(one)
        self.dag_versions.leave(one.dag_version)
        return run

    def peek(self, number: RunNo) -> Run:
        """Return a run for reading only; a packed run stays packed.

        Raises:
            KeyError: If there is no such run.
        """
        run, body = self.objects.get(number), self._bodies.get(number)
        if run is not None:
            return run
        if body is None:
            raise KeyError(number)
        return self._thaw(_decode_run(body))

    def logical_date(self, number: RunNo) -> Timestamp | None:
        """Return the logical date of a run; a packed run stays packed.

        Raises:
            KeyError: If there is no such run.
        """
        body = self._bodies.get(number)
        return (
            self.objects[number].row.logical_date
            if body is None
            else _decode_run(body).logical_date
        )

    def fold(self) -> None:
        """Pack the runs in ``loose`` that only wait."""
        for run in self.loose.values():
            if self._only_waits(run):
                self._fold(run)
        self.loose.clear()

    def _only_waits(self, run: Run) -> bool:
        """Return whether the run can be packed without loss and is the current object."""
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

    def _fold(self, run: Run) -> None:
        row = run.row
        one = _PackedRun(
            self.dag_versions.enter(run.dag_version),
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
        )
        del self.objects[row.run_no]
        self._bodies.put(row.run_no, packed(one))

    def _thaw(self, one: _PackedRun) -> Run:
        """Rebuild the run."""
        dag_version = self.dag_versions[one.dag_version]
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
        )
        run = Run(row, dag_version)
        run.states[:] = one.states
        run.known[:] = one.known or run.known
        run.results, run.widths = one.results, one.widths
        run.source_starts = one.source_starts
        run.retried, run.is_over_budget = one.retried, one.is_over_budget
        run.beyond_budget = one.beyond_budget
        _rebuild_tallies(run)
        run.active_tasks.lie(one.tasks, self._tasks)
        return run


def _rebuild_tallies(run: Run) -> None:
    """Rebuild the tallies from the states of a run without expanded tasks."""
    for position, number in enumerate(run.states):
        state = TaskState(number)
        if not state.is_live:
            run.count_ended(position, state)
            run.unfinished -= 1


Value = TypeVar("Value")

_NO_ANSWER = (None, None)
_WORTH_COPYING = 1_024


class TaskShape(NamedTuple):
    """Fields of ``TaskInstance`` and ``TriggerInstance`` that many waits share."""

    dag_version: DagVersion
    position: int
    class_path: str
    next_method: str
    timeout_method: str
    ordinal: int
    branch: int
    open_kind: str
    role: str
    has_room: bool
    version: str
    has_instants: bool


class _OfShape(msgspec.Struct, frozen=True, array_like=True):
    """The first field of a ``PackedTask``, decoded alone for speed."""

    form: int


class PackedTask(msgspec.Struct, frozen=True, array_like=True):
    """A task and its trigger. Timestamps are relative to ``since``, so that most are short.

    Attributes:
        form: Number of its ``TaskShape``.
        assignment_id: Assignment number when it was packed; outdated if that host has died since.
        suspended_in: Generation of the async host in which its coroutine is suspended; 0 for none.
    """

    form: int
    run_no: RunNo
    task_no: TaskNo
    trigger_no: TriggerNo
    assignment_id: int
    since: Timestamp
    map_index: int
    try_number: int
    start_no: int
    interruptions: int
    recorded: int
    first_failed: int
    looks: int
    suspended_in: int
    queued_at: int | None
    started_at: int | None
    ends_at: int | None
    due_at: int | None
    deadline_at: int | None
    until: int | None
    kwargs: bytes | None
    next_kwargs: bytes | None
    failure: Failure | None


_decode = msgspec.msgpack.Decoder(PackedTask).decode
_decode_form = msgspec.msgpack.Decoder(_OfShape).decode


class Packing:
    """Tasks and triggers in memory, packed or not.

    Attributes:
        runs: Live runs. A run whose active tasks are all packed is packed, too.
        tasks: Tasks between pending and their end.
        triggers: Triggers they wait for, and those that a host has yet to release.
        loose: Tasks that may be packed after the commit.
        forms: Shapes of the packed tasks.
    """

    def __init__(self) -> None:
        self.loose: dict[TaskNo, TaskInstance] = {}
        self.forms: Interner[TaskShape] = Interner()
        self._bodies: Pages[bytes] = Pages(Rows)
        self._trigger_nos: Pages[TriggerNo] = Pages(Numbers)
        self.tasks: PackedCache[TaskInstance] = PackedCache(self._trigger_nos, self._unfold_task)
        self.triggers: PackedCache[TriggerInstance] = PackedCache(
            self._bodies, self._unfold_trigger
        )
        self.runs = PackedRuns(self.tasks)
        self._lost: dict[str, int] = {}
        self._async_lives: dict[str, int] = {}
        self._most_live = 0

    def fold(self, *, with_runs: bool = True) -> None:
        """Pack what only waits. Called after the commit."""
        self._most_live = max(self._most_live, len(self.tasks.objects))
        for task in self.loose.values():
            if self._only_waits(task):
                self._fold(task)
        self.loose.clear()
        if with_runs:
            self.runs.fold()
        if self._most_live > max(_WORTH_COPYING, 8 * len(self.tasks.objects)):
            self._shrink()

    def lose(self, role: str, assignment_id: int) -> None:
        """Record that a host died: packed triggers lose their assignments up to this number."""
        if kind_of(role) == ASYNC:
            self._async_lives[role] = self._async_lives.get(role, 1) + 1
        else:
            self._lost[role] = assignment_id

    def peek(self, trigger_no: TriggerNo) -> TriggerInstance | None:
        """Return a trigger for reading only; a packed one stays packed."""
        wait = self.triggers.objects.get(trigger_no)
        if wait is None:
            one = self.look(trigger_no)
            if one is not None:
                wait = self._thaw(one, self.runs.peek(one.run_no))[1]
        return wait

    def peek_task(self, task_no: TaskNo) -> TaskInstance | None:
        """Return a task for reading only; a packed one stays packed."""
        task = self.tasks.objects.get(task_no)
        if task is None:
            trigger_no = self._trigger_nos.get(task_no)
            wait = None if trigger_no is None else self.peek(trigger_no)
            task = None if wait is None else wait.task
        return task

    def folded(self, after: TriggerNo = -1) -> Iterator[PackedTask]:
        """Yield the packed tasks by trigger number. Nothing may be unpacked meanwhile."""
        for _, body in self._bodies.items(after):
            yield _decode(body)

    def by_form(self) -> Iterator[tuple[TriggerNo, int]]:
        """Yield each packed trigger with its shape number, ascending.

        Nothing may be unpacked meanwhile.
        """
        for number, body in self._bodies.items():
            yield number, _decode_form(body).form

    def numbers(self, forms: set[int], after: TriggerNo = -1) -> Iterator[TriggerNo]:
        """Yield the triggers above a number that are objects or have such a shape, ascending."""
        folded = (one.trigger_no for one in self.folded(after) if one.form in forms)
        objects = sorted(number for number in self.triggers.objects if number > after)
        return heapq.merge(objects, folded if forms else ())

    def instants(self, run: Run) -> Iterator[tuple[TaskNo, Timestamp]]:
        """Yield the timestamps that packed tasks of a run wait for."""
        if not any(form.has_instants for form, _ in self.forms.numbered()):
            return
        for task_no in run.active_tasks.folded():
            trigger_no = self._trigger_nos.get(task_no)
            one = None if trigger_no is None else self.look(trigger_no)
            if one is None:
                continue
            for length in (one.due_at, one.deadline_at, one.until):
                if length is not None:
                    yield task_no, one.since + length

    def assignment_id(self, one: PackedTask) -> int:
        """Return the assignment number of a packed trigger; 0 while no host has it."""
        role = self.forms[one.form].role
        return one.assignment_id if one.assignment_id > self._lost.get(role, 0) else 0

    def look(self, trigger_no: TriggerNo) -> PackedTask | None:
        """Return a packed trigger without unpacking it; ``None`` if it is not packed."""
        body = self._bodies.get(trigger_no)
        return None if body is None else _decode(body)

    def form_of(self, trigger_no: TriggerNo) -> int | None:
        """Return the shape number of a packed trigger; ``None`` if it is not packed."""
        body = self._bodies.get(trigger_no)
        return None if body is None else _decode_form(body).form

    def change(self, was: PackedTask, *, assignment_id: int, form: TaskShape) -> None:
        """Change the assignment and the shape of a packed trigger."""
        self.forms.leave(was.form)
        one = msgspec.structs.replace(was, assignment_id=assignment_id, form=self.forms.enter(form))
        self._bodies.put(one.trigger_no, packed(one))

    def change_back(self, was: PackedTask, form: TaskShape) -> None:
        """Roll back ``change``. The trigger may have been unpacked since, or packed again."""
        wait = self.triggers.objects.get(was.trigger_no)
        if wait is not None:
            assignment_id = (
                was.assignment_id if was.assignment_id > self._lost.get(form.role, 0) else 0
            )
            wait.assignment_id, wait.role = assignment_id, form.role
            wait.has_room, wait.version = form.has_room or not assignment_id, form.version
            return
        one = self.look(was.trigger_no)
        if one is not None:
            self.change(one, assignment_id=was.assignment_id, form=form)

    # ── packing and unpacking ───────────────────────────────────────────────────────────────

    def lay(
        self,
        run: Run,
        task: TaskRow,
        row: TriggerRow,
        progress: CoroutineProgress | None,
        shift: int,
    ) -> None:
        """Add a packed task and its trigger from their rows.

        The task must be deferred. Its only trigger waits for its only event, without a host.

        Args:
            shift: Offset of the wall clock from steady time.
        """
        since = row.since
        due_at, ends_at = stored_times(run.spec.tasks[task.position], task, shift)
        form = TaskShape(
            run.dag_version,
            task.position,
            row.class_path,
            row.next_method,
            row.timeout_method,
            row.ordinal,
            row.branch,
            "" if progress is None else progress.open_kind,
            "triggers",
            True,
            run.row.version,
            not (due_at is task.deadline_at is row.deadline_at is None),
        )
        one = PackedTask(
            self.forms.enter(form),
            row.run_no,
            task.task_no,
            row.trigger_no,
            0,
            since,
            task.map_index,
            task.try_number,
            task.start_no,
            task.interruptions,
            0 if progress is None else progress.count,
            -1 if progress is None else progress.first_failed,
            0,
            0,
            None if task.queued_at is None else task.queued_at - since,
            None if task.started_at is None else task.started_at - since,
            None if ends_at is None else ends_at - since,
            None if due_at is None else due_at - since,
            None if task.deadline_at is None else task.deadline_at - since,
            None if row.deadline_at is None else row.deadline_at - since,
            row.kwargs,
            row.next_kwargs,
            task.failure,
        )
        self._lay(one)
        run.active_tasks.lay(self.tasks)

    def forget_folded(self, run_no: RunNo) -> None:
        """Remove the packed tasks of a run, in one pass over all packed tasks."""
        for one in [one for one in self.folded() if one.run_no == run_no]:
            self._take(one)

    def _only_waits(self, task: TaskInstance) -> bool:
        """Return whether the task can be packed without loss and is the current object."""
        if task.state is not TaskState.DEFERRED or len(task.waits) != 1:
            return False
        wait = task.waits[0]
        return (
            self.tasks.objects.get(task.task_no) is task
            and self.triggers.objects.get(wait.row.trigger_no) is wait
            and wait.task is task
            and wait.state is TriggerState.WAITING
            and wait.stream is None
            and task.resumed is None
            and not task.streams
            and task.answer == _NO_ANSWER
            and task.stored_slot == NOWHERE
            and task.worker < 0
            and not task.is_hosted
            and task.suspended_start in {0, task.start_no}
            and self.runs.objects.get(task.run.run_no) is task.run
        )

    def _fold(self, task: TaskInstance) -> None:
        wait, run = task.waits[0], task.run
        row = wait.row
        since = row.since
        form = TaskShape(
            run.dag_version,
            task.position,
            row.class_path,
            row.next_method,
            row.timeout_method,
            row.ordinal,
            row.branch,
            task.open_kind,
            wait.role,
            wait.has_room,
            wait.version,
            not (task.due_at is task.deadline_at is row.deadline_at is None),
        )
        one = PackedTask(
            self.forms.enter(form),
            row.run_no,
            task.task_no,
            row.trigger_no,
            wait.assignment_id,
            since,
            task.map_index,
            task.try_number,
            task.start_no,
            task.interruptions,
            task.recorded,
            task.first_failed,
            task.looks,
            self._async_life(form.dag_version) if task.suspended_start else 0,
            None if task.queued_at is None else task.queued_at - since,
            None if task.started_at is None else task.started_at - since,
            None if task.ends_at is None else task.ends_at - since,
            None if task.due_at is None else task.due_at - since,
            None if task.deadline_at is None else task.deadline_at - since,
            None if row.deadline_at is None else row.deadline_at - since,
            row.kwargs,
            row.next_kwargs,
            task.failure,
        )
        del self.tasks.objects[task.task_no], self.triggers.objects[row.trigger_no]
        self._lay(one)
        run.active_tasks.put_away(task.task_no, self.tasks)
        task.waits = ()  # breaks a reference cycle, so that both are freed at once

    def _async_life(self, dag_version: DagVersion) -> int:
        """Return the generation of the host that runs the coroutines of a version."""
        return self._async_lives.get(async_role(dag_version.graph.spec), 1)

    def _lay(self, one: PackedTask) -> None:
        self._bodies.put(one.trigger_no, packed(one))
        self._trigger_nos.put(one.task_no, one.trigger_no)

    def _take(self, one: PackedTask) -> None:
        self.forms.leave(one.form)
        self._bodies.take(one.trigger_no)
        self._trigger_nos.take(one.task_no)

    def _unfold_task(self, task_no: TaskNo) -> TaskInstance | None:
        trigger_no = self._trigger_nos.get(task_no)
        wait = None if trigger_no is None else self._unfold_trigger(trigger_no)
        return None if wait is None else wait.task

    def _unfold_trigger(self, trigger_no: TriggerNo) -> TriggerInstance | None:
        one = self.look(trigger_no)
        if one is None:
            return None
        task, wait = self._thaw(one, self.runs[one.run_no])
        self._take(one)
        self.tasks.objects[one.task_no] = self.loose[one.task_no] = task
        self.triggers.objects[one.trigger_no] = wait
        task.run.active_tasks.bring_back(task)
        return wait

    def _thaw(self, one: PackedTask, run: Run) -> tuple[TaskInstance, TriggerInstance]:
        """Rebuild the task and its trigger."""
        form, since = self.forms[one.form], one.since
        task = TaskInstance(run, one.task_no, form.position, one.map_index)
        task.state = task.stored_state = TaskState.DEFERRED
        task.start_no = task.stored_start = one.start_no
        task.try_number = one.try_number
        task.interruptions = one.interruptions
        task.recorded, task.first_failed = one.recorded, one.first_failed
        task.looks = one.looks
        task.open_kind = form.open_kind
        is_suspended = one.suspended_in != 0 and one.suspended_in == self._async_life(
            form.dag_version
        )
        task.suspended_start = one.start_no if is_suspended else 0
        task.queued_at = None if one.queued_at is None else since + one.queued_at
        task.started_at = None if one.started_at is None else since + one.started_at
        task.ends_at = None if one.ends_at is None else since + one.ends_at
        task.due_at = None if one.due_at is None else since + one.due_at
        task.deadline_at = None if one.deadline_at is None else since + one.deadline_at
        task.failure = one.failure
        row = TriggerRow(
            trigger_no=one.trigger_no,
            task_no=one.task_no,
            run_no=one.run_no,
            state=TriggerState.WAITING,
            class_path=form.class_path,
            kwargs=one.kwargs,
            since=since,
            deadline_at=None if one.until is None else since + one.until,
            next_method=form.next_method,
            next_kwargs=one.next_kwargs,
            ordinal=form.ordinal,
            branch=form.branch,
            timeout_method=form.timeout_method,
        )
        wait = TriggerInstance(row, run, task)
        wait.assignment_id = self.assignment_id(one)
        wait.role = form.role
        wait.has_room = form.has_room or not wait.assignment_id
        wait.version = form.version
        task.waits = (wait,)
        return task, wait

    def _shrink(self) -> None:
        """Replace the dictionaries: a ``dict`` keeps the memory of its largest size."""
        self._most_live = len(self.tasks.objects)
        self.tasks.objects = dict(self.tasks.objects)
        self.triggers.objects = dict(self.triggers.objects)
        self.loose = {}


class PackedCache(PackedMap[Value]):
    """Tasks or triggers of all runs, by number.

    Args:
        folded: Packed values by number.
        unfold: See ``PackedMap``.
    """

    __slots__ = ("_folded", "_unfold")

    def __init__(self, folded: Pages[Any], unfold: Callable[[int], Value | None]) -> None:
        super().__init__()
        self._folded = folded
        self._unfold = unfold

    def __len__(self) -> int:
        return len(self.objects) + len(self._folded)

    def unfold(self, number: int) -> Value | None:
        """See ``PackedMap``."""
        return self._unfold(number)

    def folded(self) -> Pages[Any]:
        """See ``PackedMap``."""
        return self._folded
