"""Rows that refer to a missing row are found, for every foreign key."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from sqlalchemy.engine import make_url

from aioflow.store import open_store, tables
from tests.store.samples import VAULT, execute, first_batch

_FOREIGN_KEYS = [
    (table.name, column.name, key.column.table.name)
    for table in tables.metadata.sorted_tables
    for column in table.columns
    for key in column.foreign_keys
]


async def test_a_whole_database_has_no_dangling_row(store):
    await store.commit(first_batch())

    assert await store.find_dangling() == []


@pytest.mark.parametrize(("table", "column", "referred"), _FOREIGN_KEYS)
async def test_a_row_whose_referred_row_is_gone_is_named(store, store_url, table, column, referred):
    await store.commit(first_batch())
    _fill(store_url, table)
    _execute(store_url, f"DELETE FROM {referred}")

    found = await store.find_dangling()

    named = [one for one in found if (one.table, one.column) == (table, column)]
    assert named, found
    assert f"no row of table {referred} has this " in str(named[0])
    assert str(named[0]).startswith(f"damaged: table {table}, row ")
    assert {one.table for one in found} == {
        child
        for child, _, parent in _FOREIGN_KEYS
        if parent == referred and await _has_rows(store, child)
    }


async def test_the_same_rows_are_found_as_by_sqlite(migrated_sqlite_url):
    async with open_store(migrated_sqlite_url, VAULT) as store:
        await store.claim()
        await store.commit(first_batch())
        for table, _, _ in _FOREIGN_KEYS:
            _fill(migrated_sqlite_url, table)
        for referred in ("version", "run", "task", "dag_trigger"):
            _execute(migrated_sqlite_url, f"DELETE FROM {referred}")
        dangling = await store.find_dangling()

    with closing(sqlite3.connect(str(make_url(migrated_sqlite_url).database))) as raw:
        expected = [(row[0], row[2]) for row in raw.execute("PRAGMA foreign_key_check")]
    found = [
        (one.table, parent)
        for one in dangling
        for child, column, parent in _FOREIGN_KEYS
        if (one.table, one.column) == (child, column)
    ]
    assert expected
    assert sorted(found) == sorted(expected)


async def test_no_more_than_a_hundred_rows_of_a_foreign_key_are_named(store, store_url):
    await store.commit(first_batch())
    for ordinal in range(100, 220):
        _execute(store_url, _record(ordinal))
    _execute(store_url, "DELETE FROM task")

    found = await store.find_dangling()

    assert len([one for one in found if one.table == "record"]) == 100


async def _has_rows(store, table):
    [rows] = await store.scan([tables.metadata.tables[table]])
    return bool(rows)


def _record(ordinal):
    return (
        "INSERT INTO record (task_no, ordinal, run_no, state, kind, name, source_location) "
        f"VALUES (10, {ordinal}, 1, 0, 'step', 'n', 'p')"
    )


_ROWS = {
    "record": _record(99),
    "clear_request": "INSERT INTO clear_request VALUES (1, 'a key', 1)",
    "dag_event": (
        "INSERT INTO dag_event (event_no, trigger_no, sequence, at, outcome) "
        "VALUES (1, 71, 1, 0, 0)"
    ),
}
"""Rows that are missing in the sample batch."""


def _fill(url, table):
    if table in _ROWS:
        _execute(url, _ROWS[table])


def _execute(url, statement):
    """Run a statement without foreign key checks, as a manual repair may do."""
    is_sqlite = make_url(url).get_backend_name() == "sqlite"  # there it is the default
    execute(url, statement if is_sqlite else f"SET session_replication_role = replica; {statement}")
