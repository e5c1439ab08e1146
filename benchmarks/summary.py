"""The table and the plots in ``results/``, made from the newest line of each measurement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from aioflow.cli.density import write_svg
from benchmarks import harness

__all__ = ("draw_bars", "number", "write_summary")

_HEAD = """\
# Results

The newest line of each measurement, written by `python -m benchmarks`. The yardstick is what the
machine itself makes of the same work in the same run; see [how to read them](../README.md).
"""


def write_summary(names: Sequence[str]) -> None:
    """Write ``results/README.md``, and the plots of each measurement that has a result."""
    results = [result for name in names if (result := _newest(name)) is not None]
    parts = [_HEAD, *(_section(result) for result in results)]
    (harness.RESULTS / "README.md").write_text("\n".join(parts))


def _newest(name: str) -> dict[str, Any] | None:
    path = harness.RESULTS / f"{name}.jsonl"
    if not path.exists():
        return None
    result: dict[str, Any] = json.loads(path.read_text().splitlines()[-1])
    return result if result.get("figures") else None


def _section(result: dict[str, Any]) -> str:
    name = result["benchmark"]
    machine = (
        f"commit `{result['commit']}`, {result['cpus']} CPUs, load {result['load']},"
        f" Python {result['python']}, SQLite {result['sqlite']}, fsync {result['fsync_ms']} ms"
    )
    lines = [
        f"## {name}",
        "",
        machine,
        "",
        "| Figure | Measured | Yardstick | Claim | |",
        "|---|---:|---:|---:|---|",
    ]
    lines += [_row(figure) for figure in result["figures"]]
    against = sorted({figure["against"] for figure in result["figures"]} - {""})
    lines += ["", f"Yardstick: {'; '.join(against)}." if against else "No yardstick."]
    lines += ["", *(f"![{name}]({picture})" for picture in _draw(result)), ""]
    return "\n".join(lines)


def _row(figure: dict[str, Any]) -> str:
    value, unit = figure["value"], figure["unit"]
    yardstick = "" if figure["yardstick"] is None else f"{figure['yardstick']:,} {unit}"
    claim, verdict = "", ""
    if figure["at_most"] is not None:
        claim, is_met = f"at most {figure['at_most']:,}", value <= figure["at_most"]
        verdict = "met" if is_met else "**missed**"
    elif figure["at_least"] is not None:
        claim, is_met = f"at least {figure['at_least']:,}", value >= figure["at_least"]
        verdict = "met" if is_met else "**missed**"
    return f"| {figure['what']} | {value:,} {unit} | {yardstick} | {claim} | {verdict} |"


def _draw(result: dict[str, Any]) -> list[str]:
    """Draw one plot per unit; return the names of the files."""
    name, names = result["benchmark"], []
    own = harness.RESULTS / f"{name}.svg"
    if own.exists() and name == "density":  # its plot is already there, over the number of triggers
        names.append(own.name)
    for number, unit in enumerate(dict.fromkeys(f["unit"] for f in result["figures"])):
        same = [figure for figure in result["figures"] if figure["unit"] == unit]
        path = harness.RESULTS / f"{name}-{number}.svg"
        _write_bar_plot(path, f"{name.replace('_', ' ')} ({unit})", same)
        names.append(path.name)
    return names


def _write_bar_plot(file: Path, title: str, figures: Sequence[dict[str, Any]]) -> None:
    plot = Figure(figsize=(9, 1 + 0.55 * len(figures)), layout="constrained")
    axes = plot.subplots()
    axes.set_title(title)
    draw_bars(axes, figures)
    write_svg(file, plot)


def draw_bars(axes: Axes, figures: Sequence[dict[str, Any]]) -> None:
    """Draw figures one below the other, each above its yardstick, on one scale from 0."""
    axes.set_yticks(range(len(figures)), [figure["what"] for figure in figures])
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    values = {row: figure["value"] for row, figure in enumerate(figures)}
    yardsticks = {
        row + 0.35: figure["yardstick"]
        for row, figure in enumerate(figures)
        if figure["yardstick"] is not None
    }
    _label(axes, axes.barh(list(values), list(values.values()), height=0.4))
    bars = axes.barh(list(yardsticks), list(yardsticks.values()), height=0.2, color="lightgrey")
    _label(axes, bars)
    axes.set_xlabel("grey: the yardstick, in the same run")
    axes.set_xlim(left=0)


def _label(axes: Axes, bars: BarContainer) -> None:
    axes.bar_label(bars, fmt=number, padding=4, fontsize="small")


def number(value: float) -> str:
    """Return a value with three digits, or as a whole number."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
