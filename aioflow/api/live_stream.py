"""The live stream of commits, with one producer and few bytes per client.

While there are clients, each commit's changes are collected, within limits: a run with very many
changed tasks is reduced to counts. At most 20 times a second, the collected changes are encoded
outside of any commit, once for all clients with the same subscription, and put into a short queue
per client. A client that does not keep up is disconnected. A client that reconnects learns whether
it missed commits, but not which changes they made, so it reloads its data.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import anyio
import anyio.lowlevel
import msgspec

from aioflow.api.schemas import iso
from aioflow.clock import Clock
from aioflow.core.state.memory import Memory
from aioflow.core.transaction import Transaction
from aioflow.model.access import HOME
from aioflow.model.batch import Batch
from aioflow.model.dag import DagSpec
from aioflow.model.ids import RunNo
from aioflow.model.rows import RunRow
from aioflow.model.states import TaskState
from aioflow.model.timestamps import Timestamp

__all__ = (
    "CLIENTS",
    "PER_CALLER",
    "QUEUED",
    "Commits",
    "Follower",
    "News",
    "Topic",
    "commits_by_node",
    "frame",
    "position_of",
    "stream_id",
)

CLIENTS = 100
"""Maximum number of clients at a time."""

PER_CALLER = 20
"""Maximum number of clients of one user or token. The owner of the home has no such limit."""

QUEUED = 64
"""Maximum number of messages queued for one client."""

_TASKS_TOLD = 500
_TOGETHER_SECONDS = 0.05
_TASKS = 20_000
"""Maximum number of task changes that are listed individually, over all runs."""

_STREAM_ID = re.compile(r"([0-9]{1,9}:)?[0-9]{1,18}(,[0-9]{1,9}:[0-9]{1,18}){0,99}")

_MARKS = 256
_UNMOVED = 0


class Topic(NamedTuple):
    """The subject of a subscription: a DAG, a run, or everything."""

    dag_id: str | None = None
    run_id: str | None = None


_Task: TypeAlias = dict[str, Any]


class Moves:
    """State changes of one run's tasks: listed individually or, if there are many, counted."""

    def __init__(self, row: RunRow) -> None:
        self.row = row
        self.tasks: dict[tuple[int, int], tuple[DagSpec, TaskState]] = {}
        self._spec: DagSpec | None = None
        self._marks: dict[tuple[int, int], bytearray] = {}

    @property
    def is_counted(self) -> bool:
        """Whether the changes are reduced to counts."""
        return self._spec is not None

    @property
    def count(self) -> int:
        """Number of changed tasks. Each task counts once, however often it changed."""
        marked = sum(len(marks) - marks.count(_UNMOVED) for marks in self._marks.values())
        return marked + len(self.tasks)

    def take(self, spec: DagSpec, location: tuple[int, int], state: TaskState) -> None:
        """Add the new state of a task."""
        if self.is_counted:
            self._mark(location, state)
            return
        self.tasks[location] = (spec, state)
        if len(self.tasks) > _TASKS_TOLD:
            self.fold()

    def fold(self) -> None:
        """Reduce the changes to counts from now on. The state of each task then takes one byte."""
        for location, (spec, state) in self.tasks.items():
            self._spec = spec
            self._mark(location, state)
        self.tasks = {}

    def _mark(self, location: tuple[int, int], state: TaskState) -> None:
        page, at = divmod(location[1] + 1, _MARKS)
        marks = self._marks.get((location[0], page))
        if marks is None:
            marks = self._marks[location[0], page] = bytearray(_MARKS)
        marks[at] = state + 1

    def told(self) -> list[_Task]:
        """Return the changed tasks; empty if the changes are reduced to counts."""
        return [
            _task(self.row, spec, *location, state)
            for location, (spec, state) in self.tasks.items()
        ]

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of changed tasks by task id and state."""
        found: dict[str, dict[str, int]] = {}
        for (task_id, state), count in self._counted().items():
            found.setdefault(task_id, {})[state] = count
        return found

    def _counted(self) -> Counter[tuple[str, str]]:
        if self._spec is None:
            return Counter(
                (spec.tasks[task_index].task_id, state.label)
                for (task_index, _), (spec, state) in self.tasks.items()
            )
        found: Counter[tuple[str, str]] = Counter()
        for (task_index, _), marks in self._marks.items():
            for mark in set(marks) - {_UNMOVED}:
                task_id = self._spec.tasks[task_index].task_id
                found[task_id, TaskState(mark - 1).label] += marks.count(mark)
        return found


class News:
    """The changes of a series of commits.

    Attributes:
        order: Position of the last commit in the sequence of commits that this node streams.
    """

    def __init__(self) -> None:
        self.commit_no = self.order = 0
        self.position: dict[int, int] = {}
        self.at: Timestamp = 0
        self.runs: dict[RunNo, RunRow] = {}
        self.moves: dict[RunNo, Moves] = {}
        self.dags: dict[str, None] = {}
        self.triggers = 0
        self._task_count = 0

    def take(self, batch: Batch, draft: Transaction) -> None:
        """Add the changes of one commit."""
        self.commit_no = self.order = batch.number
        self.at = batch.at
        memory = draft.memory
        self.position = {**memory.other_commits, memory.node_no: batch.number}
        for change in batch.run_changes:
            run = draft.runs.get(change.run_no)
            if run is not None:
                self.runs[change.run_no] = run.row
        self.runs.update((row.run_no, row) for row in batch.new_runs)
        for run_no, row in draft.noted_runs.items():
            self.runs.setdefault(run_no, row)
        for live in draft.touched:
            location = (live.task_index, live.map_index)
            self.move(live.run.row, live.run.spec, location, live.state)
        self.dags.update((row.dag_id, None) for row in batch.dags)
        self.dags.update(dict.fromkeys(batch.gone_dags))
        self.triggers += len(batch.new_triggers) + len(batch.trigger_changes)

    def move(self, row: RunRow, spec: DagSpec, location: tuple[int, int], state: TaskState) -> None:
        """Add the new state of a task. ``location`` is its task index and map index."""
        moves = self.moves.get(row.run_no)
        if moves is None:
            moves = self.moves[row.run_no] = Moves(row)
        before = len(moves.tasks)
        moves.take(spec, location, state)
        if len(moves.tasks) > before and self._task_count >= _TASKS:
            moves.fold()
        self._task_count += len(moves.tasks) - before

    def sorted(self) -> Sorted:
        """Return the changes indexed by subscription, so that a subscription needs no scan."""
        return Sorted(self)


class Sorted:
    """Changes of runs and tasks, indexed by subscription."""

    def __init__(self, news: News) -> None:
        self._news = news
        self._runs: dict[Topic, list[RunRow]] = {}
        self._moves: dict[Topic, list[Moves]] = {}
        for row in news.runs.values():
            for wanted in _topics_of(row):
                self._runs.setdefault(wanted, []).append(row)
        for moves in news.moves.values():
            for wanted in _topics_of(moves.row):
                self._moves.setdefault(wanted, []).append(moves)

    def encoded(self, wanted: Topic) -> bytes:
        """Encode the changes as a message for one subscription."""
        news, moves = self._news, self._moves.get(wanted, [])
        body: dict[str, Any] = {
            "commit": news.commit_no,
            "at": iso(news.at),
            "runs": [
                {"run_id": row.run_id, "dag_id": row.dag_id, "state": row.state.label}
                for row in self._runs.get(wanted, [])
            ],
            "tasks": [],
            "dags": [d for d in news.dags if wanted.dag_id in {None, d} and not wanted.run_id],
            "triggers": news.triggers,
        }
        count = sum(of_run.count for of_run in moves)
        if count > _TASKS_TOLD or any(of_run.is_counted for of_run in moves):
            body["more"] = count
            body["counts"] = {of_run.row.run_id: of_run.counts() for of_run in moves}
        else:
            body["tasks"] = [task for of_run in moves for task in of_run.told()]
        return frame("commit", body, stream_id(news.position))


def _topics_of(row: RunRow) -> tuple[Topic, ...]:
    return (
        Topic(),
        Topic(row.dag_id),
        Topic(None, row.run_id),
        Topic(row.dag_id, row.run_id),
    )


def _task(row: RunRow, spec: DagSpec, task_index: int, map_index: int, state: TaskState) -> _Task:
    task = spec.tasks[task_index]
    is_loop = task.mapped is not None and task.mapped.until >= 0
    return {
        "run_id": row.run_id,
        "task_id": task.task_id,
        "map_index": -1 if is_loop else map_index,
        "round": max(map_index, 0) if is_loop else 0,
        "state": state.label,
    }


def commits_by_node(memory: Memory) -> dict[int, int]:
    """Return the last commit of each node."""
    return {**memory.other_commits, memory.node_no: memory.commit_no}


def stream_id(position: Mapping[int, int]) -> str:
    """Return the id of a message. It lists the last commit of each node: ``1:523,2:88``.

    If only the first node has committed, the id is the number of its last commit.
    """
    if set(position) <= {1}:
        return str(position.get(1, 0))
    return ",".join(f"{node_no}:{position[node_no]}" for node_no in sorted(position))


def position_of(given: str) -> dict[int, int] | None:
    """Parse the id of a message. Return the last commit of each node in it.

    A plain number stands for a commit of the first node. Return ``None`` if the id is invalid.
    """
    if not _STREAM_ID.fullmatch(given):
        return None
    pairs = (part.rpartition(":") for part in given.split(","))
    return {int(node_no or 1): int(commit_no) for node_no, _, commit_no in pairs}


def frame(event: str, body: object, number: int | str | None = None) -> bytes:
    """Return a message of an event stream."""
    head = b"" if number is None else f"id: {number}\n".encode()
    return head + b"event: %s\ndata: %s\n\n" % (event.encode(), msgspec.json.encode(body))


class Follower:
    """A client of the live stream.

    Attributes:
        wanted: The subject of its subscription.
        scope: Cancelled to disconnect it.
        since: The commit after which the client receives all changes; see ``News.order``.
    """

    def __init__(self, wanted: Topic, since: int, scope: anyio.CancelScope) -> None:
        self.wanted = wanted
        self.scope = scope
        self.since = since
        self._queue: deque[bytes] = deque()
        self._stirred = anyio.Event()

    def put(self, message: bytes) -> bool:
        """Queue a message; return ``False`` if the client is too far behind."""
        if len(self._queue) >= QUEUED:
            return False
        self._queue.append(message)
        self._stirred.set()
        return True

    async def next_message(self, patience_seconds: float) -> bytes | None:
        """Return the next message; ``None`` after the timeout."""
        if not self._queue:
            self._stirred = anyio.Event()
            with anyio.move_on_after(patience_seconds):
                await self._stirred.wait()
        return self._queue.popleft() if self._queue else None


class Commits:
    """Streams the commits of a node to all of its clients.

    Attributes:
        dropped: Number of clients that were disconnected because they were too far behind.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._followers: set[Follower] = set()
        self._readers: set[anyio.CancelScope] = set()
        self._open: Counter[str] = Counter()
        self._news: News | None = None
        self._stirred = anyio.Event()
        self._is_closed = False
        self._defect: Exception | None = None
        self.dropped = 0

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of clients is reached."""
        return self._is_closed or self._open.total() >= CLIENTS

    def has_enough(self, who: str) -> bool:
        """Return whether a user or token has reached its limit of clients."""
        return who != HOME and self._open[who] >= PER_CALLER

    @contextmanager
    def watching(self, who: str) -> Iterator[None]:
        """Count a client while it is connected."""
        self._open[who] += 1
        try:
            yield
        finally:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]

    def committed(self, batch: Batch, draft: Transaction) -> None:
        """Collect the changes of a durable batch for ``run`` to send. Without clients, do nothing.

        An error here is raised later by ``run`` instead, because the batch is already durable and
        the engine must apply it.
        """
        if not self._followers:
            return
        try:
            self.collected().take(batch, draft)
        except Exception as exc:  # noqa: BLE001 - raised by `run` instead
            self._defect = exc

    @property
    def has_clients(self) -> bool:
        """Whether there are clients for which changes must be collected."""
        return bool(self._followers)

    def collected(self) -> News:
        """Return the pending changes, which ``run`` sends next, so that more can be added."""
        if self._news is None:
            self._news = News()
            self._stirred.set()
        return self._news

    async def run(self) -> None:
        """Send collected changes to clients until cancelled."""
        while True:
            await self._stirred.wait()
            await self._clock.sleep(_TOGETHER_SECONDS)
            await self._tell()

    async def _tell(self) -> None:
        news, self._news = self._news, None
        self._stirred = anyio.Event()
        if self._defect is not None:
            raise self._defect
        if news is None or not self._followers:
            return
        by_wanted: dict[Topic, list[Follower]] = {}
        for follower in self._followers:
            if news.order > follower.since:
                by_wanted.setdefault(follower.wanted, []).append(follower)
        parts = news.sorted()
        for wanted, followers in by_wanted.items():
            await anyio.lowlevel.checkpoint()
            self._put(parts.encoded(wanted), followers)

    def send_all(self, message: bytes) -> None:
        """Send a message to all clients, whatever they subscribed to."""
        self._put(message, list(self._followers))

    def _put(self, message: bytes, followers: list[Follower]) -> None:
        for follower in followers:
            if follower in self._followers and not follower.put(message):
                self.dropped += 1
                self._leave(follower)

    def _leave(self, follower: Follower) -> None:
        self._followers.discard(follower)
        follower.scope.cancel()

    @contextmanager
    def follow(self, wanted: Topic, since: int, scope: anyio.CancelScope) -> Iterator[Follower]:
        """Register a client for all changes committed after ``since``."""
        follower = Follower(wanted, since, scope)
        self._followers.add(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)

    @contextmanager
    def reading(self, scope: anyio.CancelScope) -> Iterator[None]:
        """Register a client that follows a log. Its scope is cancelled when the daemon stops."""
        self._readers.add(scope)
        try:
            yield
        finally:
            self._readers.discard(scope)

    def close(self) -> None:
        """Disconnect all clients because the daemon stops."""
        self._is_closed = True
        for follower in list(self._followers):
            self._leave(follower)
        for scope in self._readers:
            scope.cancel()
