"""Helpers of tests with real processes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from aioflow.processes import Children

PRELUDE = """
import os, signal, socket, subprocess, sys, time
from aioflow.worker.link import BlockingLink
from aioflow.protocol.reports import *
from aioflow.protocol.commands import *
from aioflow.errors import LinkClosed
link = BlockingLink(socket.socket(fileno=int(os.environ["AIOFLOW_LINK_FD"])))
os.set_inheritable(int(os.environ["AIOFLOW_LINK_FD"]), False)
"""

# Forks twice and creates a session, so that neither the process group nor the parent leads to it.
DAEMONISE = """
def daemonise(path):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (0, 1, 2):
                os.close(number)
            with open(path + ".new", "w") as file:
                file.write(str(os.getpid()))
            os.rename(path + ".new", path)
            while True:
                time.sleep(1)
        os._exit(0)
    os.wait()
    while not os.path.exists(path):
        time.sleep(0.001)

# The same, and nothing of the environment is left: that does not lead to it either.
def shed(path):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            tells = 'echo $$ > "$0.new"; mv "$0.new" "$0"; exec sleep 1000 > /dev/null 2>&1'
            os.execve("/bin/sh", ["sh", "-c", tells, path], {})
        os._exit(0)
    os.wait()
    while not os.path.exists(path):
        time.sleep(0.001)
"""

WAYS_TO_GET_AWAY = "daemonise", "shed"


def program(source: str, *arguments: object) -> tuple[str, ...]:
    """Return the command line of a child that speaks the link."""
    return (sys.executable, "-c", PRELUDE + DAEMONISE + source, *map(str, arguments))


def is_alive(pid: int) -> bool:
    """Return whether a process is running. A zombie is not."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat[stat.rindex(")") + 2] not in "XZ"
    return False


def pids_below() -> set[int]:
    """Return the living children of this process."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


async def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    """Wait for a condition that only another process can bring about."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.002)


@asynccontextmanager
async def running(*services: Any) -> AsyncIterator[None]:
    """Run services for the duration of the block. They start in the given order."""
    async with anyio.create_task_group() as group:
        for service in services:
            await group.start(service.run)
        yield
        group.cancel_scope.cancel()


@asynccontextmanager
async def running_children(home: Path, source: str, *arguments: object) -> AsyncIterator[Children]:
    """Run ``Children`` with this source as the program of each child."""
    children = Children(home, program=program(source, *arguments))
    async with running(children):
        yield children


class Output:
    """Collects what a child prints."""

    def __init__(self) -> None:
        self.data = bytearray()

    async def __call__(self, data: bytes) -> None:
        self.data += data


SLOT = """
import msgspec, queue, threading
welcome, *pings = link.receive()
nonce = os.environ["AIOFLOW_LOG_NONCE"]
for _ in pings:
    link.send([Pong()])
claimed, waiting = {}, queue.SimpleQueue()

def read():
    try:
        while True:
            for order in link.receive():
                if isinstance(order, StartTask):
                    claimed[order.task_no, order.start_no] = order
                    waiting.put((order.task_no, order.start_no))
                elif isinstance(order, Recall):
                    back = tuple(key for key in order.tries if claimed.pop(key, None))
                    link.send([Recalled(back)])
                elif isinstance(order, Ping):
                    link.send([Pong()])
                else:
                    orders.append(order)
    except LinkClosed:
        os._exit(0)

orders = []
threading.Thread(target=read, daemon=True).start()
while True:
    key = waiting.get()
    start = claimed.pop(key, None)
    if start is None:
        continue
    os.write(1, f"\\x1e{nonce} {key[0]} {key[1]}\\n".encode())
    link.send([TaskStarted(*key, 1)])
    value = None
    exec(start.kwargs or b"")
    sys.stdout.flush()
    link.send([Succeeded(*key, 1, 2, value)])
"""
"""The program of a slot worker. The source in ``StartTask.kwargs`` is the body of a try."""
