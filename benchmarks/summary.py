"""The table and the plots in ``results/``, made from the newest line of each measurement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aioflow.cli.density import Bar, bar_plot
from benchmarks import harness

__all__ = ("write_summary",)

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
    if own.exists() and name == "density":  # it draws its own plot, over the number of triggers
        names.append(own.name)
    for number, unit in enumerate(dict.fromkeys(f["unit"] for f in result["figures"])):
        rows = [
            Bar(figure["what"], figure["value"], figure["yardstick"])
            for figure in result["figures"]
            if figure["unit"] == unit
        ]
        path = harness.RESULTS / f"{name}-{number}.svg"
        path.write_text(bar_plot(name.replace("_", " "), unit, rows))
        names.append(path.name)
    return names
