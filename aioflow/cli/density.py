"""The cost of a deferred trigger in bytes and in idle processor time, and a plot of it.

A separate daemon on a temporary home defers many triggers of one kind. The bytes per trigger are
the increase of the proportional set size (PSS) of all its processes, divided by the number of
triggers. For comparison, each figure is reported with the cost of as many bare ``asyncio`` tasks in
one process, because a sleeping coroutine cannot cost less. Events are not measured, and neither are
other resources of a real trigger, such as an open connection.

Both ``aioflow bench density`` and ``benchmarks/density.py`` use this module. It is in the package
because the wheel contains the command, but not the benchmarks. matplotlib is imported only for a
plot; the extra ``plot`` installs it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep  # noqa: TID251 - a command has no loop to block
from types import ModuleType
from typing import Any, Literal, TypeAlias

import msgspec
import psutil

from aioflow.cli.client import Client, Refused, connect_home
from aioflow.errors import AioflowError, SettingsError
from aioflow.processes.orphans import Record

__all__ = (
    "KINDS",
    "SHAPES",
    "Bare",
    "Density",
    "Shape",
    "import_matplotlib",
    "measure",
    "measure_bare",
    "write_density_plot",
    "write_svg",
)

Shape: TypeAlias = Literal["wide", "runs"]

KINDS = ("time", "file", "run", "private", "mixed")
"""Kinds of triggers. ``private`` is a class in the DAG file, each trigger of which has a coroutine;
``mixed`` alternates between all kinds.
"""

SHAPES: tuple[Shape, ...] = ("wide", "runs")
"""Shapes of the workload: one run with one mapped task, or many runs with one task each."""

_DAG = """
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from aioflow import Operator, Trigger, TriggerEvent, dag, task
from aioflow_triggers.external import RunTrigger
from aioflow_triggers.files import FileTrigger
from aioflow_triggers.temporal import DateTimeTrigger

KINDS = ("time", "file", "run", "private")


@dataclass(frozen=True)
class Private(Trigger[None]):
    number: int

    async def run(self) -> AsyncIterator[TriggerEvent[None]]:
        await asyncio.sleep(30 * 86_400)
        yield TriggerEvent(None)


def trigger(kind: str, number: int) -> Any:
    match KINDS[number % len(KINDS)] if kind == "mixed" else kind:
        case "time":
            return DateTimeTrigger(moment=datetime.now(UTC) + timedelta(days=30))
        case "file":
            return FileTrigger(path=f"/tmp/aioflow-density-never/{number}")
        case "run":
            return RunTrigger(dag="one", run_id=f"never-{number}")
        case _:
            return Private(number=number)


class Wait(Operator):
    def __init__(self, *, kind: str, number: int, **options: Any) -> None:
        super().__init__(**options)
        self.kind, self.number = kind, number

    def execute(self, context: Any) -> None:
        self.defer(trigger=trigger(self.kind, self.number), method_name="resumed")

    def resumed(self, context: Any, event: Any = None) -> None:
        return None


@task
async def numbers(count: int) -> list[int]:
    return list(range(count))


@dag
def wide(kind: str = "time", count: int = 1) -> None:
    Wait.partial(task_id="wait", kind=kind, map_limit=2_000_000).expand(number=numbers(count))


@dag(max_active_runs=1_000_000)
def one(kind: str = "time", number: int = 0) -> None:
    Wait(task_id="wait", kind=kind, number=number)
"""

_BARE = """
import asyncio, json, sys
import psutil, uvloop

async def main(count, seconds):
    process = psutil.Process()
    before = process.memory_full_info().uss
    tasks = [asyncio.create_task(asyncio.sleep(30 * 86_400)) for _ in range(count)]
    await asyncio.sleep(0.1)
    held = process.memory_full_info().uss - before
    began = sum(process.cpu_times()[:2])
    await asyncio.sleep(seconds)
    took = sum(process.cpu_times()[:2]) - began
    print(json.dumps([held, took]), flush=True)
    for task in tasks:
        task.cancel()

uvloop.run(main(int(sys.argv[1]), float(sys.argv[2])))
"""

_WARM = 64  # triggers that are deferred before the first measurement
_STILL = 0.002  # share by which stable memory may change between two measurements
_STOP_SECONDS = 30.0


class Bare(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of bare ``asyncio`` tasks that sleep, for comparison."""

    bytes_each: int
    idle_us_each: float


