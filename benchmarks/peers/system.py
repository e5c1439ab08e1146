"""Declarations of systems, and the instance that runs a peer's program in its own environment.

The code for a peer is only in ``programs/``, and is run by the interpreter of the peer's
environment. Program and driver exchange one JSON object per line. So each system receives the same
requests, and the memory and processor time of its processes are measured from outside by the same
code.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import psutil

from benchmarks.daemon import eventually, process_tree

__all__ = (
    "Failed",
    "Instance",
    "ProgramInstance",
    "Start",
    "System",
    "TimedOut",
    "Variant",
    "install",
    "wait_until",
)

ENVIRONMENTS = Path(__file__).parents[2] / "build" / "peers"
PROGRAMS = Path(__file__).parent / "programs"

STOP_SECONDS = 10.0
"""Maximum time that a program may take to end once its input is closed."""


class Failed(Exception):
    """The system answered with an error, or ended."""


class TimedOut(Exception):
    """The time limit of the cell is over."""


class Variant(NamedTuple):
    """One way of running a system.

    Attributes:
        name: Its database, and what else differs from the system's other variants.
        durability: What a commit survives, and by which setting.
        beside: The variant of aioflow it is compared with, on the same kind of database and with
            the same durability.
        options: Settings of aioflow's daemon; no variant of a peer has any.
    """

    name: str
    durability: str
    beside: str
    options: Mapping[str, Any] = {}

    @property
    def needs_postgres(self) -> bool:
        """Whether this variant uses a PostgreSQL server."""
        return self.name.startswith("PostgreSQL")


class System(NamedTuple):
    """One system, declared by its module.

    Attributes:
        name: Name of its module, and the value of ``SYSTEM=``.
        packages: Packages with their exact versions, the main one first.
        program: Name of its program in ``programs/``; empty for aioflow.
        settings: How it is configured for speed, and after which page of its documentation.
        written: How the work is written, by measurement, if this is not obvious.
        lacks: Why it lacks a feature, by measurement or figure.
        sizes: Sizes of measurements that would otherwise not end within the time limit.
        newer: A newer release that exists, but that the package index did not have.
        task_programs: Number of its programs that share the no-op tasks.
        per_second: Number of waits due per second when their lateness is measured.
    """

    name: str
    title: str
    packages: tuple[str, ...]
    program: str
    variants: tuple[Variant, ...]
    settings: tuple[str, ...] = ()
    written: Mapping[str, str] = {}
    lacks: Mapping[str, str] = {}
    sizes: Mapping[str, int] = {}
    newer: str = ""
    task_programs: int = 1
    per_second: float = 100.0

    @property
    def version(self) -> str:
        """The version of the main package."""
        return self.packages[0].rpartition("==")[2] if self.packages else "this checkout"


class Start(NamedTuple):
    """Parameters of an instance.

    Attributes:
        folder: Folder for its files. A second start in the same folder continues the work of the
            first.
        database: URL of an empty PostgreSQL database, or an empty string for SQLite.
        seconds: Time limit from now to the stop.
        role: ``main``, or ``more`` for a further program that shares the no-op tasks.
        in_flight: Number of tasks that have to run at the same time.
        patience: Factor for the time in which all waits are handed over before the first is due.
    """

    folder: Path
    database: str
    seconds: float
    role: str = "main"
    in_flight: int = 0
    patience: float = 1.0


class Instance(Protocol):
    """A system under measurement."""

    def start(self) -> float:
        """Start the system; return the seconds until it was ready."""

    def ask(self, work: str, **size: Any) -> dict[str, Any]:
        """Let the system do some work; return its answer."""

    def recorded(self) -> list[int]:
        """Return the numbers of the tasks recorded as successful; the system must be stopped."""

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the system, without those of a database server."""

    def resident(self) -> list[psutil.Process]:
        """Return ``processes()`` without those that only make requests."""

    def kill(self) -> None:
        """``kill -9`` all processes of the system."""

    def stop(self) -> None:
        """Stop the system."""


def install(system: System) -> Path:
    """Install the packages into a separate environment; return its interpreter."""
    home = ENVIRONMENTS / system.name
    python, mark = home / "bin" / "python", home / "installed"
    wanted = "\n".join(system.packages)
    if not (mark.exists() and mark.read_text() == wanted):
        print(f"Installing {', '.join(system.packages)} into {home} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *system.packages], check=True)
        mark.write_text(wanted)
    return python


def wait_until(
    look: Callable[[], bool], seconds: float, *, look_seconds: float = 0.01, growth: float = 0.0
) -> None:
    """Wait until ``look`` returns true; see ``eventually``.

    Raises:
        TimedOut: If that takes longer than ``seconds``.
    """
    try:
        eventually(look, seconds, look_seconds=look_seconds, growth=growth)
    except AssertionError:
        raise TimedOut from None


class ProgramInstance:
    """A peer, run by its program."""

    def __init__(self, system: System, python: Path, start: Start) -> None:
        self._start = start
        self._python = python
        self._program = PROGRAMS / system.program
        self._options = {
            "folder": str(start.folder),
            "database": start.database,
            "role": start.role,
            "in_flight": start.in_flight,
            "patience": start.patience,
        }
        self._until = time.monotonic() + start.seconds
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None
        self._resident: list[int] = []
        self.log = start.folder / "program.log"

    def start(self) -> float:
        """Start the program and wait until it says that it is ready."""
        self._start.folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        self._launch(self._options)
        said = self._answer()
        self._resident = [int(pid) for pid in said.get("resident", ())]
        return time.monotonic() - began

    def _launch(self, options: Mapping[str, Any]) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._python, self._program, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                cwd=self._start.folder,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
            )
        self._answers = queue.Queue()
        arguments = (self._process.stdout, self._answers)
        threading.Thread(target=_read, args=arguments, daemon=True).start()

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=max(0.0, self._until - time.monotonic()))
        except queue.Empty:
            raise TimedOut from None
        if line is None:
            raise Failed(f"the program ended: {self.log.read_text(errors='replace')[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def ask(self, work: str, **size: Any) -> dict[str, Any]:
        """Send one request and wait for its answer."""
        assert self._process is not None
        assert self._process.stdin is not None
        left = self._until - time.monotonic()
        self._process.stdin.write(json.dumps({"do": work, "seconds": left, **size}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def recorded(self) -> list[int]:
        """Start the program only for this request, and return its answer."""
        self._launch({**self._options, "role": "recorded"})
        found = [int(number) for number in self._answer()["recorded"]]
        self.stop()
        return found

    def processes(self) -> list[psutil.Process]:
        """Return the program and its descendants."""
        return [] if self._process is None else process_tree(self._process.pid)

    def resident(self) -> list[psutil.Process]:
        """Return the processes that the program named, with their descendants; else all."""
        if not self._resident:
            return self.processes()
        return [process for pid in self._resident for process in process_tree(pid)]

    def kill(self) -> None:
        """``kill -9`` the program and its descendants."""
        _kill(self.processes())
        self.stop()

    def stop(self) -> None:
        """End the program by closing its input; kill what is left of it."""
        if self._process is None:
            return
        tree = self.processes()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        _kill([*tree, *self.processes()])  # a program that is still starting may have new processes
        self._process.wait()
        self._process = None


def _read(output: IO[str], answers: queue.Queue[str | None]) -> None:
    with output:
        for line in output:
            answers.put(line)
    answers.put(None)


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(processes, timeout=10)
