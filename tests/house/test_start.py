"""A start imports only what it needs at once. Heavy modules are imported later or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aioflow.store.sqlite.database_file import prepare_file
from aioflow.store.sqlite.lock import FileLock

pytestmark = pytest.mark.process

# The last line lists all modules that are loaded when the command ends or the loop starts.
COMMAND = """
import atexit, sys
import aioflow.__main__
atexit.register(lambda: print("", *sys.modules, file=sys.stderr))
sys.exit(aioflow.__main__.main())
"""
BEFORE_THE_LOOP = f"""
import anyio
anyio.run = lambda *_, **options: int(not options["backend_options"]["use_uvloop"])
{COMMAND}
"""

DATABASE = {"aiosqlite", "alembic", "aioflow.store.sqlite.store", "sqlalchemy"}
SERVING = {
    "aioflow.api",
    "aioflow.daemon.api_server",
    "aioflow.web",
    "fastapi",
    "starlette",
    "uvicorn",
}
DRAWING = {"pygments", "rich"}


def modules_of(program: str, *words: str, home: Path, status: int = 0) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *words, "--home", str(home)],
        env={name: value for name, value in os.environ.items() if not name.startswith("AIOFLOW_")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_a_daemon_imports_neither_a_database_nor_its_face_before_the_loop_runs(tmp_path):
    found = modules_of(BEFORE_THE_LOOP, "up", home=tmp_path)

    assert {"aioflow.daemon.node", "structlog"} <= found
    assert not found & (DATABASE | SERVING | DRAWING)


def test_a_list_without_a_daemon_imports_a_database_only_where_there_is_one(tmp_path):
    nothing = modules_of(COMMAND, "dags", "list", home=tmp_path, status=1)
    lock = FileLock.take(tmp_path / "aioflow.db")
    prepare_file(tmp_path / "aioflow.db", lock)
    lock.release()

    read = modules_of(COMMAND, "dags", "list", home=tmp_path)

    assert "aioflow.cli.offline_database" in nothing
    assert not nothing & (DATABASE | SERVING | DRAWING | {"pydantic", "structlog"})
    assert {"aioflow.api", "aioflow.store.sqlite.store"} <= read
    unneeded = SERVING - {"aioflow.api"} | DRAWING | {"alembic", "pydantic", "structlog"}
    assert not read & unneeded
