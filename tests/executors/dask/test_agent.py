"""The agent without a Dask worker and without processes, at the other end of real links."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from aioflow.clock import SystemClock
from aioflow.executors.dask import agent as module
from aioflow.executors.dask.agent import Agent
from aioflow.executors.dask.agent_link import AgentLink
from aioflow.executors.dask.messages import (
    LINK_OP,
    Kind,
    LinkHello,
    PilotEnd,
    PilotOrder,
    PilotUp,
    WorkerStarted,
)
from aioflow.model.states import Failure
from tests.executors.dask.test_stream import Never, Wire

KILLED = Failure(type="Killed", message="", reason="killed")


class DaskWorker:
    """The part of a Dask worker that an agent needs."""

    address = "tcp://127.0.0.1:1"

    def __init__(self, folder: Path) -> None:
        self.local_directory = str(folder)
        self.handlers: dict[str, Callable] = {}
        self.on_event: Callable[[PilotUp], None] = lambda _: None

    def log_event(self, _topic: str, data: bytes) -> None:
        self.on_event(msgspec.msgpack.decode(data, type=PilotUp))


class Hosted:
    """A worker without a process."""

    log_nonce = "n"

    def __init__(self, *_: object, **__: object) -> None:
        self.beats = 0
        self.number = -1
        self._ended = anyio.Event()

    def assign(self, worker_no: int) -> None:
        self.number = worker_no

    async def run(self, on_started: Callable[[int], None]) -> Failure:
        on_started(1)
        await self._ended.wait()
        return KILLED

    def beat(self) -> None:
        self.beats += 1

    def kill(self) -> None:
        self._ended.set()

    close = shut_down = kill


class Daemon:
    """A daemon with one link to an agent at a time."""

    def __init__(
        self, worker: DaskWorker, group: anyio.abc.TaskGroup, home_id: str, executor: str = "dask"
    ) -> None:
        self.home_id = home_id
        self.executor = executor
        self.epoch = 1
        self.links: list[AgentLink] = []
        self.started: dict[int, WorkerStarted] = {}
        self.gone: list[int] = []
        self.deaths: list[str] = []
        self.ends: dict[int, PilotEnd] = {}
        self._scope = anyio.CancelScope()
        self._is_linked = False
        self._worker = worker
        self._group = group
        worker.on_event = self._on_announcement

    def pilot(self, agent: Agent, worker_no: int) -> None:
        """Run the pilot of a worker."""
        self._worker.on_event = self._on_announcement

        async def serve() -> None:
            self.ends[worker_no] = await agent.serve(self.order(worker_no))

        self._group.start_soon(serve)

    def order(self, worker_no: int) -> PilotOrder:
        """Return the order for a pilot."""
        return PilotOrder(
            home_id=self.home_id,
            node_no=0,
            epoch=self.epoch,
            executor=self.executor,
            secret="s",
            topic="t",
            worker_no=worker_no,
            aioflow=version("aioflow-engine"),
            python=(sys.version_info.major, sys.version_info.minor),
        )

    def drop_link(self) -> None:
        """Drop the link, as happens after ``patience_seconds``."""
        self._scope.cancel()
        self._scope, self._is_linked = anyio.CancelScope(), False

    def _on_announcement(self, up: PilotUp) -> None:
        if self._is_linked:
            return
        self._is_linked = True
        hello = LinkHello(
            home_id=self.home_id,
            node_no=0,
            epoch=self.epoch,
            executor=self.executor,
            secret="s",
            agent_id=up.agent_id,
            link_no=0,
            received=0,
        )
        link = AgentLink(up.address, hello, self, self._dial, SystemClock(), 60.0)
        self.links.append(link)
        self._group.start_soon(self._run, link, self._scope)

    async def _run(self, link: AgentLink, scope: anyio.CancelScope) -> None:
        with scope:
            await link.run()

    async def _dial(self, _address: str) -> Wire:
        ours, theirs = Wire.pair(Never())

        async def accept() -> None:
            asked: Any = await theirs.read()
            await self._worker.handlers[LINK_OP](theirs, asked["hello"])

        self._group.start_soon(accept)
        return ours

    def on_message(self, _link: AgentLink, kind: int, worker_no: int, data: bytes) -> None:
        if kind == Kind.STARTED:
            self.started[worker_no] = msgspec.msgpack.decode(data, type=WorkerStarted)
        elif kind == Kind.GONE:
            self.gone.append(worker_no)

    def on_contact(self, _link: AgentLink, _why: str) -> None: ...

    def on_dying(self, _link: AgentLink) -> None: ...

    def on_death(self, _link: AgentLink, why: str) -> None:
        self.deaths.append(why)

    def on_unused(self, _link: AgentLink) -> None: ...

    def has_workers(self, _link: AgentLink) -> bool:
        return True


@pytest.fixture
def worker(tmp_path, monkeypatch) -> DaskWorker:
    monkeypatch.setattr(module, "HostedWorker", Hosted)
    return DaskWorker(tmp_path)


@pytest.fixture
def agent(worker) -> Agent:
    agent = Agent()
    agent.setup(worker)
    return agent


async def until(found: Callable[[], object]) -> None:
    with anyio.fail_after(60):
        while not found():
            await anyio.sleep(0.001)


async def test_each_home_has_its_own_results_and_those_of_earlier_daemons_are_deleted(
    agent, worker
):
    async with anyio.create_task_group() as group:
        folders = []
        for home_id, epoch in (("one", 1), ("two", 1), ("one", 2)):
            daemon = Daemon(worker, group, home_id)
            daemon.epoch = epoch
            daemon.pilot(agent, 1)
            await until(partial(daemon.started.__contains__, 1))
            folders.append(Path(daemon.started[1].results_folder))
            (folders[-1] / "7.1").write_text(home_id)
        assert len(set(folders)) == 3
        assert [folder.exists() for folder in folders] == [False, True, True]
        group.cancel_scope.cancel()


async def test_two_executors_of_a_daemon_share_a_dask_worker(agent, worker):
    async with anyio.create_task_group() as group:
        one, other = (Daemon(worker, group, "one", name) for name in ("cpus", "gpus"))
        for daemon, worker_no in ((one, 1), (other, 2), (one, 3)):
            daemon.pilot(agent, worker_no)
            await until(partial(daemon.started.__contains__, worker_no))
        assert (sorted(one.started), sorted(other.started)) == ([1, 3], [2])
        assert not {**one.ends, **other.ends}
        assert not [*one.deaths, *other.deaths]

        later = Daemon(worker, group, "one", "renamed")
        later.epoch = 2
        later.pilot(agent, 4)
        await until(lambda: 4 in later.started)
        assert (sorted(one.ends), sorted(other.ends), sorted(later.ends)) == ([1, 3], [2], [])
        group.cancel_scope.cancel()


async def test_orders_to_kill_what_has_ended_are_not_kept(agent, worker):
    async with anyio.create_task_group() as group:
        daemon = Daemon(worker, group, "one")
        for worker_no in (1, 2):
            daemon.pilot(agent, worker_no)
            await until(partial(daemon.started.__contains__, worker_no))
        for worker_no in (7, 8, 1):
            daemon.links[0].put(Kind.KILL, worker_no)
        await until(lambda: 1 in daemon.ends)
        (session,) = agent._sessions.values()
        assert not session.refused
        assert not session.expected
        group.cancel_scope.cancel()


async def test_a_pilot_that_is_killed_while_it_waits_for_the_link_starts_nothing(agent, worker):
    async with anyio.create_task_group() as group:
        daemon = Daemon(worker, group, "one")

        def kills(up: PilotUp) -> None:
            daemon._on_announcement(up)
            (session,) = agent._sessions.values()
            session._deliver(Kind.KILL, up.worker_no, b"")

        daemon.pilot(agent, 1)
        worker.on_event = kills
        await until(lambda: 1 in daemon.ends)
        (session,) = agent._sessions.values()
        assert not daemon.started
        assert not session.refused
        group.cancel_scope.cancel()


async def test_a_daemon_that_gave_up_its_link_uses_the_dask_worker_over_another(agent, worker):
    async with anyio.create_task_group() as group:
        daemon = Daemon(worker, group, "one")
        daemon.pilot(agent, 1)
        await until(lambda: 1 in daemon.started)

        daemon.drop_link()
        daemon.pilot(agent, 2)  # begins in the old session, whose stream reaches no one
        await until(lambda: len(daemon.ends) == 2)
        assert all(end.is_cut_off and not end.has_run for end in daemon.ends.values())
        daemon.pilot(agent, 3)
        await until(lambda: 3 in daemon.started)
        assert daemon.started.keys() == {1, 3}
        assert (daemon.gone, daemon.deaths, len(daemon.links)) == ([], [], 2)

        daemon.links[1].put(Kind.KILL, 3)
        await until(lambda: 3 in daemon.ends)
        assert daemon.ends[3].has_run
        await until(lambda: daemon.gone == [3])
        group.cancel_scope.cancel()


async def test_all_workers_end_with_their_daemon_and_it_may_run_again(agent, worker):
    async with anyio.create_task_group() as group:
        daemon = Daemon(worker, group, "one")
        daemon.pilot(agent, 1)
        await until(lambda: 1 in daemon.started)
        worker.on_event = lambda _: None  # the announcement of the second comes too late
        group.start_soon(agent.serve, daemon.order(2))
        (session,) = agent._sessions.values()
        await until(lambda: 2 in session.workers)

        daemon.links[0].put(Kind.END, 0)
        await until(lambda: not session.workers)
        await until(lambda: sorted(daemon.gone) == [1, 2])
        assert session.spare is None or session.spare.ended.is_set()

        daemon.drop_link()
        daemon.pilot(agent, 3)
        await until(lambda: 3 in daemon.started)
        assert 3 not in daemon.ends
        group.cancel_scope.cancel()


async def test_a_link_that_was_given_up_does_not_come_back(agent, worker):
    async with anyio.create_task_group() as group:
        daemon = Daemon(worker, group, "one")
        daemon.pilot(agent, 1)
        await until(lambda: 1 in daemon.started)
        daemon.drop_link()
        daemon.pilot(agent, 2)
        await until(lambda: 2 in daemon.ends)
        daemon.pilot(agent, 3)
        await until(lambda: 3 in daemon.started)

        await daemon.links[0].run()
        assert daemon.deaths == ["its Dask worker was restarted"]
        assert 3 not in daemon.ends
        group.cancel_scope.cancel()


async def test_a_link_that_cannot_be_resumed_is_no_sign_of_life(agent, worker, monkeypatch):
    made: list[Hosted] = []

    def host(*_: object, **__: object) -> Hosted:
        made.append(Hosted())
        return made[-1]

    monkeypatch.setattr(module, "HostedWorker", host)
    async with anyio.create_task_group() as group:
        daemon = Daemon(worker, group, "one")
        daemon.pilot(agent, 1)
        await until(lambda: 1 in daemon.started and made[0].beats)
        daemon.drop_link()
        beats = made[0].beats
        hello = LinkHello(
            home_id="one",
            node_no=0,
            epoch=1,
            executor="dask",
            secret="s",
            agent_id=agent._id,
            link_no=agent._sessions["one", 0, "dask"].link_no,
            received=9,
        )
        ours, theirs = Wire.pair(Never())
        with pytest.raises(ValueError, match="message 9 was not sent"):
            await worker.handlers[LINK_OP](theirs, msgspec.msgpack.encode(hello))
        assert made[0].beats == beats
        ours.abort()
        group.cancel_scope.cancel()


class Spares:
    """An agent that counts its programs, and checks all the time for a missing spare."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spare_seconds: float = 600.0) -> None:
        self.made: list[Hosted] = []
        self.environments: list[dict[str, str]] = []
        monkeypatch.setattr(module, "HostedWorker", self._host)
        monkeypatch.setattr(module, "SPARE_LOOK_SECONDS", 0.001)
        monkeypatch.setattr(module, "SPARE_SECONDS", spare_seconds)

    def _host(self, *_: object, environment: dict[str, str], **__: object) -> Hosted:
        self.made.append(Hosted())
        self.environments.append(environment)
        return self.made[-1]

    @property
    def running(self) -> list[int]:
        """The worker numbers of the running programs; -1 is a spare."""
        return [one.number for one in self.made if not one._ended.is_set()]


