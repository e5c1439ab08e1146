"""The crash recorder's mark, by which the watchdog sees whether a step has run."""

from __future__ import annotations

import pytest

from aioflow.worker.crash_recorder import ASLEEP, MARKED, WIPED, CrashRecorder, Stepped
from tests.worker.peer import Guest


def stepped_once(box: CrashRecorder) -> None:
    async def body() -> None:
        pass

    with pytest.raises(StopIteration):
        Stepped(body(), Guest(5), box).send(None)


def test_a_step_wipes_the_mark():
    box = CrashRecorder()
    box.word[1] = MARKED

    stepped_once(box)

    assert box.word[1] == WIPED
    assert not box.woken.acquire(blocking=False)


def test_a_step_wakes_the_watchdog_once():
    box = CrashRecorder()
    box.word[1] = ASLEEP

    stepped_once(box)
    stepped_once(box)

    assert box.woken.acquire(blocking=False)
    assert not box.woken.acquire(blocking=False)
