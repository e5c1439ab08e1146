"""Causes of waits, found by following a waiting task through its upstream tasks to the root cause.

If a task waits for a task of the previous run, the chain continues in that run. If a task has ended
badly, the chain leads to the upstream tasks that failed, and to their errors.

The engine is asked what each task waits for, with a short timeout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import anyio
import msgspec

from aioflow.api.journal_follower import JournalFollower
from aioflow.api.operate import Actions
from aioflow.api.page.queries import Reads
from aioflow.api.page.usual import usual_seconds
from aioflow.api.queries import Counted
from aioflow.api.schemas import (
    CauseView,
    ChainView,
    PolledWait,
    ShareView,
    TargetView,
    error_view,
    run_state_name,
    shown_state,
    wait_view,
)
from aioflow.api.task_instances import RunLayout, TaskLocation, absent_state
from aioflow.api.waits.sentences import (
    Waiter,
    actions,
    cause_sentence,
    chain_sentence,
    is_active,
    task_name,
)
from aioflow.core.repair.selection import left_failed
from aioflow.core.runs.task_counts import waiting_runs
from aioflow.core.why import ChildrenCause
from aioflow.engine.loop import Engine
from aioflow.errors import DaemonAway, UnknownRun, UnknownTask
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import RunRow, TaskRow
from aioflow.model.states import LIVE_TASK_STATES, NodeState, RunState, TaskState, Wait, WaitKind
from aioflow.protocol.requests import CountTasks, Explain, ExplainChildren, Share, ShowShares
from aioflow.store import Store

__all__ = (
    "CHAIN_LIMIT",
    "Chain",
    "Explained",
    "Explaining",
    "ViewOfRun",
)

CHAIN_LIMIT = 100
"""Maximum number of links in one response. Further links are found by requesting a link's chain."""

_CHILDREN_SHOWN = 3
"""Number of a mapped task's children that are shown if the engine does not group them by cause."""

_CAUSES_SHOWN = 10
"""Number of causes that are shown for the children of one mapped task, the most frequent ones."""

_FAILED_SAMPLED = 100
"""Maximum number of children whose errors are read, per state."""

_EXPLAINED_AT_ONCE = 200
"""Maximum number of tasks in one request to the engine, so that the engine loop is not blocked."""

_AWAITED_RUNS = 10
"""Maximum number of awaited runs whose progress is read for one response."""

_SHARES_SHOWN = 20
"""Maximum number of runs that are listed as users of a pool."""

_BAD = (TaskState.FAILED, TaskState.UPSTREAM_FAILED, TaskState.CANCELLED)
_BAD_LABELS = frozenset(state.label for state in _BAD)
_FAILED_RUNS = frozenset({RunState.FAILED, RunState.PARTIAL})

_PAGES_SEARCHED = 20
_PAGE = 1_000

Explained: TypeAlias = Mapping[tuple[int, int], Wait | None]


class ViewOfRun(msgspec.Struct, frozen=True):
    """Access to the rows of one run, and to the engine's knowledge about the run.

    Attributes:
        count: Counts the tasks of the run by state, see ``Api.states``. Called at most once.
        explain: Asks the engine what tasks of the run wait for. Called once per level.
        children: Asks the engine why the children of a mapped task, given by its index, wait.
            Returns ``None`` if the engine does not respond.
        shares: Asks the engine which runs use a pool, given by its name.
        awaited: Returns the state of a run by its id, with the number of its ended tasks and of all
            its tasks; ``None`` if the run was deleted.
    """

    run: RunRow
    layout: RunLayout
    count: Callable[[], Awaitable[Counted]]
    store: Store
    explain: Callable[[Sequence[tuple[int, int]]], Awaitable[Explained]]
    children: Callable[[int], Awaitable[Sequence[ChildrenCause] | None]]
    shares: Callable[[str], Awaitable[Sequence[ShareView]]]
    awaited: Callable[[str], Awaitable[tuple[str, int, int] | None]]


FindTask: TypeAlias = Callable[[str, str], Awaitable[tuple[ViewOfRun, TaskLocation] | None]]
"""Finds a task of another run by run id and task id; ``None`` if that run has ended."""


class _Link(NamedTuple):
    depth: int
    location: TaskLocation


