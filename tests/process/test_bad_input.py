"""Bad input, one kind at a time: a clear message, a distinct reason, and no harm to other work."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from aioflow.processes.orphans import Record
from benchmarks.daemon import DaemonProcess, eventually, put
from tests.daemons import SharedDaemon
from tests.executors.processes import is_alive

HERE = Path(__file__).parent
pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


MISBEHAVING = (HERE / "dags" / "misbehaving.py").read_text()


@pytest.fixture
def daemon(shared_daemon: SharedDaemon) -> SharedDaemon:
    shared_daemon.add("misbehaving.py", MISBEHAVING)
    return shared_daemon


def finish(daemon: DaemonProcess, dag_id: str, conf: dict[str, object] | None = None):
    """Run a DAG to its end. Return its state, and its tasks by (name, index)."""
    run_id = daemon.trigger(dag_id, conf)
    state = daemon.wait(run_id, 90)["state"]
    tasks = {(t["task_id"], t["map_index"]): t for t in daemon.run(run_id)["tasks"]}
    return state, tasks, run_id


def reason(task) -> str:
    assert task["error"] is not None, task
    assert "\n" not in task["error"]["message"]
    return task["error"]["reason"]


# ── tasks ───────────────────────────────────────────────────────────────────────────────


def test_a_segfault_costs_its_own_try_only(daemon):
    state, tasks, _ = finish(daemon, "segfaulting")

    assert state == "failed"
    assert reason(tasks["segfault", -1]) == "crashed"
    message = tasks["segfault", -1]["error"]["message"]
    assert "SIGSEGV" in message
    assert "crash (misbehaving.py:" in message
    innocents = [task for (name, _), task in tasks.items() if name == "healthy"]
    assert len(innocents) == 20
    assert {(t["state"], t["try_number"], t["interruptions"]) for t in innocents} == {
        ("success", 1, 0)
    }


def test_a_coroutine_that_segfaults_charges_none_of_a_hundred_suspended_neighbours(
    daemon, tmp_path
):
    path = tmp_path / "go"
    neighbours = daemon.trigger("neighbours", {"path": str(path)})

    def suspended() -> bool:
        return daemon.run(neighbours, limit=1)["counts"].get("sensing") == 100

    eventually(suspended)

    state, tasks, _ = finish(daemon, "segfaulting_async")
    assert state == "failed"
    assert reason(tasks["segfault_in_the_host", -1]) == "crashed"

    eventually(suspended)
    found = daemon.run(neighbours)
    rows = [t for t in found["tasks"] if t["task_id"] == "suspended"]
    assert {(t["interruptions"], t["try_number"]) for t in rows} == {(0, 1)}
    assert found["state"] == "running"
    daemon.request("POST", f"/api/v1/runs/{neighbours}/cancel")


def test_exits_and_self_kills_are_failed_tries_with_their_own_reasons(daemon):
    state, tasks, _ = finish(daemon, "exiting")

    assert state == "failed"
    assert reason(tasks["exits", -1]) == "exit"
    assert reason(tasks["exits_async", -1]) == "exit"
    assert reason(tasks["exits_hard", -1]) in {"exit", "crashed"}
    assert "7" in tasks["exits_hard", -1]["error"]["message"]
    assert reason(tasks["kills_itself", -1]) == "interrupted"


@pytest.mark.nightly
def test_a_double_forked_grandchild_dies_with_its_timed_out_task(daemon, tmp_path):
    note = tmp_path / "pid"

    state, tasks, _ = finish(daemon, "daemonizing_then_hanging", {"note": str(note)})

    assert state == "failed"
    assert reason(tasks["daemonizing", -1]) == "timeout"
    grandchild = int(note.read_text())
    eventually(lambda: not is_alive(grandchild))


@pytest.mark.parametrize("megabytes", [100, pytest.param(200, marks=pytest.mark.nightly)])
def test_many_megabytes_of_output_are_cut_with_a_marker(daemon, megabytes):
    finish(daemon, "plain")  # all processes are there, and stay
    before = daemon.memory_mib()["uss"]

    state, tasks, run_id = finish(daemon, "printing", {"megabytes": megabytes})

    assert state == "success"
    assert tasks["chatty", -1]["result"] == "said"
    [logs] = (daemon.home / "logs").glob(f"*/{run_id.rpartition('.')[2]}")
    kept = sum(path.stat().st_size for path in logs.rglob("*") if path.is_file())
    assert 10 * 2**20 <= kept < 12 * 2**20
    end = daemon.get(f"/api/v1/runs/{run_id}/tasks/chatty/logs?offset={10 * 2**20 - 1000}")[1]
    assert "truncated" in end
    assert daemon.memory_mib()["uss"] < before + megabytes / 2


def test_a_result_that_is_too_large_or_cannot_travel_says_so(daemon):
    state, tasks, _ = finish(daemon, "returning")

    assert state == "failed"
    assert reason(tasks["too_large", -1]) == "result_too_large"
    assert reason(tasks["unserializable", -1]) == "unserializable"


def test_a_fan_out_over_its_cap_fails_the_upstream_with_zero_children(daemon):
    state, tasks, _ = finish(daemon, "too_wide")

    assert state == "failed"
    assert reason(tasks["numbers", -1]) == "fanout_cap"
    assert "51" in tasks["numbers", -1]["error"]["message"]
    assert "50" in tasks["numbers", -1]["error"]["message"]
    assert [index for name, index in tasks if name == "each"] == [-1]
    assert tasks["each", -1]["state"] == "upstream_failed"


def test_a_fan_out_at_its_cap_runs(daemon):
    state, tasks, _ = finish(daemon, "too_wide", {"count": 50})

    assert state == "success"
    assert tasks["total", -1]["result"] == sum(range(50))


def test_a_lambda_as_trigger_argument_is_refused_with_its_field(daemon):
    state, tasks, _ = finish(daemon, "lambda_argument")

    assert state == "failed"
    assert reason(tasks["wait", -1]) == "unserializable"
    assert "FileTrigger.path" in tasks["wait", -1]["error"]["message"]


def test_a_wait_beyond_its_timeout_fails(daemon):
    state, tasks, _ = finish(daemon, "waiting_too_long")

    assert state == "failed"
    assert reason(tasks["instant", -1]) == "timeout"


def test_a_wait_for_a_file_resumes_with_its_event(daemon, tmp_path):
    path = tmp_path / "there"
    run_id = daemon.trigger("waiting", {"path": str(path)})
    eventually(lambda: daemon.run(run_id)["tasks"][0]["state"] == "deferred")
    put(path, "12345")

    assert daemon.wait(run_id)["state"] == "success"

    result = daemon.run(run_id)["tasks"][0]["result"]
    assert result["n"] == 1
    assert result["event"]["size_bytes"] == 5


@contextmanager
def memory_cgroup(limit_bytes: int):
    root = Path("/sys/fs/cgroup/memory")
    group = root / f"aioflow-test-{os.getpid()}"
    if not root.exists():
        root = Path("/sys/fs/cgroup")
        group = root / group.name
    try:
        group.mkdir()
    except OSError as exc:
        pytest.skip(f"this machine lets nobody make a memory cgroup: {exc}")
    try:
        v1 = group / "memory.limit_in_bytes"
        (v1 if v1.exists() else group / "memory.max").write_text(str(limit_bytes))
        yield group
    finally:
        for _ in range(200):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.05)


@pytest.mark.nightly
def test_a_task_killed_by_a_memory_cgroup_fails_as_out_of_memory(tmp_path):
    with memory_cgroup(700 * 2**20) as group:
        daemon = DaemonProcess(tmp_path / "home", HERE / "dags", flags=("--cpu-slots", "2"))
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        daemon._command = ["sh", "-c", enter, "sh", *daemon._command]
        with daemon:
            state, tasks, _ = finish(daemon, "out_of_memory")
            assert daemon.process.poll() is None

    assert state == "failed"
    assert reason(tasks["hungry", -1]) == "oom"
    innocents = [t for (name, _), t in tasks.items() if name == "healthy"]
    assert {(t["state"], t["try_number"]) for t in innocents} == {("success", 1)}


def oom_scores(daemon: DaemonProcess) -> dict[str, int]:
    """Return, for a process of each role, by how much its OOM score exceeds the daemon's."""
    scores = {}
    for path in (daemon.home / "run" / "children").iterdir():
        with suppress(OSError, msgspec.DecodeError):  # it ends, or begins
            record = msgspec.json.decode(path.read_bytes(), type=Record)
            scores[record.role] = oom_score(record.pid) - oom_score(daemon.process.pid)
    return scores


def oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def test_out_of_memory_kills_workers_before_hosts_and_the_daemon_last(daemon):
    daemon.trigger("segfaulting_async")

    wanted = {"slot": 400, "async": 300, "triggers": 300}.items()
    eventually(lambda: oom_scores(daemon).items() >= wanted, 30.0, lambda: str(oom_scores(daemon)))


# ── DAG files ───────────────────────────────────────────────────────────────────────────


WRONG_WITH = {
    "exits.py": "exit",
    "syntax.py": "syntax_error",
    "cycle.py": "dag.cycle",
    "second.py": "dag.duplicate_dag",
    "twice.py": "dag.duplicate_dag",
}


@contextmanager
def broken_files(daemon: SharedDaemon, *left_out: str) -> Iterator[None]:
    try:
        for broken in sorted(
            (HERE / "broken").glob("*.txt")
        ):  # no tool of ours should read them as code
            if broken.stem not in left_out:
                daemon.add(f"{broken.stem}.py", broken.read_text())
        yield
    finally:
        daemon.clear_dags()


def assert_each_is_listed(daemon: DaemonProcess, wanted: dict[str, str]) -> None:
    def seen() -> dict[str, str] | None:
        files = {
            Path(row["file"]).name: row["import_error"]
            for row in daemon.items("/api/v1/dags")
            if row["import_error"]
        }
        return files if files.keys() >= wanted.keys() else None

    errors = eventually(seen, 90.0, lambda: str(daemon.items("/api/v1/dags")))
    for file, expected in wanted.items():
        assert expected in errors[file], (file, errors[file])
        assert "\n" not in errors[file]
    ids = {row["dag_id"] for row in daemon.items("/api/v1/dags")}
    assert {"shared_name", "fine", "fine_too"} <= ids


