"""Progress display of a run: bars on a terminal, one line per change elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aioflow.cli.output import print_json, progress_text, safe, task_name, wait_text

__all__ = ("RunProgress",)

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
_LIVE = frozenset({"queued", "running", "sensing", "deferred", "retrying"})
_ENDED = frozenset({"success", "failed", "upstream_failed", "skipped", "cancelled", "removed"})


class RunProgress:
    """Displays one run repeatedly.

    Args:
        is_json: Print one JSON object per change instead, without the tasks.
        on_stderr: For commands that print something else to standard output.
    """

    def __init__(self, *, is_json: bool = False, on_stderr: bool = False) -> None:
        self._is_json = is_json
        self._console = Console(stderr=on_stderr, highlight=False)
        self._stream = sys.stderr if on_stderr else sys.stdout
        self._live: Live | None = None
        self._shown = ""

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._is_json:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, run: dict[str, Any]) -> None:
        """Show the run's progress; if not on a terminal, only when it has changed."""
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
    ended = sum(count for name, count in counts.items() if name in _ENDED)
    head = Text.assemble(
        (safe(run["run_id"]), "bold"), "  ", (run["state"], _STYLES.get(run["state"], ""))
    )
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=max(total, 1), completed=ended, width=_BAR_WIDTH),
        Text(progress_text(counts)),
    )
    return Group(head, bar, _tasks(run["tasks"]))


def _tasks(tasks: list[dict[str, Any]]) -> Table:
    """Return a table of the active and the failed tasks."""
    table = Table.grid(padding=(0, 2))
    shown = [task for task in tasks if task["state"] in _LIVE or task["error"] is not None]
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
