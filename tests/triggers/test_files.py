from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections import Counter
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from aioflow import Unserializable
from aioflow.author.trigger import construct, serialize, set_wanted
from aioflow_triggers import files, folder_poll, folders
from aioflow_triggers import folders as folder_module
from aioflow_triggers.files import FileGoneTrigger, FilesTrigger, FileTrigger, NewFiles
from aioflow_triggers.folders import watching

POLL = 0.1


async def event_of(trigger):
    async with aclosing(trigger.run()) as events:
        return await anext(events)


async def test_a_file_that_is_there_fires_after_two_looks(tmp_path):
    path = tmp_path / "there"
    path.write_text("12345")
    began = asyncio.get_running_loop().time()

    event = await event_of(FileTrigger(str(path), POLL))

    assert event.payload == {"path": str(path), "size_bytes": 5}
    assert event.key == f"{path}:5"
    assert asyncio.get_running_loop().time() - began >= POLL * 0.99


async def test_a_folder_of_that_name_counts_as_there(tmp_path):
    (tmp_path / "part").mkdir()

    event = await event_of(FileTrigger(tmp_path / "part", POLL))

    assert event.payload["path"] == str(tmp_path / "part")


async def test_a_folder_rests_while_names_in_it_neither_come_nor_go(tmp_path):
    folder = tmp_path / "part"
    folder.mkdir()
    waiting = asyncio.ensure_future(event_of(FileTrigger(folder, POLL, stable="500ms")))
    for number in range(8):
        await asyncio.sleep(0.1)
        (folder / str(number)).touch()
    assert not waiting.done()

    (folder / "0").write_text("longer")

    await waiting


async def test_a_file_system_that_hangs_holds_up_no_loop(tmp_path, monkeypatch):
    (tmp_path / "there").write_text("12345")
    loop, hangs, gate = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    went_on = []
    look = os.scandir

    def slow(path):
        loop.call_soon_threadsafe(hangs.set)
        went_on.append(gate.wait(30))
        return look(path)

    monkeypatch.setattr(os, "scandir", slow)
    pattern = str(tmp_path / "*")
    waiting = asyncio.ensure_future(event_of(FilesTrigger(pattern, poll_seconds=POLL)))

    await hangs.wait()  # the loop continues though the poll has not returned
    gate.set()
    await waiting

    assert all(went_on)


async def test_folders_that_hang_delay_no_other_folder_and_take_one_thread_each(
    tmp_path, monkeypatch
):
    gate, real, hanging = threading.Event(), os.scandir, Counter[str]()

    def slow(path):
        if "hangs" in path:
            hanging[path] += 1
            gate.wait(30)
        return real(path)

    monkeypatch.setattr(folder_poll, "HANGS_AFTER_SECONDS", 0.05)
    monkeypatch.setattr("aioflow_triggers.folder_poll.os.scandir", slow)
    for n in range(6):
        (tmp_path / f"hangs-{n}").mkdir()
        (tmp_path / f"hangs-{n}" / "a").touch()
    (tmp_path / "a").touch()
    slow_ones = [FilesTrigger(f"{tmp_path}/hangs-{n}/*", stable=0) for n in range(6)]
    waiting = [asyncio.ensure_future(event_of(trigger)) for trigger in slow_ones]
    await asyncio.sleep(0)
    for trigger in slow_ones:  # triggers that join and leave use no further thread
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(trigger.poll(), 0.01)

    async with asyncio.timeout(20):
        event = await event_of(FilesTrigger(f"{tmp_path}/*", stable=0))

    assert event.payload["paths"] == [f"{tmp_path}/a"]
    assert not any(task.done() for task in waiting)
    assert set(hanging.values()) == {1}
    gate.set()
    assert len(await asyncio.gather(*waiting)) == 6


class Scripted:
    """A subscription with scripted polls, each a time and a file size; ``None`` for no file."""

    def __init__(self, *looks: tuple[float, int | None]) -> None:
        self.looks = [
            folders.FolderPoll(
                at, {} if size is None else {"grows": folders.FoundFile(size, 0, 0, True)}
            )
            for at, size in looks
        ]

    async def poll(self, within=0):
        return self.looks.pop(0)

    next_poll = poll

    def leave(self):
        pass


@pytest.mark.parametrize(
    ("looks", "size"),
    [
        pytest.param([(0, 1), (5, 2), (10, 3), (15, 3)], 3, id="grows-then-rests"),
        pytest.param([(0, None), (5, 7), (10, 7)], 7, id="comes-later"),
        pytest.param([(0, 4), (5, None), (10, 4), (15, 4)], 4, id="goes-and-comes-back"),
        pytest.param([(0, 4), (1, 4), (5, 5), (10, 5)], 5, id="two-looks-too-close"),
        pytest.param([(0, 0), (5, 0)], 0, id="empty-and-at-rest"),
    ],
)
async def test_a_file_fires_only_when_it_has_stopped_growing(looks, size, monkeypatch):
    monkeypatch.setattr(files, "Seat", lambda *_: Scripted(*looks))

    event = await event_of(FileTrigger("/in/grows", 5.0))

    assert event.payload["size_bytes"] == size


