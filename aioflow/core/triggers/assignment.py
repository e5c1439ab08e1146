"""Assignment of triggers to hosts while their tasks wait, and their release afterwards."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from aioflow.core.state.child_roles import (
    QUARANTINE,
    TRIGGERS,
    hosts_triggers,
    is_on_demand,
    own_role,
    shared_role,
)
from aioflow.core.state.crash_trials import may_host, may_host_all
from aioflow.core.state.graph import DagVersion
from aioflow.core.state.memory import Memory
from aioflow.core.state.packed import PackedTask, TaskShape
from aioflow.core.state.task_instance import TriggerInstance
from aioflow.core.tasks.start_command import order
from aioflow.core.transaction import Transaction
from aioflow.model.dag import TaskSpec
from aioflow.model.decisions import PERSON
from aioflow.model.ids import TriggerNo
from aioflow.model.rows import FROM_START, RESUMES
from aioflow.model.states import TriggerState
from aioflow.protocol.commands import StartTrigger, StopTrigger
from aioflow.protocol.effects import AssignTrigger, ReleaseTrigger, StartHost
from aioflow.protocol.inputs import AssignTriggers

__all__ = (
    "ASSIGNED_AT_ONCE",
    "HOSTLESS",
    "REASSIGNED",
    "RUN",
    "SLEEP",
    "assign_next",
    "host",
    "host_all",
    "host_rest",
    "hosted_before",
    "is_stopped",
    "newest_version",
    "reassign",
    "release_trigger",
    "request_host",
    "request_own_hosts",
    "role_of",
    "role_of_shape",
    "role_of_wait",
    "unhost",
)

REASSIGNED = "reassigned"
"""The reason to release a trigger that continues in another host."""

SLEEP = "sleep"
"""The class path of a trigger that only has a deadline."""

RUN = "run"
"""The class path of a trigger that fires when a run that its task started has ended."""

HOSTLESS = frozenset({SLEEP, RUN, PERSON})
"""Class paths of triggers that are never assigned to a host."""

_CATALOGUE = ("aioflow_triggers.", "aioflow_triggers:")
"""Prefixes of the class paths of triggers that every interpreter runs in the same way."""

ASSIGNED_AT_ONCE = 1_000
"""Maximum number of triggers assigned to a new host in one turn. The rest follow later."""


def host(wait: TriggerInstance, tx: Transaction) -> None:
    """Assign a waiting trigger to its host, if the host is up and the fields can be decrypted.

    The quarantine host is started by the first trigger assigned to it. That trigger is assigned
    again once the host is up. A DAG's dedicated host is started when the first of the DAG's
    triggers needs it, and the triggers are assigned once it is up.
    """
    row, run = wait.row, wait.run.row
    role = role_of_wait(wait, tx.memory)
    tx.record_assignment(wait)
    unhost(wait)
    if row.kwargs is None or row.class_path in HOSTLESS or tx.memory.is_drained:
        return
    if _is_ending(wait) or is_stopped(run.dag_id, tx.memory):
        return
    if not may_host(row.trigger_no, tx.memory):
        return  # the trigger is assigned after others
    wait.role = role
    if not _accepts(role, tx.memory):
        request_host(role, tx)
        return
    wait.assignment_id = tx.memory.next_assignment_id()
    wait.version = newest_version(wait.run.dag_version, tx.memory)
    if wait.stream is not None:
        wait.stream.index = wait.stream.confirmed = 0
    has_start = row.ordinal == FROM_START or _feeds(wait)
    info = wait.run.info if has_start else None
    command = _order(wait, row.kwargs, tx, has_start=has_start)
    tx.effects.append(AssignTrigger(command, info, role, tx.memory.host_processes.get(role, 0)))


def _is_ending(wait: TriggerInstance) -> bool:
    """Return whether a trigger's task will be cancelled, cleared or marked in a later slice.

    Rows that the trigger was created from may already be deleted.
    """
    if not wait.run.state.is_live:
        return True
    chosen, task = wait.run.clearing, wait.task
    return chosen is not None and task is not None and chosen.ends(task.task_index, task.map_index)


def _feeds(wait: TriggerInstance) -> bool:
    """Return whether an event may end the task with a list that other tasks expand over.

    If so, the host writes the list, for which it needs the same data about the task as a worker.
    """
    row, task = wait.row, wait.task
    if row.ordinal != RESUMES or row.window:
        return False
    return task is not None and task.spec.feeds_limit is not None


def _order(
    wait: TriggerInstance, kwargs: bytes, tx: Transaction, *, has_start: bool
) -> StartTrigger:
    """Return the command that starts a trigger in its host.

    Args:
        kwargs: The fields of the trigger.
        has_start: Whether the command contains the start command of the waiting task.
    """
    row, run, task = wait.row, wait.run.row, wait.task
    return StartTrigger(
        trigger_no=row.trigger_no,
        assignment_id=wait.assignment_id,
        run_no=run.run_no,
        task_no=row.task_no,
        version=run.version,
        class_path=row.class_path,
        kwargs=kwargs,
        since=row.since + tx.at.shift,
        waits_since=tx.at.monotonic - (tx.steady - row.since),
        logical_date=run.logical_date,
        window=row.window,
        start=order(task, tx.steady, resumes=False) if task is not None and has_start else None,
        is_made_there=row.ordinal == FROM_START,
        newest="" if wait.version == run.version else wait.version,
        last=None if wait.stream is None else wait.stream.last,
        priority=0 if task is None else task.spec.priority,
        task_index=-1 if task is None else task.task_index,
        map_index=-1 if task is None else task.map_index,
        start_no=0 if task is None else task.start_no,
        try_number=1 if task is None else task.try_number,
        dag_id=run.dag_id,
    )


def role_of(
    class_path: str, dag_version: DagVersion, memory: Memory, *, needs_dag: bool = False
) -> str:
    """Return the role of the host for triggers of a class, in a version of a DAG.

    The host imports this version and the newest one. If either version is isolated, the triggers
    run in the DAG's dedicated host, where quarantine would give no further protection. If the DAG
    chooses an interpreter, catalogue triggers do not need a host in that interpreter.

    Args:
        needs_dag: See ``_needs_dag``.
    """
    spec = dag_version.graph.spec
    interpreter = spec.interpreter
    if interpreter and not needs_dag and class_path.startswith(_CATALOGUE):
        interpreter = ""
    elif spec.isolated or _is_isolated_now(dag_version, memory):
        return own_role(TRIGGERS, spec.dag_id, interpreter)
    is_quarantined = memory.loop_blockers.is_quarantined(class_path)
    return shared_role(QUARANTINE if is_quarantined else TRIGGERS, interpreter)


def role_of_wait(wait: TriggerInstance, memory: Memory) -> str:
    """Return the role of the host for the trigger of a task."""
    dag_version = wait.run.dag_version
    feeds = wait.task is not None and wait.task.spec.feeds_limit is not None
    needs_dag = _needs_dag(wait.row.ordinal, feeds=feeds)
    return role_of(wait.row.class_path, dag_version, memory, needs_dag=needs_dag)


def role_of_shape(shape: TaskShape, memory: Memory) -> str:
    """Return the role of the host for packed triggers of a shape."""
    needs_dag = _needs_dag(shape.ordinal, feeds=_spec(shape).feeds_limit is not None)
    return role_of(shape.class_path, shape.dag_version, memory, needs_dag=needs_dag)


def _needs_dag(ordinal: int, *, feeds: bool) -> bool:
    """Return whether the host of a trigger needs the code of its DAG.

    It does if it creates the trigger from the arguments of its task, or writes the list that is the
    result of the task.

    Args:
        feeds: Whether other tasks expand over the result of the task.
    """
    return ordinal == FROM_START or (ordinal == RESUMES and feeds)


def _is_isolated_now(dag_version: DagVersion, memory: Memory) -> bool:
    version = newest_version(dag_version, memory)
    if version == dag_version.version:
        return False
    newest = memory.dag_versions.get((version, dag_version.graph.spec.dag_id))
    return newest is not None and bool(newest.graph.spec.isolated)


def request_host(role: str, tx: Transaction) -> None:
    """Start an on-demand host. The other hosts start by themselves."""
    if is_on_demand(role):
        tx.effects.append(StartHost(role))


def request_own_hosts(tx: Transaction) -> None:
    """Start the on-demand hosts that triggers of tasks wait for.

    After a restart no on-demand host is up, and nothing else assigns these triggers.
    """
    memory = tx.memory
    if memory.is_drained:
        return
    roles = {
        role_of_shape(shape, memory)
        for shape in memory.packing.shapes()
        if _may_have_host(shape.class_path, shape.dag_version, memory)
    }
    roles |= {
        role_of_wait(wait, memory)
        for wait in memory.waits.objects.values()
        if _may_have_host(wait.row.class_path, wait.run.dag_version, memory)
    }
    for role in sorted(roles - memory.hosts_up):
        if may_host_all(memory) or any(may_host(n, memory) for n in _ordered(role, memory)):
            request_host(role, tx)


def _may_have_host(class_path: str, dag_version: DagVersion, memory: Memory) -> bool:
    if class_path in HOSTLESS:
        return False
    return not is_stopped(dag_version.graph.spec.dag_id, memory)


def is_stopped(dag_id: str, memory: Memory) -> bool:
    """Return whether a DAG is paused with ``if_paused="stop"``, so its triggers have no host."""
    row = memory.dags.get(dag_id)
    if row is None or not row.paused:
        return False
    dag_version = memory.dag_versions.get((row.version, dag_id))
    return dag_version is not None and dag_version.graph.spec.if_paused == "stop"


def host_all(role: str, tx: Transaction) -> None:
    """Assign waiting triggers to a host that came up, by priority, then oldest first.

    Many triggers are assigned over several turns. A trigger that another host still runs is
    assigned once that host has released it.
    """
    _return(role, tx)
    assign_next(AssignTriggers(role, tx.memory.last_assignment_id, _ordered(role, tx.memory)), tx)


def host_rest(tx: Transaction) -> None:
    """Assign triggers without a host to the hosts that are up, as far as a crash trial permits.

    On-demand hosts that are not up are started.
    """
    memory = tx.memory
    for role in sorted(role for role in memory.hosts_up if hosts_triggers(role)):
        numbers = array("q", (n for n in _ordered(role, memory) if may_host(n, memory)))
        assign_next(AssignTriggers(role, 0, numbers), tx)
    request_own_hosts(tx)


def hosted_before(memory: Memory) -> Iterator[TriggerNo]:
    """Yield the waiting triggers that may have been assigned to hosts of the previous daemon."""
    if memory.is_drained:
        return
    for wait in memory.waits.objects.values():
        is_hosted = wait.row.kwargs is not None and wait.row.class_path not in HOSTLESS
        is_waiting = wait.state is TriggerState.WAITING and wait.task is not None
        if is_hosted and is_waiting and not is_stopped(wait.run.row.dag_id, memory):
            yield wait.row.trigger_no
    yield from memory.packing.packed_triggers(
        lambda shape: (
            shape.class_path not in HOSTLESS
            and not is_stopped(shape.dag_version.graph.spec.dag_id, memory)
        )
    )


def _ordered(role: str, memory: Memory) -> array[int]:
    """Return the waiting triggers that belong to a host, in the order of assignment.

    Some of them may already be assigned to the host.
    """

    def priority_of(shape: TaskShape) -> int | None:
        is_its = role_of_shape(shape, memory) == role
        return _spec(shape).priority if is_its and shape.class_path not in HOSTLESS else None

    found = memory.packing.grouped_triggers(priority_of)
    for wait in memory.waits.objects.values():
        if wait.task is not None and _is_wanted(wait, role, memory):
            found.setdefault(wait.task.spec.priority, array("q")).append(wait.row.trigger_no)
    order = array("q")
    for priority in sorted(found, reverse=True):
        order.extend(sorted(found[priority]))
    return order


def _return(role: str, tx: Transaction) -> None:
    """Release triggers that were assigned to a host before it was up but now belong to another."""
    memory = tx.memory
    for number, assignment_id in _strays(role, memory):
        if assignment_id:
            tx.effects.append(ReleaseTrigger(StopTrigger(number, assignment_id, REASSIGNED), role))


def reassign(role: str, tx: Transaction) -> None:
    """Reassign the triggers of a lost host that now belong to another host.

    Either the lost host was asked to release them, or the isolation of their DAG has changed.
    """
    memory = tx.memory
    found: dict[str, array[int]] = {}
    for number, _ in _strays(role, memory):
        wait = memory.packing.peek(number)
        if wait is not None:
            now = role_of_wait(wait, memory)
            found.setdefault(now, array("q")).append(number)
    tx.effects.extend(
        AssignTriggers(now, memory.last_assignment_id, found[now]) for now in sorted(found)
    )


def _strays(role: str, memory: Memory) -> Iterator[tuple[TriggerNo, int]]:
    """Yield triggers last assigned to a host that belong to another now, with assignment number."""
    for wait in list(memory.waits.objects.values()):
        if wait.role != role or wait.task is None or wait.state is not TriggerState.WAITING:
            continue
        if role_of_wait(wait, memory) != role:
            yield wait.row.trigger_no, wait.assignment_id
    yield from memory.packing.assignments(
        lambda shape: shape.role == role and role_of_shape(shape, memory) != role
    )


def _accepts(role: str, memory: Memory) -> bool:
    """Return whether a host accepts triggers. The first trigger starts the quarantine host."""
    return role in memory.hosts_up or role == QUARANTINE


def assign_next(entry: AssignTriggers, tx: Transaction) -> None:
    """Assign the next triggers to a host that accepts them, or start the on-demand host."""
    memory = tx.memory
    takes = _accepts(entry.role, memory)
    if memory.is_drained or not (takes or is_on_demand(entry.role)):
        return  # all triggers follow when the host is up again
    upto = entry.at + ASSIGNED_AT_ONCE
    forms: dict[int, _Assignment] = {}
    for number in entry.numbers[entry.at : upto]:
        if not may_host(number, memory):
            continue
        one = memory.packing.find(number)
        if takes and one is not None and one.kwargs is not None:
            assignment = forms.get(one.form)
            if assignment is None:
                shape = memory.packing.shape(one)
                assignment = forms[one.form] = _assignment_of(shape, entry.role, memory)
            if isinstance(assignment, _Change):
                _assign_packed(one, entry, assignment, tx)
            if assignment != "needs task":
                continue
        wait = memory.waits.get(number)
        if wait is None or wait.assignment_id > entry.assignment_id:
            continue  # no task waits any more, or the trigger was assigned since
        if _is_wanted(wait, entry.role, memory):
            host(wait, tx)
    if upto < len(entry.numbers):
        tx.effects.append(msgspec.structs.replace(entry, at=upto))


class _Change(NamedTuple):
    """The change that assigns packed triggers of one shape to a host.

    Attributes:
        is_elsewhere: Whether triggers of this shape, if they have a host, are assigned to another
            live host.
    """

    was: TaskShape
    form: TaskShape
    newest: str
    priority: int
    is_elsewhere: bool


_Assignment: TypeAlias = _Change | Literal["needs task", "not wanted"]


def _assignment_of(was: TaskShape, role: str, memory: Memory) -> _Assignment:
    """Return how packed triggers of a shape are assigned to a host, or why they cannot stay packed.

    They must be unpacked if the command needs more data about the task, or if no host runs them.
    """
    spec, path = _spec(was), was.class_path
    feeds = was.ordinal == RESUMES and spec.feeds_limit is not None
    if feeds or path in HOSTLESS or was.ordinal == FROM_START:
        return "needs task"
    if role_of_shape(was, memory) != role or is_stopped(was.dag_version.graph.spec.dag_id, memory):
        return "not wanted"
    version = newest_version(was.dag_version, memory)
    form = was._replace(role=role, has_capacity=True, version=version)
    newest = "" if version == was.dag_version.version else version
    is_elsewhere = was.role != role and _accepts(was.role, memory)
    return _Change(was, form, newest, spec.priority, is_elsewhere)


def _assign_packed(
    one: PackedTask, entry: AssignTriggers, change: _Change, tx: Transaction
) -> None:
    """Assign a packed trigger as ``host`` does, without unpacking it.

    Unpacking a hundred thousand triggers would take seconds.
    """
    memory, packing = tx.memory, tx.memory.packing
    assignment_id = packing.assignment_id(one)
    if assignment_id > entry.assignment_id or (assignment_id and change.is_elsewhere):
        return
    assignment_id = memory.next_assignment_id()
    tx.record_packed_assignment(one, change.was)
    packing.change(one, assignment_id=assignment_id, form=change.form)
    tx.effects.append(
        AssignTrigger(
            StartTrigger(
                trigger_no=one.trigger_no,
                assignment_id=assignment_id,
                run_no=one.run_no,
                task_no=one.task_no,
                version=change.form.dag_version.version,
                class_path=change.form.class_path,
                kwargs=one.kwargs or b"",
                since=one.since + tx.at.shift,
                waits_since=tx.at.monotonic - (tx.steady - one.since),
                logical_date=memory.runs.logical_date(one.run_no),
                newest=change.newest,
                priority=change.priority,
                task_index=change.form.task_index,
                map_index=one.map_index,
                start_no=one.start_no,
                try_number=one.try_number,
                dag_id=change.form.dag_version.graph.spec.dag_id,
            ),
            None,
            entry.role,
            memory.host_processes.get(entry.role, 0),
        )
    )


def _spec(form: TaskShape) -> TaskSpec:
    return form.dag_version.graph.spec.tasks[form.task_index]


def _is_wanted(wait: TriggerInstance, role: str, memory: Memory) -> bool:
    """Return whether a trigger belongs to a host and is not assigned to another live host."""
    is_elsewhere = wait.assignment_id and wait.role != role and _accepts(wait.role, memory)
    if wait.state is not TriggerState.WAITING or wait.task is None or is_elsewhere:
        return False
    if _is_ending(wait) or is_stopped(wait.run.row.dag_id, memory):
        return False
    return role_of_wait(wait, memory) == role


def newest_version(dag_version: DagVersion, memory: Memory) -> str:
    """Return the newest version of the DAG, or ``dag_version``.

    ``dag_version`` is returned if the DAG was deleted, or has moved to another file or another
    interpreter.
    """
    spec = dag_version.graph.spec
    row = memory.dags.get(spec.dag_id)
    if row is None or row.gone or row.file != spec.file:
        return dag_version.version
    newest = memory.dag_versions.get((row.version, spec.dag_id))
    if newest is not None and newest.graph.spec.interpreter != spec.interpreter:
        return dag_version.version
    return row.version


def unhost(wait: TriggerInstance) -> None:
    """Record that a trigger has no host. The next assignment counts its events from 0."""
    wait.assignment_id = 0
    wait.has_capacity = True


def release_trigger(wait: TriggerInstance, reason: str, tx: Transaction) -> None:
    """Release a trigger that no task waits for any more. Its row stays until the host confirms.

    The release is sent to the host even if it is not known to be up. If the host does not have the
    trigger, it confirms at once.
    """
    wait.task = None
    if not wait.assignment_id or wait.state is not TriggerState.WAITING:
        tx.drop_wait(wait)
        return
    tx.move_wait(wait, TriggerState.ENDING)
    tx.effects.append(
        ReleaseTrigger(StopTrigger(wait.row.trigger_no, wait.assignment_id, reason), wait.role)
    )