class Density(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of the deferred triggers of one daemon.

    Attributes:
        bytes_each: Bytes per trigger, in all processes.
        bytes_by_role: ``bytes_each`` by process: ``daemon``, ``triggers``, ``async``, ``slot``.
        idle_percent: Share of one core that all processes together use while all triggers wait.
        idle_us_each: Microseconds of processor time per second and trigger, in addition to what
            the daemon used before it had the triggers.
        defer_seconds: Time from the request until the last trigger was deferred.
    """

    kind: str
    shape: Shape
    triggers: int
    bytes_each: int
    bytes_by_role: dict[str, int]
    idle_percent: float
    idle_us_each: float
    defer_seconds: float
    bare: Bare


class _Broken(AioflowError):
    code = "bench.daemon"


def measure(
    kind: str, triggers: int, *, shape: Shape = "wide", seconds: float = 10.0, slots: int = 2
) -> Density:
    """Start a daemon, defer triggers on it, and measure their cost.

    Args:
        kind: One of ``KINDS``.
        triggers: The number of triggers.
        shape: One of ``SHAPES``.
        seconds: How long to measure the idle processor time. It should exceed the five seconds
            between two checks of a file.
        slots: Number of worker processes of the daemon.
    """
    bare = measure_bare(triggers, seconds=min(seconds, 2.0))
    with (
        tempfile.TemporaryDirectory(prefix="aioflow-density-") as folder,
        _daemon(Path(folder), slots, capacity=triggers + 2 * _WARM) as node,
    ):
        node.defer(kind, _WARM, shape)
        before, idle_before = node.weigh(), node.cpu_seconds(seconds)
        began = monotonic()
        node.defer(kind, triggers, shape)
        took = monotonic() - began
        after, idle = node.weigh(), node.cpu_seconds(seconds)
    held = {role: (after[role] - before[role]) // triggers for role in sorted(after)}
    return Density(
        kind=kind,
        shape=shape,
        triggers=triggers,
        bytes_each=(after.total() - before.total()) // triggers,
        bytes_by_role=held,
        idle_percent=round(100 * idle / seconds, 2),
        idle_us_each=round((idle - idle_before) * 1e6 / seconds / triggers, 3),
        defer_seconds=round(took, 2),
        bare=bare,
    )


def measure_bare(tasks: int, *, seconds: float = 2.0) -> Bare:
    """Measure the cost of ``tasks`` bare ``asyncio`` tasks in a separate process."""
    command = [sys.executable, "-c", _BARE, str(tasks), str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    held, took = json.loads(done.stdout)
    idle = round(took * 1e6 / seconds / tasks, 3)
    return Bare(bytes_each=held // tasks, idle_us_each=idle)


def import_matplotlib() -> ModuleType:
    """Import the library that draws plots.

    Raises:
        SettingsError: If the extra ``plot`` is not installed.
    """
    try:
        import matplotlib.figure
    except ModuleNotFoundError as exc:
        if exc.name != "matplotlib":
            raise
        hint = "pip install 'aioflow-engine[plot]'"
        raise SettingsError(f"a plot needs matplotlib: {hint}") from exc
    return matplotlib


def write_density_plot(file: Path, found: Sequence[Density]) -> None:
    """Plot the bytes per trigger over the number of triggers, and write the plot as SVG.

    Raises:
        SettingsError: See ``import_matplotlib``.
    """
    new_figure = import_matplotlib().figure.Figure
    lines: dict[str, dict[int, int]] = {}
    bare: dict[int, int] = {}
    for one in found:
        lines.setdefault(one.kind, {})[one.triggers] = one.bytes_each
        bare[one.triggers] = one.bare.bytes_each
    figure = new_figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for kind, points in lines.items():
        axes.plot(*zip(*sorted(points.items()), strict=True), marker="o", label=kind)
    axes.plot(*zip(*sorted(bare.items()), strict=True), color="grey", label="bare asyncio task")
    axes.set(
        title="A deferred trigger, in all processes",
        xlabel="triggers deferred",
        ylabel="bytes each",
        xscale="log",
    )
    axes.set_ylim(bottom=0)
    axes.legend()
    write_svg(file, figure)


def write_svg(file: Path, figure: Any) -> None:
    """Write a matplotlib figure as SVG. The output is reproducible, and texts remain texts."""
    with import_matplotlib().rc_context({"svg.fonttype": "none", "svg.hashsalt": "aioflow"}):
        figure.savefig(file, format="svg", metadata={"Date": None})


class _Node:
    """A running daemon and its processes."""

    def __init__(self, process: subprocess.Popen[bytes], home: Path, client: Client) -> None:
        self._daemon = psutil.Process(process.pid)
        self._children = home / "run" / "children"
        self._client = client
        self._deferred = 0

    def defer(self, kind: str, count: int, shape: Shape) -> None:
        """Start runs that defer ``count`` more triggers. Wait until all of these are deferred."""
        if shape == "wide":
            self._start("wide", {"kind": kind, "count": count})
        else:
            for number in range(count):
                self._start("one", {"kind": kind, "number": number})
        self._deferred += count
        _until(lambda: self._waiting() == self._deferred, seconds=60 + count / 100)

    def _waiting(self) -> int:
        """Return the number of stored triggers."""
        return sum(kind["count"] for kind in self._client.get("triggers", "summary")["kinds"])

    def _start(self, dag_id: str, conf: dict[str, object]) -> None:
        self._client.post("dags", dag_id, "runs", body={"conf": conf})

    def knows(self, dag_id: str) -> bool:
        """Return whether the DAG's file has been parsed."""
        try:
            self._client.get("dags", dag_id)
        except Refused:
            return False
        return True

    def weigh(self) -> Counter[str]:
        """Wait until the PSS is stable. Return it in bytes, by role of the process."""
        weight = self._weight()

        def is_still() -> bool:
            nonlocal weight
            before, weight = weight, self._weight()
            return abs(weight.total() - before.total()) <= _STILL * weight.total()

        _until(is_still, seconds=60.0, every=0.5)
        return weight

    def _weight(self) -> Counter[str]:
        weight: Counter[str] = Counter()
        for process, role in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                weight[role] += process.memory_full_info().pss
        return weight

    def cpu_seconds(self, seconds: float) -> float:
        """Return the processor time that all processes use together within ``seconds``."""
        before = {process: _cpu_seconds(process) for process, _ in self._processes()}
        sleep(seconds)
        return sum(max(0.0, _cpu_seconds(process) - took) for process, took in before.items())

    def _processes(self) -> Iterator[tuple[psutil.Process, str]]:
        yield self._daemon, "daemon"
        for process in self._daemon.children(recursive=True):
            with contextlib.suppress(FileNotFoundError):  # a parser that has ended
                data = (self._children / str(process.pid)).read_bytes()
                role = msgspec.json.decode(data, type=Record).role
                if role != "parser":
                    yield process, role


@contextlib.contextmanager
def _daemon(folder: Path, slots: int, *, capacity: int) -> Iterator[_Node]:
    """Run a daemon on a home in ``folder``. Yield once it has parsed the DAGs, then stop it."""
    home, dags = folder / "home", folder / "dags"
    dags.mkdir()
    (dags / "density.py").write_text(_DAG)
    command = [
        sys.executable, "-m", "aioflow", "up", "--json", "--log-level", "warning",
        "--home", str(home), "--dags", str(dags), "--port", "0",
        "--cpu-slots", str(slots), "--trigger-capacity", str(max(capacity, 100_000)),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - for the type checker
            if not process.stdout.readline():  # the banner, printed once the daemon is ready
                raise _Broken("the daemon did not start; what it said is above")
            node = _Node(process, home, connect_home(home))
            _until(lambda: node.knows("wide") and node.knows("one"), seconds=60.0)
            yield node
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:  # a parser that ended, or a worker that was replaced
        return 0.0
    return float(times.user + times.system)


def _until(look: Callable[[], bool], *, seconds: float, every: float = 0.05) -> None:
    """Wait until ``look`` returns true.

    Raises:
        AioflowError: If it does not return true within ``seconds``.
    """
    deadline = monotonic() + seconds
    while not look():
        if monotonic() > deadline:
            raise _Broken(f"the daemon did not get this far within {seconds:.0f} s")
        sleep(every)
