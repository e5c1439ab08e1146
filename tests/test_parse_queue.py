"""The order in which files are parsed: slow files do not delay fast ones."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from aioflow.catalog import parse_queue
from aioflow.catalog.parse_queue import QUICK_FILES, SLOW_FILES, ParseQueue, ParseRank
from aioflow.clock import SystemClock
from aioflow.protocol.reports import Parsed

pytestmark = pytest.mark.timeout(30)

NOTHING = Parsed((), (), ())


class Parses:
    """A parser that parses each file until the test releases it.

    It records which parses began, and how each of them ended.
    """

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[tuple[str, bool]] = []
        self.is_empty = anyio.Event()
        self._free: dict[str, anyio.Event] = {}
        self._moved = anyio.Event()

    async def parse(self, file: str) -> Parsed:
        self.began.append(file)
        self._move()
        await self._free.setdefault(file, anyio.Event()).wait()
        return NOTHING

    async def conclude(self, file: str, parsed: Parsed | None, is_slow: bool) -> None:
        self.ended.append((file, is_slow))
        self._move()

    def let_go(self, *files: str) -> None:
        for file in files:
            self._free.setdefault(file, anyio.Event()).set()

    def _move(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    async def have(self, began: int = 0, ended: int = 0) -> None:
        while len(self.began) < began or len(self.ended) < ended:
            await self._moved.wait()


@asynccontextmanager
async def running(parses: Parses, processes: int = QUICK_FILES + SLOW_FILES):
    it = ParseQueue(parses.parse, parses.conclude, parses.is_empty.set, SystemClock(), processes)
    async with anyio.create_task_group() as group:
        await group.start(it.run)
        yield it
        group.cancel_scope.cancel()


async def test_changed_files_are_parsed_before_new_ones_and_those_before_retries():
    parses = Parses()
    async with running(parses) as it:
        for number in range(QUICK_FILES):
            it.put(f"first-{number}", ParseRank.NEW)
        for file, rank in (
            ("again", ParseRank.AGAIN),
            ("new", ParseRank.NEW),
            ("changed", ParseRank.CHANGED),
        ):
            it.put(file, rank)
        await parses.have(began=QUICK_FILES)
        parses.let_go("first-0")
        await parses.have(began=QUICK_FILES + 1)
        parses.let_go("changed")
        await parses.have(began=QUICK_FILES + 2)
        parses.let_go("new", "again", "first-1")
        await parses.is_empty.wait()

    assert parses.began[QUICK_FILES:] == ["changed", "new", "again"]
    assert it.files == set()


async def test_files_that_never_end_give_their_places_to_the_next(monkeypatch):
    monkeypatch.setattr(parse_queue, "QUICK_SECONDS", 0.02)
    endless = [f"endless-{number}" for number in range(QUICK_FILES + SLOW_FILES + 2)]
    parses = Parses()
    parses.let_go("good")
    async with running(parses) as it:
        for file in (*endless, "good"):
            it.put(file, ParseRank.NEW)
        await parses.have(ended=1)

        assert parses.ended == [("good", False)]
        assert it.files == set(endless)
        parses.let_go(*endless)
        await parses.is_empty.wait()

    # One of the last files may have been in the quick queue at that moment.
    assert sorted(file for file, _ in parses.ended[1:]) == sorted(endless)


async def test_a_file_that_is_known_to_be_slow_takes_no_quick_place():
    parses = Parses()
    async with running(parses) as it:
        for number in range(SLOW_FILES + 1):
            it.put(f"slow-{number}", ParseRank.AGAIN, is_slow=True)
        it.put("quick", ParseRank.AGAIN)
        await parses.have(began=SLOW_FILES + 1)

        assert sorted(parses.began) == [
            "quick",
            *(f"slow-{number}" for number in range(SLOW_FILES)),
        ]
        parses.let_go("quick", *(f"slow-{number}" for number in range(SLOW_FILES + 1)))
        await parses.is_empty.wait()


async def test_a_file_is_in_one_place_at_a_time():
    parses = Parses()
    async with running(parses) as it:
        it.put("a", ParseRank.NEW)
        it.put("a", ParseRank.CHANGED)
        parses.let_go("a")
        await parses.is_empty.wait()

    assert parses.began == ["a"]


@pytest.mark.parametrize(("processes", "quick", "slow"), [(2, 1, 1), (3, 1, 2), (12, 4, 8)])
async def test_so_many_files_are_parsed_at_once_as_is_set(processes, quick, slow):
    parses = Parses()
    async with running(parses, processes) as it:
        for number in range(20):
            it.put(f"slow-{number}", ParseRank.AGAIN, is_slow=True)
            it.put(f"quick-{number}", ParseRank.NEW)
        await parses.have(began=quick + slow)
        await anyio.lowlevel.checkpoint()
        began = [file.partition("-")[0] for file in parses.began]

    assert (began.count("quick"), began.count("slow")) == (quick, slow)
