"""The failover demo with small sizes and real daemons, both to its end and until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.daemon import eventually
from tests.postgres_server import server_programs

pytestmark = [
    pytest.mark.process,
    pytest.mark.postgres,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a short path that the server's user may enter."""
    with tempfile.TemporaryDirectory(prefix="aio-demo-", dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "aioflow", "demo", "--failover", "--json", "--waits", "80"]
    command += ["--postgres", str(server_programs(folder)), *words]
    (folder / "tmp").mkdir(mode=0o755)
    with (folder / "told").open("w") as told:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
            env={**os.environ, "TMPDIR": str(folder / "tmp")},
        )


def left_behind(folder: Path) -> list[str]:
    """Return the processes and folders of the demo that are left."""
    lines = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    where = str(folder / "tmp")
    folders = [str(path) for path in (folder / "tmp").iterdir()]
    return [line for line in lines if where in line] + folders


def test_nothing_is_lost_or_done_twice_and_nothing_is_left_behind(folder: Path) -> None:
    demo = start(folder, "--seconds", "6", "--seed", "1")
    output, _ = demo.communicate()
    told = (folder / "told").read_text()
    assert demo.returncode == 0, told
    summary = json.loads(output)
    assert (summary["lost"], summary["done_twice"], summary["wrong_totals"]) == (0, 0, 0)
    assert summary["takeovers"] >= 1
    assert summary["settlements"] >= 1
    assert summary["done"] == summary["tasks"] >= 90
    assert "has taken over" in told
    assert "The page at node b: http://127.0.0.1:" in told
    assert left_behind(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(folder: Path, number: signal.Signals) -> None:
    demo = start(folder, "--seconds", "600")
    eventually(lambda: "node a is " in (folder / "told").read_text(), 300.0)
    assert left_behind(folder) != []
    demo.send_signal(number)
    demo.communicate(timeout=120)
    assert demo.returncode == 130
    assert left_behind(folder) == []