async def test_a_folder_that_comes_later_is_waited_for(tmp_path):
    folder = tmp_path / "later"

    async def make():
        with watching(str(folder), "a", POLL) as watch:
            assert not (await watch.poll()).files
            assert not (await watch.next_poll()).files
            folder.mkdir()
            (folder / "a").touch()

    async with anyio.create_task_group() as tg:
        tg.start_soon(make)
        event = await event_of(FileTrigger(str(folder / "a"), POLL))

    assert event.payload["size_bytes"] == 0


@pytest.mark.parametrize("waits", [10, 300], ids=["looked-up-one-by-one", "listed"])
async def test_all_waits_on_a_folder_share_one_look_per_period(tmp_path, monkeypatch, waits):
    taken = []

    def counted(at, folder, wanted, kernel):
        taken.append(len(wanted))
        return real(at, folder, wanted, kernel)

    real = folder_module._poll_now
    monkeypatch.setattr(folder_module, "_poll_now", counted)
    for n in range(waits):
        (tmp_path / str(n)).write_text("x" * n)
    sizes = {}

    async def wait(n):
        event = await event_of(FileTrigger(str(tmp_path / str(n)), POLL))
        sizes[n] = event.payload["size_bytes"]

    async with anyio.create_task_group() as tg:
        for n in range(waits):
            tg.start_soon(wait, n)

    assert sizes == {n: n for n in range(waits)}
    assert len(taken) < 10  # not one per wait
    assert asyncio.get_running_loop() not in folders._loops  # and nothing is left of it


@pytest.mark.parametrize("how", ["poll", "next_poll"])
async def test_thousands_who_have_one_look_are_woken_without_holding_up_the_loop(
    tmp_path, monkeypatch, how
):
    """Measured in CPU time of this thread, because the machine may be busy with other work."""
    gate, real = threading.Event(), os.scandir
    longest, woken = 0.0, 0

    loop, looks = asyncio.get_running_loop(), asyncio.Event()

    def gated(path):
        loop.call_soon_threadsafe(looks.set)
        gate.wait(30)
        return real(path)

    async def wait(name: str) -> None:
        nonlocal woken
        with watching(str(tmp_path), name, 3600.0) as seat:
            if how == "next_poll":
                await seat.poll()
                await seat.next_poll(within=0)
            else:
                await seat.poll()
        before = time.thread_time()
        while time.thread_time() - before < 50e-6:
            pass  # as a sensor handles a poll
        woken += 1

    monkeypatch.setattr("aioflow_triggers.folder_poll.os.scandir", gated)
    waiting = [asyncio.ensure_future(wait(str(n))) for n in range(5_000)]
    await looks.wait()
    gc.disable()  # collecting the garbage of earlier tests takes longer than a slice
    try:
        gate.set()
        before = time.thread_time()
        while woken < len(waiting):
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, before = max(longest, now - before), now
    finally:
        gc.enable()

    assert longest < 0.05  # 10 ms are aimed at; all of them together take a quarter of a second
    await asyncio.gather(*waiting)


async def test_one_that_gives_up_does_not_take_the_look_from_the_others(tmp_path):
    async with anyio.create_task_group() as tg:
        async with anyio.create_task_group() as doomed:
            doomed.start_soon(event_of, FileTrigger(str(tmp_path / "never"), POLL))
            await asyncio.sleep(0)
            tg.start_soon(event_of, FileTrigger(str(tmp_path / "comes"), POLL))
            await asyncio.sleep(0)
            doomed.cancel_scope.cancel()
        (tmp_path / "comes").touch()


@pytest.fixture
def closed(tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0)
    return folder


