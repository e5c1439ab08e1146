"""The heartbeat of slot workers: a worker that neither responds nor uses CPU is frozen."""

from __future__ import annotations

from typing import cast

import pytest

from aioflow.executors.worker_process import FROZEN_SECONDS, Heartbeat
from aioflow.processes import Child

TEN_MINUTES = 600


class FakeChild:
    """A process that uses a share of a CPU core."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._used_seconds = 0.0

    def let_pass(self, seconds: float) -> None:
        self._used_seconds += self._share * seconds

    def processor_seconds(self) -> float:
        return self._used_seconds


def seconds_until_frozen(heartbeat: Heartbeat, child: FakeChild, *, answers: bool = False) -> float:
    """Return the seconds until the child counts as frozen, at most ten minutes."""
    seconds = 0.0
    while seconds < TEN_MINUTES and not heartbeat.is_frozen:
        child.let_pass(heartbeat.beat_seconds)
        seconds += heartbeat.beat_seconds
        heartbeat.beat(cast(Child, child))
        if answers:
            heartbeat.reset()
    return seconds


def test_a_process_that_was_stopped_is_frozen_after_the_limit():
    seconds = seconds_until_frozen(Heartbeat(FROZEN_SECONDS), FakeChild(0.0))

    assert FROZEN_SECONDS <= seconds <= FROZEN_SECONDS + 10


@pytest.mark.parametrize("share", [1.0, 0.03, 2.0])
def test_a_process_that_computes_for_ten_minutes_and_lets_no_thread_answer_lives(share):
    assert seconds_until_frozen(Heartbeat(FROZEN_SECONDS), FakeChild(share)) == TEN_MINUTES


def test_a_process_that_answers_and_uses_nothing_lives():
    child = FakeChild(0.0)

    assert seconds_until_frozen(Heartbeat(FROZEN_SECONDS), child, answers=True) == TEN_MINUTES


def test_threads_that_wake_up_to_wait_for_the_interpreter_do_not_count_as_computing():
    seconds = seconds_until_frozen(Heartbeat(FROZEN_SECONDS), FakeChild(0.004))

    assert seconds < TEN_MINUTES


def test_its_silence_is_reported_soon_and_says_how_long_is_left():
    heartbeat, child = Heartbeat(FROZEN_SECONDS), FakeChild(0.0)
    while not heartbeat.is_silent:
        heartbeat.beat(cast(Child, child))

    assert heartbeat.silent_us <= 15_000_000
    total_seconds = (heartbeat.silent_us + heartbeat.left_us) / 1e6
    assert FROZEN_SECONDS <= total_seconds <= FROZEN_SECONDS + 10
