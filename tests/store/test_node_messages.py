"""Messages between the nodes of a PostgreSQL database."""

from __future__ import annotations

import anyio
import pytest

from aioflow.store import open_store
from aioflow.store.node_messages import NodeMessage
from tests.store.samples import VAULT

pytestmark = pytest.mark.postgres

A, B = 5, 6


def query(number: int, *, is_answer: bool = False) -> NodeMessage:
    return NodeMessage(query_no=number, is_answer=is_answer, from_epoch=A, body=b"x")


@pytest.fixture
async def messages(postgres_url):
    """Return the message stores of two nodes."""
    async with (
        open_store(postgres_url, VAULT, lease_seconds=3.0) as first,
        open_store(postgres_url, VAULT, lease_seconds=3.0) as second,
    ):
        yield first.node_messages, second.node_messages


async def test_a_message_is_taken_once_and_by_the_one_it_is_for(messages):
    sender, receiver = messages
    await sender.send(query(1), to_epoch=B, seconds=5)
    await sender.send(query(1, is_answer=True), to_epoch=A, seconds=5)

    assert await receiver.take(B) == [query(1)]
    assert await receiver.take(B) == []
    assert await sender.take(A) == [query(1, is_answer=True)]


async def test_a_message_wakes_its_receiver(messages):
    sender, receiver = messages
    assert await receiver.take(B) == []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(receiver.wait, B, 60.0)
            await sender.send(query(2), to_epoch=B, seconds=5)
    assert await receiver.take(B) == [query(2)]


async def test_a_message_that_has_expired_is_deleted_by_any_node(messages):
    sender, receiver = messages
    await sender.send(query(3), to_epoch=B, seconds=-1)
    assert await sender.take(A) == []
    assert await receiver.take(B) == []


async def test_a_connection_that_the_server_ends_is_opened_again(messages):
    sender, receiver = messages
    assert await receiver.take(B) == []
    receiver._side._connection.terminate()
    await sender.send(query(4), to_epoch=B, seconds=5)
    assert await receiver.take(B) == [query(4)]
