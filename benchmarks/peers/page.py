"""The page ``docs/benchmarks.md``, its plots and the table in the README, made from the lines.

A line is one measured value, see ``lines``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from aioflow.cli.density import write_svg
from benchmarks.harness import median
from benchmarks.peers.figures import FIGURES, MEASUREMENTS
from benchmarks.peers.lines import OTHERS_LIMIT, Line
from benchmarks.peers.system import System, Variant
from benchmarks.summary import number

__all__ = ("PAGE", "Comparison", "compare", "ratio_table", "render", "with_table", "write_page")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "images"
README = ROOT / "README.md"
SITE = ROOT / "mkdocs.yml"

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
BEFORE = "## Not supported yet\n"

IN_README = (
    "tasks_async", "tasks_async_per_core", "tasks_def", "chain", "fan_1000", "waits_bytes",
    "waits_ended", "lateness_p50", "start_ready", "start_memory", "kill_lost", "kill_twice",
    "kill_ended",
)  # fmt: skip
DRAWN = (
    "tasks_async", "chain", "fan_1000", "waits_bytes", "waits_ended", "lateness_p50", "kill_ended",
)  # fmt: skip
GROWING = frozenset({
    "fan_1000", "fan_10000", "waits_handed_over", "waits_idle", "waits_ended", "kill_ended",
})  # fmt: skip
"""Figures that depend on the size of the work, so that only equal sizes can be compared."""
BY_NUMBER = ("density_bytes", "density_idle")
CAUSES: Mapping[str, str] = {
    "start_ready": (
        "aioflow is a daemon: most of the time is the import of its modules and the start of its"
        " child processes. A library starts inside the user's program."
    ),
    "start_memory": (
        "Each of its processes has an interpreter: the daemon, the workers, and the hosts of"
        " coroutines and triggers."
    ),
    "waits_handed_over": (
        "In aioflow each wait is a task that has begun and hands over its trigger. A job with an"
        " instant is a row alone, and a batch of them one statement."
    ),
    "waits_idle": "The daemon looks after its children, its files and its lease while all wait.",
    "kill_ended": "About half of it is the start of the daemon and of its child processes.",
}
"""Why a peer is ahead at a figure, as profiles of aioflow show."""

THEMES = {"light": ("#1f2328", "#0969da", "#8c959f"), "dark": ("#e6edf3", "#4493f8", "#7d8590")}
"""Colours of text, of aioflow and of the others."""


class Summary(NamedTuple):
    """All rounds of one figure of one system."""

    median: float
    least: float
    most: float
    rounds: int
    size: int
    loaded: int


class Comparison(NamedTuple):
    """One figure of a peer's variant, and the same figure of aioflow from the same run.

    Attributes:
        note: Why there is no value, or a remark printed beside it.
        ratio: How many times better aioflow is; below 1 the peer is ahead.
    """

    figure: str
    ours: Summary | None
    theirs: Summary | None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times better aioflow is; ``None`` if the two cannot be compared.

        They cannot if one of them has no value or is 0, or if they count failures, or if the figure
        grows with the size of the work and the sizes differ.
        """
        if self.ours is None or self.theirs is None or FIGURES[self.figure].unit == "tasks":
            return None
        if self.figure in GROWING and self.ours.size != self.theirs.size:
            return None
        ours, theirs = self.ours.median, self.theirs.median
        if not ours or not theirs:
            return None
        return ours / theirs if FIGURES[self.figure].better == "higher" else theirs / ours


# ── numbers out of the lines ────────────────────────────────────────────────────────────


def compare(lines: Sequence[Line], peer: System, variant: Variant) -> list[Comparison]:
    """Compare each figure that has lines of the peer, in the newest run with such lines."""
    mine = [line for line in lines if (line.system, line.variant) == (peer.name, variant.name)]
    found = []
    for figure in FIGURES:
        if figure in BY_NUMBER:
            continue
        theirs = _newest([line for line in mine if line.figure == figure])
        if not theirs:
            continue
        ours = [
            line
            for line in lines
            if (line.system, line.variant, line.figure) == ("aioflow", variant.beside, figure)
            and line.run == theirs[0].run
        ]
        note = next((line.note for line in theirs if line.note), "")
        found.append(Comparison(figure, summarise(ours), summarise(theirs), note))
    return found


def _newest(lines: Sequence[Line]) -> list[Line]:
    last = max((line.run for line in lines), default="")
    return [line for line in lines if line.run == last]


