"""``kill -9`` at the n-th call of a kind: before each write, each sync, each rename."""

from __future__ import annotations

import contextlib
import http.client
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks.daemon import eventually
from tests.campaigns import settlement_kills
from tests.faults.ground import Ground, has_ended, wait_for_death
from tests.faults.tools import count_calls, injecting, needs, traced

__all__ = (
    "COLD_CALLS",
    "SETTLEMENT_CALLS",
    "WARM_CALLS",
    "Tally",
    "WarmKills",
    "count_cold",
    "count_settlement",
    "count_warm",
    "kill_a_settlement",
    "kill_a_start",
)

WARM_CALLS = ("pwrite64", "fdatasync", "write")
"""System calls of a running daemon, for its database and its sockets."""

COLD_CALLS = (
    "pwrite64", "fdatasync", "fsync", "write", "link", "unlink", "rename", "mkdir", "ftruncate",
)  # fmt: skip
"""System calls of a first start, which creates the home, the key, the tables and the snapshots."""

MISSES = 3
"""After this many consecutive runs that end before their n-th call, no such call is assumed."""


@dataclass
class Tally:
    """The outcome of kills.

    Attributes:
        lost: Acknowledged runs that were lost, or did not end in the right state.
        doubled: Bodies started after their recorded success.
        repeated: Bodies started again because their try was interrupted.
    """

    kills: int = 0
    misses: int = 0
    acknowledged: int = 0
    unanswered: int = 0
    repeated: int = 0
    lost: int = 0
    doubled: int = 0
    at: dict[str, list[int]] = field(default_factory=dict)
    missed_in_a_row: int = 0

    def missed(self) -> None:
        """Record that a run ended before the call at which it was to be killed."""
        self.misses += 1
        self.missed_in_a_row += 1

    def killed(self, call: str, number: int) -> None:
        """Record a kill."""
        self.kills += 1
        self.missed_in_a_row = 0
        self.at.setdefault(call, []).append(number)


class WarmKills:
    """Repeated kills on one home. Each restart finishes what the last kill interrupted.

    ``kill`` begins and ends with a running daemon on a checked home. Leaving the block stops the
    daemon and checks the home for the last time.
    """

    def __init__(self, folder: Path, tally: Tally) -> None:
        needs("strace")
        self.ground = Ground(folder)
        self.tally = tally
        self.daemon = self.ground.daemon()

    def kill(self, call: str, number: int) -> bool:
        """Kill the daemon at its n-th call of a kind. Return whether the run got that far."""
        pid = self.daemon.process.pid
        with injecting(pid, call, f"signal=KILL:when={number}"):
            run_id = self.ground.ask(self.daemon)
            died = wait_for_death(self.daemon, lambda: has_ended(self.daemon, run_id))
        if not died:
            assert run_id is not None, "it lives and did not answer"
            self.tally.missed()
            self.ground.judge(self.daemon)
            return False
        assert self.daemon.process.returncode == -9, self.daemon.last_words()
        self.tally.killed(call, number)
        self.tally.unanswered += run_id is None
        self.ground.judge_nobody_left()
        self.daemon = self.ground.daemon().start()
        self.ground.ask_again(self.daemon)
        self.ground.judge(self.daemon)
        return True

    def __enter__(self) -> Self:
        try:
            self.daemon.start()
            self.ground.ask_until_answered(self.daemon)
            self.ground.judge(self.daemon)
        except AssertionError:
            self.daemon.kill(whole_tree=True)
            raise
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None:
            self.daemon.kill(whole_tree=True)
            return
        assert self.daemon.stop() == 0, self.daemon.last_words()
        self.ground.judge_nobody_left()
        self.ground.judge_database()
        self.tally.acknowledged += len(self.ground.acknowledged)
        self.tally.repeated += self.ground.begun_again


def count_warm(folder: Path) -> dict[str, int]:
    """Return how many calls of each kind one run causes in a running daemon."""
    needs("strace")
    ground, output = Ground(folder), folder / "calls"
    with ground.daemon() as daemon:
        ground.ask_until_answered(daemon)
        ground.judge(daemon)
        with injecting(daemon.process.pid, ",".join(WARM_CALLS), None, output):
            run_id = ground.ask(daemon)
            eventually(lambda: has_ended(daemon, run_id))
        ground.judge(daemon)
    counted = count_calls(output)
    return {call: counted[call] for call in WARM_CALLS if counted[call]}


