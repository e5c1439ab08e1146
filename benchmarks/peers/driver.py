"""The run of the cells: ours, a peer's, ours, the next peer's, ...; each value becomes a line.

A cell is one measurement of one variant of a system.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

import asyncpg
import psutil

from benchmarks.daemon import fsync_ms, process_tree
from benchmarks.harness import commit_of_checkout
from benchmarks.peers.aioflow import DaemonInstance
from benchmarks.peers.figures import FIGURES, MEASUREMENTS
from benchmarks.peers.lines import OTHERS_LIMIT, Line
from benchmarks.peers.measurements import MEASURES, Cell, Value
from benchmarks.peers.system import (
    Failed,
    Instance,
    ProgramInstance,
    Start,
    System,
    TimedOut,
    Variant,
)
from tests.postgres_server import PostgresServer

__all__ = ("Conditions", "Job", "Machine", "Postgres", "lines_of", "missing", "plan", "run")

LOOK_SECONDS = 0.5
LOOKS = 3
ONCE = frozenset({"density"})
"""Measurements for the first round only: it takes minutes, and has four sizes of its own."""


class Job(NamedTuple):
    """One cell in one round."""

    round: int
    measurement: str
    system: System
    variant: Variant


class Conditions(NamedTuple):
    """The other work of the machine, and the speed of its disk."""

    load: float
    others: float
    fsync_ms: float


class Machine(NamedTuple):
    """Access to systems, databases and the state of this machine. Tests pass a fake one.

    Attributes:
        make: Makes an instance of a system.
        database: Returns a context with the URL of an empty database, or an empty string.
        server: Returns the processes of the database server.
        others: Returns how many cores are in use while nothing of ours runs.
        fsync: Returns the milliseconds of an fsync.
    """

    make: Callable[[System, Variant, Start], Instance]
    database: Callable[[Variant], AbstractContextManager[str]]
    server: Callable[[Variant], list[psutil.Process]]
    others: Callable[[], float]
    fsync: Callable[[Path], float]


# ── what is run, and in which order ─────────────────────────────────────────────────────


def plan(
    ours: System, peers: Sequence[System], measurements: Sequence[str], rounds: int
) -> Iterator[Job]:
    """Yield the cells: one of aioflow, then up to two cells of peers that are compared with it.

    All cells that are compared with the same variant of aioflow are consecutive.
    """
    for number in range(1, rounds + 1):
        for name in measurements:
            if number > 1 and name in ONCE:
                continue
            if not peers:
                yield from (Job(number, name, ours, variant) for variant in ours.variants)
            for mine in ours.variants:
                beside = [
                    Job(number, name, peer, variant)
                    for peer in peers
                    for variant in peer.variants
                    if variant.beside == mine.name and not _is_missing(peer, name)
                ]
                for place, job in enumerate(beside):
                    if place % 2 == 0:
                        yield Job(number, name, ours, mine)
                    yield job


def _is_missing(system: System, measurement: str) -> bool:
    figures = MEASUREMENTS[measurement].figures
    return measurement in system.lacks or all(name in system.lacks for name in figures)


def missing(systems: Sequence[System], measurements: Sequence[str]) -> Iterator[Line]:
    """Yield a line for each figure that a system does not have, with the reason."""
    for system in systems:
        for variant in system.variants:
            for name in measurements:
                for figure in MEASUREMENTS[name].figures:
                    reason = system.lacks.get(figure, system.lacks.get(name, ""))
                    if reason:
                        job = Job(0, name, system, variant)
                        line = _line(job, Value(figure, None, reason), Conditions(0.0, 0.0, 0.0))
                        yield line


# ── one cell ────────────────────────────────────────────────────────────────────────────


def run(
    jobs: Iterator[Job],
    machine: Machine,
    folder: Path,
    seconds: float,
    *,
    tiny: bool = False,
    patience: float = 1.0,
) -> Iterator[Line]:
    """Run the cells until all are done or ``seconds`` have passed; yield the lines.

    A cell that failed or took too long is not run again in a later round.
    """
    until = time.monotonic() + seconds
    given_up: set[tuple[str, str, str]] = set()
    for job in jobs:
        key = (job.system.name, job.variant.name, job.measurement)
        if key in given_up:
            continue
        if time.monotonic() > until:
            print(f"The time is over before {_job_name(job)}", file=sys.stderr)
            return
        found = list(lines_of(job, machine, folder, tiny=tiny, patience=patience))
        if all(line.value is None for line in found):
            given_up.add(key)
        yield from found


def lines_of(
    job: Job, machine: Machine, folder: Path, *, tiny: bool = False, patience: float = 1.0
) -> Iterator[Line]:
    """Run one cell; yield a line per figure, even if the figure has no value."""
    measurement = MEASUREMENTS[job.measurement]
    size = measurement.tiny if tiny else job.system.sizes.get(job.measurement, measurement.size)
    before = _quiet(machine)
    load = os.getloadavg()[0]
    seconds = measurement.seconds * patience
    start = Start(folder / uuid.uuid4().hex[:8], "", seconds, patience=patience)
    values = _values(job, machine, start, size)
    others = max(before, machine.others())
    conditions = Conditions(round(load, 2), round(others, 2), machine.fsync(folder))
    print(f"{_job_name(job)}: {_shown(values)}", file=sys.stderr, flush=True)
    for value in values:
        if value.figure not in job.system.lacks:
            yield _line(job, value._replace(size=value.size or size), conditions)


def _quiet(machine: Machine) -> float:
    """Wait briefly until other processes are idle; return the number of cores they use."""
    used = machine.others()
    for _ in range(LOOKS - 1):
        if used <= OTHERS_LIMIT:
            break
        used = machine.others()
    return used


def _values(job: Job, machine: Machine, start: Start, size: int) -> list[Value]:
    measurement = MEASUREMENTS[job.measurement]
    try:
        with machine.database(job.variant) as database:
            cell = Cell(
                lambda given: machine.make(job.system, job.variant, given),
                start._replace(database=database),
                size,
                lambda: machine.server(job.variant),
                job.system.task_programs if job.variant.needs_postgres else 1,
                job.system.per_second,
            )
            return MEASURES[job.measurement](cell)
    except TimedOut:
        note = f"not within {start.seconds:g} s"
    except Failed as failure:
        note = f"failed: {str(failure).strip().splitlines()[-1]}"
        print(failure, file=sys.stderr)
    except Exception as error:  # noqa: BLE001 - the other cells must still run
        note = f"failed: {error}".splitlines()[0]
        traceback.print_exc()
    return [Value(figure, None, note) for figure in measurement.figures]


def _line(job: Job, value: Value, conditions: Conditions) -> Line:
    figure = FIGURES[value.figure]
    return Line(
        system=job.system.name,
        variant=job.variant.name,
        version=job.system.version,
        measurement=job.measurement,
        figure=value.figure,
        value=None if value.value is None else _rounded(value.value),
        unit=figure.unit,
        size=value.size or 0,
        run=run_id(),
        round=job.round,
        load=conditions.load,
        others=conditions.others,
        fsync_ms=conditions.fsync_ms,
        durability=job.variant.durability,
        note=value.note,
        beside=job.variant.beside,
        commit=commit_of_checkout(),
        cpus=os.cpu_count() or 0,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
    )


@cache
def run_id() -> str:
    """Return the time of the first measurement of this process."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _rounded(value: float) -> float:
    """Round to four significant digits. More would be noise."""
    return float(f"{value:.4g}")


