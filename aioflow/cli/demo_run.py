"""The demo itself: a daemon on a temporary home, one run, its input file, its total."""

from __future__ import annotations

import argparse
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio

from aioflow.cli.embedded import Guest, with_daemon
from aioflow.cli.follow import exit_status
from aioflow.cli.output import hint, print_json
from aioflow.cli.run_progress import RunProgress
from aioflow.cli.startup_banner import banner_lines, shown_url
from aioflow.clock import SystemClock
from aioflow.daemon import Ready
from aioflow.errors import SettingsError, UnknownDag
from aioflow.settings import Settings
from aioflow.telemetry import log

__all__ = ("run_demo",)

_IN_THE_PACKAGE = Path(__file__).parents[1] / "examples"
_BESIDE_IT = Path(__file__).parents[2] / "examples"
EXAMPLES = _IN_THE_PACKAGE if _IN_THE_PACKAGE.is_dir() else _BESIDE_IT
"""The examples are inside the package in a wheel, and beside it in a checkout."""

DAG = "settlements"
DAY = "2026-01-01"

_PARSE_SECONDS = 60.0
_GENERATE = """
import sys
from datetime import date
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from settlement_data import generate
print(generate(Path(sys.argv[2]), date.fromisoformat(sys.argv[3])))
"""


def run_demo(arguments: argparse.Namespace) -> int:
    """Run the demo. Return 0 if the total of the pipeline equals that of the generator."""
    if not (EXAMPLES / "dags" / f"{DAG}.py").is_file():
        raise SettingsError(f"the examples are not here: {EXAMPLES}; install aioflow again")
    log.configure(level="warning", style="auto")
    with tempfile.TemporaryDirectory(prefix="aioflow-demo-") as folder:
        return anyio.run(_run_demo, arguments, Path(folder), backend_options={"use_uvloop": True})


async def _run_demo(arguments: argparse.Namespace, folder: Path) -> int:
    data = folder / "data"
    overrides = {
        "dags": [str(EXAMPLES / "dags")],
        "web.port": arguments.port,
        "web.host": "127.0.0.1",
    }
    settings = Settings.read(arguments.home or folder / "home", overrides)

    async def visit(guest: Guest, ready: Ready) -> int:
        hint(banner_lines(ready, sys.stderr))
        if await guest.find_dag(DAG, seconds=_PARSE_SECONDS) is None:
            raise UnknownDag(DAG)
        made = await guest.post(
            "dags", DAG, "runs", body={"conf": {"day": DAY, "folder": str(data)}}
        )
        hint(f"Run {made['run_id']} waits for the bank's file, and holds no slot meanwhile.")
        expected, run = await _settle(guest, made["run_id"], data, arguments.after)
        status = _report(run, expected, is_json=arguments.json)
        if not arguments.exit:
            hint(f"Still up: {shown_url(ready, sys.stderr)}\nStop it with Ctrl-C.")
        return status

    return await with_daemon(settings, visit, stay=not arguments.exit)


async def _settle(guest: Guest, run_id: str, data: Path, after: float) -> tuple[Decimal, Any]:
    """Write the file after a delay and watch the run to its end. Return the expected total too."""
    expected: list[Decimal] = []

    async def drop() -> None:
        await SystemClock().sleep(after)
        command = [sys.executable, "-c", _GENERATE, str(EXAMPLES), str(data), DAY]
        done = await anyio.run_process(command, stderr=None)
        expected.append(Decimal(done.stdout.decode().strip()))

    with RunProgress(on_stderr=True) as progress:
        async with anyio.create_task_group() as group:
            group.start_soon(drop)
            run = await guest.watch(run_id, progress)
    return expected[0], run


def _report(run: dict[str, Any], expected: Decimal, *, is_json: bool) -> int:
    totals = [task["result"] for task in run["tasks"] if task["task_id"] == "daily_total"]
    totals = totals or [None]
    is_right = totals[-1] is not None and Decimal(str(totals[-1])) == expected
    facts = {
        "run_id": run["run_id"],
        "state": run["state"],
        "total": totals[-1],
        "expected": str(expected),
        "matches": is_right,
    }
    if is_json:
        print_json(facts)
    else:
        print(f"total {totals[-1]}, expected {expected}: {'equal' if is_right else 'DIFFERENT'}")
    return exit_status(run["state"]) if is_right else 1
