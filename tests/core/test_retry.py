from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.core.tasks.retry import LATEST, next_try_at, redelivery_delay, sensor_next_poke
from aioflow.model.dag import RetryPolicy, SensorSpec

SECOND = 1_000_000
NOON = 1_893_499_200 * SECOND  # 2030-01-01T12:00Z
POLICY = RetryPolicy(
    tries=6, delay_us=10 * SECOND, factor=2.0, max_delay_us=60 * SECOND, jitter=False
)
STUBBORN = msgspec.structs.replace(POLICY, tries=10**7)


@pytest.mark.parametrize(
    ("try_number", "delay_seconds"),
    [
        pytest.param(1, 10, id="first-failure-waits-the-delay"),
        pytest.param(2, 20, id="doubles"),
        pytest.param(3, 40, id="doubles-again"),
        pytest.param(4, 60, id="capped"),
        pytest.param(5, 60, id="still-capped"),
        pytest.param(6, None, id="the-last-try-gives-up"),
        pytest.param(7, None, id="beyond-the-last-gives-up"),
    ],
)
def test_the_delay_doubles_up_to_the_cap(try_number, delay_seconds):
    at = next_try_at(POLICY, try_number=try_number, now=NOON, random=0.5)

    assert at == (None if delay_seconds is None else NOON + delay_seconds * SECOND)


def test_a_single_try_is_never_repeated():
    policy = RetryPolicy(tries=1)

    assert next_try_at(policy, try_number=1, now=NOON, random=0.0, retry_after_us=5) is None


@pytest.mark.parametrize(
    ("random", "delay_seconds"), [(0.0, 20), (0.25, 17.5), (0.5, 15), (0.999999, 10.00001)]
)
def test_jitter_takes_a_share_of_half_the_delay_away(random, delay_seconds):
    policy = msgspec.structs.replace(POLICY, jitter=True)

    at = next_try_at(policy, try_number=2, now=NOON, random=random)

    assert at == pytest.approx(NOON + delay_seconds * SECOND, abs=1)


@pytest.mark.parametrize(
    ("retry_after_us", "expected_us"),
    [
        pytest.param(90 * SECOND, 90 * SECOND, id="above-the-cap"),
        pytest.param(0, 0, id="at-once"),
        pytest.param(-5, 0, id="in-the-past-is-at-once"),
    ],
)
def test_a_delay_the_failure_asked_for_is_taken_as_it_is(retry_after_us, expected_us):
    policy = msgspec.structs.replace(POLICY, jitter=True)

    at = next_try_at(policy, try_number=1, now=NOON, random=0.9, retry_after_us=retry_after_us)

    assert at == NOON + expected_us


@pytest.mark.parametrize(
    "wrong", [{"try_number": 0}, {"random": 1.0}, {"random": -0.1}, {"random": float("nan")}]
)
def test_a_number_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=r"try_number|random"):
        next_try_at(POLICY, **{"try_number": 1, "now": NOON, "random": 0.0, **wrong})


@given(try_number=st.integers(1, 10**6), random=st.floats(0, 1, exclude_max=True))
def test_the_next_try_is_never_before_the_failure_nor_beyond_the_cap(try_number, random):
    policy = msgspec.structs.replace(STUBBORN, jitter=True)

    at = next_try_at(policy, try_number=try_number, now=NOON, random=random)

    assert at is not None
    assert NOON + 5 * SECOND <= at <= NOON + 60 * SECOND


@given(
    try_number=st.integers(1, 10**6),
    random=st.floats(0, 1, exclude_max=True),
    factor=st.floats(0, 1e300, exclude_min=True),
    delay_us=st.integers(0, 10**18),
    now=st.integers(-(10**15), LATEST + 10**12),
)
def test_without_a_cap_the_next_try_is_still_an_instant(try_number, random, factor, delay_us, now):
    policy = RetryPolicy(tries=10**7, delay_us=delay_us, factor=factor)

    at = next_try_at(policy, try_number=try_number, now=now, random=random)

    assert isinstance(at, int)
    assert now <= at <= max(now, LATEST)


# ── sensors ─────────────────────────────────────────────────────────────────────────────

SENSOR = SensorSpec(interval_us=60 * SECOND, backoff=2.0, max_interval_us=300 * SECOND)
EVENING = NOON + 6 * 3600 * SECOND


@pytest.mark.parametrize(
    ("pokes", "recheck_seconds", "pause_seconds"),
    [
        pytest.param(1, None, 60, id="first-the-interval"),
        pytest.param(2, None, 120, id="then-it-backs-off"),
        pytest.param(3, None, 240, id="further"),
        pytest.param(4, None, 300, id="up-to-the-longest"),
        pytest.param(10**9, None, 300, id="and-stays-there"),
        pytest.param(4, 5, 5, id="unless-it-asks-to-look-sooner"),
        pytest.param(1, 3600, 3600, id="or-later-than-the-longest"),
        pytest.param(1, -1, 0, id="or-at-once"),
    ],
)
def test_a_sensor_pokes_again(pokes, recheck_seconds, pause_seconds):
    recheck_in_us = None if recheck_seconds is None else recheck_seconds * SECOND

    at = sensor_next_poke(
        SENSOR, pokes=pokes, now=NOON, recheck_in_us=recheck_in_us, deadline=EVENING
    )

    assert at == NOON + pause_seconds * SECOND


@given(
    pokes=st.integers(1, 10**6),
    backoff=st.floats(0.1, 1e9),
    recheck_in_us=st.none() | st.integers(-(10**6), 10**18),
    deadline=st.integers(NOON - 10**9, NOON + 10**9),
)
def test_a_sensor_never_looks_after_its_deadline(pokes, backoff, recheck_in_us, deadline):
    sensor = SensorSpec(backoff=backoff)

    at = sensor_next_poke(
        sensor, pokes=pokes, now=NOON, recheck_in_us=recheck_in_us, deadline=deadline
    )

    assert min(NOON, deadline) <= at <= deadline


def test_a_sensor_that_has_not_looked_has_no_next_look():
    with pytest.raises(ValueError, match="pokes"):
        sensor_next_poke(SENSOR, pokes=0, now=NOON, recheck_in_us=None, deadline=None)


def test_an_outbox_row_is_tried_twelve_times_in_the_course_of_an_hour():
    delays = [redelivery_delay(attempts) for attempts in range(12)]

    assert delays == [5, 10, 20, 40, 80, 160, 320, 600, 600, 600, 600, None]
    assert 2_700 < sum(delay for delay in delays if delay is not None) < 3_600
