"""A child lives as long as its block, its death has a cause, and no process outlives the child."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from aioflow import processes as package
from aioflow.processes import Children, orphans, process
from aioflow.processes.environment import child_environment
from aioflow.processes.orphans import boot_id, home_mark, read_start_ticks
from aioflow.processes.process import OomCounter, describe_exit
from aioflow.protocol.commands import Hello
from aioflow.protocol.reports import Recalled
from tests.executors.processes import (
    WAYS_TO_GET_AWAY,
    Output,
    is_alive,
    pids_below,
    program,
    running,
    running_children,
    until,
)

pytestmark = pytest.mark.process

LISTEN = """
try:
    while True:
        link.receive()
except LinkClosed:
    pass
"""


def ignore(_):
    pass


async def swallow(_):
    pass


# ── environment ─────────────────────────────────────────────────────────────────────────


def test_a_child_sees_only_what_is_allowed():
    seen = child_environment(
        {
            "PATH": "/bin",
            "LC_ALL": "C",
            "PYTHONPATH": "/x",
            "DATABASE_URL": "postgresql://secret",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AIOFLOW_STORE__URL": "postgresql://secret",
            "PROXY": "wanted",
            "AIOFLOW_CHILD_ENV": "PROXY, AIOFLOW_STORE__URL",
        }
    )

    withheld = {"AIOFLOW_CHILD_WITHHELD": "AWS_SECRET_ACCESS_KEY,DATABASE_URL"}
    given = {"PATH": "/bin", "LC_ALL": "C", "PYTHONPATH": "/x", "PROXY": "wanted"}
    assert seen == given | withheld


def test_proxies_and_certificates_pass_and_what_patterns_name():
    source = dict.fromkeys(
        (
            *("HTTP_PROXY", "https_proxy", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
            *("AWS_PROFILE", "AWS_REGION", "DATABASE_URL", "MY_AWS_KEY", "AIOFLOW_AWS_X"),
        ),
        "x",
    )

    usual = child_environment(source)
    more = child_environment(source, ("AWS_*", "DATABASE_URL", "*X"))

    assert set(usual) == {
        *("HTTP_PROXY", "https_proxy", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
        "AIOFLOW_CHILD_WITHHELD",
    }
    assert set(more) - set(usual) == {"AWS_PROFILE", "AWS_REGION", "DATABASE_URL"}
    assert more["AIOFLOW_CHILD_WITHHELD"] == "MY_AWS_KEY"


async def test_a_real_child_gets_that_environment_and_nothing_to_read(tmp_path):
    source = "print(sorted(os.environ), repr(sys.stdin.read()), flush=True)\nlink.send([])"
    environment = {"PATH": os.environ["PATH"], "SECRET_TOKEN": "secret"}
    children = Children(tmp_path, program=program(source), environment=environment)
    output = Output()
    async with (
        running(children),
        children.child("slot", on_reports=ignore, on_output=output) as child,
    ):
        await child.ended()

    assert b"SECRET" not in output.data
    assert b"AIOFLOW_CHILD_OF" in output.data
    assert output.data.strip().endswith(b"''")


# ── the link, output ────────────────────────────────────────────────────────────────────


async def test_reports_of_a_child_arrive_before_its_end(tmp_path):
    source = """
[welcome] = link.receive()
print("said", welcome.role, flush=True)
link.send([Recalled(((n, n),)) for n in range(1000)])
os._exit(3)
"""
    reports, output = [], Output()
    async with (
        running_children(tmp_path, source) as children,
        children.child("slot", on_reports=reports.extend, on_output=output) as child,
    ):
        child.send([Hello("slot", "", "")])
        failure = await child.ended()
        assert len(reports) == 1000

    assert reports[-1] == Recalled(((999, 999),))
    assert output.data == b"said slot\n"
    assert failure.reason == "exit"
    assert "status 3: said slot" in failure.message


async def test_a_slow_reader_slows_the_child_down(tmp_path, monkeypatch):
    source = (
        """
