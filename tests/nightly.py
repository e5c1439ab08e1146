"""Run the third ring of tests in parts, each within a time limit; end with one summary line.

python -m tests.nightly              all parts
python -m tests.nightly kills timed  the named parts
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ("PARTS", "Part", "Result", "main", "run")

_STOP_SECONDS = 60


@dataclass(frozen=True)
class Part:
    """One invocation of pytest.

    Attributes:
        minutes: Time limit after which the part is interrupted and counts as failed.
    """

    name: str
    arguments: tuple[str, ...]
    minutes: float


@dataclass(frozen=True)
class Result:
    """The result of a part.

    Attributes:
        status: Exit status of pytest, or ``None`` if the part was interrupted.
        cases: Number of cases by outcome. Empty if pytest left no report.
    """

    name: str
    status: int | None
    cases: dict[str, int]
    seconds: float

    @property
    def has_passed(self) -> bool:
        """Whether every case has passed, and there was at least one."""
        return self.status == 0

    def __str__(self) -> str:
        how = "interrupted" if self.status is None else f"failed with status {self.status}"
        counted = ", ".join(f"{count:,} {outcome}" for outcome, count in self.cases.items())
        return (
            f"{self.name} {'passed' if self.has_passed else how}"
            f" ({counted or 'no report'}) in {_minutes(self.seconds)}"
        )


BOTH_LOOPS = ("--loops", "uvloop,asyncio")
PARALLEL = ("-n", "2", "--dist", "loadgroup")
LONG = ("-o", "faulthandler_timeout=0")
"""Options for long cases. Dumping the stack of a running thread may crash the process."""
TIMED = "tests/campaigns/test_timed_faults.py"
PARTS = (
    # Every case of `make test`, on both event loops.
    Part("suite", ("-m", "not nightly", *BOTH_LOOPS, *PARALLEL), 45),
    # Seeds, planted bugs, views of the page, requests drawn from the API's schema, benchmarks.
    Part(
        "wide", ("-m", "nightly", *BOTH_LOOPS, *PARALLEL, *LONG, "--ignore", "tests/campaigns"), 120
    ),
    # Campaigns that test no time limits: kills, crashes, seeds, requests.
    Part(
        "kills",
        (
            *("-m", "nightly", "tests/campaigns", "--ignore", TIMED, *LONG),
            *("-n", "2", "--dist", "worksteal"),
        ),
        120,
    ),
    # Faults that test time limits, so no other load may run beside them.
    Part("timed", ("-m", "nightly", TIMED, *LONG, "-n", "0"), 45),
)


def main(arguments: Sequence[str] | None = None, parts: Sequence[Part] = PARTS) -> int:
    """Run the parts. Return 1 if a part failed or was interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.nightly",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    names = [part.name for part in parts]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(names)}")
    chosen = parser.parse_args(arguments).parts or names
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown part {min(unknown)}: choose from {', '.join(names)}")
    results = [run(part) for part in parts if part.name in chosen]
    passed = sum(result.has_passed for result in results)
    took = _minutes(sum(result.seconds for result in results))
    details = "; ".join(map(str, results))
    print(f"nightly: {passed} of {len(results)} parts passed in {took}: {details}")
    return int(passed < len(results))


def run(part: Part) -> Result:
    """Run a part until it ends or reaches its time limit."""
    began = time.monotonic()
    print(f"── {part.name}: at most {_minutes(part.minutes * 60)} ──", flush=True)
    with tempfile.TemporaryDirectory(prefix="aioflow-nightly-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *part.arguments, f"--junitxml={report}"]
        with subprocess.Popen(command) as process:
            status = _wait(process, part.minutes * 60)
        cases = _cases(report)
    return Result(part.name, status, cases, time.monotonic() - began)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit status, or ``None`` after an interrupt; pytest then reports what it has."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
    return None


def _cases(report: Path) -> dict[str, int]:
    if not report.exists():
        return {}
    suites = list(ET.parse(report).getroot().iter("testsuite"))
    counted = {
        name: sum(int(suite.get(name, 0)) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    }
    failed = counted["failures"] + counted["errors"]
    outcomes = {
        "passed": counted["tests"] - failed - counted["skipped"],
        "failed": failed,
        "skipped": counted["skipped"],
    }
    return {outcome: count for outcome, count in outcomes.items() if count or outcome == "passed"}


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"


if __name__ == "__main__":
    sys.exit(main())
