"""Cases that only a database server has: it becomes unavailable, or its last reply is lost."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import anyio
import pytest
from sqlalchemy.engine import make_url

from aioflow.errors import ForeignDatabase, SchemaMismatch, StoreUnavailable
from aioflow.store import open_store
from aioflow.store.postgres.store import PostgresStore
from tests.journal_replay import compare_with_replay
from tests.store.samples import RUN, VAULT, batch, execute, first_batch

pytestmark = pytest.mark.postgres

CUT = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)

TIME_LIMITS = ("statement_timeout", "idle_in_transaction_session_timeout")


@pytest.fixture
async def store(postgres_url):
    async with open_store(postgres_url, VAULT) as opened:
        await opened.claim()
        yield opened


async def test_a_lost_connection_is_unavailable_and_the_same_batch_goes_in_after(
    store, postgres_url
):
    await store.commit(first_batch())
    execute(postgres_url, CUT)

    with pytest.raises(StoreUnavailable):
        await store.commit(batch(2, done_outbox=[3]))
    await store.commit(batch(2, done_outbox=[3]))

    assert await compare_with_replay(store) == []


async def test_readers_come_back_after_a_lost_connection(store, postgres_url):
    await store.commit(first_batch())
    execute(postgres_url, CUT)

    with pytest.raises(StoreUnavailable):
        await store.list_runs()
    assert await store.list_runs() == [RUN]


async def test_a_server_that_is_not_there_is_unavailable(tmp_path):
    with pytest.raises(StoreUnavailable):
        async with open_store(f"postgresql://postgres@/none?host={tmp_path}", VAULT):
            pass


async def test_a_password_is_not_told(tmp_path):
    with pytest.raises(StoreUnavailable) as refused:
        async with open_store(f"postgresql://me:hunter2@/none?host={tmp_path}", VAULT):
            pass

    assert "hunter2" not in str(refused.value)


async def test_a_database_that_does_not_exist_is_named(postgres_server):
    url = make_url(postgres_server).set(database="nowhere")
    with pytest.raises(StoreUnavailable, match="nowhere"):
        async with open_store(url.render_as_string(hide_password=False), VAULT):
            pass


async def test_a_foreign_database_is_refused_and_not_touched(postgres_url):
    execute(postgres_url, "CREATE TABLE theirs (a int)")

    for exclusive in (True, False):
        with pytest.raises(ForeignDatabase):
            async with open_store(postgres_url, VAULT, exclusive=exclusive, migrate=True):
                pass
    execute(postgres_url, "DROP TABLE theirs")
    async with open_store(postgres_url, VAULT) as store:
        assert (await store.claim()).epoch == 1


async def test_a_reader_makes_no_tables(postgres_url):
    with pytest.raises(ForeignDatabase):
        async with open_store(postgres_url, VAULT, exclusive=False):
            pass

    execute(postgres_url, "CREATE TABLE meta (only_one int)")


async def test_an_older_schema_waits_for_the_word(postgres_url, monkeypatch):
    async with open_store(postgres_url, VAULT):
        pass
    monkeypatch.setattr("aioflow.store.tables.HEAD_REVISION", "9999")

    with pytest.raises(SchemaMismatch, match="db migrate"):
        async with open_store(postgres_url, VAULT):
            pass


async def test_two_nodes_that_meet_an_empty_database_make_one_schema(postgres_url):
    epochs = []

    async def start():
        async with open_store(postgres_url, VAULT) as store:
            epochs.append((await store.claim()).epoch)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(start)

    assert sorted(epochs) == [1, 2, 3]


async def test_a_reader_cannot_write_even_if_it_tried(store, postgres_url):
    async with open_store(postgres_url, VAULT, exclusive=False) as reader:
        with pytest.raises(StoreUnavailable, match="read-only"):
            await cast(PostgresStore, reader)._fetch([("DELETE FROM run RETURNING run_no", ())])


async def test_no_session_may_hold_up_the_server_without_end(store):
    """The server aborts a statement that takes too long, and a transaction that is idle."""
    limits = [f"current_setting('{name}')" for name in TIME_LIMITS]
    query = f"SELECT {', '.join(limits)}"
    postgres = cast(PostgresStore, store)
    async with postgres._writing().transaction() as connection:
        (written,) = await connection.fetch(query)
    ((read,),) = await postgres._fetch([(query, ())])

    assert "0" not in tuple(written)
    assert "0" not in tuple(read)


# ── The lost reply ──────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _proxy(folder: Path, server: Path, *, lose: list[bytes]) -> AsyncIterator[None]:
    """Relay both directions. Cut the connection instead of relaying a reply in ``lose``.

    The server has sent a lost reply, so its statement has taken effect.
    """

    async def serve(client):
        upstream = await anyio.connect_unix(server / ".s.PGSQL.5432")
        async with client, upstream, anyio.create_task_group() as both:
            both.start_soon(pass_on, client, upstream, [])
            await pass_on(upstream, client, lose)
            both.cancel_scope.cancel()

    async def pass_on(source, target, lost):
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for data in source:
                if lost and lost[0] in data:
                    lost.clear()
                    return
                await target.send(data)
            await target.aclose()

    async with (
        await anyio.create_unix_listener(folder / ".s.PGSQL.5432") as listener,
        anyio.create_task_group() as serving,
    ):
        serving.start_soon(listener.serve, serve)
        yield
        serving.cancel_scope.cancel()


async def test_a_commit_whose_reply_was_lost_is_not_applied_again(postgres_url, short_folder):
    server = Path(str(make_url(postgres_url).query["host"]))
    lose: list[bytes] = []
    async with _proxy(short_folder, server, lose=lose):
        url = make_url(postgres_url).update_query_dict({"host": str(short_folder)})
        async with open_store(url.render_as_string(hide_password=False), VAULT) as store:
            await store.claim()
            await store.commit(first_batch())
            lose.append(b"COMMIT\0")  # the tag of the reply
            with pytest.raises(StoreUnavailable):
                await store.commit(batch(2, done_outbox=[3]))
            assert not lose

            journal = [row.commit_no for row in await store.read_journal()]
            await store.commit(batch(2, done_outbox=[3]))

            assert journal == [1, 2]  # it had been applied
            assert await compare_with_replay(store) == []


@pytest.fixture
def short_folder():
    """Return a folder whose path is short enough for a socket below it."""
    with tempfile.TemporaryDirectory(prefix="af-", dir="/tmp") as folder:
        yield Path(folder)
