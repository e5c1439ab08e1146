"""Planted bugs: each patch is applied to a copy of the tree, and a run of seeds must break.

The patches lie in a folder, one bug each, in the form ``patch -p1`` takes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

__all__ = ("Judgement", "judge")

ROOT = Path(__file__).parents[2]
SECONDS = 60


class Judgement(msgspec.Struct):
    """Whether a planted bug was noticed, and after how long."""

    patch: str
    verdict: str
    seconds: float
    said: str


def judge(folder: Path, seconds: int = SECONDS) -> list[Judgement]:
    """Judge every patch of a folder, in the order of their names."""
    return [_judge_one(patch, seconds) for patch in sorted(folder.glob("*.patch"))]


def _judge_one(patch: Path, seconds: int) -> Judgement:
    with tempfile.TemporaryDirectory(prefix="aioflow-judge-") as name:
        tree = Path(name)
        for folder in ("aioflow", "tests", "triggers"):
            ignore = shutil.ignore_patterns("__pycache__", "results")
            shutil.copytree(ROOT / folder, tree / folder, ignore=ignore)
        applied = subprocess.run(
            ["patch", "-p1", "--batch", "-i", str(patch.resolve())],
            cwd=tree,
            capture_output=True,
            text=True,
            check=False,
        )
        if applied.returncode:
            return Judgement(patch.name, "does not apply", 0.0, applied.stdout.strip()[-300:])
        began = time.monotonic()
        found = _run(tree, seconds)
        return Judgement(patch.name, *found[:1], round(time.monotonic() - began, 1), found[1])


def _run(tree: Path, seconds: int) -> tuple[str, str]:
    """Run both levels for half the time each; stop at the first that breaks."""
    said = ""
    for level in (1, 2):
        command = [sys.executable, "-m", "tests.sim", "--level", str(level)]
        command += ["--seconds", str(seconds / 2), "--no-shrink"]
        try:
            done = subprocess.run(
                command,
                cwd=tree,
                env={"PYTHONPATH": f"{tree}:{tree}/triggers", "PATH": "/usr/bin:/bin"},
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "caught", f"level {level} never ended"
        said = (done.stdout + done.stderr).strip()[-500:]
        if done.returncode:
            return "caught", said
    return "missed", said
