"""Task output can be read on any machine, whichever homes have written it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from aioflow.clock import SystemClock
from aioflow.storage import log_parts, log_uploader
from aioflow.storage.log_parts import LogParts
from aioflow.storage.log_uploader import LogUploader
from aioflow.storage.objects import ObjectStore, open_objects
from aioflow.telemetry.task_log import LogKey, TaskLog

RUN = 1_234
SOON = 0.05


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(log_uploader, "UPLOAD_SECONDS", SOON)
    monkeypatch.setattr(log_uploader, "_TICK_SECONDS", 0.005)
    monkeypatch.setattr(log_uploader, "_RETRY_US", 50_000)
    monkeypatch.setattr(log_parts, "_LISTED_US", 0)


@pytest.fixture(params=["folder", "s3"])
def objects(request, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return open_objects(f"file://{tmp_path}/shared", "log.url")
    return open_objects(request.getfixturevalue("bucket"), "log.url", stall_seconds=1)


class Home:
    """The logs of one home."""

    def __init__(
        self, folder: Path, objects: ObjectStore, name: str, url: str = "s3://bucket"
    ) -> None:
        self.folder = folder / name / "logs"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.objects = objects
        clock = SystemClock()
        self.tasklog = TaskLog(self.folder, clock)
        self.copies = folder / name / "cache" / "logs"
        self.parts = LogParts(objects, self.copies, name, clock)
        self.uploader = LogUploader(
            objects, url, self.parts, self.tasklog, self.folder, name, clock
        )
        self.tasklog.earlier = self.parts

    def print(self, text: str, *, start_no: int = 1, map_index: int = -1, run_no: int = RUN):
        log = self.tasklog.open(
            LogKey(
                run_no=run_no,
                task_index=2,
                map_index=map_index,
                task_no=9,
                start_no=start_no,
                try_number=1,
            )
        )
        log.offer(text.encode())
        return log

    async def read(self, *, map_index: int = -1, run_no: int = RUN, offset=0, limit=None) -> str:
        found = await self.tasklog.read(run_no, 2, map_index, offset=offset, limit=limit)
        return found.decode()

    async def reads(self, text: str, **options) -> None:
        """Wait until reading returns this text."""
        with anyio.fail_after(60):
            while (found := await self.read(**options)) != text:
                assert len(found) <= len(text), found
                await anyio.sleep(0.01)

    async def stored(self) -> list:
        return [one async for one in self.objects.list_objects("logs")]

    async def is_stored(self) -> None:
        """Wait until all output is stored."""
        with anyio.fail_after(60):
            while self.uploader._due or self.tasklog._waiting_bytes:
                await anyio.sleep(0.01)

    def age(self, seconds: float) -> None:
        then = time.time() - seconds
        for file in self.folder.rglob("*.log"):
            os.utime(file, (then, then))


@asynccontextmanager
async def running(home: Home) -> AsyncIterator[Home]:
    async with anyio.create_task_group() as group:
        await group.start(home.tasklog.run)
        await group.start(home.uploader.run)
        yield home
        group.cancel_scope.cancel()


@pytest.fixture
def home(tmp_path: Path, objects: ObjectStore) -> Callable[[str], Home]:
    return lambda name: Home(tmp_path, objects, name)


async def test_output_is_read_on_an_empty_disk_also_while_it_grows(home):
    async with running(home("a")) as a:
        other = home("b")
        a.print("first\n")
        await other.reads("first\n")
        a.print("second\n")
        await other.reads("first\nsecond\n")
        assert await other.read(offset=6) == "second\n"
        assert await other.read(offset=0, limit=5) == "first"
        assert await a.read() == "first\nsecond\n"
        assert await other.read(run_no=RUN + 1) == ""


async def test_each_child_reads_its_own_output(home):
    async with running(home("a")) as a:
        for index in (0, 1, 1_000):
            a.print(f"of {index}\n", map_index=index)
        other = home("b")
        for index in (0, 1, 1_000):
            await other.reads(f"of {index}\n", map_index=index)


async def test_the_output_of_several_homes_is_read_in_the_order_of_its_tries(home):
    async with running(home("a")) as a:
        a.print("a1\n", start_no=1)
        await a.is_stored()
    async with running(home("b")) as b:
        b.print("b2\n", start_no=2)
        b.print("b3\n", start_no=3)
        await b.is_stored()
        await b.reads("a1\nb2\nb3\n")
    async with running(home("c")) as c:
        c.print("c4\n", start_no=4)
        await c.reads("a1\nb2\nb3\nc4\n")
        assert await c.read(offset=3, limit=6) == "b2\nb3\n"
        assert await c.read(offset=4) == "2\nb3\nc4\n"
    assert await home("d").read() == "a1\nb2\nb3\nc4\n"


async def test_what_a_killed_home_has_not_stored_is_stored_by_its_next_start(home):
    async with running(home("a")) as a:
        a.print("stored\n")
        await a.is_stored()
    killed = home("a")
    async with anyio.create_task_group() as group:  # its uploader never runs again
        await group.start(killed.tasklog.run)
        killed.print("left\n")
        assert await killed.read() == "stored\nleft\n"
        group.cancel_scope.cancel()
    assert await home("b").read() == "stored\n"

    async with running(home("a")) as a:
        await home("b").reads("stored\nleft\n")
        await a.is_stored()
        before = len(await a.stored())
    async with running(home("a")) as a:
        await anyio.sleep(3 * SOON)
        assert len(await a.stored()) == before, "nothing is stored again"


async def test_without_notes_it_is_found_what_is_stored(home):
    async with running(home("a")) as a:
        for text in ("one\n", "two\n"):
            a.print(text)
            await a.is_stored()
    (notes,) = a.folder.glob("uploaded*")
    notes.write_bytes(b"\xff\x00 garbage\n1 2\n")

    async with running(home("a")) as a:
        a.print("three\n")
        await a.is_stored()
        assert await home("b").read() == "one\ntwo\nthree\n"


async def test_parts_that_were_stored_twice_are_read_once(home):
    async with running(home("a")) as a:
        for text in ("one\n", "two\n"):
            a.print(text)
            await a.is_stored()
    (first, _) = sorted(await a.stored())
    (file,) = a.folder.rglob("*.log")
    await a.objects.put(first.name, file.read_bytes())

    assert await home("b").read() == "one\ntwo\n"


async def test_a_missing_part_hides_what_follows_until_it_is_there(home):
    async with running(home("a")) as a:
        for text in ("one\n", "two\n", "three\n"):
            a.print(text)
            await a.is_stored()
    _, second, _ = sorted(await a.stored())
    data = await a.objects.get(second.name)
    await a.objects.delete([second.name])
    other = home("b")
    assert await other.read() == "one\n"

    await a.objects.put(second.name, data)
    assert await other.read() == "one\ntwo\nthree\n"


@pytest.mark.parametrize("begins_again", [False, True])
async def test_a_copy_that_is_deleted_while_it_is_extended_has_no_gap(
    home, monkeypatch, begins_again
):
    async with running(home("a")) as a:
        for text in ("one\n", "two\n"):
            a.print(text)
            await a.is_stored()
    parts = sorted(await a.stored())
    other, get = home("b"), a.objects.get

    async def get_slowly(name: str, size: int = 0) -> bytes:
        data = await get(name, size)
        if name == parts[-1].name:
            (copy,) = (one for one in other.copies.rglob("*") if one.is_file())
            beginning = copy.read_bytes()[:-1]
            shutil.rmtree(other.copies)
            if begins_again:
                copy.parent.mkdir(parents=True)
                copy.write_bytes(beginning)
        return data

    with monkeypatch.context() as patch:
        patch.setattr(a.objects, "get", get_slowly)
        await other.read()

    assert await other.read() == "one\ntwo\n"


async def test_old_files_leave_the_home_once_they_are_stored(home):
    """Their indexes are deleted with them."""
    async with running(home("a")) as a:
        a.print("old\n")
        await a.is_stored()
        a.age(2 * 86_400)
        a.print("young\n", run_no=RUN + 1)
        await a.is_stored()
        for file in list(a.folder.rglob("*.log")):
            file.with_suffix(".index").touch()
        assert await a.uploader._delete_old() == 1
        assert [len(list(a.folder.rglob(f"*.{kind}"))) for kind in ("log", "index")] == [1, 1]

        assert await a.read() == "old\n"
        a.print("new\n", start_no=2)
        await a.is_stored()
        assert await a.read() == "old\nnew\n"
        assert await home("b").read() == "old\nnew\n"


async def test_old_files_that_are_not_stored_stay(home):
    a = home("a")
    async with anyio.create_task_group() as group:
        await group.start(a.tasklog.run)
        a.print("old\n")
        await a.read()
        group.cancel_scope.cancel()
    a.age(2 * 86_400)
    assert await a.uploader._delete_old() == 0
    assert await a.read() == "old\n"


async def test_what_another_store_has_stays_until_this_one_has_it(home, tmp_path):
    async with running(home("a")) as a:
        a.print("old\n")
        await a.is_stored()
    a.age(2 * 86_400)
    url = f"file://{tmp_path}/next"
    objects = open_objects(url, "log.url")
    moved = Home(tmp_path, objects, "a", url)
    assert await moved.uploader._delete_old() == 0

    async with running(moved):
        await moved.is_stored()
        assert await Home(tmp_path, objects, "b", url).read() == "old\n"
        assert await moved.uploader._delete_old() == 1
        assert await moved.read() == "old\n"


async def test_a_deleted_run_has_no_output_anywhere(home):
    async with running(home("a")) as a:
        a.print("gone\n")
        a.print("stays\n", run_no=RUN + 1)
        await a.is_stored()
    other = home("b")
    assert await other.read() == "gone\n"
    await other.tasklog.delete(RUN)
    await other.tasklog.delete(RUN)
    await a.tasklog.delete(RUN)

    assert [await one.read() for one in (other, home("a"), home("c"))] == [""] * 3
    assert await other.read(run_no=RUN + 1) == "stays\n"


async def test_output_that_is_stored_while_its_run_is_deleted_does_not_stay(home, monkeypatch):
    async with running(home("a")) as a:
        put, names = a.objects.put, []

        async def delete_first(name, data):
            await a.tasklog.delete(RUN)
            await put(name, data)
            names.append(name)

        monkeypatch.setattr(a.objects, "put", delete_first)
        a.print("gone\n")
        await a.is_stored()
    assert len(names) == 1
    assert not await a.stored()


async def test_expired_output_is_deleted(home):
    async with running(home("a")) as a:
        for run_no in (RUN, RUN + 1, 5_000):
            a.print("text\n", run_no=run_no)
        await a.is_stored()
    other = home("b")
    tomorrow = SystemClock().now() + 86_400_000_000
    assert await other.tasklog.list_blocks() == [1, 5]
    delete = other.tasklog.delete_old
    assert await delete(1, before=0, retained=(), dry_run=True) == 0
    assert await delete(1, before=tomorrow, retained=(), dry_run=True) == 2
    assert await delete(1, before=tomorrow, retained=(RUN,)) == 1
    assert await delete(1, before=tomorrow, retained=()) == 0, "searched once a day"

    left = {one.name.split("/")[2] for one in await other.stored()}
    assert left == {str(RUN), "5000"}


async def test_few_parts_are_stored_however_often_it_prints(home):
    async with running(home("a")) as a:
        began = time.monotonic()
        for number in range(100):
            a.print(f"{number}\n").close()
            await anyio.sleep(0.005)
        await a.is_stored()
        took = time.monotonic() - began

        assert len(await a.stored()) <= took / SOON + 2
        assert await home("b").read() == "".join(f"{number}\n" for number in range(100))


async def test_much_output_is_stored_in_large_parts(home):
    text = "x" * 99 + "\n"
    async with running(home("a")) as a:
        for _ in range(10):
            a.print(text * 3_000)
        await a.is_stored()

        assert len(await home("b").read()) == 3_000_000
        assert len(await a.stored()) < 12


@pytest.mark.parametrize("objects", ["s3"], indirect=True)
async def test_an_outage_of_the_store_loses_nothing(home, proxy):
    async with running(home("a")) as a:
        a.print("before\n")
        await a.is_stored()
        from tests.storage.fault_proxy import Fault

        other = home("b")
        assert await other.read() == "before\n"
        proxy.choose = lambda _: Fault(503)
        a.print("during\n")
        await anyio.sleep(4 * SOON)
        assert await a.read() == "before\nduring\n", "that of the home is read anyway"
        assert await other.read() == "before\n", "what was copied is read anyway"

        proxy.choose = lambda _: None
        await other.reads("before\nduring\n")
    shutil.rmtree(a.folder)
    assert await home("a").read() == "before\nduring\n"
