"""The backend on Dask: submits pilots according to the demand, and handles their workers.

Three parts fail independently. The *demand* determines how many pilots there should be. The
*session* with the scheduler submits them. When the scheduler is lost, pilots whose worker was not
up are forgotten, and another session begins. The *links* carry the workers that are up, and do not
need the scheduler.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from aioflow.clock import SystemClock, backoff_seconds
from aioflow.executors.backend import ExecutorBackend, ExecutorLease, WorkerEvents, WorkerInfo
from aioflow.executors.dask.agent_link import DIAL_SECONDS, AgentLink
from aioflow.executors.dask.cluster import Cluster, Pilot, open_cluster, worker_dial
from aioflow.executors.dask.messages import (
    Kind,
    LinkHello,
    PilotEnd,
    PilotOrder,
    PilotUp,
    WorkerStarted,
    topic_of,
)
from aioflow.executors.dask.options import DaskOptions
from aioflow.model.dag import TaskSpec
from aioflow.model.states import Failure
from aioflow.model.workers import WorkerDemand, WorkerNo, WorkerSpec

__all__ = ("DaskBackend", "create")

EXPLAIN_SECONDS = 1.0
"""How long a pilot waits in Dask before the reason is queried, and the interval of the queries."""

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
REFUSAL_SECONDS = 60.0
"""How long a Dask worker that cannot run workers gets no pilots."""

END_SECONDS = 5.0
"""Maximum time for which an ending daemon waits for the end of its workers."""

_FORGOTTEN_US = 600_000_000
"""How long the failures of a spec are remembered after the end of their delay."""

_UNWANTED_PART = 0.5
"""How long a pilot without demand may wait, as a fraction of ``idle_seconds``.

