"""The loop of a program: it reads a request per line, does the work, and writes an answer per line.

It is run by the interpreter of a peer's environment, so it imports only the standard library.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import socket
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

__all__ = (
    "Program",
    "end",
    "eventually",
    "free_port",
    "is_up",
    "main",
    "mark",
    "task_seconds",
)

Answer = dict[str, Any]


class Program:
    """Base class of the programs, with one method per kind of work.

    Attributes:
        folder: Folder for files.
        database: URL of PostgreSQL, or an empty string for SQLite.
        in_flight: Number of tasks that have to run at the same time, or 0.
        patience: Factor for the time in which all waits are handed over before the first is due.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.folder = Path(options["folder"])
        self.database: str = options["database"]
        self.role: str = options["role"]
        self.in_flight: int = options["in_flight"]
        self.patience: float = options["patience"]

    async def start(self) -> Answer:
        """Start the system. If only some of its processes are services, ``resident`` names them."""
        return {}

    async def stop(self) -> None:
        """Stop the processes that were started."""

    async def recorded(self) -> list[int]:
        """Return the numbers of the tasks whose success is recorded in the database."""
        return []


def main(make: Callable[[dict[str, Any]], Program]) -> None:
    """Serve until the input is closed."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    program = make(json.loads(sys.argv[1]))
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(_serve(program, lambda answer: print(json.dumps(answer), file=answers)))
    os._exit(0)  # so that no thread of a library keeps the program alive


async def _serve(program: Program, write: Callable[[Answer], None]) -> None:
    if program.role == "recorded":
        write({"recorded": await program.recorded()})
        return
    try:
        await _answer_requests(program, write)
    finally:
        await program.stop()  # also if the start failed, or the driver ended during a request


async def _answer_requests(program: Program, write: Callable[[Answer], None]) -> None:
    try:
        write(await program.start())
    except BaseException:
        write({"error": traceback.format_exc()})
        raise
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        try:
            answer = getattr(program, request.pop("do"))(**request)
            write(await answer if inspect.isawaitable(answer) else answer)
        except Exception:  # noqa: BLE001 - the driver reports it
            write({"error": traceback.format_exc()})


def free_port() -> int:
    """Return a TCP port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_up(url: str) -> bool:
    """Return whether a GET request is answered with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=20) as response:
            return bool(response.status == 200)
    except OSError:
        return False


async def end(processes: Sequence[subprocess.Popen[bytes]], seconds: float = 8.0) -> None:
    """Send SIGTERM to all; kill each one that does not end in time."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            await asyncio.to_thread(process.wait, seconds)
        except subprocess.TimeoutExpired:
            process.kill()


def mark(file: Path | str, text: str) -> None:
    """Append a line to the ledger, in one write, so that lines of several processes do not mix."""
    descriptor = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


def task_seconds(number: int) -> float:
    """Return the duration of a task of the measurement ``kill``: 0.5 to 2.5 s."""
    return 0.5 + number % 101 / 50


async def gathered(work: Iterable[Awaitable[Any]], at_a_time: int = 20) -> None:
    """Await all of ``work``, at most ``at_a_time`` at the same time."""
    left = iter(work)
    while part := list(islice(left, at_a_time)):
        await asyncio.gather(*part)


async def eventually(look: Callable[[], Any], seconds: float, pause: float = 0.01) -> Any:
    """Call ``look`` until its result is true or the time is over; return its last result."""
    until = time.monotonic() + seconds
    while True:
        found = look()
        if inspect.isawaitable(found):
            found = await found
        if found or time.monotonic() > until:
            return found
        await asyncio.sleep(pause)