def count_cold(folder: Path) -> dict[str, int]:
    """Count the system calls, by kind, while a new daemon starts and executes one run."""
    needs("strace")
    ground, output = Ground(folder), folder / "calls"
    with ground.daemon().wrap(traced(",".join(COLD_CALLS), None, output)) as daemon:
        ground.ask_until_answered(daemon)
        ground.judge(daemon)
    counted = count_calls(output)
    return {call: counted[call] for call in COLD_CALLS if counted[call]}


def kill_a_start(folder: Path, call: str, number: int, tally: Tally) -> bool:
    """Kill the first start on a home, or its first run, at the n-th call of a kind."""
    needs("strace")
    folder.mkdir()
    ground = Ground(folder)
    daemon = ground.daemon().wrap(traced(call, f"signal=KILL:when={number}"))
    died = not daemon.start_or_die()
    if not died:
        # The request is repeated until the DAG file has been parsed; without a run, no call would
        # be hit.
        ground.asked.append("first")
        eventually(lambda: ground.ask(daemon, key="first") or not daemon.is_alive, 30.0)
        died = wait_for_death(daemon, lambda: has_ended(daemon, ground.acknowledged.get("first")))
    if died:
        assert daemon.process.returncode == -9, daemon.last_words()
        tally.killed(call, number)
    else:
        tally.missed()
        daemon.kill()
    ground.judge_nobody_left()
    with ground.daemon() as again:
        ground.ask_until_answered(again)
        ground.ask_again(again)
        ground.judge(again)
    ground.judge_nobody_left()
    tally.acknowledged += len(ground.acknowledged)
    tally.repeated += ground.begun_again
    return died


SETTLEMENT_CALLS = ("pwrite64", "fdatasync", "write")


def count_settlement(folder: Path, *, merchants: int = 300) -> dict[str, int]:
    """Return how many calls of each kind a settlement causes in a running daemon."""
    needs("strace")
    folder.mkdir()
    day, output = _day(folder, merchants), folder / "calls"
    day.write()
    with day.daemon() as daemon:
        eventually(lambda: daemon.get("/api/v1/dags/settlements", status=None)[0] == 200)
        with injecting(daemon.process.pid, ",".join(SETTLEMENT_CALLS), None, output):
            daemon.wait(daemon.trigger("settlements", _conf(day)))
    counted = count_calls(output)
    return {call: counted[call] for call in SETTLEMENT_CALLS}


def kill_a_settlement(
    folder: Path, seed: int, calls: Mapping[str, int], tally: Tally, *, merchants: int = 300
) -> float:
    """Kill the settlement pipeline at a random write. Return how long the recovery took.

    Args:
        calls: Number of calls of each kind in a settlement, from ``count_settlement``.
    """
    dice = random.Random(seed)
    call = dice.choice(SETTLEMENT_CALLS)
    number = dice.randint(1, calls[call])
    folder.mkdir()
    day = _day(folder, merchants)
    total = day.write()
    daemon = day.daemon().start()
    eventually(lambda: daemon.get("/api/v1/dags/settlements", status=None)[0] == 200)
    run_id = "settlement"
    with injecting(daemon.process.pid, call, f"signal=KILL:when={number}"):
        acknowledged = False
        with contextlib.suppress(OSError, http.client.HTTPException):
            acknowledged = daemon.trigger("settlements", _conf(day), run_id=run_id) == run_id
        eventually(lambda: not daemon.is_alive or has_ended(daemon, run_id), 120.0)
    if daemon.is_alive:
        tally.missed()
        daemon.kill()
    else:
        tally.killed(call, number)
    tally.unanswered += not acknowledged
    began = time.monotonic()
    if not acknowledged:
        with day.daemon() as again:
            again.trigger("settlements", _conf(day), run_id=run_id)
    begun, _ = settlement_kills._go_on(day, run_id, total)
    tally.acknowledged += 1
    tally.repeated += begun - day.merchants
    return round(time.monotonic() - began, 2)


def _day(folder: Path, merchants: int) -> settlement_kills.Day:
    data = folder / "data"
    return settlement_kills.Day(folder / "home", data, None, merchants, 20 * merchants)


def _conf(day: settlement_kills.Day) -> dict[str, str]:
    return {"folder": str(day.data), "day": settlement_kills.DAY.isoformat()}
