"""The measurement of each cell, by the same code for all systems."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.daemon import memory_bytes
from benchmarks.harness import percentiles
from benchmarks.peers.figures import AFTER_KILL
from benchmarks.peers.system import Instance, Start, TimedOut, wait_until

__all__ = ("MEASURES", "Cell", "Ledger", "Value", "read_ledger")

IDLE_SECONDS = 5.0
"""Idle time before memory is read. Idle CPU is measured during this time."""

SETTLE_SECONDS = 2.0
"""Pause between the hand-over of waits and the measurement of what they cost."""

WARM_SECONDS = 1.0
"""Pause between the tasks that warm a system up and the reading of its memory."""

WARM_TASKS = 50


class Value(NamedTuple):
    """The value of one figure. If ``size`` is set, it replaces the size of the cell."""

    figure: str
    value: float | None
    note: str = ""
    size: int | None = None


class Cell(NamedTuple):
    """Parameters of a measurement.

    Attributes:
        make: Makes an instance that does not run yet.
        server: Returns the processes of the database server, if there is one.
        programs: Number of programs of the system that share the no-op tasks.
        per_second: Number of waits due per second when their lateness is measured.
    """

    make: Callable[[Start], Instance]
    start: Start
    size: int
    server: Callable[[], list[psutil.Process]] = list
    programs: int = 1
    per_second: float = 100.0


Measure = Callable[[Cell], list[Value]]


@contextlib.contextmanager
def _running(instance: Instance) -> Iterator[Instance]:
    try:
        instance.start()
        yield instance
    finally:
        instance.stop()


# ── memory and processor time ───────────────────────────────────────────────────────────


def _unique_bytes(instance: Instance, cell: Cell) -> int:
    """Return the sum of the unique set sizes (USS) of the system and its database server."""
    return memory_bytes([*instance.resident(), *cell.server()])["uss"]


def _bytes_without_waits(instance: Instance, cell: Cell) -> int:
    """Return the memory after some tasks, before there are waits."""
    instance.ask("tasks", kind="async", count=min(WARM_TASKS, cell.size))
    time.sleep(WARM_SECONDS)
    return _unique_bytes(instance, cell)


def cpu_seconds(processes: Iterable[psutil.Process]) -> Counter[int]:
    """Return the processor time of each process and of those children it has waited for."""
    spent: Counter[int] = Counter()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            own, children = times.user + times.system, times.children_user + times.children_system
            spent[process.pid] = round((own + children) * 1_000_000)
    return spent


def cpu_between(before: Mapping[int, int], after: Mapping[int, int]) -> float:
    """Return the seconds of processor time that was spent between two readings.

    A process that ended between them is counted in its parent, if the parent waited for it.
    """
    return sum(max(0, spent - before.get(pid, 0)) for pid, spent in after.items()) / 1_000_000


# ── the cells ───────────────────────────────────────────────────────────────────────────


def start(cell: Cell) -> list[Value]:
    """Measure the second start in the same folder, because the first one creates the tables."""
    with _running(cell.make(cell.start)):
        pass
    instance = cell.make(cell.start)
    try:
        ready = instance.start()
        time.sleep(IDLE_SECONDS)
        memory = _unique_bytes(instance, cell)
    finally:
        instance.stop()
    return [Value("start_ready", ready), Value("start_memory", memory / 2**20)]


def tasks(kind: str, cell: Cell) -> list[Value]:
    """Measure no-op tasks that do not depend on each other, shared by the system's programs."""
    with contextlib.ExitStack() as running:
        threads = running.enter_context(ThreadPoolExecutor())  # closed last: stops end its requests
        instances = [running.enter_context(_running(cell.make(cell.start)))]
        for number in range(1, cell.programs):
            folder = cell.start.folder / f"more{number}"
            more = cell.start._replace(folder=folder, role="more")
            instances.append(running.enter_context(_running(cell.make(more))))
        _share(threads, instances, kind, min(WARM_TASKS, cell.size))
        before = cpu_seconds(_all(instances, cell))
        seconds = _share(threads, instances, kind, cell.size)
        spent = cpu_between(before, cpu_seconds(_all(instances, cell)))
    return [
        Value(f"tasks_{kind}", cell.size / seconds),
        Value(f"tasks_{kind}_per_core", cell.size / spent if spent else None),
    ]


def _all(instances: Sequence[Instance], cell: Cell) -> list[psutil.Process]:
    return [*(one for each in instances for one in each.processes()), *cell.server()]


def _share(
    threads: ThreadPoolExecutor, instances: Sequence[Instance], kind: str, count: int
) -> float:
    """Let all instances do their parts at the same time; return the seconds until all are done."""
    first, *others = instances
    part = count // len(instances)
    began = time.monotonic()
    asked = [threads.submit(each.ask, "tasks", kind=kind, count=part) for each in others]
    first.ask("tasks", kind=kind, count=count - part * len(others))
    for one in asked:
        one.result()
    return time.monotonic() - began


def chain(cell: Cell) -> list[Value]:
    """Measure a chain from the request to the end of its last hop, after a chain to warm up.

    The value is the time per hop.
    """
    with _running(cell.make(cell.start)) as instance:
        instance.ask("chain", hops=2)
        seconds = instance.ask("chain", hops=cell.size)["seconds"]
    return [Value("chain", 1000 * seconds / cell.size)]


def fan(figure: str, cell: Cell) -> list[Value]:
    """Measure from the request to the end of the fan-in. Its sum is checked."""
    with _running(cell.make(cell.start)) as instance:
        instance.ask("fan", count=10)
        answer = instance.ask("fan", count=cell.size)
    total, right = answer["total"], cell.size * (cell.size - 1)
    assert total == right, f"the sum of the results is {total}, not {right}"
    return [Value(figure, answer["seconds"])]


