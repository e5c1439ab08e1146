"""Cases that only a database file has: its lock, its identity, and its state after a crash."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path, PosixPath
from types import SimpleNamespace

import pytest
import sqlalchemy
from msgspec.structs import replace

from aioflow.errors import (
    ForeignDatabase,
    HomeBusy,
    SchemaMismatch,
    SettingsError,
    StoreUnavailable,
    StrangeDatabase,
)
from aioflow.model.states import TaskState
from aioflow.store import open_store, tables
from aioflow.store.sqlite import database_file
from aioflow.store.sqlite.checkpointer import WAL_BOUND_BYTES
from aioflow.store.sqlite.lock import FileLock
from tests.journal_replay import compare_with_replay
from tests.store.loading import load
from tests.store.samples import OUTBOX, RESULT, RUN, TRIGGER, VAULT, batch, first_batch


@pytest.fixture
def path(tmp_path):
    return tmp_path / "aioflow.db"


@pytest.fixture
def url(path):
    return f"sqlite:///{path}"


@pytest.fixture
async def store(url):
    async with open_store(url, VAULT) as opened:
        await opened.claim()
        yield opened


# ── One daemon for one file ─────────────────────────────────────────────────────────────

HOLDER = """
import sys
from pathlib import Path
from aioflow.store.sqlite.lock import FileLock
lock = FileLock.take(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def _child(code, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


@pytest.fixture
def holder(path):
    """Return another process that holds the lock of the file."""
    process = _child(HOLDER, path)
    assert process.stdout.readline() == b"locked\n"
    yield process
    process.kill()
    process.communicate()


def _through_a_symlink(path):
    alias = path.with_name("alias.db")
    alias.symlink_to(path)
    return alias


def _through_a_hard_link(path):
    alias = path.with_name("alias.db")
    alias.hardlink_to(path)
    return alias


def _through_a_linked_folder(path):
    folder = path.parent.with_name(f"{path.parent.name}-linked")
    folder.symlink_to(path.parent)
    return folder / path.name


@pytest.mark.process
@pytest.mark.parametrize(
    "way",
    [lambda path: path, _through_a_symlink, _through_a_hard_link, _through_a_linked_folder],
    ids=["same", "symlink", "hard-link", "linked-folder"],
)
async def test_the_error_of_a_second_daemon_names_the_one_that_serves_the_file(holder, path, way):
    with pytest.raises(HomeBusy) as refused:
        async with open_store(f"sqlite:///{way(path)}", VAULT):
            pass

    assert refused.value.holder == f"process {holder.pid}"


@pytest.mark.process
async def test_the_lock_of_a_killed_daemon_is_gone(holder, url):
    holder.kill()
    holder.wait()

    async with open_store(url, VAULT) as store:
        assert (await store.claim()).epoch == 1


@pytest.mark.process
async def test_children_do_not_inherit_the_lock(path, url):
    async with open_store(url, VAULT):
        child = _child("import sys; sys.stdin.read()", close_fds=False)
    try:
        FileLock.take(path).release()
    finally:
        child.communicate()


@pytest.mark.process
async def test_a_second_store_of_the_same_process_is_refused_without_harm(store, path, url):
    await store.commit(first_batch())
    with pytest.raises(HomeBusy, match=str(os.getpid())):
        async with open_store(url, VAULT):
            pass

    # SQLite's own lock is still held: another process finds the database in use.
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=0);"
        "c.execute('PRAGMA locking_mode = EXCLUSIVE'); c.execute('BEGIN EXCLUSIVE')"
    )
    assert b"database is locked" in _child(code, path).communicate()[1]


async def test_the_lock_ends_with_the_store(url):
    for epoch in (1, 2):
        async with open_store(url, VAULT) as store:
            assert (await store.claim()).epoch == epoch


# ── Whose file it is ────────────────────────────────────────────────────────────────────


def _foreign_sqlite(path):
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE theirs (a)")


def _foreign_sqlite_in_a_log(path):
    other = path.with_name("other.db")
    with closing(sqlite3.connect(other)) as raw:
        raw.execute("PRAGMA journal_mode = WAL")
        raw.execute("CREATE TABLE theirs (a)")
        for ending in ("", "-wal", "-shm"):
            shutil.copy(f"{other}{ending}", f"{path}{ending}")


FOREIGN = {
    "text": lambda path: path.write_text("dear diary"),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 100),
    "zeroes": lambda path: path.write_bytes(bytes(8192)),
    "sqlite": _foreign_sqlite,
    "sqlite-in-a-log": _foreign_sqlite_in_a_log,
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
async def test_a_foreign_file_is_refused_and_not_touched(path, url, make):
    make(path)
    before = {file: file.read_bytes() for file in path.parent.iterdir()}

    with pytest.raises(ForeignDatabase):
        async with open_store(url, VAULT):
            pass

    assert {file: file.read_bytes() for file in path.parent.iterdir()} == before


