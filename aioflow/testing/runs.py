"""Runs, tasks and backfills, as a test sees them.

Each attribute is looked up when it is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

from aioflow.api import Api
from aioflow.api.backfills import BackfillView
from aioflow.api.schemas import ErrorView, RunView, TaskView, WaitView
from aioflow.author.codec import decode
from aioflow.author.dag import DAG
from aioflow.author.node import Node
from aioflow.model.rows import ResultRow
from aioflow.results import ResultFiles
from aioflow.worker.task.items import decode_item

__all__ = (
    "LONGEST",
    "RunStuck",
    "SimBackfill",
    "SimRun",
    "SimTask",
    "Stage",
)

LONGEST = "31d"
"""Default limit of virtual time for ``finished``."""

_PAGE = 1_000
_ITEMS = 1_000_000
_ENDINGS = ("failed", "upstream_failed", "cancelled", "success", "skipped")
_ENDED = frozenset(_ENDINGS)

T = TypeVar("T")


class RunStuck(AssertionError):
    """A run will never end, or has not ended within the given time."""


class Stage(Protocol):
    """The part of the simulator that a run uses."""

    @property
    def results(self) -> Path:
        """The folder of results that are stored as files."""

    def look(self, question: Callable[[Api], Awaitable[T]]) -> T:
        """Return the answer of the API to a question. No virtual time passes."""

    async def until_ended(self, run_id: str, within: timedelta | float | str) -> None:
        """Let virtual time pass until a run has ended."""


class SimTask:
    """A task of a run, or one child of a mapped task."""

    def __init__(self, run: SimRun, node: Node, map_index: int | None = None) -> None:
        self._run = run
        self._node = node
        self._map_index = map_index

    def __repr__(self) -> str:
        return f"<task {self.task_id} {self.state}>"

    @property
    def task_id(self) -> str:
        """The id of the task; the id of a child ends in ``[index]``."""
        ending = "" if self._map_index is None else f"[{self._map_index}]"
        return f"{self._node.task_id}{ending}"

    @property
    def children(self) -> Sequence[SimTask]:
        """The existing children of a mapped task, in map order."""
        if self._map_index is not None:
            return ()
        return [
            SimTask(self._run, self._node, index_of(view, self._node))
            for view in self._views()
            if index_of(view, self._node) >= 0
        ]

    def __getitem__(self, map_index: int) -> SimTask:
        """Return the child with this index; for a task in a loop, the iteration with this number.

        Raises:
            IndexError: If that child or iteration does not exist, or does not exist yet.
        """
        if any(index_of(view, self._node) == map_index >= 0 for view in self._views()):
            return SimTask(self._run, self._node, map_index)
        raise IndexError(f"{self.task_id!r} has no child {map_index}")

    def __len__(self) -> int:
        return len(self.children)

    @property
    def state(self) -> str:
        """The state of the task, as the command line shows it.

        The state of a mapped task is that of its children if all have the same, else ``running``
        while a child has not ended, else the worst state of a child. The state of a task in a loop
        is that of its last iteration.
        """
        states = {view.state for view in self._views()}
        if self._may_grow:
            return "running" if states & _ENDED else states.pop()
        if len(states) == 1:
            return states.pop()
        if states - _ENDED:
            return "running"
        if self._node.loop is not None:
            return self._views()[-1].state
        return next(state for state in _ENDINGS if state in states)

    @property
    def label(self) -> str | None:
        """The label of a child, by the task's ``map_label``; ``None`` before its body begins."""
        return next((view.map_label for view in self._views()), None)

    @property
    def tries(self) -> int:
        """Number of the last try; 0 before the first. For a mapped task, the highest number."""
        return max(view.try_number for view in self._views())

    @property
    def error(self) -> ErrorView | None:
        """Why it failed: ``type``, ``message``, ``reason``. For a mapped task, the first error."""
        return next((view.error for view in self._views() if view.error is not None), None)

    @property
    def waiting_on(self) -> WaitView | None:
        """What the task waits for, or ``None``; see ``aioflow runs why``."""
        found = (view.waiting_on for view in self._views())
        return next((wait for wait in found if wait is not None), None)

    @property
    def result(self) -> Any:
        """The result, typed by the return annotation; ``None`` unless the task has succeeded.

        The result of a mapped task is a list of the results of its successful children, in map
        order.
        """
        rows = self._run.results_of(self._views())
        values = [self._run.value_of(row, self._node) for row in rows]
        if self._node.is_mapped and self._map_index is None:
            return values
        return values[0] if values else None

    @property
    def log(self) -> str:
        """The output of all tries of the task."""
        return self._run.log_of(self._node.task_id, self._index).decode(errors="replace")

    @property
    def _index(self) -> int:
        return -1 if self._map_index is None else self._map_index

    @property
    def _may_grow(self) -> bool:
        """Whether more children may be created, because a parent is still running."""
        if self._map_index is not None:
            return False
        loop = self._node.loop
        if loop is not None and loop.until != self._node.task_index:
            return self._run.at(loop.until).state not in _ENDED
        if not any(view.map_index >= 0 for view in self._views()):
            return False
        parents = [source.parent for source in self._node.sources if source.parent is not None]
        return any(self._run[parent.task_id].state not in _ENDED for parent in parents)

    def _views(self) -> list[TaskView]:
        views = [view for view in self._run.tasks() if view.task_id == self._node.task_id]
        if self._map_index is None:
            return views
        return [view for view in views if index_of(view, self._node) == self._map_index]


