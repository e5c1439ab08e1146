"""A sample of every fault; ``tests/campaigns/test_faults.py`` does all of it."""

from __future__ import annotations

import pytest

from tests.faults import (
    clocks,
    crowds,
    downtime,
    kills,
    machine,
    neighbours,
    server,
    stepping,
    storage,
)
from tests.faults.kills import Tally, WarmKills

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """How many seconds anything may take is judged by the campaigns, on a machine of their own.

    Beside other tests each bound is as wide as still tells waiting for the fault's end, or for
    ever, from slowness.
    """
    for module, name, seconds in (
        (storage, "READER_SECONDS", 5.0),
        (storage, "RESUMED_SECONDS", 20.0),
        (storage, "NOTICED_SECONDS", 30.0),
        (machine, "HEALED_SECONDS", 30.0),
        (server, "RESUMED_SECONDS", 20.0),
        (downtime, "ANSWER_SECONDS", 5.0),
        (downtime, "LATE_SECONDS", 15.0),
        (neighbours, "LAG_SECONDS", 3.0),
        (neighbours, "LATE_SECONDS", 3.0),
    ):
        monkeypatch.setattr(module, name, seconds)


def test_kills_at_writes_and_syncs_lose_and_double_nothing(tmp_path):
    tally = Tally()
    points = [("pwrite64", 1), ("fdatasync", 1), ("pwrite64", 12), ("fdatasync", 4), ("write", 9)]
    with WarmKills(tmp_path, tally) as home:
        for call, number in points:
            home.kill(call, number)

    assert tally.kills >= 4
    assert tally.acknowledged >= tally.kills


# The fourth sync is that of the page which says whose file it is.
@pytest.mark.parametrize(("call", "number"), [("pwrite64", 30), ("fdatasync", 4)])
def test_a_first_start_killed_at_a_write_is_made_good(call, number, tmp_path):
    assert kills.kill_a_start(tmp_path / "cold", call, number, Tally())


def test_fan_outs_killed_at_writes_that_chance_picks_have_each_child_and_the_right_total(tmp_path):
    tally = Tally()
    calls = kills.count_settlement(tmp_path / "counted", merchants=400)
    for seed in range(3):
        kills.kill_a_settlement(tmp_path / str(seed), seed, calls, tally, merchants=400)

    assert tally.kills >= 1
    assert tally.acknowledged == 3


@pytest.mark.parametrize(
    ("call", "error", "seconds"),
    [("pwrite64", "EIO", 0.0), ("fdatasync", "EIO", 0.0), ("pwrite64", "ENOSPC", 1.0)],
)
def test_calls_that_fail(call, error, seconds, tmp_path):
    assert storage.calls_that_fail(tmp_path, call, error, seconds)["runs"] >= 2


def test_a_full_disk_stops_work_but_no_reader_and_work_goes_on_by_itself(tmp_path):
    assert storage.disk_full(tmp_path, seconds=8.0)["lines_said"] >= 1


def test_another_writer_is_waited_for(tmp_path):
    assert storage.another_writer(tmp_path, 8.0)["answers_read"] >= 20


@pytest.mark.parametrize("stranger", ["deleted", "older_copy", "truncated"])
def test_another_database_under_the_daemon_ends_it(stranger, tmp_path):
    storage.strange_database(tmp_path, stranger)


@pytest.mark.parametrize("stranger", storage.REFUSED)
def test_what_cannot_be_ours_is_refused_at_start(stranger, tmp_path):
    assert storage.refused_at_start(tmp_path, stranger)["refused_seconds"] <= 30.0


def test_a_home_that_cannot_be_written_is_refused(tmp_path):
    storage.read_only_home(tmp_path)


def test_a_clock_that_is_set_fires_nothing_twice_and_kills_nobody(tmp_path):
    assert clocks.clock_steps(tmp_path, 6 * clocks.HOUR, -2 * clocks.HOUR)["tasks"] >= 90


def test_three_days_down_double_no_slot_and_delay_no_live_one(tmp_path):
    assert downtime.three_days_down(tmp_path, minutes=1)["dags"] == 40


@pytest.mark.parametrize("role", ["daemon", "triggers"])
def test_standing_still_changes_nothing(role, tmp_path):
    assert clocks.stand_still(tmp_path, role, 2.0)["tasks"] >= 22


@pytest.mark.parametrize(("role", "times"), [("slot", 4), ("async", 3)])
def test_killed_children_are_replaced_and_their_work_goes_on(role, times, tmp_path):
    assert machine.children_killed(tmp_path, role, times)["interruptions"] >= 1


def test_killed_trigger_hosts_are_replaced_and_what_they_hosted_fires_once(tmp_path):
    assert machine.trigger_hosts_killed(tmp_path, 3)["fired"] == 20


def test_without_descriptors_it_waits_and_says_so(tmp_path):
    assert machine.no_descriptors(tmp_path, seconds=3.0)["lines"] >= 1


@pytest.mark.parametrize(
    ("call", "error"), [("inotify_init1", "EMFILE"), ("inotify_add_watch", "ENOSPC")]
)
def test_without_watches_of_the_kernel_files_are_found_by_looking(call, error, tmp_path):
    assert machine.no_inotify(tmp_path, call, error)["fired"] == 40


def test_without_processes_it_waits_and_says_so(tmp_path):
    assert machine.no_processes(tmp_path, seconds=6.0)["lines"] >= 1


def test_hosts_and_daemon_killed_in_turn_under_waits_and_streams_charge_and_lose_nothing(tmp_path):
    figures = crowds.crowd_killed(tmp_path, kills=5, waits=200, streams=5, events=40, seconds=5.0)
    assert figures["kills"] == 5


def test_kills_at_random_repeat_no_step_that_has_a_record(tmp_path):
    figures = stepping.steps_killed(tmp_path, tasks=60, kills=4, seconds=3.0, seed=7)
    assert figures["kills"] == 4


def test_triggers_that_misbehave_make_nobody_late_and_are_named(tmp_path):
    culprits = ("sleeps", "exits", "floods", "floods_a_stream", "swells")
    figures = neighbours.misbehaving(
        tmp_path,
        seconds=6.0,
        instants=70,
        arrivals=30,
        culprits=culprits,
        health_seconds=10.0,
        late_share=0.025,  # beside other tests a start takes its time
    )
    assert figures["hosts_replaced"] == 1


@pytest.mark.postgres
def test_a_server_that_crashes_under_the_daemon_costs_time_and_nothing_else(tmp_path):
    assert server.postgres_restarted(tmp_path, times=2, seconds=1.0)["bodies"] >= 100
