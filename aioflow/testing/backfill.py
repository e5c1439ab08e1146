"""A backfill as a test sees it: each attribute is looked up when it is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Protocol

from aioflow.api import Api
from aioflow.api.backfills import BackfillView
from aioflow.author.dag import DAG
from aioflow.testing.runs import LONGEST, RunStuck, SimRun, Stage

__all__ = ("SimBackfill",)

_RUNS = 10_000
_LIVE = ("queued", "running")


class _Stage(Stage, Protocol):
    """The part of the simulator that a backfill uses."""

    async def until_over(
        self, is_live: Callable[[Api], Awaitable[bool]], within: timedelta | float | str
    ) -> bool:
        """Let time pass until ``is_live`` returns false; return whether it did."""


class SimBackfill:
    """A backfill. Every attribute shows the present state."""

    def __init__(self, stage: _Stage, dag: DAG, backfill_id: int) -> None:
        self._stage = stage
        self._dag = dag
        self.backfill_id = backfill_id

    def __repr__(self) -> str:
        return f"<backfill {self.backfill_id} of {self._dag.dag_id} {self.state}>"

    @property
    def state(self) -> str:
        """``running``, ``done``, ``cancelled`` or ``failed``."""
        return self._view().state

    @property
    def skipped(self) -> int:
        """Number of slots whose existing run was left alone."""
        return self._view().skipped

    @property
    def runs(self) -> list[SimRun]:
        """The runs it has created, earliest logical date first."""
        found = self._stage.look(
            lambda api: api.store.list_runs(dag_id=self._dag.dag_id, limit=_RUNS)
        )
        own = sorted(
            (run for run in found if run.backfill == self.backfill_id),
            key=lambda run: run.logical_date or 0,
        )
        return [SimRun(self._stage, self._dag, run.run_id) for run in own]

    async def finished(self, within: timedelta | float | str = LONGEST) -> SimBackfill:
        """Let time pass until the backfill and all its runs have ended.

        Args:
            within: Maximum virtual time it may take.

        Raises:
            RunStuck: If it has not ended by then, or never will; says what a run waits for.
        """

        async def is_live(api: Api) -> bool:
            view = await api.backfills.show(self.backfill_id)
            return view.state == "running" or any(view.runs.get(state) for state in _LIVE)

        if not await self._stage.until_over(is_live, within):
            for run in self.runs:
                await run.finished(within=0)  # raises for a run that has not ended
            raise RunStuck(f"backfill {self.backfill_id} of {self._dag.dag_id} is {self.state}")
        return self

    def _view(self) -> BackfillView:
        return self._stage.look(lambda api: api.backfills.show(self.backfill_id))
