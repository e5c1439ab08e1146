"""A standby's view of the active node: its commits, and whether it responds.

If a poll of the active node finds a new commit, the standby reads the new journal rows in order and
feeds the live stream. If a commit has changed accounts, tokens or sessions, the standby reads these
again. The same applies to DAGs. The live stream also reports when the active node does not respond.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import anyio

from aioflow._threads import in_thread
from aioflow.api.access.accounts import Access
from aioflow.api.dags import Catalogue
from aioflow.api.live_stream import Commits, News, frame
from aioflow.api.queries import RunReader
from aioflow.clock import Clock
from aioflow.errors import NodeBehind, StoreError, UnknownDag
from aioflow.model.batch import JournalRow
from aioflow.model.nodes import ActiveCommit, ActiveState, NodeRole, ReadNodeStatus
from aioflow.store.journal import Moved, moved_by
from aioflow.telemetry.log import Logger

__all__ = ("BEHIND_SECONDS", "ActiveNodeNews", "JournalFollower")

BEHIND_SECONDS = 2.0
"""A standby that lags by more than this rejects changes, because it may accept a revoked token."""

_POLL_SECONDS = 0.25
_RECENT_US = 1_000_000
"""Age above which a poll of the active node says nothing about the latest commits."""

_STAND_BY = frozenset({NodeRole.JOINING, NodeRole.STANDBY})
_ROWS_AT_ONCE = 20
_ACCESS_TABLES = frozenset({"account", "api_token", "session"})
_DAG_TABLES = frozenset({"dag", "dag_file"})

_log = Logger(__name__)


class JournalFollower:
    """Follows the commits of other nodes.

    Args:
        reader: Reads the rows that a commit has changed.
        read_status: Returns the status of this node.

    Attributes:
        active_node: Tells clients of the live stream whether the active node responds.
        commit_no: Number of the last commit of any node.
        seq: The position of that commit in the sequence of all nodes' commits.
        position: The last commit of each node.
    """

    def __init__(
        self,
        reader: RunReader,
        clock: Clock,
        *,
        access: Access,
        catalogue: Catalogue,
        commits: Commits,
        read_status: ReadNodeStatus,
    ) -> None:
        self.active_node = ActiveNodeNews(read_status, commits, clock)
        self._read_status = read_status
        self._reader = reader
        self._clock = clock
        self._access = access
        self._catalogue = catalogue
        self._commits = commits
        self._turn = anyio.Lock()
        self._is_access_stale = True
        self._current_at: int | None = None
        self._followed: tuple[int, int] | None = None
        self.commit_no = 0
        self.seq = -1
        self.position: dict[int, int] = {}

    @property
    def lag_seconds(self) -> float:
        """The time since this node last knew of all commits."""
        if self._current_at is None:
            return float("inf")
        return (self._clock.monotonic_us() - self._current_at) / 1e6

    def check_current(self) -> None:
        """Raise unless this node knows of the latest commits.

        Raises:
            NodeBehind: If it does not.
        """
        if self.lag_seconds > BEHIND_SECONDS:
            raise NodeBehind(seconds=BEHIND_SECONDS)

    async def run(self) -> None:
        """Follow the commits until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.active_node.run)
            await self._follow_all()

    async def _follow_all(self) -> None:
        is_away = False
        while True:
            try:
                await self._follow_active(self._read_status().active_commit)
                is_away = False
            except StoreError as exc:
                if not is_away:
                    _log.warning("the journal cannot be read", error=str(exc))
                is_away = True
            await self._clock.sleep(_POLL_SECONDS)

    async def _follow_active(self, commit: ActiveCommit | None) -> None:
        """Read new commits, unless a recent poll found none since the last read."""
        if commit is None:
            await self.catch_up()
            return
        found = commit.epoch, commit.commit_no
        is_recent = self._clock.monotonic_us() - commit.asked_at < _RECENT_US
        if is_recent and found == self._followed:
            self._current_at = max(self._current_at or 0, commit.asked_at)
            return
        await self.catch_up()
        self._followed = found

    async def catch_up(self) -> None:
        """Read all commits up to now.

        Raises:
            StoreError: If the database does not answer.
        """
        async with self._turn:
            asked_at = self._clock.monotonic_us()
            if self.seq < 0:
                await self._begin()
            while True:
                rows = await self._reader.store.read_journal(self.seq, limit=_ROWS_AT_ONCE)
                if rows:
                    await self._follow(rows)
                if len(rows) < _ROWS_AT_ONCE:
                    break
            if self._is_access_stale:
                await self._access.reload()
                self._is_access_stale = False
            self._current_at = asked_at

    async def _begin(self) -> None:
        """Start at the end of the journal. Effects of earlier commits are read from the rows."""
        end = await self._reader.store.find_journal_end()
        self.seq, self.position = end.seq, dict(end.commits)
        self.commit_no = max(end.commits.values(), default=0)

    async def _follow(self, rows: Sequence[JournalRow]) -> None:
        found = await in_thread(_read, rows)
        for row, moved in zip(rows, found, strict=True):
            if moved is None or moved.tables & _ACCESS_TABLES:
                self._is_access_stale = True
            if moved is None or moved.tables & _DAG_TABLES:
                self._catalogue.forget()
            self.seq, self.commit_no = row.seq, row.commit_no
            self.position = {**self.position, row.node_no: row.commit_no}
            if self._commits.has_clients and moved is not None:
                await self._tell(row, moved)

    async def _tell(self, row: JournalRow, moved: Moved) -> None:
        """Add the changes of a commit to the live stream."""
        store = self._reader.store
        tasks = await store.find_tasks(moved.tasks)
        runs = await store.find_runs_by_no({*moved.runs, *(task.run_no for task in tasks)})
        specs = {}
        for run_no, run in runs.items():
            with suppress(UnknownDag):  # the version was just deleted, and the run with it
                specs[run_no] = await self._reader.spec(run.version, run.dag_id)
        news = self._commits.collected()
        _stamp(news, row, self.position)
        news.runs.update((run_no, runs[run_no]) for run_no in moved.runs if run_no in runs)
        for task in tasks:
            if task.run_no in specs:
                location = (task.task_index, task.map_index)
                state = moved.tasks[task.task_no]
                news.move(runs[task.run_no], specs[task.run_no], location, state)
        news.dags.update(dict.fromkeys(sorted(moved.dags)))
        news.triggers += moved.triggers


