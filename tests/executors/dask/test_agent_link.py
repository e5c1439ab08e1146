"""The daemon's end of a link to the port of a Dask worker that no longer exists."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import anyio
import pytest

from aioflow.clock import SystemClock
from aioflow.executors.dask import agent_link
from aioflow.executors.dask.agent_link import AgentLink
from aioflow.executors.dask.messages import LinkHello
from aioflow.executors.dask.stream import Comm

HELLO = LinkHello(
    home_id="h0me",
    node_no=0,
    epoch=1,
    executor="dask",
    secret="s",
    agent_id="a",
    link_no=0,
    received=0,
)


class Owner:
    """Records what a link reports."""

    def __init__(self) -> None:
        self.reports: list[str] = []

    def on_message(self, *_: object) -> None: ...

    def on_contact(self, _link: AgentLink, why: str) -> None:
        self.reports.append(why)

    def on_dying(self, _link: AgentLink) -> None:
        self.reports.append("dying")

    def on_death(self, _link: AgentLink, why: str) -> None:
        self.reports.append(why)

    def on_unused(self, _link: AgentLink) -> None: ...

    def has_workers(self, _link: AgentLink) -> bool:
        return True


async def dials_on(port: socket.socket) -> Comm:
    """Dial as Dask does, which repeats a refused attempt until the time limit."""
    port.close()
    await asyncio.sleep(agent_link.DIAL_SECONDS)
    raise OSError("timed out trying to connect")


async def is_reset(port: socket.socket) -> Comm:
    """Connect to a process that is killed before it replies."""
    port.close()
    raise ConnectionResetError


@pytest.mark.parametrize("dial", [dials_on, is_reset])
async def test_a_process_whose_port_closes_after_its_connections_is_dead_at_once(
    dial: Callable[[socket.socket], Awaitable[Comm]], monkeypatch
):
    monkeypatch.setattr(agent_link, "DIAL_SECONDS", 600.0)
    monkeypatch.setattr(agent_link, "DEATH_SECONDS", 0.0)
    owner = Owner()
    with socket.create_server(("127.0.0.1", 0)) as port:
        address = f"tcp://127.0.0.1:{port.getsockname()[1]}"
        link = AgentLink(address, HELLO, owner, lambda _: dial(port), SystemClock(), 60.0)
        with anyio.fail_after(30):
            await link.run()
    assert owner.reports == ["dying", "its Dask worker died"]
