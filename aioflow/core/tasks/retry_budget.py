"""Retry budgets: of each run, and of each pool per minute.

Retries help if only a few tasks fail. If all tasks fail, retries multiply the load on a system that
is already in trouble. An exhausted budget causes a single alert.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from aioflow.core.state.memory import RetryMinute
from aioflow.core.state.task_instance import Run, TaskInstance
from aioflow.core.transaction import Transaction
from aioflow.model.rows import TaskRow
from aioflow.model.states import Failure, TaskState

__all__ = (
    "BUDGET_EXHAUSTED",
    "correct_retries",
    "count_retries",
    "refund_retries",
    "spend_retry",
)


BUDGET_EXHAUSTED = "retry_budget"
"""Failure reason of a task that failed because a retry budget was exhausted."""


_MINUTE_US = 60_000_000


def spend_retry(task: TaskInstance, failure: Failure, tx: Transaction) -> Failure | None:
    """Take one retry from the budgets. If a budget is exhausted, return the final failure."""
    over = _exhausted_by_run(task.run, tx) or _exhausted_by_pool(task, tx)
    if not over:
        task.run.retried += 1
        return None
    task.run.beyond_budget += 1
    return replace(failure, message=f"{failure.message} ({over})"[:4_096], reason=BUDGET_EXHAUSTED)


def _exhausted_by_run(run: Run, tx: Transaction) -> str:
    own = run.spec.retry_budget
    most = tx.memory.retries_per_run if own is None else own
    if most is None or run.retried < most:
        return ""
    over = f"the run has used up its {most} retries"
    if not run.is_over_budget:
        run.is_over_budget = True
        tx.outbox.alert_of(run.row, BUDGET_EXHAUSTED, over)
    return over


def _exhausted_by_pool(task: TaskInstance, tx: Transaction) -> str:
    most, pool = tx.memory.retries_per_pool, task.spec.pool
    if most is None:
        return ""
    minutes, now = tx.memory.retries, tx.steady
    minute = minutes.get(pool, RetryMinute(now))
    if not 0 <= now - minute.began < _MINUTE_US:
        is_next = 0 <= now - minute.began < 2 * _MINUTE_US
        minute = RetryMinute(now, is_known=is_next and minute.is_over)
    if minute.count < most:
        minutes[pool] = replace(minute, count=minute.count + 1)
        return ""
    over = f"pool {pool} has used up its {most} retries a minute"
    if not (minute.is_over or minute.is_known):
        tx.outbox.alert_of(task.run.row, BUDGET_EXHAUSTED, over, task.spec.task_id)
    minutes[pool] = replace(minute, is_over=True)
    return over


def count_retries(run: Run, rows: Iterable[TaskRow]) -> None:
    """Add the retries of these task rows to the counts of a run."""
    for row in rows:
        if row.try_number <= 1 and row.failure is None and row.state is not TaskState.RETRYING:
            continue  # true of nearly all rows
        if row.state is TaskState.PENDING or row.state is TaskState.REMOVED:
            continue
        run.retried += _retries_of(row)
        run.beyond_budget += _is_beyond_budget(row)
    run.is_over_budget |= run.beyond_budget > 0


def refund_retries(run: Run, row: TaskRow | TaskInstance) -> None:
    """Give the retries of a task that is reset back to the budget of its run."""
    run.retried -= _retries_of(row)
    run.beyond_budget -= _is_beyond_budget(row)
    run.is_over_budget &= run.beyond_budget > 0


def correct_retries(run: Run, row: TaskRow | TaskInstance) -> None:
    """Correct the counts for a task that ends before its retry, or whose failure is replaced."""
    run.retried -= row.state is TaskState.RETRYING
    run.beyond_budget -= _is_beyond_budget(row)
    run.is_over_budget &= run.beyond_budget > 0


def _retries_of(row: TaskRow | TaskInstance) -> int:
    return max(0, row.try_number - 1) + (row.state is TaskState.RETRYING)


def _is_beyond_budget(row: TaskRow | TaskInstance) -> bool:
    return row.failure is not None and row.failure.reason == BUDGET_EXHAUSTED