@pytest.mark.parametrize("make", list(FOREIGN.values())[:4], ids=list(FOREIGN)[:4])
async def test_a_foreign_file_is_not_read_either(path, url, make):
    make(path)

    with pytest.raises(ForeignDatabase):
        async with open_store(url, VAULT, exclusive=False):
            pass


async def test_a_damaged_file_is_refused(path, url):
    async with open_store(url, VAULT) as store:
        await store.claim()
        await store.commit(first_batch())
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    damaged = path.read_bytes()

    with pytest.raises(ForeignDatabase):
        async with open_store(url, VAULT) as store:
            await load(store)

    assert path.read_bytes()[4096:] == damaged[4096:]


async def test_a_file_signed_by_us_without_our_tables_is_refused(path, url):
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(f"PRAGMA application_id = {database_file.APPLICATION_ID}")
        raw.execute("CREATE TABLE theirs (a)")

    with pytest.raises(ForeignDatabase):
        async with open_store(url, VAULT):
            pass


async def test_an_empty_file_becomes_a_database(path, url):
    path.touch()

    async with open_store(url, VAULT) as store:
        assert (await store.claim()).commit_no == 0


async def test_a_file_whose_signing_was_cut_short_becomes_a_database(path, url):
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(f"PRAGMA application_id = {database_file.APPLICATION_ID}")
    # What a kill leaves before the new database is synced: a journal that states that the file was
    # empty.
    magic, no_pages, sector_size = bytes.fromhex("d9d505f920a163d7"), bytes(12), 512
    head = magic + no_pages + sector_size.to_bytes(4, "big") + (4096).to_bytes(4, "big")
    Path(f"{path}-journal").write_bytes(head.ljust(sector_size, b"\0"))

    for _ in range(2):
        async with open_store(url, VAULT) as store:
            assert (await store.claim()).commit_no == 0


async def test_a_reader_makes_no_file(path, url):
    with pytest.raises(StoreUnavailable):
        async with open_store(url, VAULT, exclusive=False):
            pass

    assert not path.exists()


async def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(StoreUnavailable, match="no/aioflow.db"):
        async with open_store(f"sqlite:///{tmp_path}/no/aioflow.db", VAULT):
            pass


async def test_a_folder_in_place_of_the_file_is_refused(path, url):
    path.mkdir()

    with pytest.raises(StoreUnavailable):
        async with open_store(url, VAULT):
            pass


@pytest.mark.parametrize(
    "url", ["nonsense", "sqlite://", "sqlite:///:memory:", "mysql://host/db"], ids=str
)
async def test_a_url_that_names_no_store_is_refused(url):
    with pytest.raises(SettingsError):
        async with open_store(url, VAULT):
            pass


async def test_without_its_driver_postgresql_is_refused_with_how_to_install_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "aioflow.store.postgres.store", raising=False)
    monkeypatch.setitem(sys.modules, "asyncpg", None)

    with pytest.raises(SettingsError, match=r"pip install 'aioflow-engine\[postgres\]'"):
        async with open_store("postgresql://host/db", VAULT):
            pass


# ── The file while it is open ───────────────────────────────────────────────────────────


def _deleted(path):
    path.unlink()


def _renamed(path):
    path.rename(path.with_name("moved.db"))


def _replaced(path):
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    copy.replace(path)


@pytest.mark.parametrize("loss", [_deleted, _renamed, _replaced])
async def test_a_file_lost_under_the_daemon_is_noticed(store, path, loss):
    await store.commit(first_batch())
    loss(path)
    store._writer._verified_at_us = 0  # as if the second between two looks had passed

    with pytest.raises(StrangeDatabase):
        await store.commit(batch(2))


async def test_a_locked_file_is_unavailable_and_then_is_not(url, path, monkeypatch):
    monkeypatch.setattr(database_file, "BUSY_MS", 10)
    async with open_store(url, VAULT) as store:
        await store.claim()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="locked"):
                await store.commit(first_batch())
            other.execute("ROLLBACK")

        await store.commit(first_batch())

        assert await store.list_runs() == [RUN]


async def test_a_full_disk_is_unavailable_and_work_continues_when_there_is_space(
    store, monkeypatch
):
    await store.commit(first_batch())
    large = batch(2, results=[replace(RESULT, body=b"x" * 10_000_000)])

    def limit(pages):
        return lambda raw: raw.execute(f"PRAGMA max_page_count = {pages}").fetchone()

    await store._writer.run(limit(100))
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=1, f_frsize=4096))
        named = r"the disk of .*\.db is full: 4,096 bytes are free"
        with pytest.raises(StoreUnavailable, match=named):
            await store.commit(large)
    await store._writer.run(limit(1_000_000))
    await store.commit(large)

    assert await compare_with_replay(store) == []