os.set_blocking(1, False)
written = 0
try:
    while True:
        written += os.write(1, b"x" * 4096)
except BlockingIOError:
    pass
link.send([Recalled(((written, 0),))])
os.set_blocking(1, True)
"""
        + LISTEN
    )
    reports = []
    blocked = anyio.Event()

    async def stuck(_):
        await blocked.wait()

    monkeypatch.setattr(process, "LINK_GRACE_SECONDS", 20.0)
    async with (
        running_children(tmp_path, source) as children,
        children.child("slot", on_reports=reports.extend, on_output=stuck) as child,
    ):
        await until(lambda: reports)
        blocked.set()
        child.dismiss()
        assert (await child.ended()).reason == "exit"

    [recalled] = reports
    assert recalled.tries[0][0] <= 256 * 1024


async def test_a_child_that_ignores_the_end_of_its_link_is_killed(tmp_path):
    async with (
        running_children(tmp_path, "while True: time.sleep(1)") as children,
        children.child("slot", on_reports=ignore, on_output=swallow) as child,
    ):
        child.dismiss()
        with anyio.fail_after(60):
            assert (await child.ended()).reason == "killed"


async def test_rubbish_on_the_link_costs_the_child(tmp_path):
    source = 'link._sock.sendall(b"\\xff" * 64)\nwhile True: time.sleep(1)'
    async with (
        running_children(tmp_path, source) as children,
        children.child("slot", on_reports=ignore, on_output=swallow) as child,
    ):
        with anyio.fail_after(60):
            assert (await child.ended()).reason == "killed"


# ── endings ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("returncode", "out_of_memory", "reason", "word"),
    [
        pytest.param(0, False, "exit", "status 0", id="ended"),
        pytest.param(7, False, "exit", "status 7", id="exit-status"),
        pytest.param(-signal.SIGSEGV, False, "crashed", "SIGSEGV", id="segfault"),
        pytest.param(-signal.SIGABRT, True, "crashed", "SIGABRT", id="abort-beside-an-oom-kill"),
        pytest.param(-signal.SIGKILL, False, "killed", "outside", id="killed"),
        pytest.param(-signal.SIGKILL, True, "oom", "memory", id="out-of-memory"),
        pytest.param(-40, False, "crashed", "signal 40", id="real-time-signal"),
    ],
)
def test_an_exit_status_is_reported_as_a_failure(returncode, out_of_memory, reason, word):
    failure = describe_exit(returncode, out_of_memory=out_of_memory)

    assert failure.reason == reason
    assert word in failure.message


async def test_a_segfault_is_reported_by_its_signal(tmp_path):
    source = "os.kill(os.getpid(), signal.SIGSEGV)"
    async with (
        running_children(tmp_path, source) as children,
        children.child("slot", on_reports=ignore, on_output=swallow) as child,
    ):
        failure = await child.ended()

    assert (failure.type, failure.reason) == ("Crashed", "crashed")
    assert "SIGSEGV" in failure.message


def test_each_kill_for_memory_is_blamed_once(tmp_path):
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 5\noom_kill 2\n")
    counter = OomCounter(events)
    assert not counter.claim()

    events.write_text("low 0\noom 9\noom_kill 4\n")

    assert [counter.claim() for _ in range(3)] == [True, True, False]


def test_without_a_cgroup_nothing_is_blamed_on_memory():
    assert not OomCounter(None).claim()


# ── killing ─────────────────────────────────────────────────────────────────────────────


async def test_leaving_the_block_kills_the_child_and_its_descendants(tmp_path):
    source = """
