"""The main example on a real daemon, killed and restarted: a sample of the long campaign."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns.settlement_kills import kill_one_run

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
nightly = pytest.mark.nightly
SMALL = {"merchants": 300, "transactions": 6_000}


@pytest.mark.parametrize(
    ("phase", "whole_tree", "database"),
    [
        pytest.param("waiting", False, "sqlite", marks=nightly),
        pytest.param("expanding", True, "sqlite", marks=nightly),
        pytest.param("settling", True, "postgres", marks=pytest.mark.postgres),
        pytest.param("totalling", False, "sqlite", marks=nightly),
    ],
)
def test_a_killed_day_is_finished_with_the_right_total(
    phase, whole_tree, database, tmp_path, request
):
    db = request.getfixturevalue("postgres_url") if database == "postgres" else None

    verdict = kill_one_run(tmp_path, phase, whole_tree=whole_tree, db=db, **SMALL)

    assert verdict.begun >= SMALL["merchants"]


@nightly  # in `make test` a test of the command line sees the same
def test_the_demo_tells_a_total_that_equals_the_generators(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "aioflow", "demo", "--exit", "--json", "--after", "0.5"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
    )

    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["matches"] is True
    assert facts["total"] == facts["expected"]
