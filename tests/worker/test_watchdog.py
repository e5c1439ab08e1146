"""Code that blocks the loop of a shared host is named while it blocks, and no other code is."""

from __future__ import annotations

import itertools
import os
import pathlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.author.codec import encode
from aioflow.protocol.commands import StartTrigger
from aioflow.protocol.reports import TriggerFired
from aioflow.worker.watchdog import (
    LATE_LOOKS,
    LINE_LIMIT,
    BlockedLoop,
    BlockedLoopReader,
    Standstill,
    blocked_loop_line,
    source_location_of,
)
from tests.worker.peer import NONCE, VERSION, run_info, start, write_version

PERIOD = 0.02
STALL = BlockedLoop(3, 7, 120, "flow.py:12 in Slow.run")

# ── how long one step has been going on ──────────────────────────────────────────────────


def looks(*gaps: tuple[float, float]) -> float:
    """Return the counted time after checks with these delays and CPU times."""
    standstill = Standstill(PERIOD)
    now, used = 100.0, 5.0
    standstill.begin(now, used)
    for late, busy in gaps:
        now, used = now + late, used + busy
        standstill.check(now, used)
    return standstill.seconds


def test_looks_that_come_when_due_count_as_they_come():
    assert looks(*[(PERIOD, 0.0)] * 10) == pytest.approx(10 * PERIOD)


def test_a_process_that_was_stopped_is_not_a_step_that_stands():
    assert looks((3600.0, 0.0)) == LATE_LOOKS * PERIOD


def test_code_in_c_that_lets_no_thread_in_counts_for_as_long_as_it_computes():
    assert looks((2.0, 1.9)) == pytest.approx(1.9)


# ── the line ─────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.integers(1, 60), max_size=8), st.text(st.characters(exclude_characters="\x1e")))
def test_lines_are_taken_out_of_what_is_printed_in_whatever_pieces_they_come(sizes, text):
    around = text.encode("utf-8", "backslashreplace")
    data = (
        around
        + blocked_loop_line(STALL, b"abcd")
        + around
        + blocked_loop_line(STALL, b"abcd")
        + b"end"
    )
    lines = BlockedLoopReader("abcd")
    printed, blocks = b"", []
    pieces = iter(data)

    for size in itertools.chain(sizes, itertools.repeat(50)):
        piece = bytes(itertools.islice(pieces, size))
        if not piece:
            break
        more, found = lines.feed(piece)
        printed, blocks = printed + more, blocks + found

    assert (printed, blocks) == (around + around + b"end", [STALL, STALL])


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(blocked_loop_line(STALL, b"guess"), id="another-nonce"),
        pytest.param(b"\x1eabcd stal", id="almost"),
        pytest.param(b"\x1e" * 10, id="bytes-that-begin-one"),
    ],
)
def test_a_line_without_the_nonce_is_user_output(line):
    lines = BlockedLoopReader("abcd")

    printed, blocks = lines.feed(line + b"\n")

    assert (printed, blocks) == (line + b"\n", [])


def test_a_line_that_is_none_though_it_has_the_nonce_is_dropped():
    lines = BlockedLoopReader("abcd")

    assert lines.feed(b"a\x1eabcd stall {]\nb") == (b"ab", [])


def test_a_line_fits_into_one_piece_of_the_pipe_however_long_the_path():
    longest = blocked_loop_line(BlockedLoop(1, 1 << 60, 1 << 40, "\udcff" * 10_000), NONCE.encode())

    assert len(longest) <= LINE_LIMIT
    assert longest.endswith(b"\n")


# ── source location ──────────────────────────────────────────────────────────────────────


def frame_in(path: str, source: str, **names: object):
    """Return the frame in which code that seems to be in the given file calls ``look``."""
    seen = []
    space = {"look": lambda: seen.append(sys._getframe(1)), **names}
    exec(compile(source, path, "exec"), space)
    return seen[0]


def test_the_line_of_the_user_is_named_and_not_the_library_it_calls():
    def library(call):
        call()

    frame = frame_in("/code/v1/flows/a.py", "\n\nlibrary(look)", library=library)

    assert source_location_of(frame, "/code/") == ("flows/a.py:3 in <module>", False)


def test_without_a_user_line_the_package_is_named():
    frame = frame_in("/x/site-packages/driver.py", "look()")

    assert source_location_of(frame, "/code/") == (
        "/x/site-packages/driver.py:1 in <module>",
        False,
    )


def test_importing_is_distinguished():
    frame = frame_in("<frozen importlib._bootstrap>", "run('look()', {'look': look})", run=exec)

    assert source_location_of(frame, "/code/")[1]


# ── a real host ──────────────────────────────────────────────────────────────────────────

HEAD = """
import asyncio, contextlib, os, sys, time
from dataclasses import dataclass
from aioflow import *

class Soon(Trigger):
    async def run(self):
        yield TriggerEvent(1)

@dataclass(frozen=True)
class Busy(Trigger):
    steps: int
    async def run(self):
        for _ in range(self.steps):
            await asyncio.sleep(0.001)
        yield TriggerEvent(1)
"""

FIFO = """
@dataclass(frozen=True)
class Blocks(Trigger):
    path: str
    async def run(self):
        await asyncio.sleep(0)
        with open(self.path):  # blocks until another process writes
            pass
        yield TriggerEvent(1)
"""


