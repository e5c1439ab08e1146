"""Alerts are sent to the targets of the settings file, without a restart."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from types import SimpleNamespace

import anyio

from aioflow.clock import SystemClock
from aioflow.notifications import AlertSettings
from aioflow.settings import FILE_NAME, Settings


class SteppedClock(SystemClock):
    """A clock whose sleeps end when the test wants the service to check the file."""

    def __init__(self):
        self._send, self._receive = anyio.create_memory_object_stream[None]()

    async def sleep(self, seconds):
        await self._receive.receive()

    def close(self):
        self._send.close()
        self._receive.close()

    async def look(self):
        """Let the service check the file. Return after the check, when another has begun."""
        for _ in range(2):
            await self._send.send(None)


@asynccontextmanager
async def following(home):
    """Follow the settings of a home. Yield a function that checks them, and the targets."""
    clock, targets = SteppedClock(), []
    service = AlertSettings(Settings.read(home), clock, targets.append)
    async with anyio.create_task_group() as group:
        await group.start(service.run)
        yield clock.look, targets
        group.cancel_scope.cancel()
    clock.close()


def write(home, text, *, at):
    """Write the file with a given time, since two writes within one tick are not tested here."""
    file = home / FILE_NAME
    file.write_text(text)
    os.utime(file, (at, at))


async def test_alerts_go_where_the_file_says_once_it_was_written(tmp_path):
    async with following(tmp_path) as (look, targets):
        await look()
        assert targets == []
        write(tmp_path, '[alerts]\nwebhook = "https://on.call/one"\n', at=1)
        await look()
        assert [one.webhook for one in targets] == ["https://on.call/one"]
        write(tmp_path, "[alerts]\n", at=2)
        await look()
        assert targets[-1].is_empty


async def test_other_changes_redirect_nothing(tmp_path):
    async with following(tmp_path) as (look, targets):
        write(tmp_path, "[slots]\ncpu = 7\n", at=1)
        await look()

    assert targets == []


async def test_a_file_that_is_wrong_changes_nothing_until_it_is_mended(tmp_path, monkeypatch):
    errors = []
    log = SimpleNamespace(error=lambda _, **facts: errors.append(facts), info=lambda *_: None)
    monkeypatch.setattr("aioflow.notifications._log", log)
    write(tmp_path, '[alerts]\nwebhook = "https://on.call/one"\n', at=1)
    async with following(tmp_path) as (look, targets):
        write(tmp_path, '[alerts]\nwebhok = "https://on.call/two"\n', at=2)
        await look()
        assert targets == []
        [facts] = errors
        assert "webhok" in facts["error"]
        write(tmp_path, '[alerts]\nwebhook = "https://on.call/two"\n', at=3)
        await look()

    assert [one.webhook for one in targets] == ["https://on.call/two"]