child = subprocess.Popen(["sleep", "1000"])
link.send([Recalled(((child.pid, 0),))])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True: time.sleep(1)
"""
    reports = []
    async with running_children(tmp_path, source) as children:
        async with children.child("slot", on_reports=reports.extend, on_output=swallow) as child:
            await until(lambda: reports)
            offspring = reports[0].tries[0][0]
            assert is_alive(offspring)
        assert not is_alive(child.pid)
        assert not is_alive(offspring)
        assert not list((tmp_path / "run" / "children").iterdir())


@pytest.mark.parametrize("get_away", WAYS_TO_GET_AWAY)
async def test_a_descendant_that_forked_twice_and_made_its_own_session_dies_too(tmp_path, get_away):
    where = tmp_path / "offspring"
    source = f"{get_away}(sys.argv[1])\n" + LISTEN
    async with running_children(tmp_path, source, where) as children:
        async with children.child("slot", on_reports=ignore, on_output=swallow):
            await until(where.exists)
            offspring = int(where.read_text())
            assert is_alive(offspring)
        assert not is_alive(offspring)


@pytest.mark.parametrize("get_away", WAYS_TO_GET_AWAY)
async def test_a_killed_child_with_such_a_descendant_ends_only_when_that_is_dead(
    tmp_path, get_away
):
    where = tmp_path / "offspring"
    source = f"{get_away}(sys.argv[1])\n" + LISTEN
    async with (
        running_children(tmp_path, source, where) as children,
        children.child("slot", on_reports=ignore, on_output=swallow) as child,
    ):
        await until(where.exists)
        child.kill()
        assert (await child.ended()).reason == "killed"
        assert not is_alive(int(where.read_text()))


async def test_stopping_gives_the_child_time_to_say_goodbye(tmp_path):
    source = """
def goodbye(*_):
    print("goodbye", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, goodbye)
link.send([Recalled(())])
while True: time.sleep(1)
"""
    reports, output = [], Output()
    async with (
        running_children(tmp_path, source) as children,
        children.child("async", on_reports=reports.extend, on_output=output) as child,
    ):
        await until(lambda: reports)
        await child.stop(grace_seconds=10)
        assert (await child.ended()).reason == "exit"

    assert output.data == b"goodbye\n"


@pytest.mark.parametrize("steps", range(8))
async def test_cancelling_at_any_moment_of_a_spawn_leaks_nothing(tmp_path, steps):
    before = pids_below()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    async with running_children(tmp_path, LISTEN) as children:
        for _ in range(3):
            async with anyio.create_task_group() as group:

                async def spawn() -> None:
                    async with children.child("slot", on_reports=ignore, on_output=swallow):
                        await anyio.sleep_forever()

                group.start_soon(spawn)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()

        assert pids_below() <= before
        assert not list((tmp_path / "run" / "children").iterdir())
    assert (
        len(list(Path("/proc/self/fd").iterdir())) <= descriptors + 2
    )  # the loop may keep its own


async def test_a_program_that_cannot_be_started_leaks_nothing(tmp_path):
    children = Children(tmp_path, program=("/no/such/program",))
    async with running(children):
        gc.collect()  # or it closes some of them
        descriptors = list(Path("/proc/self/fd").iterdir())
        with pytest.raises(OSError, match="no/such"):
            async with children.child("slot", on_reports=ignore, on_output=swallow):
                pass
        gc.collect()
        assert len(list(Path("/proc/self/fd").iterdir())) == len(descriptors)


async def test_the_search_for_processes_left_by_a_child_is_retried_until_possible(
    tmp_path, monkeypatch
):
    refusals = [OSError(24, "Too many open files")] * 2

    def look(mark):
        if refusals:
            raise refusals.pop()
        return orphans.kill_marked(mark)

    monkeypatch.setattr(process, "kill_marked", look)
    monkeypatch.setattr(process, "SWEEP_AGAIN_SECONDS", 0.01)
    offspring = tmp_path / "offspring"
    source = f"daemonise({str(offspring)!r})\nos._exit(3)"
    async with (
        running_children(tmp_path, source) as children,
        children.child("slot", on_reports=ignore, on_output=swallow) as child,
    ):
        assert (await child.ended()).reason == "exit"
        assert not is_alive(int(offspring.read_text()))

    assert not refusals


async def test_a_look_for_ended_processes_that_fails_is_repeated(tmp_path, monkeypatch):
    refusals = [OSError(24, "Too many open files")] * 2
    looked = anyio.Event()

    def look(mark, besides):
        if refusals:
            raise refusals.pop()
        looked.set()

    monkeypatch.setattr(package, "reap_marked", look)
    monkeypatch.setattr(package, "REAP_SECONDS", 0.01)
    async with running_children(tmp_path, LISTEN):
        await looked.wait()

    assert not refusals


async def test_a_child_gives_back_its_descriptors_whatever_fails_at_its_end(tmp_path, monkeypatch):
    def look(mark):
        raise OSError(24, "Too many open files")

    async def live_and_die() -> None:
        async with children.child("slot", on_reports=ignore, on_output=swallow) as child:
            await child.ended()

    async with running_children(tmp_path, "os._exit(3)") as children:
        counts = []
        with monkeypatch.context() as patched:
            patched.setattr(process, "kill_marked", look)
            patched.setattr(process, "SWEEP_AGAIN_SECONDS", 0.0)
            for _ in range(4):
                with pytest.raises(OSError, match="Too many open files"):
                    await live_and_die()
                counts.append(len(list(Path("/proc/self/fd").iterdir())))

    assert counts[-1] <= counts[0]


async def test_the_black_box_names_the_culprit(tmp_path):
    source = """
