"""A simulated PostgreSQL server: sessions, transactions, row locks, and the end of each."""

from __future__ import annotations

import asyncio
import contextvars
import random
import re
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import anyio
import asyncpg
import msgspec

from aioflow.errors import BatchRefused
from aioflow.store.changes import INSERT_JOURNAL, KINDS, POSTGRES, SQLITE, compiled, written
from aioflow.store.sqlite.store import _run as run_changes
from tests.sim.broken import Broken
from tests.sim.cluster.process import PROCESS, Span
from tests.sim.cluster.rows import TABLES, Changed, Key, ProtocolRows, Result, Row

__all__ = ("Answer", "Request", "Server", "Session")

_KINDS = {written(kind, POSTGRES).sql: kind for kind in KINDS}
_JOURNAL = compiled(INSERT_JOURNAL[POSTGRES], POSTGRES).sql
_JOURNAL_ROW = "INSERT INTO journal (seq, at, body, node_no, commit_no) VALUES (?, ?, ?, ?, ?)"
_MILLISECONDS = re.compile(r"'?(\d+)ms'?")

Answer = Result | BaseException


class Request(msgspec.Struct):
    """A statement, and the data that its writer commits with it.

    Attributes:
        batch: The batch that its transaction belongs to, if any.
    """

    sql: str
    values: Sequence[Any]
    reply: Callable[[Answer], None]
    batch: Any = None


class Watcher(Protocol):
    """An observer that is notified of each commit."""

    def changed(self, session: Session, before: Mapping[Key, Row], after: Changed) -> None:
        """Check the rows that a transaction has just changed."""

    def landed(self, session: Session, batch: Any) -> None:
        """Mirror a batch that has just been committed."""

    def found(self, broken: Broken) -> None:
        """Record a violation."""


