"""The complete API: queries, and the operations that need a running daemon."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Self, cast

import anyio
import msgspec

from aioflow.api.access.accounts import Access
from aioflow.api.access.authentication import Passwords
from aioflow.api.access.login_throttle import LinkThrottle
from aioflow.api.backfills import Backfills
from aioflow.api.connections import Connections, ConnectionTester
from aioflow.api.dags import Catalogue, FirstScan, Timetables
from aioflow.api.decisions import Decisions
from aioflow.api.events import NamedEvents
from aioflow.api.executors import ExecutorView, executor_views
from aioflow.api.journal_follower import BEHIND_SECONDS, JournalFollower
from aioflow.api.metrics import (
    Metrics,
    NodeMetrics,
    Sizes,
    Sizing,
    health,
    measured,
    standby_health,
)
from aioflow.api.node_queries import NodeQueries, OwnAnswer, OwnQuery
from aioflow.api.notes import Notes
from aioflow.api.operate import REQUEST_SECONDS
from aioflow.api.page.history import History
from aioflow.api.page.queries import Reads
from aioflow.api.page.schemas import PoolView
from aioflow.api.paging import Page, encode_cursor, number_after
from aioflow.api.queries import PAGE
from aioflow.api.schemas import (
    CleanedView,
    DagDetailView,
    EmittedView,
    EventView,
    HealthView,
    SlowView,
    Triggered,
    TriggerView,
    instant,
    slow_view,
)
from aioflow.api.task_instances import CopyResult
from aioflow.api.triggers import list_dag_triggers, page_of_dag_triggers
from aioflow.api.validation import (
    check_params,
    checked_idempotency_key,
    checked_run_id,
    packed_conf,
)
from aioflow.api.values import KeyRotation, NamedValues, RotationView
from aioflow.api.waits.causes import Explaining
from aioflow.clock import Clock, SystemClock
from aioflow.core.state.accounts import Accounts
from aioflow.core.transaction import Transaction
from aioflow.crypto import Vault
from aioflow.engine.loop import Engine
from aioflow.engine.metrics import Measures
from aioflow.errors import (
    AioflowError,
    DaemonAway,
    RequestError,
    RunExists,
    StoreUnavailable,
    UnknownDag,
    UnknownTrigger,
)
from aioflow.executors.host_inspection import HostLoad
from aioflow.model.access import Actor, AuditEntry, SessionRow, audit_entry
from aioflow.model.batch import Batch
from aioflow.model.dag import DagSpec
from aioflow.model.ids import RunNo, TriggerNo
from aioflow.model.nodes import NodeRole, ReadNodeStatus, is_alone
from aioflow.model.rows import DagRow, RunRow
from aioflow.model.states import NodeState
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import (
    DescribeSensors,
    DescribeTriggers,
    describe_no_sensors,
    describe_no_triggers,
)
from aioflow.model.workers import WorkerPages
from aioflow.protocol.requests import (
    CountTasks,
    CreateRun,
    Note,
    NoteUse,
    OpenSession,
    Request,
    SetPaused,
)
from aioflow.store import Store
from aioflow.telemetry.task_log import TaskLog

__all__ = ("Api",)


class Api(Explaining):
    """The operations of the web server and the command line.

    Every method raises ``StoreUnavailable`` if the database does not answer. Methods that change
    something raise ``DaemonAway`` without a daemon. Methods that send a request to the daemon raise
    ``DaemonStopping`` once it no longer processes requests.

    Args:
        engine: ``None`` without a daemon.
        store: Committed rows.
        tasklog: The logs of tries.
        clock: Source of the current time.
        started_at: When this daemon started.
        home: The home folder, which contains large results and the key; errors name it.
        vault: Encrypts values; ``None`` if the key cannot be rotated.
        clean: Deletes a part of the expired data, or reports what it would delete.
        hosts: Returns the load of the shared hosts.
        watched: Describes triggers: which of them share a watch, and when they check.
        watched_sensors: Describes the hosted sensors: when they check.
        worker_pages: Returns the URLs of pages about remote workers that are up.
        spans: Returns the number of trace spans that were made, and the number that were dropped.
        timetables: Access to custom timetables; ``None`` if no host is available.
        passwords: Hashes passwords; ``None`` for the default, which is deliberately slow.
        dags_read: Returns whether the DAG folders have been read once.
        dags_known: Whether the database already has all DAGs before the folders have been read, as
            after a takeover.
        copy_result: Copies results that are stored outside of the home; ``None`` if all are in the
            home.
        connection_tests: Tests connections; ``None`` without a daemon.
        node_queries: Queries to and from other nodes. If they are given without an engine, this is
            the API of a standby.
        node_status: Returns the role of this node, and the state of the active one.

    Attributes:
        actor: The actor of changes, for the audit; ``None`` for the daemon itself.
        access: Users, tokens and sessions.
        backfills: Runs for the fire times of a range.
        decisions: Decisions that tasks wait for.
        notes: Notes of people on runs and tasks.
        values: Secrets, connections and variables.
        connections: Types and tests of connections.
        reads: Queries of the web page.
        history: Ends and durations of runs and tasks by hour.
        node_queries: Queries to and from other nodes; ``None`` if there are none.
        follower: Follows the commits of the active node; ``None`` unless this node is a standby.
    """

    def __init__(
        self,
        engine: Engine | None,
        store: Store,
        tasklog: TaskLog,
        *,
        clock: Clock,
        started_at: Timestamp = 0,
        home: Path | None = None,
        cycle: Callable[[RunNo, int, int], str] | None = None,
        vault: Vault | None = None,
        clean: Callable[[bool], Awaitable[CleanedView]] | None = None,
        hosts: Callable[[], Sequence[HostLoad]] = tuple,
        watched: DescribeTriggers = describe_no_triggers,
        watched_sensors: DescribeSensors = describe_no_sensors,
        worker_pages: WorkerPages = dict,
        spans: Callable[[], tuple[int, int]] = lambda: (0, 0),
        timetables: Timetables | None = None,
        passwords: Passwords | None = None,
        dags_read: Callable[[], bool] = lambda: True,
        dags_known: bool = False,
        copy_result: CopyResult | None = None,
        connection_tests: ConnectionTester | None = None,
        node_queries: NodeQueries | None = None,
        node_status: ReadNodeStatus = is_alone,
    ) -> None:
        super().__init__(store, tasklog, None if home is None else home / "results", copy_result)
        self.clock = clock
        self.started_at = started_at
        self._engine = engine
        self._home = home
        self._cycle = cycle
        self._clean = clean
        self._hosts = hosts
        self._spans = spans
        self._node_status = node_status
        self.timetables = timetables
        self.watched, self.watched_sensors = watched, watched_sensors
        self.worker_pages = worker_pages
        self._sizing = Sizing(store, clock)
        self._began_us = clock.monotonic_us()
        self._first_read = FirstScan(clock, dags_read)
        self._dags_known = dags_known
        self._rotation = None
        self._vault = vault
        self._link_throttle = LinkThrottle()
        self._connection_tests = connection_tests
        if vault is not None and home is not None:
            self._rotation = KeyRotation(vault, home / "key")
        self.node_queries, self.follower = node_queries, None
        if engine is not None or node_queries is not None:
            self.catalogue = Catalogue(store, follows=True)
        self.reads = Reads(self, clock, engine, self._send, hosts=hosts, watched=watched)
        self.reads.node_status = node_status
        self.history = History(self, clock)
        self.access = Access(store, clock, self._send_as, passwords)
        if engine is None and node_queries is not None:
            self.follower = self.reads.follower = self._new_follower()
        self.act_as(None)

    def _new_follower(self) -> JournalFollower:
        access, catalogue, commits = self.access, self.catalogue, self.reads.commits
        return JournalFollower(
            self,
            self.clock,
            access=access,
            catalogue=catalogue,
            commits=commits,
            read_status=self._node_status,
        )

    def act_as(self, actor: Actor | None) -> None:
        """Set the actor on whose behalf requests are sent from now on."""
        self.actor = actor
        self.backfills = Backfills(self, self.clock, self._send)
        self._events = NamedEvents(self.store, self._send)
        self.decisions = Decisions(
            self,
            self.clock,
            lambda request, by: self._send_as(request, by, REQUEST_SECONDS),
            actor=actor,
            accounts=self._accounts,
            shift=self._shift,
            vault=self._vault,
            throttle=self._link_throttle,
        )
        self.notes = Notes(self, self._send)
        self.values = NamedValues(self.store, self._send)
        self.connections = Connections(self.store, self._connection_tests, actor, self.note)

    def _accounts(self) -> Accounts:
        return Accounts() if self._engine is None else self._engine.memory.accounts

    def _shift(self) -> int:
        return 0 if self._engine is None else self._engine.memory.shift

    def by(self, actor: Actor | None) -> Self:
        """Return a copy that makes changes as this actor and shares everything else."""
        acting = copy(self)
        acting.act_as(actor)
        return acting

    async def note(self, entry: AuditEntry) -> None:
        """Add an entry to the audit for an action that consists of many requests."""
        await self._send(Note(lines=(entry,)))

    async def rotate(self) -> RotationView:
        """Rotate the key of the home; see ``KeyRotation``.

        Raises:
            RequestError: If the standbys have their own copies of the key file.
        """
        if self._rotation is None:
            raise DaemonAway(str(self._home or ""))
        nodes = await self.store.list_nodes()
        standbys = [row.name or str(row.node_no) for row in nodes if row.state is NodeState.STANDBY]
        if standbys:
            raise RequestError(
                f"{', '.join(sorted(standbys))} could not decrypt anything after a rotation; "
                "stop the standbys, rotate the key, and copy it to their homes"
            )
        return await self._rotation.rotate(self._send)

    async def clean(self, *, dry_run: bool) -> CleanedView:
        """Delete a part of the expired data. ``more`` in the result tells whether any is left.

        Args:
            dry_run: Only report what would be deleted.
        """
        if self._clean is None:
            raise DaemonAway(str(self._home or ""))
        if self.actor is not None and not dry_run:
            await self._send(Note(lines=(audit_entry(self.actor, "db.clean", ""),)))
        return await self._clean(dry_run)

    @classmethod
    def offline(cls, store: Store, tasklog: TaskLog, *, home: Path | None = None) -> Api:
        """Return an API that reads a database without a daemon."""
        return cls(None, store, tasklog, clock=SystemClock(), home=home)

    async def spec(self, version: str, dag_id: str) -> DagSpec:
        """Return a DAG in a given version; from memory if the version is in use."""
        if self._engine is not None:
            plan = self._engine.memory.dag_versions.get((version, dag_id))
            if plan is not None:
                return plan.graph.spec
        return await super().spec(version, dag_id)

    async def _send(self, request: Request, seconds: float = REQUEST_SECONDS) -> object:
        return await self._send_as(request, self.actor, seconds)

    async def _send_as(self, request: Request, actor: Actor | None, seconds: float) -> object:
        try:
            return await self._send_once(request, actor, seconds)
        except UnknownDag as exc:
            if self._first_read.is_over:
                raise
            await self._wait_for_dag(exc.dag_id)
            return await self._send_once(request, actor, seconds)

    async def _wait_for_dag(self, dag_id: str) -> None:
        """Wait until a DAG is known, or until the DAG files have been read once.

        If all files have been read and none defines the DAG, return normally: the caller will not
        find it.

        Raises:
            UnknownDag: If the time limit has passed before either happened.
        """
        dags = self._running.memory.dags
        await self._first_read.wait_for(lambda: dag_id in dags)
        if dag_id not in dags and not self._first_read.is_read:
            raise UnknownDag(dag_id, is_reading=True)

    async def dag_row(self, dag_id: str) -> DagRow:
        """Return a DAG that a file defines. Wait for it if the daemon has just been started."""
        try:
            return await super().dag_row(dag_id)
        except UnknownDag:
            if self._engine is None or self._first_read.is_over:
                raise
            await self._wait_for_dag(dag_id)
            await self._send(CountTasks(run_ids=()))  # after the response, the DAG is stored
            return await super().dag_row(dag_id)

    async def _send_once(self, request: Request, actor: Actor | None, seconds: float) -> object:
        if self.follower is not None and isinstance(request, Note | NoteUse | OpenSession):
            return await self._send_to_active(request, actor)
        engine = self._running
        try:
            with anyio.fail_after(seconds):
                return await engine.ask(request, actor, fails_at_end=True)
        except TimeoutError as exc:
            is_away = engine.store_away_since is not None
            reason = f" ({engine.store_error})" if is_away else ""
            raise StoreUnavailable(
                f"nothing was committed within {seconds} s{reason}; it may still be: retry "
                "with the same key or run id"
            ) from exc

    async def _send_to_active(
        self, request: Note | NoteUse | OpenSession, actor: Actor | None
    ) -> SessionRow | None:
        """Have the active node make a change on behalf of this standby.

        Raises:
            NoActiveNode: If no active node has answered.
            RequestError: If the request was refused.
        """
        if self.node_queries is None or self.follower is None:
            raise DaemonAway(str(self._home or ""))
        query = OwnQuery(request=request, actor=actor)
        answer = await self.node_queries.ask(query, is_repeatable=False)
        if not isinstance(answer, OwnAnswer) or answer.refusal:
            raise RequestError(answer.refusal if isinstance(answer, OwnAnswer) else "no answer")
        await self.follower.catch_up()
        return answer.session

    async def answer_standby(self, query: OwnQuery) -> OwnAnswer:
        """Make a change on behalf of a standby."""
        try:
            answer = await self._send_as(query.request, query.actor, REQUEST_SECONDS)
        except AioflowError as exc:
            return OwnAnswer(refusal=str(exc))
        return OwnAnswer(session=answer if isinstance(answer, SessionRow) else None)

    # ── changes ─────────────────────────────────────────────────────────────────────────

    async def trigger(
        self,
        dag_id: str,
        *,
        conf: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        logical_date: str | None = None,
        key: str | None = None,
    ) -> Triggered:
        """Start a run. If an earlier request had the same key, or id and conf, return its run.

        Raises:
            UnknownDag: If there is no such DAG.
            BadConf: If the conf does not fit the DAG's parameters.
            RunExists: If another request created a run with that id.
        """
        request = CreateRun(
            dag_id=dag_id,
            run_id=checked_run_id(run_id),
            conf=packed_conf(conf),
            logical_date=None if logical_date is None else instant(logical_date, "logical_date"),
            key=checked_idempotency_key(key),
        )
        try:
            await check_params(self._running.memory, dag_id, conf)
            answer = await self._send(request)
        except AioflowError:
            # A repeated request succeeds even if its DAG was deleted or has other parameters by
            # now.
            same = await self._same_run(request)
            if same is None:
                raise
            return _triggered(same, created=False)
        made, created = cast("tuple[str, bool]", answer)
        return _triggered(await self.run(made), created=created)

    async def _same_run(self, request: CreateRun) -> RunRow | None:
        """Return the run that an earlier identical request has created, even if it has ended."""
        if request.key is not None:
            keyed = await self.store.find_run_by_key(request.dag_id, request.key)
            if keyed is not None:
                return keyed
        if request.run_id is None:
            return None
        run = await self.store.find_run(request.run_id)
        if run is not None and (run.dag_id, run.conf) != (request.dag_id, request.conf):
            raise RunExists(request.run_id)
        return run

    async def set_paused(self, dag_id: str, *, paused: bool) -> dict[str, Any]:
        """Pause or resume the schedule of a DAG."""
        is_paused = await self._send(SetPaused(dag_id=dag_id, paused=paused))
        return {"dag_id": dag_id, "paused": is_paused}

    def list_executors(self) -> list[ExecutorView]:
        """Return the executors of this node, and their workers.

        Raises:
            DaemonAway: If there is no daemon.
        """
        return executor_views(self.reads.slots, self.worker_pages())

    async def list_pools(self) -> list[PoolView]:
        """Return the limited pools by name, with the used slots and queued tasks of each.

        Without a daemon, both numbers are ``None``, because they are counted only in memory.
        """
        return await self.reads.pools()

    async def emit(
        self, name: str, *, key: str | None = None, data: Any = None, request: str | None = None
    ) -> EmittedView:
        """Store a named event; see ``NamedEvents``. ``request`` is its idempotency key."""
        return await self._events.emit(
            name, key=key, data=data, request=checked_idempotency_key(request)
        )

    async def list_events(
        self, *, name: str | None = None, limit: int = 100, before: int | None = None
    ) -> list[EventView]:
        """Return named events with ids below ``before``, by default all, the newest first."""
        return await self._events.list(name=name, limit=limit, before=before)

    # ── triggers ────────────────────────────────────────────────────────────────────────

    async def list_triggers(self, *, limit: int = PAGE, after: TriggerNo = -1) -> list[TriggerView]:
        """Return waiting triggers with numbers above ``after``, in the order of their numbers."""
        found, _ = await self._triggers_after(after, limit)
        return found

    async def page_of_triggers(self, *, limit: int, cursor: str | None) -> Page[TriggerView]:
        """Return a page of waiting triggers, in the order of their numbers."""
        last = number_after("triggers", cursor)
        found, last = await self._triggers_after(-1 if last is None else last, limit)
        return Page(found, None if last is None else encode_cursor("triggers", (last,)))

    async def _triggers_after(
        self, after: TriggerNo, limit: int
    ) -> tuple[list[TriggerView], TriggerNo | None]:
        """Return waiting triggers, and the last number that was read or ``None`` at the end.

        There may be fewer than ``limit`` before the end, if a run is deleted meanwhile.
        """
        rows = await self.store.list_triggers(limit=limit, after=after)
        memory = None if self._engine is None else self._running.memory
        waiting = await self.reads.trigger_reader.views(rows)
        # A full page ends with its last row, so later triggers belong to the next page.
        upto = rows[-1].trigger_no if len(rows) == limit else sys.maxsize
        dag_triggers = await page_of_dag_triggers(self, memory, after=after, upto=upto, limit=limit)
        found = sorted((*waiting, *dag_triggers), key=lambda view: view.trigger_id)[:limit]
        if len(found) == limit:
            return found, found[-1].trigger_id
        return found, upto if len(rows) == limit else None

    async def show_dag(self, dag_id: str) -> DagDetailView:
        """Return one DAG in its newest version, with the state of its DAG trigger."""
        shown = await super().show_dag(dag_id)
        memory = None if self._engine is None else self._running.memory
        rows = await self.store.find_dag_triggers([dag_id])
        own = await list_dag_triggers(self, memory, list(rows.values()))
        return msgspec.structs.replace(shown, trigger=own[0] if own else None)

    async def show_trigger(self, trigger_no: TriggerNo) -> TriggerView:
        """Return one waiting trigger.

        Raises:
            UnknownTrigger: If there is no such trigger; it may have fired.
        """
        memory = None if self._engine is None else self._running.memory
        rows = await self.store.list_dag_triggers(after=trigger_no - 1, upto=trigger_no)
        for view in await list_dag_triggers(self, memory, rows):
            return view
        waits = await self.store.list_triggers(limit=1, after=trigger_no - 1)
        if waits and waits[0].trigger_no == trigger_no:
            for view in await self.reads.trigger_reader.views(waits):
                payload = self.public_fields.payload(waits[0].class_path, waits[0].kwargs)
                return msgspec.structs.replace(view, payload=payload)
        raise UnknownTrigger(trigger_no)

    async def list_slow(self) -> list[SlowView]:
        """Return the code that has blocked an event loop, the longest total time first.

        Raises:
            DaemonAway: If there is no daemon, because this is known only in its memory.
        """
        return [
            slow_view(known) for known in self._running.memory.loop_blockers.all() if known.count
        ]

    # ── monitoring ──────────────────────────────────────────────────────────────────────

    def committed(self, batch: Batch, draft: Transaction) -> None:
        """Apply a durable batch. Called after each commit of the engine."""
        self.access.auth_cache.committed(batch)
        self.reads.committed(batch, draft)

    async def health(self) -> HealthView:
        """Return whether the daemon works; see ``api.metrics``."""
        if self.follower is not None:
            return await self._standby_health(self.follower)
        engine, is_read = self._running, self._dags_known or self._first_read.is_over
        return await health(engine, self.store, self._home, self.clock, is_read=is_read)

    async def _standby_health(self, follower: JournalFollower) -> HealthView:
        """Return whether this standby can forward requests, and knows of the latest commits."""
        return standby_health(
            has_joined=self._node_status().role is NodeRole.STANDBY,
            is_active_alive=follower.active_node.is_alive,
            is_current=follower.lag_seconds <= BEHIND_SECONDS,
        )

    def node_metrics(self) -> NodeMetrics:
        """Return the current metrics that a node has in every role."""
        uptime_us = self.clock.monotonic_us() - self._began_us
        return NodeMetrics(
            status=self._node_status(),
            follower_lag_seconds=0.0 if self.follower is None else self.follower.lag_seconds,
            hosts=list(self._hosts()),
            uptime_seconds=uptime_us / 1e6,
        )

    async def metrics(self) -> Metrics | None:
        """Return the current metrics of the active node; ``None`` at a standby.

        Raises:
            DaemonAway: If there is no daemon.
        """
        if self.follower is not None:
            return None
        engine, stats = self._running, await self.reads.collect()
        return measured(
            engine,
            self._hosts(),
            stats,
            self.reads.fires.counts,
            logs_bytes=self._tasklog.written_bytes,
            spans=self._spans(),
        )

    @property
    def measures(self) -> Measures:
        """The engine's own measurements."""
        return self._running.measures

    async def sizes(self) -> Sizes:
        """Return the size of the stored data, slightly delayed."""
        return await self._sizing.sizes()


def _triggered(run: RunRow, *, created: bool) -> Triggered:
    return Triggered(run_id=run.run_id, dag_id=run.dag_id, state=run.state.label, created=created)
