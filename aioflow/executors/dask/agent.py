"""The agent in a Dask worker: runs workers for daemons, and is the other end of their links.

It is a plug-in of the Dask worker, installed by the first pilot that runs there. It is not
registered with the scheduler. The scheduler would send it to every Dask worker of the cluster, and
those without aioflow could not start any more.

A **session** contains everything that runs for one executor in one epoch of a node. It has one
link, opened by the daemon, and outlives the link's connections. A pilot with a larger epoch ends
the sessions with smaller epochs. If a daemon has given up its link, it opens another one, which
ends the session and begins a new one.

While a session has workers, it also has a **spare**: a program without code that the next pilot
takes. Without a spare, starting a program would be the longest part of a change of the DAG version.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import platform
import secrets
import shutil
import socket
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

import anyio
import msgspec
from distributed import Status, Worker, WorkerPlugin

from aioflow._threads import in_thread
from aioflow.clock import SystemClock
from aioflow.executors.dask.hosted_worker import HostedWorker, NotStarted
from aioflow.executors.dask.messages import (
    LINK_OP,
    PLUGIN_NAME,
    Kind,
    LinkHello,
    LinkWelcome,
    PilotEnd,
    PilotOrder,
    PilotUp,
    WorkerStarted,
)
from aioflow.executors.dask.stream import Comm, Stream
from aioflow.filesystem import make_folder
from aioflow.model.states import Failure
from aioflow.processes.environment import child_environment
from aioflow.processes.process import OomCounter

__all__ = ("Agent", "serve_pilot")

LINK_SECONDS = 5.0
"""How long a pilot waits for the daemon's link before it gives up."""

SPARE_SECONDS = 60.0
"""How long a spare is retained when nothing runs for its daemon any more."""

SPARE_LOOK_SECONDS = 1.0
"""Interval at which a missing spare is started, and the delay of the first one."""

FLUSH_SECONDS = 2.0
"""How long an ending Dask worker waits at most until the daemon knows of all ended workers."""

_clock = SystemClock()


async def serve_pilot(worker: Worker, data: bytes) -> bytes:
    """Run one worker until it ends. This is the body of a pilot."""
    order = msgspec.msgpack.decode(data, type=PilotOrder)
    refused = _refusal(order)
    if refused:
        end = PilotEnd(refused=f"{worker.address} {refused}", address=worker.address)
    else:
        end = await (await _agent_of(worker)).serve(order)
    return msgspec.msgpack.encode(end)


def _refusal(order: PilotOrder) -> str:
    """Return why the daemon's workers cannot run here; empty if they can."""
    here = version("aioflow-engine")
    if here != order.aioflow:
        return f"has aioflow {here}, and the daemon {order.aioflow}: install the same version"
    python = (sys.version_info.major, sys.version_info.minor)
    if python != order.python:
        major, minor = order.python
        return (
            f"runs Python {python[0]}.{python[1]}, and the daemon {major}.{minor}: "
            "run both with the same version"
        )
    if sys.platform != "linux":
        return f"runs on {sys.platform}, and workers need Linux"
    return ""


async def _agent_of(worker: Worker) -> Agent:
    found = worker.plugins.get(PLUGIN_NAME)
    if not isinstance(found, Agent):
        found = Agent()
        # ``plugin_add`` never suspends here, so no other pilot runs in between.
        await worker.plugin_add(plugin=found, name=PLUGIN_NAME, catch_errors=False)
    return found


class _Program:
    """A program, started by a pilot or in advance.

    Attributes:
        environment: Environment that it was started with.
        pid: Its process id; 0 if it was not started.
        up: Set when it was started, or could not be.
        ended: Set when it and everything it started are dead.
        failure: How it ended; ``None`` if it could not be started, for the reason in ``error``.
    """

    def __init__(self, hosted: HostedWorker, environment: dict[str, str]) -> None:
        self.environment = environment
        self.hosted = hosted
        self.pid = self.started_at = 0
        self.up, self.ended = anyio.Event(), anyio.Event()
        self.failure: Failure | None = None
        self.error: NotStarted | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            with anyio.CancelScope(shield=True):
                self.failure = await self.hosted.run(self._on_started)
        except NotStarted as exc:
            self.error = exc
        finally:
            self.up.set()
            self.ended.set()

    def _on_started(self, pid: int) -> None:
        self.pid, self.started_at = pid, _clock.now()
        self.up.set()


