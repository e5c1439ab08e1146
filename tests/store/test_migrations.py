"""An older database is migrated to the newest revision, and its rows are retained."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import sqlalchemy
from sqlalchemy.engine import make_url
from sqlalchemy.schema import CreateIndex, CreateTable

from aioflow.errors import SchemaMismatch
from aioflow.store import open_store, tables
from tests.store.samples import VAULT, execute

HEAD, LATER = tables.HEAD_REVISION, f"{int(tables.HEAD_REVISION) + 1:04}"

NEXT = f"""
from alembic import op
from sqlalchemy import Column, Integer

revision, down_revision, branch_labels, depends_on = "{LATER}", "{HEAD}", None, None

def upgrade():
    op.add_column("pool", Column("colour", Integer(), nullable=False, server_default="7"))
"""


def rows(url: str, statement: str) -> Sequence[Sequence[Any]]:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(str(parsed.database))) as raw:
            return raw.execute(statement).fetchall()

    async def fetch() -> Sequence[Sequence[Any]]:
        connection = await asyncpg.connect(url)
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:  # the thread of the test has a loop already
        return thread.submit(asyncio.run, fetch()).result()


@pytest.fixture
async def older_url(empty_store_url, tmp_path, monkeypatch):
    """Return a database with one pool, at the newest revision. The program expects a later one."""
    async with open_store(empty_store_url, VAULT):
        pass
    execute(empty_store_url, "INSERT INTO pool VALUES ('gpu', 2, 0)")
    scripts = tmp_path / "migrations"
    shutil.copytree(Path(tables.__file__).parent / "migrations", scripts)
    (scripts / "versions" / f"r{LATER}_colour.py").write_text(NEXT)
    monkeypatch.setattr(tables, "_MIGRATIONS", scripts)
    monkeypatch.setattr(tables, "HEAD_REVISION", LATER)
    return empty_store_url


async def test_an_older_database_is_migrated_and_keeps_its_rows(older_url):
    async with open_store(older_url, VAULT, migrate=True):
        pass

    assert rows(older_url, "SELECT name, slots, colour FROM pool WHERE name = 'gpu'") == [
        ("gpu", 2, 7)
    ]


async def test_a_database_is_migrated_once(older_url):
    for _ in range(2):
        async with open_store(older_url, VAULT, migrate=True):
            pass

    assert rows(older_url, "SELECT version_num FROM alembic_version") == [(LATER,)]


async def test_a_migration_that_fails_changes_nothing(older_url):
    broken = tables._MIGRATIONS / "versions" / f"r{LATER}_colour.py"
    broken.write_text(NEXT + "    op.execute('DELETE FROM no_such_table')\n")

    with pytest.raises(Exception, match="no_such_table"):
        async with open_store(older_url, VAULT, migrate=True):
            pass

    assert rows(older_url, "SELECT version_num FROM alembic_version") == [(HEAD,)]
    assert rows(older_url, "SELECT * FROM pool WHERE name = 'gpu'") == [("gpu", 2, 0)]


async def test_a_database_of_a_later_revision_is_refused(older_url, monkeypatch):
    async with open_store(older_url, VAULT, migrate=True):
        pass
    monkeypatch.undo()

    with pytest.raises(SchemaMismatch, match=f"has schema {LATER}, this aioflow knows {HEAD}"):
        async with open_store(older_url, VAULT, migrate=True):
            pass


def with_added_columns(statements: Sequence[str]) -> set[str]:
    """Return the statements that create tables and indexes, with the columns added later."""
    created = {
        " ".join(statement.split())
        for statement in statements
        if statement.startswith(("CREATE TABLE", "CREATE INDEX", "CREATE UNIQUE"))
    }
    for statement in statements:
        renamed = re.fullmatch(r"ALTER TABLE (\w+) RENAME COLUMN (\w+) TO (\w+)", statement)
        if renamed is not None:
            (table,) = (one for one in created if one.startswith(f"CREATE TABLE {renamed[1]} ("))
            created.remove(table)
            created.add(re.sub(rf"\b{renamed[2]}\b", renamed[3], table))
        added = re.fullmatch(r"ALTER TABLE (\w+) ADD COLUMN (.+)", statement)
        if added is not None:
            (table,) = (one for one in created if one.startswith(f"CREATE TABLE {added[1]} ("))
            created.remove(table)
            created.add(re.sub(", (PRIMARY|FOREIGN|CHECK)", rf", {added[2]}, \1", table, count=1))
    return created


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_the_scripts_create_the_declared_tables(name):
    assert tables.account.metadata is tables.metadata
    dialect = sqlalchemy.create_mock_engine(f"{name}://", print).dialect
    all_tables = tables.metadata.tables.values()
    indexes = [index for table in all_tables for index in table.indexes]
    declared = [
        *(str(CreateTable(table).compile(dialect=dialect)) for table in all_tables),
        *(str(CreateIndex(index).compile(dialect=dialect)) for index in indexes),
    ]

    written = with_added_columns(tables.all_statements(name))
    assert {" ".join(ddl.split()) for ddl in declared} == written
