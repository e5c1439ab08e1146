"""The first signal stops, the second cancels everything. During a start, any signal cancels it."""

from __future__ import annotations

import os
import signal

import anyio
import pytest

from aioflow.daemon.stop_signals import StopSignals

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _hangup_is_not_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", NUMBERS)
async def test_the_first_signal_stops_and_the_second_cancels_everything(number):
    with StopSignals.received() as signals:
        with anyio.CancelScope() as everything:
            signals.everything = everything
            os.kill(os.getpid(), number)
            await signals.stopped.wait()
            assert not everything.cancel_called
            os.kill(os.getpid(), number)
            await anyio.sleep_forever()

    assert everything.cancelled_caught


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_start_is_cancelled_by_the_first_signal_also_by_one_that_came_before(number):
    with StopSignals.received() as signals:
        with signals.starting():
            os.kill(os.getpid(), number)
            await anyio.sleep_forever()
        with signals.starting():
            await anyio.sleep_forever()

    assert signals.stopped.is_set()


async def test_after_the_block_each_signal_does_what_it_did_before():
    before = [signal.getsignal(number) for number in NUMBERS]
    with StopSignals.received():
        assert signal.getsignal(signal.SIGTERM) != before[0]

    assert [signal.getsignal(number) for number in NUMBERS] == before


async def test_a_hangup_that_is_ignored_stays_so():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals.received() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        await anyio.sleep(0.01)

    assert not signals.stopped.is_set()
