"""Run the third ring of tests in parts, each within a time limit; end with one summary line.

python -m tests.nightly              all parts
python -m tests.nightly campaigns    the named parts
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

__all__ = ("PARTS", "Part", "main")

_STOP_SECONDS = 60


@dataclass(frozen=True)
class Part:
    """One call of pytest.

    Attributes:
        minutes: After this long the part is interrupted and counts as failed.
    """

    name: str
    arguments: tuple[str, ...]
    minutes: int


BOTH_LOOPS = ("--loops", "uvloop,asyncio")
PARALLEL = ("-n", "2", "--dist", "loadgroup")
PARTS = (
    # Every case of `make test`, on both event loops.
    Part("suite", ("-m", "not nightly", *BOTH_LOOPS, *PARALLEL), 90),
    # Seeds, planted bugs, views of the page, requests drawn from the API's schema, benchmarks.
    Part(
        "wide",
        ("-m", "nightly", *BOTH_LOOPS, *PARALLEL, "--ignore", "tests/campaigns"),
        90,
    ),
    # Kills and faults that measure seconds: nothing else may run beside them.
    Part("campaigns", ("-m", "nightly", "tests/campaigns", "-n", "0", "--timeout", "0"), 240),
)


def main() -> int:
    """Return 1 if a part failed or was interrupted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [part.name for part in PARTS]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(names)}")
    chosen = parser.parse_args().parts or names
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown part {min(unknown)}: choose from {', '.join(names)}")
    began = time.monotonic()
    results = {part.name: _run(part) for part in PARTS if part.name in chosen}
    details = ", ".join(f"{name} {result}" for name, result in results.items())
    failed = sum(not result.startswith("passed") for result in results.values())
    print(
        f"nightly: {len(results) - failed} of {len(results)} parts passed "
        f"in {_minutes(began)} min: {details}"
    )
    return int(failed > 0)


def _run(part: Part) -> str:
    began = time.monotonic()
    print(f"── {part.name}: at most {part.minutes} min ──", flush=True)
    with subprocess.Popen([sys.executable, "-m", "pytest", *part.arguments]) as process:
        try:
            status = process.wait(part.minutes * 60)
            result = "passed" if status == 0 else f"failed with status {status}"
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            result = "interrupted"
    return f"{result} in {_minutes(began)} min"


def _minutes(since: float) -> int:
    return round((time.monotonic() - since) / 60)


if __name__ == "__main__":
    sys.exit(main())
