"""Planted bugs: each patch is applied to a copy of the tree, and a run of seeds must break.

The patches lie in a folder, one bug each, in the form ``patch -p1`` takes. First of all the
tree as it is must stay whole for as long as each of them is given: a simulation that is never
content catches everything.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

__all__ = ("CLEAN", "Judgement", "Unusable", "judge")

ROOT = Path(__file__).parents[2]
SECONDS = 60
CLEAN = "(no patch)"
_LEVELS = (1, 2)
_START_SECONDS = 3.0
_LOOK_SECONDS = 0.2
_OVERDUE_SECONDS = 30
_SAID = 300


class Unusable(Exception):
    """A patch that plants nothing, or a tree that is broken without one."""


class Judgement(msgspec.Struct):
    """Whether a planted bug was noticed, at which level, and after how long.

    Attributes:
        seconds: From the start of both levels.
    """

    patch: str
    verdict: str
    level: int | None
    seconds: float
    said: str


def judge(
    patches: list[Path], seconds: int = SECONDS, levels: tuple[int, ...] = _LEVELS
) -> Iterator[Judgement]:
    """Judge the tree as it is, then each patch; the levels run side by side.

    Raises:
        Unusable: If a patch is empty or does not apply, or the tree itself does not hold.
    """
    if not patches:
        raise Unusable("there are no patches")
    for patch in patches:
        with _planted(patch):
            pass
    with _copy() as tree:
        clean = _judge_tree(tree, CLEAN, seconds, levels)
    if clean.verdict != "missed":
        raise Unusable(f"the tree breaks without any patch: {clean.said}")
    yield msgspec.structs.replace(clean, verdict="holds")
    for patch in patches:
        with _planted(patch) as tree:
            yield _judge_tree(tree, patch.name, seconds, levels)


@contextmanager
def _copy() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="aioflow-judge-") as name:
        tree = Path(name)
        for folder in ("aioflow", "tests", "triggers"):
            ignore = shutil.ignore_patterns("__pycache__", "results", "static")
            shutil.copytree(ROOT / folder, tree / folder, ignore=ignore)
        yield tree


@contextmanager
def _planted(patch: Path) -> Iterator[Path]:
    """A copy of the tree with the bug in it.

    Raises:
        Unusable: If the patch is empty, does not apply, or leaves the tree as it was.
    """
    lines = patch.read_text().splitlines()
    if not any(line[:1] in "+-" and line[:3] not in {"+++", "---"} for line in lines if line):
        raise Unusable(f"{patch.name} changes nothing")
    with _copy() as tree:
        applied = subprocess.run(
            ["patch", "-p1", "--batch", "--forward", "-i", str(patch.resolve())],
            cwd=tree,
            capture_output=True,
            text=True,
            check=False,
        )
        if applied.returncode:
            raise Unusable(f"{patch.name} does not apply: {applied.stdout.strip()[-_SAID:]}")
        yield tree


def _judge_tree(tree: Path, name: str, seconds: int, levels: tuple[int, ...]) -> Judgement:
    """Run seeds at all levels until one breaks, or the time is over."""
    began = time.monotonic()
    playing = {level: _play(tree, level, seconds) for level in levels}
    try:
        while playing:
            time.sleep(_LOOK_SECONDS)
            passed = round(time.monotonic() - began, 1)
            for level, process in [*playing.items()]:
                if passed > seconds + _OVERDUE_SECONDS:
                    return Judgement(name, "caught", level, passed, "a seed never ended")
                if process.poll() is None:
                    continue
                said = process.communicate()[0].strip()
                del playing[level]
                if process.returncode:
                    return Judgement(name, "caught", level, passed, _told(said))
        return Judgement(name, "missed", None, round(time.monotonic() - began, 1), "")
    finally:
        for process in playing.values():
            process.kill()
            process.communicate()


def _told(said: str) -> str:
    """What broke; the end of a traceback if the simulation itself did."""
    begins = next((line for line in said.splitlines() if line.startswith("seed ")), None)
    return said[-_SAID:] if begins is None else begins[:_SAID]


def _play(tree: Path, level: int, seconds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.sim", "--level", str(level), "--no-shrink"]
    command += ["--seconds", str(seconds - _START_SECONDS)]
    return subprocess.Popen(
        command,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": f"{tree}:{tree}/triggers", "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
