"""Every fault of ``tests/faults``, to the end; the figures go to ``results``.

Parts of it are chosen by name, as ``-k warm`` or ``-k "not kill"``. What must hold, and what
came of it, stands in ``docs/reference/faults.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
from tests.faults.kills import COLD_CALLS, MISSES, WARM_CALLS, Tally, WarmKills, count_settlement

pytestmark = [pytest.mark.nightly, pytest.mark.process, pytest.mark.timeout(3600)]

RESULTS = Path(__file__).parent / "results"
KILLS_PER_HOME = 25
WARM_LEAST = {"pwrite64": 70, "fdatasync": 6, "write": 16}
COLD_LEAST = {
    "pwrite64": 120, "fdatasync": 12, "fsync": 2, "write": 30, "link": 1, "unlink": 4,
    "rename": 1, "mkdir": 6, "ftruncate": 2,
}  # fmt: skip
SETTLEMENT_LEAST = 150
SETTLEMENTS_AT_MOST = 225
WIDE, WIDE_LEAST = 2_000, 40
AT_LEAST = 400
"""Kill points together: each part asserts its own."""


def record(fault: str, **figures: Any) -> None:
    """Append what came of it."""
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    with (RESULTS / f"faults-{now.date().isoformat()}.jsonl").open("a") as file:
        file.write(json.dumps({"at": now.isoformat(), "fault": fault, **figures}) + "\n")


def told(tally: Tally) -> dict[str, Any]:
    """A tally for people: how many points of each call, not which."""
    figures = asdict(tally)
    at, _ = figures.pop("at"), figures.pop("missed_in_a_row")
    figures["points"] = {call: [min(them), max(them), len(them)] for call, them in at.items()}
    return figures


@pytest.mark.parametrize("call", WARM_CALLS)
def test_kill_at_every_warm_call(call, tmp_path):
    """Kill before the n-th call of a run, for every n there is."""
    tally = Tally()
    numbers = _until_there_is_none(tally)
    for home_number in range(1000):
        (folder := tmp_path / str(home_number)).mkdir()
        with WarmKills(folder, tally) as home:
            for _, number in zip(range(KILLS_PER_HOME), numbers, strict=False):
                home.kill(call, number)
        if tally.missed_in_a_row >= MISSES:
            break
    record("kill_warm", call=call, **told(tally))
    _judge(tally, WARM_LEAST[call])


@pytest.mark.parametrize("call", COLD_CALLS)
def test_kill_at_every_cold_call(call, tmp_path):
    """Kill a first start, and its first run, before its n-th call, for every n there is."""
    tally = Tally()
    for number in _until_there_is_none(tally):
        kills.kill_a_start(tmp_path / str(number), call, number, tally)
    record("kill_cold", call=call, **told(tally))
    _judge(tally, COLD_LEAST[call])


def _until_there_is_none(tally: Tally) -> Iterator[int]:
    number = 0
    while tally.missed_in_a_row < MISSES:
        number += 1
        yield number


def test_kill_settlements_at_random_writes(tmp_path):
    tally = Tally()
    slowest = 0.0
    calls = count_settlement(tmp_path / "counted")
    for seed in range(SETTLEMENTS_AT_MOST):
        recovery = kills.kill_a_settlement(tmp_path / str(seed), seed, calls, tally)
        slowest = max(slowest, recovery)
        if tally.kills >= SETTLEMENT_LEAST:
            break
    record("kill_settlement", slowest_recovery_seconds=slowest, **told(tally))
    _judge(tally, SETTLEMENT_LEAST)


def test_kill_wide_settlements_at_random_writes(tmp_path):
    """Forty kills of fan-outs of 2,000."""
    tally = Tally()
    slowest = 0.0
    calls = count_settlement(tmp_path / "counted", merchants=WIDE)
    for seed in range(2 * WIDE_LEAST):
        folder = tmp_path / str(seed)
        recovery = kills.kill_a_settlement(folder, seed, calls, tally, merchants=WIDE)
        slowest = max(slowest, recovery)
        if tally.kills >= WIDE_LEAST:
            break
    record("kill_wide", merchants=WIDE, slowest_recovery_seconds=slowest, **told(tally))
    _judge(tally, WIDE_LEAST)


def _judge(tally: Tally, least: int) -> None:
    """Assert that enough was killed, and that there was something to lose each time."""
    assert tally.kills >= least
    assert tally.acknowledged >= tally.kills


def test_the_kills_asked_for_are_enough():
    assert sum(WARM_LEAST.values()) + sum(COLD_LEAST.values()) + SETTLEMENT_LEAST >= AT_LEAST


@pytest.mark.parametrize("seconds", [0.0, 3.0])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync"])
def test_calls_that_fail(call, error, seconds, tmp_path):
    figures = storage.calls_that_fail(tmp_path, call, error, seconds)
    record("call_fails", call=call, error=error, seconds=seconds, **figures)


@pytest.mark.parametrize("seconds", [2.0, 10.0, 40.0])
def test_disk_full(seconds, tmp_path):
    record("disk_full", seconds=seconds, **storage.disk_full(tmp_path, seconds=seconds))


@pytest.mark.parametrize("seconds", [1.0, 10.0, 60.0])
def test_another_writer(seconds, tmp_path):
    record("busy", seconds=seconds, **storage.another_writer(tmp_path, seconds))


@pytest.mark.parametrize("stranger", storage.STRANGERS)
def test_strange_database(stranger, tmp_path):
    record("strange", stranger=stranger, **storage.strange_database(tmp_path, stranger))


@pytest.mark.parametrize("stranger", storage.REFUSED)
def test_refused_at_start(stranger, tmp_path):
    record("refused", stranger=stranger, **storage.refused_at_start(tmp_path, stranger))


def test_log_lost_while_stopped(tmp_path):
    record("log_lost", **storage.log_lost_while_stopped(tmp_path))


def test_read_only_home(tmp_path):
    record("read_only", **storage.read_only_home(tmp_path))


def test_stuck_reader(tmp_path):
    record("stuck_reader", **storage.stuck_reader(tmp_path))


def test_clock_steps(tmp_path):
    steps = (6 * clocks.HOUR, -2 * clocks.HOUR, 0)
    record("clock", **clocks.clock_steps(tmp_path, *steps))


def test_three_days_down(tmp_path):
    record("down", **downtime.three_days_down(tmp_path, minutes=3))


def test_clock_steps_of_a_schedule(tmp_path):
    record("clock_schedule", **clocks.schedule_steps(tmp_path))


@pytest.mark.parametrize("role", clocks.ROLES)
def test_stand_still(role, tmp_path):
    record("stopped", role=role, **clocks.stand_still(tmp_path, role, 10.0))


@pytest.mark.parametrize("role", ["slot", "async"])
def test_children_killed(role, tmp_path):
    record("children", role=role, **machine.children_killed(tmp_path, role, 20))


def test_trigger_hosts_killed(tmp_path):
    record("children", role="triggers", **machine.trigger_hosts_killed(tmp_path, 10))


def test_parsers_killed(tmp_path):
    record("children", role="parser", **machine.parsers_killed(tmp_path, 20))


def test_no_descriptors(tmp_path):
    record("descriptors", **machine.no_descriptors(tmp_path, seconds=20.0))


@pytest.mark.parametrize(
    ("call", "error"),
    [("inotify_init1", "EMFILE"), ("inotify_add_watch", "ENOSPC"), ("inotify_init1", "ENFILE")],
)
def test_no_inotify(call, error, tmp_path):
    figures = machine.no_inotify(tmp_path, call, error, count=200)
    record("inotify", call=call, error=error, **figures)


@pytest.mark.parametrize("idle", [False, True])
def test_no_processes(idle, tmp_path):
    record("processes", idle=idle, **machine.no_processes(tmp_path, seconds=20.0, idle=idle))


def test_no_memory(tmp_path):
    record("memory", **machine.no_memory(tmp_path))


@pytest.mark.parametrize("seed", [1, 2])
def test_crowd_killed(seed, tmp_path):
    """Trigger host, async host and daemon in turn, under 2,000 waits and 20 streams."""
    figures = crowds.crowd_killed(
        tmp_path, kills=50, waits=2_000, streams=20, events=200, seconds=60.0, seed=seed
    )
    record("crowd", seed=seed, **figures)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_steps_killed(seed, tmp_path):
    """500 tasks with three waits and two steps each."""
    figures = stepping.steps_killed(tmp_path, tasks=500, kills=10, seconds=10.0, seed=seed)
    record("steps", seed=seed, **figures)


def test_misbehaving_triggers(tmp_path):
    figures = neighbours.misbehaving(tmp_path, seconds=60.0, instants=700, arrivals=300)
    record("misbehaving", **figures)


@pytest.mark.postgres
def test_postgres_restarted(tmp_path):
    record("postgres", **server.postgres_restarted(tmp_path, times=10, seconds=3.0))
