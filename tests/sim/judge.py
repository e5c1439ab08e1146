"""Judging planted bugs: each catcher must fail with the bug, and pass without it.

Ordinary tests and seeds of the simulator are judged separately: the simulator has caught a bug only
if one of its own invariants was broken. Each catcher is first run on the unchanged tree, because a
catcher that fails there proves nothing.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterable
from functools import partial
from typing import TypeAlias

import msgspec

from tests.sim.planted.bug import PlantedBug, Seed
from tests.sim.planted.plant import ROOT, check, environment

__all__ = ("SECONDS", "Ended", "Finding", "Judge", "Judgement", "Unusable", "read_play")

SECONDS = 90
"""Processor time limit of a catcher in seconds. Other load on the machine does not matter."""

_WALL_FACTOR = 6
"""Wall time limit of a catcher, as a multiple of the processor time limit."""

_LEVELS = (1, 2)
_CLUSTER = 3
"""The level with several daemons. Its seeds are drawn only for bugs that name this level."""

_START_SECONDS = 3.0
_SAID = 200

_OF_THE_BUG_ITSELF = re.compile(r"NameError|ImportError|AttributeError\W++(?!NoneType)")
"""Errors that an edit causes by using names missing from the tree. They prove nothing."""

_Command: TypeAlias = tuple[str, ...]


class Unusable(Exception):
    """A catcher fails without the bug, or cannot be run."""


class Finding(msgspec.Struct, omit_defaults=True):
    """The result of one catcher.

    Attributes:
        by: The test, or ``simulator``.
        seconds: Time until the catcher failed or ended.
        said: How it failed.
    """

    by: str
    is_caught: bool
    seconds: float
    seed: Seed | None = None
    said: str = ""

    def __str__(self) -> str:
        by = self.by
        if self.seed is not None:
            by = f"{by}, level {self.seed.level}, seed {self.seed.number}"
        return f"{'caught' if self.is_caught else 'missed'} {self.seconds:6.1f}  {by}"


class Judgement(msgspec.Struct):
    """The results of all catchers of a planted bug."""

    bug: str
    findings: list[Finding]

    @property
    def is_caught(self) -> bool:
        """Whether there is a catcher, and every catcher caught the bug."""
        return bool(self.findings) and all(found.is_caught for found in self.findings)


class Ended(msgspec.Struct):
    """The end of a process.

    Attributes:
        code: The exit code, or ``None`` if the process was killed at its time limit.
        seconds: Wall time. The processor time was less.
    """

    code: int | None
    said: str
    seconds: float


class Judge:
    """Runs catchers in a few processes at a time.

    Args:
        jobs: Number of concurrent processes.
        seconds: Processor time limit of each process.
        first: The first seed to draw.
    """

    def __init__(self, jobs: int = 2, seconds: float = SECONDS, first: int = 0) -> None:
        self._free = asyncio.Semaphore(jobs)
        self._seconds = seconds
        self._first = first
        self._clean: dict[_Command, asyncio.Task[Ended]] = {}

    async def judge(self, bug: PlantedBug) -> Judgement:
        """Run the declared catchers of a bug. If its seed no longer breaks, draw other seeds.

        Raises:
            DoesNotApply: If the bug does not fit the tree.
            Unusable: If a catcher fails without the bug, or cannot be run.
        """
        check(bug)
        findings = []
        if bug.seen_by is not None:
            findings.append(await self._try_test(bug, bug.seen_by))
        if bug.seed is not None:
            found = await self._try_seed(bug, bug.seed)
            levels = (_CLUSTER,) if bug.seed.level == _CLUSTER else _LEVELS
            findings.append(found if found.is_caught else await self._draw(bug, levels))
        if not findings:
            findings.append(await self._draw(bug, _LEVELS))
        return Judgement(bug.name, findings)

    async def draw(self, bug: PlantedBug, levels: tuple[int, ...] = _LEVELS) -> Judgement:
        """Run only the simulator, at all levels concurrently, beginning with the first seed."""
        check(bug)
        return Judgement(bug.name, [await self._draw(bug, levels)])

    async def hold_together(self, bugs: Iterable[PlantedBug]) -> None:
        """Run the catchers of many bugs without any bug, many in one process to save starts.

        If such a group fails, each of its catchers is run alone.
        """
        bugs = list(bugs)
        tests = {bug.seen_by for bug in bugs if bug.seen_by is not None}
        seeds = {bug.seed for bug in bugs if bug.seed is not None}
        groups = [(_run_tests(*sorted(tests)), [_run_tests(one) for one in tests])]
        for level in (*_LEVELS, _CLUSTER):
            numbers = {seed.number for seed in seeds if seed.level == level}
            apart = [_play(level, number) for number in numbers]
            groups.append((_play(level, *sorted(numbers)), apart))
        await asyncio.gather(*(self._hold_group(*group) for group in groups if group[1]))

    async def hold(self, levels: tuple[int, ...] = _LEVELS) -> None:
        """Run seeds without any bug for as long as ``draw`` does.

        Raises:
            Unusable: If a seed breaks.
        """
        for ended in await asyncio.gather(*(self._run(self._many(one), None) for one in levels)):
            if ended.code:
                raise Unusable(f"the tree breaks without any bug: {ended.said[-_SAID:]}")

    # ── one catcher ─────────────────────────────────────────────────────────────────────

    async def _try_test(self, bug: PlantedBug, test: str) -> Finding:
        command = _run_tests(test)
        await self._hold(command)
        ended = await self._run(command, bug)
        failed = re.search(r"^FAILED .*$", ended.said, re.MULTILINE)
        if ended.code not in {0, 1, None} or (ended.code == 1 and failed is None):
            raise Unusable(f"{test} cannot be run with {bug.name}: {ended.said[-_SAID:]}")
        said = "" if failed is None else failed.group()[:_SAID]
        _check_names(bug, said)
        return Finding(test, failed is not None, ended.seconds, said=said)

    async def _try_seed(self, bug: PlantedBug, seed: Seed) -> Finding:
        command = _play(seed.level, seed.number)
        await self._hold(command)
        return read_play(bug, seed.level, await self._run(command, bug))

    async def _draw(self, bug: PlantedBug, levels: tuple[int, ...]) -> Finding:
        """Run all levels until a seed breaks, and check that this seed passes without the bug."""
        playing = {asyncio.create_task(self._run(self._many(one), bug)): one for one in levels}
        longest = 0.0
        try:
            while playing:
                done, _ = await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    found = read_play(bug, playing.pop(task), task.result())
                    longest = max(longest, found.seconds)
                    if found.is_caught and found.seed is not None:
                        again = await self._try_seed(bug, found.seed)
                        return msgspec.structs.replace(again, seconds=found.seconds)
        finally:
            for task in playing:
                task.cancel()
            await asyncio.gather(*playing, return_exceptions=True)
        return Finding("simulator", is_caught=False, seconds=longest)

    def _many(self, level: int) -> _Command:
        seconds = str(self._seconds - _START_SECONDS)
        drawn = ("--level", str(level), "--first", str(self._first), "--seconds", seconds)
        return ("-m", "tests.sim", "--no-shrink", *drawn)

    # ── processes ───────────────────────────────────────────────────────────────────────

    async def _hold(self, command: _Command) -> None:
        """Run a catcher once without any bug.

        Raises:
            Unusable: If the catcher fails.
        """
        if command not in self._clean:
            self._clean[command] = asyncio.create_task(self._run(command, None))
        ended = await self._clean[command]
        if ended.code != 0:
            raise Unusable(f"fails without any bug: {' '.join(command)}\n{ended.said[-_SAID:]}")

    async def _hold_group(self, together: _Command, apart: list[_Command]) -> None:
        running = asyncio.create_task(self._run(together, None, len(apart) * self._seconds))
        if (await running).code == 0:
            self._clean |= dict.fromkeys(apart, running)

    async def _run(
        self, command: _Command, bug: PlantedBug | None, seconds: float | None = None
    ) -> Ended:
        allowed = seconds or self._seconds
        async with self._free:
            began = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                cwd=ROOT,
                env=environment(bug),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(_limit_processor_time, math.ceil(allowed)),
            )
            code: int | None = None
            said = b""
            try:
                async with asyncio.timeout(_WALL_FACTOR * allowed):
                    said, _ = await process.communicate()
                is_over = process.returncode == -signal.SIGXCPU
                code = None if is_over else process.returncode
            except TimeoutError:
                pass
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
        return Ended(
            code, said.decode(errors="replace").strip(), round(time.monotonic() - began, 1)
        )


def _limit_processor_time(seconds: int) -> None:
    """Let the kernel kill this process when it exceeds the processor time limit."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))


