"""Those faults of ``tests/faults`` that have no limits on durations, so two workers share them.

Parts are chosen by name, such as ``-k crowd``. The promises and the measured figures are in
``docs/reference/faults.md``. ``test_timed_faults.py`` contains the faults with limits, and
``test_kills.py`` the kills at every call.
"""

from __future__ import annotations

import pytest

from tests.campaigns.record import record
from tests.faults import clocks, crowds, machine, server, stepping, storage

pytestmark = [pytest.mark.nightly, pytest.mark.process, pytest.mark.timeout(1800)]


def test_log_lost_while_stopped(tmp_path):
    record("faults", fault="log_lost", **storage.log_lost_while_stopped(tmp_path))


@pytest.mark.postgres
def test_postgres_down_at_start(tmp_path):
    record("faults", fault="postgres_down_at_start", **server.postgres_down_at_start(tmp_path))


def test_clock_steps(tmp_path):
    figures = clocks.clock_steps(tmp_path, 6 * clocks.HOUR, -2 * clocks.HOUR, 0)
    record("faults", fault="clock", **figures)
    assert figures["tasks"] >= 90


def test_clock_steps_of_lengths(tmp_path):
    record("faults", fault="clock_lengths", **clocks.length_steps(tmp_path))


def test_clock_steps_of_a_schedule(tmp_path):
    record("faults", fault="clock_schedule", **clocks.schedule_steps(tmp_path))


@pytest.mark.parametrize("role", clocks.ROLES)
def test_stand_still(role, tmp_path):
    figures = clocks.stand_still(tmp_path, role, 10.0)
    record("faults", fault="stopped", role=role, **figures)
    assert figures["tasks"] >= 22


@pytest.mark.timeout(400)
def test_frozen_worker(tmp_path):
    record("faults", fault="frozen", **clocks.frozen_worker(tmp_path))


@pytest.mark.parametrize("role", ["slot", "async"])
def test_children_killed(role, tmp_path):
    figures = machine.children_killed(tmp_path, role, 20)
    record("faults", fault="children", role=role, **figures)


def test_trigger_hosts_killed(tmp_path):
    figures = machine.trigger_hosts_killed(tmp_path, 10)
    record("faults", fault="children", role="triggers", **figures)
    assert figures["fired"] == 20


def test_parsers_killed(tmp_path):
    record("faults", fault="children", role="parser", **machine.parsers_killed(tmp_path, 20))


@pytest.mark.parametrize(
    ("call", "error"),
    [("inotify_init1", "EMFILE"), ("inotify_add_watch", "ENOSPC"), ("inotify_init1", "ENFILE")],
)
def test_no_inotify(call, error, tmp_path):
    figures = machine.no_inotify(tmp_path, call, error, count=200)
    record("faults", fault="inotify", call=call, error=error, **figures)
    assert figures["fired"] == 400


def test_no_memory(tmp_path):
    record("faults", fault="memory", **machine.no_memory(tmp_path))


@pytest.mark.parametrize("seed", [1, 2])
def test_crowd_killed(seed, tmp_path):
    """Kill trigger host, async host and daemon in turn, during 2,000 waits and 20 streams."""
    figures = crowds.crowd_killed(
        tmp_path, kills=50, waits=2_000, streams=20, events=200, seconds=60.0, seed=seed
    )
    record("faults", fault="crowd", seed=seed, **figures)
    assert figures["kills"] == 50


@pytest.mark.parametrize("seed", [1, 2, 3, 7])
def test_steps_killed(seed, tmp_path):
    """Kill at random during 500 tasks with three waits and two steps each."""
    figures = stepping.steps_killed(tmp_path, tasks=500, kills=10, seconds=10.0, seed=seed)
    record("faults", fault="steps", seed=seed, **figures)
    assert figures["kills"] == 10
