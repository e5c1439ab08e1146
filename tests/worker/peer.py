"""The daemon's end of a link in a test, which talks frame by frame to a real child process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from aioflow.author.codec import decode
from aioflow.processes.orphans import kill_marked, mark_process
from aioflow.protocol.commands import Hello, RunInfo, StartTask
from aioflow.protocol.reports import Report
from aioflow.worker.task_supervisor import UserCoroutine
from tests.sim.planted.plant import VARIABLE
from tests.worker.forked_process import ForkedProcess, fork

VERSION = "0123abcd"
NONCE = "00112233445566778899aabbccddeeff"
MARK = b"\x1e" + NONCE.encode()

_decoder = msgspec.msgpack.Decoder(list[Report])
Kind = TypeVar("Kind")


class Guest(UserCoroutine):
    """A supervised coroutine with a given number."""

    def __init__(self, number: int = 7) -> None:
        super().__init__()
        self._number = number

    @property
    def number(self) -> int:
        return self._number


class Child:
    """A process of one role. A wait of more than ``PATIENCE`` seconds fails the test.

    It is forked by a server that has imported its program (see ``fork_server``), which takes a
    fifth of the CPU time of a start. A child is started instead if it has variables that may change
    how an interpreter or a library starts.

    Args:
        started: Start the child in any case, because the test is about the start.
    """

    PATIENCE = 60.0

    def __init__(
        self,
        role: str,
        home: Path,
        *,
        recorder: int | None = None,
        memory_limit_bytes: int = 0,
        copies: str = "",
        environment: Mapping[str, str] | None = None,
        started: bool = False,
    ) -> None:
        self.home = home
        ours, theirs = socket.socketpair()
        given = {
            **{name: os.environ[name] for name in ("PYTHONPATH", VARIABLE) if name in os.environ},
            **(environment or {}),
            "PATH": os.environ["PATH"],
            "AIOFLOW_LINK_FD": str(theirs.fileno()),
            "AIOFLOW_LOG_NONCE": NONCE,
        }
        passed = [theirs.fileno()]
        if recorder is not None:
            given["AIOFLOW_BLACKBOX_FD"] = str(recorder)
            passed.append(recorder)
        self.process: subprocess.Popen[bytes] | ForkedProcess
        if started or VARIABLE in given or may_change_start(environment or {}):
            self.process = subprocess.Popen(
                [sys.executable, "-m", "aioflow.worker"],
                env=given,
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        else:
            self.process = fork(given, passed)
        self._mark = f"{NONCE}:{os.urandom(8).hex()}"
        mark_process(self.process.pid, self._mark)
        theirs.close()
        ours.settimeout(self.PATIENCE)
        self.sock = ours
        self.frames: list[list[Any]] = []
        self._later: list[Any] = []
        self._output = bytearray()
        self._printed = threading.Condition()
        # The output is read all the time, so that the pipe does not fill up while the test uses the
        # link.
        self._reader = threading.Thread(target=self._read_output)
        self._reader.start()
        code, results = str(home / "code"), str(home / "results")
        self.send(Hello(role, code, results, memory_limit_bytes, copies=copies))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.sock.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(self.PATIENCE)
        kill_marked(self._mark)
        self._reader.join(self.PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), 65536):
            with self._printed:
                self._output += data
                self._printed.notify_all()

    def send(self, *commands: object) -> None:
        """Send commands in one frame."""
        body = msgspec.msgpack.encode(commands)
        self.sock.sendall(len(body).to_bytes(4, "little") + body)

    def receive(self) -> list[Any]:
        """Return the reports of the next frame."""
        length = int.from_bytes(self._exactly(4), "little")
        frame = _decoder.decode(self._exactly(length))
        self.frames.append(frame)
        return frame

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            assert more, f"the child closed the link: {self.output()!r}"
            data += more
        return bytes(data)

    def expect(self, kind: type[Kind], where: Callable[[Kind], bool] = lambda _: True) -> Kind:
        """Return the next report of a kind. Other reports remain for later calls."""
        while True:
            for report in self._later:
                if isinstance(report, kind) and where(report):
                    self._later.remove(report)
                    return report
            self._later += self.receive()

    def printed(self, found: Callable[[bytes], Kind | None]) -> Kind:
        """Return the match in the output as soon as there is one."""

        def look() -> Kind | None:
            return found(bytes(self._output))

        with self._printed:
            result = self._printed.wait_for(look, self.PATIENCE)
        assert result, f"not found: {bytes(self._output)!r}"
        return result

    def output(self) -> bytes:
        """Return the whole output, once the child has ended."""
        self.process.wait(self.PATIENCE)
        self._reader.join(self.PATIENCE)
        return bytes(self._output)

    def close(self) -> int:
        """Close the link, as a daemon does with a child it no longer needs. Return the status."""
        self.sock.shutdown(socket.SHUT_RDWR)
        return self.process.wait(self.PATIENCE)


def may_change_start(variables: Iterable[str]) -> bool:
    """Return whether a variable may affect an interpreter or library before the role begins."""
    return not all(name.startswith("AIOFLOW_") for name in variables)


def write_version(home: Path, version: str = VERSION, **files: str) -> Path:
    """Write a snapshot. ``helper`` is written to ``helper.py``, ``a__b`` to ``a/b.py``."""
    folder = home / "code" / version
    for name, source in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    (home / "results").mkdir(exist_ok=True)
    return folder


def run_info(run_no: int = 1, **changes: Any) -> RunInfo:
    """Return a run of the DAG ``pipeline`` in ``flow.py``."""
    return msgspec.structs.replace(
        RunInfo(
            run_no=run_no,
            run_id="run-1",
            dag_id="pipeline",
            version=VERSION,
            file="flow.py",
            logical_date=1_767_225_600_000_000,  # 2026-01-01
            created_at=1_767_230_000_000_000,
            conf=None,
            first_task_no=100,
        ),
        **changes,
    )


def start(task_index: int, *, task_no: int = 0, start_no: int = 1, **changes: Any) -> StartTask:
    """Return the command that runs the task with this index."""
    return msgspec.structs.replace(
        StartTask(
            run_no=1,
            task_no=task_no or 100 + task_index,
            start_no=start_no,
            task_index=task_index,
            map_index=-1,
            try_number=1,
        ),
        **changes,
    )


def result_of(report: Any) -> Any:
    """Return the value in a ``Succeeded`` report."""
    return None if report.body is None else decode(report.body)


def kinds(reports: Iterable[object]) -> Sequence[str]:
    """Return the names of the reports' types."""
    return [type(report).__name__ for report in reports]
