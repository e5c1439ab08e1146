"""Test databases: which databases a test runs on, and the creation of temporary ones."""

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
"""Runs the test on PostgreSQL even in ``make test``, for cases that no test of the store covers."""


@contextmanager
def temporary_database(server: str, made_of: URL | None = None) -> Iterator[URL]:
    """Create a database on a PostgreSQL server for the duration of the block.

    Args:
        made_of: The database to copy. No connection to it may be open.
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
                except asyncpg.ObjectInUseError:  # a closed connection lingers
                    if time.monotonic() > until:
                        raise
                    await asyncio.sleep(0.1)
        finally:
            await connection.close()

    in_thread(execute())


def in_thread(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end in a thread, because this thread may already run an event loop."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()