async def test_after_a_write_that_failed_the_file_is_opened_afresh(store):
    await store.commit(first_batch())

    def fail(raw):
        exc = sqlite3.OperationalError("disk I/O error")
        exc.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
        raise exc

    old = store._writer._connection
    with pytest.raises(StoreUnavailable):
        await store._writer.run(fail)
    await store.commit(batch(2, done_outbox=[3]))

    assert store._writer._connection is not old
    assert await compare_with_replay(store) == []


async def test_the_log_stays_short_under_load(store, path):
    wal = Path(f"{path}-wal")
    await store.commit(first_batch())
    longest = 0
    for number in range(2, 120):
        blob = number.to_bytes(2, "big") * 200_000
        await store.commit(batch(number, results=[replace(RESULT, body=blob)]))
        longest = max(longest, wal.stat().st_size)

    assert longest < WAL_BOUND_BYTES // 2
    assert path.stat().st_size > 0


async def test_a_reader_that_holds_the_log_does_not_stop_the_writer(store, path):
    await store.commit(first_batch())
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM run").fetchone()
        for number in range(2, 200):
            blob = number.to_bytes(2, "big") * 200_000
            await store.commit(batch(number, results=[replace(RESULT, body=blob)]))
        held = Path(f"{path}-wal").stat().st_size
        reader.execute("ROLLBACK")
    for number in range(200, 210):
        await store.commit(batch(number))
    await store.checkpoint()
    await store.commit(batch(210))

    assert held > WAL_BOUND_BYTES
    assert Path(f"{path}-wal").stat().st_size < WAL_BOUND_BYTES // 2


async def test_no_plaintext_of_a_sealed_value_is_in_any_file(store, path):
    canary = b"canary-7f3b-sings"
    await store.commit(
        replace(first_batch(), new_triggers=[replace(TRIGGER, kwargs=canary, next_kwargs=canary)])
    )
    await store.commit(batch(2, new_outbox=[replace(OUTBOX, outbox_no=4, body=b"seen-in-file")]))

    content = b"".join(file.read_bytes() for file in path.parent.iterdir())

    assert canary not in content
    assert b"seen-in-file" in content  # so the canary would have been


# ── Crashes ─────────────────────────────────────────────────────────────────────────────

WRITER = """
import asyncio, sys
from aioflow.store import open_store
from tests.store.samples import *

async def main():
    async with open_store(sys.argv[1], VAULT) as store:
        claim = await store.claim()
        if claim.commit_no == 0:
            await store.commit(first_batch())
        number = max(claim.commit_no, 1)
        while True:
            number += 1
            first = 1000 * number
            tasks = [msgspec.structs.replace(TASK, task_no=first + i) for i in range(300)]
            await store.commit(batch(number, new_tasks=tasks))
            print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.process
async def test_a_daemon_killed_while_it_commits_leaves_whole_batches(url):
    acknowledged = 0
    for lines in (1, 3, 7):
        process = _child(WRITER, url, cwd=Path(__file__).parents[2])
        for _ in range(lines):
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()  # what is buffered `communicate` passes over
        process.communicate()
        acknowledged = int(rest[-1]) if rest else acknowledged

        async with open_store(url, VAULT) as store:
            commit_no = (await store.claim()).commit_no
            counted = await store.count_states(1)
            assert commit_no in {acknowledged, acknowledged + 1}
            assert counted == [(0, TaskState.RUNNING, 1 + 300 * (commit_no - 1))]
            assert await compare_with_replay(store) == []


MIGRATOR = """
import os, sqlite3, sys
from pathlib import Path
from aioflow.store.sqlite import database_file
from aioflow.store.sqlite.lock import FileLock

stop_at = int(sys.argv[2])
seen = 0

def die(statement):
    global seen
    seen += 1
    if seen == stop_at:
        os.kill(os.getpid(), 9)

real = database_file._connect

def connect(path, *pragmas, **options):
    raw = real(path, *pragmas, **options)
    raw.set_trace_callback(die)
    return raw

