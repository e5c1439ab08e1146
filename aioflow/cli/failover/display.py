"""Output of the failover demo: a table on a terminal, lines elsewhere, and the summary."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aioflow.cli.output import hint, print_json, safe
from aioflow.cli.run_progress import LiveDisplay

__all__ = ("Display", "Figures", "print_summary")

_LINE_SECONDS = 5.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the demo so far.

    Attributes:
        active: The name of the active node; empty if no node is active.
        takeovers: The number of times that one node took over from the other.
        begun_again: The number of times that a task body began again because its node had died
            meanwhile.
        lost, done_twice: See ``ledger``.
        wrong_totals: Settlements with a wrong total.
    """

    seconds: float
    active: str
    tasks: int
    done: int
    settlements: int
    takeovers: int
    begun_again: int
    lost: int
    done_twice: int
    wrong_totals: int

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost, and nothing was done twice."""
        return not (self.lost or self.done_twice or self.wrong_totals)

    def text(self) -> str:
        """Return the figures as one line of text."""
        node = f"node {self.active} is active" if self.active else "no node is active"
        return (
            f"{self.seconds:3.0f} s: {node}, {self.done:,} of {self.tasks:,} tasks done, "
            f"{self.takeovers} takeovers, lost {self.lost}, done twice {self.done_twice}"
        )


class Display(LiveDisplay):
    """Shows figures and events on standard error."""

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False)
        super().__init__(console, is_live=console.is_terminal)
        self._next_line = 0.0

    def tell(self, text: str) -> None:
        """Print an event, above the table."""
        if self._live is None:
            hint(text)
        else:
            self._console.print(Text(safe(text)))

    def show(self, figures: Figures) -> None:
        """Show the current figures."""
        if self._live is not None:
            self._live.update(_drawn(figures), refresh=True)
        elif figures.seconds >= self._next_line:
            self._next_line = figures.seconds + _LINE_SECONDS
            hint(figures.text())


def _drawn(figures: Figures) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in _rows(figures):
        is_bad = name in {"lost", "done twice", "wrong totals"}
        style = ("red" if value != "0" else "green") if is_bad else "bold"
        table.add_row(Text(name, style="dim"), Text(value, style=style))
    return table


def _rows(figures: Figures) -> list[tuple[str, str]]:
    return [
        ("seconds", f"{figures.seconds:.0f}"),
        ("active node", figures.active or "none"),
        ("tasks done", f"{figures.done:,} of {figures.tasks:,}"),
        ("settlements", str(figures.settlements)),
        ("takeovers", str(figures.takeovers)),
        ("begun again, before a success", str(figures.begun_again)),
        ("lost", str(figures.lost)),
        ("done twice", str(figures.done_twice)),
        ("wrong totals", str(figures.wrong_totals)),
    ]


def print_summary(figures: Figures, *, is_json: bool) -> None:
    """Print the figures of the whole demo to standard output."""
    if is_json:
        print_json(msgspec.to_builtins(figures))
        return
    print(
        f"{figures.tasks:,} tasks in {figures.seconds:.0f} s, {figures.settlements} settlements, "
        f"{figures.takeovers} takeovers: {figures.lost} lost, {figures.done_twice} done twice"
        + (f", {figures.wrong_totals} wrong totals" if figures.wrong_totals else "")
    )
