"""A node: opens its resources, wires its parts in one task group, and drains it on a signal."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from aioflow._threads import in_thread
from aioflow.catalog import Catalog, Limits, ParsePace
from aioflow.catalog.folder_scan import list_loaded
from aioflow.catalog.snapshot import Snapshots
from aioflow.clock import SystemClock
from aioflow.core.state.child_roles import SLOT, shared_role
from aioflow.core.why import still_waits
from aioflow.crypto import Vault
from aioflow.daemon.parts import (
    examine_store,
    make_deliveries,
    make_engine,
    send_heartbeats,
    watch_store,
)
from aioflow.daemon.standby import NodeCounts, Rejoins, Standby, StatusReader, timing_of
from aioflow.daemon.startup import (
    ApiServing,
    Queries,
    StandbyServing,
    import_api_server,
    import_node_queries,
    import_standby_server,
    open_database,
)
from aioflow.daemon.stop_signals import StopSignals
from aioflow.errors import Fenced, HomeBusy, StoreUnavailable
from aioflow.executors.backend import ExecutorLease
from aioflow.executors.effect_handlers import effect_handlers
from aioflow.executors.executor_context import ExecutorContext, stores_nothing
from aioflow.executors.host_pool import HostPool
from aioflow.executors.registry import check_executors, open_backends
from aioflow.executors.remote_executor import RemoteExecutors
from aioflow.executors.worker_pool import WorkerPool
from aioflow.maintenance.code_restore import CodeMissing, keep_restoring, restore_needed
from aioflow.maintenance.result_orphans import OrphanedResults
from aioflow.maintenance.retention import Deleting
from aioflow.model.decisions import DecisionRow
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import NodeFacts, ResultRow
from aioflow.model.states import Failure
from aioflow.notifications import AlertSettings
from aioflow.processes import Children
from aioflow.processes.interpreters import Interpreters, PythonPaths
from aioflow.protocol.effects import DeliverOutbox, RestoreCode
from aioflow.protocol.inputs import AlertRaised, ContinueRun, Drain, HostLost, HostUp
from aioflow.protocol.outbox import Asked
from aioflow.queries import QueryHandler
from aioflow.redaction import Masks
from aioflow.settings import Settings
from aioflow.settings.home import check_writers, disable_core_dumps, make_home
from aioflow.storage.results import FileResults
from aioflow.storage.stored import StoredLogs, StoredResults
from aioflow.store import Store
from aioflow.store.sqlite.lock import FileLock
from aioflow.store.takeover import prepare_claim, retried
from aioflow.telemetry.log import Logger
from aioflow.telemetry.task_log import TaskLog
from aioflow.telemetry.tracing import Traces

__all__ = (
    "Ready",
    "serve",
)

_log = Logger(__name__)


_FIRST_SWEEP_SECONDS = 2.0
"""Maximum seconds by which parsing may delay readiness, because a file may hang."""

_WEB_WAITS_SECONDS = 2.0
"""Maximum seconds by which the work of a restart may delay the web server."""

_LOOK_SECONDS = 1.0
"""Interval at which a drained node checks for a standby."""

_DRAINING = Path("run", "draining")
"""File in the home that exists while its daemon drains, so that a second daemon can report that."""

_RELEASE_SECONDS = 10.0
"""Maximum seconds for triggers to release their resources before a drained node ends."""

_FINAL_REPORTS_SECONDS = 2.0
"""Maximum seconds for a drained node to commit that it interrupted tries.

Any other try still has the state ``running`` in its row, and the next start handles it.
"""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the start banner.

    Attributes:
        url: URL of the page, including the token.
        token_file: The file that contains the token.
        store: The database's URL, without its password.
        stopped: Set when the node is to stop.
    """

    url: str
    token_file: Path
    home: Path
    store: str
    dags: tuple[Path, ...]
    pid: int
    stopped: anyio.Event


