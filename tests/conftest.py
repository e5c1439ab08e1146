"""Fixtures and options for all tests: event loops, both databases, a private PostgreSQL."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import looptime
import pytest
import uvloop
from hypothesis import settings
from sqlalchemy.engine import URL

from aioflow.store.postgres import schema
from aioflow.store.sqlite import database_file
from aioflow.store.sqlite.lock import FileLock
from aioflow.telemetry.log import _rich_only_on_a_terminal
from tests.cpu_budget import CpuBudget
from tests.databases import in_thread, temporary_database
from tests.distribution import Distribution
from tests.postgres_reset import ResettableDatabase
from tests.postgres_server import PostgresServer, watch

pytest_plugins = ("pytester",)

# With Rich, structlog renders the variables of every frame of a traceback, which takes a second per
# traceback.
with _rich_only_on_a_terminal():
    import structlog  # noqa: F401

# A shell ignores SIGINT in background jobs. Restore it, because child processes would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

PG_URL = os.environ.get("AIOFLOW_TEST_PG_URL")  # use this server instead of a private one
PG_HOME = "AIOFLOW_TEST_PG_HOME"  # tells the xdist workers where this session has its server
PG_OWNER = pytest.StashKey[int]()

# Failing examples are stored in the checkout, unless it is not writable.
REMEMBER = settings().database if os.access(Path(__file__).parents[1], os.W_OK) else None
settings.register_profile("default", deadline=None, database=REMEMBER)
settings.register_profile("ci", deadline=None, database=None, derandomize=True, print_blob=True)
settings.register_profile("campaign", deadline=None, database=REMEMBER, max_examples=10_000)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default")
)


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
    "virtual": looptime.new_event_loop,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--loops",
        default="uvloop",
        help="event loops for async tests, comma-separated: uvloop (the one the daemon uses), "
        "asyncio",
    )
    parser.addoption(
        "--cpu-report",
        metavar="FILE",
        help="write one JSON line per test case with its CPU seconds",
    )


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every async test on the event loops named by ``--loops``.

    ``@pytest.mark.asyncio(loop_factories=["uvloop"])`` runs a test on that loop only, and
    ``["virtual"]`` on a loop whose clock jumps to the next timer as soon as all tasks wait.
    """
    marker = item.get_closest_marker("asyncio")
    if marker is not None and "loop_factories" in marker.kwargs:
        return LOOPS
    return {name: LOOPS[name] for name in config.getoption("--loops").split(",")}


# One PostgreSQL per session, shared by all xdist workers, started by the first test that needs it.
#
# The pytest controller creates the folder and holds a lock on it. A watcher waits for that lock,
# then stops the server and removes the folder, even after kill -9.


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuBudget(config))
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(Distribution())
    if not hasattr(config, "workerinput"):
        # Not in TMPDIR, because the path of a socket must be short. mkdtemp creates a folder that
        # only this user can access.
        home = tempfile.mkdtemp(prefix="aioflow-pg-", dir="/tmp")
        config.stash[PG_OWNER] = os.open(home, os.O_RDONLY)
        fcntl.flock(config.stash[PG_OWNER], fcntl.LOCK_EX)
        os.environ[PG_HOME] = home


def pytest_unconfigure(config: pytest.Config) -> None:
    if PG_OWNER in config.stash:
        home = Path(os.environ.pop(PG_HOME))
        if not (home / "data").exists():
            shutil.rmtree(home)
        os.close(config.stash[PG_OWNER])


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """Return the URL of a server on which databases can be created."""
    if PG_URL:
        return PG_URL
    home = Path(os.environ[PG_HOME])
    with (home / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "started").exists():
            watch(home)
            PostgresServer(home).start()
            (home / "started").touch()
    return PostgresServer(home).url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """Return the URL of an empty database that exists for the duration of the test."""
    with temporary_database(postgres_server) as url:
        yield url.render_as_string(hide_password=False)


# Migrating an empty database takes longer than most tests that use it, so it is done once.


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with the schema and no rows, to be copied."""
    path = tmp_path_factory.mktemp("migrated") / "aioflow.db"
    lock = FileLock.take(path)
    database_file.prepare_file(path, lock)
    lock.release()
    return path


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: str) -> Iterator[URL]:
    """Return the URL of a database with the schema and no rows, to be copied.

    No connection to it may be open while it is copied.
    """
    with temporary_database(postgres_server) as url:
        in_thread(schema.prepare_database(url, migrate=True))
        yield url


@pytest.fixture(scope="session")
def resettable_postgres(
    postgres_server: str, migrated_postgres: URL
) -> Iterator[Callable[[], str]]:
    """Return a function that resets this worker's database to its initial state."""
    with ExitStack() as databases:

        def create() -> ResettableDatabase:
            url = databases.enter_context(temporary_database(postgres_server, migrated_postgres))
            database = ResettableDatabase(url.render_as_string(hide_password=False))
            return databases.enter_context(database)

        database = create()

        def reset() -> str:
            nonlocal database
            if database.has_its_shape():
                database.reset()
            else:
                databases.close()
                database = create()
            return database.url

        yield reset


@pytest.fixture
def migrated_postgres_url(resettable_postgres: Callable[[], str]) -> str:
    """Return the URL of a database with the schema and no rows."""
    return resettable_postgres()


@pytest.fixture
def migrated_sqlite_url(migrated_sqlite: Path, tmp_path: Path) -> str:
    """Return the URL of a database file with the schema and no rows."""
    path = tmp_path / "aioflow.db"
    shutil.copy(migrated_sqlite, path)
    return f"sqlite:///{path}"


# tests/store tests the behaviour of every store on both databases. Code above the store is tested
# on PostgreSQL only at night.


@pytest.fixture(
    params=("sqlite", pytest.param("postgres", marks=(pytest.mark.postgres, pytest.mark.nightly)))
)
def store_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a migrated database without rows."""
    url: str = request.getfixturevalue(f"migrated_{request.param}_url")
    return url


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """Run an S3 server. Yield its URL."""
    from moto.server import ThreadedMotoServer  # slow to import

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells of every request
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()
