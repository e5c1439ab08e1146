"""Processor time of ``aioflow --help``, and of a command that reads the database.

Claims under test, in processor time: ``aioflow --help`` takes at most 80 ms. Without a running
daemon, ``aioflow dags list`` opens the database itself and takes at most 500 ms.

Method: both commands and the yardstick alternate, each in a process of its own. The figure is the
processor time of the fastest round, because the wall time depends on the other load of the machine.
Yardstick: ``python -c "import asyncio, argparse"``.

    python -m benchmarks.helping --rounds 20
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aioflow.store.sqlite.database_file import prepare_file
from aioflow.store.sqlite.lock import FileLock
from benchmarks.daemon import fsync_ms
from benchmarks.harness import Figure, command, report

FULL = {"rounds": 20}
TINY = {"rounds": 2}

_BARE = (sys.executable, "-c", "import asyncio, argparse")
_HELP = (sys.executable, "-m", "aioflow", "--help")
_LIST = (sys.executable, "-m", "aioflow", "dags", "list", "--home")
_BARE_IS = "python importing asyncio and argparse"


def processor_ms(words: Sequence[str]) -> float:
    """Return the processor time of one process, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _home(folder: Path) -> Path:
    """Return a home with a database that no daemon uses."""
    home = folder / "home"
    home.mkdir()
    lock = FileLock.take(home / "aioflow.db")
    prepare_file(home / "aioflow.db", lock)
    lock.release()
    return home


def measure(folder: Path, *, rounds: int) -> dict[str, Any]:
    """Alternate the commands and report the fastest round of each."""
    commands = (_HELP, (*_LIST, str(_home(folder))), _BARE)
    times = [[processor_ms(words) for words in commands] for _ in range(rounds)]
    helping, listing, bare = (round(min(of_one), 1) for of_one in zip(*times, strict=True))
    figures = [
        Figure("aioflow --help", helping, "ms", bare, _BARE_IS, at_most=80),
        Figure("aioflow dags list, no daemon", listing, "ms", bare, _BARE_IS, at_most=500),
    ]
    return report("helping", figures=figures, rounds=rounds, fsync_ms=fsync_ms(folder))


if __name__ == "__main__":
    command(__doc__, measure, FULL)