def index_of(view: TaskView, node: Node) -> int:
    """Return the map index of a child; for a task in a loop, the iteration."""
    return view.map_index if node.loop is None else view.round


class SimRun:
    """A run. Every attribute shows the current state, and may be read between any two awaits."""

    def __init__(self, stage: Stage, dag: DAG, run_id: str) -> None:
        self._stage = stage
        self._nodes = {node.task_id: node for node in dag.nodes}
        self.dag_id = dag.dag_id
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"<run {self.run_id} {self.state}>"

    @property
    def state(self) -> str:
        """``running``, ``success``, ``failed``, ``partial``, ``cancelled`` ..."""
        return self._page(0, 1).state

    @property
    def states(self) -> dict[str, str]:
        """The state of every task, by its id."""
        return {name: self[name].state for name in self._nodes}

    def __getitem__(self, task_id: str) -> SimTask:
        """Return a task by its id.

        Raises:
            KeyError: If the DAG has no such task.
        """
        node = self._nodes.get(task_id)
        if node is None:
            raise KeyError(f"{self.dag_id!r} has no task {task_id!r}; it has {list(self._nodes)}")
        return SimTask(self, node)

    def at(self, task_index: int) -> SimTask:
        """Return a task by its index."""
        return SimTask(self, list(self._nodes.values())[task_index])

    async def finished(self, within: timedelta | float | str = LONGEST) -> SimRun:
        """Let time pass until the run has ended, whatever its state.

        Args:
            within: Maximum virtual time it may take.

        Raises:
            RunStuck: If the run has not ended by then, or never will. The message says what it
                waits for.
        """
        await self._stage.until_ended(self.run_id, within)
        return self

    # ── for its tasks ───────────────────────────────────────────────────────────────────

    def tasks(self) -> list[TaskView]:
        """Return all existing tasks and children."""
        found: list[TaskView] = []
        while True:
            page = self._page(len(found), _PAGE).tasks
            found += page
            if len(page) < _PAGE:
                return found

    def results_of(self, views: Sequence[TaskView]) -> list[ResultRow | None]:
        """Return the result rows of the tasks that succeeded; ``None`` for a result of ``None``."""
        return self._stage.look(lambda api: self._results_of(views, api))

    async def _results_of(self, views: Sequence[TaskView], api: Api) -> list[ResultRow | None]:
        run = await api.run(self.run_id)
        found: list[ResultRow | None] = []
        for view in views:
            if view.state == "success":
                index = index_of(view, self._nodes[view.task_id])
                number = (await api.locate(run, view.task_id, index)).task_no
                rows = await api.store.list_results(number, number + 1, limit=1)
                found.append(rows[0] if rows else None)
        return found

    def value_of(self, row: ResultRow | None, node: Node) -> Any:
        """Return the value in a result row of a node's task."""
        if row is None:
            return None
        if row.body is not None or row.size or row.width is None:
            is_list = row.width is not None
            annotation = Any if is_list else node.annotations.get("return", Any)
            files = ResultFiles(self._stage.results)
            location = (files, row.run_no, row.task_no, row.start_no, row.body)
            return decode_item(*location, annotation, is_list=is_list)
        return self._items_of(row.task_no) if row.width else []

    def outcomes(self) -> Iterator[tuple[TaskView, Any]]:
        """Yield all existing tasks and children with their results, which are read together."""
        views = self.tasks()
        rows = iter(self.results_of(views))
        for view in views:
            row = next(rows) if view.state == "success" else None
            yield view, self.value_of(row, self._nodes[view.task_id])

    def _items_of(self, task_no: int) -> list[Any]:
        items = self._stage.look(lambda api: api.store.list_items(task_no, limit=_ITEMS))
        return [decode(item.payload) for item in items]

    def log_of(self, task_id: str, map_index: int) -> bytes:
        """Return the output of a task."""
        return self._stage.look(lambda api: api.logs(self.run_id, task_id, map_index=map_index))

    def _page(self, offset: int, limit: int) -> RunView:
        return self._stage.look(lambda api: api.show_run(self.run_id, offset=offset, limit=limit))


_MAX_RUNS = 10_000
_LIVE_STATES = ("queued", "running")


class BackfillStage(Stage, Protocol):
    """The part of the simulator that a backfill uses."""

    async def until_over(
        self, is_live: Callable[[Api], Awaitable[bool]], within: timedelta | float | str
    ) -> bool:
        """Let time pass until ``is_live`` returns false; return whether that was in time."""


class SimBackfill:
    """A backfill. Every attribute shows the current state."""

    def __init__(self, stage: BackfillStage, dag: DAG, backfill_id: int) -> None:
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
        """Number of fire times that were skipped because they already had a run."""
        return self._view().skipped

    @property
    def runs(self) -> list[SimRun]:
        """The runs that the backfill has created, earliest logical date first."""
        found = self._stage.look(
            lambda api: api.store.list_runs(dag_id=self._dag.dag_id, limit=_MAX_RUNS)
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
            RunStuck: If a run has not ended by then, or never will. The message says what it waits
                for.
        """

        async def is_live(api: Api) -> bool:
            view = await api.backfills.show(self.backfill_id)
            return view.state == "running" or any(view.runs.get(state) for state in _LIVE_STATES)

        if not await self._stage.until_over(is_live, within):
            for run in self.runs:
                await run.finished(within=0)  # raises for a run that has not ended
            raise RunStuck(f"backfill {self.backfill_id} of {self._dag.dag_id} is {self.state}")
        return self

    def _view(self) -> BackfillView:
        return self._stage.look(lambda api: api.backfills.show(self.backfill_id))
