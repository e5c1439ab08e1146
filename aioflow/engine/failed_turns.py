"""Isolation of inputs and runs that make a turn fail.

A turn fails if deciding it raises an error, or if the store refuses its batch. It is then rolled
back, and its inputs are processed again one by one. If an input still fails, because of a run that
it is not about, it is processed again without that run. If an input that is about a single run
fails again, that run is quarantined.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from aioflow.clock import SteadyClock
from aioflow.core import rollback
from aioflow.core.quarantine import (
    DecideWithout,
    FailBackfill,
    QuarantineRuns,
    RefuseRequest,
    RepeatInput,
    RetryTimer,
    blamed,
    consequence,
    excluded,
    quarantine_run,
)
from aioflow.core.runs import backfills, deadlines, restore
from aioflow.core.runs.restore import restore_run
from aioflow.core.runs.run_queue import count_runs
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import Run
from aioflow.core.step import TurnFailed
from aioflow.core.transaction import Transaction
from aioflow.engine.pending_requests import PendingRequests
from aioflow.engine.timers import Timers
from aioflow.model.rows import RunRow
from aioflow.protocol.inputs import (
    ContinueRun,
    Input,
    LiveRun,
)
from aioflow.store import Store
from aioflow.telemetry.log import Logger

__all__ = ("FailedTurns",)

_log = Logger(__name__)

Answer = TypeVar("Answer")


class FailedTurns:
    """The part of the engine that prevents one run from blocking the others."""

    memory: Memory
    slots: Slots
    timers: Timers
    _store: Store
    _steady: SteadyClock
    _pending_requests: PendingRequests

    @abstractmethod
    def report(self, inputs: Sequence[Input]) -> None:
        """Put inputs into the inbox."""

    @abstractmethod
    async def _decide_and_commit(self, inputs: Sequence[Input], *, granting: bool = True) -> None:
        """Decide the inputs, commit the batch and dispatch its effects."""

    @abstractmethod
    async def _lease_numbers(self, inputs: Sequence[Input] = ()) -> None:
        """Lease enough row numbers for the inputs."""

    @abstractmethod
    async def _patiently(
        self, call: Callable[[], Awaitable[Answer]], *, is_whole: bool = True
    ) -> Answer:
        """Return the result of a store call, retrying while the database is unavailable."""

    @abstractmethod
    def _draft(self) -> Transaction:
        """Return a new, empty transaction."""

    @abstractmethod
    async def _commit_if_any(self, tx: Transaction) -> None:
        """Commit a transaction, if it has changes, and dispatch its effects."""

    # ── runs that cannot be restored ────────────────────────────────────────────────────

    async def _restore(self, found: Iterable[LiveRun]) -> list[Run]:
        """Restore runs from their rows. A run with inconsistent rows is quarantined."""
        runs = []
        for rows in found:
            try:
                runs.append(restore_run(undamaged(rows), self.memory))
            except Exception as exc:  # noqa: BLE001 - whatever its rows are, other runs continue
                self._quarantine_unrestored(rows, exc)
                self.report([ContinueRun(rows.run.run_no)])
        await self._report_quarantined()
        return runs

    def _quarantine_unrestored(self, rows: LiveRun, exc: Exception) -> None:
        """Quarantine a run that cannot be restored. ``_report_quarantined`` reports it later."""
        row, reason = rows.run, f"cannot be restored: {exc!r}"
        if rows.damage is not None:
            reason = str(rows.damage)
        _log.error("a run cannot be restored", run_id=row.run_id, reason=reason, exc_info=exc)
        restore.quarantine_unrestored(
            row, reason[:1000], self.memory, is_damaged=rows.damage is not None
        )

    async def _report_quarantined(self) -> None:
        """Store the reasons for quarantines, and send alerts. Damaged rows are not changed."""
        memory = self.memory
        untold, memory.untold = memory.untold, []
        for row in untold:
            await self._commit_alone(partial(restore.report_quarantine, row))

    async def _commit_alone(self, change: Callable[[Transaction], None]) -> bool:
        """Commit an alert or quarantine separately. Return whether the database accepted it.

        The engine continues even if the database refuses this transaction as well.

        Args:
            change: Makes the changes in the transaction.
        """
        await self._lease_numbers()
        tx = self._draft()
        change(tx)
        try:
            await self._commit_if_any(tx)
        except rollback.Refused as exc:
            _log.error("an alert is not stored", error=str(exc), runs=sorted(tx.runs))
            tx.roll_back()
            return False
        return True

    # ── refused batches ─────────────────────────────────────────────────────────────────

    async def _isolate(self, inputs: list[Input], tx: Transaction, exc: Exception) -> None:
        """Roll back a turn and process its inputs one by one, so that only the culprit fails."""
        _log.error("turn rolled back", error=str(exc), inputs=len(inputs), runs=sorted(tx.runs))
        await self._roll_back(tx)
        for entry in [
            part for whole in inputs for part in restore.split_restart(whole, self.memory)
        ]:
            try:
                await self._decide_and_commit([entry], granting=False)
            except (TurnFailed, rollback.Refused) as alone:
                await self._roll_back(alone.tx)
                await self._blame(entry, alone)
        try:
            await self._decide_and_commit([])
        except (TurnFailed, rollback.Refused) as grants:
            await self._roll_back(grants.tx)
            await self._decide_without([], grants)

    async def _roll_back(self, tx: Transaction) -> None:
        memory = self.memory
        slots_before = rollback.forget(memory, tx)
        rollback.restore_pools(tx)
        dags = await self._patiently(self._store.list_dags)
        files = await self._patiently(self._store.list_dag_files)
        rollback.recall_catalog(memory, dags, files)
        found = []
        for run_no in tx.runs:
            if run_no in memory.isolated:
                continue
            rows = await self._patiently(partial(self._store.load_run, run_no))
            if rows is not None and rows.run.ended_at is None:
                found.append(rows)
        runs = await self._restore(found)
        self.report(rollback.restore_slots(runs, slots_before, memory, tx))

    async def _blame(self, entry: Input, exc: TurnFailed | rollback.Refused) -> None:
        """Handle an input that cannot be processed; see ``core.quarantine``."""
        _log.error("input refused", input=type(entry).__name__, error=str(exc))
        left = await self._decide_without_others(entry, exc)
        if left is None:
            return
        rollback.free_slot(entry, self.memory, self.slots)
        match consequence(entry, left, self._steady.read(), self.memory):
            case RefuseRequest(answer=answer):
                self._pending_requests.answer(answer)
            case RetryTimer() as retry:
                await self._postpone(retry, left)
            case FailBackfill(backfill_no=backfill_no):
                await self._fail_backfill(backfill_no, str(left))
            case RepeatInput(input=instead):
                self.report([instead])
            case QuarantineRuns(runs=runs):
                await self._quarantine(runs, f"{type(entry).__name__}: {left}")
            case DecideWithout():
                await self._decide_without([entry], left)

    async def _fail_backfill(self, number: int, reason: str) -> None:
        """Fail a backfill that cannot continue. If that is refused, stop it until a restart."""
        if await self._commit_alone(partial(backfills.fail, number, reason)):
            return
        row = self.memory.backfills.pop(number)
        message = f"backfill {number} cannot continue: {reason}"
        await self._alert("quarantined", message, dag_id=row.dag_id)

    async def _alert(self, reason: str, message: str, *, dag_id: str = "") -> None:
        """Commit an alert that belongs to no run."""
        await self._commit_alone(
            lambda tx: tx.outbox.alert(reason, message[:1000], run_id="", dag_id=dag_id)
        )

    async def _postpone(self, retry: RetryTimer, exc: Exception) -> None:
        """Set a timer of a DAG again for a later time, because it could not be processed."""
        _log.error("a scheduled start of a DAG was rolled back, retrying", dag_id=retry.dag_id)
        self.timers.arm(retry.timer.due, at=retry.timer.at)
        if retry.is_scheduled:
            await self._commit_alone(partial(deadlines.alert_if_refused, retry.dag_id, str(exc)))

    async def _decide_without_others(
        self, entry: Input, exc: TurnFailed | rollback.Refused
    ) -> TurnFailed | rollback.Refused | None:
        """Process an input again after quarantining unrelated runs that make it fail.

        Returns:
            The error that remains; ``None`` if the input was processed.
        """
        own = {run.run_no for run in blamed(entry, self.memory)}
        what = type(entry).__name__
        while True:
            runs = excluded(exc, await self._refused_row(exc), self.memory, else_touched={}).runs
            if not runs or own & {run.run_no for run in runs}:
                return exc
            await self._quarantine_runs(runs, f"{what}: {exc}")
            try:
                await self._decide_and_commit([entry], granting=False)
            except (TurnFailed, rollback.Refused) as again:
                await self._roll_back(again.tx)
                exc = again
            else:
                return None

    async def _decide_without(
        self, inputs: Sequence[Input], exc: TurnFailed | rollback.Refused
    ) -> None:
        """Process inputs that concern all runs again, without the runs that make them fail.

        If such a run cannot be identified, all runs that the turn touched are excluded. An input
        that fails without touching a run is dropped with an alert.
        """
        granting = not inputs
        what = type(inputs[0]).__name__ if inputs else "start"
        while await self._set_aside(exc, f"{what}: {exc}"):
            try:
                await self._decide_and_commit(inputs, granting=granting)
            except (TurnFailed, rollback.Refused) as again:
                await self._roll_back(again.tx)
                exc = again
            else:
                return
        _log.error("input dropped: it fails and belongs to no run", input=what, error=str(exc))
        await self._alert("defect", f"{what} was dropped: {exc}")

    async def _set_aside(self, exc: TurnFailed | rollback.Refused, reason: str) -> bool:
        """Exclude the runs and triggers that caused a failure. Return whether there are any."""
        touched, row = exc.tx.runs, await self._refused_row(exc)
        without = excluded(exc, row, self.memory, else_touched=touched)
        for number in without.triggers:
            await self._stop_trigger(number, reason)
        await self._quarantine_runs(without.runs, reason)
        return bool(without.runs or without.triggers)

    async def _refused_row(self, exc: TurnFailed | rollback.Refused) -> Mapping[str, int]:
        """Return the numbers in the row that the store refused; empty if the decision failed."""
        if isinstance(exc, TurnFailed):
            return {}
        return await self._patiently(partial(self._store.find_refused, exc.tx.batch))

    async def _quarantine_runs(self, runs: Sequence[Run], reason: str) -> None:
        """Quarantine runs, and exclude them from memory until the daemon restarts."""
        await self._quarantine(runs, reason)
        if runs:
            self._isolate_runs(runs, reason)

    async def _stop_trigger(self, number: int, reason: str) -> None:
        """Stop the trigger of a DAG until the daemon restarts."""
        one = self.memory.dag_triggers.get(number)
        if one is None:
            return
        restore.stop_dag_trigger(one)
        await self._alert("quarantined", reason, dag_id=one.row.dag_id)

    async def _quarantine(self, runs: Iterable[Run], reason: str) -> None:
        """Quarantine runs. If the database refuses that, isolate them until the next restart."""
        for run in runs:
            before: RunRow = run.row
            if not await self._commit_alone(partial(quarantine_run, run, reason)):
                run.row = before
                self._isolate_runs([run], reason)
            if before.quarantine is None:
                self.report([ContinueRun(run.run_no)])

    def _isolate_runs(self, runs: Iterable[Run], reason: str) -> None:
        """Exclude runs from memory until the next restart, and free everything that they hold."""
        for run in runs:
            restore.quarantine_until_restart(run, reason[:1000], self.memory)
        self.slots.recount(self.memory)
        count_runs(self.memory)


def undamaged(rows: LiveRun) -> LiveRun:
    """Return the rows of a run unchanged, after checking that all of them can be read.

    Raises:
        ValueError: If a row cannot be read.
    """
    if rows.damage is not None:
        raise ValueError(str(rows.damage))
    return rows