@pytest.fixture
def host(home, spawn):
    """Return a function that starts a trigger host for the classes of a DAG file."""

    def host(source: str = "", **options: object):
        write_version(home, flow=HEAD + source)
        return spawn("triggers", **options)

    return host


def hosting(name: str, trigger_no: int = 1, **fields: object) -> StartTrigger:
    kwargs = encode(fields, "")
    return StartTrigger(trigger_no, 1, 1, 100, VERSION, f"flow:{name}", kwargs, 0, None)


def stalls_in(output: bytes) -> list[BlockedLoop]:
    return BlockedLoopReader(NONCE).feed(output)[1]


def steps_in(output: bytes) -> list[BlockedLoop]:
    """Return the blocks except those by imports, which take as long on a slow machine."""
    return [block for block in stalls_in(output) if not block.is_loading]


def first(output: bytes) -> BlockedLoop | None:
    return next(iter(steps_in(output)), None)


def last(output: bytes) -> BlockedLoop | None:
    return next((block for block in steps_in(output) if block.is_over), None)


@pytest.mark.process
def test_blocking_code_is_named_with_its_line_at_once_and_measured_at_its_end(host, home):
    child = host(FIFO)
    gate = str(home / "gate")
    os.mkfifo(gate)
    child.send(hosting("Blocks", 7, path=gate), *(hosting("Busy", n, steps=5) for n in (8, 9)))

    named = child.printed(first)

    assert (named.number, named.is_over, named.is_loading) == (7, False, False)
    line = (HEAD + FIFO).partition("# blocks until")[0].count("\n") + 1
    assert named.source_location == f"flow.py:{line} in Blocks.run"
    assert named.milliseconds >= 100

    with pathlib.Path(gate).open("w"):
        pass
    assert {child.expect(TriggerFired).trigger_no for _ in range(3)} == {7, 8, 9}
    over = child.printed(last)
    assert (over.incident, over.source_location) == (named.incident, named.source_location)
    assert over.milliseconds >= named.milliseconds


@pytest.mark.process
def test_it_is_named_again_when_it_continues(host, home):
    child = host(FIFO)
    gate = str(home / "gate")
    os.mkfifo(gate)
    child.send(hosting("Blocks", 7, path=gate))

    named, again = child.printed(lambda output: steps_in(output)[1:] and steps_in(output)[:2])

    assert again.milliseconds >= 400
    assert again.incident == named.incident


@pytest.mark.process
def test_a_loop_that_computes_is_named(host, home):
    child = host(
        """
@dataclass(frozen=True)
class Spins(Trigger):
    path: str
    async def run(self):
        while not os.path.exists(self.path):
            pass
        yield TriggerEvent(1)
"""
    )
    child.send(hosting("Spins", 7, path=str(home / "flag")))

    named = child.printed(first)

    assert named.number == 7
    assert "in Spins.run" in named.source_location
    (home / "flag").touch()
    child.expect(TriggerFired)


@pytest.mark.process
def test_code_in_c_that_lets_no_thread_in_is_named_once_it_does(host):
    child = host(
        """
class Counts(Trigger):
    async def run(self):
        await asyncio.sleep(0)
        for _ in range(3):  # the watchdog gets in twice, however slow the machine is
            sum(range(20_000_000))
        yield TriggerEvent(1)
"""
    )
    child.send(hosting("Counts", 7))

    named = child.printed(first)

    assert named.number == 7
    assert "in Counts.run" in named.source_location


@pytest.mark.process
def test_a_coroutine_is_named_too(home, spawn):
    gate = str(home / "gate")
    os.mkfifo(gate)
    source = f"""
from aioflow import dag, task

@task
async def block():
    with open({gate!r}):
        pass

@dag
def pipeline():
    block()
"""
    write_version(home, flow=source)
    child = spawn("async")
    child.send(run_info(), start(0))

    named = child.printed(first)

    assert named.number == 100
    assert named.source_location == "flow.py:6 in block"
    with pathlib.Path(gate).open("w"):
        pass


@pytest.mark.process
def test_many_that_only_wait_are_never_named(host):
    child = host()
    child.send(hosting("Soon", 1000))
    child.expect(TriggerFired)  # all is imported

    child.send(*(hosting("Busy", number, steps=300) for number in range(1, 101)))
    for _ in range(100):
        child.expect(TriggerFired)
    child.close()

    assert steps_in(child.output()) == []


@pytest.mark.process
def test_the_nonce_is_nowhere_user_code_looks_for_it(host):
    child = host(
        """
class Tells(Trigger):
    async def run(self):
        yield TriggerEvent([name for name in os.environ if name.startswith("AIOFLOW")])
""",
        started=True,
    )
    child.send(hosting("Tells"))

    assert child.expect(TriggerFired).payload == encode([], "")


@pytest.mark.process
@pytest.mark.parametrize("is_on", [True, False])
def test_asyncios_own_debug_mode_is_honoured(host, is_on):
    child = host(
        """
class Tells(Trigger):
    async def run(self):
        yield TriggerEvent(asyncio.get_running_loop().get_debug())
""",
        environment={"PYTHONASYNCIODEBUG": "1"} if is_on else {},
    )
    child.send(hosting("Tells"))

    assert child.expect(TriggerFired).payload == encode(is_on, "")
