from __future__ import annotations

import os
import signal
import socket
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from aioflow.executors.backend import ExecutorLease
from aioflow.executors.dask import agent_link
from aioflow.executors.dask import backend as module
from aioflow.executors.dask import cluster as cluster_module
from aioflow.executors.dask.backend import DaskBackend, _Worker
from aioflow.executors.dask.messages import PilotEnd, PilotUp
from aioflow.executors.dask.options import DaskOptions
from aioflow.model.workers import WorkerSpec
from aioflow.protocol.reports import Succeeded, TaskStarted
from benchmarks.dask_cluster import DaskCluster
from tests.executors.dask.cluster import SPEC, Events, Worker, demand, is_alive, running

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("dask")]

SLEEP = "open({path!r}, 'a').write(f'{{os.getpid()}}\\n')\ntime.sleep(600)"


async def begun(worker: Worker, events: Events, home, body: str, start_no: int = 1) -> None:
    """Let a worker begin a try with this body."""
    worker.prepare(home, body)
    worker.start(start_no)
    await events.until(lambda: worker.found(TaskStarted))


async def died(*pids: int, seconds: float = 120.0) -> None:
    with anyio.fail_after(seconds):
        while any(is_alive(pid) for pid in pids):
            await anyio.sleep(0.01)


# ── a worker ────────────────────────────────────────────────────────────────────────────


async def test_a_try_runs_in_a_worker_on_the_cluster(cluster, tmp_path):
    async with running(cluster) as (backend, events):
        backend.set_demand(demand(1))
        (worker,) = await events.up()
        worker.prepare(tmp_path, "print('on', os.getpid())\nreturn 7")
        worker.start()
        await events.until(lambda: worker.found(Succeeded))
        await events.until(lambda: b"on %d\n" % worker.info.pid in worker.output)
        assert worker.info.address.startswith("tcp://127.0.0.1:")

    assert worker.failure.reason == "killed"
    assert not is_alive(worker.info.pid)


async def test_no_more_workers_than_threads_and_the_reason_is_told(cluster):
    async with running(cluster) as (backend, events):
        backend.set_demand(demand(3))
        workers = await events.up(2)
        assert len({worker.info.address for worker in workers}) == 2
        spec = demand(1)[0].spec
        await events.until(
            lambda: "all 2 threads of the 2 Dask workers" in events.reasons.get(spec, "")
        )
        events.told.clear()
        backend.retire(workers[0].no)
        await events.until(lambda: workers[0].failure is not None)
        await events.up(2)
        assert "" in events.told  # the third one waits, so the reason may be told again


async def test_a_resource_that_no_worker_has_is_named(cluster):
    spec = WorkerSpec(executor="dask", resources=(("GPU", 1.0),))
    async with running(cluster) as (backend, events):
        backend.set_demand(demand(1, spec))
        # Until the restarted workers of an earlier case have joined, the cluster has no worker.
        text = "no Dask worker has GPU = 1; start one with dask worker tcp://"
        await events.until(lambda: text in events.reasons.get(spec, ""))
        backend.set_demand([])
        assert events.reasons[spec] == ""


@pytest.mark.nightly
async def test_a_retired_worker_exits_by_itself(cluster, tmp_path):
    async with running(cluster) as (backend, events):
        backend.set_demand(demand(1))
        (worker,) = await events.up()
        worker.prepare(tmp_path, "return 1")
        worker.start()
        await events.until(lambda: worker.found(Succeeded))
        backend.set_demand([])
        backend.retire(worker.no)
        backend.retire(worker.no)
        failure = await events.until(lambda: worker.failure)
        assert (failure.type, failure.message) == ("Exited", "the process ended with exit status 0")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [
        ("os._exit(3)", "Exited", "exit"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "Crashed", "crashed"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "Killed", "killed"),
    ],
)
async def test_how_a_worker_ended_is_told(cluster, tmp_path, body, kind, reason):
    async with running(cluster) as (backend, events):
        backend.set_demand(demand(1))
        (worker,) = await events.up()
        await begun(worker, events, tmp_path, f"print('last words')\n{body}")
        failure = await events.until(lambda: worker.failure)
        assert (failure.type, failure.reason) == (kind, reason)
        assert b"last words" in worker.output


