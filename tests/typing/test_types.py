"""Both type checkers accept a realistic file, and find the mistakes in a file of misuse."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from aioflow.author.dag import forget_registered, registered
from aioflow.author.dag_spec import describe

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = [str(HERE / "user_code.py"), str(HERE / "misuse.py")]


def check(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command, *FILES],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(300)
def test_mypy_agrees() -> None:
    check("mypy", "--strict", "--warn-unused-ignores")


@pytest.mark.timeout(300)
def test_pyright_agrees() -> None:
    check("pyright", "--pythonpath", sys.executable)


def test_the_code_for_the_type_checkers_also_runs() -> None:
    forget_registered()
    spec = importlib.util.spec_from_file_location("user_code", HERE / "user_code.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["user_code"] = module
    try:
        spec.loader.exec_module(module)
        described = [describe(made) for made in registered()]
    finally:
        del sys.modules["user_code"]
        forget_registered()

    assert [failures for _, failures in described] == [[]] * 5
    assert [len(made.tasks) for made, _ in described if made] == [4, 12, 3, 1, 5]
