"""One daemon per home: a start that is refused or fails half way changes nothing."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from aioflow.processes.orphans import home_mark, kill_marked
from benchmarks.daemon import DaemonProcess, eventually
from tests.executors.processes import is_alive

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

DAGS = """
import os
from pathlib import Path

from aioflow import dag, task


@task
def wait(folder: str) -> int:
    Path(folder, "gate").write_text(str(os.getpid()))  # a pipe: blocks until it is read
    return os.getpid()


@dag
def waits_for_a_reader(folder: str) -> None:
    wait(folder)
"""

STARTS = [("up",), pytest.param(("demo", "--exit"), marks=pytest.mark.nightly)]


def start(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aioflow", *map(str, words)]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )


def records(home: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (home / "run" / "children").iterdir()}


def all_records(daemon: DaemonProcess) -> dict[str, str]:
    """Return the records of the daemon's children. Some of them, such as parsers, come and go."""

    def read() -> dict[str, str] | None:
        try:
            return records(daemon.home)
        except FileNotFoundError:  # of a child that ended between the listing and the reading
            return None

    return eventually(read)


@pytest.mark.parametrize("words", [("up", "--db", "other"), *STARTS], ids=str)
def test_a_second_daemon_on_a_home_is_refused_and_the_first_continues(
    shared_daemon, tmp_path, words
):
    first = shared_daemon
    first.add("waits_for_a_reader.py", DAGS)
    os.mkfifo(tmp_path / "gate")
    words = [f"sqlite:///{tmp_path}/other.db" if word == "other" else word for word in words]
    run_id = first.trigger("waits_for_a_reader", {"folder": str(tmp_path)})
    eventually(lambda: first.run(run_id)["counts"].get("running") == 1)
    before = all_records(first)
    second = start(*words, "--home", first.home, "--port", 0)

    assert second.returncode == 1
    assert f"process {first.process.pid}" in second.stderr
    assert re.search(r"\[home\.busy\]\n$", second.stderr)
    assert "Traceback" not in second.stderr
    after = all_records(first)
    living = {pid: text for pid, text in before.items() if is_alive(int(pid))}
    assert living.items() <= after.items()
    hosts = [pid for pid, text in before.items() if '"triggers"' in text or '"async"' in text]
    assert len(hosts) >= 2
    assert living.keys() >= set(hosts)
    eventually(lambda: {int(pid) for pid in all_records(first)} <= {p.pid for p in first.tree()})
    pid = int((tmp_path / "gate").read_text())
    first.wait(run_id)
    [task] = first.run(run_id)["tasks"]

    assert (task["state"], task["try_number"], task["interruptions"]) == ("success", 1, 0)
    assert task["result"] == pid
    assert not (tmp_path / "other.db").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("words", STARTS, ids=str)
def test_a_start_on_a_taken_port_leaves_no_process_and_no_record(tmp_path, words):
    home = tmp_path / "home"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = start(*words, "--home", home, "--port", taken.getsockname()[1])

    assert done.returncode == 1
    assert "[web.port_in_use]" in done.stderr
    assert records(home) == {}
    assert kill_marked(f"{home_mark(home)}:") == 0
    assert start("up", "--home", home, "--port", 0, "--until-idle").returncode == 0
