"""Packed tasks: one byte string holds a waiting task and its trigger, instead of two objects.

After each commit, each deferred task with a single trigger is packed together with the trigger. If
the task or the trigger is looked up, both are unpacked. They remain objects until the end of the
next turn, which is one iteration of the engine loop. Fields that many waiting tasks share are
stored once, in a ``TaskShape``. A run whose tasks are all waiting is packed as well. Code that
makes decisions cannot tell packed values from others.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from aioflow.core.state.child_roles import ASYNC, async_role, kind_of
from aioflow.core.state.graph import DagVersion
from aioflow.core.state.packed.runs import PackedRuns
from aioflow.core.state.packed_maps import Interner, Numbers, PackedMap, Pages, Rows, packed
from aioflow.core.state.task_instance import (
    NOWHERE,
    Run,
    TaskInstance,
    TriggerInstance,
    stored_times,
)
from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.rows import TaskRow, TriggerRow
from aioflow.model.states import Failure, TaskState, TriggerState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.inputs import CoroutineProgress

__all__ = ("PackedCache", "PackedTask", "Packing", "TaskShape")

Value = TypeVar("Value")
Group = TypeVar("Group", bound=Hashable)

_NO_ANSWER = (None, None)
_WORTH_COPYING = 1_024


class TaskShape(NamedTuple):
    """Fields of ``TaskInstance`` and ``TriggerInstance`` that many waiting tasks have in common."""

    dag_version: DagVersion
    task_index: int
    class_path: str
    next_method: str
    timeout_method: str
    ordinal: int
    branch: int
    open_kind: str
    role: str
    has_capacity: bool
    version: str
    has_instants: bool


class _OfShape(msgspec.Struct, frozen=True, array_like=True):
    """The first field of a ``PackedTask``, so that it can be decoded alone for speed."""

    form: int


class PackedTask(msgspec.Struct, frozen=True, array_like=True):
    """A packed task and its trigger.

    Most timestamps are relative to ``since``, which makes their encoding short.

    Attributes:
        form: Number of its ``TaskShape``.
        assignment_id: Assignment number when the task was packed; outdated if that host has died
            since.
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
    pokes: int
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
        tasks: Tasks that are neither pending nor ended.
        triggers: Triggers that tasks wait for, and triggers that a host has yet to release.
    """

    def __init__(self) -> None:
        self._loose: dict[TaskNo, TaskInstance] = {}
        self._shapes: Interner[TaskShape] = Interner()
        self._bodies: Pages[bytes] = Pages(Rows)
        self._trigger_nos: Pages[TriggerNo] = Pages(Numbers)
        self.tasks: PackedCache[TaskInstance] = PackedCache(self._trigger_nos, self._unpack_task)
        self.triggers: PackedCache[TriggerInstance] = PackedCache(
            self._bodies, self._unpack_trigger
        )
        self.runs = PackedRuns(self.tasks)
        self._lost: dict[str, int] = {}
        self._async_lives: dict[str, int] = {}
        self._most_live = 0

    def pack_waiting(self, waiting: Iterable[TaskInstance], runs: Mapping[RunNo, Run]) -> None:
        """Pack the tasks, triggers and runs that only wait, after the commit of a turn.

        Args:
            waiting: Deferred tasks that the turn has changed. Tasks that the turn only unpacked are
                already known.
            runs: Runs that the turn has changed.
        """
        self._loose.update((task.task_no, task) for task in waiting)
        self.runs.loose.update(runs)
        self._pack_loose()
        self.runs.pack()
        self._shrink()

    def pack_restored(self, run: Run) -> None:
        """Pack the tasks of a restored run that only wait.

        The run itself is packed later, after it has been continued.
        """
        self._loose.update(run.active_tasks.objects)
        self.runs.loose[run.run_no] = run
        self._pack_loose()
        self._shrink()

    def lose(self, role: str, assignment_id: int) -> None:
        """Record that a host died. Its packed triggers lose assignments up to this number."""
        if kind_of(role) == ASYNC:
            self._async_lives[role] = self._async_lives.get(role, 1) + 1
        else:
            self._lost[role] = assignment_id

    def peek(self, trigger_no: TriggerNo) -> TriggerInstance | None:
        """Return a trigger for reading only. A packed trigger stays packed."""
        wait = self.triggers.objects.get(trigger_no)
        if wait is None:
            one = self.find(trigger_no)
            if one is not None:
                wait = self._unpack(one, self.runs.peek(one.run_no))[1]
        return wait

    def peek_task(self, task_no: TaskNo) -> TaskInstance | None:
        """Return a task for reading only. A packed task stays packed."""
        task = self.tasks.objects.get(task_no)
        if task is None:
            trigger_no = self._trigger_nos.get(task_no)
            wait = None if trigger_no is None else self.peek(trigger_no)
            task = None if wait is None else wait.task
        return task

    # ── by shape ────────────────────────────────────────────────────────────────────────────
    # Nothing may be unpacked while one of the following iterators is in use.

    def shapes(self) -> list[TaskShape]:
        """Return the shapes of the packed tasks."""
        return [shape for shape, _ in self._shapes.numbered()]

    def count_shapes(self) -> Iterator[tuple[TaskShape, int]]:
        """Yield each shape of packed tasks with the number of its tasks."""
        return self._shapes.counts()

    def packed_triggers(self, is_wanted: Callable[[TaskShape], bool]) -> Iterator[TriggerNo]:
        """Yield the packed triggers of the wanted shapes, ascending."""
        forms = self._numbers(is_wanted)
        if forms:
            yield from (number for number, form in self._by_form() if form in forms)

    def triggers_after(
        self, after: TriggerNo, is_wanted: Callable[[TaskShape], bool]
    ) -> Iterator[TriggerNo]:
        """Yield the triggers above a number, ascending.

        Packed triggers are included only if their shape is wanted.
        """
        forms = self._numbers(is_wanted)
        packed_numbers = (one.trigger_no for one in self._packed_tasks(after) if one.form in forms)
        objects = sorted(number for number in self.triggers.objects if number > after)
        return heapq.merge(objects, packed_numbers if forms else ())

    def assignments(self, is_wanted: Callable[[TaskShape], bool]) -> Iterator[tuple[int, int]]:
        """Yield packed triggers of the wanted shapes with their assignment numbers."""
        forms = self._numbers(is_wanted)
        for one in self._packed_tasks() if forms else ():
            if one.form in forms:
                yield one.trigger_no, self.assignment_id(one)

    def grouped_triggers(
        self, group_of: Callable[[TaskShape], Group | None]
    ) -> dict[Group, array[int]]:
        """Return the packed triggers by group, in ascending order within each group.

        The shape of a trigger determines its group. Triggers without a group are omitted. If all
        have the same group, no trigger is read.
        """
        groups: dict[int, Group] = {}
        for shape, number in self._shapes.numbered():
            group = group_of(shape)
            if group is not None:
                groups[number] = group
        found: dict[Group, array[int]] = {group: array("q") for group in groups.values()}
        if len(found) == 1 and len(groups) == len(self._shapes.numbered()):
            found[next(iter(found))].extend(self.triggers.packed_numbers())
        elif found:
            for number, form in self._by_form():
                if form in groups:
                    found[groups[form]].append(number)
        return found

    def _numbers(self, is_wanted: Callable[[TaskShape], bool]) -> set[int]:
        return {number for shape, number in self._shapes.numbered() if is_wanted(shape)}

    def _packed_tasks(self, after: TriggerNo = -1) -> Iterator[PackedTask]:
        """Yield the packed tasks by trigger number."""
        for _, body in self._bodies.items(after):
            yield _decode(body)

    def _by_form(self) -> Iterator[tuple[TriggerNo, int]]:
        """Yield each packed trigger with its shape number, ascending."""
        for number, body in self._bodies.items():
            yield number, _decode_form(body).form

    # ── one packed task ─────────────────────────────────────────────────────────────────────

    def instants(self, run: Run) -> Iterator[tuple[TaskNo, Timestamp]]:
        """Yield the times at which packed tasks of a run are due or time out."""
        if not any(form.has_instants for form, _ in self._shapes.numbered()):
            return
        for task_no in run.active_tasks.packed_numbers():
            trigger_no = self._trigger_nos.get(task_no)
            one = None if trigger_no is None else self.find(trigger_no)
            if one is None:
                continue
            for length in (one.due_at, one.deadline_at, one.until):
                if length is not None:
                    yield task_no, one.since + length

    def assignment_id(self, one: PackedTask) -> int:
        """Return the assignment number of a packed trigger; 0 while it has no host."""
        role = self._shapes[one.form].role
        return one.assignment_id if one.assignment_id > self._lost.get(role, 0) else 0

    def find(self, trigger_no: TriggerNo) -> PackedTask | None:
        """Return a packed trigger without unpacking it; ``None`` if it is not packed."""
        body = self._bodies.get(trigger_no)
        return None if body is None else _decode(body)

    def shape(self, one: PackedTask) -> TaskShape:
        """Return the shape of a packed task."""
        return self._shapes[one.form]

    def shape_of(self, trigger_no: TriggerNo) -> TaskShape | None:
        """Return the shape of a packed trigger; ``None`` if it is not packed."""
        body = self._bodies.get(trigger_no)
        return None if body is None else self._shapes[_decode_form(body).form]

    def change(self, was: PackedTask, *, assignment_id: int, form: TaskShape) -> None:
        """Change the assignment and the shape of a packed trigger."""
        self._shapes.release(was.form)
        one = msgspec.structs.replace(
            was, assignment_id=assignment_id, form=self._shapes.acquire(form)
        )
        self._bodies.put(one.trigger_no, packed(one))

    def change_back(self, was: PackedTask, form: TaskShape) -> None:
        """Roll back ``change``.

        Meanwhile the trigger may have been unpacked, or unpacked and packed again.
        """
        wait = self.triggers.objects.get(was.trigger_no)
        if wait is not None:
            assignment_id = (
                was.assignment_id if was.assignment_id > self._lost.get(form.role, 0) else 0
            )
            wait.assignment_id, wait.role = assignment_id, form.role
            wait.has_capacity, wait.version = form.has_capacity or not assignment_id, form.version
            return
        one = self.find(was.trigger_no)
        if one is not None:
            self.change(one, assignment_id=was.assignment_id, form=form)

    # ── packing and unpacking ───────────────────────────────────────────────────────────────

    def add_from_rows(
        self,
        run: Run,
        task: TaskRow,
        row: TriggerRow,
        progress: CoroutineProgress | None,
        shift: int,
    ) -> None:
        """Add a packed task and its trigger from their rows.

        The task must be deferred with a single trigger. The trigger must be waiting, fire only
        once, and have no host.

        Args:
            shift: Offset of the wall clock from steady time.
        """
        since = row.since
        due_at, ends_at = stored_times(run.spec.tasks[task.task_index], task, shift)
        form = TaskShape(
            run.dag_version,
            task.task_index,
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
            self._shapes.acquire(form),
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
        self._store(one)
        run.active_tasks.count_packed(self.tasks)

    def forget_packed(self, run_no: RunNo) -> None:
        """Remove the packed tasks of a run, in one pass over all packed tasks."""
        for one in [one for one in self._packed_tasks() if one.run_no == run_no]:
            self._take(one)

    def _only_waits(self, task: TaskInstance) -> bool:
        """Return whether this is the current object of the task and can be packed without loss."""
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

    def _pack(self, task: TaskInstance) -> None:
        wait, run = task.waits[0], task.run
        row = wait.row
        since = row.since
        form = TaskShape(
            run.dag_version,
            task.task_index,
            row.class_path,
            row.next_method,
            row.timeout_method,
            row.ordinal,
            row.branch,
            task.open_kind,
            wait.role,
            wait.has_capacity,
            wait.version,
            not (task.due_at is task.deadline_at is row.deadline_at is None),
        )
        one = PackedTask(
            self._shapes.acquire(form),
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
            task.pokes,
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
        self._store(one)
        run.active_tasks.replace_by_packed(task.task_no, self.tasks)
        task.waits = ()  # breaks a reference cycle, so that both are freed immediately

    def _async_life(self, dag_version: DagVersion) -> int:
        """Return the generation of the host that runs the coroutines of a version."""
        return self._async_lives.get(async_role(dag_version.graph.spec), 1)

    def _store(self, one: PackedTask) -> None:
        self._bodies.put(one.trigger_no, packed(one))
        self._trigger_nos.put(one.task_no, one.trigger_no)

    def _take(self, one: PackedTask) -> None:
        self._shapes.release(one.form)
        self._bodies.take(one.trigger_no)
        self._trigger_nos.take(one.task_no)

    def _unpack_task(self, task_no: TaskNo) -> TaskInstance | None:
        trigger_no = self._trigger_nos.get(task_no)
        wait = None if trigger_no is None else self._unpack_trigger(trigger_no)
        return None if wait is None else wait.task

    def _unpack_trigger(self, trigger_no: TriggerNo) -> TriggerInstance | None:
        one = self.find(trigger_no)
        if one is None:
            return None
        task, wait = self._unpack(one, self.runs[one.run_no])
        self._take(one)
        self.tasks.objects[one.task_no] = self._loose[one.task_no] = task
        self.triggers.objects[one.trigger_no] = wait
        task.run.active_tasks.count_unpacked(task)
        return wait

    def _unpack(self, one: PackedTask, run: Run) -> tuple[TaskInstance, TriggerInstance]:
        """Rebuild a packed task and its trigger."""
        form, since = self._shapes[one.form], one.since
        task = TaskInstance(run, one.task_no, form.task_index, one.map_index)
        task.state = task.stored_state = TaskState.DEFERRED
        task.start_no = task.stored_start = one.start_no
        task.try_number = one.try_number
        task.interruptions = one.interruptions
        task.recorded, task.first_failed = one.recorded, one.first_failed
        task.pokes = one.pokes
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
        wait.has_capacity = form.has_capacity or not wait.assignment_id
        wait.version = form.version
        task.waits = (wait,)
        return task, wait

    def _pack_loose(self) -> None:
        self._most_live = max(self._most_live, len(self.tasks.objects))
        for task in self._loose.values():
            if self._only_waits(task):
                self._pack(task)
        self._loose.clear()

    def _shrink(self) -> None:
        """Replace the dictionaries by smaller copies if most of their values were removed.

        A ``dict`` does not release memory when values are removed.
        """
        if self._most_live > max(_WORTH_COPYING, 8 * len(self.tasks.objects)):
            self._most_live = len(self.tasks.objects)
            self.tasks.objects = dict(self.tasks.objects)
            self.triggers.objects = dict(self.triggers.objects)
            self._loose = {}


class PackedCache(PackedMap[Value]):
    """Tasks or triggers of all runs by number, packed or not.

    Args:
        packed_numbers: Packed values by number.
        unpack: See ``PackedMap``.
    """

    __slots__ = ("_packed_tasks", "_unpack_value")

    def __init__(self, packed_numbers: Pages[Any], unpack: Callable[[int], Value | None]) -> None:
        super().__init__()
        self._packed_tasks = packed_numbers
        self._unpack_value = unpack

    def __len__(self) -> int:
        return len(self.objects) + len(self._packed_tasks)

    def unpack(self, number: int) -> Value | None:
        """See ``PackedMap``."""
        return self._unpack_value(number)

    def packed_numbers(self) -> Pages[Any]:
        """See ``PackedMap``."""
        return self._packed_tasks