os.pwrite(int(os.environ["AIOFLOW_BLACKBOX_FD"]), (42).to_bytes(8, sys.byteorder), 0)
os.kill(os.getpid(), signal.SIGSEGV)
"""
    async with (
        running_children(tmp_path, source) as children,
        children.child("async", on_reports=ignore, on_output=swallow, black_box=True) as child,
    ):
        assert child.culprit() in {-1, 42}
        await child.ended()
        assert child.culprit() == 42


# ── leftovers ───────────────────────────────────────────────────────────────────────────

EARLIER = """
import os, signal, sys
from pathlib import Path
import anyio
from tests.executors.processes import running_children
async def main():
    source = sys.argv[3] + "(sys.argv[1])\\nwhile True: time.sleep(1)"
    async with running_children(Path(sys.argv[1]), source, sys.argv[2]) as children:
        async def swallow(_): pass
        async with children.child("slot", on_reports=print, on_output=swallow) as child:
            while not os.path.exists(sys.argv[2]):
                await anyio.sleep(0.01)
            print(child.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
anyio.run(main)
"""


@pytest.mark.parametrize("get_away", WAYS_TO_GET_AWAY)
async def test_processes_left_by_a_killed_daemon_are_killed_before_anything_runs(
    tmp_path, get_away
):
    where = tmp_path / "offspring"
    command = [sys.executable, "-c", EARLIER, str(tmp_path), str(where), get_away]
    daemon = await anyio.run_process(command, check=False, cwd=Path(__file__).parents[1])
    assert daemon.returncode == -signal.SIGKILL, daemon.stderr.decode()
    leftovers = [int(daemon.stdout), int(where.read_text())]
    assert all(map(is_alive, leftovers))

    async with running_children(tmp_path, LISTEN):
        assert not any(map(is_alive, leftovers))
        assert not list((tmp_path / "run" / "children").iterdir())


ADOPTS = """
import anyio, os, signal, sys
from pathlib import Path
from aioflow import processes as package
from aioflow.worker.process import adopt_orphans
from aioflow.worker.process_tree import own_children
from tests.test_processes import LISTEN, ignore, running_children, swallow, until
where = Path(sys.argv[1])
"""


async def test_processes_adopted_by_another_parent_are_found_and_reaped(tmp_path):
    """This happens when the daemon is the first process of a container."""
    where = tmp_path / "offspring"
    adopts = """
async def main():
    adopt_orphans()
    source = "shed(sys.argv[1])\\n" + LISTEN
    async with running_children(where.parent, source, where) as children:
        async with children.child("slot", on_reports=ignore, on_output=swallow) as child:
            await until(where.exists)
            child.kill()
            await child.ended()
            assert not own_children()

anyio.run(main)
"""
    command = [sys.executable, "-c", ADOPTS + adopts, where]
    await anyio.run_process(command, cwd=Path(__file__).parents[1], stderr=None)
    assert not is_alive(int(where.read_text()))


async def test_adopted_processes_that_have_ended_are_reaped_and_no_others(tmp_path):
    adopts = """
package.REAP_SECONDS = 0.01

async def main():
    adopt_orphans()
    source = "shed(sys.argv[1])\\nos.kill(int(open(sys.argv[1]).read()), 9)\\n" + LISTEN
    async with running_children(where.parent, source, where) as children:
        async with children.child("slot", on_reports=ignore, on_output=swallow) as child:
            stranger = os.posix_spawn("/bin/true", ["true"], {})
            await until(where.exists)
            await until(lambda: own_children() == {child.pid, stranger})
            os.kill(child.pid, signal.SIGTERM)
            assert (await child.ended()).reason == "crashed"
            assert os.waitpid(stranger, 0)[0] == stranger

anyio.run(main)
"""
    command = [sys.executable, "-c", ADOPTS + adopts, tmp_path / "offspring"]
    await anyio.run_process(command, cwd=Path(__file__).parents[1], stderr=None)


async def test_a_child_is_marked_where_the_daemon_has_a_limit_by_its_environment_alone(
    tmp_path, monkeypatch
):
    limit = 10**9
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    where = tmp_path / "offspring"
    before = resource.prlimit(0, resource.RLIMIT_RTTIME)
    source = "daemonise(sys.argv[1])\n" + LISTEN
    async with running_children(tmp_path, source, where) as children:
        async with children.child("slot", on_reports=ignore, on_output=swallow) as child:
            await until(where.exists)
            assert resource.prlimit(child.pid, resource.RLIMIT_RTTIME) == before
        assert not is_alive(int(where.read_text()))


def note(home, process, **changes):
    folder = home / "run" / "children"
    folder.mkdir(parents=True)
    record = {
        "pid": process.pid,
        "start_ticks": read_start_ticks(process.pid),
        "boot_id": boot_id(),
        "role": "slot",
    }
    (folder / str(process.pid)).write_text(json.dumps(record | changes))


@pytest.fixture
def stranger():
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


async def test_a_recorded_group_is_swept_though_it_hides_its_environment(tmp_path, stranger):
    note(tmp_path, stranger)

    async with running_children(tmp_path, LISTEN):
        assert not is_alive(stranger.pid)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"start_ticks": 1}, id="started-at-another-time"),
        pytest.param({"boot_id": "another"}, id="recorded-before-a-reboot"),
    ],
)
async def test_a_process_that_has_got_the_number_since_is_left_alone(tmp_path, stranger, changes):
    note(tmp_path, stranger, **changes)

    async with running_children(tmp_path, LISTEN):
        assert is_alive(stranger.pid)
        assert not list((tmp_path / "run" / "children").iterdir())


async def test_a_record_torn_by_a_crash_does_not_stop_the_start(tmp_path):
    folder = tmp_path / "run" / "children"
    folder.mkdir(parents=True)
    (folder / "123").write_text('{"pid": 12')

    async with running_children(tmp_path, LISTEN):
        assert not list(folder.iterdir())


async def test_children_of_another_home_are_left_alone(tmp_path):
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    assert home_mark(mine) != home_mark(other)
    async with (
        running_children(other, LISTEN) as others,
        others.child("slot", on_reports=ignore, on_output=swallow) as child,
        running_children(mine, LISTEN),
    ):
        assert is_alive(child.pid)
