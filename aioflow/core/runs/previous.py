"""Dependencies on the previous run: ``depends_on_past`` and ``wait_for_downstream``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from aioflow.core.state.memory import Memory
from aioflow.core.state.run_sequence import GOOD, NEXT, EndedRun, NotLoaded, RunKey, run_key
from aioflow.core.state.task_instance import Run
from aioflow.core.tasks.trigger_rules import Verdict, verdict
from aioflow.core.transaction import Transaction
from aioflow.model.ids import RunNo
from aioflow.model.states import RunState, TaskState
from aioflow.protocol.inputs import Input, PreviousRunLoaded

__all__ = (
    "Holder",
    "admits",
    "asked",
    "came_before",
    "doubt",
    "forget",
    "holder",
    "needed_run",
    "wanted",
)


class Holder(msgspec.Struct, frozen=True):
    """A task of the previous run that another task waits for.

    Attributes:
        run_id: Previous run; empty while it is not known.
        live: Number of that run, if it has not ended.
    """

    run_id: str = ""
    task_id: str = ""
    state: TaskState = TaskState.PENDING
    live: RunNo | None = None

    @property
    def is_known(self) -> bool:
        """Whether the previous run is known."""
        return bool(self.run_id)


def holder(run: Run, task_index: int, memory: Memory) -> Holder | None:
    """Return the task of the previous run that blocks a task, or ``None``.

    The first run of a DAG has no previous run, and neither has a run without a logical date. A task
    that does not exist in the previous run blocks nothing.
    """
    order = run_key(run.row)
    if order is None or task_index not in run.graph.past:
        return None
    before = memory.run_sequences[run.row.dag_id].before(order)
    if before is None:
        return None
    if isinstance(before, NotLoaded):
        return Holder()
    tasks = run.spec.tasks
    for at in (task_index, *run.graph.awaited_in_past[task_index]):
        task_id = tasks[at].task_id
        found = _held(before, task_id) if isinstance(before, EndedRun) else None
        if not isinstance(before, EndedRun):
            found = _held_by_live(memory.runs.peek(before), task_id)
        if found is not None:
            return found
    return None


def _held(before: EndedRun, task_id: str) -> Holder | None:
    state = before.bad.get(task_id)
    return None if state is None else Holder(before.run_id, task_id, state)


def _held_by_live(before: Run, task_id: str) -> Holder | None:
    task_index = before.graph.index_of.get(task_id)
    if task_index is None:
        return None
    if before.clearing is not None and task_index in before.clearing.task_indexes:
        return Holder(before.row.run_id, task_id, TaskState.PENDING, before.run_no)
    if before.states[task_index] in GOOD:
        return None
    return Holder(before.row.run_id, task_id, TaskState(before.states[task_index]), before.run_no)


def admits(run: Run, task_index: int, tx: Transaction) -> bool:
    """Return whether the previous run allows a task to run.

    If not, the task is evaluated again when the task that blocks it has ended.
    """
    found = holder(run, task_index, tx.memory)
    if found is None:
        return True
    if not found.is_known:
        tx.effects.append(PreviousRunLoaded(run.run_no))
    elif found.live is not None:
        tx.held_dags.add(run.row.dag_id)
    return False


def _waits_for_live(run: Run, memory: Memory) -> bool:
    """Return whether a task of a run waits only for an earlier live run."""
    if run.clearing is not None:
        return False  # its tasks are evaluated when the clear is complete
    for task_index in run.graph.past:
        if run.states[task_index] == TaskState.PENDING and verdict(run, task_index) is Verdict.RUN:
            found = holder(run, task_index, memory)
            if found is not None and found.live is not None:
                return True
    return False


def needed_run(dag_id: str, memory: Memory) -> Run | None:
    """Return the queued run that must start regardless of the limit of active runs, or ``None``.

    It is the first run in order, and an active run waits for it, so otherwise neither would ever
    end.
    """
    line = memory.run_sequences.get(dag_id)
    first = None if line is None else line.first
    if line is None or first is None or memory.runs.peek(first).state is not RunState.QUEUED:
        return None
    if memory.runs.peek(first).clearing is not None:
        return None
    number: RunNo | None = first
    while number is not None:
        run = memory.runs.peek(number)
        if run.state is not RunState.QUEUED:
            needs = run.state is RunState.RUNNING and _waits_for_live(run, memory)
            return memory.runs.get(first) if needs else None
        order = run_key(run.row)
        assert order is not None  # noqa: S101 - it is in the sequence
        number = line.behind(order)
    return None


def forget(dag_id: str, order: RunKey, tx: Transaction) -> None:
    """Record that an ended run was deleted, and query the new previous run of the run after it."""
    line = tx.memory.run_sequences.get(dag_id)
    behind = None if line is None else line.forget(order)
    if behind is not None:
        tx.effects.append(PreviousRunLoaded(behind))


def came_before(run: Run, tx: Transaction) -> None:
    """Re-evaluate the run that now has a new run as its previous run.

    Only needed if the versions of the two runs differ: then there may be nothing to wait for.
    """
    line, order = tx.memory.run_sequences.get(run.row.dag_id), run_key(run.row)
    behind = None if line is None or order is None else line.behind(order)
    if behind is not None and tx.memory.runs.peek(behind).dag_version is not run.dag_version:
        tx.effects.append(PreviousRunLoaded(behind))


def doubt(dag_ids: Iterable[str], memory: Memory) -> list[PreviousRunLoaded]:
    """Drop what is known about ended runs, after a rollback. Return the queries to repeat.

    This takes one pass over the live runs of each DAG.
    """
    asking = []
    for dag_id in sorted(memory.run_sequences.keys() & set(dag_ids)):
        line = memory.run_sequences[dag_id]
        line.doubt()
        asking += [PreviousRunLoaded(number) for number in line.live() if _may_wait(number, memory)]
    return asking


def _may_wait(run_no: RunNo, memory: Memory) -> bool:
    run = memory.runs.peek(run_no)
    return run.state is RunState.RUNNING and any(
        run.states[task_index] == TaskState.PENDING for task_index in run.graph.past
    )


# ── database queries ────────────────────────────────────────────────────────────────────


def asked(inputs: Iterable[Input]) -> list[RunNo]:
    """Return the runs whose previous run these inputs need."""
    return [entry.run_no for entry in inputs if isinstance(entry, PreviousRunLoaded)]


def wanted(inputs: Sequence[Input], memory: Memory) -> Iterator[tuple[str, list[RunKey]]]:
    """Yield for each DAG the run keys whose previous run must be queried.

    The results must be passed to ``RunSequence.learn`` before the inputs are handled.
    """
    found: dict[str, set[RunKey]] = {}
    for run_no in asked(inputs):
        run = memory.runs.get(run_no)
        order = None if run is None else run_key(run.row)
        if run is not None and order is not None and run.row.dag_id in memory.run_sequences:
            found.setdefault(run.row.dag_id, {NEXT}).add(order)
    for dag_id, orders in found.items():
        line = memory.run_sequences[dag_id]
        if unknown := sorted(order for order in orders if not line.knows(order)):
            yield dag_id, unknown
