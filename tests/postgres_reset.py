"""A migrated PostgreSQL database that is reset between tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from graphlib import TopologicalSorter
from typing import Any, Self, TypeVar

import asyncpg

__all__ = ("ResettableDatabase",)

Result = TypeVar("Result")

_TABLES = "SELECT format('%I', tablename) FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
_REFERENCES = """
SELECT conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint
WHERE contype = 'f' AND conrelid <> confrelid AND connamespace = 'public'::regnamespace
"""
_SHAPE = """
SELECT md5(string_agg(line, E'\\n' ORDER BY line)) FROM (
    SELECT format('%s %s %s %s %s', c.relname, c.relkind, a.attname, a.atttypid, a.attnotnull)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0
    UNION ALL
    SELECT format('%s %s', tablename, attname) FROM pg_stats WHERE schemaname = 'public'
    UNION ALL
    SELECT pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace
) AS shape (line)
"""
_SEQUENCES = "SELECT sequencename FROM pg_sequences WHERE schemaname = 'public'"
_CUT_OTHERS = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class ResettableDatabase:
    """Records the state of the database when the block is entered, and can restore its rows.

    The server needs 36 ms to create a database from a template, but only 5 ms to delete some rows.
    Only rows are restored: ``has_its_shape`` tells whether a test has changed anything else.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._thread = ThreadPoolExecutor(1)  # the thread of the test has its own event loop
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._connection = self._run(asyncpg.connect(self.url))
        self._tables = self._referring_first()
        self._sequences = [name for (name,) in self._fetch(_SEQUENCES)]
        self._shape = self._fetch(_SHAPE)
        self._rows = {
            table: [tuple(row) for row in self._fetch(f"SELECT * FROM {table}")]
            for table in self._filled()
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._connection.close())
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    def has_its_shape(self) -> bool:
        """Return whether tables, columns, constraints and planner statistics are unchanged."""
        return self._fetch(_SHAPE) == self._shape

    def reset(self) -> None:
        """Close all other connections and restore the initial rows."""
        self._fetch(_CUT_OTHERS)
        if filled := self._filled():
            self._run(self._connection.execute("; ".join(f"DELETE FROM {t}" for t in filled)))
        for sequence in self._sequences:
            self._fetch(f"SELECT setval('{sequence}', 1, false)")
        for table, rows in self._rows.items():
            self._run(self._connection.copy_records_to_table(table, records=rows))

    def _referring_first(self) -> list[str]:
        order = TopologicalSorter[str]({name: () for (name,) in self._fetch(_TABLES)})
        for referring, referred in self._fetch(_REFERENCES):
            order.add(referred, referring)
        return list(order.static_order())

    def _filled(self) -> list[str]:
        probes = " UNION ALL ".join(f"SELECT EXISTS (SELECT FROM {t})" for t in self._tables)
        found = [has_rows for (has_rows,) in self._fetch(probes)]
        return [t for t, has_rows in zip(self._tables, found, strict=True) if has_rows]

    def _fetch(self, sql: str) -> list[asyncpg.Record]:
        return self._run(self._connection.fetch(sql))

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._thread.submit(self._runner.run, work).result()
