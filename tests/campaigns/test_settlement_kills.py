"""Forty settlement runs killed and restarted."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.campaigns.record import record
from tests.campaigns.settlement_kills import PHASES, kill_one_run

PLANS = [
    pytest.param(phase, number % 2 == 0, number >= 8 or (number == 7 and phase in PHASES[:2]))
    for phase in PHASES
    for number in range(10)
]
"""Ten kills in each phase: half of the whole tree, half of the daemon; a fourth on PostgreSQL."""


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("phase", "whole_tree", "on_postgres"), PLANS)
def test_a_killed_run_loses_and_doubles_nothing(phase, whole_tree, on_postgres, tmp_path, request):
    db = request.getfixturevalue("postgres_url") if on_postgres else None

    verdict = kill_one_run(tmp_path, phase, whole_tree=whole_tree, db=db)

    database = "postgresql" if on_postgres else "sqlite"
    record("settlement_kills", database=database, **asdict(verdict))