def summarise(lines: Iterable[Line]) -> Summary | None:
    """Return the median and the range of the values; ``None`` if there are none.

    Rounds in which other processes used the machine count only if there are no quiet rounds.
    """
    valued = [line for line in lines if line.value is not None]
    quiet = [line for line in valued if not line.was_loaded]
    used = quiet or valued
    values = [line.value for line in used if line.value is not None]
    if not values:
        return None
    loaded = 0 if quiet else len(valued)
    return Summary(median(values), min(values), max(values), len(values), used[0].size, loaded)


# ── text ────────────────────────────────────────────────────────────────────────────────


def _summary_text(summary: Summary | None, unit: str) -> str:
    if summary is None:
        return ""
    text = f"{number(summary.median)} {unit}"
    if summary.least != summary.most:
        text += f" ({number(summary.least)} to {number(summary.most)}, {summary.rounds})"
    return text + ("†" if summary.loaded else "")


def ratio_text(ratio: float | None) -> str:
    """Return a ratio as text; bold if the peer is ahead."""
    if ratio is None:
        return ""
    text = f"{number(float(f'{ratio:.2g}'))}×"
    return f"**{text}**" if ratio < 1 and text != "1×" else text


def _cell(found: Comparison | None) -> str:
    """Return one cell of the table of ratios."""
    if found is None:
        return "not measured"
    if found.ratio is not None:
        return ratio_text(found.ratio)
    if found.theirs is not None and found.ours is not None:
        pair = f"{number(found.ours.median)} : {number(found.theirs.median)}"
        sizes = f"{found.ours.size:,} : {found.theirs.size:,}"
        return pair if found.ours.size == found.theirs.size else f"{pair} (sizes {sizes})"
    return "no" if found.note.startswith("does not do") else found.note.partition(":")[0]


def ratio_table(
    lines: Sequence[Line], peers: Sequence[System], figures: Sequence[str], *, brief: bool = False
) -> str:
    """Return the table of ratios: a row per figure, a column per variant of a peer.

    Args:
        brief: Whether only the last variant of each peer is shown, the one on the larger database.
    """
    columns = [
        (peer, variant, {one.figure: one for one in compare(lines, peer, variant)})
        for peer in peers
        for variant in peer.variants[-1 if brief else 0 :]
    ]
    columns = [column for column in columns if column[2]]
    head = [f"{peer.title}, {variant.name}" for peer, variant, _ in columns]
    rows = [f"| | {' | '.join(head)} |", f"|---|{'---:|' * len(columns)}"]
    for figure in figures:
        cells = [_cell(found.get(figure)) for _, _, found in columns]
        if set(cells) - {"not measured"}:
            rows.append(f"| {FIGURES[figure].what} | {' | '.join(cells)} |")
    return "\n".join(rows)


def readme_section(lines: Sequence[Line], peers: Sequence[System]) -> str:
    """Return the section of the README."""
    table = ratio_table(lines, peers, IN_README, brief=True)
    return (
        f"{BEGIN}\n## Beside other systems\n\n"
        "How many times better aioflow is at the same work, on the same machine in the same run, as"
        " medians; bold where the other system is ahead, *no* where it does not have the feature."
        " `make peers` repeats it. Versions, settings, durability, ranges and everything else:"
        f" [benchmarks](docs/benchmarks.md).\n\n{table}\n{END}\n"
    )


def with_table(readme: str, section: str) -> str:
    """Return the README with its section replaced by this one, or with this one added."""
    if BEGIN in readme:
        return re.sub(f"{BEGIN}.*?{END}\n", lambda _: section, readme, flags=re.DOTALL)
    return readme.replace(BEFORE, f"{section}\n{BEFORE}", 1)


