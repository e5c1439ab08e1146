"""Which databases a test of what stands on a store runs on, and how a new one is made."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest
from sqlalchemy.engine import URL, make_url

__all__ = ("DATABASES", "in_thread", "on_both_databases", "temporary_database")

DATABASES = ("sqlite", pytest.param("postgres", marks=pytest.mark.postgres))

on_both_databases = pytest.mark.parametrize("store_url", DATABASES, indirect=True)
"""The test runs on PostgreSQL in ``make test``, too: no test of the store itself asks the same."""


@contextmanager
def temporary_database(server: str, made_of: URL | None = None) -> Iterator[URL]:
    """Give a database of a PostgreSQL server for as long as the block lasts.

    Args:
        made_of: The one that it is a copy of; no connection to it may stay open.
    """
    name = f"test_{uuid.uuid4().hex}"
    template = "" if made_of is None else f"TEMPLATE {made_of.database}"
    _execute(server, f"CREATE DATABASE {name} {template}")
    try:
        yield make_url(server).set(database=name)
    finally:
        _execute(server, f"DROP DATABASE {name} WITH (FORCE)")


def _execute(url: str, statement: str) -> None:
    async def execute() -> None:
        connection = await asyncpg.connect(url)
        until = time.monotonic() + 60
        try:
            while True:
                try:
                    await connection.execute(statement)
                    return
                except asyncpg.ObjectInUseError:  # a client that leaves is not gone yet
                    if time.monotonic() > until:
                        raise
                    await asyncio.sleep(0.1)
        finally:
            await connection.close()

    in_thread(execute())


def in_thread(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end; the test's own thread may have a loop already."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()