@pytest.mark.nightly
async def test_a_kill_ends_a_worker_with_all_it_started(cluster, tmp_path):
    file = tmp_path / "pids"
    body = f"""
stray = subprocess.Popen(["sleep", "600"], start_new_session=True)
open({str(file)!r}, "w").write(f"{{os.getpid()}} {{stray.pid}}")
time.sleep(600)
"""
    async with running(cluster) as (backend, events):
        backend.set_demand(demand(1))
        (worker,) = await events.up()
        await begun(worker, events, tmp_path, body)
        with anyio.fail_after(120):
            while not file.exists() or len(file.read_text().split()) < 2:
                await anyio.sleep(0.01)
        pids = [int(pid) for pid in file.read_text().split()]
        backend.kill(worker.no)
        backend.kill(worker.no)
        failure = await events.until(lambda: worker.failure)
        assert not any(map(is_alive, pids))
        assert failure.reason == "killed"
        await events.up()  # the demand is the same


@pytest.mark.nightly
async def test_output_is_complete_and_in_order_and_waits_for_its_reader(cluster, tmp_path):
    lines, width = 40_000, 99
    body = f"for number in range({lines}):\n    print(str(number).rjust({width}, '.'))"
    async with running(cluster) as (backend, events):
        backend.set_demand(demand(1))
        (worker,) = await events.up()
        events.consumes = False
        await begun(worker, events, tmp_path, body)
        await anyio.sleep(0.5)
        assert not worker.found(Succeeded)  # 4 MB do not fit into the window and the pipe
        events.resume()
        await events.until(lambda: worker.found(Succeeded))
        await events.until(lambda: worker.output.count(b"\n") >= lines)
    printed = [line for line in bytes(worker.output).splitlines() if line.startswith(b".")]
    assert [int(line.strip(b".")) for line in printed] == list(range(lines))


# ── harm ────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_whose_dask_worker_is_killed_is_gone_without_a_missed_beat(
    own_cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr(agent_link, "LOST_BEATS", 10_000)  # silence proves nothing
    processes = [own_cluster.start_worker() for _ in range(2)]
    file = tmp_path / "pids"
    async with running(own_cluster) as (backend, events):
        backend.set_demand(demand(1))
        (worker,) = await events.up()
        await begun(worker, events, tmp_path, SLEEP.format(path=str(file)))
        victim = next(one for one in processes if one.pid == _parent(_parent(worker.info.pid)))
        victim.kill()
        failure = await events.until(lambda: worker.failure)
        assert not worker.lost
        assert (failure.reason, "its Dask worker died" in failure.message) == ("killed", True)
        assert not is_alive(worker.info.pid)
        (other,) = await events.up()
        assert other.info.address != worker.info.address


