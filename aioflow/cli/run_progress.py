"""Progress of a run: polls the daemon until the run has ended, and displays each change.

A terminal shows bars; any other output gets one line per change.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aioflow.cli.client import Refused, connect, show_run_link
from aioflow.cli.daemon_or_database import read
from aioflow.cli.output import hint, print_json, progress_text, safe, task_name, wait_text
from aioflow.errors import DaemonAway

__all__ = (
    "RUN_ENDED",
    "TASK_ENDED",
    "LiveDisplay",
    "RunProgress",
    "over_restarts",
    "run_exit_status",
    "ticks",
    "wait_for_run",
    "watch_run",
)

_STYLES = {
    "success": "green",
    "running": "blue",
    "sensing": "cyan",
    "deferred": "cyan",
    "retrying": "yellow",
    "partial": "yellow",
    "failed": "red",
    "upstream_failed": "red",
}
_BAR_WIDTH = 40
_ROWS = 12
_SHOWN_STATES = frozenset({"queued", "running", "sensing", "deferred", "retrying"})
_COUNTED_AS_ENDED = frozenset(
    {"success", "failed", "upstream_failed", "skipped", "cancelled", "removed"}
)


class LiveDisplay:
    """Base class of displays that are updated in place within a block.

    Args:
        is_live: Whether to update in place. If not, the subclass prints lines.
    """

    def __init__(self, console: Console, *, is_live: bool) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if is_live else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


class RunProgress(LiveDisplay):
    """A display of the progress of one run.

    Args:
        is_json: Whether to print one JSON object per change instead, without the tasks.
        on_stderr: Whether to print to standard error, because standard output has other data.
    """

    def __init__(self, *, is_json: bool = False, on_stderr: bool = False) -> None:
        console = Console(stderr=on_stderr, highlight=False)
        super().__init__(console, is_live=console.is_terminal and not is_json)
        self._is_json = is_json
        self._stream = sys.stderr if on_stderr else sys.stdout
        self._shown = ""

    def show(self, run: dict[str, Any]) -> None:
        """Show the progress of the run. Without a terminal, show it only if it has changed."""
        if self._live is not None:
            self._live.update(_drawn(run), refresh=True)
            return
        line = f"{run['run_id']} {run['state']}: {progress_text(run['counts'])}"
        if line == self._shown:
            return
        self._shown = line
        if self._is_json:
            print_json({name: run[name] for name in run if name != "tasks"}, line=True)
        else:
            print(safe(line), file=self._stream, flush=True)


def _drawn(run: dict[str, Any]) -> RenderableType:
    counts = run["counts"]
    total = sum(counts.values())
    ended = sum(count for name, count in counts.items() if name in _COUNTED_AS_ENDED)
    head = Text.assemble(
        (safe(run["run_id"]), "bold"), "  ", (run["state"], _STYLES.get(run["state"], ""))
    )
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=max(total, 1), completed=ended, width=_BAR_WIDTH),
        Text(progress_text(counts)),
    )
    return Group(head, bar, _task_table(run["tasks"]))


def _task_table(tasks: list[dict[str, Any]]) -> Table:
    """Return a table of the active and the failed tasks."""
    table = Table.grid(padding=(0, 2))
    shown = [task for task in tasks if task["state"] in _SHOWN_STATES or task["error"] is not None]
    for task in shown[:_ROWS]:
        error = task["error"]
        note = wait_text(task["waiting_on"]) or (safe(error["message"]) if error else "")
        table.add_row(
            Text(f"  {safe(task_name(task))}"),
            Text(task["state"], style=_STYLES.get(task["state"], "")),
            Text(safe(note), style="dim", overflow="ellipsis", no_wrap=True),
        )
    if len(shown) > _ROWS:
        table.add_row(Text(f"  ... {len(shown) - _ROWS} more", style="dim"))
    return table


T = TypeVar("T")

_RESTARTING = frozenset({0, 502, 503, 504})
"""HTTP statuses that occur while a daemon restarts, or a proxy in front of it; 0 is no response."""

_AWAY_SECONDS = 120.0
"""Longest wait for a daemon to restart. If it takes longer, nothing will restart the daemon."""

RUN_ENDED = frozenset({"success", "failed", "partial", "cancelled"})

_EVERY_SECONDS = 0.3
TASK_ENDED = RUN_ENDED | {"upstream_failed", "skipped", "removed"}


def run_exit_status(state: str) -> int:
    """Return the exit status for a run's final state: 0 for success, 3 for partial, else 1."""
    return {"success": 0, "partial": 3}.get(state, 1)


def wait_for_run(arguments: argparse.Namespace, run_id: str) -> str:
    """Wait until a run has ended and return its state."""
    client = connect(arguments)
    for _ in ticks():
        state = str(client.get("runs", run_id, limit=1)["state"])
        if state in RUN_ENDED:
            return state
    raise AssertionError("ticks never end")


def watch_run(arguments: argparse.Namespace, run_id: str) -> int:
    """Show a run until it ends. Without a daemon, show it only once: nothing changes."""
    show_run_link(arguments, run_id)
    with RunProgress(is_json=arguments.json) as progress:
        client = connect(arguments)
        run = read(arguments, lambda source: source.run(run_id))
        progress.show(run)
        for _ in ticks():
            if run["state"] in RUN_ENDED:
                break
            run = client.get("runs", run_id)
            progress.show(run)
    return run_exit_status(run["state"])


def over_restarts(ask: Callable[[], T]) -> T:
    """Return the daemon's response. If the daemon is restarting, wait for it.

    Call this only after the daemon has answered once. Otherwise it may not be running at all.

    Raises:
        DaemonAway: If the daemon does not answer again within two minutes.
        Refused: If the daemon answers with an error that a restart does not explain, or still
            answers with an error after two minutes.
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
