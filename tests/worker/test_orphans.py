"""Orphaned processes of a task are killed when it ends; its other processes are left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from aioflow.protocol.commands import RunCallback
from aioflow.protocol.outbox import Callback
from aioflow.protocol.reports import CallbackReturned, Succeeded
from tests.executors.processes import DAEMONISE, WAYS_TO_GET_AWAY, is_alive
from tests.worker.peer import result_of, run_info, start, write_version

pytestmark = pytest.mark.process

HEAD = f"""
import os, resource, signal, subprocess, sys, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from aioflow import *
{DAEMONISE}
"""


@pytest.fixture
def slot(home, spawn):
    """Return a function that starts a worker for a DAG of one task with this body."""

    def slot(body, more=""):
        lines = "\n    ".join(body.strip().splitlines())
        work = f"@task\ndef work():\n    {lines}\n\n@dag\ndef pipeline():\n    work()\n"
        write_version(home, flow=HEAD + more + work)
        child = spawn("slot")
        child.send(run_info())
        return child

    return slot


def run(child, number):
    child.send(start(0, task_no=number))
    return result_of(child.expect(Succeeded))


@pytest.mark.parametrize("way", WAYS_TO_GET_AWAY)
def test_detached_processes_are_dead_when_the_end_of_their_try_is_reported(slot, tmp_path, way):
    where = tmp_path / "pid"
    child = slot(f"{way}({str(where)!r})\nreturn os.getpid()")

    workers = set()
    for number in (1, 2):
        workers.add(run(child, number))
        assert not is_alive(int(where.read_text()))
        where.unlink()

    assert len(workers) == 1
    child.close()
    assert child.output().count(b"aioflow: killed 1 processes") == 2


def test_it_is_found_though_the_end_of_its_parent_was_not_reported(slot, tmp_path):
    where = tmp_path / "pid"
    body = f"""
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
code = {DAEMONISE + f"shed({str(where)!r})"!r}.replace("os.wait()", "")
subprocess.run([sys.executable, "-c", "import os, time" + code])
"""
    child = slot(body)

    run(child, 1)

    assert not is_alive(int(where.read_text()))


def test_all_that_it_has_started_is_killed_with_it(slot, tmp_path):
    """Each of these processes continually starts others."""
    pids = tmp_path / "pids"
    pids.mkdir()
    source = f"""
os.setsid()
if os.fork():
    os._exit(0)
for _ in range(4):
    os.fork()
open(r"{pids}/" + str(os.getpid()), "w").close()
while True:
    time.sleep(0.01)
    if os.fork() == 0:
        os._exit(0)
    os.wait()
"""
    body = f"""
subprocess.run([sys.executable, "-c", CODE], env={{}})
while len(os.listdir({str(pids)!r})) < 16: time.sleep(0.001)
"""
    child = slot(body, f"CODE = {'import os, time' + source!r}\n")

    run(child, 1)

    found = [int(path.name) for path in pids.iterdir()]
    assert len(found) == 16
    assert not any(map(is_alive, found))


def test_processes_that_a_task_keeps_for_the_next_are_left_alone_with_their_children(
    slot, tmp_path
):
    kept = """
pool = ProcessPoolExecutor(1)
server, SLEEP = [], ["sh", "-c", "sleep 1000; true"]
"""
    body = f"""
if not server:
    server.append(subprocess.Popen(SLEEP, start_new_session=True, env={{}}))
shed({str(tmp_path / "pid")!r})
os.unlink({str(tmp_path / "pid")!r})
assert server[0].poll() is None
children = Path(f"/proc/{{server[0].pid}}/task/{{server[0].pid}}/children")
while not children.read_text(): time.sleep(0.001)
return [pool.submit(os.getpid).result(), server[0].pid, children.read_text()]
"""
    child = slot(body, kept)

    first, second = run(child, 1), run(child, 2)

    assert first == second


def test_one_that_is_about_to_end_may_do_so(home):
    source = f"""
import resource, subprocess
from aioflow.worker import process_tree
resource.setrlimit(resource.RLIMIT_RTTIME, (1 << 61, 1 << 62))
process_tree.PATIENCE_SECONDS = 60.0
found = process_tree.Orphans()
subprocess.run(["sh", "-c", "(sleep 0.1; echo said > {home}/said) &"])
assert found.kill() == 0
"""
    subprocess.run([sys.executable, "-c", source], check=True)

    assert (home / "said").read_text() == "said\n"


def test_without_a_mark_nothing_is_killed():
    source = """
import os, signal, subprocess
from aioflow.worker.process_tree import Orphans
found = Orphans()
subprocess.run(["sh", "-c", "sleep 1000 > /dev/null & echo $!"])
assert found.kill() == 0
"""
    said = subprocess.run([sys.executable, "-c", source], check=True, stdout=subprocess.PIPE)

    assert is_alive(int(said.stdout))
    subprocess.run(["kill", "-9", said.stdout.strip()], check=True)


def test_a_callback_leaves_nothing_either(home, spawn):
    where = home / "pid"
    source = f"""
def tell(context):
    shed({str(where)!r})

@dag(on_success=tell)
def pipeline():
    pass
"""
    write_version(home, flow=HEAD + source)
    child = spawn("callbacks", started=True)
    body = msgspec.msgpack.encode(Callback("success", 1, -1, "success", 0))
    child.send(run_info(), RunCallback(1, 1, body))

    assert child.expect(CallbackReturned).failure is None
    assert not is_alive(int(Path(where).read_text()))
