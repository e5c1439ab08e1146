"""Following a run: asks its daemon again and again until the run has ended."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

from aioflow.cli.board import Board
from aioflow.cli.client import connect
from aioflow.cli.output import print_json
from aioflow.cli.reading import read

__all__ = ("ENDED", "exit_status", "follow_logs", "wait_for_end", "watch")

ENDED = frozenset({"success", "failed", "partial", "cancelled"})

_EVERY_SECONDS = 0.3
_TASK_ENDED = ENDED | {"upstream_failed", "skipped", "removed"}


def exit_status(state: str) -> int:
    """Return what a script is told of a run's end: 0 success, 3 partial, else 1."""
    return {"success": 0, "partial": 3}.get(state, 1)


def wait_for_end(arguments: argparse.Namespace, run_id: str) -> str:
    """Return the state a run ends in."""
    client = connect(arguments)
    for _ in _ticks():
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
        for _ in _ticks():
            if run["state"] in ENDED:
                break
            run = client.get("runs", run_id)
            board.show(run)
    return exit_status(run["state"])


def follow_logs(arguments: argparse.Namespace) -> int:
    """Print what a task prints until it has ended."""
    client = connect(arguments)
    path = ("runs", arguments.run_id, "tasks", arguments.task)
    offset = 0
    for _ in _ticks():
        # The state first: what was printed before the end is read after it.
        state = client.get(*path, "why", map=arguments.map)["causes"][0]["state"]
        query: dict[str, Any] = {"map": arguments.map, "try": arguments.try_number}
        while piece := client.get_bytes(*path, "logs", **query, offset=offset):
            offset += len(piece)
            _print_piece(piece, is_json=arguments.json)
        if state in _TASK_ENDED:
            break
    return 0


def _print_piece(piece: bytes, *, is_json: bool) -> None:
    if is_json:
        print_json({"log": piece.decode("utf-8", "replace")}, line=True)
    else:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def _ticks() -> Iterator[None]:
    while True:
        yield
        time.sleep(_EVERY_SECONDS)  # noqa: TID251 - a command has no loop to block