class _Met:
    """The tasks that a chain has visited, across all of its runs.

    Attributes:
        left_out: Number of links omitted because of a limit.
    """

    def __init__(self) -> None:
        self.locations: set[TaskLocation] = set()
        self.left_out = 0

    def take(self, locations: Iterable[TaskLocation]) -> list[TaskLocation]:
        """Mark tasks as visited, up to the limit. Return those that had not been visited."""
        fresh = [location for location in locations if location not in self.locations]
        capacity = max(CHAIN_LIMIT - len(self.locations), 0)
        self.left_out += max(len(fresh) - capacity, 0)
        self.locations.update(fresh[:capacity])
        return fresh[:capacity]


class Chain:
    """Follows waiting tasks to the tasks that they wait for. Visits each task once.

    Args:
        behind: Finds tasks of previous runs.
        met: The tasks that this chain has visited in other runs; ``None`` for a new chain.
    """

    def __init__(self, view: ViewOfRun, behind: FindTask, met: _Met | None = None) -> None:
        self._run = view.run
        self._layout = view.layout
        self._count = view.count
        self._counted: Counted | None = None
        self._store = view.store
        self._explain = view.explain
        self._children_causes = view.children
        self._stand_for: dict[TaskLocation, int] = {}
        self._of_pool, self._of_run_awaited = view.shares, view.awaited
        self._shares: dict[str, Sequence[ShareView]] = {}
        self._awaited: dict[str, tuple[str, int, int] | None] = {}
        self._rows: dict[TaskNo, TaskRow | None] = {}
        self._labels: dict[TaskNo, str] = {}
        self._behind = behind
        self._met = _Met() if met is None else met
        self._others: dict[TaskLocation, tuple[str, str]] = {}

    async def of_task(self, location: TaskLocation) -> tuple[list[CauseView], int]:
        """Return the chain that starts at one task, and the number of omitted links."""
        return await self._walk(self._met.take([location]), 0), self._met.left_out

    async def of_run(self) -> tuple[list[CauseView], int]:
        """Return the root causes of a run's wait: its unfinished tasks, waiting ones first.

        Apart from that, they are in the order of the DAG, upstream tasks first. Tasks that only
        wait for upstream tasks are omitted. For a failed run, return its failed tasks.
        """
        if self._run.state in _FAILED_RUNS:
            return await self._of_failed_run()
        await self._read_unmapped()
        roots = self._met.take(await self._roots())
        found: list[CauseView] = []
        active: list[CauseView] = []
        for location, cause in zip(
            roots, await self._causes([_Link(0, location) for location in roots]), strict=True
        ):
            block = [cause, *await self._of_other(_Link(0, location))]
            (found if cause.waiting_on is not None else active).extend(block)
        return found + active, self._met.left_out

    async def _roots(self) -> list[TaskLocation]:
        """Return unfinished tasks, except those that only wait for upstream tasks.

        The search ends at the limit of links. The tasks beyond it are counted as omitted.
        """
        locations: list[TaskLocation] = []
        for task_index in range(len(self._layout.spec.tasks)):
            locations += await self._unfinished(task_index)
        found: list[TaskLocation] = []
        for first in range(0, len(locations), _EXPLAINED_AT_ONCE):
            if len(found) >= CHAIN_LIMIT:
                self._met.left_out += len(locations) - first
                break
            some = locations[first : first + _EXPLAINED_AT_ONCE]
            waits = await self._explain([(one.task_index, one.map_index) for one in some])
            for location in some:
                wait = waits.get((location.task_index, location.map_index))
                if wait is None or wait.kind is not WaitKind.UPSTREAM:
                    found.append(location)
        return found

    async def _read_unmapped(self) -> None:
        """Read the rows of the tasks that have no children, in pages instead of one by one."""
        first, end = self._run.first_task_no, len(self._layout.spec.tasks)
        for start in range(0, end, _PAGE):
            numbers = range(first + start, first + min(start + _PAGE, end))
            found = await self._store.list_tasks_between(
                numbers.start, numbers.stop, limit=len(numbers)
            )
            self._rows |= dict.fromkeys(numbers, None)
            self._rows |= {row.task_no: row for row in found}

    async def _of_failed_run(self) -> tuple[list[CauseView], int]:
        """Return the failed tasks of a failed run; if there are none, the cancelled ones."""
        counts = await self._states()
        for states in ((TaskState.FAILED,), (TaskState.CANCELLED,)):
            locations: list[TaskLocation] = []
            for task_index in sorted({at for at, state, _ in counts if state in states}):
                locations += self._met.take(await self._failing(task_index, states))
            if locations:
                return await self._causes(
                    [_Link(0, location) for location in locations]
                ), self._met.left_out
        return [], 0

    async def _walk(self, locations: Sequence[TaskLocation], depth: int) -> list[CauseView]:
        """Visit the tasks level by level. Return each task after the task that waits for it."""
        below: dict[TaskLocation, list[TaskLocation]] = {}
        causes: dict[TaskLocation, CauseView] = {}
        level = deque(_Link(depth, location) for location in locations)
        while level:
            links = list(level)
            level.clear()
            for link, cause in zip(links, await self._causes(links), strict=True):
                causes[link.location] = cause
                below[link.location] = await self._next(link, cause)
                level.extend(_Link(link.depth + 1, location) for location in below[link.location])
        ordered: list[CauseView] = []
        stack = list(reversed(locations))
        while stack:
            location = stack.pop()
            ordered.append(causes[location])
            ordered += await self._of_other(_Link(causes[location].depth, location))
            stack.extend(reversed(below[location]))
        return ordered

    async def _of_other(self, link: _Link) -> list[CauseView]:
        """Return the part of the chain that continues in another run, if any."""
        other = self._others.get(link.location)
        found = None if other is None else await self._behind(*other)
        if found is None:
            return []
        view, location = found
        return await Chain(view, self._behind, self._met).enter(location, link.depth + 1)

    async def enter(self, location: TaskLocation, depth: int) -> list[CauseView]:
        """Continue a chain from another run at a task of this run; empty if the task has ended."""
        if not (await self._state(location)).is_live:
            return []
        return await self._walk(self._met.take([location]), depth)

    async def _next(self, link: _Link, cause: CauseView) -> list[TaskLocation]:
        if cause.waiting_on is None:
            task_index = link.location.task_index
            if cause.state in _BAD_LABELS:
                return self._met.take(await self._failed_upstream(link.location, cause.state))
            if link.location.map_index < 0 and self._layout.is_expanded(task_index):
                return self._met.take(await self._unfinished(task_index))
            return []
        if cause.waiting_on.kind != WaitKind.UPSTREAM:
            return []
        found: list[TaskLocation] = []
        for parent in self._layout.spec.tasks[link.location.task_index].parents:
            found += await self._unfinished(parent)
        return self._met.take(found)

    async def _failed_upstream(self, location: TaskLocation, state: str) -> list[TaskLocation]:
        """Return the tasks because of which a task ended badly: upstream tasks, or its children."""
        task_index = location.task_index
        if location.map_index < 0 and self._layout.is_expanded(task_index):
            return await self._failing(task_index, _BAD)
        if state != TaskState.UPSTREAM_FAILED.label:
            return []  # its own error is the cause
        spec = self._layout.spec.tasks[task_index]
        along = () if spec.mapped is None or location.map_index < 0 else spec.mapped.along
        found: list[TaskLocation] = []
        for parent in spec.parents:
            task_no = self._layout.task_no(parent, location.map_index) if parent in along else None
            if task_no is None:
                found += await self._failing(parent, _BAD)
            elif await self._state(at := TaskLocation(parent, location.map_index, task_no)) in _BAD:
                found.append(at)
        return found

    async def _failing(self, task_index: int, states: Sequence[TaskState]) -> list[TaskLocation]:
        """Return a task, or some children of a mapped task, if they ended in one of ``states``."""
        counts = {state: count for at, state, count in await self._states() if at == task_index}
        if not self._layout.is_expanded(task_index):
            is_one = any(counts.get(state) for state in states)
            return (
                [TaskLocation(task_index, -1, self._run.first_task_no + task_index)]
                if is_one
                else []
            )
        first, width = self._layout.task_no(task_index, 0) or 0, self._layout.width(task_index)
        found: list[TaskLocation] = []
        for state in states:
            if not counts.get(state):
                continue
            numbers = await self._store.list_task_nos_in(
                first, first + width, state, offset=0, limit=_FAILED_SAMPLED
            )
            rows = sorted(await self._store.find_tasks(numbers), key=lambda row: row.task_no)
            found += self._alike(rows)
            self._met.left_out += max(counts[state] - len(rows), 0)
        return found

    def _alike(self, rows: Sequence[TaskRow]) -> list[TaskLocation]:
        """Return examples of each kind of error: one task, or all of them if there are few."""
        alike: dict[object, list[TaskLocation]] = {}
        for row in rows:
            failure = row.failure
            kind = None if failure is None else (failure.type, failure.reason)
            location = TaskLocation(row.task_index, row.map_index, row.task_no)
            alike.setdefault(kind, []).append(location)
        groups = sorted(alike.values(), key=len, reverse=True)
        found: list[TaskLocation] = []
        for locations in groups[:_CAUSES_SHOWN]:
            if len(locations) <= _CHILDREN_SHOWN:
                found += locations
            else:
                found.append(locations[0])
                self._stand_for[locations[0]] = len(locations)
        self._met.left_out += sum(map(len, groups[_CAUSES_SHOWN:]))
        return found

    async def _causes(self, links: Sequence[_Link]) -> list[CauseView]:
        asked = [(link.location.task_index, link.location.map_index) for link in links]
        waits = await self._explain(asked)
        for link, wait in zip(links, map(waits.get, asked), strict=True):
            if wait is not None and wait.behind is not None:
                self._others[link.location] = wait.behind
        await self._read([link.location for link in links])
        return [
            await self._view(link, wait)
            for link, wait in zip(links, map(waits.get, asked), strict=True)
        ]

    async def _read(self, locations: Sequence[TaskLocation]) -> None:
        """Read the rows and labels of some tasks at once."""
        numbers = [one.task_no for one in locations if one.task_no not in self._rows]
        self._rows |= dict.fromkeys(numbers, None)
        self._rows |= {row.task_no: row for row in await self._store.find_tasks(numbers)}
        children = [one.task_no for one in locations if one.map_index >= 0]
        self._labels |= await self._store.find_labels(children)

    async def _shares_of(self, wait: Wait | None) -> Sequence[ShareView]:
        """Return the runs that use the pool that a task waits for."""
        if wait is None or wait.pool is None:
            return ()
        if wait.pool not in self._shares:
            self._shares[wait.pool] = await self._of_pool(wait.pool)
        return self._shares[wait.pool]

    async def _with_progress(self, wait: Wait | None) -> Wait | None:
        """Add the state and progress of an awaited run, for a limited number of such runs."""
        if not isinstance(wait, PolledWait):
            return wait
        target = wait.target
        if target is None or target.run_id is None:
            return wait
        if target.run_id not in self._awaited and len(self._awaited) < _AWAITED_RUNS:
            self._awaited[target.run_id] = await self._of_run_awaited(target.run_id)
        known = self._awaited.get(target.run_id)
        if known is None:
            return wait
        state, ended, total = known
        shown = msgspec.structs.replace(target, state=state, used=ended, all=total)
        return msgspec.structs.replace(wait, target=shown)

    async def _view(self, link: _Link, wait: Wait | None) -> CauseView:
        label = self._labels.get(link.location.task_no) if link.location.map_index >= 0 else None
        row = None
        if link.location.map_index >= 0 or not self._layout.is_expanded(link.location.task_index):
            row = await self._row(link.location)
        state = await self._state(link.location) if row is None else row.state
        map_index, round_number = self._layout.shown(link.location)
        wait, shares = await self._with_progress(wait), await self._shares_of(wait)
        task_id = self._layout.spec.tasks[link.location.task_index].task_id
        is_mapped = self._layout.is_expanded(link.location.task_index) and not round_number
        who = Waiter(
            name=task_name(task_id, map_index, round_number, label),
            task_id=task_id,
            count=self._stand_for.get(link.location, 1),
            width=self._layout.width(link.location.task_index) if is_mapped else None,
            doc=self._layout.spec.tasks[link.location.task_index].doc,
        )
        error = error_view(row.failure) if row is not None and state in _BAD else None
        shown = shown_state(state, self._run.state, wait)
        # Omits a running task's wait for the database: it only means that the engine did not
        # respond.
        view = wait_view(wait, shown)
        return CauseView(
            depth=link.depth,
            run_id=self._run.run_id,
            task_id=task_id,
            map_index=map_index,
            round=round_number,
            map_label=label,
            state=shown.label,
            waiting_on=view,
            count=who.count,
            error=error,
            text=cause_sentence(
                who,
                shown,
                None if view is None else wait,
                shares=shares,
                error=error,
                place=await self._place(link, row),
            ),
            total=who.width,
            target=_target(wait),
            shares=list(shares[:_SHARES_SHOWN]),
            actions=actions(shown, None if view is None else wait),
        )

    async def _place(self, link: _Link, row: TaskRow | None) -> str:
        """Return where the requested task is running; empty for other tasks in the chain."""
        if link.depth or row is None or row.state is not TaskState.RUNNING:
            return ""
        if self._stand_for.get(link.location, 1) > 1 or len(self._met.locations) > 1:
            return ""
        workers = await self._store.list_try_workers(link.location.task_no)
        for worker in workers:
            if worker.start_no == row.start_no:
                return f"in executor {worker.executor} on {worker.host}"
        nodes = await self._store.list_nodes()
        active = (node.node_no for node in nodes if node.state is NodeState.ACTIVE)
        return f"on node {next(active, 1)}"

    async def _state(self, location: TaskLocation) -> TaskState:
        if location.map_index < 0 and self._layout.is_expanded(location.task_index):
            return await self._group_state(location.task_index)
        row = await self._row(location)
        return absent_state(self._run.state) if row is None else row.state

    async def _row(self, location: TaskLocation) -> TaskRow | None:
        if location.task_no not in self._rows:
            rows = await self._store.list_tasks_between(location.task_no, location.task_no + 1)
            self._rows[location.task_no] = rows[0] if rows else None
        return self._rows[location.task_no]

    async def _states(self) -> Counted:
        if self._counted is None:
            self._counted = await self._count()
        return self._counted

    async def _group_state(self, task_index: int) -> TaskState:
        """Return the state of a mapped task as a whole, derived from the states of its children."""
        counted = {
            state: count
            for at, state, count in await self._states()
            if at == task_index and state is not TaskState.PENDING
        }
        if sum(counted.values()) < self._layout.width(task_index):
            return TaskState.RUNNING if counted else absent_state(self._run.state)
        if any(state.is_live for state in counted) or self._layout.is_open(task_index):
            return TaskState.RUNNING
        last = self._layout.last_round(task_index)
        if last >= 0:
            return await self._state(self._children(task_index, last)[0])
        for state in (TaskState.FAILED, TaskState.CANCELLED, TaskState.UPSTREAM_FAILED):
            if state in counted:
                return state
        return TaskState.SUCCESS if TaskState.SUCCESS in counted else TaskState.SKIPPED

    async def _unfinished(self, task_index: int) -> list[TaskLocation]:
        """Return a task if it is unfinished. For a mapped task, return some unfinished children."""
        if not self._layout.is_expanded(task_index):
            task_no = self._run.first_task_no + task_index
            location = TaskLocation(task_index, -1, task_no)
            return [location] if (await self._state(location)).is_live else []
        return await self._unfinished_children(task_index)

    async def _unfinished_children(self, task_index: int) -> list[TaskLocation]:
        ended = sum(
            count
            for at, state, count in await self._states()
            if at == task_index and state not in LIVE_TASK_STATES
        )
        left = self._layout.width(task_index) - ended
        if left <= 0 and self._run.state.is_live and self._layout.is_open(task_index):
            return await self._maker_of(task_index)
        if left <= 0 or not self._run.state.is_live:
            return []
        causes = await self._children_causes(task_index)
        if causes is not None:
            return self._named(task_index, causes, left)
        found: list[TaskLocation] = []
        for page in range(_PAGES_SEARCHED):
            locations = self._children(task_index, page * _PAGE)
            if not locations or len(found) >= min(_CHILDREN_SHOWN, left):
                break
            rows = await self._rows_of(locations)
            found += [location for location in locations if _is_live(rows.get(location.task_no))]
        found = found[:_CHILDREN_SHOWN]
        self._met.left_out += left - len(found)
        return found

    def _named(
        self, task_index: int, causes: Sequence[ChildrenCause], left: int
    ) -> list[TaskLocation]:
        """Return examples for each cause: one of its children, or all of them if there are few.

        Causes of waiting children come before causes of children that are being worked on.
        """
        found: list[TaskLocation] = []
        first = self._layout.task_no(task_index, 0) or 0
        ordered = sorted(causes, key=lambda cause: is_active(cause.state, cause.wait))
        for cause in ordered[:_CAUSES_SHOWN]:
            is_few = cause.count == len(cause.indices)
            for index in cause.indices if is_few else cause.indices[:1]:
                if index < self._layout.width(task_index):  # skip children newer than the layout
                    found.append(TaskLocation(task_index, index, first + index))
                    self._stand_for[found[-1]] = 1 if is_few else cause.count
        told = sum(self._stand_for[location] for location in found)
        self._met.left_out += max(left - told, 0)
        return found

    async def _maker_of(self, task_index: int) -> list[TaskLocation]:
        """Return the task that may still add children to a task whose children have ended."""
        mapped = self._layout.spec.tasks[task_index].mapped
        if mapped is not None and mapped.until not in {-1, task_index}:
            return await self._unfinished(mapped.until)
        source = -1 if mapped is None else mapped.sources[0].task_index
        return [] if source < 0 else [TaskLocation(source, -1, self._run.first_task_no + source)]

    def _children(self, task_index: int, start: int) -> list[TaskLocation]:
        end = min(start + _PAGE, self._layout.width(task_index))
        first = self._layout.task_no(task_index, 0) or 0
        return [TaskLocation(task_index, index, first + index) for index in range(start, end)]

    async def _rows_of(self, locations: Sequence[TaskLocation]) -> dict[int, TaskRow]:
        found = await self._store.list_tasks_between(
            locations[0].task_no, locations[-1].task_no + 1, limit=len(locations)
        )
        return {row.task_no: row for row in found}


