"""``kill -9`` at the n-th call of a kind: before each write, each sync, each rename."""

from __future__ import annotations

import contextlib
import http.client
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks.daemon import eventually
from tests.campaigns import settlement_kills
from tests.faults.ground import Ground, has_ended, wait_for_death
from tests.faults.tools import count_calls, injecting, needs, traced

__all__ = (
    "COLD_CALLS",
    "WARM_CALLS",
    "Tally",
    "WarmKills",
    "count_cold",
    "count_warm",
    "kill_a_settlement",
    "kill_a_start",
)

WARM_CALLS = ("pwrite64", "fdatasync", "write")
"""What a daemon at work calls: into its database, and to whom it speaks."""

COLD_CALLS = ("pwrite64", "fdatasync", "fsync", "write", "unlink", "rename", "mkdir", "ftruncate")
"""What a first start calls: it makes the home, the key, the tables, the snapshots."""

MISSES = 2
"""So many runs in a row that ended before their n-th call mean that there is none."""


@dataclass
class Tally:
    """What kills came to.

    Attributes:
        lost: Acknowledged runs that were gone, or did not end right.
        doubled: Bodies begun after their recorded success.
        repeated: Bodies begun again because their try was cut short.
    """

    kills: int = 0
    misses: int = 0
    acknowledged: int = 0
    unanswered: int = 0
    repeated: int = 0
    lost: int = 0
    doubled: int = 0
    at: dict[str, list[int]] = field(default_factory=dict)

    def killed(self, call: str, number: int) -> None:
        """One more."""
        self.kills += 1
        self.at.setdefault(call, []).append(number)


class WarmKills:
    """Kills of one home that goes on: each restart finishes what the last kill cut short.

    ``kill`` begins and ends with a living daemon on a judged home. Leaving the block stops the
    daemon and judges for the last time.
    """

    def __init__(self, folder: Path, tally: Tally) -> None:
        needs("strace")
        self.ground = Ground(folder)
        self.tally = tally
        self.daemon = self.ground.daemon().start()
        self.ground.ask_until_answered(self.daemon)
        self.ground.judge(self.daemon)

    def kill(self, call: str, number: int) -> bool:
        """Kill at the call of this number; ``False`` if the run ended without it."""
        pid = self.daemon.process.pid
        with injecting(pid, call, f"signal=KILL:when={number}"):
            run_id = self.ground.ask(self.daemon)
            died = wait_for_death(self.daemon, lambda: has_ended(self.daemon, run_id))
        if not died:
            self.tally.misses += 1
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
    """How many calls of each kind one run makes on a living daemon."""
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
    """How many calls of each kind a first start and one run make."""
    needs("strace")
    ground, output = Ground(folder), folder / "calls"
    with ground.daemon().wrap(traced(",".join(COLD_CALLS), None, output)) as daemon:
        ground.ask_until_answered(daemon)
        ground.judge(daemon)
    counted = count_calls(output)
    return {call: counted[call] for call in COLD_CALLS if counted[call]}


def kill_a_start(folder: Path, call: str, number: int, tally: Tally) -> bool:
    """Kill the first start of a home, or its first run, at the call of this number."""
    needs("strace")
    folder.mkdir()
    ground = Ground(folder)
    daemon = ground.daemon().wrap(traced(call, f"signal=KILL:when={number}"))
    died = not daemon.start_or_die()
    if not died:
        run_id = ground.ask(daemon)
        died = wait_for_death(daemon, lambda: has_ended(daemon, run_id) or run_id is None, 30.0)
    if died:
        assert daemon.process.returncode == -9, daemon.last_words()
        tally.killed(call, number)
    else:
        tally.misses += 1
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


def kill_a_settlement(folder: Path, seed: int, tally: Tally, *, merchants: int = 300) -> float:
    """Kill the settlement pipeline at a write that chance picks; return the recovery's seconds."""
    needs("strace")
    dice = random.Random(seed)
    call = dice.choice(("pwrite64", "fdatasync", "write"))
    highest = {"pwrite64": 400, "fdatasync": 60, "write": 300}[call]
    number = dice.randint(1, highest)
    day = settlement_kills.Day(folder / "home", folder / "data", None, merchants, 6_000)
    total = day.write()
    daemon = day.daemon().start()
    conf = {"folder": str(day.data), "day": settlement_kills.DAY.isoformat()}
    eventually(lambda: daemon.get("/api/v1/dags/settlements", status=None)[0] == 200)
    run_id = "settlement"
    with injecting(daemon.process.pid, call, f"signal=KILL:when={number}"):
        acknowledged = False
        with contextlib.suppress(OSError, http.client.HTTPException):
            acknowledged = daemon.trigger("settlements", conf, run_id=run_id) == run_id
        eventually(lambda: not daemon.is_alive or has_ended(daemon, run_id), 120.0)
    if daemon.is_alive:
        tally.misses += 1
        daemon.kill()
    else:
        tally.killed(call, number)
    began = time.monotonic()
    if not acknowledged:
        with day.daemon() as again:
            again.trigger("settlements", conf, run_id=run_id)
    settlement_kills._go_on(day, run_id, total)
    tally.acknowledged += 1
    return round(time.monotonic() - began, 2)