def _run_tests(*tests: str) -> _Command:
    options = ["-q", "-x", "-p", "no:cacheprovider"]
    marks = "not postgres and not nightly"
    return "-m", "pytest", *options, "-m", marks, *tests


def _play(level: int, *seeds: int) -> _Command:
    command = ("-m", "tests.sim", "--no-shrink", "--level", str(level), "--seed")
    return *command, *map(str, seeds)


def read_play(bug: PlantedBug, level: int, ended: Ended) -> Finding:
    """Parse the output of a simulator run.

    Raises:
        Unusable: If the simulator itself failed instead of an invariant.
    """
    if not ended.code:
        return Finding("simulator", is_caught=False, seconds=ended.seconds)
    broken = re.search(r"^seed (\d+): (?:\d+ turns, \w+, )?(.*)$", ended.said, re.MULTILINE)
    if broken is None:
        raise Unusable(f"level {level} cannot be played with {bug.name}: {ended.said[-_SAID:]}")
    _check_names(bug, broken[2])
    seed = Seed(level, int(broken[1]))
    return Finding("simulator", True, ended.seconds, seed, broken[2][:_SAID])


def _check_names(bug: PlantedBug, said: str) -> None:
    """Reject a failure that is caused by the edit itself instead of the planted bug.

    Raises:
        Unusable: If the output shows such a failure.
    """
    if _OF_THE_BUG_ITSELF.search(said):
        raise Unusable(f"{bug.name} itself fails: {said}")
