"""Tells those who watch what has been committed: one reader, and few bytes for each of them.

What a turn changed is taken at its commit, while somebody watches; a few times a second what has
come together is encoded, once for all who want the same, and put into a short queue for each. Who
does not take it in time is dropped, and comes again with the last number he has: then the journal
says what he missed, where that is little.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import anyio
import msgspec

from aioflow.api.views import iso
from aioflow.clock import Clock
from aioflow.core.draft import Draft
from aioflow.model import DagSpec, Instant, RunNo, TaskState
from aioflow.rows import Batch, RunRow

__all__ = ("CLIENTS", "QUEUED", "Commits", "Follower", "News", "Wanted", "frame")

CLIENTS = 100
"""Who may watch at once."""

QUEUED = 64
"""Messages that one who watches may be behind."""

_TASKS_TOLD = 500
_TOGETHER_SECONDS = 0.05
_BATCHES, _TASKS = 512, 20_000
"""Commits that are told of together at most, and tasks that these may have moved."""


class Wanted(NamedTuple):
    """What somebody watches: a DAG, a run, or all."""

    dag_id: str | None = None
    run_id: str | None = None


Moved: TypeAlias = tuple[RunRow, DagSpec, int, int, TaskState]
"""Run, what its version says, position, map index, and where the task stands now."""


class News:
    """What commits have changed, up to the last of them."""

    def __init__(self) -> None:
        self.commit_no = 0
        self.at: Instant = 0
        self.commits = 0
        self.runs: dict[RunNo, RunRow] = {}
        self.tasks: dict[tuple[RunNo, int, int], Moved] = {}
        self.dags: dict[str, None] = {}
        self.triggers = 0

    def take(self, batch: Batch, draft: Draft) -> None:
        """Add what one commit changed."""
        self.commit_no, self.at = batch.number, batch.at
        self.commits += 1
        for change in batch.run_changes:
            run = draft.runs.get(change.run_no)
            if run is not None:
                self.runs[change.run_no] = run.row
        self.runs.update((row.run_no, row) for row in batch.new_runs)
        for live in draft.touched:
            row = live.run.row
            place = (row.run_no, live.position, live.map_index)
            self.tasks[place] = (row, live.run.spec, live.position, live.map_index, live.state)
        self.dags.update((row.dag_id, None) for row in batch.dags)
        self.dags.update(dict.fromkeys(batch.gone_dags))
        self.triggers += len(batch.new_triggers) + len(batch.trigger_changes)

    def encoded(self, wanted: Wanted) -> bytes:
        """Return it as a message to those who want this."""
        runs = [row for row in self.runs.values() if _is_of(row, wanted)]
        tasks = [moved for moved in self.tasks.values() if _is_of(moved[0], wanted)]
        body: dict[str, Any] = {
            "commit": self.commit_no,
            "at": iso(self.at),
            "runs": [
                {"run_id": row.run_id, "dag_id": row.dag_id, "state": row.state.label}
                for row in runs
            ],
            "tasks": [_task(*moved) for moved in tasks[:_TASKS_TOLD]],
            "dags": [d for d in self.dags if wanted.dag_id in {None, d} and not wanted.run_id],
            "triggers": self.triggers,
        }
        if len(tasks) > _TASKS_TOLD:
            body["tasks"] = []
            body["more"] = len(tasks)
            body["counts"] = _counts(tasks)
        return frame("commit", body, self.commit_no)


def _is_of(row: RunRow, wanted: Wanted) -> bool:
    return wanted.dag_id in {None, row.dag_id} and wanted.run_id in {None, row.run_id}


def _task(
    row: RunRow, spec: DagSpec, position: int, map_index: int, state: TaskState
) -> dict[str, Any]:
    task = spec.tasks[position]
    is_loop = task.mapped is not None and task.mapped.until >= 0
    return {
        "run_id": row.run_id,
        "task_id": task.task_id,
        "map_index": -1 if is_loop else map_index,
        "round": max(map_index, 0) if is_loop else 0,
        "state": state.label,
    }


def _counts(tasks: list[Moved]) -> dict[str, dict[str, dict[str, int]]]:
    """Return how many of each task have come to stand how."""
    counted: Counter[tuple[str, str, str]] = Counter(
        (row.run_id, spec.tasks[position].task_id, state.label)
        for row, spec, position, _, state in tasks
    )
    found: dict[str, dict[str, dict[str, int]]] = {}
    for (run_id, task_id, state), count in counted.items():
        found.setdefault(run_id, {}).setdefault(task_id, {})[state] = count
    return found


def frame(event: str, body: object, number: int | None = None) -> bytes:
    """Return a message of an event stream."""
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: %s\ndata: %s\n\n" % (event.encode(), msgspec.json.encode(body))


class Follower:
    """Somebody who watches.

    Attributes:
        wanted: What.
        scope: Cancelled to have him gone.
        since: The commit after which he is told of all.
    """

    def __init__(self, wanted: Wanted, since: int, scope: anyio.CancelScope) -> None:
        self.wanted = wanted
        self.scope = scope
        self.since = since
        self._queue: deque[bytes] = deque()
        self._stirred = anyio.Event()

    def put(self, message: bytes) -> bool:
        """Add a message; ``False`` where he is too far behind."""
        if len(self._queue) >= QUEUED:
            return False
        self._queue.append(message)
        self._stirred.set()
        return True

    async def next_message(self, patience_seconds: float) -> bytes | None:
        """Return what comes next; ``None`` if that takes longer."""
        if not self._queue:
            self._stirred = anyio.Event()
            with anyio.move_on_after(patience_seconds):
                await self._stirred.wait()
        return self._queue.popleft() if self._queue else None


class Commits:
    """Follows the commits of a node for all who watch it.

    Attributes:
        dropped: How many were too far behind.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._followers: set[Follower] = set()
        self._readers: set[anyio.CancelScope] = set()
        self._news: News | None = None
        self._stirred = anyio.Event()
        self._is_closed = False
        self.dropped = 0

    @property
    def is_full(self) -> bool:
        """Whether nobody else may watch."""
        return self._is_closed or len(self._followers) + len(self._readers) >= CLIENTS

    def committed(self, batch: Batch, draft: Draft) -> None:
        """Take a durable batch; costs nothing while nobody watches."""
        if not self._followers:
            return
        if self._news is None:
            self._news = News()
            self._stirred.set()
        self._news.take(batch, draft)
        if self._news.commits >= _BATCHES or len(self._news.tasks) >= _TASKS:
            self._tell()

    async def run(self) -> None:
        """Tell of what is committed, until cancelled."""
        while True:
            await self._stirred.wait()
            await self._clock.sleep(_TOGETHER_SECONDS)
            self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, None
        self._stirred = anyio.Event()
        if news is None:
            return
        encoded: dict[Wanted, bytes] = {}
        for follower in list(self._followers):
            if news.commit_no <= follower.since:
                continue
            message = encoded.get(follower.wanted)
            if message is None:
                message = encoded[follower.wanted] = news.encoded(follower.wanted)
            if not follower.put(message):
                self.dropped += 1
                self._leave(follower)

    def _leave(self, follower: Follower) -> None:
        self._followers.discard(follower)
        follower.scope.cancel()

    @contextmanager
    def follow(self, wanted: Wanted, since: int, scope: anyio.CancelScope) -> Iterator[Follower]:
        """Be told of all that is committed after ``since``, from now on."""
        follower = Follower(wanted, since, scope)
        self._followers.add(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)

    @contextmanager
    def reading(self, scope: anyio.CancelScope) -> Iterator[None]:
        """Count somebody who follows a log; the scope ends with the daemon."""
        self._readers.add(scope)
        try:
            yield
        finally:
            self._readers.discard(scope)

    def close(self) -> None:
        """Have all of them gone: the daemon ends."""
        self._is_closed = True
        for follower in list(self._followers):
            self._leave(follower)
        for scope in self._readers:
            scope.cancel()