async def serve(
    settings: Settings, ready: Callable[[Ready], None], *, take_over: bool = False
) -> int:
    """Run a node until it is stopped. Return its exit status.

    SIGTERM, SIGINT and SIGHUP drain the node: nothing more is started, and running tries may end
    within ``settings.grace_seconds``. The other tries are interrupted, which does not count against
    their retries. A second signal ends the node at once, which is as safe as ``kill -9``. While the
    database is being opened, the first signal already ends the node.

    Args:
        settings: Settings of the node.
        ready: Called once, when the node answers requests and its hosts are up.
        take_over: Whether to claim the database even if another daemon serves it, or no key of this
            home decrypts its values.

    Raises:
        HomeBusy: If another daemon serves this home (even with another database) or this database.
            Neither is changed.
        SettingsError: If other users could make the node run their code, or no key of this home
            decrypts the database's values.
        AioflowError: If the node cannot start, or its database failed permanently. Often it is
            inside an exception group, because the error ended a service.
    """
    with StopSignals.received() as signals:
        check_writers(settings, list_loaded(settings.dags))
        make_home(settings.home)
        disable_core_dumps()
        with _alone(settings.home):
            vault = await anyio.to_thread.run_sync(Vault.open, settings.key_file)
            async with _tracing(settings) as traces:
                serving = _Serving(settings, vault, traces, ready, signals)
                rejoins = Rejoins(SystemClock())
                while not signals.stopped.is_set():
                    try:
                        await serving.run(take_over=take_over)
                    except* Fenced as fenced:
                        serving.counts.fenced += 1
                        if not settings.ha_enabled or not rejoins.may_rejoin():
                            raise
                        take_over = False
                        _log.error(
                            "fenced, joins again as a standby", error=str(fenced.exceptions[0])
                        )
    return 0


class _Serving:
    """Serves with one node after another. Each node that is fenced is followed by a new one.

    Attributes:
        counts: The nodes' takeovers and fences.
    """

    def __init__(
        self,
        settings: Settings,
        vault: Vault,
        traces: Traces | None,
        ready: Callable[[Ready], None],
        signals: StopSignals,
    ) -> None:
        self._settings = settings
        self._vault = vault
        self._traces = traces
        self._ready = ready
        self._signals = signals
        self.counts = NodeCounts()
        self._is_known_ready = False

    async def run(self, *, take_over: bool) -> None:
        """Run a node until the daemon is stopped.

        Raises:
            Fenced: If another node took over. The node's children are dead, and its memory is
                dropped.
        """
        settings, signals = self._settings, self._signals
        async with AsyncExitStack() as stack:
            with signals.starting():
                store = await open_database(stack, settings, self._vault, SystemClock())
                about = await prepare_claim(settings, store, take_over=take_over)
            if not signals.stopped.is_set():
                node = _Node(settings, store, self._vault, self._traces, about, signals.stopped)
                node.counts = self.counts
                await _serve(node, self._tell, signals)
                with suppress(StoreUnavailable):
                    await store.leave()

    def _tell(self, ready: Ready) -> None:
        if not self._is_known_ready:
            self._is_known_ready = True
            self._ready(ready)


@asynccontextmanager
async def _tracing(settings: Settings) -> AsyncIterator[Traces | None]:
    """Start the export of traces, if enabled. Send the remaining spans at the end."""
    if not settings.export_traces:
        yield None
        return
    traces, close = await in_thread(_open_export)
    try:
        yield traces
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(close)