@pytest.fixture
def ordinary_user():
    """Run a test as an unprivileged user, because root may read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


async def test_a_folder_one_must_not_enter_fails_the_wait(closed, ordinary_user):
    with pytest.raises(PermissionError):
        await event_of(FileTrigger(str(closed / "a"), POLL))


async def test_a_file_where_a_folder_should_be_fails_the_wait(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(NotADirectoryError):
        await event_of(FileTrigger(str(tmp_path / "file" / "a"), POLL))


@pytest.mark.parametrize(
    ("path", "poll_seconds"),
    [
        pytest.param("relative/path", 5.0, id="relative"),
        pytest.param("/folder/", 5.0, id="names-no-file"),
        pytest.param("/a", 0.01, id="too-often"),
    ],
)
def test_impossible_arguments_are_refused_where_they_are_written(path, poll_seconds):
    with pytest.raises(ValueError, match="must be"):
        FileTrigger(path, poll_seconds)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        pytest.param({"path": "/a", "poll_seconds": float("nan")}, "poll_seconds", id="nan"),
        pytest.param({"path": lambda: "/a"}, "path", id="lambda"),
    ],
)
def test_unstorable_arguments_are_refused_with_their_field(fields, named):
    with pytest.raises(Unserializable, match=rf"FileTrigger\.{named}"):
        FileTrigger(**fields)


def test_it_survives_storing():
    trigger = FileTrigger("/a/b", 2.5)

    path, stored = serialize(trigger)

    assert path == "aioflow_triggers.files:FileTrigger"
    assert construct(FileTrigger, stored) == trigger


# ── many files in one watch ─────────────────────────────────────────────────────────────


async def test_a_watch_of_a_folder_sees_what_is_wanted_only_later(tmp_path, monkeypatch):
    wants = dict.fromkeys(str(n) for n in range(100))
    watch = files.RestingFiles(f"{tmp_path}/", 3600.0, 0.0)
    set_wanted(watch, wants.keys())
    for name in ("7", "70", "late"):
        (tmp_path / name).write_text(name)
    found = {}

    run: Any = watch.run()
    async with aclosing(run) as events:
        for _ in range(2):
            name, event = await anext(events)
            del wants[name]
            found[name] = event.payload["size_bytes"]
        wants["late"] = None
        watch.joined("late")  # the period is an hour: only this leads to another look
        name, event = await anext(events)

    assert found == {"7": 1, "70": 2}
    assert (name, event.payload["path"]) == ("late", f"{tmp_path}/late")


async def test_the_stable_time_of_a_file_in_a_shared_folder_restarts_with_each_write(
    tmp_path, monkeypatch
):
    looks = [
        folders.FolderPoll(
            at, {"a": folders.FoundFile(size, 0, 0, True), "b": folders.FoundFile(1, 0, 0, True)}
        )
        for at, size in [(0, 1), (5, 2), (9, 2), (10, 2)]
    ]
    seat = Scripted()
    seat.looks = looks
    monkeypatch.setattr(files, "Seat", lambda *_: seat)
    watch = files.RestingFiles("/in/", 5.0, 5.0)
    wants = {"a": None, "b": None}
    set_wanted(watch, wants.keys())
    found = []

    run: Any = watch.run()
    async with aclosing(run) as events:
        for _ in range(2):
            name, event = await anext(events)
            del wants[name]
            watch.left(name)
            found.append((name, event.payload["size_bytes"], len(seat.looks)))

    assert found == [("b", 1, 2), ("a", 2, 0)]


@pytest.mark.parametrize("made", [FileTrigger, FileGoneTrigger, FilesTrigger, NewFiles])
def test_a_path_may_be_given_as_text_or_as_a_path(made):
    trigger = made(Path("/incoming/day.csv"))

    assert trigger == made("/incoming/day.csv")
    assert construct(made, serialize(trigger)[1]) == trigger
    with pytest.raises(ValueError, match="absolute"):
        made(Path("day.csv"))


async def test_a_pattern_notes_how_many_files_its_last_look_found(tmp_path):
    (tmp_path / "a.csv").write_text("x")
    trigger = FilesTrigger(str(tmp_path / "*.csv"), at_least=2, poll_seconds=10)
    waiting = asyncio.ensure_future(event_of(trigger))
    while trigger._hosted_check is None:
        await asyncio.sleep(0.01)

    last, following, found = trigger._hosted_check
    assert found == "1 of 2 found"
    assert following is not None
    assert timedelta() < following - last <= timedelta(seconds=10)
    waiting.cancel()


async def test_a_folder_is_polled_again_within_its_period(tmp_path):
    with watching(str(tmp_path), "any", POLL) as seat:
        left = seat.next_check() - datetime.now(UTC)

    assert left <= timedelta(seconds=POLL)


async def test_a_watch_of_files_knows_when_it_looked_last(tmp_path):
    share = FileTrigger(str(tmp_path / "day.csv"), 10).share()
    watch = share.watch(*share.of)
    set_wanted(watch, {share.wanted})
    looking = asyncio.ensure_future(anext(watch.run()))
    before = datetime.now(UTC)
    while (last := watch.last_check()) is None:
        await asyncio.sleep(0.01)
    following = watch.next_check()

    exact = timedelta(milliseconds=10)
    assert before - exact <= last <= datetime.now(UTC) + exact
    assert following is not None
    assert following > before
    looking.cancel()


@pytest.mark.parametrize("trigger", [FileTrigger("/any", POLL), FileGoneTrigger("/any", POLL)])
async def test_a_watch_that_has_not_begun_does_not_know_when_it_looks(trigger):
    share = trigger.share()

    assert share.watch(*share.of).next_check() is None