database_file._connect = connect
path = Path(sys.argv[1])
database_file.prepare_file(path, FileLock.take(path))
print(seen)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "shares",
    [
        pytest.param((0.5, 1.0), id="sampled"),
        pytest.param((0.0, 0.05, 0.1, 0.2, 0.9), id="more", marks=pytest.mark.nightly),
    ],
)
async def test_a_daemon_killed_while_it_makes_the_tables_can_start_again(tmp_path, shares):
    def make(name, stop_at):
        return subprocess.run(
            [sys.executable, "-c", MIGRATOR, tmp_path / name, str(stop_at)], capture_output=True
        )

    statements = int(make("whole.db", -1).stdout)
    assert statements > 10
    for stop_at in {1 + round(share * (statements - 1)) for share in shares}:
        killed = make(f"{stop_at}.db", stop_at)
        assert killed.returncode == -signal.SIGKILL
        async with open_store(f"sqlite:///{tmp_path}/{stop_at}.db", VAULT) as store:
            assert (await store.claim()).commit_no == 0


# ── The schema ──────────────────────────────────────────────────────────────────────────


def test_an_empty_file_gets_at_once_what_all_revisions_make(tmp_path, monkeypatch):
    made = _dump_of_new(tmp_path / "made.db")
    monkeypatch.setattr(database_file, "_is_empty", lambda raw: False)
    migrated = _dump_of_new(tmp_path / "migrated.db")

    assert _without_layout(made) == _without_layout(migrated)


def _without_layout(dump: list[str]) -> list[str]:
    return sorted(re.sub(r"\s+", "", statement) for statement in dump)


def _dump_of_new(path: Path) -> list[str]:
    database_file.prepare_file(path, lock := FileLock.take(path))
    lock.release()
    with closing(sqlite3.connect(path)) as raw:
        return list(raw.iterdump())


async def test_the_revisions_lead_to_the_declared_tables(path, url, tmp_path):
    async with open_store(url, VAULT):
        pass
    declared = tmp_path / "declared.db"
    engine = sqlalchemy.create_engine(f"sqlite:///{declared}")
    tables.metadata.create_all(engine)
    engine.dispose()

    assert _schema(path) == _schema(declared)


def _schema(path):
    with closing(sqlite3.connect(path)) as raw:
        rows = raw.execute("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'alembic%'")
        return {
            name: sql and " ".join(sql.split())
            for name, sql in rows
            if not name.startswith("sqlite_autoindex_alembic")
        }


async def test_a_reader_does_not_migrate_an_older_schema(path, url, monkeypatch):
    async with open_store(url, VAULT):
        pass
    monkeypatch.setattr("aioflow.store.tables.HEAD_REVISION", "9999")

    with pytest.raises(SchemaMismatch):
        async with open_store(url, VAULT, exclusive=False):
            pass


@pytest.mark.process
def test_neither_an_empty_nor_a_current_database_needs_alembic(url):
    code = (
        "import asyncio, sys\n"
        "from aioflow.store import open_store\n"
        "from aioflow.crypto import Vault\n"
        "async def main():\n"
        "    async with open_store(sys.argv[1], Vault([bytes(32)])): pass\n"
        "asyncio.run(main())\n"
        "print('alembic' in sys.modules, 'asyncpg' in sys.modules)\n"
    )

    def run():
        return subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True)

    first, second = run(), run()

    assert first.stdout == "False False\n", first.stderr
    assert second.stdout == "False False\n", second.stderr


def test_a_file_lock_notices_that_it_holds_another_file(path):
    lock = FileLock.take(path)
    path.unlink()
    path.touch()

    with pytest.raises(StrangeDatabase):
        lock.verify()

    lock.release()


def test_a_file_that_grows_while_two_threads_verify_it_was_not_cut(path):
    lock = FileLock.take(path)

    class Overtaken(PosixPath):
        """A path whose file grows, in another thread, right after its size was read."""

        def stat(self, *, follow_symlinks=True):
            measured = super().stat(follow_symlinks=follow_symlinks)
            lock.path = path
            path.write_bytes(b"larger")
            lock.verify()
            return measured

    lock.path = Overtaken(path)

    lock.verify()

    path.write_bytes(b"less")
    with pytest.raises(StrangeDatabase, match="was cut"):
        lock.verify()
    lock.release()


async def test_tasks_of_live_runs_are_found_without_reading_all(store):
    """Check the query plan, because the cost of a scan shows only after months of history."""
    from aioflow.store import selects
    from aioflow.store.changes import SQLITE, compiled

    def plan(raw):
        return [
            row[3]
            for statement in (selects.LIVE_TASKS, selects.LIVE_WIDTHS, selects.LIVE_EXPANSIONS)
            for row in raw.execute("EXPLAIN QUERY PLAN " + compiled(statement, SQLITE).sql)
        ]

    steps = await store._writer.run(plan)

    scanned = {step for step in steps if step.startswith("SCAN")}
    assert scanned == {"SCAN run USING INDEX run_live"}