class Session:
    """A session of the server, which executes one statement at a time.

    Attributes:
        writer: The life of the node that opened the session.
        name: Its ``application_name``.
        state: As in ``pg_stat_activity``.
    """

    def __init__(self, server: Server, pid: int, writer: Any, settings: Mapping[str, str]) -> None:
        self.pid, self.writer = pid, writer
        self.name = settings.get("application_name", "")
        self.state = "idle"
        self.is_open = True
        self.written: Changed = {}
        self.changes: list[Any] = []
        self.journal: list[Row] = []
        self.batch: Any = None
        self._server = server
        self._statement_seconds = _seconds(settings.get("statement_timeout"))
        self._idle_seconds = _seconds(settings.get("idle_in_transaction_session_timeout"))
        self._lock_seconds: float | None = None
        self._is_in_transaction = False
        self._next_name: str | None = None
        self._requests: deque[Request] = deque()
        self._news = anyio.Event()

    def receive(self, request: Request) -> None:
        """Accept a statement that has arrived."""
        self._requests.append(request)
        self._news.set()

    def end(self) -> None:
        """End the session and roll back its transaction."""
        if self.is_open:
            self.is_open = False
            self._roll_back()
            self._news.set()

    async def serve(self) -> None:
        """Execute statements until the session ends."""
        while self.is_open:
            request = await self._next()
            if request is None:
                self.end()
                return
            self.state = "active"
            answer = await self._answer(request)
            self.state = "idle in transaction" if self._is_in_transaction else "idle"
            if self.is_open:
                request.reply(answer)

    async def _next(self) -> Request | None:
        limit = self._idle_seconds if self._is_in_transaction else None
        with anyio.move_on_after(limit):
            while self.is_open and not self._requests:
                self._news = anyio.Event()
                await self._news.wait()
        return self._requests.popleft() if self.is_open and self._requests else None

    async def _answer(self, request: Request) -> Answer:
        try:
            await self._server.wait_while_stalled()
            return await self._execute(request)
        except asyncpg.PostgresError as exc:
            if self._is_in_transaction:
                self._roll_back()
                self._is_in_transaction = True  # aborted, until the client rolls back
            return exc
        except sqlite3.IntegrityError as exc:
            return asyncpg.UniqueViolationError(str(exc))

    async def _execute(self, request: Request) -> Answer:
        sql = request.sql
        if sql == "BEGIN":
            self._is_in_transaction = True
            return _done()
        if sql in {"COMMIT", "ROLLBACK"}:
            if sql == "COMMIT":
                self._server.commit(self)
            self._roll_back()
            return _done()
        if sql.startswith("SET LOCAL lock_timeout"):
            self._lock_seconds = _seconds(sql)
            return _done()
        if sql.startswith("SET LOCAL"):
            return _done()
        if sql.startswith("SELECT set_config('application_name'"):
            self._next_name = request.values[0]
            return _done()
        if sql == _JOURNAL:
            seq = self._server.next_seq()
            self.journal.append((seq, *request.values))
            self.batch = request.batch
            return Result([(seq,)], 1, {})
        kind = _KINDS.get(sql)
        if kind is not None:
            rows = list(zip(*request.values, strict=True))
            if kind.table.name not in TABLES:
                self.changes.append((kind, rows))
                return Result([], len(rows), {})
            for row in rows:
                await self._change(written(kind, SQLITE).sql, row)
            return Result([], len(rows), {})
        return await self._change(sql, request.values)

    async def _change(self, sql: str, values: Sequence[Any]) -> Result:
        """Execute a statement, after waiting for transactions that changed the same rows."""
        server = self._server
        limit = self._statement_seconds if self._lock_seconds is None else self._lock_seconds
        try:
            with anyio.fail_after(limit):
                while True:
                    result = server.evaluate(self, sql, values)
                    if not server.is_locked(result.changed, self):
                        break
                    await server.wait_for_end_of_a_transaction()
                    if not self.is_open:
                        raise asyncpg.AdminShutdownError("terminated")
        except TimeoutError:
            if self._lock_seconds is None:
                raise asyncpg.QueryCanceledError("statement timeout") from None
            raise asyncpg.LockNotAvailableError("lock timeout") from None
        self.written.update(result.changed)
        if not self._is_in_transaction:
            server.commit(self)
            self._roll_back()
        return result

    def committed(self) -> None:
        """Adopt the name that the transaction has set."""
        if self._next_name is not None:
            self.name = self._next_name

    def _roll_back(self) -> None:
        self.written, self.changes, self.journal = {}, [], []
        self.batch = self._next_name = self._lock_seconds = None
        self._is_in_transaction = False
        self._server.release(self)


