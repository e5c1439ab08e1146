"""A database, a log and a home that do not belong together are refused, and left unchanged."""

from __future__ import annotations

import itertools
import re
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from aioflow._threads import in_thread
from aioflow.errors import ForeignDatabase, StrangeDatabase, SyncFailed
from aioflow.settings.home import identity_file
from aioflow.store import open_store
from aioflow.store.copying import copy
from aioflow.store.sqlite import checkpointer, database_file
from aioflow.store.sqlite import writer as writer_module
from aioflow.store.sqlite.wal_file import log_path
from tests.commands import run
from tests.journal_replay import compare_with_replay
from tests.store.samples import RESULT, TASK, VAULT, batch, first_batch
from tests.web.damaged_sqlite import SqliteHome
from tests.web.damaging import TABLES, Case


@pytest.fixture
def home(tmp_path):
    return _home(tmp_path / "home")


def _home(folder: Path) -> Path:
    (folder / "run").mkdir(parents=True)
    return folder


def opened(home: Path, name: str = "aioflow.db"):
    return open_store(f"sqlite:///{home / name}", VAULT, home=home)


def body(number: int) -> bytes:
    return number.to_bytes(2, "big") * 20_000


async def commit(store, *numbers: int) -> None:
    for number in numbers:
        if number == 1:
            await store.commit(first_batch())
        else:
            task = replace(TASK, task_no=1000 + number, map_index=number)
            result = replace(RESULT, task_no=task.task_no, body=body(number))
            await store.commit(batch(number, new_tasks=[task], results=[result]))


async def commit_more(home: Path, *numbers: int) -> None:
    """Open the store, commit these batches, and close it."""
    async with opened(home) as store:
        await store.claim()
        await commit(store, *numbers)


def image(home: Path, to: Path) -> Path:
    """Copy the files that a kill would leave at this moment: all but the index."""
    shutil.copytree(home, to, ignore=shutil.ignore_patterns("*-shm"))
    return to


async def killed(home: Path, to: Path, *numbers: int) -> Path:
    """Commit these batches, then simulate a kill. Return the files that it leaves."""
    async with opened(home) as store:
        await store.claim()
        await commit(store, *numbers)
        return image(home, to)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


async def commits_in(home: Path) -> int:
    async with opened(home) as store:
        assert await compare_with_replay(store) == []
        return (await store.claim()).commit_no


# ── the log ─────────────────────────────────────────────────────────────────────────────


def _back_up(source: Path, target: Path) -> None:
    new = target.with_name("new.db")
    with closing(sqlite3.connect(source)) as taken, closing(sqlite3.connect(new)) as given:
        taken.backup(given)
    new.replace(target)


def _copy_made_while_stopped(home, older, other):
    shutil.copy(older, home / "aioflow.db")


def _of_another_home(home, older, other):
    shutil.copy(other, home / "aioflow.db")


def _backup_of_an_hour_ago(home, older, other):
    _back_up(older, home / "aioflow.db")


def _backup_of_this_very_moment(home, older, other):
    aside = image(home, home.parent / "aside")
    _back_up(aside / "aioflow.db", home / "aioflow.db")


def _vacuumed_copy_of_this_very_moment(home, older, other):
    aside = image(home, home.parent / "aside")
    with closing(sqlite3.connect(aside / "aioflow.db")) as source:
        source.execute("VACUUM INTO ?", (str(home / "new.db"),))
    (home / "new.db").replace(home / "aioflow.db")


def _nothing(home, older, other):
    (home / "aioflow.db").unlink()


def _empty(home, older, other):
    (home / "aioflow.db").write_bytes(b"")


SUBSTITUTES = (
    _copy_made_while_stopped,
    _of_another_home,
    _backup_of_an_hour_ago,
    _backup_of_this_very_moment,
    _vacuumed_copy_of_this_very_moment,
    _nothing,
    _empty,
)


