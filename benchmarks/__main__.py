"""Run the measurements; write ``results/README.md`` and its plots from the newest results.

python -m benchmarks                    all of them
python -m benchmarks --only hop,turn    some
python -m benchmarks --table            none: only rewrites the table and the plots
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import (
    burst,
    clearing,
    cluster,
    dag_files,
    density,
    due_resumed,
    event_runs,
    executors,
    fairness,
    fanout,
    files,
    handed_over,
    helping,
    hop,
    latency,
    objects,
    reads,
    restart,
    startup,
    streams,
    throughput,
    turn,
    waiting,
    watchers,
    wide,
)
from benchmarks.summary import write_summary

MODULES: Mapping[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        startup,
        helping,
        turn,
        throughput,
        hop,
        due_resumed,
        burst,
        handed_over,
        restart,
        fanout,
        wide,
        reads,
        streams,
        objects,
        event_runs,
        clearing,
        dag_files,
        fairness,
        files,
        density,
        latency,
        waiting,
        watchers,
        executors,
        cluster,
    )
}


def run(names: list[str], *, tiny: bool = False) -> list[dict[str, Any]]:
    """Run measurements by their names, each in a folder of its own."""
    results = []
    for name in names:
        module = MODULES[name]
        with tempfile.TemporaryDirectory(prefix=f"aioflow-{name}-") as folder:
            results.append(module.measure(Path(folder), **(module.TINY if tiny else module.FULL)))
    return results


def main() -> None:
    """Parse the arguments, measure, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure everything.")
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(MODULES)}")
    parser.add_argument("--tiny", action="store_true", help="at sizes that prove it runs, no more")
    parser.add_argument("--table", action="store_true", help="measure nothing, write the table")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(MODULES)
    for name in names:
        if name not in MODULES:
            parser.error(f"there is no {name!r}; there are {', '.join(MODULES)}")
    if not arguments.table:
        run(names, tiny=arguments.tiny)
    write_summary(list(MODULES))


if __name__ == "__main__":
    main()
