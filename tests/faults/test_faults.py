"""One smoke case for each family of faults; ``tests/campaigns`` tries all of them exhaustively.

Only the campaigns limit durations, because they have the machine to themselves. These cases wait
for conditions.
"""

from __future__ import annotations

import pytest

from tests.faults import clocks, results, server, storage
from tests.faults.kills import Tally, WarmKills

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


def test_a_kill_at_a_write_loses_and_doubles_nothing(tmp_path):
    tally = Tally()
    with WarmKills(tmp_path, tally) as home:
        assert home.kill("pwrite64", 12)

    assert tally.acknowledged >= tally.kills == 1


@pytest.mark.nightly
def test_a_write_that_fails_once_is_made_good(tmp_path):
    assert storage.calls_that_fail(tmp_path, "pwrite64", "EIO", 0.0)["runs"] >= 2


@pytest.mark.nightly
def test_a_sync_that_fails_ends_the_daemon_and_the_next_start_makes_it_good(tmp_path):
    assert storage.sync_that_fails(tmp_path, "EIO")["runs"] >= 2


def test_a_full_disk_stops_work_but_no_reader_and_work_continues_by_itself(tmp_path):
    assert storage.disk_full(tmp_path, seconds=0.0)["lines_said"] >= 1


@pytest.mark.nightly
def test_results_that_do_not_fit_stop_work_without_a_charged_try(tmp_path):
    assert results.results_that_do_not_fit(tmp_path)["resumed_seconds"] < 30


@pytest.mark.nightly
def test_a_clock_that_is_set_fires_nothing_and_kills_no_process(tmp_path):
    assert clocks.clock_steps(tmp_path, 6 * clocks.HOUR, count=10, running=2)["tasks"] >= 12


@pytest.mark.nightly
def test_a_trigger_host_that_stands_still_changes_nothing(tmp_path):
    assert clocks.stand_still(tmp_path, "triggers", 1.0)["tasks"] >= 22


@pytest.mark.postgres
def test_a_server_that_crashes_under_the_daemon_costs_time_and_nothing_else(tmp_path):
    assert server.postgres_restarted(tmp_path, times=1, seconds=0.0)["bodies"] >= 50
