"""Daemons that share a PostgreSQL database: one is active, the others stand by.

Used by benchmarks and by tests that need several complete daemons.
"""

from __future__ import annotations

import http.client
import os
import signal
from pathlib import Path

from aioflow.cli.failover.nodes import prepare_home
from benchmarks.daemon import DaemonProcess

__all__ = ("NodeProcess",)


class NodeProcess(DaemonProcess):
    """One of several daemons on one database. It has its own home, and the key that all share.

    Args:
        folder: Contains the homes, the key, and the results and logs of all nodes.
        is_alone: Whether it is the only daemon, with ``ha.enabled`` off and all else the same.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        dags: Path,
        db: str,
        *,
        flags: tuple[str, ...] = ("--cpu-slots", "2"),
        is_alone: bool = False,
    ) -> None:
        super().__init__(folder / name, dags, db=db, flags=flags)
        self.name = name
        shared = folder / (f"{name}-shared" if is_alone else "shared")
        prepare_home(self.home, name, shared=shared, key=folder / "key")
        if is_alone:
            self.environment = {**os.environ, "AIOFLOW_HA__ENABLED": "false"}

    def last_words(self) -> str:
        """Return the end of the daemon's log."""
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def is_ready(self) -> bool:
        """Return whether the daemon is active and ready."""
        try:
            if not self.is_alive:
                return False
            status, health = self.request("GET", "/health/ready", status=None)
        except (OSError, http.client.HTTPException):
            return False
        return status == 200 and "engine" in health["checks"]  # a standby has none

    def health(self, which: str) -> int:
        """Return the status of ``/health/live`` or ``/health/ready``; 0 if there is no response."""
        try:
            return int(self.request("GET", f"/health/{which}", status=None)[0])
        except (OSError, http.client.HTTPException):
            return 0

    def stand_still(self) -> None:
        """Stop the daemon, but not its children, by SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the daemon continue, by SIGCONT."""
        self.process.send_signal(signal.SIGCONT)