Such a pilot must be gone when workers that have been idle for as long free their threads.
"""

_CONSUMED_BYTES = 64 * 1024
"""Receipt of output is acknowledged each time this number of bytes has been consumed."""

_PATIENCE_SECONDS = 10.0
"""Time after the limit of the workers themselves at which the daemon counts them as dead."""

_logger = logging.getLogger(__name__)


def create(name: str, table: Mapping[str, object]) -> ExecutorBackend:
    """Create the backend of an executor from its table in the settings, see ``ExecutorFactory``."""
    return DaskBackend(name, DaskOptions.read(table))


class _Worker:
    """A worker, from the submission of its pilot until its death.

    Attributes:
        unwanted_since: The time since which its pilot has been waiting without demand, on the
            monotonic clock.
    """

    def __init__(self, worker_no: WorkerNo, spec: WorkerSpec, pilot: Pilot, at_us: int) -> None:
        self.no = worker_no
        self.spec = spec
        self.pilot = pilot
        self.submitted_at = at_us
        self.unwanted_since: int | None = None
        self.link: AgentLink | None = None
        self.output: MemoryObjectSendStream[bytes | Failure] | None = None
        self.is_ending = False

    @property
    def is_up(self) -> bool:
        """Whether ``worker_up`` was reported."""
        return self.output is not None


class _Channel:
    """The channel of one worker, see ``WorkerChannel``."""

    def __init__(self, worker_no: WorkerNo, link: AgentLink) -> None:
        self._no = worker_no
        self._link = link

    @property
    def backlog(self) -> int:
        return self._link.backlog

    def send(self, data: bytes) -> None:
        self._link.put(Kind.FRAME, self._no, bytes(data))

    def close(self) -> None:
        self._link.put(Kind.CLOSE, self._no)


class DaskBackend:
    """Provides workers on a Dask cluster, see ``ExecutorBackend``."""

    def __init__(self, name: str, options: DaskOptions) -> None:
        self.name = name
        self.max_workers = options.max_workers
        self.idle_seconds = options.idle_seconds
        self.patience_seconds = options.contact_seconds + _PATIENCE_SECONDS
        self._options = options
        self._clock = SystemClock()
        self._lease: ExecutorLease | None = None
        self._events: WorkerEvents | None = None
        self._demands: tuple[WorkerDemand, ...] = ()
        self._changed = anyio.Event()
        self._emptied = anyio.Event()
        self._workers: dict[WorkerNo, _Worker] = {}
        self._links: dict[str, AgentLink] = {}
        self._links_group: TaskGroup | None = None
        self._cluster: Cluster | None = None
        self.url = ""
        self._told: dict[WorkerSpec, str] = {}
        self._trouble = ""
        self._refusing: dict[str, tuple[str, int]] = {}
        self._failures: dict[WorkerSpec, tuple[int, int]] = {}

    # ── for the daemon ──────────────────────────────────────────────────────────────────

    async def run(
        self, lease: ExecutorLease, events: WorkerEvents, *, task_status: TaskStatus[None]
    ) -> None:
        """See ``ExecutorBackend``."""
        self._lease, self._events = lease, events
        try:
            async with anyio.create_task_group() as group:
                await group.start(self._keep_links)
                task_status.started()
                try:
                    await self._keep_sessions()
                finally:
                    with anyio.CancelScope(shield=True):
                        await self._end_all()
        finally:  # ``run`` may be called again
            for known in (self._workers, self._links, self._told, self._failures):
                known.clear()
            self._trouble = ""

    def set_demand(self, demands: Sequence[WorkerDemand]) -> None:
        """See ``ExecutorBackend``."""
        self._demands = tuple(sorted(demands, key=lambda demand: -demand.priority))
        wanted = {demand.spec for demand in demands}
        for spec in [spec for spec in self._told if spec not in wanted]:
            self._tell(spec, "")
        if self._trouble:
            for spec in wanted:
                self._tell(spec, self._trouble)
        self._changed.set()

    def kill(self, worker_no: WorkerNo) -> None:
        """See ``ExecutorBackend``."""
        worker = self._workers.get(worker_no)
        if worker is None:
            return
        worker.is_ending = True
        if worker.link is not None:
            worker.link.put(Kind.KILL, worker_no)
        if not worker.is_up:
            self._forget(worker)

    def retire(self, worker_no: WorkerNo) -> None:
        """See ``ExecutorBackend``."""
        worker = self._workers.get(worker_no)
        if worker is not None and worker.link is not None and not worker.is_ending:
            worker.is_ending = True
            worker.link.put(Kind.CLOSE, worker_no)

    def check(self, task: TaskSpec) -> str:
        """See ``ExecutorBackend``."""
        return self._options.misfit(task)

    # ── sessions ────────────────────────────────────────────────────────────────────────

    async def _keep_sessions(self) -> None:
        """Maintain a session with the scheduler until cancelled."""
        failures = 0
        while True:
            try:
                async with open_cluster(self._options) as cluster:
                    failures = 0
                    await self._serve(cluster)
                why = "the connection was closed"
            except Exception as exc:
                why = _reason(exc)
                if not isinstance(_alone(exc), OSError):
                    _logger.exception("executor %s: the session with Dask failed", self.name)
            delay = backoff_seconds(
                failures, first=FIRST_DELAY_SECONDS, longest=LONGEST_DELAY_SECONDS / 6
            )
            failures += 1
            self._set_trouble(
                f"the Dask scheduler at {self._options.address} cannot be reached: {why}"[:300]
            )
            await self._clock.sleep(delay)

    async def _serve(self, cluster: Cluster) -> None:
        """Serve the demand until the scheduler is lost."""
        lease = self._lease
        assert lease is not None  # noqa: S101 - set by ``run``
        cluster.listen(topic_of(lease.home_id, lease.node_no, self.name), self._on_announcement)
        await cluster.sweep(lease.home_id, lease.node_no, lease.epoch)
        _logger.info("executor %s: connected to the Dask scheduler %s", self.name, cluster.address)
        self._cluster, self.url = cluster, cluster.dashboard
        self._set_trouble("")
        try:
            async with anyio.create_task_group() as session:
                session.start_soon(self._place, cluster, session)
                await cluster.lost()
                session.cancel_scope.cancel()
        finally:
            self._cluster = None
            for worker in [worker for worker in self._workers.values() if not worker.is_up]:
                self._forget(worker)

    def _set_trouble(self, why: str) -> None:
        if why != self._trouble:
            self._trouble = why
            if why:
                _logger.warning("executor %s: %s", self.name, why)
            for demand in self._demands:
                self._tell(demand.spec, why)

    def _tell(self, spec: WorkerSpec, why: str) -> None:
        """Report why there is no worker of a spec, unless the same was already reported."""
        if self._told.get(spec, "") == why or self._events is None:
            return
        if why:
            self._told[spec] = why
        else:
            del self._told[spec]
        self._events.unavailable(spec, why)

    # ── pilots ──────────────────────────────────────────────────────────────────────────

    async def _place(self, cluster: Cluster, session: TaskGroup) -> None:
        """Submit pilots according to the demand, and report why they wait."""
        while True:
            self._changed = anyio.Event()
            fitting = await self._fitting_workers(cluster)
            self._give_up_pilots()
            for demand in self._demands:
                self._submit_missing(demand, cluster, session, fitting)
            with anyio.move_on_after(self._seconds_to_next()):
                await self._changed.wait()
            await self._explain(cluster)

    async def _fitting_workers(self, cluster: Cluster) -> frozenset[str] | None:
        """Return the Dask workers that may get pilots; ``None`` if all may."""
        now = self._clock.monotonic_us()
        self._refusing = {
            address: (why, until) for address, (why, until) in self._refusing.items() if until > now
        }
        if not self._refusing:
            return None
        return frozenset(await cluster.workers()) - self._refusing.keys()

    def _give_up_pilots(self) -> None:
        """Give up pilots that wait without demand, the last ones first.

        Each is retained for a while, because the next run may demand it. If another spec lacks
        workers, pilots are given up at once, because Dask would start them first.
        """
        now = self._clock.monotonic_us()
        counts = {demand.spec: demand.count for demand in self._demands}
        lacking = {spec for spec, count in counts.items() if self._count_up(spec) < count}
        until_now = now - round(self.idle_seconds * _UNWANTED_PART * 1e6)
        for spec in {worker.spec for worker in self._workers.values()}:
            mine = self._expected(spec)
            waiting = [one for one in mine if not one.is_up]
            wanted = max(0, len(waiting) - max(0, len(mine) - counts.get(spec, 0)))
            for worker in waiting[:wanted]:
                worker.unwanted_since = None
            for worker in waiting[wanted:]:
                if worker.unwanted_since is None:
                    worker.unwanted_since = now
                if worker.unwanted_since <= until_now or lacking - {spec}:
                    self._forget(worker)

    def _expected(self, spec: WorkerSpec) -> list[_Worker]:
        """Return the workers of a spec that are up or awaited."""
        return [one for one in self._workers.values() if one.spec == spec and not one.is_ending]

    def _count_up(self, spec: WorkerSpec) -> int:
        return sum(worker.is_up for worker in self._expected(spec))

    def _submit_missing(
        self,
        demand: WorkerDemand,
        cluster: Cluster,
        session: TaskGroup,
        fitting: frozenset[str] | None,
    ) -> None:
        """Submit the missing pilots of a spec."""
        spec = demand.spec
        if spec.interpreter:
            self._tell(spec, f"executor {self.name!r} has no interpreter {spec.interpreter!r}")
            return
        if fitting is not None and not fitting:
            self._tell(spec, next(iter(self._refusing.values()))[0])
            return
        if self._failures.get(spec, (0, 0))[1] > self._clock.monotonic_us():
            return
        room = self.max_workers - len(self._workers)
        for _ in range(min(demand.count - len(self._expected(spec)), room)):
            self._submit(demand, cluster, session, fitting or ())

    def _submit(
        self,
        demand: WorkerDemand,
        cluster: Cluster,
        session: TaskGroup,
        workers: Sequence[str] | frozenset[str],
    ) -> None:
        lease, events = self._lease, self._events
        assert lease is not None and events is not None  # noqa: S101, PT018 - set by ``run``
        worker_no = events.next_worker_no()
        order = PilotOrder(
            home_id=lease.home_id,
            node_no=lease.node_no,
            epoch=lease.epoch,
            executor=self.name,
            secret=lease.secret,
            topic=topic_of(lease.home_id, lease.node_no, self.name),
            worker_no=worker_no,
            aioflow=version("aioflow-engine"),
            python=(sys.version_info.major, sys.version_info.minor),
            environment=self._options.env,
            scheduler=cluster.address if self._options.expose else "",
            contact_seconds=self._options.contact_seconds,
            shared_home=self._options.shared_home,
        )
        key = f"aioflow-{lease.home_id}-{lease.node_no}-{lease.epoch}-{worker_no}"
        data = msgspec.msgpack.encode(order)
        pilot = cluster.submit(key, data, demand.spec, demand.priority, workers)
        worker = _Worker(worker_no, demand.spec, pilot, self._clock.monotonic_us())
        self._workers[worker_no] = worker
        session.start_soon(self._watch, worker)

    async def _watch(self, worker: _Worker) -> None:
        """Wait for the end of a pilot. If it never had a worker, submit others more slowly."""
        end = await worker.pilot.end()
        if self._workers.get(worker.no) is not worker or worker.is_up:
            return
        why = end.refused if isinstance(end, PilotEnd) else end
        if isinstance(end, PilotEnd):
            if end.has_run:
                return  # the link reports it
            if end.is_cut_off:
                self._forget(worker)
                return
            why = why or f"the daemon cannot connect to the Dask worker at {end.address}"
            until = self._clock.monotonic_us() + round(REFUSAL_SECONDS * 1e6)
            self._refusing[end.address] = (f"the Dask worker at {why}", until)
        self._forget(worker)
        self._count_failure(worker.spec)
        if why:
            _logger.warning("executor %s: %s", self.name, why)
            self._tell(worker.spec, why)

    def _count_failure(self, spec: WorkerSpec) -> None:
        """Submit pilots of a spec more slowly, until one of them has a worker."""
        count = self._failures.get(spec, (0, 0))[0]
        delay = backoff_seconds(count, first=FIRST_DELAY_SECONDS, longest=LONGEST_DELAY_SECONDS)
        until = self._clock.monotonic_us() + round(delay * 1e6)
        self._failures[spec] = (count + 1, until)

    def _seconds_to_next(self) -> float:
        """Return the seconds after which to check the pilots if nothing changes before."""
        now = self._clock.monotonic_us()
        self._failures = {
            spec: (count, until)
            for spec, (count, until) in self._failures.items()
            if until + _FORGOTTEN_US > now
        }
        pending = [until for _, until in self._failures.values() if until > now]
        seconds = (min(pending) - now) / 1e6 if pending else math.inf
        if self._refusing or any(not worker.is_up for worker in self._workers.values()):
            seconds = min(seconds, EXPLAIN_SECONDS)
        return seconds

    async def _explain(self, cluster: Cluster) -> None:
        """Report why pilots wait in Dask."""
        late = self._clock.monotonic_us() - round(EXPLAIN_SECONDS * 1e6)
        for spec in self._waiting_since(late):
            why = await cluster.shortage(spec)
            if spec in self._waiting_since(late):  # its pilots may have begun, or been given up
                self._tell(spec, why)

    def _waiting_since(self, at_us: int) -> set[WorkerSpec]:
        demanded = {demand.spec for demand in self._demands}
        return demanded & {
            worker.spec
            for worker in self._workers.values()
            if worker.link is None
            and worker.submitted_at <= at_us
            and worker.unwanted_since is None
        }

    def _forget(self, worker: _Worker) -> None:
        self._workers.pop(worker.no, None)
        worker.pilot.release()
        self._changed.set()
        if not self._workers:
            self._emptied.set()

    # ── links ───────────────────────────────────────────────────────────────────────────

    async def _keep_links(self, *, task_status: TaskStatus[None]) -> None:
        """Run the links. They end last, so that they can report the ends of all workers."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as self._links_group:
                task_status.started()
                await anyio.sleep_forever()

    async def _end_all(self) -> None:
        """Kill all workers, and wait until they are dead."""
        for worker in list(self._workers.values()):
            self.kill(worker.no)
        for link in self._links.values():
            link.put(Kind.END, 0)  # also reaches pilots that begin now and are not announced yet
        with anyio.move_on_after(END_SECONDS):
            while self._workers:
                self._emptied = anyio.Event()
                await self._emptied.wait()
            for link in [link for link in self._links.values() if link.is_running]:
                await link.flushed()  # also the messages to workers that were not up yet
        if self._links_group is not None:
            self._links_group.cancel_scope.cancel()

    def _on_announcement(self, event: object) -> None:
        """Handle the announcement of a pilot that has begun and waits for a link to its agent."""
        try:
            up = msgspec.msgpack.decode(msgspec.convert(event, bytes), type=PilotUp)
        except (msgspec.DecodeError, msgspec.ValidationError):
            _logger.warning("executor %s: an unknown event on aioflow's topic in Dask", self.name)
            return
        link = self._links.get(up.agent_id)
        if link is None:
            link = self._links[up.agent_id] = self._new_link(up)
        worker = self._workers.get(up.worker_no)
        if worker is None:
            link.put(Kind.KILL, up.worker_no)
        elif worker.link is None:
            worker.link = link
        if not link.is_running and self._links_group is not None:
            self._links_group.start_soon(link.run)

    def _new_link(self, up: PilotUp) -> AgentLink:
        lease = self._lease
        assert lease is not None  # noqa: S101 - set by ``run``
        hello = LinkHello(
            home_id=lease.home_id,
            node_no=lease.node_no,
            epoch=lease.epoch,
            executor=self.name,
            secret=lease.secret,
            agent_id=up.agent_id,
            link_no=0,
            received=0,
        )
        dial = partial(worker_dial, self._options, seconds=DIAL_SECONDS)
        return AgentLink(up.address, hello, self, dial, self._clock, self.patience_seconds)

    # ── for links ───────────────────────────────────────────────────────────────────────

    def on_message(self, link: AgentLink, kind: int, worker_no: int, data: bytes) -> None:
        """See ``LinkOwner``."""
        worker = self._workers.get(worker_no)
        if worker is None:
            if kind == Kind.STARTED:
                link.put(Kind.KILL, worker_no)  # the worker was given up meanwhile
        elif kind == Kind.STARTED:
            self._on_started(worker, link, msgspec.msgpack.decode(data, type=WorkerStarted))
        elif worker.output is None or self._events is None:
            if kind == Kind.GONE:
                self._forget(worker)
        elif kind == Kind.FRAME:
            self._events.frame(worker_no, data)
        elif kind == Kind.OUTPUT:
            worker.output.send_nowait(data)
        elif kind == Kind.GONE:
            worker.output.send_nowait(msgspec.msgpack.decode(data, type=Failure))

    def on_contact(self, link: AgentLink, why: str) -> None:
        """See ``LinkOwner``."""
        _logger.log(
            logging.WARNING if why else logging.INFO,
            "executor %s: %s",
            self.name,
            why or f"the Dask worker at {link.address} answers",
        )
        for worker in self._of(link):
            if worker.is_up and self._events is not None:
                self._events.worker_lost(worker.no, why)

    def on_dying(self, link: AgentLink) -> None:
        """See ``LinkOwner``. Replacements may be started in the meantime."""
        for worker in self._of(link):
            worker.is_ending = True
        self._changed.set()

    def on_death(self, link: AgentLink, why: str) -> None:
        """See ``LinkOwner``."""
        self.on_unused(link)
        failure = Failure(type="Killed", message=f"the worker died: {why}", reason="killed")
        workers = self._of(link)
        for spec in {worker.spec for worker in workers if worker.output is None}:
            self._count_failure(spec)
            self._tell(spec, f"a worker died: {why}")
        for worker in workers:
            if worker.output is None:
                self._forget(worker)
            else:
                worker.output.send_nowait(failure)

    def on_unused(self, link: AgentLink) -> None:
        """See ``LinkOwner``. If the agent announces itself again, another link is opened."""
        self._links = {agent: other for agent, other in self._links.items() if other is not link}

    def has_workers(self, link: AgentLink) -> bool:
        """See ``LinkOwner``."""
        return bool(self._of(link))

    def _of(self, link: AgentLink) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.link is link]

    # ── workers ─────────────────────────────────────────────────────────────────────────

    def _on_started(self, worker: _Worker, link: AgentLink, facts: WorkerStarted) -> None:
        assert self._events is not None and self._links_group is not None  # noqa: S101, PT018
        worker.link = link
        worker.output, items = anyio.create_memory_object_stream[bytes | Failure](math.inf)
        self._failures.pop(worker.spec, None)
        self._tell(worker.spec, "")
        info = WorkerInfo(**msgspec.structs.asdict(facts), url=self.url)
        self._links_group.start_soon(self._consume, worker, link, items)
        self._events.worker_up(worker.no, worker.spec, _Channel(worker.no, link), info)

    async def _consume(
        self, worker: _Worker, link: AgentLink, items: MemoryObjectReceiveStream[bytes | Failure]
    ) -> None:
        """Pass on the output of a worker, and then its end."""
        events, output, consumed = self._events, worker.output, 0
        assert events is not None and output is not None  # noqa: S101, PT018 - set by ``run``
        with items, output:
            async for item in items:
                if isinstance(item, Failure):
                    self._forget(worker)
                    events.worker_gone(worker.no, item)
                    return
                await events.output(worker.no, item)
                consumed += len(item)
                if consumed >= _CONSUMED_BYTES:
                    link.put(Kind.CONSUMED, worker.no, str(consumed).encode())
                    consumed = 0


def _alone(exc: BaseException) -> BaseException:
    """Return the only exception of a group, even in nested groups."""
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc


def _reason(exc: BaseException) -> str:
    exc = _alone(exc)
    return str(exc) or type(exc).__name__