def _job_name(job: Job) -> str:
    return f"round {job.round}, {job.measurement}, {job.system.name} on {job.variant.name}"


def _shown(values: Sequence[Value]) -> str:
    return ", ".join(
        f"{value.figure} {value.note if value.value is None else _rounded(value.value)}"
        for value in values
    )


# ── the real machine ────────────────────────────────────────────────────────────────────


class Postgres:
    """A private server that syncs each commit to the disk, and a database for each cell."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    @contextmanager
    def database(self) -> Iterator[str]:
        """Create an empty database; drop it at the end."""
        name = f"peers_{uuid.uuid4().hex}"
        asyncio.run(self._execute(f"CREATE DATABASE {name}"))
        try:
            yield self._server.url_of(name)
        finally:
            asyncio.run(self._execute(f"DROP DATABASE {name} WITH (FORCE)"))
            asyncio.run(self._execute("CHECKPOINT"))  # so that the next cell does not pay for it

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self._server.url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    def processes(self) -> list[psutil.Process]:
        """Return the server's processes."""
        return process_tree(int(self._server.pid_file.read_text().split()[0]))


def cores_in_use() -> float:
    """Return the average number of cores in use over half a second."""
    return psutil.cpu_percent(interval=LOOK_SECONDS) * (os.cpu_count() or 1) / 100


def real_machine(pythons: Mapping[str, Path], postgres: Postgres) -> Machine:
    """Return the machine that runs real systems."""

    def make(system: System, variant: Variant, start: Start) -> Instance:
        if not system.program:
            return DaemonInstance(variant, start)
        return ProgramInstance(system, pythons[system.name], start)

    @contextmanager
    def database(variant: Variant) -> Iterator[str]:
        if not variant.needs_postgres:
            yield ""
            return
        with postgres.database() as url:
            yield url

    def server(variant: Variant) -> list[psutil.Process]:
        return postgres.processes() if variant.needs_postgres else []

    return Machine(make, database, server, cores_in_use, lambda folder: fsync_ms(folder, 50))
