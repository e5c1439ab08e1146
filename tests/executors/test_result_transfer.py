from __future__ import annotations

import msgspec
import pytest

from aioflow.errors import TaskError
from aioflow.executors.home_queries import answer_result_query, reply_to, wanted_of
from aioflow.protocol.commands import Reply
from aioflow.protocol.reports import Query
from aioflow.results import RESULT_LIMIT, read_value, result_path, write_value
from aioflow.worker.query import result_transfer
from aioflow.worker.query.messages import ResultsPage
from aioflow.worker.query.result_transfer import (
    RESERVE_QUERY,
    STORE_QUERY,
    ResultPiece,
    ResultTransfer,
)
from tests.worker.peer import start


class Link:
    """The connection from a worker to a daemon, which may fail queries."""

    def __init__(self, home) -> None:
        self.home = home
        self.kinds: list[str] = []
        self.reserved: list[int] = []
        self.broken: dict[int, str] = {}

    def ask(self, run_no: int, kind: str, body: bytes) -> Reply:
        if kind == RESERVE_QUERY:
            self.reserved.append(msgspec.msgpack.decode(body, type=int))
            return Reply(1, b"")
        self.kinds.append(kind)
        if error := self.broken.pop(len(self.kinds), ""):
            return Reply(1, b"", error)
        query = Query(1, run_no, kind, body)
        return run(reply_to(query, answer_result_query(self.home, wanted_of(query), 5)))


def run(coroutine):
    import anyio

    async def call():
        return await coroutine

    return anyio.run(call)


@pytest.fixture
def link(tmp_path, monkeypatch):
    monkeypatch.setattr(result_transfer, "PIECE_BYTES", 1_000)
    monkeypatch.setattr(result_transfer, "UNRESERVED_BYTES", 500)
    monkeypatch.setattr("aioflow.executors.home_queries.PIECE_BYTES", 1_000)
    return Link(tmp_path / "home")


def store(transfer, tmp_path, body, start_no=1):
    one = start(0, start_no=start_no)
    path = result_path(tmp_path / "there", one.task_no, one.start_no)
    transfer.write(lambda: write_value(path, body), one)
    return one


def test_a_result_is_stored_in_pieces_and_fetched_elsewhere(link, tmp_path):
    body = bytes(range(256)) * 20
    one = store(ResultTransfer(tmp_path / "there", link.ask), tmp_path, body)
    assert read_value(result_path(link.home, one.task_no, 1)) == body
    assert len(link.kinds) == 6
    assert len(link.reserved) == 5  # the last piece is small
    assert all(1_000 < size < 1_100 for size in link.reserved)

    page = ResultsPage(1, [(0, one.task_no, 1, None), (1, 8, 0, None)], [], 0, more=False)
    other = ResultTransfer(tmp_path / "elsewhere", link.ask)
    for _ in range(2):
        assert other.fetch_page(1, page) is page
    assert read_value(result_path(tmp_path / "elsewhere", one.task_no, 1)) == body
    assert link.kinds[6:] == ["fetch_result"] * 6  # and not again


def test_a_store_that_failed_begins_again(link, tmp_path):
    transfer = ResultTransfer(tmp_path / "there", link.ask)
    link.broken[3] = "No space left on device"
    with pytest.raises(OSError, match="No space left"):
        store(transfer, tmp_path, b"x" * 5_000)
    assert not result_path(link.home, 100, 1).exists()
    one = store(transfer, tmp_path, b"y" * 4_000)
    assert read_value(result_path(link.home, one.task_no, 1)) == b"y" * 4_000
    assert [path.name for path in (link.home / "0").iterdir()] == [f"{one.task_no}.1"]


def test_a_result_that_is_gone_fails_the_try(link, tmp_path):
    transfer = ResultTransfer(tmp_path / "there", link.ask)
    with pytest.raises(TaskError, match="cannot be fetched.*No such file"):
        transfer.fetch(1, 7, 1)
    assert [path for path in (tmp_path / "there").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("offset", "size", "why"),
    [(500, 600, "missing"), (0, 2, "does not fit"), (0, 3 * RESULT_LIMIT, "too large")],
)
def test_a_hostile_piece_is_refused(link, offset, size, why):
    piece = ResultPiece(7, 1, offset, size, b"x" * 10)
    assert why in link.ask(1, STORE_QUERY, msgspec.msgpack.encode(piece)).error


def test_a_full_folder_loses_what_was_used_the_longest_ago(link, tmp_path, monkeypatch):
    monkeypatch.setattr(result_transfer, "_FOLDER_BYTES", 2_500)
    transfer = ResultTransfer(tmp_path / "there", link.ask)
    for number in (1, 2, 3):
        write_value(result_path(link.home, number, 1), b"x" * 1_000)
        transfer.fetch(1, number, 1)
    left = {path.name for path in (tmp_path / "there").glob("*/*")}
    assert left == {"2.1", "3.1"}
    transfer.fetch(1, 1, 1)
    assert result_path(tmp_path / "there", 1, 1).exists()


def test_a_page_that_is_larger_than_the_folder_is_there_as_a_whole(link, tmp_path, monkeypatch):
    monkeypatch.setattr(result_transfer, "_FOLDER_BYTES", 2_500)
    transfer = ResultTransfer(tmp_path / "there", link.ask)
    for number in range(1, 11):
        write_value(result_path(link.home, number, 1), b"x" * 1_000)
    pages = [
        ResultsPage(1, [(0, number, 1, None) for number in numbers], [], 0, more=False)
        for numbers in (range(1, 9), range(9, 11))
    ]
    transfer.fetch_page(1, pages[0])
    assert {path.name for path in (tmp_path / "there").glob("*/*")} == {
        f"{number}.1" for number in range(1, 9)
    }
    transfer.fetch_page(1, pages[1])
    assert {path.name for path in (tmp_path / "there").glob("*/*")} == {"9.1", "10.1"}


def test_the_folder_is_not_measured_for_each_result(link, tmp_path, monkeypatch):
    monkeypatch.setattr(result_transfer, "_FOLDER_BYTES", 160_000)
    folder = tmp_path / "there"
    transfer = ResultTransfer(folder, link.ask)
    for number in range(1, 101):
        write_value(result_path(link.home, number, 1), b"x" * 1_000)
    glob, measured = type(folder).glob, []

    def counted(path, pattern, **options):
        measured.append(pattern)
        return glob(path, pattern, **options)

    monkeypatch.setattr(type(folder), "glob", counted)
    items: list[tuple[int, int, int, bytes | None]]
    items = [(number, number, 1, None) for number in range(1, 101)]
    transfer.fetch_page(1, ResultsPage(1, items, [], 0, more=False))
    assert 0 < len(measured) <= 12
