"""The PostgreSQL server of the failover demo. It runs in a folder, and has only a Unix socket."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aioflow.errors import SettingsError

__all__ = ("SOCKET", "find_binaries", "local_postgres", "server_account")

SOCKET = ".s.PGSQL.5432"
"""Name of the socket in the folder of the server. Clients expect this name."""

_NEEDED = ("initdb", "pg_ctl", "postgres")
_PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)
_OLDEST = 14
_UNPRIVILEGED = "nobody"  # initdb demands an account that has a name
_START_SECONDS = 60


def find_binaries(given: Path | None = None) -> Path:
    """Return the folder of PostgreSQL's programs: the given one, or else the newest.

    Raises:
        SettingsError: If there is none.
    """
    if given is not None:
        if not _has_all(given):
            raise SettingsError(f"{given} has no {', '.join(_NEEDED)}")
        return given
    found = [path for place in _PLACES for path in Path("/").glob(place[1:]) if _has_all(path)]
    on_path = shutil.which("pg_ctl")
    if on_path is not None and _has_all(folder := Path(on_path).resolve().parent):
        found.append(folder)
    if not found:
        raise SettingsError(
            "this demo needs the programs of PostgreSQL, which were not found; install them "
            "(Debian, Ubuntu: apt install postgresql; Fedora: dnf install postgresql-server; "
            "macOS: brew install postgresql), or name their folder with --postgres"
        )
    return max(found, key=_version)


def _has_all(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in _NEEDED)


def _version(folder: Path) -> int:
    """Return the major version of a PostgreSQL installation."""
    done = subprocess.run(
        [folder / "postgres", "--version"], capture_output=True, text=True, check=False
    )
    number = done.stdout.rpartition(") ")[2].strip().split(".")[0]
    return int(number) if number.isdecimal() else 0


@contextmanager
def local_postgres(binaries: Path, home: Path) -> Iterator[str]:
    """Run a server in a folder, and yield the URL of its database. It is stopped at the end.

    The path of the folder must be short, because the path of a socket is. PostgreSQL refuses to run
    as root. In that case it is run as an unprivileged user.

    Raises:
        SettingsError: If the server cannot be started.
    """
    if (version := _version(binaries)) < _OLDEST:
        raise SettingsError(f"{binaries} is version {version}; PostgreSQL {_OLDEST} is needed")
    data, account = home / "data", server_account()
    data.mkdir(mode=0o700)
    if account:
        for folder in (home, data):
            os.chown(folder, account["user"], account["group"])
    options = ("--username=postgres", "--encoding=UTF8", "--no-locale", "--auth=trust")
    _run(binaries / "initdb", *options, "-D", data, home=home, account=account)
    with (data / "postgresql.conf").open("a") as conf:
        conf.write(f"listen_addresses = ''\nunix_socket_directories = '{home}'\n")
        conf.write("unix_socket_permissions = 0700\nmax_connections = 100\n")
    control = (binaries / "pg_ctl", "-D", data, "--wait")
    log = ("--log", home / "log", "--timeout", str(_START_SECONDS))
    try:
        _run(*control, *log, "start", home=home, account=account)
        yield f"postgresql://postgres@/postgres?host={home}"
    finally:
        _run(*control, "--mode=immediate", "stop", home=home, account=account, may_fail=True)


def server_account() -> dict[str, Any]:
    """Return the account of the server, as parameters of ``subprocess``.

    This is the account of this process or, if that is root, an unprivileged one.

    Raises:
        SettingsError: If this process runs as root, and there is no unprivileged account.
    """
    if os.geteuid() != 0:
        return {}
    try:
        account = pwd.getpwnam(_UNPRIVILEGED)
    except KeyError:
        text = f"PostgreSQL refuses to run as root, and there is no user {_UNPRIVILEGED}"
        raise SettingsError(text) from None
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _run(*command: str | Path, home: Path, account: dict[str, Any], may_fail: bool = False) -> None:
    """Run a program in a separate session, so that a Ctrl-C in the terminal does not reach it."""
    try:
        done = subprocess.run(
            command,
            cwd=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
            **account,
        )
    except PermissionError as exc:
        text = "; PostgreSQL refuses to run as root, so another user must reach it"
        why = f"{exc.strerror}{text if account else ''}"
        raise SettingsError(f"{command[0]} cannot be run: {why}") from exc
    if done.returncode and not may_fail:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise SettingsError(f"{Path(command[0]).name} failed: {' '.join(last)}")