class _Session:
    """Everything that runs here for one executor in one epoch of a node.

    Attributes:
        workers: The running workers, by number.
        expected: Numbers of the workers whose pilots have announced themselves and are waiting.
        refused: Numbers in ``expected`` whose workers the daemon has killed in the meantime.
        results_name: Name of the folder of its large results. Numbers of tasks and starts are
            unique only in one home, and not even there once its database is restored.
        decided: Set when the daemon has opened the link for the first time, or the session is over.
        link_no: Number of its link; 0 before the link is opened.
        is_over: Whether nothing may start here any more.
        is_replaced: Whether it is over because the daemon has opened another link.
        spare: The program that the next pilot takes if its environment is the right one.

    Args:
        before: The session that this session replaces.
    """

    def __init__(
        self, epoch: int, secret: str, results_name: str, before: _Session | None = None
    ) -> None:
        self.epoch = epoch
        self.results_name = results_name
        self.link_no = 0
        self.workers: dict[int, HostedWorker] = {}
        self.expected: set[int] = set()
        self.refused: set[int] = set()
        self.decided = anyio.Event()
        self.is_over = self.is_replaced = False
        self.spare: _Program | None = None
        self._tending: asyncio.Task[None] | None = None
        self.stream = Stream(self._deliver, self._beat)
        self._secret = secret
        self._before = before
        self._connection: anyio.CancelScope | None = None
        self._turns = anyio.Lock()

    def admits(self, hello: LinkHello) -> bool:
        """Return whether a hello comes from the daemon of this session."""
        is_late = hello.link_no < self.link_no
        is_its = hello.epoch == self.epoch and hmac.compare_digest(hello.secret, self._secret)
        return is_its and not is_late

    def replacement(self) -> _Session:
        """Return a new session for another link.

        End this session, because its link was given up.
        """
        self.is_replaced = True
        if self._connection is not None:
            self._connection.cancel()
        self.shut_down()
        return _Session(self.epoch, self._secret, self.results_name, self)

    async def ended(self) -> None:
        """Wait, after ``shut_down``, until nothing runs here or in the sessions replaced."""
        while self.workers:
            await _clock.sleep(0.01)
        if self.spare is not None:
            await self.spare.ended.wait()
        await self._end_of_before()

    async def _end_of_before(self) -> None:
        if self._before is not None:
            await self._before.ended()
            self._before = None

    async def connect(self, comm: Comm, received: int) -> None:
        """Exchange messages over a connection until it breaks or a newer one replaces it."""
        if self._connection is not None:
            self._connection.cancel()
        async with self._turns:
            with anyio.CancelScope() as self._connection:
                await self._end_of_before()
                welcome = LinkWelcome(received=self.stream.received)
                await comm.write(msgspec.msgpack.encode(welcome))
                self.decided.set()
                await self.stream.run(comm, received)
            self._connection = None

    def _deliver(self, kind: int, worker_no: int, data: bytes) -> None:
        worker = self.workers.get(worker_no)
        if kind == Kind.END:
            self.shut_down()
        elif worker is None:
            if kind == Kind.KILL and worker_no in self.expected:
                self.refused.add(worker_no)
        elif kind == Kind.FRAME:
            worker.write(data)
        elif kind == Kind.CONSUMED:
            worker.consumed(int(data))
        elif kind == Kind.CLOSE:
            worker.close()
        elif kind == Kind.KILL:
            worker.kill()

    def _beat(self) -> None:
        for worker in self.workers.values():
            worker.beat()
        if self.spare is not None:
            self.spare.hosted.beat()

    def shut_down(self) -> None:
        """Kill everything, as the daemon or the Dask worker ends, or a later daemon takes over."""
        self.is_over = True
        self.decided.set()
        for worker in self.workers.values():
            worker.shut_down()
        if self.spare is not None:
            self.spare.hosted.shut_down()

    # ── the spare ───────────────────────────────────────────────────────────────────────

    def take_program(self, start: Callable[[], _Program], environment: dict[str, str]) -> _Program:
        """Return the spare if it has this environment. Otherwise start a program and return it.

        Args:
            start: Starts a program. It is also used to start the next spare.
        """
        if self._tending is None or self._tending.done():
            tending = self._tend(start)
            self._tending = asyncio.get_running_loop().create_task(tending)
        spare = self.spare
        if spare is None or spare.ended.is_set() or spare.environment != environment:
            return start()
        self.spare = None
        return spare

    async def _tend(self, start: Callable[[], _Program]) -> None:
        """Provide a spare as long as there are workers.

        If a spare dies by itself, start no other.
        """
        idle_seconds = 0.0
        while not self.is_over and idle_seconds < SPARE_SECONDS:
            await _clock.sleep(SPARE_LOOK_SECONDS)
            idle_seconds = 0.0 if self.workers else idle_seconds + SPARE_LOOK_SECONDS
            if self.spare is not None and self.spare.ended.is_set():
                break
            if self.spare is None and self.workers and not self.is_over:
                self.spare = start()
        if self.spare is not None and not self.is_over:
            self.spare.hosted.shut_down()
            self.spare = None


