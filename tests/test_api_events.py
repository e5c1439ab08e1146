"""Named events emitted by people and webhooks, with a real engine and a real database."""

from __future__ import annotations

import anyio
import pytest

from aioflow.api import Api
from aioflow.clock import SystemClock
from aioflow.crypto import Vault
from aioflow.errors import AioflowError, BadEvent, DaemonAway, RequestError, Unserializable
from aioflow.protocol.requests import EmitEvent
from aioflow.store import open_store
from aioflow.telemetry.task_log import TaskLog
from tests.web.node import node


async def test_an_event_is_stored_and_listed_the_newest_first(tmp_path):
    async with node(tmp_path) as n:
        first = await n.api.emit("approved", key="k", data={"by": "mia"})
        second = await n.api.emit("shipped")
        listed = await n.api.list_events()
        of_name = await n.api.list_events(name="approved")

    assert (first.created, first.name, first.key) == (True, "approved", "k")
    assert first.event_id < second.event_id
    assert [view.event_id for view in listed] == [second.event_id, first.event_id]
    assert [(view.data, view.run_id, view.at) for view in of_name] == [
        ({"by": "mia"}, None, first.at)
    ]


async def test_events_are_listed_in_pages(tmp_path):
    async with node(tmp_path) as n:
        made = [(await n.api.emit("e", data=number)).event_id for number in range(40)]
        page = await n.api.list_events(limit=25)
        rest = await n.api.list_events(limit=25, before=page[-1].event_id)

    assert [view.event_id for view in (*page, *rest)] == made[::-1]


async def test_data_too_large_to_be_shown_is_replaced_by_its_size(tmp_path):
    async with node(tmp_path) as n:
        await n.api.emit("e", data="x" * 5_000)
        [view] = await n.api.list_events()

    assert view.data == {"size_bytes": 5_003}


async def test_the_same_request_is_one_event_also_after_a_restart(tmp_path):
    async with node(tmp_path) as n:
        first = await n.api.emit("e", data=1, request="r")
        again = await n.api.emit("e", data=2, request="r")
        other = await n.api.emit("f", request="r")
    async with node(tmp_path) as n:
        later = await n.api.emit("e", request="r")
        assert len(await n.api.list_events()) == 2

    assert [made.created for made in (first, again, other, later)] == [True, False, True, False]
    assert {first.event_id, again.event_id, later.event_id} == {first.event_id}


async def test_the_same_request_many_times_at_once_is_one_event(tmp_path):
    made = []
    async with node(tmp_path) as n:

        async def emit() -> None:
            made.append(await n.api.emit("e", request="r"))

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(emit)

    assert len({view.event_id for view in made}) == 1
    assert sum(view.created for view in made) == 1


async def test_a_request_that_the_engine_has_forgotten_is_found_in_the_rows(tmp_path):
    async with node(tmp_path) as n:
        first = await n.api.emit("e", request="r")
        n.engine.memory.event_requests.clear()
        with pytest.raises(AioflowError, match="UNIQUE"):
            await n.engine.ask(EmitEvent(name="e", key=None, data=b"\x01", request="r"))
        again = await n.api.emit("e", request="r")
        other = await n.api.emit("e", request="r2")

    assert (again.event_id, again.created) == (first.event_id, False)
    assert other.created


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param({"name": ""}, BadEvent, id="no-name"),
        pytest.param({"name": "x" * 251}, BadEvent, id="long-name"),
        pytest.param({"name": "a\nb"}, BadEvent, id="line-break"),
        pytest.param({"name": "a\0b"}, BadEvent, id="nul"),
        pytest.param({"name": "\ud800"}, BadEvent, id="no-unicode"),
        pytest.param({"name": "e", "key": ""}, BadEvent, id="empty-key"),
        pytest.param({"name": "e", "data": "x" * 1024 * 1024}, BadEvent, id="too-large"),
        pytest.param({"name": "e", "data": object()}, Unserializable, id="no-data"),
        pytest.param({"name": "e", "request": "a\nb"}, RequestError, id="no-request"),
    ],
)
async def test_an_event_that_cannot_be_is_refused_and_nothing_is_stored(tmp_path, arguments, error):
    async with node(tmp_path) as n:
        with pytest.raises(error):
            await n.api.emit(**arguments)
        assert await n.api.list_events() == []


async def test_the_largest_event_there_may_be_is_stored(tmp_path):
    async with node(tmp_path) as n:
        await n.api.emit("☃" * 250, key="☃" * 250, data="x" * (1024 * 1024 - 1569))
        with pytest.raises(BadEvent):
            await n.api.emit("☃" * 250, key="☃" * 250, data="x" * (1024 * 1024 - 1568))
        [view] = await n.api.list_events()

    assert view.name == "☃" * 250


async def test_without_a_daemon_events_are_listed_and_none_emitted(tmp_path):
    async with node(tmp_path) as n:
        made = await n.api.emit("e")
    url = f"sqlite:///{tmp_path}/aioflow.db"
    async with open_store(url, Vault([b"k" * 32]), exclusive=False) as store:
        offline = Api.offline(store, TaskLog(tmp_path / "logs", SystemClock()))
        [view] = await offline.list_events()
        with pytest.raises(DaemonAway):
            await offline.emit("e")

    assert view.event_id == made.event_id
