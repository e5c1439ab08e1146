"""Measure other systems beside aioflow; write the lines, and the page from the lines.

python -m benchmarks.peers                                  all of them: 90 minutes
python -m benchmarks.peers --system dbos --figure chain     one cell
python -m benchmarks.peers --page                           none: only rewrites the page
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers import aioflow, airflow, apscheduler, dagster, dbos, prefect, procrastinate
from benchmarks.peers import lines as written
from benchmarks.peers.driver import Postgres, missing, plan, real_machine, run
from benchmarks.peers.figures import FIGURES, MEASUREMENTS
from benchmarks.peers.page import write_page
from benchmarks.peers.system import System, install
from tests.postgres_server import private_postgres

__all__ = ("PEERS", "SYSTEMS", "main")

PEERS: tuple[System, ...] = tuple(
    module.SYSTEM for module in (dbos, procrastinate, apscheduler, prefect, dagster, airflow)
)
SYSTEMS: tuple[System, ...] = (aioflow.SYSTEM, *PEERS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments, measure, and write lines and page."""
    options = _options(arguments)
    if not options.page:
        with _unwound_by_signals():
            _measure(options)
    if options.output == written.FILE:
        write_page(written.read(written.FILE), SYSTEMS)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description="Measure other systems beside aioflow."
    )
    names = [system.name for system in SYSTEMS]
    cells = [*MEASUREMENTS, *FIGURES]
    parser.add_argument("--system", metavar="NAME,...", help=f"of {', '.join(names)}")
    parser.add_argument("--figure", metavar="NAME,...", help=f"of {', '.join(MEASUREMENTS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=86.0, help="when no further cell starts")
    parser.add_argument("--patience", type=float, default=1.0, help="factor of the time limits")
    parser.add_argument("--tiny", action="store_true", help="at sizes that prove it runs, no more")
    parser.add_argument("--output", type=Path, default=written.FILE, help="file of the lines")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    options = parser.parse_args(arguments)
    for given, known in ((options.system, names), (options.figure, cells)):
        for name in given.split(",") if given else ():
            if name not in known:
                parser.error(f"there is no {name!r}; there are {', '.join(known)}")
    if options.tiny and options.output == written.FILE:
        parser.error("figures at tiny sizes are no results: give another file with --output")
    return options


def chosen(figure: str | None) -> list[str]:
    """Return the measurements that give these figures, separated by commas; all by default."""
    if not figure:
        return list(MEASUREMENTS)
    names = figure.split(",")
    return [
        name
        for name, measurement in MEASUREMENTS.items()
        if name in names or any(one in names for one in measurement.figures)
    ]


def _measure(options: argparse.Namespace) -> None:
    began = time.monotonic()
    names = options.system.split(",") if options.system else [one.name for one in SYSTEMS]
    peers = [system for system in PEERS if system.name in names]
    measurements = chosen(options.figure)
    pythons = {system.name: install(system) for system in peers}
    written.append(options.output, missing(peers, measurements))
    jobs = plan(aioflow.SYSTEM, peers, measurements, options.rounds)
    with (
        tempfile.TemporaryDirectory(prefix="aioflow-peers-") as folder,
        private_postgres(is_durable=True) as server,
    ):
        machine = real_machine(pythons, Postgres(server))
        left = 60 * options.minutes - (time.monotonic() - began)
        how = {"tiny": options.tiny, "patience": options.patience}
        for line in run(jobs, machine, Path(folder), left, **how):
            written.append(options.output, [line])


@contextlib.contextmanager
def _unwound_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, so that systems are stopped.

    Folders are removed, too. A signal that is ignored, such as SIGHUP under ``nohup``, stays
    ignored.
    """

    def leave(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # ``timeout make peers`` sends it twice
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    handled = [one for one in numbers if signal.getsignal(one) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    raise SystemExit(main())