def assert_the_rest_runs(daemon: DaemonProcess) -> None:
    state, tasks, _ = finish(daemon, "plain")
    assert (state, tasks["total", -1]["result"]) == ("success", 3)


@pytest.mark.timeout(240)
def test_each_broken_file_is_listed_with_its_own_reason_and_the_rest_runs(daemon):
    with broken_files(daemon, "loops"):
        daemon.add("misbehaving.py", MISBEHAVING)
        assert_each_is_listed(daemon, WRONG_WITH)
        assert_the_rest_runs(daemon)


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_a_file_that_loops_is_listed_with_the_others(tmp_path):
    daemon = SharedDaemon(
        tmp_path,
        flags=("--cpu-slots", "2"),
        environment={"AIOFLOW_PARSE__TIMEOUT_SECONDS": "15"},
    )
    with daemon, broken_files(daemon):
        daemon.add("misbehaving.py", MISBEHAVING)
        assert_the_rest_runs(daemon)
        assert_each_is_listed(daemon, {**WRONG_WITH, "loops.py": "timeout"})


# ── databases, ports, second daemons ────────────────────────────────────────────────────


def refusal(*flags: str) -> tuple[int, str]:
    """Start a daemon that must refuse to run. Return its status and its only line."""
    ended = subprocess.run(
        [sys.executable, "-m", "aioflow", "up", "--dags", str(HERE / "dags"), *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line for line in ended.stderr.splitlines() if line.startswith("aioflow: ")]
    assert "Traceback" not in ended.stderr, ended.stderr
    assert len(lines) == 1, ended.stderr
    return ended.returncode, lines[0]


def make_database(home: Path, content: bytes | None = None, script: str = "") -> Path:
    home.mkdir(mode=0o700)
    path = home / "aioflow.db"
    if content is not None:
        path.write_bytes(content)
    else:
        connection = sqlite3.connect(path)
        connection.executescript(script)
        connection.close()
    return path


def test_a_corrupt_database_is_refused_and_left_alone(tmp_path):
    path = make_database(tmp_path / "home", b"SQLite format 3\0" + os.urandom(8000))
    before = path.read_bytes()

    status, line = refusal("--home", str(path.parent), "--port", "0")

    assert status == 1
    assert "[store.foreign]" in line
    assert path.read_bytes() == before


@pytest.mark.nightly
def test_a_foreign_database_is_refused_and_left_alone(tmp_path):
    path = make_database(
        tmp_path / "home", script="CREATE TABLE mine (x); INSERT INTO mine VALUES (1)"
    )
    before = path.read_bytes()

    status, line = refusal("--home", str(path.parent), "--port", "0")

    assert (status, "[store.foreign]" in line) == (1, True)
    assert path.read_bytes() == before


@pytest.mark.nightly
def test_a_newer_database_is_refused(tmp_path, migrated_sqlite):
    path = make_database(tmp_path / "home", migrated_sqlite.read_bytes())
    connection = sqlite3.connect(path)
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    assert "alembic_version" in tables
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()

    status, line = refusal("--home", str(path.parent), "--port", "0")

    assert (status, "[store.schema]" in line) == (1, True)


@pytest.mark.nightly  # tests of leftovers of such a start cover this in `make test`
def test_a_port_in_use_is_said(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])

        status, line = refusal("--home", str(tmp_path / "home"), "--port", port)

    assert (status, "[web.port_in_use]" in line) == (1, True)
    assert port in line