def _first_and_root(causes: Sequence[CauseView]) -> Sequence[CauseView]:
    """Return the first cause of a chain, and the next one that waits for no upstream task."""
    waits = (
        cause
        for cause in causes[1:]
        if cause.waiting_on is not None and cause.waiting_on.kind != WaitKind.UPSTREAM
    )
    return [*causes[:1], next(waits, causes[-1])] if causes else causes


def _target(wait: Wait | None) -> TargetView | None:
    """Return the target of a wait: a pool, a run, or the object that a trigger checks."""
    if wait is None:
        return None
    if wait.pool is not None:
        return TargetView(type="pool", name=wait.pool)
    if wait.behind is not None:
        run_id, task_id = wait.behind
        return TargetView(type="run", name=run_id, run_id=run_id, task_id=task_id)
    return wait.target if isinstance(wait, PolledWait) else None


def _is_live(row: TaskRow | None) -> bool:
    return row is None or row.state.is_live


_EXPLAIN_SECONDS = 0.5
"""Timeout for the engine's answer. After that, the state is read from rows instead of memory."""

_TAKEN_OVER = Wait(
    kind=WaitKind.HOST, detail="no node is active: a standby takes its DAG over within seconds"
)
"""The wait reported for all tasks of a run while a standby has no active node to ask."""

