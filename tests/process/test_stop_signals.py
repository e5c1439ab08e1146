"""A daemon that gets a signal during its start exits with status 0, like a running daemon."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import sampled

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

PROGRAM = """
import os, signal, sys

number, module, *words = sys.argv[1:]

class SendSignal:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(number))

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a test run under nohup has it ignored
sys.meta_path.insert(0, SendSignal())
sys.argv = ["aioflow", *words]
import aioflow.__main__
sys.exit(aioflow.__main__.main())
"""


def start(number: int, module: str, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(number), module, *words]
    return subprocess.run(
        [*command, "--home", str(home), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
    )


MODULES = [
    "aioflow.cli.accounts",  # among the first of all
    "aioflow.settings.reading",
    "aioflow.store.sqlite.store",  # while the database is opened
    "aioflow.daemon.api_server",  # while the processes start
]
CASES = [*itertools.product((signal.SIGTERM, signal.SIGHUP), MODULES)]
SAMPLE = [(signal.SIGHUP, MODULES[1]), (signal.SIGTERM, MODULES[3])]


@pytest.mark.parametrize(
    "signal_in_module",
    sampled([*itertools.product((signal.SIGTERM, signal.SIGHUP), MODULES)], SAMPLE),
)
def test_a_signal_in_the_middle_of_a_start_ends_it_with_success(tmp_path, signal_in_module):
    number, module = signal_in_module
    done = start(number, module, tmp_path / "home", "up")

    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert not list((tmp_path / "home").glob("run/children/*"))


def test_a_demo_that_is_ended_while_it_starts_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = start(signal.SIGTERM, "aioflow.settings.reading", tmp_path / "home", "demo")

    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_is_no_daemon_ends_by_the_signal(tmp_path):
    words = ("dags", "list", "--home", str(tmp_path))
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        str(int(signal.SIGTERM)),
        "aioflow.cli.accounts",
        *words,
    ]

    assert subprocess.run(command, capture_output=True, timeout=60).returncode == -signal.SIGTERM
