"""Release of tasks in the next run that wait for a task of the previous one."""

from __future__ import annotations

from aioflow.core.runs import create
from aioflow.core.runs.run import step
from aioflow.core.state.run_sequence import run_key
from aioflow.core.state.task_instance import Run
from aioflow.core.transaction import Transaction
from aioflow.model.states import RunState, TaskState
from aioflow.protocol.inputs import PreviousRunLoaded

__all__ = ("looked_back", "settle")


def settle(tx: Transaction) -> None:
    """Evaluate the tasks that waited for tasks ended in this turn, and start queued runs."""
    while tx.ended_tasks or tx.held_dags:
        while tx.ended_tasks:
            run, position = tx.ended_tasks.pop()
            _pass_on(run, position, tx)
        for dag_id in sorted(tx.held_dags):
            tx.held_dags.discard(dag_id)
            create.begin_queued(dag_id, tx)


def _pass_on(run: Run, position: int, tx: Transaction) -> None:
    """Evaluate the dependent tasks in the next run. This run may have ended meanwhile."""
    memory, order = tx.memory, run_key(run.row)
    line = memory.run_sequences.get(run.row.dag_id)
    number = None if line is None or order is None else line.behind(order)
    behind = None if number is None else memory.runs.get(number)
    if behind is None or not _goes_on(behind):
        return
    at = behind.graph.position_of.get(run.spec.tasks[position].task_id)
    if at is not None:
        _judge(behind, behind.graph.past_of[at], tx)


def looked_back(entry: PreviousRunLoaded, tx: Transaction) -> None:
    """Evaluate the waiting tasks of a run whose previous run is now known."""
    run = tx.memory.runs.get(entry.run_no)
    if run is not None and _goes_on(run):
        _judge(run, tuple(sorted(run.graph.past)), tx)


def _goes_on(run: Run) -> bool:
    return run.state is RunState.RUNNING and run.row.quarantine is None


def _judge(run: Run, positions: tuple[int, ...], tx: Transaction) -> None:
    pending = [at for at in positions if run.states[at] == TaskState.PENDING]
    if pending:
        tx.runs[run.run_no] = run  # so that the run is restored if the turn is rolled back
        step(run, pending, tx)
