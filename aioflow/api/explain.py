"""Explains what tasks and runs wait for. Requests to the engine have a short timeout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import anyio
import msgspec

from aioflow.api.causes import Chain, Explained, ViewOfRun
from aioflow.api.damage import run_state
from aioflow.api.layout import TaskLocation
from aioflow.api.operate import Actions
from aioflow.api.page_queries import Reads
from aioflow.api.queries import Counted
from aioflow.api.wait_views import ChainView
from aioflow.core.repair.selection import left_failed
from aioflow.core.why_children import ChildrenCause
from aioflow.engine.loop import Engine
from aioflow.errors import DaemonAway, UnknownRun, UnknownTask
from aioflow.model.ids import RunNo
from aioflow.model.rows import RunRow
from aioflow.model.states import Wait, WaitKind
from aioflow.protocol.requests import CountTasks, Explain, ExplainChildren

__all__ = ("Explaining",)

_EXPLAIN_SECONDS = 0.5
"""Timeout after which a reader gets the state from rows instead of memory."""

_MAY_BE_A_CYCLE = frozenset({WaitKind.TRIGGER, WaitKind.INTERVAL})


class Explaining(Actions):
    """The methods of ``Api`` that explain waits."""

    reads: Reads
    _engine: Engine | None
    _home: Path | None
    _cycle: Callable[[RunNo, int, int], str] | None

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise DaemonAway(str(self._home or ""))
        return self._engine

    def _left_failed(self, run_id: str, tasks: Sequence[str]) -> list[str]:
        run = self._running.memory.find_run(run_id)
        return [] if run is None else left_failed(run, tasks)

    @property
    def _patience(self) -> float:
        """Seconds to wait for the engine: less the age of its current turn, 0 if the store is away.

        The turn in progress counts no matter which request began to wait first.
        """
        if self._running.store_away_since is not None:
            return 0.0
        return max(0.0, _EXPLAIN_SECONDS - self._running.turn_seconds)

    async def states(self, runs: Sequence[RunRow]) -> list[Counted]:
        """Return ``(position, state, count)`` of each run's tasks.

        Live runs, whose rows may number a million, are counted in memory with a single request. The
        rows are counted if the run has ended, or the engine does not answer in time.
        """
        task = tuple(run.run_id for run in runs if run.state.is_live)
        known: Mapping[str, Counted] = {}
        if task and self._engine is not None and self._patience:
            with anyio.move_on_after(self._patience):
                known = cast("dict[str, Counted]", await self._send(CountTasks(run_ids=task)))
        return [known.get(run.run_id) or await self._count(run) for run in runs]

    async def waits(self, run: RunRow, tasks: Sequence[tuple[int, int]]) -> Explained:
        if self._engine is None or not tasks or not run.state.is_live:
            return {}
        answer: object = None
        with anyio.move_on_after(self._patience):
            try:
                answer = await self._send(Explain(run_id=run.run_id, tasks=tuple(tasks)))
            except UnknownRun:
                return {}  # the run ended meanwhile
        if answer is None:
            return dict.fromkeys(tasks, self._no_answer)
        explained = cast("dict[tuple[int, int], Wait | None]", answer)
        found = await self.reads.trigger_reader.worded(run.run_no, explained)
        return {place: self._with_cycle(run, place, wait) for place, wait in found.items()}

    @property
    def _no_answer(self) -> Wait:
        """The wait that is reported for all tasks while the engine does not answer."""
        engine = self._running
        away = engine.store_away_since is not None
        said = f"nothing can be stored: {engine.store_error}"
        detail = said if away else "a commit takes long; ask again"
        return Wait(kind=WaitKind.DATABASE, detail=detail)

    def _with_cycle(self, run: RunRow, place: tuple[int, int], wait: Wait | None) -> Wait | None:
        """Add the cycle to a wait's detail if the awaited run in turn waits for this run."""
        if self._cycle is None or wait is None or wait.kind not in _MAY_BE_A_CYCLE:
            return wait
        cycle = self._cycle(run.run_no, *place)
        detail = f"{wait.detail}; a cycle: {cycle}" if cycle else wait.detail
        return msgspec.structs.replace(wait, detail=detail)

    async def why(
        self, run_id: str, task_id: str | None = None, *, map_index: int = -1
    ) -> ChainView:
        """Return the chain of causes of a wait.

        Without a task, return the root causes for the whole run.
        """
        run = await self.run(run_id)
        chain = Chain(await self._view_of(run), self._behind)
        if task_id is None:
            causes, more = await chain.of_run()
        else:
            causes, more = await chain.of_task(await self.place(run, task_id, map_index))
        state = run_state(run)
        return ChainView(run_id=run_id, dag_id=run.dag_id, state=state, causes=causes, more=more)

    async def _view_of(self, run: RunRow) -> ViewOfRun:
        async def explain(tasks: Sequence[tuple[int, int]]) -> Explained:
            return await self.waits(run, tasks)

        async def count() -> Counted:
            (counted,) = await self.states([run])
            return counted

        async def children(position: int) -> Sequence[ChildrenCause] | None:
            return await self._children_causes(run, position)

        return ViewOfRun(run, await self.layout(run), count, self.store, explain, children)

    async def _children_causes(self, run: RunRow, position: int) -> Sequence[ChildrenCause] | None:
        """Return the causes of a mapped task's children, as far as memory knows them."""
        if self._engine is None or not run.state.is_live:
            return None
        answer: object = None
        with anyio.move_on_after(self._patience):
            answer = await self._send(ExplainChildren(run_id=run.run_id, position=position))
        return cast("list[ChildrenCause] | None", answer)

    async def _behind(self, run_id: str, task_id: str) -> tuple[ViewOfRun, TaskLocation] | None:
        """Locate a task of another run; ``None`` if that run has ended or was deleted."""
        try:
            run = await self.run(run_id)
            place = await self.place(run, task_id, -1)
        except (UnknownRun, UnknownTask):
            return None
        return (await self._view_of(run), place) if run.state.is_live else None
