"""Forked children in tests equal started ones in their state, their status and their end."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess

import msgspec
import pytest

from aioflow.protocol.commands import Hello, Recall
from aioflow.protocol.reports import Succeeded, TaskStarted
from tests import cpu_budget
from tests.differing import differing
from tests.worker.forked_process import ForkedProcess, ForkServer
from tests.worker.peer import may_change_start, result_of, run_info, start, write_version

pytestmark = pytest.mark.process

HEAD = """
import atexit, ctypes, gc, locale, os, resource, signal, sys, threading, time
from aioflow import dag, task

"""
TAIL = """

@dag
def pipeline():
    work()
"""

STATE = """
def status():
    kept = ("Sig", "Shd", "Cap", "Umask", "NoNewPrivs", "Seccomp", "Threads")
    lines = open("/proc/self/status").read().splitlines()
    return [line for line in lines if line.startswith(kept) and not line.startswith("SigQ")]

def descriptors():
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            kind = os.readlink(f"/proc/self/fd/{number}").partition(":")[0]
        except FileNotFoundError:
            continue  # the listing itself
        found.append([kind, number if number < 3 else 0, os.get_inheritable(number)])
    return sorted(found)

def parent_death_signal():
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(number))
    return number.value

def stream(stream):
    names = ("name", "mode", "encoding", "errors", "line_buffering", "write_through", "newlines")
    return [str(getattr(stream, name, None)) for name in names] + [stream.seekable()]

@task
def work():
    main = sys.modules["__main__"]
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {
        "modules": sorted(sys.modules),
        "environment": sorted(os.environ.items()),
        "paths": [sys.path, os.getcwd(), sys.argv, sys.orig_argv, sys.executable, sys.prefix],
        "main": sorted(vars(main)),
        "main itself": [main.__file__, main.__package__, main.__spec__.name, main.__doc__,
                        type(main.__builtins__).__name__, main.__annotations__],
        "session": [os.getsid(0) == os.getpid() == os.getpgid(0), os.getpriority(0, 0)],
        "status": status(),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits
                   if name != "RLIMIT_RTTIME"},  # the mark
        "handlers": [repr(signal.getsignal(n)).partition(" at ")[0] for n in range(1, 32)],
        "dies with its parent": [parent_death_signal(), open("/proc/self/oom_score_adj").read()],
        "threads": [thread.name for thread in threading.enumerate()],
        "descriptors": descriptors(),
        "streams": [stream(sys.stdin), stream(sys.__stdout__), stream(sys.__stderr__)],
        "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), time.tzname],
        "interpreter": [str(sys.flags), sys.getrecursionlimit(), sys.dont_write_bytecode],
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 50_000],
        "at exit": atexit._ncallbacks(),
        "hooks": [str(type(found)) for found in (*sys.meta_path, *sys.path_hooks)],
    }
"""


@pytest.fixture
def slot(home, spawn):
    """Return a function that starts a worker for a DAG with this task, and begins its first try."""

    def slot(source, **options):
        write_version(home, flow=HEAD + source + TAIL)
        child = spawn("slot", **options)
        child.send(run_info(), start(0))
        return child

    return slot


def test_the_state_of_a_forked_child_is_that_of_a_started_one(slot):
    variable = {"AIOFLOW_CHILD_WITHHELD": "TOKEN"}
    beside = slot(STATE, environment=variable)
    beside.expect(TaskStarted)
    forked, started = slot(STATE), slot(STATE, started=True)

    found, expected = (result_of(child.expect(Succeeded)) for child in (forked, started))

    assert isinstance(forked.process, ForkedProcess)
    assert isinstance(started.process, subprocess.Popen)
    assert not (rows := differing(found, expected)), rows


def test_which_variables_need_a_start():
    assert not may_change_start([])
    assert not may_change_start(["AIOFLOW_CHILD_WITHHELD"])
    assert may_change_start(["AIOFLOW_CHILD_WITHHELD", "LC_ALL"])


def test_what_it_prints_at_its_exit_is_heard_and_its_status_is_that_of_its_program(slot):
    child = slot("@task\ndef work():\n    atexit.register(print, 'farewell', end='')")
    child.expect(Succeeded)
    assert child.process.poll() is None

    assert child.close() == child.process.poll() == 0
    assert child.output().endswith(b"farewell")


def test_a_killed_child_has_the_signal_as_its_status_and_costs_its_case_what_it_used(slot):
    source = """
@task
def work():
    while time.process_time() < 0.2: pass
    print("at work", flush=True)
    time.sleep(60)
"""
    before = cpu_budget._cpu()
    child = slot(source)
    child.printed(lambda output: b"at work" in output)
    with pytest.raises(subprocess.TimeoutExpired):
        child.process.wait(0)
    child.process.kill()

    assert child.process.wait(child.PATIENCE) == child.process.returncode == -signal.SIGKILL
    assert child.output().endswith(b"at work\n")
    assert cpu_budget._cpu() - before > 0.18


def test_the_children_of_a_server_end_with_it(home):
    server = ForkServer({"PATH": os.environ["PATH"]})
    ours, theirs = socket.socketpair()
    with ours:
        environment = {"AIOFLOW_LINK_FD": "", "AIOFLOW_LOG_NONCE": ""}
        with theirs:
            child = ForkedProcess(server, environment, [theirs.fileno()])
        hello = Hello("slot", str(home / "code"), str(home / "results"))
        body = msgspec.msgpack.encode([hello, Recall(())])
        ours.sendall(len(body).to_bytes(4, "little") + body)
        assert ours.recv(4)  # it runs

        assert server.close() == 0
        assert select.select([child._end], [], [], 60.0)[0]
    assert child.stdout.read() == b""
    child.stdout.close()
    os.close(child._end)