def _stamp(news: News, row: JournalRow, position: dict[int, int]) -> None:
    news.commit_no, news.order, news.at = row.commit_no, row.seq, row.at
    news.position = position


def _read(rows: Sequence[JournalRow]) -> list[Moved | None]:
    """Return the changes in each journal row; ``None`` for a damaged row."""
    found: list[Moved | None] = []
    for row in rows:
        try:
            found.append(moved_by(row.body))
        except ValueError:
            found.append(None)
    return found


class ActiveNodeNews:
    """Notifies all clients of the live stream whenever the state of the active node changes.

    Args:
        read_status: Returns the status of this node.
    """

    def __init__(self, read_status: ReadNodeStatus, commits: Commits, clock: Clock) -> None:
        self._read_status = read_status
        self._commits = commits
        self._clock = clock

    @property
    def state(self) -> ActiveState:
        """The state of the active node, as far as this standby knows.

        After this node has taken over, there is no active node until its own server responds.
        """
        status = self._read_status()
        return status.active if status.role in _STAND_BY else ActiveState.MISSING

    @property
    def is_alive(self) -> bool:
        """Whether another node is active and may respond to requests."""
        return self.state is ActiveState.ALIVE

    def message(self) -> bytes:
        """Return the current state as a message of the live stream."""
        return frame("active_node", {"state": str(self.state)})

    async def run(self) -> None:
        """Send each change until cancelled. A new client receives the state when it connects."""
        sent = self.state
        while True:
            await self._clock.sleep(_POLL_SECONDS)
            now = self.state
            if now is not sent:
                sent = now
                self._commits.send_all(self.message())
