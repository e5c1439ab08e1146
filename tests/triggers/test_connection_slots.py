"""Connections are divided fairly: no server and no DAG uses up the connections of others."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from aioflow.author.client import query_sender
from aioflow_triggers.http import HttpTrigger
from aioflow_triggers.http_client import (
    CONNECTIONS,
    CONNECTIONS_PER_DAG,
    CONNECTIONS_PER_ORIGIN,
    Away,
    ClientShare,
    ConnectionSlots,
    NoConnectionSlot,
    Request,
)
from tests.triggers.site import Reply, site

PATIENCE = 60.0


class Of:
    """Returns the DAG on whose behalf a request is made, as a host does."""

    def __init__(self, dag_id: str) -> None:
        self._dag_id = dag_id

    def own_dag_id(self) -> str:
        return self._dag_id


async def asked_for(dag_id: str, trigger: HttpTrigger) -> Any:
    """Return the events of a trigger that runs on behalf of a DAG."""
    host: Any = Of(dag_id)
    query_sender.set(host)
    return [event async for event in trigger.run()]


@asynccontextmanager
async def serving(handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]):
    """Serve on a free port until every client has disconnected. Yields the URL."""
    handled: list[asyncio.Task[None]] = []

    async def each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: Any = asyncio.current_task()
        handled.append(task)
        with contextlib.suppress(ConnectionError):
            await handle(reader, writer)
        writer.close()

    server = await asyncio.start_server(each, "127.0.0.1", 0, backlog=500)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*handled)


@asynccontextmanager
async def tarpit():
    """Serve, but accept connections without ever sending anything.

    Yields the URL, and a list that grows with each connection.
    """
    taken: list[object] = []

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        while await reader.read(1_000):
            pass

    async with serving(swallow) as url:
        yield url, taken


@asynccontextmanager
async def waiting(*urls: str, count: int, dag: str = "bad"):
    """Let ``count`` triggers of a DAG wait for each URL within the block."""
    tasks = [
        asyncio.ensure_future(asked_for(dag, HttpTrigger(url, timeout="1h")))
        for url in urls
        for _ in range(count)
    ]
    await asyncio.sleep(0)
    try:
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("dag", ["bad", "good"])
async def test_a_server_that_does_not_answer_delays_no_wait_for_another(dag):
    async with site() as here, tarpit() as (silent, taken):
        here.reply(200)
        async with waiting(silent, count=110), asyncio.timeout(PATIENCE):
            events = await asyncio.gather(
                *(asked_for(dag, HttpTrigger(here.url)) for _ in range(5))
            )

    assert [event.payload["status"] for (event,) in events] == [200] * 5
    assert len(taken) <= CONNECTIONS_PER_ORIGIN


async def test_a_dag_that_asks_many_silent_servers_delays_no_other_dag():
    async with AsyncExitStack() as stack:
        pits = [await stack.enter_async_context(tarpit()) for _ in range(6)]
        here = await stack.enter_async_context(site())
        here.reply(200)
        async with waiting(*(url for url, _ in pits), count=20), asyncio.timeout(PATIENCE):
            (event,) = await asked_for("good", HttpTrigger(here.url))

    assert event.payload["status"] == 200
    assert sum(len(taken) for _, taken in pits) <= CONNECTIONS_PER_DAG


async def test_a_request_without_a_connection_in_time_is_retried_later():
    async with tarpit() as (silent, _), ClientShare("test") as line:
        asked = [
            asyncio.ensure_future(line.ask(Request(silent, timeout_seconds=3_600)))
            for _ in range(CONNECTIONS_PER_ORIGIN)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Away, match=r"no connection was free within 0\.05 s"):
            await line.ask(Request(silent, timeout_seconds=0.05))
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_a_head_that_drips_is_an_answer_that_does_not_come_in_time():
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX: ")
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with serving(drip) as url, ClientShare("test") as line, asyncio.timeout(PATIENCE):
        with pytest.raises(Away, match="no whole answer"):
            await line.ask(Request(url, timeout_seconds=0.1))


async def test_a_dripping_reply_gives_its_slot_back():
    async with site() as here, ClientShare("test") as line:
        here.replies = [Reply(200, stall=True)]
        for _ in range(CONNECTIONS_PER_ORIGIN + 1):
            with pytest.raises(Away):
                await line.ask(Request(here.url, timeout_seconds=0.01))


# ── the sharing itself ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(10))
async def test_no_limit_is_passed_and_each_has_its_turn(seed):
    rng, slots = random.Random(seed), ConnectionSlots()
    dags, origins = [f"d{n}" for n in range(12)], [f"o{n}" for n in range(30)]
    inside: Counter[str] = Counter()
    served, given_up = 0, 0

    async def ask(dag: str, origin: str) -> None:
        nonlocal served, given_up
        try:
            async with slots.hold(dag, origin, rng.choice((0.001, 60.0, 60.0))):
                inside.update((dag, origin, "all"))
                assert inside["all"] <= CONNECTIONS
                assert inside[dag] <= CONNECTIONS_PER_DAG
                assert inside[origin] <= CONNECTIONS_PER_ORIGIN
                try:
                    await asyncio.sleep(rng.random() * 0.005)
                finally:
                    inside.subtract((dag, origin, "all"))
                served += 1
        except NoConnectionSlot:
            given_up += 1

    tasks = [
        asyncio.create_task(ask(rng.choice(dags[: rng.randrange(1, 13)]), rng.choice(origins)))
        for _ in range(1_500)
    ]
    await asyncio.sleep(0)
    cancelled = rng.sample(tasks, 100)
    for task in cancelled:
        task.cancel()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*tasks, return_exceptions=True)

    assert all(task.cancelled() or task.exception() is None for task in tasks)
    assert served + given_up >= 1_400
    assert served > 0
    assert (slots._all, slots._waiting) == (0, {})
    assert not +slots._of_dag
    assert not +slots._of_origin


async def test_if_all_slots_are_used_the_next_one_goes_to_the_dag_with_the_fewest():
    slots = ConnectionSlots()
    order: list[str] = []
    release = asyncio.Event()

    async def hold(dag: str, origin: str) -> None:
        async with slots.hold(dag, origin, 60.0):
            order.append(dag)
            await release.wait()

    first = [
        asyncio.create_task(hold(f"d{n // CONNECTIONS_PER_DAG}", f"o{n}"))
        for n in range(CONNECTIONS + 20)
    ]
    await asyncio.sleep(0)
    late = asyncio.create_task(hold("late", "o"))
    await asyncio.sleep(0)
    assert len(order) == CONNECTIONS
    first[0].cancel()
    await asyncio.gather(first[0], return_exceptions=True)
    await asyncio.sleep(0)

    assert order[-1] == "late"
    release.set()
    await asyncio.gather(*first, late, return_exceptions=True)