@pytest.mark.parametrize("substitute", SUBSTITUTES, ids=lambda one: one.__name__.strip("_"))
async def test_the_log_of_another_database_is_not_replayed(home, tmp_path, substitute):
    await commit_more(home, 1)
    older = shutil.copy(home / "aioflow.db", tmp_path / "older.db")
    await commit_more(home, 2)
    other = _home(tmp_path / "other")
    await commit_more(other, 1)
    left = await killed(home, tmp_path / "left", 3, 4)
    substitute(left, older, other / "aioflow.db")
    before = contents(left)

    for identity in (True, False):  # the log alone must tell, too
        if not identity:
            identity_file(left).unlink()
            del before["identity"]
        with pytest.raises(StrangeDatabase, match="is the log of another database"):
            async with opened(left):
                pass
        assert contents(left) == before


@pytest.mark.parametrize("starts_over", [False, True])
async def test_a_copy_from_right_before_the_life_of_a_log_is_completed_by_it_or_refused(
    home, tmp_path, monkeypatch, starts_over
):
    if starts_over:
        monkeypatch.setattr(checkpointer, "WAL_GOAL_BYTES", 100_000)
    await commit_more(home, 1)
    await commit_more(home, 2)
    before = shutil.copy(home / "aioflow.db", tmp_path / "before.db")
    async with opened(home) as store:
        await store.claim()
        for number in range(3, 9):
            await commit(store, number)
            if starts_over:
                await store.checkpoint()
        left = image(home, tmp_path / "left")
    shutil.copy(before, left / "aioflow.db")

    if starts_over:  # it lacks the pages that were checkpointed since
        with pytest.raises(StrangeDatabase, match="is the log of another database"):
            await commits_in(left)
    else:
        assert await commits_in(left) == 8


async def test_a_restored_copy_is_served_once_the_old_log_is_moved_away_as_it_says(home, tmp_path):
    await commit_more(home, 1)
    older = shutil.copy(home / "aioflow.db", tmp_path / "older.db")
    await commit_more(home, 2)
    left = await killed(home, tmp_path / "left", 3, 4)
    shutil.copy(older, left / "aioflow.db")
    with pytest.raises(StrangeDatabase) as refused:
        async with opened(left):
            pass

    assert str(refused.value).endswith(f"mv {left}/aioflow.db-wal {left}/aioflow.db-wal.other")
    log_path(left / "aioflow.db").rename(left / "aioflow.db-wal.other")

    assert await commits_in(left) == 1


async def test_the_files_left_at_any_moment_are_consistent_wherever_they_are_moved(
    home, tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpointer, "WAL_GOAL_BYTES", 100_000)
    monkeypatch.setattr(database_file, "_WAL_LIMIT_BYTES", 100_000)
    logs = set()
    async with opened(home) as store:
        await store.claim()
        for number in range(1, 25):
            with closing(sqlite3.connect(home / "aioflow.db", isolation_level=None)) as reader:
                if number % 4:  # keeps a pass from reaching the end of the log
                    reader.execute("BEGIN")
                    reader.execute("SELECT count(*) FROM run").fetchone()
                await commit(store, number)
            await store.checkpoint()
            logs.add(log_path(home / "aioflow.db").read_bytes()[:32])
            left = image(home, tmp_path / f"left-{number}")

            assert await commits_in(left) == number

    assert len(logs) > 3, "the log has not started over"


async def test_a_log_whose_begin_was_never_synced_is_no_obstacle(home, tmp_path):
    await commit_more(home, 1)
    left = await killed(home, tmp_path / "left", 2)
    log = log_path(left / "aioflow.db")
    content = bytearray(log.read_bytes())
    content[32 + 24 : 32 + 24 + 4096] = bytes(4096)  # the page of the first frame
    log.write_bytes(content)

    assert await commits_in(left) == 1


async def test_a_log_from_before_databases_had_numbers_is_replayed(home, tmp_path, monkeypatch):
    monkeypatch.setattr("aioflow.store.sqlite.writer.next_log", lambda raw: None)
    monkeypatch.setattr("aioflow.store.sqlite.database_file.next_log", lambda raw: None)
    monkeypatch.setattr("aioflow.store.sqlite.database_file.first_log", lambda raw: None)
    left = await killed(home, tmp_path / "left", 1, 2)
    monkeypatch.undo()

    assert await commits_in(left) == 2


