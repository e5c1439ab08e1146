"""Cost of one more mapped child, from a thousand to a hundred thousand.

Claim under test: a list of 100,000, as many mapped tasks, and the sum of their results are done in
15 s, with the daemon below 250 MiB; and a child costs the same at every width.

Method: for each width and kind a fresh daemon at ``durability=full`` on two slots. Seconds are
between the timestamps of the run's row. Memory is the peak of the daemon (``VmHWM``). The slope is
the additional time between two widths per additional child. If it rises, the cost of a child grows
with the width. Yardstick: bare ``sqlite3`` writes the same task rows and journal in as many
commits.

    python -m benchmarks.fanout --widths 1000,10000,100000 --rounds 1
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.daemon import DaemonProcess, fsync_ms
from benchmarks.harness import Figure, command, median, report
from benchmarks.throughput import DAGS, commit_no
from benchmarks.yardsticks import rows_seconds, written_since

FULL = {"widths": [1_000, 10_000, 100_000], "rounds": 1}
TINY = {"widths": [20, 60], "rounds": 1}
KINDS = ("async", "def")
CLAIM_WIDTH = 100_000


class Fan(NamedTuple):
    """Result of one run."""

    seconds: float
    peak_mib: float
    commits: float
    bare_seconds: float


def fan(folder: Path, kind: str, width: int) -> Fan:
    """Run one fan-out with its fan-in on a fresh daemon."""
    with DaemonProcess(folder, DAGS, flags=("--cpu-slots", "2")) as daemon:
        daemon.wait(daemon.trigger(f"fan_in_{kind}", {"count": 10}))  # warm-up: imports are done
        before = commit_no(daemon)
        run_id = daemon.trigger(f"fan_in_{kind}", {"count": width})
        state = daemon.wait(run_id, timeout=60 + width / 200)["state"]
        assert state == "success", state
        with daemon.database() as database:
            began, ended = database.execute(
                "SELECT created_at, ended_at FROM run WHERE run_id = ?", (run_id,)
            ).fetchone()
        written = written_since(daemon, before)
        peak = peak_mib(daemon.process.pid)
    bare = rows_seconds(folder, written)
    return Fan((ended - began) / 1e6, peak, written.commits, bare)


def peak_mib(pid: int) -> float:
    """Return the peak resident memory of a process, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise AssertionError("the kernel tells no VmHWM")


def measure(folder: Path, *, widths: list[int], rounds: int) -> dict[str, Any]:
    """Alternate widths and kinds and report the medians."""
    seen: dict[tuple[str, int], list[Fan]] = {}
    for number, kind, width in itertools.product(range(rounds), KINDS, widths):
        home = folder / f"{kind}-{width}-{number}"
        seen.setdefault((kind, width), []).append(fan(home, kind, width))
    middle = {
        key: Fan(*(round(median(values), 3) for values in zip(*fans, strict=True)))
        for key, fans in seen.items()
    }
    return report(
        "fanout",
        figures=[figure for kind in KINDS for figure in _figures(kind, widths, middle)],
        widths=widths,
        rounds=rounds,
        durability="full",
        fsync_ms=fsync_ms(folder),
        runs={
            f"{kind} {width}": [one._asdict() for one in fans]
            for (kind, width), fans in seen.items()
        },
    )


def _figures(kind: str, widths: list[int], middle: dict[tuple[str, int], Fan]) -> list[Figure]:
    against = "bare sqlite3: the same rows in as many commits"
    figures = []
    for width in widths:
        one = middle[kind, width]
        seconds, peak = (15.0, 250.0) if width == CLAIM_WIDTH else (None, None)
        name = f"fan-out and fan-in of {width:,} {kind}"
        figures += [
            Figure(name, one.seconds, "s", one.bare_seconds, against, seconds),
            Figure(f"{name}, peak of the daemon", one.peak_mib, "MiB", at_most=peak),
        ]
    for narrow, wide in itertools.pairwise(widths):
        less, more = middle[kind, narrow], middle[kind, wide]
        each, bare = (
            round(1e6 * (b - a) / (wide - narrow), 1)
            for a, b in ((less.seconds, more.seconds), (less.bare_seconds, more.bare_seconds))
        )
        name = f"each {kind} child between {narrow:,} and {wide:,}"
        figures.append(Figure(name, each, "us", bare, against))
    return figures


if __name__ == "__main__":
    command(__doc__, measure, FULL)
