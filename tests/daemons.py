"""Daemons shared by several tests, since starting a daemon costs more CPU time than most tests.

Each test adds its own DAG files, starts its own runs, and checks nothing else. A test that kills a
daemon or needs other settings uses ``killed_daemon`` or starts its own daemon.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.daemon import DaemonProcess, eventually, put
from tests import cpu_budget

__all__ = ("SharedDaemon",)


class SharedDaemon(DaemonProcess):
    """A daemon with a folder for the DAG files of the tests that use it.

    Args:
        settings: Content of the settings file in its home.
        environment: Variables added to the environment of the test process.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: str = "",
        db: str | None = None,
        flags: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        super().__init__(folder / "home", folder / "dags", db=db, flags=flags)
        self.dags = folder / "dags"
        self.environment = {**os.environ, **(environment or {})}
        self._added: set[str] = set()
        self._is_sqlite = db is None
        self.dags.mkdir()
        self.home.mkdir()
        (self.home / "aioflow.toml").write_text(settings)

    def launch(self) -> None:
        """Start the daemon as a process that is shared by test cases."""
        super().launch()
        cpu_budget.measure(self.process.pid)

    def add(self, name: str, content: str) -> None:
        """Write a DAG file. When this returns, a running daemon has read the file."""
        path = self.dags / name
        if not path.exists() or path.read_text() != content:
            put(path, content)
        self._added.add(name)
        if self.is_alive and self._is_sqlite and "@dag" in content:
            eventually(lambda: self._has_read(name, content), 60.0, lambda: f"{name} is not read")

    def _has_read(self, name: str, content: str) -> bool:
        """Return whether the daemon has read this content of a file, not just an earlier one."""
        with self.database() as database:
            question = "SELECT version, reason FROM dag_file WHERE file = ?"
            row = database.execute(question, (name,)).fetchone()
        if row is None:
            return False
        version, reason = row
        code = self.home / "code" / str(version) / name
        return reason is not None or (code.exists() and code.read_text() == content)

    def lend(self) -> SharedDaemon:
        """Return the daemon running and without active runs. Restart it if it was killed."""
        if not self.is_alive:
            with cpu_budget.uncharged():  # an earlier case has killed it
                self.start()
        self._cancel_all()
        return self

    def _cancel_all(self) -> None:
        for state in ("queued", "running"):
            for run in self.items(f"/api/v1/runs?state={state}&limit=1000"):
                self.request("POST", f"/api/v1/runs/{run['run_id']}/cancel", status=None)

    def clear_dags(self) -> None:
        """Remove the DAG files added so far, because a later start would parse them again."""
        for name in self._added:
            (self.dags / name).unlink(missing_ok=True)
        self._added.clear()

    def end(self) -> None:
        """Stop the daemon without waiting for the runs that tests have left."""
        if self.is_alive:
            self._cancel_all()
            assert self.stop(60) == 0

    def log_from(self, offset: int) -> str:
        """Return the log from this offset on."""
        return self.log.read_bytes()[offset:].decode(errors="replace")

    @property
    def log_size(self) -> int:
        """The length of the log in bytes."""
        return self.log.stat().st_size
