"""Streams of files, patterns and deleted files, with kernel notifications and without."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import asyncinotify
import pytest

from aioflow import DagError, TriggerEvent
from aioflow.author.trigger import construct, serialize, set_wanted
from aioflow_triggers import folders
from aioflow_triggers.files import (
    Arrivals,
    FileGoneTrigger,
    FilesTrigger,
    FileTrigger,
    GoneFiles,
    NewFiles,
    RestingFiles,
    _arrival,
)
from aioflow_triggers.folders import FolderPoll, FoundFile, Leaving, matches, watching
from tests.triggers.conftest import LONG_AGO, as_hosted
from tests.triggers.conftest import stream as hosted_stream

POLL = 0.1
NEVER = 3600.0


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def too_many(*_, **__):
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.fixture(params=["told-by-the-kernel", "no-inotify-left", "no-watch-left"])
def kernel(request, monkeypatch):
    """Run a test with inotify, and as if a limit on its instances or watches were reached."""
    if request.param == "no-inotify-left":
        monkeypatch.setattr(asyncinotify, "Inotify", too_many)
    if request.param == "no-watch-left":
        monkeypatch.setattr(asyncinotify.Inotify, "add_watch", full)
    return request.param


def stream(trigger, since=LONG_AGO):
    return hosted_stream(trigger, since)


async def event_of(trigger):
    async with aclosing(trigger.run()) as events:
        return await anext(events)


def names(events):
    return [Path(event.payload["path"]).name for event in events]


# ── a stream of files ───────────────────────────────────────────────────────────────────


async def test_each_new_file_is_reported_once(tmp_path, kernel):
    async with stream(NewFiles(f"{tmp_path}/*.csv", stable=0, poll_seconds=POLL)) as events:
        (tmp_path / "a.csv").write_text("1")
        (tmp_path / "no.txt").write_text("1")
        (tmp_path / ".hidden.csv").write_text("1")
        (tmp_path / "folder.csv").mkdir()
        first = await anext(events)
        (tmp_path / "b.csv").write_text("22")
        second = await anext(events)
        (tmp_path / "a.csv").write_text("333")
        again = await anext(events)

    assert names([first, second, again]) == ["a.csv", "b.csv", "a.csv"]
    assert [event.payload["size_bytes"] for event in (first, second, again)] == [1, 2, 3]
    assert len({first.key, second.key, again.key}) == 3
    status = (tmp_path / "b.csv").stat()
    assert second.key == f"{tmp_path}/b.csv:2:{status.st_mtime_ns}"
    assert second.payload["changed_ns"] == status.st_ctime_ns
    assert second.payload["modified"].timestamp() == pytest.approx(status.st_mtime, abs=1e-3)


async def test_a_folder_that_comes_later_is_looked_into(tmp_path, kernel):
    folder = tmp_path / "later"
    pattern = f"{folder}/*"

    async with stream(NewFiles(pattern, stable=0, poll_seconds=POLL)) as events:
        with watching(str(folder), "*", POLL, is_glob=True) as seat:
            assert not (await seat.poll()).files
        folder.mkdir()
        (folder / "a").touch()
        assert names([await anext(events)]) == ["a"]


async def test_the_kernel_is_said_to_be_full_once(tmp_path, kernel, caplog):
    with caplog.at_level(logging.WARNING):
        for folder in ("one", "two"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "a").touch()
        async with (
            stream(NewFiles(f"{tmp_path}/one/*", stable=0, poll_seconds=POLL)) as one,
            stream(NewFiles(f"{tmp_path}/two/*", stable=0, poll_seconds=POLL)) as two,
        ):
            assert names([await anext(one), await anext(two)]) == ["a", "a"]

    warnings = [record for record in caplog.records if "watches no more" in record.getMessage()]
    assert len(warnings) == (0 if kernel == "told-by-the-kernel" else 1)


@pytest.mark.parametrize("change", ["written", "moved", "made-in-a-new-folder"])
async def test_with_kernel_notifications_a_change_is_reported_before_the_next_period(
    tmp_path, change
):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "first").touch()
    trigger = NewFiles(f"{folder}/*", stable=0, poll_seconds=NEVER)

    async with stream(trigger) as events, asyncio.timeout(30):
        await anext(events)
        if change == "written":
            (folder / "next").write_text("x")
        elif change == "moved":
            (tmp_path / "next").write_text("x")
            (tmp_path / "next").rename(folder / "next")
        else:
            # The watched folder is moved away, and another folder gets its name.
            task = asyncio.ensure_future(anext(events))
            folder.rename(tmp_path / "old")
            folder.mkdir()
            (folder / "next").touch()
            await task
            return
        assert names([await anext(events)]) == ["next"]


async def test_one_folder_has_one_watch_of_the_kernel_however_many_wait(tmp_path, monkeypatch):
    added = []
    real = asyncinotify.Inotify.add_watch

    def counted(self, path, mask):
        added.append(str(path))
        return real(self, path, mask)

    monkeypatch.setattr(asyncinotify.Inotify, "add_watch", counted)

    async with anyio.create_task_group() as group:
        for n in range(100):
            group.start_soon(event_of, FileTrigger(str(tmp_path / str(n)), POLL, 0))
        for n in range(100):
            (tmp_path / str(n)).touch()

    assert added == [str(tmp_path)]
    assert asyncio.get_running_loop() not in folders._loops


async def test_a_name_that_changes_wakes_those_who_wait_for_it_alone(tmp_path):
    with (
        watching(str(tmp_path), "a", NEVER) as mine,
        watching(str(tmp_path), "b", NEVER) as other,
    ):
        await mine.poll()
        async with asyncio.TaskGroup() as group:
            mine_woken = group.create_task(mine.next_poll())
            other_woken = group.create_task(other.next_poll())
            (tmp_path / "a").touch()
            assert set((await mine_woken).files) == {"a"}
            assert not other_woken.done()
            other_woken.cancel()


async def test_two_paths_to_one_folder_get_the_same_changes(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)

    async with asyncio.timeout(30):
        with watching(str(real), "a", NEVER) as one:
            await one.poll()
            with watching(str(link), "a", NEVER) as two:
                await two.poll()
            # The kernel watch must outlive the subscription that ends first.
            (real / "a").touch()
            while not (await one.next_poll()).files:
                pass


# ── new files ───────────────────────────────────────────────────────────────────────────


def found(changed_s, size=1):
    return FoundFile(size, 0, changed_s * 1_000_000_000, True)


async def test_existing_items_do_not_count_unless_requested(tmp_path):
    (tmp_path / "old").touch()
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    trigger = NewFiles(f"{tmp_path}/*", stable=0, poll_seconds=POLL)

    assert trigger_horizon(trigger, tomorrow) > (tmp_path / "old").stat().st_ctime_ns
    async with stream(NewFiles(f"{tmp_path}/*", stable=0, existing=True), tomorrow) as events:
        assert names([await anext(events)]) == ["old"]


def trigger_horizon(trigger, since, last=None):
    return as_hosted(trigger, since, last)._horizon_ns()


def test_hosted_again_it_leaves_out_what_is_older_than_its_last_event():
    last = TriggerEvent({"changed_ns": 2_000_000_000_000_000_000}, key="k")

    horizon = trigger_horizon(NewFiles("/in/*"), LONG_AGO, last)

    assert horizon == 2_000_000_000_000_000_000 - 60_000_000_000


@pytest.mark.parametrize("at", [10.0, 14.9])
def test_a_file_is_reported_when_it_is_stable_and_not_before(at):
    arrivals = files_arrivals(rest=5)

    assert arrivals.see(10.0, {"a": found(1)}) == []
    assert arrivals.see(at, {"a": found(1)}) == []
    assert arrivals.due_in == pytest.approx(15.0 - at)
    assert arrivals.see(15.0, {"a": found(1)}) == [("a", found(1))]
    assert arrivals.see(99.0, {"a": found(1)}) == []


def test_the_stable_time_of_a_file_that_grows_restarts():
    arrivals = files_arrivals(rest=5)

    arrivals.see(0.0, {"a": found(1, size=1)})
    assert arrivals.see(5.0, {"a": found(2, size=2)}) == []
    assert arrivals.see(10.0, {"a": found(2, size=2)}) == [("a", found(2, size=2))]


def test_files_of_one_look_come_in_the_order_of_their_changes():
    arrivals = files_arrivals(rest=0)

    told = arrivals.see(0.0, {"a": found(3), "b": found(1), "c": found(3), "d": found(2)})

    assert [name for name, _ in told] == ["b", "d", "a", "c"]


def test_files_changed_before_the_horizon_are_left_out():
    arrivals = files_arrivals(rest=0, horizon_s=5)

    assert [name for name, _ in arrivals.see(0.0, {"a": found(4), "b": found(5)})] == ["b"]


def files_arrivals(rest, horizon_s=0):
    return Arrivals(rest, horizon_s * 1_000_000_000)


async def test_a_name_that_is_no_text_is_left_out_and_said(tmp_path, caplog):
    (tmp_path / os.fsdecode(b"\xff.csv")).touch()
    (tmp_path / "good.csv").touch()

    with caplog.at_level(logging.WARNING):
        async with stream(NewFiles(f"{tmp_path}/*.csv", stable=0, poll_seconds=POLL)) as events:
            assert names([await anext(events)]) == ["good.csv"]
            (tmp_path / "next.csv").touch()
            assert names([await anext(events)]) == ["next.csv"]

    assert "not valid text" in caplog.text


async def test_unreadable_files_are_left_out_and_reported_once(tmp_path, caplog, kernel):
    (tmp_path / "evil.csv").symlink_to("evil.csv")
    (tmp_path / "good.csv").touch()

    with caplog.at_level(logging.WARNING):
        async with stream(NewFiles(f"{tmp_path}/*.csv", stable=0, poll_seconds=POLL)) as events:
            assert names([await anext(events)]) == ["good.csv"]
            (tmp_path / "next.csv").touch()
            assert names([await anext(events)]) == ["next.csv"]
        async with stream(FilesTrigger(f"{tmp_path}/*.csv", at_least=2, stable=0)) as seen:
            paths = (await anext(seen)).payload["paths"]

    [said] = [record.getMessage() for record in caplog.records if "evil" in record.getMessage()]
    assert said.startswith(f"'{tmp_path}/evil.csv' is left out: [Errno 40] Too many levels")
    assert [Path(path).name for path in paths] == ["good.csv", "next.csv"]


def test_a_file_with_an_impossible_date_is_reported_by_no_event():
    with pytest.raises(ValueError, match="no calendar"):
        _arrival("/in/a", FoundFile(1, 10**30, 0, True))


def test_a_long_path_leaves_room_in_the_key():
    path = f"/{'long/' * 700}a"
    keys = {_arrival(path + n, found(1)).key for n in "123"}

    assert len(keys) == 3
    assert all(len(key or "") < 200 for key in keys)


@pytest.mark.parametrize("problem", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_a_shortage_of_this_machine_fails_no_trigger(tmp_path, monkeypatch, caplog, problem):
    real_list, real_stat, short = os.scandir, os.stat, [3]

    def or_short(real):
        def look(path):
            if str(path).startswith(str(tmp_path)) and short[0]:
                short[0] -= 1
                raise OSError(problem, os.strerror(problem))
            return real(path)

        return look

    monkeypatch.setattr("aioflow_triggers.folder_poll.os.scandir", or_short(real_list))
    monkeypatch.setattr("aioflow_triggers.folder_poll.os.stat", or_short(real_stat))
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    async with (
        stream(NewFiles(f"{tmp_path}/*", stable=0, poll_seconds=POLL)) as new,
        stream(FileTrigger(f"{tmp_path}/b", POLL, 0)) as one,
        stream(FileGoneTrigger(f"{tmp_path}/c", POLL)) as gone,
    ):
        events = await asyncio.gather(anext(new), anext(one), anext(gone))

    assert [event.payload["path"] for event in events] == [f"{tmp_path}/{n}" for n in "abc"]
    assert short == [0]
    warned = [record for record in caplog.records if "cannot be polled now" in record.message]
    assert len(warned) == 1


async def test_names_are_looked_up_where_the_folder_cannot_be_listed(tmp_path, monkeypatch):
    def locked(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr("aioflow_triggers.folder_poll.os.scandir", locked)
    wants = dict.fromkeys(str(n) for n in range(100))
    (tmp_path / "7").touch()
    watch = RestingFiles(f"{tmp_path}/", POLL, 0)
    set_wanted(watch, wants.keys())
    run: Any = watch.run()
    async with aclosing(run) as seen, stream(FilesTrigger(f"{tmp_path}/*", stable=0)) as pattern:
        with pytest.raises(PermissionError):
            await anext(pattern)
        name, event = await anext(seen)

    assert (name, event.payload["path"]) == ("7", f"{tmp_path}/7")


# ── patterns, and deleted files ─────────────────────────────────────────────────────────


async def test_a_pattern_waits_for_as_many_as_it_should(tmp_path, kernel):
    trigger = FilesTrigger(f"{tmp_path}/part-?.bin", at_least=2, poll_seconds=POLL, stable=0)
    (tmp_path / "part-2.bin").write_text("22")
    assert await trigger.poll() is None

    (tmp_path / "part-1.bin").write_text("1")
    async with stream(trigger) as events:
        event = await anext(events)

    assert event.payload == {
        "paths": [f"{tmp_path}/part-1.bin", f"{tmp_path}/part-2.bin"],
        "size_bytes": 3,
    }
    assert event.key == f"{trigger.pattern}:2:3"
    assert await trigger.poll() == event.payload


async def test_a_file_that_was_deleted_is_reported(tmp_path, kernel):
    marker = tmp_path / "busy"
    marker.touch()

    async def remove():
        with watching(str(tmp_path), "busy", POLL) as seat:
            assert (await seat.poll()).files
            marker.unlink()

    async with (
        anyio.create_task_group() as group,
        stream(FileGoneTrigger(str(marker), POLL)) as events,
    ):
        group.start_soon(remove)
        event = await anext(events)

    assert event.payload == {"path": str(marker)}


async def test_each_of_many_is_reported_when_it_is_gone(tmp_path):
    wants = dict.fromkeys(str(n) for n in range(100))
    for name in wants:
        (tmp_path / name).touch()
    watch = GoneFiles(f"{tmp_path}/", POLL)
    set_wanted(watch, wants.keys())
    gone = []

    run: Any = watch.run()
    async with aclosing(run) as events:
        for name in ("7", "70"):
            (tmp_path / name).unlink()
            gone.append(await anext(events))
            del wants[name]
            watch.left(name)
        (tmp_path / "late").touch()
        wants["late"] = None
        watch.joined("late")
        (tmp_path / "late").unlink()
        gone.append(await anext(events))

    assert [(name, event.payload["path"]) for name, event in gone] == [
        (name, f"{tmp_path}/{name}") for name in ("7", "70", "late")
    ]


def test_a_name_that_came_while_one_looked_is_not_missing_from_that_look():
    names = dict.fromkeys(["there", "old"])
    leaving = Leaving(names.keys())
    leaving.begin(1.0)
    for name in ("late", "brief"):
        names[name] = None
        leaving.join(name)
    leaving.begin(2.0)  # by another poll, before the first one has returned
    leaving.leave("brief")

    looks = [FolderPoll(at, {}, {leaving: ["old", "late"]}) for at in (1.0, 2.0)]

    assert leaving.sought == ("there", "old", "late", "brief")
    assert leaving.missing(looks[0]) == ["old"]
    assert leaving.is_late("late", looks[0])
    assert leaving.missing(looks[1]) == ["old", "late"]
    assert not leaving.is_late("late", looks[1])


@pytest.mark.parametrize("others", [0, 100], ids=["looked-up-one-by-one", "listed"])
async def test_a_link_to_nothing_is_gone_and_a_folder_is_not(tmp_path, others):
    wants = dict.fromkeys(["folder", "link", "nowhere", *map(str, range(others))])
    for name in wants:
        (tmp_path / name).touch()
    for name in ("folder", "nowhere"):
        (tmp_path / name).unlink()
    (tmp_path / "folder").mkdir()
    (tmp_path / "nowhere").symlink_to(tmp_path / "link")
    watch = GoneFiles(f"{tmp_path}/", POLL)
    set_wanted(watch, wants.keys())

    run: Any = watch.run()
    async with aclosing(run) as events:
        following = asyncio.ensure_future(anext(events))
        with watching(str(tmp_path), "link", POLL) as seat:
            await seat.poll()
        assert not following.done()
        (tmp_path / "link").unlink()
        gone = [await following]
        wants.pop(gone[0][0])
        gone.append(await anext(events))

    assert {name for name, _ in gone} == {"link", "nowhere"}


async def test_a_file_that_is_dropped_and_wanted_again_is_polled_again(tmp_path):
    wants = dict.fromkeys(["a", "b"])
    watch = GoneFiles(f"{tmp_path}/", POLL)
    set_wanted(watch, wants.keys())
    run: Any = watch.run()
    async with aclosing(run) as events:
        told, _ = await anext(events)  # the other is known to be gone, but not yet reported
        [again] = wants.keys() - {told}
        del wants[told]
        for name in (told, again):
            watch.left(name)
        (tmp_path / again).touch()
        watch.joined(again)
        following = asyncio.ensure_future(anext(events))
        with watching(str(tmp_path), again, POLL) as seat:
            await seat.poll()
            await seat.next_poll()
        assert not following.done()

        (tmp_path / again).unlink()
        name, _ = await following

    assert name == again


async def test_nothing_in_a_missing_folder_is_gone_at_once(tmp_path):
    async with stream(FileGoneTrigger(f"{tmp_path}/no/such", NEVER)) as events:
        assert (await anext(events)).key == f"{tmp_path}/no/such:gone"


async def test_a_late_listener_does_not_get_an_unpolled_file_reported_as_gone(tmp_path):
    (tmp_path / "there").touch()
    with watching(str(tmp_path), "other", NEVER) as first:
        await first.poll()
        with watching(str(tmp_path), "there", NEVER) as late:
            assert set((await late.poll()).files) == {"there"}


async def test_a_file_that_must_only_exist_is_reported_at_the_first_poll(tmp_path):
    (tmp_path / "a").touch()
    trigger = FileTrigger(str(tmp_path / "a"), NEVER, stable=0)

    async with stream(trigger) as events, asyncio.timeout(30):
        assert (await anext(events)).payload["size_bytes"] == 0
    assert await FileTrigger(str(tmp_path / "b"), NEVER, stable=0).poll() is None


@pytest.mark.parametrize(
    ("name", "glob", "fits"),
    [
        pytest.param("a.csv", "*.csv", True, id="star"),
        pytest.param(".a.csv", "*.csv", False, id="hidden"),
        pytest.param(".a.csv", ".*", True, id="hidden-and-meant"),
        pytest.param("a.csv.part", "*.csv", False, id="longer"),
        pytest.param("A.CSV", "*.csv", False, id="case"),
        pytest.param("a1", "a[0-9]", True, id="class"),
    ],
)
def test_which_names_fit(name, glob, fits):
    assert matches(name, glob) is fits


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: NewFiles("in/*"), "absolute", id="relative"),
        pytest.param(lambda: NewFiles("/in/"), "absolute", id="no-name"),
        pytest.param(lambda: NewFiles("/*/a"), "one folder", id="many-folders"),
        pytest.param(lambda: FilesTrigger("/in/*", 0), "at_least", id="none"),
        pytest.param(lambda: FilesTrigger("/in/*", poll_seconds=0), "poll_seconds", id="often"),
        pytest.param(lambda: FileGoneTrigger("in"), "absolute", id="gone-relative"),
    ],
)
def test_impossible_arguments_are_refused_where_they_are_written(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_rest_that_is_no_duration_is_refused_where_it_is_written():
    with pytest.raises(DagError, match="stable"):
        FileTrigger("/a", stable="a while")


@pytest.mark.parametrize(
    "trigger",
    [
        NewFiles("/in/*.csv", "10s", existing=True),
        FilesTrigger("/in/*.csv", 3, stable=timedelta(seconds=1)),
        FileGoneTrigger("/in/a"),
        FileTrigger("/in/a", stable=timedelta(0)),
    ],
    ids=lambda trigger: type(trigger).__name__,
)
def test_they_survive_storing(trigger):
    path, stored = serialize(trigger)

    assert path == f"aioflow_triggers.files:{type(trigger).__name__}"
    assert construct(type(trigger), stored) == trigger


async def test_a_machine_without_inotify_finds_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    (tmp_path / "a").touch()

    async with stream(NewFiles(f"{tmp_path}/*", stable=0, poll_seconds=POLL)) as events:
        assert names([await anext(events)]) == ["a"]
