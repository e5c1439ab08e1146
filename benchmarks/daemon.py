"""A real daemon in its own process, controlled over its socket and measured in its database.

Used by benchmarks and by tests that need a complete daemon.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

from aioflow.settings import socket_path

__all__ = (
    "DaemonProcess",
    "eventually",
    "fsync_ms",
    "memory_bytes",
    "process_tree",
    "put",
    "succeeded",
    "task_of",
)

Answer = TypeVar("Answer")

TASK_SUCCESS = 6


class DaemonProcess:
    """``python -m aioflow up`` with its own home.

    Args:
        home: Created if it does not exist.
        dags: Folder of DAG files.
        db: Database URL; defaults to the home's own SQLite file.
        flags: Further flags of ``aioflow up``.
    """

    def __init__(
        self, home: Path, dags: Path, *, db: str | None = None, flags: tuple[str, ...] = ()
    ) -> None:
        self.home = home
        self.log = home.parent / f"{home.name}.log"
        self.ready_seconds = 0.0
        self._command = [
            sys.executable, "-m", "aioflow", "up",
            "--home", str(home), "--dags", str(dags), "--port", "0", *flags,
        ]  # fmt: skip
        if db is not None:
            self._command += ["--db", db]
        self.environment: dict[str, str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    # ── life cycle ──────────────────────────────────────────────────────────────────────

    def start(self, timeout: float = 60.0) -> DaemonProcess:
        """Start the daemon and wait until it is ready."""
        began = time.monotonic()
        self.launch()
        eventually(self._is_ready, timeout, lambda: self.log.read_text(errors="replace")[-3000:])
        self.ready_seconds = time.monotonic() - began
        return self

    def launch(self) -> None:
        """Start the daemon without waiting until it is ready."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.environment,
            )

    def _is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(
                f"the daemon ended with {self.process.returncode}: "
                + self.log.read_text(errors="replace")[-3000:]
            )
        try:
            return self.get("/health/ready", status=None)[0] == 200
        except OSError:
            return False

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The daemon's own process."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def is_alive(self) -> bool:
        """Return whether the daemon's own process is alive."""
        return self._process is not None and self._process.poll() is None

    def tree(self) -> list[psutil.Process]:
        """Return the daemon and all of its descendants."""
        return process_tree(self.process.pid)

    def kill(self, *, whole_tree: bool = False) -> list[int]:
        """``kill -9`` the daemon, or its whole tree; return the pids that were alive."""
        tree = self.tree()
        for process in tree if whole_tree else tree[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        return [process.pid for process in tree]

    def stop(self, timeout: float = 30.0) -> int:
        """Send SIGTERM and wait for the end; return the exit status."""
        if self.is_alive:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            if self.is_alive:
                self.kill(whole_tree=True)  # ``__exit__`` is not called if ``__enter__`` fails
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the daemon if it was started; kill its whole tree if it does not end in time."""
        if self._process is None:
            return
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.kill(whole_tree=True)
            raise

    # ── requests ────────────────────────────────────────────────────────────────────────

    def _socket(self) -> str:
        """Return the daemon's socket, which is outside its home if that path would be too long."""
        return str(socket_path(self.home))

    def request(
        self, method: str, path: str, body: object = None, *, status: int | None = 200
    ) -> tuple[int, Any]:
        """Send one request over the Unix socket; ``status`` is asserted unless ``None``."""
        connection = _UnixConnection(self._socket())
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        is_json = "json" in response.headers.get("Content-Type", "")
        answer = json.loads(raw) if is_json else raw.decode()
        if status is not None and not status <= response.status < status + 5:
            raise AssertionError(f"{method} {path}: {response.status} {answer}")
        return response.status, answer

    def items(self, path: str) -> Any:
        """Return the items of the first page of a list."""
        return self.get(path)[1]["items"]

    def get(self, path: str, *, status: int | None = 200) -> tuple[int, Any]:
        """Send a GET request; if a status is expected, retry while the database is too busy."""

        def asked() -> tuple[int, Any] | None:
            found = self.request("GET", path, status=None)
            return None if found[0] == 503 and status is not None else found

        found, answer = eventually(asked, 60.0, lambda: f"GET {path}: 503 all the while")
        if status is not None and not status <= found < status + 5:
            raise AssertionError(f"GET {path}: {found} {answer}")
        return found, answer

    def trigger(
        self, dag_id: str, conf: Mapping[str, object] | None = None, **fields: object
    ) -> str:
        """Start a run once the DAG is known and the database accepts it; return its id."""
        body = {"conf": conf, **fields}
        if "run_id" not in fields:
            body.setdefault("key", uuid.uuid4().hex)  # a retry returns the same run

        def made() -> str | None:
            status, answer = self.request("POST", f"/api/v1/dags/{dag_id}/runs", body, status=None)
            if status in {404, 503}:
                return None  # the file is not parsed yet, or a commit is slow
            if status == 409 and answer["code"] == "request.dag_broken":
                return None  # the file was repaired, but is not parsed again yet
            assert status in {200, 201}, answer
            return str(answer["run_id"])

        return eventually(made, 60.0, lambda: f"no run of {dag_id} is made")

    def knows(self, dag_id: str, timeout: float = 60.0) -> None:
        """Wait until the file of a DAG has been parsed. The daemon is ready before that."""
        eventually(lambda: self.get(f"/api/v1/dags/{dag_id}", status=None)[0] == 200, timeout)

    def run(self, run_id: str, *, limit: int = 1000) -> dict[str, Any]:
        """Return what ``runs show --json`` prints."""
        answer: dict[str, Any] = self.get(f"/api/v1/runs/{run_id}?limit={limit}")[1]
        return answer

    def wait(self, run_id: str, timeout: float = 120.0) -> dict[str, Any]:
        """Wait until a run has ended; return its final state."""

        def ended() -> dict[str, Any] | None:
            run = self.run(run_id, limit=1)
            return run if run["state"] not in {"queued", "running"} else None

        def shown() -> str:
            return json.dumps(self.run(run_id, limit=20))[:3000]

        return eventually(ended, timeout, shown, growth=0.05)

    def version(self, dag_id: str) -> str:
        """Return the version of a DAG, or an empty string while it is unknown."""
        with self.database() as database:
            found = database.execute("SELECT version FROM dag WHERE dag_id = ?", (dag_id,))
            row = found.fetchone()
        return "" if row is None else str(row[0])

    # ── measurements ────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """Open a read-only connection to the home's SQLite file."""
        connection = sqlite3.connect(f"file:{self.home / 'aioflow.db'}?mode=ro", uri=True)
        try:
            yield connection
        finally:
            connection.close()

    def memory_mib(self) -> dict[str, float]:
        """Return the unique (USS) and proportional (PSS) memory of all processes, in MiB."""
        return {kind: round(held / 2**20, 1) for kind, held in memory_bytes(self.tree()).items()}


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


def process_tree(pid: int) -> list[psutil.Process]:
    """Return a process and all of its descendants that exist."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def memory_bytes(processes: Iterable[psutil.Process]) -> dict[str, int]:
    """Return the unique (USS) and proportional (PSS) memory of the processes together."""
    held = {"uss": 0, "pss": 0}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            info = process.memory_full_info()
            held["uss"] += info.uss
            held["pss"] += info.pss
    return held


def eventually(
    look: Callable[[], Answer | None],
    timeout: float = 30.0,
    describe: Callable[[], str] = lambda: "",
    *,
    look_seconds: float = 0.01,
    growth: float = 0.0,
) -> Answer:
    """Call ``look`` until it returns a true value, and return that.

    Args:
        look_seconds: The shortest pause between two calls of ``look``.
        growth: The pause as a share of the time waited so far, if that is longer.

    Raises:
        AssertionError: On timeout, with the text of ``describe``.
    """
    began = time.monotonic()
    while True:
        answer = look()
        if answer:
            return answer
        waited = time.monotonic() - began
        if waited > timeout:
            raise AssertionError(f"not within {timeout} s: {describe()}")
        time.sleep(max(look_seconds, growth * waited))


def put(path: Path, content: str | bytes) -> None:
    """Write a file atomically: readers see the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    temporary.rename(path)


def task_of(daemon: DaemonProcess, run_id: str, name: str) -> dict[str, Any]:
    """Return one task of a run, as ``runs show --json`` prints it."""
    (found,) = [task for task in daemon.run(run_id)["tasks"] if task["task_id"] == name]
    return dict(found)


def succeeded(database: sqlite3.Connection) -> int:
    """Return the number of task rows in state success."""
    count: int = database.execute(
        "SELECT count(*) FROM task WHERE state = ?", (TASK_SUCCESS,)
    ).fetchone()[0]
    return count


def fsync_ms(folder: Path, rounds: int = 200) -> float:
    """Return the median time of a 4 KiB append and ``fdatasync`` on this disk, in milliseconds."""
    path = folder / "fsync.probe"
    took = []
    with path.open("wb") as file:
        for _ in range(rounds):
            file.write(b"x" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    path.unlink()
    return round(sorted(took)[rounds // 2] * 1000, 3)
