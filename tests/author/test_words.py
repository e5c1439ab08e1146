"""The small vocabulary of authors: durations, retries and signals."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta

import pytest

import aioflow
from aioflow import NotReady, PokeReturnValue, Retry, RetryAfter, as_timedelta
from aioflow.model.dag import RetryPolicy


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("14h", 14 * 3600),
        ("2d", 2 * 86_400),
        ("1w", 7 * 86_400),
        ("250ms", 0.25),
        ("1h30m", 5400),
        ("1.5h", 5400),
        (5, 5),
        (0.5, 0.5),
        (timedelta(minutes=1), 60),
    ],
    ids=str,
)
def test_a_duration_is_read(written, seconds):
    assert as_timedelta(written) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "figures", [{"tries": 0}, {"tries": True}, {"factor": 0.5}, {"on": OSError}]
)
def test_a_retry_that_makes_no_sense(figures):
    with pytest.raises(ValueError, match=next(iter(figures))):
        Retry(**figures)


def test_a_retry_is_a_policy_for_the_engine():
    assert Retry().policy() == RetryPolicy()
    assert Retry(
        tries=2, delay="1m", factor=1, max_delay=300, jitter=False
    ).policy() == RetryPolicy(
        tries=2, delay_us=60_000_000, factor=1.0, max_delay_us=300_000_000, jitter=False
    )


@pytest.mark.parametrize(
    ("retry", "error", "worth"),
    [
        (Retry(), KeyError(), True),
        (Retry(on=(OSError,)), ConnectionError(), True),
        (Retry(on=(OSError,)), KeyError(), False),
        (Retry(unless=lambda error: "404" in str(error)), OSError("404"), False),
        (Retry(unless=lambda error: "404" in str(error)), OSError("500"), True),
        (Retry(on=(OSError,), unless=lambda error: True), OSError(), False),
    ],
)
def test_whether_an_error_is_worth_another_try(retry, error, worth):
    assert retry.is_worth(error) is worth


def test_signals_carry_microseconds():
    assert NotReady(recheck_in=60).recheck_in_us == 60_000_000
    assert NotReady().recheck_in_us is None
    assert RetryAfter("30s").delay_us == 30_000_000
    assert not PokeReturnValue(is_done=False)
    assert PokeReturnValue(is_done=True, xcom_value=0)


def test_the_facade_names_what_it_has_and_nothing_else():
    public = {name for name in vars(aioflow) if not name.startswith("_")}
    modules = {name for name in public if type(getattr(aioflow, name)) is type(os)}

    assert tuple(sorted(aioflow.__all__)) == tuple(sorted((public - modules) - {"annotations"}))


@pytest.mark.process
def test_the_names_for_dag_files_import_nothing_heavy():
    heavy = {"aiosqlite", "anyio", "asyncio", "cronsim", "fastapi", "pydantic", "sqlalchemy"}
    code = "import sys; from aioflow import task; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()

    assert "aioflow.author.task" in loaded
    assert not heavy & set(loaded)