# ── the home ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_killed", [False, True])
async def test_the_database_of_another_home_is_refused(home, tmp_path, is_killed):
    await commit_more(home, 1)
    other = _home(tmp_path / "other")
    await commit_more(other, 1)
    if is_killed:
        other = await killed(other, tmp_path / "left", 2)
    for name in ("aioflow.db", "aioflow.db-wal"):
        (home / name).unlink(missing_ok=True)
        if (other / name).exists():
            shutil.copy(other / name, home / name)
    before = contents(home)

    with pytest.raises(StrangeDatabase, match="the database of another home"):
        async with opened(home):
            pass

    assert contents(home) == before
    identity_file(home).unlink()
    assert await commits_in(home) == 1 + is_killed  # as it says


async def test_a_home_serves_its_own_databases_old_and_new(home, tmp_path):
    await commit_more(home, 1)
    older = shutil.copy(home / "aioflow.db", tmp_path / "older.db")
    await commit_more(home, 2)

    async with opened(home, "another.db") as store:
        assert (await store.claim()).commit_no == 0
    shutil.copy(older, home / "aioflow.db")
    assert await commits_in(home) == 1
    (home / "aioflow.db").unlink()
    assert await commits_in(home) == 0


async def test_a_copied_database_is_of_the_same_home(home):
    await commit_more(home, 1, 2)

    source, target = (f"sqlite:///{home}/{name}" for name in ("aioflow.db", "copy.db"))
    await copy(source, target, VAULT, home)

    async with opened(home, "copy.db") as store:
        assert (await store.claim()).commit_no == 2


async def test_a_moved_home_and_one_without_an_identity_are_served(home, tmp_path):
    await commit_more(home, 1)
    moved = home.rename(tmp_path / "moved")
    assert await commits_in(moved) == 1
    identity_file(moved).unlink()
    assert await commits_in(moved) == 1
    assert identity_file(moved).exists()


# ── damage ──────────────────────────────────────────────────────────────────────────────


async def _left(home, tmp_path) -> Path:
    """Return what a kill leaves of a database whose log was completely checkpointed."""
    async with opened(home) as store:
        await store.claim()
        await commit(store, 1, 2, 3)
        await store.checkpoint()
        return image(home, tmp_path / "left")


async def test_a_claim_says_whether_the_last_daemon_was_killed(home, tmp_path):
    left = await _left(home, tmp_path)
    found = []
    for one in (left, left, home):
        async with opened(one) as store:
            found.append((await store.claim()).after_crash)

    assert found == [True, False, False]


def _damage(path: Path, page: int) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xa5" * 4096)


async def _judge_damage(left: Path, to: Path, pages) -> None:
    for page in pages:
        damaged = image(left, to / f"damaged-{page}")
        _damage(damaged / "aioflow.db", page)
        log_path(damaged / "aioflow.db").unlink(missing_ok=True)  # it would mend the page
        with pytest.raises(ForeignDatabase) as refused:
            async with opened(damaged) as store:
                await store.claim()
        for named in ("aioflow db check", "restore the last copy", ".recover"):
            assert named in str(refused.value)
        shutil.rmtree(damaged)


