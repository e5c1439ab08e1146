"""A connection runs whole functions in its own thread, in order, and ends it on closing."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import weakref
from contextlib import asynccontextmanager

import pytest

from aioflow.store.sqlite import connection as connection_module
from aioflow.store.sqlite.connection import ThreadedConnection, open_threaded


def _connected():
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


@asynccontextmanager
async def opened(tmp_path):
    connection = await open_threaded(_connected, tmp_path)
    try:
        yield connection
    finally:
        await connection.close()


async def test_functions_run_in_one_thread_that_is_not_the_callers(tmp_path):
    async with opened(tmp_path) as connection:
        ran_in = {await connection.run(lambda _: threading.get_ident()) for _ in range(5)}
        [row] = await connection.run(lambda raw: raw.execute("SELECT 7").fetchall())

    assert len(ran_in) == 1
    assert threading.get_ident() not in ran_in
    assert row == (7,)


async def test_an_error_is_raised_where_the_result_is_awaited(tmp_path):
    async with opened(tmp_path) as connection:
        with pytest.raises(sqlite3.OperationalError, match="nothing"):
            await connection.run(lambda raw: raw.execute("SELECT * FROM nothing"))
        assert await connection.run(lambda _: "it goes on") == "it goes on"


async def test_a_function_runs_to_its_end_if_its_waiter_is_cancelled(tmp_path):
    may_end = threading.Event()
    done = []

    def begun(_):
        assert may_end.wait(30)
        done.append("begun")

    async with opened(tmp_path) as connection:
        waiting = [
            asyncio.ensure_future(connection.run(begun)),
            asyncio.ensure_future(connection.run(lambda _: done.append("queued"))),
        ]
        await asyncio.sleep(0)
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        may_end.set()
        await connection.run(lambda _: done.append("last"))

    assert done == ["begun", "queued", "last"]


async def test_a_statement_that_runs_can_be_interrupted(tmp_path):
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    )
    begun = threading.Event()

    def count(raw):
        raw.set_progress_handler(begun.set, 1000)
        raw.execute(endless).fetchall()

    async with opened(tmp_path) as connection:
        waiting = asyncio.ensure_future(connection.run(count))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        connection.interrupt()
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            await waiting


async def test_a_closed_connection_has_no_thread_and_says_so(tmp_path):
    async with opened(tmp_path) as connection:
        thread = await connection.run(lambda _: threading.current_thread())
    await connection.close()  # again: nothing happens

    with pytest.raises(ValueError, match="closed"):
        await connection.run(lambda _: None)
    await asyncio.get_running_loop().run_in_executor(None, thread.join, 30)
    assert not thread.is_alive()


async def test_a_result_is_not_held_by_the_thread(tmp_path):
    class Result:
        pass

    async with opened(tmp_path) as connection:
        result = await connection.run(lambda _: Result())
        held = weakref.ref(result)
        del result
        for _ in range(1000):
            if held() is None:
                break
            await asyncio.sleep(0.001)
        assert held() is None


async def test_a_connection_without_a_thread_is_closed(tmp_path, monkeypatch):
    raw = _connected()

    class Refused:
        def __init__(self, **_):
            pass

        def start(self):
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(connection_module, "Thread", Refused)
    with pytest.raises(RuntimeError, match="new thread"):
        await open_threaded(lambda: raw, tmp_path)

    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        raw.execute("SELECT 1")
    monkeypatch.undo()
    await ThreadedConnection(_connected()).close()