_STATES = {state.label: state for state in TaskState}
_MAY_BE_A_CYCLE = frozenset({WaitKind.TRIGGER, WaitKind.INTERVAL})


class Explaining(Actions):
    """The methods of ``Api`` that explain waits."""

    reads: Reads
    follower: JournalFollower | None
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
        return [] if run is None else left_failed(run, tasks, run.clearing)

    @property
    def _patience(self) -> float:
        """Seconds to wait for the engine's answer; 0 while the database is unavailable.

        The time that the engine's current turn has already taken is subtracted.
        """
        if self._running.store_away_since is not None:
            return 0.0
        return max(0.0, _EXPLAIN_SECONDS - self._running.turn_seconds)

    async def states(self, runs: Sequence[RunRow]) -> list[Counted]:
        """Return ``(task_index, state, count)`` of each run's tasks.

        Live runs, which may have a million rows, are counted in memory with a single request. If a
        run has ended, or the engine does not answer in time, its rows are counted instead.
        """
        task = tuple(run.run_id for run in runs if run.state.is_live)
        known: Mapping[str, Counted] = {}
        if task and self._engine is not None and self._patience:
            with anyio.move_on_after(self._patience):
                known = cast("dict[str, Counted]", await self._send(CountTasks(run_ids=task)))
        return [known.get(run.run_id) or await self._count(run) for run in runs]

    def waiting_runs(self, rows: Iterable[RunRow]) -> AbstractSet[RunNo]:
        """Return the numbers of the runs that only wait, according to the memory of this node."""
        if self._engine is None:
            return frozenset()
        live = (row.run_no for row in rows if row.state is RunState.RUNNING)
        return waiting_runs(self._engine.memory, live)

    async def waits(self, run: RunRow, tasks: Sequence[tuple[int, int]]) -> Explained:
        if not tasks or not run.state.is_live:
            return {}
        if self.follower is not None or (self._engine is not None and not self._engine.turns):
            return dict.fromkeys(tasks, _TAKEN_OVER)
        if self._engine is None:
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
        return {location: self._with_cycle(run, location, wait) for location, wait in found.items()}

    @property
    def _no_answer(self) -> Wait:
        """The wait that is reported for all tasks while the engine does not answer."""
        engine = self._running
        away = engine.store_away_since is not None
        said = f"the database cannot be written: {engine.store_error}"
        detail = said if away else "a commit takes long; ask again"
        return Wait(kind=WaitKind.DATABASE, detail=detail)

    def _with_cycle(self, run: RunRow, location: tuple[int, int], wait: Wait | None) -> Wait | None:
        """Add the cycle to the detail of a wait if the awaited run itself waits for this run."""
        if self._cycle is None or wait is None or wait.kind not in _MAY_BE_A_CYCLE:
            return wait
        cycle = self._cycle(run.run_no, *location)
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
            causes, more = await chain.of_task(await self.locate(run, task_id, map_index))
        causes = await self._with_usual(run.dag_id, causes)
        state = run_state_name(run)
        told = causes if task_id is None else _first_and_root(causes)
        texts = [cause.text for cause in told]
        return ChainView(
            run_id=run_id,
            dag_id=run.dag_id,
            state=state,
            text=chain_sentence(run_id, state, texts, more=more, is_task=task_id is not None),
            timezone=(await self.known_spec(run.version, run.dag_id)).timezone,
            causes=causes,
            more=more,
        )

    async def _with_usual(self, dag_id: str, causes: Sequence[CauseView]) -> list[CauseView]:
        """Add the usual durations of such waits. All runs of a chain are of the same DAG."""
        waiting = {(dag_id, cause.task_id) for cause in causes if cause.waiting_on is not None}
        usual = await self.reads.usual.of_tasks(waiting)
        return [
            msgspec.structs.replace(
                cause,
                usual_seconds=usual_seconds(
                    usual.get((dag_id, cause.task_id)), _STATES.get(cause.state, TaskState.PENDING)
                ),
            )
            for cause in causes
        ]

    async def _view_of(self, run: RunRow) -> ViewOfRun:
        async def explain(tasks: Sequence[tuple[int, int]]) -> Explained:
            return await self.waits(run, tasks)

        async def count() -> Counted:
            (counted,) = await self.states([run])
            return counted

        async def children(task_index: int) -> Sequence[ChildrenCause] | None:
            return await self._children_causes(run, task_index)

        layout = await self.layout(run)
        return ViewOfRun(
            run, layout, count, self.store, explain, children, self._shares, self._awaited
        )

    async def _shares(self, pool: str) -> Sequence[ShareView]:
        """Return the runs that use a pool; empty if the engine does not respond."""
        if self._engine is None:
            return ()
        answer: object = None
        with anyio.move_on_after(self._patience):
            answer = await self._send(ShowShares(name=pool))
        shares = cast("list[Share]", answer or [])
        return [ShareView(run_id=one.run_id, dag_id=one.dag_id, slots=one.slots) for one in shares]

    async def _awaited(self, run_id: str) -> tuple[str, int, int] | None:
        """Return the state of a run, the number of its ended tasks, and that of all its tasks."""
        run = await self.store.find_run(run_id)
        if run is None:
            return None
        (counts,) = await self.counts([run])
        live = {state.label for state in LIVE_TASK_STATES}
        ended = sum(count for state, count in counts.items() if state not in live)
        return run_state_name(run), ended, sum(counts.values())

    async def _children_causes(
        self, run: RunRow, task_index: int
    ) -> Sequence[ChildrenCause] | None:
        """Return why a mapped task's children wait; ``None`` if the engine does not respond."""
        if self._engine is None or not run.state.is_live:
            return None
        answer: object = None
        with anyio.move_on_after(self._patience):
            answer = await self._send(ExplainChildren(run_id=run.run_id, task_index=task_index))
        return cast("list[ChildrenCause] | None", answer)

    async def _behind(self, run_id: str, task_id: str) -> tuple[ViewOfRun, TaskLocation] | None:
        """Locate a task of another run; ``None`` if that run has ended or was deleted."""
        try:
            run = await self.run(run_id)
            location = await self.locate(run, task_id, -1)
        except (UnknownRun, UnknownTask):
            return None
        return (await self._view_of(run), location) if run.state.is_live else None
