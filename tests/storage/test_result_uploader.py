"""Results are stored before their reports are passed on, whatever the storage does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from aioflow.errors import ResultDamaged, ResultMissing, StorageUnavailable
from aioflow.model.rows import ResultRow
from aioflow.protocol.inputs import BodyReturned
from aioflow.protocol.reports import Failed, Skipped, Succeeded, TriggerEnded, TriggerFired
from aioflow.results import read_item, result_path, write_list, write_value
from aioflow.storage import copies, result_fetcher, result_uploader, spool_limit
from aioflow.storage.copies import ResultCopies
from aioflow.storage.result_fetcher import GIVE_UP_SECONDS as FETCH_SECONDS
from aioflow.storage.result_fetcher import ResultFetcher
from aioflow.storage.result_uploader import GIVE_UP_SECONDS, ResultUploader
from aioflow.storage.results import DatabaseResults, ResultKey, pack_result, unpack_result
from aioflow.storage.spool_limit import RESERVED_SECONDS, SpoolLimit
from tests.loop_clock import LoopClock

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

CONTENT = b"x" * 100


@pytest.fixture(autouse=True)
def no_threads(monkeypatch):
    """Run blocking work in the loop: the virtual clock would jump while a thread works."""

    async def inline(function, *arguments, limiter=None):
        return function(*arguments)

    for module in (result_uploader, result_fetcher, copies):
        monkeypatch.setattr(module, "in_thread", inline)


class Shaky(DatabaseResults):
    """A slow in-memory storage that fails until the test repairs it."""

    def __init__(self) -> None:  # it has no database
        self.kept: dict[ResultKey, bytes] = {}
        self.gets: list[ResultKey] = []
        self.is_away = False
        self.seconds = 0.01
        self.most = self._now = 0

    async def _request(self) -> None:
        self._now += 1
        self.most = max(self.most, self._now)
        await anyio.sleep(self.seconds)
        self._now -= 1
        if self.is_away:
            raise StorageUnavailable("it is away")

    async def put(self, key: ResultKey, data: bytearray) -> None:
        await self._request()
        self.kept[key] = bytes(data)

    async def get(self, key: ResultKey) -> bytes:
        self.gets.append(key)
        await self._request()
        if key not in self.kept:
            raise ResultMissing(*key)
        return self.kept[key]


class Node:
    """An uploader and a fetcher, and what they report."""

    def __init__(self, home: Path, copies_bytes: int = 10**9) -> None:
        self.spool = home / "results"
        self.storage = Shaky()
        self.copies = ResultCopies(home / "cache" / "results", copies_bytes)
        self.passed: list = []
        self.rows: dict[int, ResultRow] = {}
        self.uploader = ResultUploader(
            self.storage, self.spool, self.copies, self._report, LoopClock()
        )
        self.fetcher = ResultFetcher(self.storage, self.copies, self.spool, self._find, LoopClock())

    def _report(self, inputs) -> None:
        for one in inputs:
            if isinstance(one, Succeeded) and one.body is None and one.size:
                assert (one.task_no, one.start_no) in self.storage.kept, "passed on too early"
        self.passed += inputs

    async def _find(self, task_no):
        return self.rows.get(task_no)

    @property
    def limit(self) -> SpoolLimit:
        return self.uploader.limit

    @property
    def kinds(self) -> list[str]:
        return [type(one).__name__ for one in self.passed]

    def returned(self, task_no: int, content: bytes = CONTENT, **fields) -> None:
        write_value(result_path(self.spool, task_no, 1), content)
        fields = {"size": len(content)} | fields
        self.uploader.report([Succeeded(task_no, 1, 1_000, 2_000, **fields)])

    def stored(self, task_no: int, content: bytes = CONTENT, **fields) -> None:
        """Put the result of a try into the storage, as another node would have."""
        self.storage.kept[task_no, 1] = bytes(pack_result((task_no, 1), bytearray(content)))
        fields = {"size": len(content)} | fields
        self.rows[task_no] = ResultRow(task_no=task_no, run_no=7, start_no=1, body=None, **fields)

    async def fetch(self, *keys: ResultKey, run_no: int = 7):
        answers: list = []
        self.fetcher.request(run_no, keys, answers.append)
        while not answers:
            await anyio.sleep(0.01)
        return answers[0]


@asynccontextmanager
async def running(home: Path, **options) -> AsyncIterator[Node]:
    node = Node(home, **options)
    node.uploader.may_store = True
    async with anyio.create_task_group() as group:
        await group.start(node.uploader.run)
        await group.start(node.fetcher.run)
        yield node
        group.cancel_scope.cancel()


def fires_with_file(node: Node, assignment_id: int, content: bytes) -> TriggerFired:
    write_value(result_path(node.spool, 5, 3), content)
    size = len(content)
    return TriggerFired(9, assignment_id, 0, 1, b"", ends="success", size=size, result=(5, 3))


def grants(granted: list[int], number: int, is_wanted: bool = True) -> bool:
    granted.append(number)
    return is_wanted


def fires_once_it_may(n: Node, number: int, written: list[int], content: bytes = CONTENT) -> None:
    """Let a trigger write and report its result once that is granted."""

    def grant() -> bool:
        written.append(number)
        write_value(result_path(n.spool, number, 1), content)
        size = len(content)
        fired = TriggerFired(number, 1, 0, 1, b"", ends="success", size=size, result=(number, 1))
        asyncio.get_running_loop().call_soon(n.uploader.report, [fired])
        return True

    n.uploader.reserve((number, 1), len(content), grant)


class TestUploader:
    async def test_the_report_follows_once_the_result_is_stored(self, tmp_path):
        async with running(tmp_path) as n:
            n.returned(5)
            assert n.passed == [BodyReturned(5, 1, 1_000)]
            await anyio.sleep(1)

            assert n.kinds == ["BodyReturned", "Succeeded"]
            assert unpack_result((5, 1), n.storage.kept[5, 1]) == CONTENT
            assert n.copies.path((5, 1)).read_bytes() == CONTENT
            assert not result_path(n.spool, 5, 1).exists()
            assert (n.limit.waiting_results, n.limit.waiting_bytes) == (0, 0)

    @pytest.mark.parametrize("by", ["another file", "a link", "other content"])
    async def test_a_file_that_was_replaced_while_it_was_stored_is_no_copy(self, tmp_path, by):
        async with running(tmp_path) as n:
            n.returned(5)
            file, other = result_path(n.spool, 5, 1), tmp_path / "other"
            other.write_bytes(b"y" * len(CONTENT))
            await anyio.sleep(n.storage.seconds / 2)
            if by == "other content":
                os.utime(file, (1, 1))  # as after any write
            else:
                file.unlink()
                file.symlink_to(other) if by == "a link" else other.rename(file)
            await anyio.sleep(1)

            assert n.kinds == ["BodyReturned", "Succeeded"]
            assert unpack_result((5, 1), n.storage.kept[5, 1]) == CONTENT
            assert not n.copies.path((5, 1)).is_symlink()
            assert not n.copies.path((5, 1)).exists()

    async def test_a_list_is_stored_with_its_index(self, tmp_path):
        async with running(tmp_path) as n:
            write_list(result_path(n.spool, 5, 1), [b"a", b"bc"])
            n.uploader.report([Succeeded(5, 1, 1_000, 2_000, size=3, width=2)])
            await anyio.sleep(1)

            assert n.kinds == ["BodyReturned", "Succeeded"]
            assert read_item(n.copies.path((5, 1)), 1) == b"bc"

    async def test_reports_without_a_file_are_passed_on_at_once_and_in_order(self, tmp_path):
        async with running(tmp_path) as n:
            reports: list[Any] = [
                Succeeded(1, 1, 0, 1),
                Succeeded(2, 1, 0, 1, body=b"\x01", size=1),
                Succeeded(3, 1, 0, 1, body=b"\x90", size=1, width=0),
                Skipped(4, 1, 0, 1),
                TriggerFired(5, 1, 0, 1, b"\x01"),
                TriggerEnded(5, 1, 1),
            ]
            n.uploader.report(reports)
            assert n.passed == reports

    async def test_an_outage_delays_it(self, tmp_path):
        async with running(tmp_path) as n:
            n.storage.is_away = True
            n.returned(5)
            await anyio.sleep(GIVE_UP_SECONDS - 60)
            assert n.kinds == ["BodyReturned"]

            n.storage.is_away = False
            await anyio.sleep(20)
            assert n.kinds == ["BodyReturned", "Succeeded"]

    async def test_a_longer_outage_fails_the_try_and_another_may_follow(self, tmp_path):
        async with running(tmp_path) as n:
            n.storage.is_away = True
            n.returned(5)
            await anyio.sleep(GIVE_UP_SECONDS + 20)

            assert n.kinds == ["BodyReturned", "Failed"]
            failed = n.passed[-1]
            assert isinstance(failed, Failed)
            assert failed.failure.reason == "result.not_stored"
            assert "it is away" in failed.failure.message
            assert failed.retryable
            assert not result_path(n.spool, 5, 1).exists()

    async def test_nothing_is_stored_before_the_storage_is_known_to_be_ours(self, tmp_path):
        async with running(tmp_path) as n:
            n.uploader.may_store = False
            n.returned(5)
            await anyio.sleep(60)
            assert not n.storage.kept

            n.uploader.may_store = True
            n.returned(6)
            await anyio.sleep(20)
            assert n.kinds.count("Succeeded") == 2

            n.uploader.may_store = False
            n.returned(7)
            await anyio.sleep(GIVE_UP_SECONDS + 20)
            assert n.passed[-1].failure.reason == "result.not_stored"

    @pytest.mark.parametrize("content", [None, b"shorter"])
    async def test_a_file_that_is_not_what_was_reported_fails_the_try(self, tmp_path, content):
        async with running(tmp_path) as n:
            if content is not None:
                write_value(result_path(n.spool, 5, 1), content)
            n.uploader.report([Succeeded(5, 1, 0, 1, size=100)])
            await anyio.sleep(1)

            assert n.kinds == ["BodyReturned", "Failed"]
            assert not n.storage.kept

    async def test_uploads_are_limited_in_number_and_size(self, tmp_path, monkeypatch):
        async with running(tmp_path) as n:
            for number in range(40):
                n.returned(number)
            await anyio.sleep(10)
            assert n.storage.most == result_uploader.UPLOADS

        monkeypatch.setattr(result_uploader, "IN_MEMORY_BYTES", 250)
        async with running(tmp_path) as n:
            for number in range(40, 80):
                n.returned(number)
            await anyio.sleep(10)
            assert n.storage.most == 2
            assert n.kinds.count("Succeeded") == 40

    async def test_too_many_that_wait_are_told(self, tmp_path, monkeypatch):
        monkeypatch.setattr(spool_limit, "BACKLOG_RESULTS", 10)
        async with running(tmp_path) as n:
            n.storage.is_away = True
            for number in range(12):
                n.returned(number)
            assert [one.is_backlogged for one in n.passed] == [False] * 10 + [True] * 2

    async def test_triggers_write_no_more_than_fits_while_the_storage_is_away(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(spool_limit, "BACKLOG_RESULTS", 10)
        async with running(tmp_path) as n:
            n.storage.is_away = True
            written: list[int] = []
            for number in range(100):
                fires_once_it_may(n, number, written)
            for _ in range(20):
                await anyio.sleep(1)
                assert len(written) == 10
                assert n.limit.waiting_results == 10
            n.storage.is_away = False
            await anyio.sleep(60)
            assert written == list(range(100))
            assert n.kinds.count("TriggerFired") == 100
            assert (n.limit.waiting_bytes, n.limit.reserved_results) == (0, 0)

    async def test_a_reservation_of_a_dead_process_lapses(self, tmp_path, monkeypatch):
        monkeypatch.setattr(spool_limit, "BACKLOG_RESULTS", 2)
        async with running(tmp_path) as n:
            granted: list[int] = []
            for number in range(4):
                n.uploader.reserve((number, 1), 100, partial(grants, granted, number))
            await anyio.sleep(RESERVED_SECONDS / 2)
            assert granted == [0, 1]
            await anyio.sleep(RESERVED_SECONDS)
            assert granted == [0, 1, 2, 3]

    async def test_who_waits_no_longer_takes_no_room(self, tmp_path, monkeypatch):
        monkeypatch.setattr(spool_limit, "BACKLOG_RESULTS", 1)
        async with running(tmp_path) as n:
            granted: list[int] = []
            for number in range(50):
                n.uploader.reserve((number, 1), 100, partial(grants, granted, number, number == 49))
            assert granted == list(range(50))
            assert n.limit.reserved_results == 1

    async def test_a_result_that_is_larger_than_the_limit_goes_alone(self, tmp_path, monkeypatch):
        monkeypatch.setattr(spool_limit, "BACKLOG_BYTES", 150)
        async with running(tmp_path) as n:
            n.storage.is_away = True
            written: list[int] = []
            for number, content in enumerate((b"x" * 400, CONTENT, b"", CONTENT)):
                fires_once_it_may(n, number, written, content)
            assert written == [0]
            n.storage.is_away = False
            await anyio.sleep(30)
            assert written == [0, 1, 2, 3]

    async def test_a_trigger_ends_only_after_its_event_with_the_result(self, tmp_path):
        async with running(tmp_path) as n:
            write_value(result_path(n.spool, 5, 3), CONTENT)
            fired = TriggerFired(9, 1, 0, 1, b"", ends="success", size=100, result=(5, 3))
            other = TriggerFired(8, 1, 0, 1, b"\x01")
            n.uploader.report([fired, TriggerEnded(9, 1, 1), other])
            assert n.passed == [other]
            await anyio.sleep(1)

            assert n.passed == [other, fired, TriggerEnded(9, 1, 1)]
            assert (5, 3) in n.storage.kept

    @pytest.mark.parametrize("second", [b"y" * 100, b"shorter"], ids=len)
    @pytest.mark.parametrize("is_away", [False, True])
    async def test_a_trigger_that_fires_again_has_each_result_stored(
        self, tmp_path, second, is_away
    ):
        async with running(tmp_path) as n:
            n.storage.seconds = 5.0
            n.storage.is_away = is_away
            first = fires_with_file(n, 1, CONTENT)
            n.uploader.report([first])
            await anyio.sleep(GIVE_UP_SECONDS / 2 if is_away else 1)
            last = fires_with_file(n, 2, second)
            n.uploader.report([last, TriggerEnded(9, 2, 1)])
            while not n.passed:
                await anyio.sleep(1)
            (passed,) = n.passed
            assert passed.assignment_id == 1
            assert is_away == (passed.ends == "failed")

            n.storage.is_away = False
            await anyio.sleep(40)
            assert n.passed[1:] == [last, TriggerEnded(9, 2, 1)]
            assert unpack_result((5, 3), n.storage.kept[5, 3]) == second
            assert n.copies.path((5, 3)).read_bytes() == second
            assert not result_path(n.spool, 5, 3).exists()
            assert (n.limit.waiting_results, n.limit.waiting_bytes) == (0, 0)

    async def test_a_trigger_whose_result_is_not_stored_fails_its_task(self, tmp_path):
        async with running(tmp_path) as n:
            n.storage.is_away = True
            write_value(result_path(n.spool, 5, 3), CONTENT)
            fired = TriggerFired(9, 1, 0, 1, b"", ends="success", size=100, result=(5, 3))
            n.uploader.report([fired])
            await anyio.sleep(GIVE_UP_SECONDS + 20)

            (event,) = n.passed
            assert event.ends == "failed"
            assert b"could not be stored" in event.payload


class TestFetcher:
    async def test_a_result_is_copied_once_for_all(self, tmp_path):
        async with running(tmp_path) as n:
            n.stored(5)
            answers: list = []
            for _ in range(100):
                n.fetcher.request(7, [(5, 1)], answers.append)
            await anyio.sleep(1)

            assert answers == [None] * 100
            assert n.storage.gets == [(5, 1)]
            assert n.copies.path((5, 1)).read_bytes() == CONTENT
            assert await n.fetch((5, 1)) is None
            assert len(n.storage.gets) == 1

    async def test_many_are_copied_at_once(self, tmp_path):
        async with running(tmp_path) as n:
            for number in range(50):
                n.stored(number)
            assert await n.fetch(*((number, 1) for number in range(50))) is None
            assert n.storage.most == 8
            assert all(n.copies.path((number, 1)).exists() for number in range(50))

    async def test_fetches_are_limited_in_size(self, tmp_path, monkeypatch):
        monkeypatch.setattr(result_fetcher, "IN_MEMORY_BYTES", 5 * len(CONTENT))
        async with running(tmp_path) as n:
            n.stored(0, CONTENT * 10)  # larger than all that is allowed
            for number in range(1, 50):
                n.stored(number)
            assert await n.fetch(*((number, 1) for number in range(50))) is None
            assert n.storage.most == 2
            assert n.fetcher._memory.used_bytes == 0

    async def test_a_worker_elsewhere_gets_the_folder_with_the_copy(self, tmp_path):
        async with running(tmp_path) as n:
            n.stored(5)
            write_value(result_path(n.spool, 6, 1), CONTENT)
            assert await n.fetcher.copied(7, (5, 1)) == n.copies.folder
            assert await n.fetcher.copied(7, (6, 1)) == n.spool
            assert result_path(n.copies.folder, 5, 1).read_bytes() == CONTENT
            with pytest.raises(ResultMissing):
                await n.fetcher.copied(8, (9, 1))

    async def test_a_result_of_before_is_read_from_the_home(self, tmp_path):
        async with running(tmp_path) as n:
            write_value(result_path(n.spool, 5, 1), CONTENT)
            assert await n.fetch((5, 1)) is None
            assert not n.storage.gets

    @pytest.mark.parametrize("key", [(6, 1), (5, 2)])
    async def test_what_has_no_row_is_missing(self, tmp_path, key):
        async with running(tmp_path) as n:
            n.stored(5)
            assert isinstance(await n.fetch(key), ResultMissing)
            assert isinstance(await n.fetch((5, 1), run_no=8), ResultMissing)
            assert not n.storage.gets

    async def test_what_is_missing_or_damaged_is_told_and_never_copied(self, tmp_path):
        async with running(tmp_path) as n:
            for number in (5, 6, 7, 8):
                n.stored(number)
            n.stored(9, size=99)
            n.storage.kept.pop((5, 1))
            n.storage.kept[6, 1] = n.storage.kept[6, 1][:50]
            n.storage.kept[7, 1] = n.storage.kept[8, 1]

            found = [type(await n.fetch((number, 1))) for number in (5, 6, 7, 9)]

            assert found == [ResultMissing, ResultDamaged, ResultDamaged, ResultDamaged]
            assert not any(n.copies.path((number, 1)).exists() for number in (5, 6, 7, 9))

    async def test_an_outage_delays_it(self, tmp_path):
        async with running(tmp_path) as n:
            n.stored(5)
            n.storage.is_away = True
            answers: list = []
            n.fetcher.request(7, [(5, 1)], answers.append)
            await anyio.sleep(60)
            assert not answers

            n.storage.is_away = False
            await anyio.sleep(20)
            assert answers == [None]

    async def test_a_longer_outage_is_an_error(self, tmp_path):
        async with running(tmp_path) as n:
            n.stored(5)
            n.storage.is_away = True
            answers: list = []
            n.fetcher.request(7, [(5, 1)], answers.append)
            await anyio.sleep(FETCH_SECONDS + 20)
            assert isinstance(answers[0], StorageUnavailable)

    async def test_the_page_does_not_wait_for_an_outage(self, tmp_path):
        async with running(tmp_path) as n:
            n.stored(5)
            n.storage.is_away = True
            with anyio.fail_after(60), pytest.raises(StorageUnavailable):
                await n.fetcher.path(n.rows[5])
            n.storage.is_away = False
            assert (await n.fetcher.path(n.rows[5])).read_bytes() == CONTENT


class TestCopies:
    async def test_copies_are_bounded_and_those_read_last_stay(self, tmp_path):
        async with running(tmp_path, copies_bytes=1_000) as n:
            for number in range(30):
                n.stored(number)
                assert await n.fetch((number, 1)) is None

            there = [number for number in range(30) if n.copies.path((number, 1)).exists()]
            assert len(there) <= 10
            assert 29 in there

    async def test_a_restart_counts_what_is_there(self, tmp_path):
        async with running(tmp_path) as n:
            for number in range(30):
                n.stored(number)
                await n.fetch((number, 1))
        async with running(tmp_path, copies_bytes=1_000) as n:
            n.stored(99)
            assert await n.fetch((99, 1)) is None
            left = sum(file.stat().st_size for file in n.copies.folder.rglob("*.1"))
            assert left <= 1_000

    async def test_a_reboot_discards_them_since_they_are_not_synced(self, tmp_path, monkeypatch):
        boot = tmp_path / "boot_id"
        boot.write_text("first")
        monkeypatch.setattr(copies, "_BOOT_ID", boot)
        folder = tmp_path / "cache" / "results"
        copies.discard_after_reboot(folder)
        async with running(tmp_path) as n:
            n.stored(5)
            await n.fetch((5, 1))

        copies.discard_after_reboot(folder)
        assert n.copies.path((5, 1)).exists()
        boot.write_text("second")
        copies.discard_after_reboot(folder)
        assert not n.copies.path((5, 1)).exists()
