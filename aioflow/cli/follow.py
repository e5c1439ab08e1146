"""Following a run: asks its daemon again and again until the run has ended."""

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
"""What HTTP answers while a daemon, or what stands before it, restarts; 0 is no answer."""

_AWAY_SECONDS = 120.0
"""For a daemon that stops and starts; longer, and nothing restarts it."""

ENDED = frozenset({"success", "failed", "partial", "cancelled"})

_EVERY_SECONDS = 0.3
TASK_ENDED = ENDED | {"upstream_failed", "skipped", "removed"}


def exit_status(state: str) -> int:
    """Return what a script is told of a run's end: 0 success, 3 partial, else 1."""
    return {"success": 0, "partial": 3}.get(state, 1)


def wait_for_end(arguments: argparse.Namespace, run_id: str) -> str:
    """Return the state a run ends in."""
    client = connect(arguments)
    for _ in ticks():
        state = str(client.get("runs", run_id, limit=1)["state"])
        if state in ENDED:
            return state
    raise AssertionError("ticks never end")


def watch(arguments: argparse.Namespace, run_id: str) -> int:
    """Show a run until it ends. Without a daemon nothing changes: it is shown once."""
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
    """Return an answer of a daemon that answered before; wait for it while it restarts.

    Raises:
        DaemonAway: If it does not come back in two minutes.
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
    """Come round again and again, with a pause between."""
    while True:
        yield
        time.sleep(_EVERY_SECONDS)  # noqa: TID251 - a command has no loop to block