def _open_export() -> tuple[Traces, Callable[[], None]]:
    from aioflow.telemetry.otel_export import open_export  # an SDK, slow to import

    return open_export()


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Lock the home.

    A daemon must be alone, because it kills all processes with the home's mark.
    """
    draining = home / _DRAINING
    try:
        lock = FileLock.take(home / "run" / "lock")
    except HomeBusy as busy:
        raise HomeBusy(str(home), busy.holder, is_draining=draining.exists()) from None
    try:
        with suppress(OSError):
            draining.unlink()  # a daemon that was killed while it drained has left it
        yield
    finally:
        with suppress(OSError):
            draining.unlink()
        lock.release()


async def _serve(node: _Node, ready: Callable[[Ready], None], signals: StopSignals) -> None:
    async with anyio.create_task_group() as services:
        signals.everything = services.cancel_scope
        await node.start_warm(services)
        if not await node.stand_by(services, lambda: ready(node.describe())):
            services.cancel_scope.cancel()
            return
        await node.start(services)
        ready(node.describe())
        await node.wait_for_end()
        await node.drain()
        services.cancel_scope.cancel()


class _Warm:
    """The services that a standby runs before it becomes active.

    Attributes:
        has_children: Whether the child processes have been started.
        reads: The cancel scope of the standby's server, which answers reads.
        reads_over: Set unless that server runs.
    """

    def __init__(self) -> None:
        self.has_children = False
        self.reads = anyio.CancelScope()
        self.reads_over = anyio.Event()
        self.reads_over.set()


class _Node:
    """The parts of one node, and their connections.

    Attributes:
        counts: Takeovers and fences of the nodes of this daemon, of which this node is the last.
        stopped: Set when the node is to stop.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        vault: Vault,
        traces: Traces | None,
        about: NodeFacts,
        stopped: anyio.Event,
    ) -> None:
        clock = SystemClock()
        self._started_at = clock.now()
        self._settings, self._store, self._vault = settings, store, vault
        self._clock = clock
        self._traces = traces
        self._url = ""
        self._api_server: ApiServing | None = None
        self.stopped = stopped
        self._about = about
        self._warm = _Warm()
        self._standby: Standby | None = None
        self._standby_server: StandbyServing | None = None
        self._queries: Queries | None = None
        self._backends = open_backends(settings.executors)
        self._engine = engine = make_engine(settings, store, clock, about, self._backends)
        self.counts = NodeCounts()
        self._status = StatusReader(engine, lambda: self.counts)
        masks = Masks()
        self._tasklog = TaskLog(
            settings.logs_folder, clock, cap_bytes=settings.log_cap_bytes, masks=masks
        )
        self._stored_logs = StoredLogs.open(settings, self._tasklog, store.mark_storage, clock)
        self._children = Children(settings.home, allowed=settings.children_env)
        self._stored = StoredResults.open(settings, engine.report, self._find_result, store, clock)
        self._interpreters = Interpreters(
            self._children,
            clock,
            settings.pythons,
            reread=PythonPaths(settings.home).reread,
        )
        self._answers = self._query_handler(masks)
        context = self._wired(settings)
        self._slot = WorkerPool(context, settings.cpu_slots)
        self._remote = RemoteExecutors(context, self._backends, settings.cpu_slots)
        self._hosts = HostPool(
            context,
            health_seconds=settings.hosts_health_seconds,
            capacity=settings.trigger_capacity,
            max_interpreter_hosts=settings.pythons_max_hosts,
        )
        self._interpreters.listen(self._report_interpreter)
        self._interpreters.listen(self._slot.interpreter_changed)
        self._interpreters.listen(self._hosts.interpreter_changed)
        self._snapshots = Snapshots(settings.code_folder)
        self._deliveries = make_deliveries(
            context, store, settings, self._snapshots, self._describe
        )
        self._code_missing = CodeMissing(store, self._snapshots, engine.report, clock)
        self._deleting = Deleting(
            engine, store, self._tasklog, settings.results_folder, clock, self._stored
        )

    async def wait_for_end(self) -> None:
        """Wait until this node is to stop, or is drained and a standby can take over."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._end_when_stopped, group.cancel_scope)
            while True:
                await self._clock.sleep(_LOOK_SECONDS)
                if self._engine.memory.is_drained and await self._has_successor():
                    _log.info("drained, handing over to a standby")
                    group.cancel_scope.cancel()

    async def _has_successor(self) -> bool:
        """Return whether there is a live standby that is not drained."""
        membership = self._store.membership
        try:
            return membership is not None and await membership.has_standby()
        except StoreUnavailable:
            return False

    async def _open_queries(self) -> Queries | None:
        """Open the queries between the nodes of the database, if there may be several nodes."""
        if self._store.node_messages is None:
            return None
        make = await in_thread(import_node_queries)
        return make(
            self._store.node_messages,
            self._vault,
            self._clock,
            own_epoch=self._own_epoch,
            active_epoch=self._active_epoch,
        )

    def _own_epoch(self) -> int | None:
        if self._engine.epoch is not None:
            return self._engine.epoch
        return None if self._standby is None else self._standby.epoch

    def _active_epoch(self) -> int | None:
        if self._engine.epoch is not None:
            return self._engine.epoch
        active = None if self._standby is None else self._standby.active
        return None if active is None else active.mark.epoch

    def _query_handler(self, masks: Masks) -> QueryHandler:
        stored, engine = self._stored, self._engine
        return QueryHandler(
            self._store,
            self._clock,
            still_waits=lambda *task: still_waits(engine.memory, *task),
            masks=masks,
            copy_results=None if stored is None else stored.fetcher.request,
            reserve_spool=None if stored is None else stored.uploader.reserve,
        )

    def _describe(self, row: DecisionRow) -> Asked:
        """Describe a decision for a message, with links that are signed now.

        The import costs nothing, because deliveries start after the API, see ``_open_api_server``.
        """
        from aioflow.api.decisions import described

        memory = self._engine.memory
        return described(
            row,
            public_url=self._settings.public_url,
            accounts=memory.accounts,
            vault=self._vault,
            now=self._clock.now(),
            shift=memory.shift,
        )

    async def _find_result(self, task_no: TaskNo) -> ResultRow | None:
        found = await self._store.list_results(task_no, task_no + 1, limit=1)
        return found[0] if found else None

    async def _run_of_task(self, task_no: TaskNo) -> RunNo | None:
        found = await self._store.find_tasks([task_no])
        return found[0].run_no if found else None

    def _wired(self, settings: Settings) -> ExecutorContext:
        stored = self._stored
        return ExecutorContext(
            children=self._children,
            code=settings.code_folder,
            results=settings.results_folder,
            tasklog=self._tasklog,
            report=self._engine.report if stored is None else stored.uploader.report,
            clock=self._clock,
            on_query=self._answers.submit,
            memory_limit_bytes=settings.hosts_memory_limit_bytes,
            stall_seconds=settings.hosts_stall_seconds,
            default_deferrable=settings.default_deferrable,
            default_tries=settings.default_tries,
            traces=settings.export_traces,
            interpreters=self._interpreters,
            default_executor=settings.executor,
            copies=None if stored is None else stored.copies.folder,
            copied_result=None if stored is None else stored.fetcher.copied,
            run_of_task=self._run_of_task,
            is_storing=stores_nothing if stored is None else stored.uploader.is_storing,
        )

    def _report_interpreter(self, name: str) -> None:
        """Report to the engine whether workers can be started in an interpreter."""
        role = shared_role(SLOT, name)
        if self._interpreters.launch(name) is not None:
            self._engine.report([HostUp(role)])
        elif problem := self._interpreters.complaint(name):
            failure = Failure(type="InterpreterUnusable", message=problem, reason="interpreter")
            lost = HostLost(
                role=role, culprit=-1, failure=failure, at=self._clock.now(), was_dismissed=True
            )
            self._engine.report([lost])

    def _spans(self) -> tuple[int, int]:
        return (0, 0) if self._traces is None else (self._traces.made, self._traces.dropped)

    async def _open_api_server(
        self, dags_read: Callable[[], bool], *, dags_known: bool
    ) -> ApiServing:
        """Open the API and the services behind it.

        The module is imported in a thread while the child processes start, which takes as long.
        """
        make = await in_thread(import_api_server)
        return make(
            self._settings,
            self._engine,
            self._store,
            self._vault,
            tasklog=self._tasklog,
            clock=self._clock,
            started_at=self._started_at,
            cycle=self._answers.cycle,
            snapshots=self._snapshots,
            hosts=self._hosts,
            worker_pages=self._remote.pages,
            spans=self._spans,
            dags_read=dags_read,
            dags_known=dags_known,
            copy_result=None if self._stored is None else self._stored.fetcher.path,
            node_queries=self._queries,
            node_status=self._status.read,
        )

    def _connect(self, api_server: ApiServing) -> None:
        """Register the handlers of effects and the subscribers of durable batches."""
        dispatcher = self._engine.dispatcher
        dispatcher.register(effect_handlers(self._slot, self._hosts, self._remote))
        dispatcher.register(
            {DeliverOutbox: self._deliveries.put, RestoreCode: self._code_missing.ask}
        )
        dispatcher.subscribe(api_server.committed)
        dispatcher.subscribe(self._answers.committed)
        dispatcher.subscribe(self._deleting.committed)
        if self._traces is not None:
            dispatcher.subscribe(self._traces.committed)

    async def start_warm(self, services: TaskGroup) -> None:
        """Start the services that do not need a claim of the database."""
        await services.start(self._children.run)
        await services.start(self._interpreters.run)
        await services.start(self._tasklog.run)
        if self._stored_logs is not None:
            await services.start(self._stored_logs.run)
        await services.start(self._answers.run)
        if self._stored is not None:
            await services.start(self._stored.run)
        if self._traces is not None:
            await services.start(self._traces.run)

    async def stand_by(self, services: TaskGroup, ready: Callable[[], None]) -> bool:
        """Wait until this node may claim the database. Return whether it has claimed it.

        Meanwhile its child processes start, and it answers reads. If there can be no other nodes,
        return at once: the engine claims the database when it starts.

        Args:
            ready: Called when the node is ready as a standby.

        Raises:
            Fenced: If another daemon has the identity of this home.
            HomeBusy: If another daemon with the identity of this home is active.
        """
        membership = self._store.membership
        if membership is None:
            return True
        settings = self._settings
        where, timing = settings.shown_db, timing_of(settings)
        standby = self._standby = self._status.standby = Standby(
            membership, self._clock, timing, self._about, where, is_warm=self._is_warm
        )
        self._warm.reads_over = anyio.Event()
        services.start_soon(self._start_children, services)
        self._queries = await self._open_queries()
        if self._queries is not None:
            services.start_soon(self._queries.run)
            services.start_soon(self._serve_reads, services, self._queries, ready)
        async with anyio.create_task_group() as watching:
            watching.start_soon(self._end_when_stopped, watching.cancel_scope)
            watching.start_soon(self._keep_code)
            await standby.wait(self._claim)
            watching.cancel_scope.cancel()
        is_active = not self.stopped.is_set()
        if not is_active:
            self._warm.reads.cancel()
            with suppress(StoreUnavailable):
                await membership.leave()
        return is_active

    def _is_warm(self) -> bool:
        """Return whether this standby answers requests."""
        server = self._standby_server
        return self._queries is None or (server is not None and server.is_current)

    async def _keep_code(self) -> None:
        """Restore missing code of all versions, so that a takeover need not do it."""
        await keep_restoring(self._store, self._snapshots, self._clock)

    async def _claim(self, about: NodeFacts) -> None:
        if not self.stopped.is_set():
            with anyio.CancelScope(shield=True):
                await self._engine.claim(about)
            if self._queries is not None:
                self._queries.renew_term()
            if about.after is not None:
                self.counts.takeovers += 1
                name = about.name or about.host
                message = f"node {name} took over from node {about.after.node_no}, which was silent"
                self._engine.report([AlertRaised(reason="takeover", message=message)])

    async def _end_when_stopped(self, scope: anyio.CancelScope) -> None:
        await self.stopped.wait()
        scope.cancel()

    async def _serve_reads(
        self, services: TaskGroup, queries: Queries, ready: Callable[[], None]
    ) -> None:
        """Serve the API and the page of a standby until cancelled; see ``StandbyServer``."""
        try:
            with self._warm.reads:
                make = await in_thread(import_standby_server)
                parts = self._settings, self._store, self._vault, self._tasklog, self._clock
                async with anyio.create_task_group() as group:
                    server = make(*parts, queries, self._hosts.loads, self._status.read, services)
                    self._standby_server = server
                    self._url = await group.start(server.serve)
                    ready()
                    await in_thread(import_api_server)  # so that a takeover need not do it
        finally:
            self._warm.reads_over.set()

    async def _start_children(self, services: TaskGroup) -> None:
        """Start the child processes, unless they have already been started."""
        if not self._warm.has_children:
            self._warm.has_children = True
            async with anyio.create_task_group() as starting:
                starting.start_soon(services.start, self._slot.run)
                starting.start_soon(services.start, self._hosts.run)

    async def start(self, services: TaskGroup) -> None:
        """Start every other service, each after the services that it needs."""
        if self._store.membership is not None:
            seconds = self._settings.ha_heartbeat_seconds
            services.start_soon(send_heartbeats, self._engine, self._clock, seconds)
        catalog = await self._open_catalog()
        # After a takeover, the rows written by the previous node contain all DAGs. So tasks start
        # before the DAG files are read.
        has_taken_over = self._standby is not None and self._standby.node_no is not None
        async with anyio.create_task_group() as starting:
            # The child processes start while the engine reads the unfinished runs. Their reports
            # wait in the engine's inbox until the runs have been read.
            starting.start_soon(self._start_children, services)
            api_server = self._api_server = await self._open_api_server(
                catalog.first_sweep_done.is_set, dags_known=has_taken_over
            )
            self._connect(api_server)
            await services.start(self._engine.run)
            await services.start(self._remote.run, self._lease())
            if not self._engine.memory.has_queued:
                self._open_slots()
            if not has_taken_over:
                starting.start_soon(services.start, catalog.run)
            starting.start_soon(services.start, self._deliveries.run)
            starting.start_soon(self._start_web, services, api_server)
        if has_taken_over:
            await services.start(catalog.run)
        with anyio.move_on_after(_FIRST_SWEEP_SECONDS):
            await catalog.first_sweep_done.wait()
        if self._store.membership is None:
            services.start_soon(watch_store, self._engine, self._store, self._clock)
        services.start_soon(examine_store, self._engine, self._store, self._clock)
        services.start_soon(self._code_missing.run)
        services.start_soon(self._deleting.run)
        if self._stored is not None:
            orphans = (self._stored.storage, FileResults(self._settings.results_folder))
            services.start_soon(OrphanedResults(orphans, self._store, self._clock).run)
        redirect = self._deliveries.redirect_alerts
        services.start_soon(AlertSettings(self._settings, self._clock, redirect).run)
        await services.start(api_server.clean_up)
        services.start_soon(api_server.inspect_plug_ins, catalog.parser)
        if self._settings.until_idle:
            services.start_soon(self._stop_when_idle, catalog)

    def _lease(self) -> ExecutorLease:
        memory = self._engine.memory
        return ExecutorLease(
            home_id=self._about.home,
            node_no=memory.node_no,
            epoch=memory.epoch,
            secret=secrets.token_hex(32),
        )

    async def _open_catalog(self) -> Catalog:
        """Open the catalog. Restore missing code of all versions that may still run."""
        patience, clock = self._settings.db_wait_seconds, self._clock
        known = await retried(self._store.list_dag_files, clock, patience)
        catalog = Catalog(
            self._settings.dags,
            self._snapshots,
            self._children,
            self._engine.report,
            self._clock,
            known=known,
            limits=Limits(
                wall_seconds=self._settings.parse_timeout_seconds,
                default_deferrable=self._settings.default_deferrable,
                default_tries=self._settings.default_tries,
                default_executor=self._settings.executor,
            ),
            check=partial(check_executors, backends=self._backends),
            pace=ParsePace(
                look_seconds=self._settings.parse_look_seconds,
                pause_seconds=self._settings.parse_pause_seconds,
                processes=self._settings.parse_processes,
            ),
            interpreters=self._interpreters,
        )
        await retried(partial(restore_needed, self._store, self._snapshots), clock, patience)
        return catalog

    async def _start_web(self, services: TaskGroup, api_server: ApiServing) -> None:
        """Serve the API and the page, once the triggers of deferred tasks are assigned.

        Queued tasks start only after that. So if a task has crashed the daemon, a user can cancel
        it before it does so again.
        """
        with anyio.move_on_after(_WEB_WAITS_SECONDS):
            while self._engine.waiting_inputs and not self._engine.slots.is_suspended:
                await self._engine.next_turn()
        at = None if self._standby_server is None else self._standby_server.address
        if at is None:
            self._warm.reads.cancel()
            await self._warm.reads_over.wait()
        self._url = await services.start(api_server.serve, at)
        self._warm.reads.cancel()  # new requests are answered by the server of the active node
        self._open_slots()

    def _open_slots(self) -> None:
        """Start the tasks that were queued or running when the last daemon ended."""
        self._engine.slots.is_suspended = False
        self._engine.report([ContinueRun(-1)])  # a turn of the engine, for no particular run

    def describe(self) -> Ready:
        """Return the contents of the start banner."""
        settings = self._settings
        return Ready(
            url=self._url,
            token_file=settings.token_file,
            home=settings.home,
            store=settings.shown_db,
            dags=settings.dags,
            pid=os.getpid(),
            stopped=self.stopped,
        )

    # ── shutdown ────────────────────────────────────────────────────────────────────────

    async def drain(self) -> None:
        """Start nothing more, give running tries time to end, and then stop everything else."""
        with suppress(OSError):
            (self._settings.home / _DRAINING).touch(0o600)
        self._engine.report([Drain()])
        self._deliveries.drain()
        with anyio.move_on_after(self._settings.grace_seconds):
            await self._engine.wait_until_still()
            await self._deliveries.quiet()
        self._engine.report([Drain(is_over=True)])
        with anyio.move_on_after(_FINAL_REPORTS_SECONDS):
            await self._engine.wait_until_still()
        with anyio.move_on_after(_RELEASE_SECONDS):
            await self._hosts.shut_down()
        if self._api_server is not None:
            await self._api_server.stop(_RELEASE_SECONDS)

    async def _stop_when_idle(self, catalog: Catalog) -> None:
        await catalog.first_sweep_done.wait()
        await self._engine.wait_until_idle()
        while any(quota.waiting for quota in self._engine.memory.outbox_quotas.values()):
            await self._engine.next_turn()
        await self._deliveries.quiet()
        self.stopped.set()