def waits(cell: Cell) -> list[Value]:
    """Measure the hand-over of waits, their cost, and how long their common end takes."""
    with _running(cell.make(cell.start)) as instance:
        bare = _bytes_without_waits(instance, cell)
        handed = instance.ask("waits", count=cell.size)["seconds"]
        idle, held = _idle(instance, cell)
        ended = instance.ask("waits_end")["seconds"]
    return [
        Value("waits_handed_over", handed),
        Value("waits_bytes", max(0.0, (held - bare) / cell.size)),
        Value("waits_idle", idle),
        Value("waits_ended", ended),
    ]


def _idle(instance: Instance, cell: Cell) -> tuple[float, int]:
    """Return the processor time, in percent of a core, and the memory of all idle processes."""
    time.sleep(SETTLE_SECONDS)
    before, began = cpu_seconds(_all([instance], cell)), time.monotonic()
    time.sleep(IDLE_SECONDS)
    after = cpu_seconds(_all([instance], cell))
    percent = 100 * cpu_between(before, after) / (time.monotonic() - began)
    return percent, _unique_bytes(instance, cell)


def lateness(cell: Cell) -> list[Value]:
    """Measure the time from when a wait is due to the next line that runs, by the wall clock."""
    with _running(cell.make(cell.start)) as instance:
        per_second = cell.per_second
        instance.ask("lateness", count=min(20, cell.size), per_second=per_second)
        late = instance.ask("lateness", count=cell.size, per_second=per_second)["late_ms"]
    assert len(late) == cell.size, f"{len(late)} of {cell.size} resumed"
    found = percentiles(late)
    return [Value("lateness_p50", found["p50"]), Value("lateness_p99", found["p99"])]


class Ledger(NamedTuple):
    """What the tasks wrote themselves: the numbers of the tasks, in the order of the lines."""

    started: list[int]
    ended: list[int]


def read_ledger(file: Path, after: int = 0) -> Ledger:
    """Read the lines ``start N`` and ``end N`` after a byte offset."""
    if not file.exists():
        return Ledger([], [])
    words = [line.split() for line in file.read_bytes()[after:].decode().splitlines()]
    return Ledger(*([int(w[1]) for w in words if w[0] == kind] for kind in ("start", "end")))


def kill(cell: Cell) -> list[Value]:
    """Kill the system once all tasks were handed over and a tenth has ended; start it again."""
    ledger = cell.start.folder / "ledger"
    everyone = set(range(cell.size))
    with _running(cell.make(cell.start._replace(in_flight=cell.size))) as instance:
        instance.ask("flight", count=cell.size, ledger=str(ledger))
        some = cell.size / 10
        wait_until(
            lambda: len(read_ledger(ledger).ended) >= some, cell.start.seconds, look_seconds=0.02
        )
        instance.kill()
        killed = read_ledger(ledger)
        running = len(set(killed.started) - set(killed.ended))
        was = ledger.stat().st_size
        recorded = set(instance.recorded())
        began = time.monotonic()
        instance.start()
        with contextlib.suppress(Exception):
            instance.ask("again")  # the user's recovery step after a crash, if any
        with contextlib.suppress(TimedOut):
            left = AFTER_KILL * cell.start.seconds
            wait_until(lambda: set(read_ledger(ledger).ended) >= everyone, left, look_seconds=0.02)
        seconds = time.monotonic() - began
    lost = len(everyone - set(read_ledger(ledger).ended))
    again = read_ledger(ledger, was).started
    unrecorded = len(set(killed.ended) & set(again) - recorded)
    note = (
        f"{running} ran at the kill, {len(recorded)} had a recorded success, {len(again)} started"
        f" after it, of which {unrecorded} had ended unrecorded"
    )
    return [
        Value("kill_lost", lost, note),
        Value("kill_twice", len(recorded & set(again)), note),
        Value("kill_ended", None if lost else seconds, f"{lost} never ended" if lost else note),
    ]


def immediate(cell: Cell) -> list[Value]:
    """Count the tasks that did not end although their waits were over from the beginning."""
    with _running(cell.make(cell.start)) as instance:
        ended = instance.ask("immediate", count=cell.size)["ended"]
    return [Value("immediate_lost", cell.size - ended)]


def density(cell: Cell) -> list[Value]:
    """Measure the cost of 100, 1,000, ... waits, until the time limit is reached."""
    values, count = [], 0
    with _running(cell.make(cell.start)) as instance:
        bare = _bytes_without_waits(instance, cell)
        wanted = 100
        while wanted <= cell.size:
            try:
                instance.ask("waits", count=wanted - count, far=True)
            except TimedOut:
                note = f"not handed over in {cell.start.seconds:g} s"
                values += [
                    Value(name, None, note, wanted) for name in ("density_bytes", "density_idle")
                ]
                break
            count = wanted
            idle, held = _idle(instance, cell)
            values.append(Value("density_bytes", max(0, held - bare) / count, size=count))
            values.append(Value("density_idle", idle, size=count))
            wanted *= 10
    return values


MEASURES: Mapping[str, Measure] = {
    "start": start,
    "tasks_async": lambda cell: tasks("async", cell),
    "tasks_def": lambda cell: tasks("def", cell),
    "chain": chain,
    "fan_1000": lambda cell: fan("fan_1000", cell),
    "fan_10000": lambda cell: fan("fan_10000", cell),
    "waits": waits,
    "lateness": lateness,
    "kill": kill,
    "immediate": immediate,
    "density": density,
}
