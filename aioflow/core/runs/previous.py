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
    "Blocker",
    "admits",
    "asked",
    "blocker",
    "came_before",
    "forget",
    "invalidate",
    "needed_run",
    "wanted",
)


class Blocker(msgspec.Struct, frozen=True):
    """A task of the previous run that another task waits for.

    Attributes:
        run_id: Id of the previous run; empty while the previous run is not known.
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


def blocker(run: Run, task_index: int, memory: Memory) -> Blocker | None:
    """Return the task of the previous run that blocks a task; ``None`` if there is none.

    The first run of a DAG and a run without a logical date have no previous run. A task that does
    not exist in the previous run does not block.
    """
    key = run_key(run.row)
    if key is None or task_index not in run.graph.past:
        return None
    before = memory.run_sequences[run.row.dag_id].before(key)
    if before is None:
        return None
    if isinstance(before, NotLoaded):
        return Blocker()
    tasks = run.spec.tasks
    for at in (task_index, *run.graph.awaited_in_past[task_index]):
        task_id = tasks[at].task_id
        found = _blocked_by_ended(before, task_id) if isinstance(before, EndedRun) else None
        if not isinstance(before, EndedRun):
            found = _blocked_by_active(memory.runs.peek(before), task_id)
        if found is not None:
            return found
    return None


def _blocked_by_ended(before: EndedRun, task_id: str) -> Blocker | None:
    state = before.bad.get(task_id)
    return None if state is None else Blocker(before.run_id, task_id, state)


def _blocked_by_active(before: Run, task_id: str) -> Blocker | None:
    task_index = before.graph.index_of.get(task_id)
    if task_index is None:
        return None
    if before.clearing is not None and task_index in before.clearing.task_indexes:
        return Blocker(before.row.run_id, task_id, TaskState.PENDING, before.run_no)
    if before.states[task_index] in GOOD:
        return None
    return Blocker(before.row.run_id, task_id, TaskState(before.states[task_index]), before.run_no)


def admits(run: Run, task_index: int, tx: Transaction) -> bool:
    """Return whether the previous run allows a task to run.

    If not, the task is evaluated again when the blocking task has ended.
    """
    found = blocker(run, task_index, tx.memory)
    if found is None:
        return True
    if not found.is_known:
        tx.effects.append(PreviousRunLoaded(run.run_no))
    elif found.live is not None:
        tx.recheck_dags.add(run.row.dag_id)
    return False


def _waits_for_live(run: Run, memory: Memory) -> bool:
    """Return whether any task of a run waits for nothing but an earlier live run."""
    if run.clearing is not None:
        return False  # its tasks are evaluated when the clear is complete
    if run.row.quarantine is not None:
        return False
    for task_index in run.graph.past:
        if run.states[task_index] == TaskState.PENDING and verdict(run, task_index) is Verdict.RUN:
            found = blocker(run, task_index, memory)
            if found is not None and found.live is not None:
                return True
    return False


def needed_run(dag_id: str, memory: Memory) -> Run | None:
    """Return the queued run that must start regardless of the limit of active runs, if any.

    It is the first queued run in order, and an active run waits for it. Without an exception from
    the limit, neither run would ever end.
    """
    sequence = memory.run_sequences.get(dag_id)
    first = None if sequence is None else sequence.first
    if sequence is None or first is None or memory.runs.peek(first).state is not RunState.QUEUED:
        return None
    if memory.runs.peek(first).clearing is not None:
        return None
    if memory.runs.peek(first).row.quarantine is not None:
        return None
    number: RunNo | None = first
    while number is not None:
        run = memory.runs.peek(number)
        if run.state is not RunState.QUEUED:
            needs = run.state is RunState.RUNNING and _waits_for_live(run, memory)
            return memory.runs.get(first) if needs else None
        key = run_key(run.row)
        assert key is not None  # noqa: S101 - it is in the sequence
        number = sequence.next_run(key)
    return None


def forget(dag_id: str, key: RunKey, tx: Transaction) -> None:
    """Record that an ended run was deleted, and query the new previous run of the run after it."""
    sequence = tx.memory.run_sequences.get(dag_id)
    next_run = None if sequence is None else sequence.forget(key)
    if next_run is not None:
        tx.effects.append(PreviousRunLoaded(next_run))


def came_before(run: Run, tx: Transaction) -> None:
    """Re-evaluate the run that now has a new run as its previous run.

    This is needed only if the versions of the two runs differ, because then the new previous run
    may lack the task that is waited for.
    """
    sequence, key = tx.memory.run_sequences.get(run.row.dag_id), run_key(run.row)
    next_run = None if sequence is None or key is None else sequence.next_run(key)
    if next_run is not None and tx.memory.runs.peek(next_run).dag_version is not run.dag_version:
        tx.effects.append(PreviousRunLoaded(next_run))


def invalidate(dag_ids: Iterable[str], memory: Memory) -> list[PreviousRunLoaded]:
    """Drop the cached data about ended runs, after a rollback. Return the queries to repeat.

    This takes one pass over the live runs of each DAG.
    """
    asking = []
    for dag_id in sorted(memory.run_sequences.keys() & set(dag_ids)):
        sequence = memory.run_sequences[dag_id]
        sequence.invalidate()
        asking += [
            PreviousRunLoaded(number) for number in sequence.live() if _may_wait(number, memory)
        ]
    return asking


def _may_wait(run_no: RunNo, memory: Memory) -> bool:
    run = memory.runs.peek(run_no)
    return run.state is RunState.RUNNING and any(
        run.states[task_index] == TaskState.PENDING for task_index in run.graph.past
    )


# ── database queries ────────────────────────────────────────────────────────────────────


def asked(inputs: Iterable[Input]) -> list[RunNo]:
    """Return the numbers of the runs whose previous run must be known for these inputs."""
    return [entry.run_no for entry in inputs if isinstance(entry, PreviousRunLoaded)]


def wanted(inputs: Sequence[Input], memory: Memory) -> Iterator[tuple[str, list[RunKey]]]:
    """Yield, for each DAG, the run keys whose previous run must be queried.

    The results must be passed to ``RunSequence.learn`` before the inputs are handled.
    """
    found: dict[str, set[RunKey]] = {}
    for run_no in asked(inputs):
        run = memory.runs.get(run_no)
        key = None if run is None else run_key(run.row)
        if run is not None and key is not None and run.row.dag_id in memory.run_sequences:
            found.setdefault(run.row.dag_id, {NEXT}).add(key)
    for dag_id, keys in found.items():
        sequence = memory.run_sequences[dag_id]
        if unknown := sorted(key for key in keys if not sequence.knows(key)):
            yield dag_id, unknown
