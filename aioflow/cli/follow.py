"""Follow a run: poll its daemon until the run has ended."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from aioflow.cli.client import Refused, connect
from aioflow.cli.output import hint
from aioflow.cli.queries import read
from aioflow.cli.run_progress import RunProgress
from aioflow.errors import DaemonAway

__all__ = ("ENDED", "TASK_ENDED", "exit_status", "over_restarts", "ticks", "wait_for_end", "watch")

T = TypeVar("T")

_RESTARTING = frozenset({0, 502, 503, 504})
"""HTTP statuses while a daemon, or a proxy before it, restarts; 0 means no response."""

_AWAY_SECONDS = 120.0
"""Longest wait for a daemon that restarts. After a longer absence nothing will restart it."""

ENDED = frozenset({"success", "failed", "partial", "cancelled"})

_EVERY_SECONDS = 0.3
TASK_ENDED = ENDED | {"upstream_failed", "skipped", "removed"}


def exit_status(state: str) -> int:
    """Return the exit status for a run's final state: 0 success, 3 partial, else 1."""
    return {"success": 0, "partial": 3}.get(state, 1)


def wait_for_end(arguments: argparse.Namespace, run_id: str) -> str:
    """Wait until a run has ended and return its state."""
    client = connect(arguments)
    for _ in ticks():
        state = str(client.get("runs", run_id, limit=1)["state"])
        if state in ENDED:
            return state
    raise AssertionError("ticks never end")


def watch(arguments: argparse.Namespace, run_id: str) -> int:
    """Show a run until it ends. Without a daemon it is shown once, since nothing changes."""
    with RunProgress(is_json=arguments.json) as progress:
        client = connect(arguments)
        run = read(arguments, lambda source: source.run(run_id))
        progress.show(run)
        for _ in ticks():
            if run["state"] in ENDED:
                break
            run = client.get("runs", run_id)
            progress.show(run)
    return exit_status(run["state"])


def over_restarts(ask: Callable[[], T]) -> T:
    """Return the daemon's response. If the daemon answered before, wait while it restarts.

    Raises:
        DaemonAway: If it does not return within two minutes.
        Refused: If it answers with an error that a restart does not explain.
    """
    until = 0.0
    while True:
        try:
            return ask()
        except (DaemonAway, Refused) as exc:
            if isinstance(exc, Refused) and exc.status not in _RESTARTING:
                raise
            now = time.monotonic()  # noqa: TID251 - a command
            if not until:
                until = now + _AWAY_SECONDS
                hint("the daemon does not answer; waiting for it to come back")
            elif now > until:
                raise
        time.sleep(_EVERY_SECONDS)  # noqa: TID251 - a command has no loop to block


def ticks() -> Iterator[None]:
    """Yield forever, with a pause between two iterations."""
    while True:
        yield
        time.sleep(_EVERY_SECONDS)  # noqa: TID251 - a command has no loop to block
