"""Each sync of a run fails once, and the power is cut at each later one; see ``failing_syncs``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.tools import needs

pytestmark = pytest.mark.process

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """Return the library that makes syncs fail."""
    needs("gcc")
    library = tmp_path_factory.mktemp("disk") / "disk.so"
    words = [
        "gcc",
        "-shared",
        "-fPIC",
        "-O1",
        "-o",
        library,
        FOLDER / "disk.c",
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(words, check=True)
    return library


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("durability", "files"),
    [
        pytest.param("full", ["aioflow.db:3", "aioflow.db-wal:5"], id="sampled"),
        pytest.param("full", ["aioflow.db"], id="database", marks=pytest.mark.nightly),
        pytest.param("full", ["aioflow.db-wal"], id="log", marks=pytest.mark.nightly),
        pytest.param("normal", ["aioflow.db"], id="database-normal", marks=pytest.mark.nightly),
        pytest.param("normal", ["aioflow.db-wal"], id="log-normal", marks=pytest.mark.nightly),
        pytest.param("full", ["held", "aioflow.db"], id="held", marks=pytest.mark.nightly),
        pytest.param(
            "normal", ["held", "aioflow.db-wal"], id="held-log", marks=pytest.mark.nightly
        ),
    ],
)
def test_after_a_failed_sync_a_power_cut_costs_nothing(disk, durability, files, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "tests.store.failing_syncs", tmp_path, durability, *files],
        env=os.environ | {"LD_PRELOAD": str(disk)},
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 0, ended.stderr
    trials = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [trial for trial in trials if "error" in trial] == []
    assert sum(trial["ended"] for trial in trials) >= 2, "no life ended by its failed sync"
    assert all(trial["cuts"] >= 20 for trial in trials)
