"""Queries of workers to the home are answered no faster than their channels can deliver."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest

from aioflow.clock import SystemClock
from aioflow.executors import home_queries
from aioflow.executors.home_queries import HomeQueries
from aioflow.protocol.reports import Query
from aioflow.results import result_path, write_value
from aioflow.worker.query.result_transfer import (
    FETCH_QUERY,
    RESERVE_QUERY,
    STORE_QUERY,
    ResultPiece,
    ResultWanted,
)

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

PIECE = 1_000
SIZE = 5 * PIECE
PIECES = [ResultPiece(9, 1, offset, 2 * PIECE, b"x" * PIECE) for offset in (0, PIECE)]
STORED = len(msgspec.msgpack.encode(PIECES[1]))


class Worker:
    """A worker with a slow channel. A test sets ``backlog`` to 0 when all data has arrived."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.asked_bytes = 0
        self.answering = anyio.Lock()
        self.reserved: Any = None
        self.is_open, self.is_lost = True, False
        self.backlog = 0
        self.got: list[ResultPiece] = []
        self.replies: list[str] = []
        self.process: Any = SimpleNamespace(serves=lambda run: True, runs=lambda key: True)

    def send(self, replies: list[Any]) -> None:
        for reply in replies:
            if reply.error or not reply.body:
                self.replies.append(reply.error)
                continue
            self.got.append(msgspec.msgpack.decode(reply.body, type=ResultPiece))
            self.backlog += len(reply.body)


