"""How long does the command line take to say what it can do?

Claim under test: ``aioflow --help`` takes less than one and a half times what
``python -c "import asyncio, argparse"`` takes, and 100 ms.

Method: both in turns, each a process of its own; the processor time of the fastest of the
rounds, because the wall clock of a busy machine tells of the others on it.
Yardstick: that bare interpreter.

    python -m benchmarks.helping --rounds 20
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.daemon import fsync_ms
from benchmarks.harness import Figure, command, report

FULL = {"rounds": 20}
TINY = {"rounds": 2}

_BARE = (sys.executable, "-c", "import asyncio, argparse")
_HELP = (sys.executable, "-m", "aioflow", "--help")


def processor_ms(words: Sequence[str]) -> float:
    """The processor time of one process, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(folder: Path, *, rounds: int) -> dict[str, Any]:
    """Run both in turns, report the fastest."""
    pairs = [(processor_ms(_HELP), processor_ms(_BARE)) for _ in range(rounds)]
    helping, bare = (round(min(times), 1) for times in zip(*pairs, strict=True))
    figure = Figure(
        "aioflow --help",
        helping,
        "ms",
        bare,
        "python importing asyncio and argparse",
        at_most=round(1.5 * bare + 100, 1),
    )
    return report("helping", figures=[figure], rounds=rounds, fsync_ms=fsync_ms(folder))


if __name__ == "__main__":
    command(__doc__, measure, FULL)