class Server:
    """The server, whose rows are mirrored into a file that engines read.

    Attributes:
        outages: The periods, in seconds, during which it executed nothing.
    """

    def __init__(self, raw: Any, rng: random.Random, watcher: Watcher) -> None:
        self._raw = raw
        self._rng = rng
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        assert self._context.get(PROCESS) is None
        self._sessions: dict[int, Session] = {}
        self._tasks: list[Any] = []
        self._locks: dict[Key, Session] = {}
        self._ended = anyio.Event()
        self._running = anyio.Event()
        self._running.set()
        self._seq = 0
        self._pid = 0
        self._down_since: float | None = None
        self.outages: list[Span] = []
        names = ", ".join(f"'{name}'" for name in TABLES)
        wanted = f"SELECT sql FROM sqlite_master WHERE tbl_name IN ({names}) AND sql IS NOT NULL"
        schema = [sql for (sql,) in raw.execute(f"{wanted} ORDER BY type DESC").fetchall()]
        self.rows = ProtocolRows(schema, self._terminate)
        self.is_away = False

    # ── sessions ────────────────────────────────────────────────────────────────────────

    def open_session(self, writer: Any, settings: Mapping[str, str]) -> Session:
        """Open a session."""
        self._pid += 1
        session = self._sessions[self._pid] = Session(self, self._pid, writer, settings)
        self._tasks.append(self._loop.create_task(session.serve(), context=self._context))
        return session

    def sessions(self) -> list[Session]:
        """Return the open sessions."""
        self._sessions = {pid: one for pid, one in self._sessions.items() if one.is_open}
        return list(self._sessions.values())

    def _terminate(self, pid: int) -> bool:
        self._loop.call_soon(self._sessions[pid].end, context=self._context)
        return True

    # ── outages ─────────────────────────────────────────────────────────────────────────

    def _mark_down(self) -> None:
        if self._down_since is None:
            self._down_since = self._loop.time()

    def _mark_up(self) -> None:
        if self._down_since is not None and not self.is_away and self._running.is_set():
            self.outages.append((self._down_since, self._loop.time()))
            self._down_since = None

    def stall(self) -> None:
        """Execute nothing until ``resume``."""
        self._mark_down()
        if self._running.is_set():
            self._running = anyio.Event()

    def resume(self) -> None:
        """Execute the statements that have arrived."""
        self._running.set()
        self._mark_up()

    async def wait_while_stalled(self) -> None:
        """Return once the server executes statements."""
        while not self._running.is_set():
            await self._running.wait()

    def crash(self) -> None:
        """End all sessions, and accept none until ``come_back``."""
        self._mark_down()
        self.is_away = True
        for session in self.sessions():
            session.end()

    def come_back(self) -> None:
        """Accept sessions again."""
        self.is_away = False
        self._mark_up()

    def close(self) -> None:
        """End everything."""
        self.resume()
        self.crash()

    # ── transactions ────────────────────────────────────────────────────────────────────

    def evaluate(self, session: Session, sql: str, values: Sequence[Any]) -> Result:
        """Return what a statement of a session would do now."""
        sessions = [(one.pid, "db", one.name, one.state) for one in self.sessions()]
        return self.rows.evaluate(sql, values, session.written, sessions)

    def is_locked(self, changed: Changed, session: Session) -> bool:
        """Try to lock rows for a transaction. Return whether another one has locked any of them."""
        if any(self._locks.get(key, session) is not session for key in changed):
            return True
        self._locks.update(dict.fromkeys(changed, session))
        return False

    async def wait_for_end_of_a_transaction(self) -> None:
        """Wait until any transaction has ended."""
        await self._ended.wait()

    def release(self, session: Session) -> None:
        """Unlock the rows of a transaction that has ended."""
        held = [key for key, one in self._locks.items() if one is session]
        for key in held:
            del self._locks[key]
        self._ended.set()
        self._ended = anyio.Event()

    def next_seq(self) -> int:
        """Return the next number of the journal's sequence. Rollbacks do not give numbers back."""
        self._seq += 1
        return self._seq

    def commit(self, session: Session) -> None:
        """Make the changes of a session durable, and notify the watcher."""
        if not session.written and not session.journal:
            return
        before = self.rows.all()
        try:
            self._raw.execute("BEGIN IMMEDIATE")
            try:
                self.rows.mirror(self._raw, session.written)
                run_changes(self._raw, session.changes)
                self._raw.executemany(_JOURNAL_ROW, session.journal)
            except BaseException:
                self._raw.execute("ROLLBACK")
                raise
            self._raw.execute("COMMIT")
        except (BatchRefused, sqlite3.IntegrityError) as exc:
            self._watcher.found(Broken("I20 one writer", f"{session.name}: {exc}"))
            return
        self.rows.commit(session.written)
        session.committed()
        try:
            if session.batch is not None:
                self._watcher.landed(session, session.batch)
            if session.written:
                self._watcher.changed(session, before, session.written)
        except Broken as exc:
            self._watcher.found(exc)
        except AssertionError as exc:
            self._watcher.found(Broken("I20 one writer", str(exc)))


def _seconds(text: str | None) -> float | None:
    found = None if text is None else _MILLISECONDS.search(text)
    return None if found is None else int(found[1]) / 1000 or None


def _done() -> Result:
    return Result([], 0, {})