class Home:
    """The query handlers of a home with one large result."""

    def __init__(self, folder: Path, group: anyio.abc.TaskGroup) -> None:
        context: Any = SimpleNamespace(results=folder, copied_result=None, clock=SystemClock())
        self.queries = HomeQueries(context)
        self._group = group
        write_value(result_path(folder, 5, 1), b"x" * SIZE)

    def ask(self, worker: Worker, offset: int = 0) -> bool:
        body = msgspec.msgpack.encode(ResultWanted(5, 1, offset))
        query = Query(1, 7, FETCH_QUERY, body)
        if not self.queries.admits(worker, query):
            return False
        self._group.start_soon(self.queries.answer, worker, query)
        return True

    def send(self, worker: Worker, kind: str, body: object) -> None:
        query = Query(1, 7, kind, msgspec.msgpack.encode(body))
        assert self.queries.admits(worker, query)
        self._group.start_soon(self.queries.answer, worker, query)

    @property
    def held(self) -> int:
        return self.queries._budget.used_bytes

    @property
    def inflow(self) -> int:
        return self.queries._inflow.used_bytes


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    async def inline(function, *arguments, limiter=None):
        return function(*arguments)

    monkeypatch.setattr(home_queries, "in_thread", inline)
    monkeypatch.setattr(home_queries, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(home_queries, "ANSWER_BYTES", 4 * PIECE)
    monkeypatch.setattr(home_queries, "UNRESERVED_BYTES", 100)
    monkeypatch.setattr(home_queries, "INFLOW_BYTES", 4 * 3 * STORED)


async def test_one_worker_gets_one_piece_at_a_time_and_the_next_when_that_has_left(tmp_path):
    async with anyio.create_task_group() as group:
        home, worker = Home(tmp_path, group), Worker(2)
        for offset in range(0, SIZE, PIECE):
            assert home.ask(worker, offset)
        for count in range(1, 6):
            await anyio.sleep(1)
            assert [piece.offset for piece in worker.got] == list(range(0, count * PIECE, PIECE))
            assert home.held == PIECE
            worker.backlog = 0
        await anyio.sleep(1)
        assert (home.held, worker.asked_bytes) == (0, 0)


async def test_the_answers_to_all_workers_are_limited_together(tmp_path):
    async with anyio.create_task_group() as group:
        home, workers = Home(tmp_path, group), [Worker(number) for number in range(2, 42)]
        for worker in workers:
            home.ask(worker)
        done = 0
        while done < len(workers):
            await anyio.sleep(1)
            assert sum(bool(one.got) for one in workers) == min(done + 4, len(workers))
            assert home.held <= 4 * PIECE
            for worker in workers:
                worker.backlog = 0
            done += 4


@pytest.mark.parametrize("fate", ["is lost", "is dead"])
async def test_a_worker_that_reads_nothing_any_more_holds_up_no_other(tmp_path, fate):
    async with anyio.create_task_group() as group:
        home, silent, other = Home(tmp_path, group), [Worker(n) for n in range(2, 6)], Worker(9)
        for worker in silent:
            home.ask(worker)
        await anyio.sleep(1)
        home.ask(other)
        await anyio.sleep(1)
        assert not other.got
        for worker in silent:
            worker.is_lost, worker.is_open = fate == "is lost", fate != "is dead"
        await anyio.sleep(1)
        assert other.got
        other.backlog = 0


async def test_a_worker_that_asks_without_waiting_for_answers_is_not_admitted(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(home_queries, "ASKED_BYTES", 20_000)
    async with anyio.create_task_group() as group:
        home, worker = Home(tmp_path, group), Worker(2)
        admitted = [home.ask(worker) for _ in range(30)]
        assert 10 < admitted.count(True) < 20
        assert home.ask(Worker(3))
        group.cancel_scope.cancel()


async def test_the_pieces_of_all_workers_are_limited_together(tmp_path):
    async with anyio.create_task_group() as group:
        home, workers = Home(tmp_path, group), [Worker(number) for number in range(200)]
        for worker in workers:
            home.send(worker, RESERVE_QUERY, STORED)
        for done in range(0, 200, 4):
            await anyio.sleep(0.1)
            may_send = [worker for worker in workers if worker.replies == [""]]
            assert [worker.number for worker in may_send] == list(range(done, done + 4))
            assert home.inflow == 4 * 3 * STORED
            for worker in may_send:
                piece = msgspec.structs.replace(PIECES[0], start_no=worker.number, size=PIECE)
                home.send(worker, STORE_QUERY, piece)
            await anyio.sleep(0.1)
            assert all(worker.replies == ["", ""] for worker in may_send)
    assert home.inflow == 0
    assert len([path for path in (tmp_path / "0").iterdir() if ".part" not in path.name]) == 201


async def test_a_result_is_stored_piece_by_piece(tmp_path):
    async with anyio.create_task_group() as group:
        home, worker = Home(tmp_path, group), Worker(2)
        for piece in PIECES:
            home.send(worker, RESERVE_QUERY, STORED)
            await anyio.sleep(0.1)
            home.send(worker, STORE_QUERY, piece)
            await anyio.sleep(0.1)
    assert worker.replies == [""] * 4
    assert (home.inflow, worker.asked_bytes, worker.reserved) == (0, 0, None)
    assert result_path(tmp_path, 9, 1).read_bytes() == b"x" * 2 * PIECE


@pytest.mark.parametrize("fate", ["is lost", "is dead", "sends nothing"])
async def test_memory_is_not_reserved_for_long_for_a_worker_that_sends_nothing(tmp_path, fate):
    async with anyio.create_task_group() as group:
        home, silent, other = Home(tmp_path, group), [Worker(n) for n in range(2, 6)], Worker(9)
        for worker in (*silent, other):
            home.send(worker, RESERVE_QUERY, STORED)
        await anyio.sleep(2)
        assert other.replies == []
        for worker in silent:
            worker.is_lost, worker.is_open = fate == "is lost", fate != "is dead"
        await anyio.sleep(home_queries.RESERVED_SECONDS if fate == "sends nothing" else 2)
        assert other.replies == [""]

        late = silent[0]
        home.send(late, STORE_QUERY, PIECES[0])  # its memory is another's by now
        await anyio.sleep(0.1)
        assert "no memory is reserved" in late.replies[1]
        home.send(other, STORE_QUERY, PIECES[0])
    assert home.inflow == 0


async def test_a_reservation_that_makes_no_sense_is_refused(tmp_path):
    async with anyio.create_task_group() as group:
        home, worker = Home(tmp_path, group), Worker(2)
        for size in (-1, 0, PIECE * 3, 2**63):
            home.send(worker, RESERVE_QUERY, size)
        await anyio.sleep(0.1)
        assert home.inflow == 0
    assert [bool(error) for error in worker.replies] == [True] * 4
