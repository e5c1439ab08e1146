"""The definitions of the measurements: their figures, sizes and time limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

__all__ = ("FIGURES", "MEASUREMENTS", "Better", "Figure", "Measurement")

Better = Literal["higher", "lower"]


class Figure(NamedTuple):
    """One row of the page."""

    what: str
    unit: str
    better: Better


class Measurement(NamedTuple):
    """One measurement. A system is started for it and stopped after it.

    Attributes:
        what: Describes the work.
        figures: Names of the figures that it gives.
        size: Number of tasks, hops, children or waits, unless a system declares its own.
        tiny: The size for a quick trial.
        seconds: Time limit, from the start of the system to its stop.
    """

    what: str
    figures: tuple[str, ...]
    size: int
    tiny: int
    seconds: float


KILL_SECONDS = 120
AFTER_KILL = 0.6
"""Share of ``KILL_SECONDS`` within which the second start must end all tasks."""

FIGURES: Mapping[str, Figure] = {
    "tasks_async": Figure("durable no-op tasks, `async def`", "tasks/s", "higher"),
    "tasks_async_per_core": Figure(
        "durable no-op tasks, `async def`, per core of everything that runs",
        "tasks per CPU s",
        "higher",
    ),
    "tasks_def": Figure("durable no-op tasks, `def`", "tasks/s", "higher"),
    "tasks_def_per_core": Figure(
        "durable no-op tasks, `def`, per core of everything that runs", "tasks per CPU s", "higher"
    ),
    "chain": Figure("chain of 40, per hop", "ms", "lower"),
    "fan_1000": Figure("fan-out to 1,000 and fan-in", "s", "lower"),
    "fan_10000": Figure("fan-out to 10,000 and fan-in", "s", "lower"),
    "waits_handed_over": Figure("10,000 waits handed over", "s", "lower"),
    "waits_bytes": Figure("one of 10,000 waits, in all processes", "bytes", "lower"),
    "waits_idle": Figure("CPU while 10,000 waits wait", "% of a core", "lower"),
    "waits_ended": Figure("10,000 waits due at once, all durably ended", "s", "lower"),
    "lateness_p50": Figure(
        "due to first line of the resumed code, 100 a second, p50", "ms", "lower"
    ),
    "lateness_p99": Figure(
        "due to first line of the resumed code, 100 a second, p99", "ms", "lower"
    ),
    "start_ready": Figure("start to ready", "s", "lower"),
    "start_memory": Figure("idle, all processes, unique memory", "MiB", "lower"),
    "kill_lost": Figure(
        "kill -9 with 500 tasks in flight: not ended"
        f" {AFTER_KILL * KILL_SECONDS:g} s after the second start",
        "tasks",
        "lower",
    ),
    "kill_twice": Figure(
        "kill -9 with 500 tasks in flight: run again after a recorded success", "tasks", "lower"
    ),
    "kill_ended": Figure(
        "kill -9 with 500 tasks in flight: second start to the end of all", "s", "lower"
    ),
    "immediate_lost": Figure(
        "1,000 waits that are over when they are handed over: lost", "tasks", "lower"
    ),
    "density_bytes": Figure("one wait, in all processes, by number", "bytes", "lower"),
    "density_idle": Figure("CPU while they wait, by number", "% of a core", "lower"),
}

# The long ones are last, so that a round lacks only these if the time runs out.
MEASUREMENTS: Mapping[str, Measurement] = {
    "start": Measurement("start, idle for 5 s", ("start_ready", "start_memory"), 1, 1, 90),
    "tasks_async": Measurement(
        "independent no-op tasks, `async def`, on two slots",
        ("tasks_async", "tasks_async_per_core"),
        10_000,
        100,
        120,
    ),
    "tasks_def": Measurement(
        "independent no-op tasks, `def`, on two slots",
        ("tasks_def", "tasks_def_per_core"),
        10_000,
        100,
        120,
    ),
    "chain": Measurement("each task starts after the one before it", ("chain",), 40, 5, 90),
    "fan_1000": Measurement("a list, a task for each, their sum", ("fan_1000",), 1_000, 20, 90),
    "lateness": Measurement(
        "waits that are due one after the other, 100 a second",
        ("lateness_p50", "lateness_p99"),
        300,
        20,
        150,
    ),
    "kill": Measurement(
        "500 tasks of 0.5 to 2.5 s; kill -9 of the system once some have ended; a second start",
        ("kill_lost", "kill_twice", "kill_ended"),
        500,
        40,
        KILL_SECONDS,
    ),
    "immediate": Measurement(
        "waits whose instant is over when they are handed over", ("immediate_lost",), 1_000, 20, 90
    ),
    "fan_10000": Measurement("a list, a task for each, their sum", ("fan_10000",), 10_000, 40, 90),
    "waits": Measurement(
        "waits for one instant; then their end",
        ("waits_handed_over", "waits_bytes", "waits_idle", "waits_ended"),
        10_000,
        50,
        180,
    ),
    "density": Measurement(
        "waits for an instant far away, by number",
        ("density_bytes", "density_idle"),
        100_000,
        100,
        240,
    ),
}