class Agent(WorkerPlugin):
    """The plug-in of one Dask worker."""

    name = PLUGIN_NAME

    def __init__(self) -> None:
        self._id = secrets.token_hex(8)
        self._sessions: dict[tuple[str, int, str], _Session] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self._worker: Worker | None = None
        self._folder = Path()
        self._oom = OomCounter.of_this_process()

    # ── called by Dask ──────────────────────────────────────────────────────────────────

    def setup(self, worker: Worker) -> None:
        """Accept links from now on."""
        self._worker = worker
        self._folder = Path(worker.local_directory) / "aioflow"
        worker.handlers[LINK_OP] = self._serve_link

    async def teardown(self, worker: Worker) -> None:
        """End everything, and report that to the daemons."""
        worker.handlers.pop(LINK_OP, None)
        for session in self._sessions.values():
            session.shut_down()
            with anyio.move_on_after(FLUSH_SECONDS):
                await session.stream.flushed()
        self._sessions.clear()

    async def _serve_link(self, comm: Comm, hello: bytes) -> Status:
        """Serve a link until its connection breaks."""
        asked = msgspec.msgpack.decode(hello, type=LinkHello)
        key = asked.home_id, asked.node_no, asked.executor
        session = self._sessions.get(key)
        if session is None or asked.agent_id != self._id or not session.admits(asked):
            await comm.write(msgspec.msgpack.encode(LinkWelcome(refused="nothing runs here")))
            return Status.dont_reply
        if 0 < session.link_no < asked.link_no:
            session = self._sessions[key] = session.replacement()
        session.link_no = asked.link_no
        await session.connect(comm, asked.received)
        return Status.dont_reply

    async def end_older(self, home_id: str, node_no: int, epoch: int) -> int:
        """End everything that runs for earlier daemons of a node.

        Return the number of ended workers.

        All executors are included, because an earlier daemon may have had other names for them.
        """
        node = home_id, node_no
        self._epochs[node] = max(epoch, self._epochs.get(node, 0))
        old = [
            key
            for key, session in self._sessions.items()
            if key[:2] == node and session.epoch < epoch
        ]
        ending = [self._sessions.pop(key) for key in old]
        count = sum(len(session.workers) for session in ending)
        for session in ending:
            session.shut_down()
        for session in ending:
            await session.ended()
            folder = self._folder / "results" / session.results_name
            await in_thread(partial(shutil.rmtree, folder, ignore_errors=True))
        return count

    # ── pilots ──────────────────────────────────────────────────────────────────────────

    async def serve(self, order: PilotOrder) -> PilotEnd:
        """Run one worker until it ends."""
        assert self._worker is not None  # noqa: S101 - set by ``setup``
        address = self._worker.address
        session = await self._session_of(order)
        if session is None:
            return PilotEnd(
                refused=f"{address} serves a later daemon of this node", address=address
            )
        up = PilotUp(worker_no=order.worker_no, address=address, agent_id=self._id)
        if not await self._is_wanted(session, order, up):
            return PilotEnd(address=address, is_cut_off=session.is_replaced)
        try:
            await self._run(session, order)
        except NotStarted as exc:
            return PilotEnd(refused=f"{address} cannot start a process: {exc}", address=address)
        has_run = not session.is_replaced
        return PilotEnd(address=address, has_run=has_run, is_cut_off=session.is_replaced)

    async def _is_wanted(self, session: _Session, order: PilotOrder, up: PilotUp) -> bool:
        """Announce a pilot. Return whether the daemon has opened a link and wants its worker."""
        assert self._worker is not None  # noqa: S101 - set by ``setup``
        session.expected.add(up.worker_no)
        try:
            self._worker.log_event(order.topic, msgspec.msgpack.encode(up))
            with anyio.move_on_after(LINK_SECONDS):
                await session.decided.wait()
            is_open = session.decided.is_set() and not session.is_over
            return is_open and up.worker_no not in session.refused
        finally:
            session.expected.discard(up.worker_no)
            session.refused.discard(up.worker_no)

    async def _session_of(self, order: PilotOrder) -> _Session | None:
        """Return the session of a pilot, after all of its node's older sessions have ended."""
        node = order.home_id, order.node_no
        await self.end_older(*node, order.epoch)
        if order.epoch < self._epochs[node]:
            return None
        key = *node, order.executor
        found = self._sessions.get(key)
        if found is None or found.is_over:
            results_name = _hash(order.home_id, order.node_no, order.epoch, order.secret)
            found = _Session(order.epoch, order.secret, results_name, found)
            self._sessions[key] = found
        return found

    async def _run(self, session: _Session, order: PilotOrder) -> None:
        """Run a program, and report its end on the session's stream.

        Raises:
            NotStarted: If the program could not be started.
        """
        worker_no = order.worker_no
        environment = child_environment(os.environ, order.environment)
        if order.scheduler:
            environment["AIOFLOW_DASK_SCHEDULER"] = order.scheduler

        def start() -> _Program:
            hosted = HostedWorker(
                session.stream,
                mark=_mark(order),
                environment=environment,
                contact_seconds=order.contact_seconds,
                oom=self._oom,
            )
            return _Program(hosted, environment)

        program = session.take_program(start, environment)
        program.hosted.assign(worker_no)
        session.workers[worker_no] = program.hosted
        try:
            await program.up.wait()
            if program.pid:
                facts = self._facts(session, order, program)
                session.stream.put(Kind.STARTED, worker_no, msgspec.msgpack.encode(facts))
            await program.ended.wait()
        except anyio.get_cancelled_exc_class():
            program.hosted.shut_down()  # the Dask worker ends
            with anyio.CancelScope(shield=True):
                await program.ended.wait()
            raise
        finally:
            del session.workers[worker_no]
            if program.failure is not None:
                failure = msgspec.msgpack.encode(program.failure)
                session.stream.put(Kind.GONE, worker_no, failure)
        if program.error is not None:
            raise program.error

    def _facts(self, session: _Session, order: PilotOrder, program: _Program) -> WorkerStarted:
        assert self._worker is not None  # noqa: S101 - set by ``setup``
        code = results = ""
        if not order.shared_home:
            folders = self._folder / "code", self._folder / "results" / session.results_name
            for folder in folders:
                make_folder(folder)
            code, results = map(str, folders)
        return WorkerStarted(
            host=socket.gethostname(),
            pid=program.pid,
            address=self._worker.address,
            python=platform.python_version(),
            aioflow=version("aioflow-engine"),
            started_at=program.started_at,
            log_nonce=program.hosted.log_nonce,
            code_folder=code,
            results_folder=results,
        )


def _mark(order: PilotOrder) -> str:
    """Return a mark for a program and everything it starts, see ``processes.orphans``."""
    return f"dask-{_hash(order.home_id, order.node_no)}:{secrets.token_hex(8)}"


def _hash(*parts: object) -> str:
    """Return a name that is unique for these parts."""
    return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()[:16]
