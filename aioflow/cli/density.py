"""Cost of a deferred trigger: bytes in all processes, and idle processor time; and plots of it.

A daemon of its own on a temporary home defers many triggers of one kind. The bytes per trigger are
the increase of the proportional set size (PSS) of all its processes, divided by the number of
triggers. Each figure is reported with the same number of bare ``asyncio`` tasks in one process as
yardstick: a sleeping coroutine cannot cost less. Not measured: events, and other resources of a
real trigger, such as an open connection.

The SVG plots are hand-written: they follow the reader's light or dark scheme and need no library.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep  # noqa: TID251 - a command has no loop to block
from typing import Literal, NamedTuple, TypeAlias
from xml.sax.saxutils import escape

import msgspec
import psutil

from aioflow.cli.client import Client, Refused, connect_home
from aioflow.errors import AioflowError
from aioflow.processes.orphans import Record

__all__ = (
    "KINDS",
    "SHAPES",
    "Bar",
    "Bare",
    "Density",
    "Series",
    "Shape",
    "bar_plot",
    "density_plot",
    "line_plot",
    "measure",
    "measure_bare",
)

_SVG_WIDTH = 720
_SVG_STYLE = """
  svg { font: 12px system-ui, sans-serif; background: #ffffff }
  text { fill: #24292f } .dim { fill: #6e7781 } .axis { stroke: #d0d7de }
  .s0 { fill: #2563eb; stroke: #2563eb } .s1 { fill: #d97706; stroke: #d97706 }
  .s2 { fill: #059669; stroke: #059669 } .s3 { fill: #dc2626; stroke: #dc2626 }
  .s4 { fill: #7c3aed; stroke: #7c3aed } .s5 { fill: #6e7781; stroke: #6e7781 }
  path { fill: none !important; stroke-width: 2 } .title { font-weight: 600; font-size: 14px }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117 } text { fill: #e6edf3 } .dim { fill: #8d96a0 }
    .axis { stroke: #30363d }
    .s0 { fill: #60a5fa; stroke: #60a5fa } .s1 { fill: #fbbf24; stroke: #fbbf24 }
    .s2 { fill: #34d399; stroke: #34d399 } .s3 { fill: #f87171; stroke: #f87171 }
    .s4 { fill: #a78bfa; stroke: #a78bfa } .s5 { fill: #8d96a0; stroke: #8d96a0 }
  }
"""
_SVG_COLORS = 5  # and the last one, for yardsticks


class Bar(NamedTuple):
    """One figure, with the yardstick drawn below it."""

    label: str
    value: float
    yardstick: float | None = None


class Series(NamedTuple):
    """One line; a yardstick is grey."""

    label: str
    points: Sequence[tuple[float, float]]
    is_yardstick: bool = False


def bar_plot(title: str, unit: str, rows: Sequence[Bar]) -> str:
    """Draw figures side by side, each above its yardstick, on one scale from 0."""
    left, right, top, high = 210, 90, 44, 40
    values = [value for row in rows for value in (row.value, row.yardstick) if value is not None]
    scale = (_SVG_WIDTH - left - right) / (max(values, default=0) or 1)
    drawn = [_svg_text(16, 26, f"{title} ({unit})", "title")]
    for number, row in enumerate(rows):
        y = top + number * high
        drawn.append(_svg_text(left - 10, y + 17, row.label, anchor="end"))
        drawn.append(_svg_bar(left, y + 4, row.value * scale, 14, "s0"))
        drawn.append(_svg_text(left + row.value * scale + 6, y + 15, _svg_number(row.value)))
        if row.yardstick is not None:
            length = row.yardstick * scale
            drawn.append(_svg_bar(left, y + 20, length, 8, "s5"))
            drawn.append(_svg_text(left + length + 6, y + 28, _svg_number(row.yardstick), "dim"))
    height = top + len(rows) * high + 28
    drawn.append(_svg_text(left, height - 10, "grey: the yardstick, in the same run", "dim"))
    return _svg(height, drawn)


def line_plot(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> str:
    """Draw lines with a logarithmic x axis; the y axis begins at 0."""
    left, right, top, bottom, height = 80, 170, 50, 50, 360
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    low, span = math.log10(min(xs)), (math.log10(max(xs)) - math.log10(min(xs))) or 1.0
    peak = max(ys) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + (math.log10(x) - low) / span * (_SVG_WIDTH - left - right),
            height - bottom - y / peak * (height - top - bottom),
        )

    drawn = [_svg_text(16, 26, title, "title"), _svg_text(left, top - 8, y_label, "dim")]
    drawn += [
        _svg_text(place(x, 0)[0], height - bottom + 18, _svg_number(x), anchor="middle")
        for x in sorted(set(xs))
    ]
    for part in (0.0, 0.5, 1.0):
        y = place(xs[0], part * peak)[1]
        drawn.append(
            f'<line class="axis" x1="{left}" x2="{_SVG_WIDTH - right}" y1="{y}" y2="{y}"/>'
        )
        drawn.append(_svg_text(left - 8, y + 4, _svg_number(part * peak), anchor="end"))
    middle = (left + _SVG_WIDTH - right) / 2
    drawn.append(_svg_text(middle, height - 10, x_label, "dim", anchor="middle"))
    for number, one in enumerate(series):
        color = f"s{_SVG_COLORS}" if one.is_yardstick else f"s{number % _SVG_COLORS}"
        drawn += _svg_line([place(x, y) for x, y in one.points], color)
        y = top + 18 * number
        drawn.append(_svg_bar(_SVG_WIDTH - right + 16, y, 12, 4, color))
        drawn.append(_svg_text(_SVG_WIDTH - right + 34, y + 7, one.label))
    return _svg(height, drawn)


def _svg_line(points: Sequence[tuple[float, float]], color: str) -> Iterable[str]:
    way = " L ".join(f"{x:.1f} {y:.1f}" for x, y in points)
    yield f'<path class="{color}" d="M {way}"/>'
    for x, y in points:
        yield f'<circle class="{color}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'


def _svg_bar(x: float, y: float, width: float, height: float, color: str) -> str:
    wide = max(width, 1)
    return f'<rect class="{color}" x="{x}" y="{y}" width="{wide:.1f}" height="{height}"/>'


def _svg_text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg_number(value: float) -> str:
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _svg(height: int, drawn: Iterable[str]) -> str:
    size = f'width="{_SVG_WIDTH}" height="{height}" viewBox="0 0 {_SVG_WIDTH} {height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{_SVG_STYLE}</style>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


Shape: TypeAlias = Literal["wide", "runs"]

KINDS = ("time", "file", "run", "private", "mixed")
"""``private``: a trigger class of the DAG file with its own coroutine; ``mixed``: all by turns."""

SHAPES: tuple[Shape, ...] = ("wide", "runs")
"""One run with one mapped task, or as many runs with one task each."""

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

_WARM = 64  # triggers of the kind that are deferred before the first measurement
_STILL = 0.002  # share of the memory that may change between two measurements
_PAGE = 1_000
_STOP_SECONDS = 30.0


class Bare(msgspec.Struct, frozen=True, kw_only=True):
    """The yardstick: as many bare ``asyncio`` tasks that sleep."""

    bytes_each: int
    idle_us_each: float


class Density(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of the deferred triggers of one daemon.

    Attributes:
        bytes_each: In all processes, per trigger.
        bytes_by_role: ``bytes_each`` by process: ``daemon``, ``triggers``, ``async``, ``slot``.
        idle_percent: Share of one core that all processes use while all triggers wait.
        idle_us_each: Microseconds of processor time per second and trigger, beyond what the same
            daemon used before it had them.
        defer_seconds: From the request to the last trigger deferred.
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
        seconds: How long the idle processor time is measured; longer than the five seconds between
            two checks of a file.
        slots: Worker processes of the daemon.
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
    """Measure as many bare ``asyncio`` tasks in a process of their own."""
    command = [sys.executable, "-c", _BARE, str(tasks), str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    held, took = json.loads(done.stdout)
    idle = round(took * 1e6 / seconds / tasks, 3)
    return Bare(bytes_each=held // tasks, idle_us_each=idle)


def density_plot(found: Sequence[Density]) -> str:
    """Plot the bytes per trigger over the number of triggers, as SVG."""
    points: dict[str, list[tuple[float, float]]] = {}
    bare: dict[int, int] = {}
    for one in found:
        points.setdefault(one.kind, []).append((one.triggers, one.bytes_each))
        bare[one.triggers] = one.bare.bytes_each
    series = [Series(kind, places) for kind, places in points.items()]
    series.append(Series("bare asyncio task", sorted(bare.items()), is_yardstick=True))
    return line_plot(
        "A deferred trigger, in all processes", "triggers deferred", "bytes each", series
    )


class _Node:
    """A running daemon and its processes."""

    def __init__(self, process: subprocess.Popen[bytes], home: Path, client: Client) -> None:
        self._daemon = psutil.Process(process.pid)
        self._children = home / "run" / "children"
        self._client = client
        self._last = -1  # number of the last trigger seen

    def defer(self, kind: str, count: int, shape: Shape) -> None:
        """Start runs that defer ``count`` more triggers, and wait until all are deferred."""
        if shape == "wide":
            self._start("wide", {"kind": kind, "count": count})
        else:
            for number in range(count):
                self._start("one", {"kind": kind, "number": number})
        seen = 0

        def are_deferred() -> bool:
            nonlocal seen
            while page := self._client.get("triggers", limit=_PAGE, after=self._last):
                seen += len(page)
                self._last = page[-1]["trigger_id"]
            return seen == count

        _until(are_deferred, seconds=60 + count / 100)

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
        """Return the PSS in bytes by role, once it is stable."""
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
    """Run a daemon on a home in that folder until it has parsed the DAGs; stop it at the end."""
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
        AioflowError: If it does not within ``seconds``.
    """
    deadline = monotonic() + seconds
    while not look():
        if monotonic() > deadline:
            raise _Broken(f"the daemon did not get this far within {seconds:.0f} s")
        sleep(every)
