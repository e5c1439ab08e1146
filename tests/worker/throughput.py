"""Throughput and memory of the child processes. Run manually, never by pytest.

Claims under test: a slot worker runs more than 15,000 no-op tries/s, the async host more than
20,000 trivial coroutines/s, both with a peer that only feeds and counts; every role is ready in
less than 80 ms. Method: one real child, one socketpair; tries are sent 64 ahead, as the daemon does
with tries it expects to be short. No database and no engine is involved.

    python -m tests.worker.throughput
"""

from __future__ import annotations

import json
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from aioflow.protocol.commands import Parse, Recall, StartTrigger
from aioflow.protocol.reports import Report
from aioflow.worker.crash_recorder import CrashRecorder, Stepped
from tests.worker.peer import VERSION, Child, Guest, run_info, start, write_version

FLOW = """
import asyncio
from aioflow import Trigger, TriggerEvent, dag, task
from dataclasses import dataclass

@task
def nothing() -> None: ...

@task
async def soon() -> None: ...

@task
def plus(x: int) -> int:
    return x + 1

@dag
def pipeline():
    nothing()
    soon()
    plus(nothing.override(task_id="source")())

@dataclass
class Never(Trigger[int]):
    n: int
    async def run(self):
        await asyncio.Event().wait()
        yield TriggerEvent(1)

@dataclass
class Soon(Trigger[int]):
    n: int
    async def run(self):
        yield TriggerEvent(self.n)
"""


def tries_per_second(home: Path, role: str, task_index: int, count: int, **options: Any) -> float:
    """Return how many tries one child runs per second, fed 64 ahead (512 for coroutines)."""
    ahead = 64 if role == "slot" else 512
    decoder = msgspec.msgpack.Decoder(list[Report])
    orders = [start(task_index, task_no=1_000 + n, **options) for n in range(count)]
    with Child(role, home, started=True) as child:
        child.send(run_info(), start(task_index, task_no=999, **options))
        child.expect(Report.__args__[1])
        began = time.perf_counter()
        child.send(*orders[:ahead])
        sent, done, buffer = ahead, 0, bytearray()
        while done < count:
            buffer += child.sock.recv(1 << 18)
            ended = 0
            while len(buffer) >= 4:
                end = 4 + int.from_bytes(buffer[:4], "little")
                if len(buffer) < end:
                    break
                ended += sum(hasattr(r, "body") for r in decoder.decode(buffer[4:end]))
                del buffer[:end]
            done += ended
            if ended and sent < count:
                child.send(*orders[sent : sent + ended])
                sent += ended
        return count / (time.perf_counter() - began)


def start_up(home: Path, role: str) -> tuple[float, float]:
    """Return the milliseconds from spawn to the first reply, and the MiB of memory used by then."""
    began = time.perf_counter()
    with Child(role, home, started=True) as child:
        if role == "parser":
            child.send(Parse(str(home / "code" / VERSION), "flow.py"))
        elif role == "slot":
            child.send(Recall(()))
        elif role == "async":
            child.send(run_info(), start(1))
        else:
            child.send(hosting(1, "Soon"))
        child.receive()
        passed = (time.perf_counter() - began) * 1_000
        if role == "parser":
            return passed, 0.0
        return passed, memory(child.process.pid)


def memory(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def hosting(number: int, name: str) -> StartTrigger:
    """Return the command that assigns a trigger of ``FLOW``."""
    kwargs = msgspec.msgpack.encode({"n": number})
    return StartTrigger(
        number, 1, 1, 100, VERSION, f"flow:{name}", kwargs, 1_767_225_600_000_000, None
    )


def hostings(home: Path, count: int) -> dict[str, float]:
    """Return how many triggers are started per second, and the memory of each."""
    with Child("triggers", home, started=True) as child:
        child.send(hosting(0, "Soon"))
        child.receive()
        before = memory(child.process.pid)
        began = time.perf_counter()
        for first in range(1, count, 1_000):
            child.send(*(hosting(n, "Never") for n in range(first, first + 1_000)))
        child.send(hosting(count + 1, "Soon"))
        child.receive()
        seconds = time.perf_counter() - began
        kib = (memory(child.process.pid) - before) * 1024 / count
    return {"hostings_per_s": round(count / seconds), "kib_each": round(kib, 2)}


def step_cost() -> dict[str, float]:
    """Return the nanoseconds of a coroutine's step, without and with the crash recorder."""

    class Pause:
        def __await__(self):
            yield

    async def steps() -> None:
        for _ in range(1_000_000):
            await Pause()

    def measure(coroutine) -> float:
        began = time.perf_counter_ns()
        try:
            while True:
                coroutine.send(None)
        except StopIteration:
            return (time.perf_counter_ns() - began) / 1_000_000

    return {
        "bare_ns": round(measure(steps())),
        "boxed_ns": round(measure(Stepped(steps(), Guest(7), CrashRecorder()))),
    }


def main() -> None:
    """Measure everything, and print one JSON line for each figure."""
    socket.setdefaulttimeout(60)
    home = Path(tempfile.mkdtemp())
    write_version(home, flow=FLOW)
    for role in ("parser", "slot", "async", "triggers"):
        figures = sorted(start_up(home, role) for _ in range(5))
        print(json.dumps({"start_up": role, "ms": round(figures[2][0]), "mib": figures[2][1]}))
    print(json.dumps({"slot_per_s": round(tries_per_second(home, "slot", 0, 60_000))}))
    given = {"results": {3: b"\x07"}, "at_hand": (3,)}
    per_second = tries_per_second(home, "slot", 2, 60_000, **given)
    print(json.dumps({"slot_with_argument_per_s": round(per_second)}))
    print(json.dumps({"async_per_s": round(tries_per_second(home, "async", 1, 60_000))}))
    print(json.dumps({"step": step_cost()}))
    print(json.dumps({"triggers": hostings(home, 100_000)}))


if __name__ == "__main__":
    main()