@pytest.mark.parametrize(
    "how", [pytest.param("same", marks=pytest.mark.nightly), "symlink", "hard link"]
)
def test_a_second_daemon_on_one_database_refuses(daemon, tmp_path, how):
    database = daemon.home / "aioflow.db"
    home = tmp_path / "other"
    home.mkdir(mode=0o700)
    url = f"sqlite:///{database}"
    if how == "symlink":
        (home / "aioflow.db").symlink_to(database)
        url = f"sqlite:///{home}/aioflow.db"
    elif how == "hard link":
        (home / "aioflow.db").hardlink_to(database)
        url = f"sqlite:///{home}/aioflow.db"

    status, line = refusal("--home", str(home), "--db", url, "--port", "0")

    assert (status, "[home.busy]" in line) == (1, True)
    assert str(daemon.process.pid) in line
    if how == "hard link":
        (home / "aioflow.db").unlink()
    state, _, _ = finish(daemon, "plain")
    assert state == "success"


def test_sigterm_drains_and_a_second_one_ends_at_once(killed_daemon, tmp_path):
    daemon = killed_daemon
    daemon.add("misbehaving.py", MISBEHAVING)
    drained = daemon.log_size
    note = tmp_path / "pid"
    daemon.trigger("daemonizing_for_good", {"note": str(note)})
    eventually(lambda: note.exists() and note.read_text())

    daemon.process.send_signal(signal.SIGTERM)
    eventually(lambda: "draining" in daemon.log_from(drained))
    eventually((daemon.home / "run" / "draining").exists)
    status, line = refusal("--home", str(daemon.home), "--port", "0")
    assert daemon.is_alive
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.wait(60)  # of ten minutes that it would have waited

    assert (status, "is draining" in line, "[home.busy]" in line) == (1, True, True), line
    assert not (daemon.home / "run" / "draining").exists()
    eventually(lambda: not is_alive(int(note.read_text())))
