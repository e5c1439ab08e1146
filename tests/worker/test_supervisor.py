from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest

from aioflow.worker.supervisor import (
    BEAT,
    KILL,
    SUPERVISOR_FD,
    ProgramEnd,
    ProgramStarted,
    SupervisorOrder,
)

pytestmark = pytest.mark.process

_messages = msgspec.json.Decoder(ProgramStarted | ProgramEnd)

STRAY = """
import os, subprocess, sys, time
stray = subprocess.Popen(["sleep", "600"], start_new_session=True)
if os.fork():
    print(stray.pid, flush=True)
    time.sleep(600)
os.setsid()
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
time.sleep(600)
"""


class Supervisor:
    """A supervisor with a Python program, and the agent's ends of its connections."""

    def __init__(
        self, source: str, contact_seconds: float = 60.0, program: str = sys.executable
    ) -> None:
        self.control, theirs = socket.socketpair()
        self.link, link_end = socket.socketpair()
        self.output, output_end = os.pipe()
        passed = theirs.fileno(), link_end.fileno(), output_end
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "aioflow.worker.supervisor"],
            pass_fds=passed,
            start_new_session=True,
            env={**os.environ, SUPERVISOR_FD: str(theirs.fileno())},
        )
        order = SupervisorOrder(
            program=(program, "-c", source),
            environment=dict(os.environ),
            descriptors=(link_end.fileno(),),
            output=output_end,
            contact_seconds=contact_seconds,
        )
        self.control.sendall(msgspec.json.encode(order) + b"\n")
        theirs.close()
        link_end.close()
        os.close(output_end)
        self.control.settimeout(60)
        self._lines = self.control.makefile("rb")

    def read(self) -> ProgramStarted | ProgramEnd:
        return _messages.decode(self._lines.readline())

    def printed(self, lines: int) -> list[int]:
        data = b""
        while data.count(b"\n") < lines:
            data += os.read(self.output, 4096)
        return [int(line) for line in data.split()]

    def close(self) -> None:
        self._lines.close()
        self.control.close()
        self.process.wait(60)
        self.link.close()
        os.close(self.output)


@pytest.fixture
def supervise():
    started: list[Supervisor] = []

    def supervise(source: str, **options: Any) -> Supervisor:
        started.append(Supervisor(source, **options))
        return started[-1]

    yield supervise
    for supervisor in started:
        supervisor.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for_death(*pids: int, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_it_tells_how_a_program_ended(supervise):
    supervisor = supervise("raise SystemExit(3)")
    assert isinstance(supervisor.read(), ProgramStarted)
    assert supervisor.read() == ProgramEnd(returncode=3)
    assert supervisor.process.wait(60) == 0


def test_a_signal_is_told(supervise):
    supervisor = supervise(f"import os; os.kill(os.getpid(), {signal.SIGSEGV.value})")
    supervisor.read()
    assert supervisor.read() == ProgramEnd(returncode=-signal.SIGSEGV)


def test_a_program_that_cannot_start_is_told(supervise):
    end = supervise("", program="/nowhere/python").read()
    assert end.returncode is None
    assert "/nowhere/python" in end.error


def test_a_kill_ends_what_the_program_left_in_other_sessions(supervise):
    supervisor = supervise(STRAY)
    supervisor.read()
    strays = supervisor.printed(2)
    supervisor.control.sendall(KILL)
    end = supervisor.read()

    assert (end.returncode, end.cause) == (-signal.SIGKILL, "order")
    assert end.strays == 2
    assert not any(map(is_alive, strays))


@pytest.mark.parametrize("death", ["closed", "stopped"])
def test_everything_ends_without_the_agent(supervise, death):
    supervisor = supervise(STRAY, contact_seconds=60.0 if death == "closed" else 0.5)
    program = supervisor.read().pid
    strays = supervisor.printed(2)
    if death == "closed":
        supervisor.control.shutdown(socket.SHUT_RDWR)
    wait_for_death(program, *strays)
    assert supervisor.process.wait(60) == 0


def test_signs_of_life_keep_it_going(supervise):
    supervisor = supervise("import time; time.sleep(600)", contact_seconds=0.6)
    program = supervisor.read().pid
    for _ in range(8):
        time.sleep(0.2)
        supervisor.control.sendall(BEAT)
    assert is_alive(program)
    end = supervisor.read()
    assert (end.returncode, end.cause) == (-signal.SIGKILL, "contact")


def test_a_killed_supervisor_takes_the_program_along(supervise):
    supervisor = supervise(
        "import ctypes, signal, sys, time\n"
        "from aioflow.worker.process import die_with_parent\n"
        "die_with_parent()\n"
        "print(1, flush=True)\n"
        "time.sleep(600)"
    )
    program = supervisor.read().pid
    supervisor.printed(1)
    supervisor.process.kill()
    wait_for_death(program)


def test_an_order_that_was_taken_back_starts_nothing():
    control, theirs = socket.socketpair()
    output, output_end = os.pipe()
    order = SupervisorOrder(
        program=(sys.executable, "-c", "print(1)"),
        environment={},
        descriptors=(),
        output=output_end,
        contact_seconds=60,
    )
    control.sendall(msgspec.json.encode(order) + b"\n" + BEAT + KILL)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "aioflow.worker.supervisor"],
        pass_fds=(theirs.fileno(), output_end),
        env={**os.environ, SUPERVISOR_FD: str(theirs.fileno())},
    )
    theirs.close()
    os.close(output_end)
    assert process.wait(60) == 0
    assert os.read(output, 10) == b""
    control.close()
    os.close(output)
