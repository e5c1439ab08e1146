"""Hostile DAG files beside a DAG that runs every five seconds: reported, and harmless to it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from benchmarks.daemon import DaemonProcess, eventually, put
from tests.executors.processes import is_alive

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

STEADY = """
from aioflow import Every, dag, task

@task
def tick() -> None:
    pass

@dag(schedule=Every("5s"))
def steady() -> None:
    tick()
"""

# A bounded fork bomb: it would reach 512 processes if nothing stopped it.
BOMB = "import aioflow, os, time\nfor _ in range(9): os.fork()\ntime.sleep(1000)"
LEAVES = """
import aioflow, os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({path!r}, "w").write(str(os.getpid()))
        time.sleep(1000)
    os._exit(0)
while not os.path.exists({path!r}) or not open({path!r}).read(): time.sleep(0.01)
raise RuntimeError("gone, but not alone")
"""
PATCH = "import aioflow, {0}\n{0}.{1} = None"

HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "exit": ("import aioflow, sys\nsys.exit(1)", "exit"),
    "hard_exit": ("import aioflow, os\nos._exit(7)", "exit"),
    "segfault": ("import aioflow, ctypes\nctypes.string_at(0)", "crashed"),
    "loop": ("import aioflow\nwhile True: pass", "timeout"),
    "sleep": ("import aioflow, time\ntime.sleep(1000)", "timeout"),
    "memory": ("import aioflow\nhoard = bytearray(20_000_000_000)", "memory"),
    "flood": ("import aioflow\nwhile True: print('x' * 1_000_000)", "output"),
    "patch_json": (PATCH.format("json", "dumps"), "patched"),
    "patch_time": (PATCH.format("time", "time"), "patched"),
    "patch_builtins": (PATCH.format("builtins", "isinstance"), "patched"),
    "patch_us": (PATCH.format("aioflow", "task"), "patched"),
    "bomb": (BOMB, "processes"),
    "recursion": ("import aioflow\ndef f(): f()\nf()", "recursion"),
    "large": ("import aioflow\n#" + "x" * 17_000_000, "too_large"),
    "nul": ("import aioflow\n\0", "syntax_error"),
    "encoding": (b"import aioflow\nname = '\xe9\xff'\n", "encoding"),
    "wide": ("import aioflow\n".encode("utf-16"), "syntax_error"),
    "cycle_a": ("import aioflow\nfrom cycle_b import b\na = 1", "import_cycle"),
}


def problems(daemon: DaemonProcess) -> dict[str, str]:
    with daemon.database() as database:
        rows = database.execute("SELECT file, reason FROM dag_file WHERE reason IS NOT NULL")
        return {file.removesuffix(".py"): reason for file, reason in rows}


def lateness(database: sqlite3.Connection) -> list[float]:
    """Return how many seconds after its logical date each run of the steady DAG ended."""
    rows = database.execute("SELECT logical_date, ended_at FROM run WHERE ended_at IS NOT NULL")
    return [(ended - date) / 1e6 for date, ended in rows]


def started_for(home: Path) -> list[str]:
    """Return the ids of the processes that were started for this home."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(home).encode() in place.read_bytes().split(b"\0"):
                found.append(place.parent.name)
    return found


BURNING = {"loop", "flood", "bomb", "memory"}
"""Files that use a whole core until they are stopped."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("left_out", "runs"),
    [
        pytest.param(BURNING, 2, id="quiet"),
        pytest.param(set(), 8, id="all", marks=pytest.mark.nightly),
    ],
)
def test_hostile_files_are_distinguished_and_never_delay_a_dag_beside_them(
    tmp_path, left_out, runs
):
    dags, left = tmp_path / "dags", tmp_path / "left"
    hostile = {name: found for name, found in HOSTILE.items() if name not in left_out}
    put(dags / "steady.py", STEADY)
    wanted = {name: reason for name, (_, reason) in hostile.items()} | {"leaves": "raised"}
    daemon = DaemonProcess(tmp_path / "home", dags, flags=("--cpu-slots", "1"))
    with daemon:
        eventually(lambda: "steady" in {d["dag_id"] for d in daemon.items("/api/v1/dags")})
        put(dags / "cycle_b.py", "from cycle_a import a\nb = 1")
        for name, (content, _) in hostile.items():
            put(dags / f"{name}.py", content)
        put(dags / "leaves.py", LEAVES.format(path=str(left)))
        eventually(lambda: problems(daemon).keys() >= wanted.keys(), 120.0)
        found = problems(daemon)
        with daemon.database() as database:
            before = daemon.version("steady")
            put(dags / "steady.py", STEADY.replace("pass", "print('still')"))
            eventually(lambda: daemon.version("steady") != before, 20.0)
            eventually(lambda: len(lateness(database)) >= runs, 90.0)
            late = lateness(database)
        parsers = [process.pid for process in daemon.tree()]
    assert found == wanted
    assert max(late) < 20.0  # the parse of a file that hangs is aborted after 30
    assert not is_alive(int(left.read_text()))
    assert not [pid for pid in parsers if is_alive(pid)]
    assert not started_for(tmp_path / "home")