@pytest.mark.nightly
async def test_a_stopped_dask_worker_is_lost_and_then_back(own_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(agent_link, "BEAT_SECONDS", 0.3)
    monkeypatch.setattr(agent_link, "DIAL_SECONDS", 0.5)
    process = own_cluster.start_worker()
    body = "for number in range(40):\n    print(number)\n    time.sleep(0.1)\nreturn 5"
    async with running(own_cluster) as (backend, events):
        backend.set_demand(demand(1))
        (worker,) = await events.up()
        await begun(worker, events, tmp_path, body)
        os.kill(process.pid, signal.SIGSTOP)
        assert "has not answered" in str(await events.until(lambda: worker.lost))
        await anyio.sleep(1)
        os.kill(process.pid, signal.SIGCONT)
        await events.until(lambda: not worker.lost)
        await events.until(lambda: worker.found(Succeeded))
        await events.until(lambda: b"\n39\n" in worker.output)
        numbers = [int(line) for line in bytes(worker.output).splitlines() if line.isdigit()]
        assert numbers[-40:] == list(range(40))


@pytest.mark.nightly
async def test_a_worker_out_of_contact_ends_itself_and_counts_as_dead_later(
    own_cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr(agent_link, "BEAT_SECONDS", 0.3)
    monkeypatch.setattr(agent_link, "DIAL_SECONDS", 0.5)
    process = own_cluster.start_worker()
    async with running(own_cluster, contact_seconds=6.0, patience_seconds=14.0) as (
        backend,
        events,
    ):
        backend.set_demand(demand(1))
        (worker,) = await events.up()
        await begun(worker, events, tmp_path, "time.sleep(600)")
        os.kill(process.pid, signal.SIGSTOP)
        await events.until(lambda: worker.lost)
        assert worker.failure is None
        await died(worker.info.pid)
        assert worker.failure is None
        failure = await events.until(lambda: worker.failure)
        assert failure.reason == "killed"
        os.kill(process.pid, signal.SIGCONT)
        (other,) = await events.up()
        await begun(other, events, tmp_path, "return 3", start_no=2)
        await events.until(lambda: other.found(Succeeded))
        assert other.info.address == worker.info.address


@pytest.mark.nightly
async def test_a_dask_worker_that_closes_says_so_first(own_cluster, tmp_path):
    process = own_cluster.start_worker(nanny=True)
    async with running(own_cluster) as (backend, events):
        backend.set_demand(demand(1))
        (worker,) = await events.up()
        await begun(worker, events, tmp_path, "print('here')\ntime.sleep(600)")
        await events.until(lambda: b"here" in worker.output)
        process.terminate()
        failure = await events.until(lambda: worker.failure)
        assert "its Dask worker ended" in failure.message
        assert not is_alive(worker.info.pid)
    assert process.wait(60) is not None


@pytest.mark.nightly
async def test_the_scheduler_comes_back_and_work_goes_on(own_cluster, tmp_path):
    own_cluster.start_worker()
    async with running(own_cluster) as (backend, events):
        backend.set_demand(demand(1))
        (worker,) = await events.up()
        await begun(worker, events, tmp_path, "time.sleep(600)")
        own_cluster.kill_scheduler()
        failure = await events.until(lambda: worker.failure)
        assert failure.reason == "killed"
        spec = demand(1)[0].spec
        await events.until(lambda: "cannot be reached" in events.reasons.get(spec, ""))
        own_cluster.start_scheduler()
        own_cluster.start_worker()
        (other,) = await events.up()
        await begun(other, events, tmp_path, "return 3", start_no=2)
        await events.until(lambda: other.found(Succeeded))
        assert events.reasons[spec] == ""


async def test_workers_of_an_earlier_daemon_end_before_others_begin(cluster, tmp_path):
    events = Events()
    async with running(cluster, events=events) as (backend, _):
        backend.set_demand(demand(2))
        old = await events.up(2)
        for worker in old:
            await begun(worker, events, tmp_path, "time.sleep(600)")
        later = Events(first=100)
        async with running(cluster, events=later) as (second, _):
            second.set_demand(demand(2))
            await later.up(2)
            assert not any(is_alive(worker.info.pid) for worker in old)
            await events.until(lambda: all(worker.failure for worker in old))


@pytest.mark.nightly
async def test_a_smaller_epoch_gets_nothing(own_cluster):
    cluster = own_cluster
    for _ in range(2):
        cluster.start_worker()
    async with running(cluster, epoch=5) as (backend, events):
        backend.set_demand(demand(1))
        await events.up()
        late = Events(first=100)
        async with running(cluster, epoch=4, events=late) as (old, _):
            old.set_demand(demand(1))
            with anyio.move_on_after(2):
                await late.up()
            assert not [one for one in late.workers.values() if one.info.address == _of(events)]


def _of(events: Events) -> str:
    (worker,) = events.workers.values()
    return worker.info.address


async def test_another_version_is_refused_with_a_sentence(cluster, monkeypatch):
    monkeypatch.setattr(module, "version", lambda _: "0.0.7")
    async with running(cluster) as (backend, events):
        backend.set_demand(demand(1))
        spec, sentence = demand(1)[0].spec, "and the daemon 0.0.7: install the same version"
        await events.until(lambda: sentence in events.reasons.get(spec, ""))
        assert not events.workers


async def test_a_backend_that_is_run_again_knows_nothing_of_the_first_time(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "CONNECT_SECONDS", 0.3)
    backend = DaskBackend("dask", DaskOptions(address="tcp://127.0.0.1:1"))
    backend.set_demand(demand(1))
    lease = ExecutorLease(home_id="h0me", node_no=0, epoch=1, secret="s")
    for _ in range(2):
        events = Events()
        async with anyio.create_task_group() as group:
            await group.start(backend.run, lease, events)
            await events.until(partial(events.reasons.get, SPEC))
            group.cancel_scope.cancel()
        assert not backend._links
        assert not backend._failures


async def test_a_scheduler_that_cannot_be_reached_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "CONNECT_SECONDS", 0.3)
    async with running(DaskCluster(tmp_path)) as (backend, events):
        backend.set_demand(demand(1))
        why = await events.until(lambda: events.reasons.get(SPEC))
        assert why.startswith("the Dask scheduler at tcp://127.0.0.1:0 cannot be reached")


class EndedPilot:
    def __init__(self, end: PilotEnd) -> None:
        self._end = end

    async def end(self) -> PilotEnd:
        return self._end

    def release(self) -> None: ...


def waiting(backend: DaskBackend, worker_no: int, end: PilotEnd) -> _Worker:
    """Return a worker that is not up yet."""
    pilot: Any = EndedPilot(end)
    worker = backend._workers[worker_no] = _Worker(worker_no, SPEC, pilot, 0)
    return worker


def test_pilots_whose_links_die_are_submitted_more_and_more_slowly():
    backend, delays = DaskBackend("dask", DaskOptions(address="tcp://127.0.0.1:1")), []
    for count in range(4):
        link: Any = object()
        for worker_no in range(3):
            waiting(backend, worker_no, PilotEnd(address="")).link = link
        began = backend._clock.monotonic_us()
        backend.on_death(link, "its Dask worker was restarted")
        assert not backend._workers
        assert backend._failures[SPEC][0] == count + 1
        delays.append(round((backend._failures[SPEC][1] - began) / 1e6, 1))
    assert delays == [0.5, 1.0, 2.0, 4.0]


async def test_dask_workers_that_left_without_work_are_forgotten(monkeypatch):
    monkeypatch.setattr(agent_link, "DEATH_SECONDS", 0.0)
    backend = DaskBackend("dask", DaskOptions(address="tcp://127.0.0.1:1"))
    backend._lease = ExecutorLease(home_id="h0me", node_no=0, epoch=1, secret="s")
    with socket.create_server(("127.0.0.1", 0)) as port:  # still there when its connections break
        address = f"tcp://127.0.0.1:{port.getsockname()[1]}"

        async def breaks(*_: object, **__: object) -> Any:
            raise ConnectionResetError

        monkeypatch.setattr(module, "worker_dial", breaks)
        async with anyio.create_task_group() as backend._links_group:
            for number in range(3):
                up = PilotUp(worker_no=number, address=address, agent_id=f"agent {number}")
                backend._on_announcement(msgspec.msgpack.encode(up))
            assert len(backend._links) == 3
    assert not backend._links


async def test_a_pilot_that_another_link_cut_off_is_no_failure_of_its_dask_worker():
    backend = DaskBackend("dask", DaskOptions(address="tcp://127.0.0.1:1"))
    await backend._watch(waiting(backend, 1, PilotEnd(address="a", is_cut_off=True)))
    assert not (backend._workers)
    assert not (backend._refusing)
    assert not (backend._failures)


def _parent(pid: int) -> int:
    with Path(f"/proc/{pid}/stat").open() as file:
        return int(file.read().rpartition(")")[2].split()[1])