async def test_the_next_worker_takes_the_program_that_is_ready(agent, worker, monkeypatch):
    spares = Spares(monkeypatch)
    async with anyio.create_task_group() as group:
        daemon = Daemon(worker, group, "one")
        daemon.pilot(agent, 1)
        await until(lambda: spares.running == [1, -1])
        await until(lambda: spares.made[1].beats)
        daemon.links[0].put(Kind.CLOSE, 1)
        await until(lambda: daemon.gone == [1])

        daemon.pilot(agent, 2)
        await until(lambda: 2 in daemon.started)
        assert spares.made[1].number == 2
        await until(lambda: spares.running == [2, -1])
        group.cancel_scope.cancel()


async def test_a_spare_ends_when_nothing_runs_and_with_its_session(agent, worker, monkeypatch):
    spares = Spares(monkeypatch, spare_seconds=0.01)
    async with anyio.create_task_group() as group:
        daemon = Daemon(worker, group, "one")
        daemon.pilot(agent, 1)
        await until(lambda: spares.running == [1, -1])
        daemon.links[0].put(Kind.KILL, 1)
        await until(lambda: spares.running == [])

        daemon.pilot(agent, 2)
        await until(lambda: spares.running == [2, -1])
        assert await agent.end_older("one", 0, 2) == 1
        assert spares.running == []
        group.cancel_scope.cancel()


async def test_a_spare_with_another_environment_is_not_taken(agent, worker, monkeypatch):
    spares = Spares(monkeypatch)
    async with anyio.create_task_group() as group:
        daemon = Daemon(worker, group, "one")
        daemon.pilot(agent, 1)
        await until(lambda: spares.running == [1, -1])
        monkeypatch.setenv("LANG", "tlh")
        daemon.pilot(agent, 2)
        await until(lambda: 2 in daemon.started)
        assert spares.running == [1, -1, 2]
        assert spares.environments[2] != spares.environments[1]
        group.cancel_scope.cancel()


async def test_a_spare_that_dies_by_itself_is_not_started_again_and_again(
    agent, worker, monkeypatch
):
    spares = Spares(monkeypatch)
    async with anyio.create_task_group() as group:
        daemon = Daemon(worker, group, "one")
        daemon.pilot(agent, 1)
        await until(lambda: spares.running == [1, -1])
        spares.made[1].kill()
        (session,) = agent._sessions.values()
        await until(lambda: session._tending is not None and session._tending.done())
        assert len(spares.made) == 2
        daemon.pilot(agent, 2)
        await until(lambda: spares.running == [1, 2, -1])
        group.cancel_scope.cancel()
