"""Following a run: asks its daemon again and again until the run has ended."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from aioflow.cli.board import Board
from aioflow.cli.client import connect
from aioflow.cli.reading import read

__all__ = ("ENDED", "TASK_ENDED", "exit_status", "ticks", "wait_for_end", "watch")

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
    with Board(is_json=arguments.json) as board:
        client = connect(arguments)
        run = read(arguments, lambda source: source.run(run_id))
        board.show(run)
        for _ in ticks():
            if run["state"] in ENDED:
                break
            run = client.get("runs", run_id)
            board.show(run)
    return exit_status(run["state"])


def ticks() -> Iterator[None]:
    """Come round again and again, with a pause between."""
    while True:
        yield
        time.sleep(_EVERY_SECONDS)  # noqa: TID251 - a command has no loop to block
