"""Replies to a process that requests copies of stored results, and to its other queries."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from aioflow.clock import SystemClock
from aioflow.errors import (
    AioflowError,
    ResultDamaged,
    ResultMissing,
    StorageUnavailable,
    TaskError,
)
from aioflow.protocol.reports import CancelQuery, Query
from aioflow.queries import QueryHandler
from aioflow.worker.query.messages import (
    FilesCopied,
    FilesWanted,
    RecordsWanted,
    SpoolWanted,
)
from tests.test_queries import Child, Tables

WANTED = msgspec.msgpack.encode(FilesWanted(((5, 1), (6, 2))))


def asked(error: AioflowError | None) -> FilesCopied:
    """Return the reply of a daemon that has copied the results, or failed to."""
    child, requests = Child(), []

    def copy(run_no, keys, reply):
        requests.append((run_no, keys))
        reply(error)

    handler = QueryHandler(Tables(), SystemClock(), copy_results=copy)
    handler.submit(child, Query(3, 7, "files", WANTED))

    assert requests == [(7, ((5, 1), (6, 2)))]
    (answer,) = child.answers
    assert (answer.question, answer.error) == (3, "")
    return msgspec.msgpack.decode(answer.body, type=FilesCopied)


def test_copies_are_told():
    asked(None).check()


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ResultMissing(5, 1), ResultMissing),
        (ResultDamaged(5, 1, why="cut"), ResultDamaged),
        (StorageUnavailable("away"), TaskError),
    ],
)
def test_what_is_wrong_is_raised_in_the_process(error, raised):
    with pytest.raises(raised) as found:
        asked(error).check()
    assert str(error) in str(found.value)


def test_a_process_that_has_ended_is_not_answered():
    child = Child()
    replies = []
    handler = QueryHandler(
        Tables(), SystemClock(), copy_results=lambda _, __, reply: replies.append(reply)
    )
    handler.submit(child, Query(3, 7, "files", WANTED))
    child.is_open = False
    replies[0](None)
    assert child.answers == []


@pytest.mark.parametrize("body", [b"", b"\xc1", msgspec.msgpack.encode([["a"]])])
def test_what_cannot_be_decoded_is_refused(body):
    child = Child()
    handler = QueryHandler(Tables(), SystemClock(), copy_results=lambda *_: None)
    handler.submit(child, Query(3, 7, "files", body))
    assert "cannot be decoded" in child.answers[0].error


def test_without_stored_results_it_is_refused():
    child = Child()
    QueryHandler(Tables(), SystemClock()).submit(child, Query(3, 7, "files", WANTED))
    assert child.answers[0].error


async def test_a_slow_look_up_does_not_delay_the_others():
    class Slow(Tables):
        async def list_records(self, task_no, after=-1, limit=1000):
            if task_no == 1:
                await anyio.sleep_forever()
            return []

    child = Child()
    handler = QueryHandler(Slow(), SystemClock())
    async with anyio.create_task_group() as group:
        await group.start(handler.run)
        await anyio.wait_all_tasks_blocked()
        for question, task_no in ((1, 1), (2, 2)):
            wanted = msgspec.msgpack.encode(RecordsWanted(task_no))
            handler.submit(child, Query(question, 7, "records", wanted))
        with anyio.fail_after(60):
            await child.answered.wait()
        assert [answer.question for answer in child.answers] == [2]
        group.cancel_scope.cancel()


def spooling() -> tuple[Child, list, QueryHandler]:
    requests: list = []
    handler = QueryHandler(
        Tables(), SystemClock(), reserve_spool=lambda *asked: requests.append(asked)
    )
    child = Child()
    body = msgspec.msgpack.encode(SpoolWanted(5, 1, 70_000))
    for question in (3, 4):
        handler.submit(child, Query(question, 7, "spool", body))
    return child, requests, handler


def test_a_trigger_may_write_once_there_is_room():
    child, requests, _ = spooling()
    assert [request[:2] for request in requests] == [((5, 1), 70_000)] * 2
    assert child.answers == []
    assert requests[0][2]()
    (answer,) = child.answers
    assert (answer.question, answer.body, answer.error) == (3, b"", "")


def test_a_trigger_that_was_released_meanwhile_takes_no_room():
    child, requests, handler = spooling()
    handler.submit(child, CancelQuery(3))
    assert [request[2]() for request in requests] == [False, True]
    child.is_open = False
    assert not requests[1][2]()
    assert [answer.question for answer in child.answers] == [4]


def test_without_stored_results_no_room_is_needed():
    child = Child()
    handler = QueryHandler(Tables(), SystemClock())
    handler.submit(child, Query(3, 7, "spool", b""))
    assert child.answers[0].error
