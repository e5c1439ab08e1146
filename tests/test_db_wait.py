"""A starting daemon waits, live but not ready, for a database server that does not respond."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog.testing

from aioflow.clock import SystemClock
from aioflow.daemon import startup
from aioflow.daemon.startup import open_database
from aioflow.errors import PortInUse, StoreUnavailable
from aioflow.settings import Settings

pytestmark = pytest.mark.asyncio

STORE: Any = object()
VAULT: Any = None


class Impatient(SystemClock):
    """A clock whose sleeps take virtual time, but no real time."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.asleep: Callable[[], Any] | None = None

    def monotonic_us(self) -> int:
        return round(sum(self.slept) * 1e6)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.asleep is not None:
            await self.asleep()


class Server:
    """A database server that becomes available after some attempts."""

    def __init__(self, attempts: int, *, may_pass: bool = True) -> None:
        self.left = attempts
        self.may_pass = may_pass
        self.is_open = False

    @asynccontextmanager
    async def open_store(
        self, url: str, vault: Any, *, durability: str, home: Path, lease_seconds: float | None
    ) -> AsyncIterator[Any]:
        if self.left:
            self.left -= 1
            away = StoreUnavailable("connection refused")
            away.may_pass = self.may_pass
            raise away
        self.is_open = True
        yield STORE
        self.is_open = False


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
        return number


def settings(
    port: int, db: str = "postgresql://db.example/flows", seconds: float = 300
) -> Settings:
    home = Path("/srv/flows")
    return Settings(home=home, dags=(), db=db, port=port, db_wait_seconds=seconds)


async def ask(port: int, path: str) -> tuple[int, Any]:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        said = b""
        async for part in stream:
            said += part
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def test_it_is_waited_for_with_longer_and_longer_pauses(monkeypatch, port):
    server, clock = Server(7), Impatient()
    monkeypatch.setattr(startup, "open_store", server.open_store)

    async with AsyncExitStack() as stack:
        assert await open_database(stack, settings(port), VAULT, clock) is STORE
        assert server.is_open

    assert clock.slept == [0.5, 1, 2, 4, 8, 10, 10]
    assert not server.is_open


async def test_meanwhile_it_is_alive_and_not_ready(monkeypatch, port):
    server, clock, answers = Server(1), Impatient(), []

    async def look() -> None:
        answers.extend([await ask(port, path) for path in ("/health/live", "/health/ready", "/")])

    clock.asleep = look
    monkeypatch.setattr(startup, "open_store", server.open_store)
    async with AsyncExitStack() as stack:
        await open_database(stack, settings(port), VAULT, clock)

    not_ready = (503, {"status": "not_ready"})
    assert answers == [(200, {"status": "live"}), not_ready, not_ready]
    with socket.create_server(("127.0.0.1", port)):
        pass  # the address is free for the web server


async def test_a_silent_client_delays_no_other(monkeypatch, port):
    server, clock, silent = Server(1), Impatient(), []

    async def look() -> None:
        silent.append(await anyio.connect_tcp("127.0.0.1", port))

    clock.asleep = look
    monkeypatch.setattr(startup, "open_store", server.open_store)
    async with AsyncExitStack() as stack:
        assert await open_database(stack, settings(port), VAULT, clock) is STORE
    await silent[0].aclose()


async def test_it_is_said_once_an_attempt(monkeypatch, port):
    monkeypatch.setattr(startup, "open_store", Server(3).open_store)

    with structlog.testing.capture_logs() as lines:
        async with AsyncExitStack() as stack:
            await open_database(stack, settings(port), VAULT, Impatient())

    said = [line["seconds_left"] for line in lines if "waiting for it" in line["event"]]
    assert said == [300, 300, 298]


@pytest.mark.parametrize("seconds", [0, 30])
async def test_after_its_time_the_start_ends(monkeypatch, port, seconds):
    clock = Impatient()
    monkeypatch.setattr(startup, "open_store", Server(1_000).open_store)

    async with AsyncExitStack() as stack:
        with pytest.raises(StoreUnavailable, match="connection refused"):
            await open_database(stack, settings(port, seconds=seconds), VAULT, clock)

    assert sum(clock.slept) == seconds


@pytest.mark.parametrize(
    ("db", "may_pass"),
    [("postgresql://db.example/flows", False), ("sqlite:////srv/flows/aioflow.db", True)],
    ids=["a-wrong-password", "a-file"],
)
async def test_permanent_errors_end_the_start_at_once(monkeypatch, port, db, may_pass):
    clock = Impatient()
    monkeypatch.setattr(startup, "open_store", Server(1, may_pass=may_pass).open_store)

    async with AsyncExitStack() as stack:
        with pytest.raises(StoreUnavailable):
            await open_database(stack, settings(port, db), VAULT, clock)

    assert clock.slept == []


async def test_an_address_that_is_taken_ends_it_too(monkeypatch, port):
    monkeypatch.setattr(startup, "open_store", Server(1).open_store)

    async with AsyncExitStack() as stack:
        with socket.create_server(("127.0.0.1", port)), pytest.RaisesGroup(PortInUse):
            await open_database(stack, settings(port), VAULT, Impatient())
