"""All descendants of a process are killed, as far as permissions allow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.executors.processes import is_alive

pytestmark = pytest.mark.process

KILLS = """
import os, subprocess
from aioflow.worker import process_tree
from aioflow.worker.process import adopt_orphans

process_tree.DEATH_SECONDS = 1.0
adopt_orphans()
others, mine = [
    subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL).pid for _ in range(2)
]
real = os.kill

def kill(pid, number):
    if pid == others:
        raise PermissionError(1, "Operation not permitted")
    real(pid, number)

os.kill = kill
process_tree.kill_descendants()
print(others, mine)
"""


def test_a_process_that_may_not_be_killed_does_not_save_the_others():
    said = subprocess.run([sys.executable, "-c", KILLS], stdout=subprocess.PIPE, check=True)
    others, mine = map(int, said.stdout.split())
    try:
        assert is_alive(others)
        assert not is_alive(mine)
    finally:
        os.kill(others, signal.SIGKILL)
