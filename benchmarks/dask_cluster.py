"""A Dask cluster for tests and measurements: a scheduler and workers, each a real process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ("DaskCluster",)


class DaskCluster:
    """A scheduler and workers, each in its own process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self._scheduler: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def address(self) -> str:
        """Address of the scheduler."""
        return f"tcp://127.0.0.1:{self._port}"

    def start_scheduler(self) -> subprocess.Popen[bytes]:
        """Start the scheduler, on the same port as the previous one."""
        file = self.folder / "scheduler.json"
        file.unlink(missing_ok=True)
        self._scheduler = self._start(
            "scheduler",
            *("--host", "127.0.0.1", "--port", str(self._port), "--no-dashboard"),
            *("--scheduler-file", str(file)),
        )
        while not file.exists() or not file.read_text().endswith("}"):
            assert self._scheduler.poll() is None, "the scheduler has ended"
            time.sleep(0.05)
        self._port = int(json.loads(file.read_text())["address"].rpartition(":")[2])
        return self._scheduler

    def start_worker(self, *arguments: str, nanny: bool = False) -> subprocess.Popen[bytes]:
        """Start a Dask worker with one thread."""
        worker = self._start(
            "worker",
            self.address,
            *("--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1"),
            "--nanny" if nanny else "--no-nanny",
            *("--local-directory", str(self.folder)),
            *arguments,
        )
        self.workers.append(worker)
        return worker

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self.folder / "dask.log").open("ab")
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **os.environ,
                    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
                    "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "false",
                },
            )

    def kill_scheduler(self) -> None:
        """Kill the scheduler."""
        assert self._scheduler is not None
        self._scheduler.kill()
        self._scheduler.wait()

    def stop(self) -> None:
        """Kill everything."""
        for process in (*self.workers, self._scheduler):
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
