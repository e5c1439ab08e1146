"""Those faults of ``tests/faults`` that have limits on durations: nothing else may run meanwhile.

Parts are chosen by name, such as ``-k disk_full``. The promises and the measured figures are in
``docs/reference/faults.md``.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.campaigns.record import record
from tests.faults import downtime, machine, neighbours, results, server, storage
from tests.ha.busy_machine import quiet_minutes

pytestmark = [pytest.mark.nightly, pytest.mark.process, pytest.mark.timeout(1800)]

LIMITS: dict[str, dict[str, float]] = {
    "call_fails": {"resumed_seconds": 5.0},
    "sync_fails": {"resumed_seconds": 5.0},
    "disk_full": {"resumed_seconds": 5.0, "slowest_read_seconds": 0.8},
    "results_do_not_fit": {"resumed_seconds": 8.0},
    "busy": {"slowest_read_seconds": 0.8},
    "strange": {"noticed_seconds": 5.0},
    "refused": {"refused_seconds": 30.0},
    "read_only": {"refused_seconds": 30.0},
    "stuck_reader": {"slowest_seconds": 2.0},
    "down": {"live_late_seconds": 5.0, "slowest_answer_seconds": 1.0},
    "descriptors": {"healed_seconds": 5.0},
    "processes": {"healed_seconds": 5.0},
    "misbehaving": {"too_late_share": 0.01, "daemon_lag_seconds": 0.5},
    "postgres": {"slowest_resumed_seconds": 5.0},
    "busy_takeovers": {"takeovers": 0, "fenced": 0},
}
"""The limits that the figures of each fault must respect."""


def judge(fault: str, parameters: dict[str, Any], figures: dict[str, Any]) -> None:
    """Store the figures of a fault, and assert that they respect its limits."""
    record("faults", fault=fault, **parameters, **figures)
    limits = LIMITS[fault]
    exceeded = {name: figures[name] for name, limit in limits.items() if figures[name] > limit}
    assert not exceeded, f"more than {limits}"


@pytest.mark.parametrize("seconds", [0.0, 3.0])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_calls_that_fail(error, seconds, tmp_path):
    figures = storage.calls_that_fail(tmp_path, "pwrite64", error, seconds)
    judge("call_fails", {"call": "pwrite64", "error": error, "seconds": seconds}, figures)
    assert figures["runs"] >= 2


@pytest.mark.parametrize("starts", [0, 2])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_syncs_that_fail(error, starts, tmp_path):
    figures = storage.sync_that_fails(tmp_path, error, starts_that_fail=starts)
    judge("sync_fails", {"error": error, "starts_that_fail": starts}, figures)
    assert figures["runs"] >= 2


@pytest.mark.parametrize("seconds", [2.0, 10.0, 40.0])
def test_disk_full(seconds, tmp_path):
    figures = storage.disk_full(tmp_path, seconds=seconds)
    judge("disk_full", {"seconds": seconds}, figures)
    assert figures["lines_said"] >= 1


@pytest.mark.parametrize("seconds", [2.0, 30.0])
def test_results_that_do_not_fit(seconds, tmp_path):
    figures = results.results_that_do_not_fit(tmp_path, seconds=seconds)
    judge("results_do_not_fit", {"seconds": seconds}, figures)


@pytest.mark.parametrize("seconds", [1.0, 10.0, 60.0])
def test_another_writer(seconds, tmp_path):
    judge("busy", {"seconds": seconds}, storage.another_writer(tmp_path, seconds))


@pytest.mark.parametrize("stranger", storage.STRANGERS)
def test_strange_database(stranger, tmp_path):
    judge("strange", {"stranger": stranger}, storage.strange_database(tmp_path, stranger))


@pytest.mark.parametrize("stranger", storage.REFUSED)
def test_refused_at_start(stranger, tmp_path):
    judge("refused", {"stranger": stranger}, storage.refused_at_start(tmp_path, stranger))


def test_damaged_after_a_kill(tmp_path):
    judge("refused", {"stranger": "damaged"}, storage.damaged_after_a_kill(tmp_path))


def test_read_only_home(tmp_path):
    judge("read_only", {}, storage.read_only_home(tmp_path))


def test_stuck_reader(tmp_path):
    judge("stuck_reader", {}, storage.stuck_reader(tmp_path))


def test_three_days_down(tmp_path):
    judge("down", {}, downtime.three_days_down(tmp_path, minutes=3))


def test_no_descriptors(tmp_path):
    figures = machine.no_descriptors(tmp_path, seconds=20.0)
    judge("descriptors", {}, figures)
    assert figures["lines"] >= 1


@pytest.mark.parametrize("idle", [False, True])
def test_no_processes(idle, tmp_path):
    figures = machine.no_processes(tmp_path, seconds=20.0, idle=idle)
    judge("processes", {"idle": idle}, figures)
    assert figures["lines"] >= 1


def test_misbehaving_triggers(tmp_path):
    figures = neighbours.misbehaving(tmp_path, seconds=60.0, instants=700, arrivals=300)
    judge("misbehaving", {}, figures)
    assert figures["hosts_replaced"] == 3


@pytest.mark.postgres
def test_postgres_restarted(tmp_path):
    figures = server.postgres_restarted(tmp_path, times=10, seconds=3.0)
    judge("postgres", {}, figures)
    assert figures["bodies"] >= 500


QUIET_MINUTES = float(os.environ.get("AIOFLOW_HA_QUIET_MINUTES", "5"))


@pytest.mark.postgres
@pytest.mark.timeout(60 * QUIET_MINUTES + 1800)
def test_no_takeover_on_a_busy_machine(tmp_path):
    figures = quiet_minutes(tmp_path, minutes=QUIET_MINUTES, busy=16)
    judge("busy_takeovers", {}, figures)
    assert figures["runs"] >= 1