def render(lines: Sequence[Line], systems: Sequence[System]) -> str:
    """Return the text of the page."""
    peers = [system for system in systems if system.program]
    measured = [peer for peer in peers if any(line.system == peer.name for line in lines)]
    parts = [
        _head(lines),
        f"## Ratios\n\n{ratio_table(lines, measured, [f for f in FIGURES if f not in BY_NUMBER])}",
        _ahead(lines, measured),
        _pictures(lines),
        "## aioflow\n\n" + _described(next(one for one in systems if not one.program)),
        *(_section(lines, peer) for peer in measured),
        _work(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _ahead(lines: Sequence[Line], peers: Sequence[System]) -> str:
    """Return the text about figures in which peers are ahead, with the causes."""
    found: dict[str, list[str]] = defaultdict(list)
    for peer in peers:
        for variant in peer.variants:
            for one in compare(lines, peer, variant):
                if one.ratio is not None and ratio_text(one.ratio).startswith("**"):
                    found[one.figure].append(f"{peer.title} on {variant.name}")
    if not found:
        return ""
    rows = [
        f"* {FIGURES[name].what}: {', '.join(ahead)}. {CAUSES.get(name, '')}".rstrip()
        for name, ahead in found.items()
    ]
    return "## Where another system is ahead\n\n" + "\n".join(rows)


def _head(lines: Sequence[Line]) -> str:
    measured = [line for line in lines if not line.is_missing]
    fsync = [line.fsync_ms for line in measured]
    loaded = sum(line.was_loaded for line in measured)
    when = sorted(line.when[:10] for line in measured)
    commits = sorted({line.commit for line in measured})
    return f"""\
# Beside other systems

What else could be used, at the same work on the same machine in the same run. `make peers` measures
everything again and writes this page; `make peers SYSTEM=dbos FIGURE=chain` measures one cell.

* Each cell starts a system, warms it up, measures, and stops it. Cells alternate: aioflow, two
  peers, aioflow, the next two. Figures are medians, with their range and number.
* A ratio says how many times better aioflow is; below 1, in bold, the peer is ahead. It is of the
  same run, the same database and the same durability: a peer that does not sync its commits stands
  beside aioflow with `durability = "normal"`.
* "does not do" means that the system lacks the feature; nothing is measured as 0 for that.
* Memory is unique (USS), of all processes of the system and its database server: what several
  processes share is in no figure. The bytes of a wait include what handing it over leaves behind,
  such as connections and threads; they are 0 where the processes did not grow, because memory of
  earlier tasks was used again. CPU is of the same processes, and of a client in a process of
  its own; requests to aioflow are made by the driver, one for each piece of work.
* † marks values from rounds in which other processes used more than {OTHERS_LIMIT} cores. That
  is so for {loaded} of {len(measured)} values; they count only where a cell has no others.
* aioflow commits many independent tasks in one transaction, and Prefect is set to record 20 states
  in one; the others commit each task by itself. That is most of the difference in tasks per second,
  and none of it in the chain.
* A no-op says what a system itself costs. Systems differ in what they do besides: aioflow and
  Prefect have a server with a page, a library such as DBOS leaves that to another product. Airflow,
  Prefect and Dagster have integrations and executors that no figure here shows.
* All figures are overhead. For tasks of a second or more, up to the same number at a time, the
  differences in tasks per second mostly vanish.

Measured {when[0]} to {when[-1]} at {", ".join(f"`{one}`" for one in commits)} on \
{measured[0].cpus} CPUs; an fsync took {min(fsync):g} to {max(fsync):g} ms."""


def _described(system: System) -> str:
    lines = [f"* {text}" for text in system.settings]
    lines += [f"* {one.name}: {one.durability}." for one in system.variants]
    lines += [f"* `{name}`: {text}." for name, text in system.written.items()]
    return "\n".join(lines)


def _section(lines: Sequence[Line], peer: System) -> str:
    newer = f" The package index did not have all of {peer.newer}." if peer.newer else ""
    versions = sorted({line.version for line in lines if line.system == peer.name})
    text = f"## {peer.title}\n\nVersion {', '.join(versions)}.{newer}\n\n{_described(peer)}"
    for variant in peer.variants:
        found = compare(lines, peer, variant)
        if found:
            text += f"\n\n### {peer.title} on {variant.name}\n\n{_table(found, variant)}"
    return text


def _table(found: Sequence[Comparison], variant: Variant) -> str:
    rows = [
        f"| | aioflow, {variant.beside} | {variant.name} | ratio | |",
        "|---|---:|---:|---:|---|",
    ]
    for one in found:
        unit = FIGURES[one.figure].unit
        note = one.note
        if one.ours and one.theirs and one.ours.size != one.theirs.size:
            sizes = f"{one.ours.size:,} and {one.theirs.size:,}"
            note = f"{note}; {sizes}" if note else sizes
        rows.append(
            f"| {FIGURES[one.figure].what} | {_summary_text(one.ours, unit)}"
            f" | {_summary_text(one.theirs, unit)} | {ratio_text(one.ratio)} | {_plain(note)} |"
        )
    return "\n".join(rows)


def _plain(note: str) -> str:
    return note.replace("|", "/").replace("<", "&lt;")


def _work() -> str:
    rows = [f"| `{name}` | {one.what} | {one.size:,} |" for name, one in MEASUREMENTS.items()]
    head = (
        "## The work\n\nSizes are those of aioflow; a table above says where a peer's differ.\n\n"
    )
    return head + "\n".join(["| Cell | Work | Size |", "|---|---|---:|", *rows])


# ── plots ───────────────────────────────────────────────────────────────────────────────


def _pictures(lines: Sequence[Line]) -> str:
    shown = [
        '<picture>\n<source media="(prefers-color-scheme: dark)"'
        f' srcset="images/peers-{name}-dark.svg">\n'
        f'<img alt="{FIGURES[name].what}" src="images/peers-{name}-light.svg">\n</picture>'
        for name in (*DRAWN, *BY_NUMBER)
        if series(lines, name)
    ]
    return "## Pictures\n\n" + "\n\n".join(shown) if shown else ""


def series(lines: Sequence[Line], figure: str) -> Mapping[str, list[tuple[int, Summary]]]:
    """Return the values of the figure by size, for each variant of a system that has any."""
    by_key: dict[tuple[str, int], list[Line]] = defaultdict(list)
    for line in lines:
        if line.figure == figure and line.value is not None:
            by_key[f"{line.system}, {line.variant}", line.size].append(line)
    found: dict[str, list[tuple[int, Summary]]] = defaultdict(list)
    for (name, size), same in sorted(by_key.items()):
        summary = summarise(_newest(same))
        if summary is not None:
            found[name].append((size, summary))
    return found


def draw(lines: Sequence[Line], figure: str, theme: str) -> Drawing:
    """Draw one figure: lines over the number of waits, or a dot with its range per system."""
    text, ours, theirs = THEMES[theme]
    found = series(lines, figure)
    drawing = Drawing(figsize=(9, 4 if figure in BY_NUMBER else 1 + 0.4 * len(found)))
    drawing.set_layout_engine("constrained")
    drawing.patch.set_alpha(0)
    axes = drawing.subplots()
    axes.patch.set_alpha(0)
    known = FIGURES[figure]
    title = f"{known.what} ({known.unit}; {known.better} is better)"
    axes.set_title(title.replace("`", ""), color=text)
    if figure in BY_NUMBER:
        _draw_lines(axes, found, ours, theirs, text)
    else:
        _draw_dots(axes, found, ours, theirs)
    axes.tick_params(colors=text, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(theirs)
    return drawing


def _draw_dots(
    axes: Axes, found: Mapping[str, list[tuple[int, Summary]]], ours: str, theirs: str
) -> None:
    axes.set_xscale("symlog", linthresh=1)
    axes.xaxis.set_major_formatter(_plain_tick)
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.margins(x=0.15)
    for row, (name, values) in enumerate(found.items()):
        colour = ours if name.startswith("aioflow") else theirs
        value = values[-1][1]
        axes.plot([value.least, value.most], [row, row], color=colour, linewidth=3)
        axes.plot([value.median], [row], "o", color=colour)
        axes.annotate(
            number(value.median), (value.median, row), xytext=(8, 4),
            textcoords="offset points", color=colour, fontsize="small",
        )  # fmt: skip
    axes.set_xlim(left=0)


def _draw_lines(
    axes: Axes, found: Mapping[str, list[tuple[int, Summary]]], ours: str, theirs: str, text: str
) -> None:
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_plain_tick)
    axes.set_xlabel("waits", color=text)
    for place, (name, values) in enumerate(found.items()):
        colour = ours if name.startswith("aioflow") else theirs
        marker = "os^vD<>*Xp"[place % 10]
        sizes, medians = zip(*((size, one.median) for size, one in values), strict=True)
        axes.plot(sizes, medians, marker=marker, color=colour, label=name)
    axes.set_ylim(bottom=0)
    legend = axes.legend(
        frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5)
    )
    for label in legend.get_texts():
        label.set_color(text)


def _plain_tick(value: float, _: float) -> str:
    return number(value)


# ── files ───────────────────────────────────────────────────────────────────────────────


def write_page(lines: Sequence[Line], systems: Sequence[System]) -> None:
    """Write the page, the plots, the README's table and the site's entry, if there are values."""
    if not any(line.value is not None for line in lines):
        return
    PAGE.write_text(render(lines, systems))
    peers = [system for system in systems if system.program]
    README.write_text(with_table(README.read_text(), readme_section(lines, peers)))
    for name in (*DRAWN, *BY_NUMBER):
        if series(lines, name):
            for theme in THEMES:
                write_svg(PICTURES / f"peers-{name}-{theme}.svg", draw(lines, name, theme))
    site, entry = SITE.read_text(), "      - benchmarks.md\n"
    if entry not in site:
        SITE.write_text(
            site.replace("      - measurements.md\n", f"{entry}      - measurements.md\n")
        )