async def test_after_an_unclean_end_a_damaged_file_is_refused(home, tmp_path):
    left = await _left(home, tmp_path)
    pages = (left / "aioflow.db").stat().st_size // 4096

    await _judge_damage(left, tmp_path, [2, pages // 3, pages // 2, pages - 1])


@pytest.mark.nightly
async def test_after_an_unclean_end_damage_to_any_page_is_found(home, tmp_path):
    left = await _left(home, tmp_path)
    pages = (left / "aioflow.db").stat().st_size // 4096

    await _judge_damage(left, tmp_path, range(2, pages + 1))


_WRONG = ("null", "a text", "negative", "garbage")


async def _hold_wrong_values(left: Path) -> set[str]:
    """Put a forbidden value into each column of the tables with rows. Return the columns."""
    with closing(sqlite3.connect(left / "aioflow.db")) as raw:
        columns = [
            column
            for table in TABLES
            if raw.execute(f'SELECT 1 FROM "{table.name}" LIMIT 1').fetchone()
            and table.name not in {"meta", "node", "number_lease"}  # nothing is committed then
            for column in table.columns
        ]
    columns.sort(key=lambda column: column.primary_key)  # the row is found by those
    wrong = [
        Case(column.table.name, column.name, value)
        for column, value in zip(columns, itertools.cycle(_WRONG))
    ]
    written = {case: await SqliteHome(left).write(case) for case in wrong}
    return {f"{case.table}.{case.column}" for case, found in written.items() if found}


async def test_a_start_refuses_no_file_for_single_values_that_cannot_be_read(home, tmp_path):
    left = await _left(home, tmp_path)
    columns = await _hold_wrong_values(left)
    with closing(sqlite3.connect(left / "aioflow.db")) as raw:
        lines = [line for (line,) in raw.execute("PRAGMA quick_check(1000)")]
        (page,) = raw.execute("SELECT max(rootpage) FROM sqlite_master").fetchone()
        assert database_file.quick_check(raw) == []
    assert {line.split()[0] for line in lines} >= {"NULL", "non-INTEGER", "non-BLOB", "CHECK"}
    await _judge_damage(left, tmp_path, [page])  # that is another matter

    async with opened(left) as store:
        assert (await store.claim()).commit_no == 3
        assert await store.examine() == []
        damaged = {f"{one.table}.{one.column}" for one in await store.find_damage()}
    done = await in_thread(partial(run, "db", "check", "--json", home=left))

    assert len(damaged) > 3
    assert damaged <= columns
    assert done.status == 1
    assert not [line for line in done.json["problems"] if line.startswith("damaged: aioflow")]


async def test_checks_that_the_start_skips_run_while_it_works(home, tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(database_file, "_STEPS_BETWEEN_LOOKS", 1)
    left = await _left(home, tmp_path)
    with closing(sqlite3.connect(left / "aioflow.db")) as raw:
        (page,) = raw.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'api_token_by_digest'"
        ).fetchone()
    _damage(left / "aioflow.db", page)

    async with opened(left) as store:
        assert not store.is_damaged
        assert (await store.claim()).commit_no == 3
        limited = store.limited(2.0)
        [found] = await store.examine()
        assert limited.is_damaged

    assert found.reason == "damaged"
    assert "aioflow db check" in found.message


async def test_db_check_names_what_is_damaged(home, tmp_path):
    left = await _left(home, tmp_path)
    with closing(sqlite3.connect(left / "aioflow.db")) as raw:
        (page,) = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'run'").fetchone()
    before = await in_thread(partial(run, "db", "check", "--json", home=left))
    _damage(left / "aioflow.db", page)

    done = await in_thread(partial(run, "db", "check", "--json", home=left))

    assert before.json == {"ok": True, "problems": []}
    assert done.status == 1
    told = "\n".join(done.json["problems"])
    assert re.search(rf"^damaged: .*page {page}\b", told, re.MULTILINE | re.IGNORECASE), told


async def test_after_a_clean_end_nothing_is_checked(home, monkeypatch):
    await commit_more(home, 1)
    monkeypatch.setattr(writer_module, "quick_check", lambda *_: pytest.fail("checked"))

    assert await commits_in(home) == 1


async def test_the_next_life_tells_that_a_sync_failed(home, tmp_path):
    async with opened(home) as store:
        await store.claim()
        await commit(store, 1)

        def fail(raw):
            exc = sqlite3.OperationalError("disk I/O error")
            exc.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise exc

        with pytest.raises(SyncFailed):
            await store._writer.run(fail)
        with pytest.raises(SyncFailed):
            await store.commit(batch(2))
        with pytest.raises(SyncFailed):
            await store.list_runs(limit=1)
        with pytest.raises(SyncFailed):
            store.verify()
    assert log_path(home / "aioflow.db").stat().st_size > 0, "it was copied back all the same"

    async with opened(home) as store:
        assert (await store.claim()).commit_no == 1
        [found] = await store.examine()
    async with opened(home) as store:
        assert await store.examine() == []

    assert found.reason == "sync"
    assert "failed to sync" in found.message
