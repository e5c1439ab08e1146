"""Dagster: jobs of ops over assets and runs, with a web server and a daemon."""

from __future__ import annotations

from benchmarks.peers.system import System, Variant

__all__ = ("SYSTEM",)

NO_WAIT = (
    "does not do waits inside a run: a sensor or a schedule of its daemon polls, and starts"
    " another run"
)

SYSTEM = System(
    name="dagster",
    title="Dagster",
    packages=("dagster==1.13.27", "dagster-webserver==1.13.27", "dagster-postgres==0.29.27"),
    newer="1.13.29",  # the index has no dagster-postgres for it
    program="with_dagster.py",
    variants=(
        Variant(
            "SQLite",
            "events survive a power cut: WAL with synchronous=FULL, as Dagster opens it; outputs"
            " of ops stay in memory",
            "SQLite",
        ),
        Variant(
            "PostgreSQL",
            "events survive a power cut: synchronous_commit and fsync on; outputs of ops stay in"
            " memory",
            "PostgreSQL",
        ),
    ),
    settings=(
        (
            "The in-process executor: the multiprocess one, which is the default, starts a"
            " process for each op and takes more than a second for it."
        ),
        (
            "A web server (`dagster-webserver`) and a daemon (`dagster-daemon run`) run beside"
            " it, each with its own code server. Telemetry is off."
        ),
        (
            "Runs are executed in the client's process, so the launch of a run's own process is"
            " in no figure."
        ),
    ),
    written={
        "tasks_async": "a dynamic output, mapped over an `async def` op",
        "tasks_def": "a dynamic output, mapped over a `def` op",
        "chain": "a job of 40 ops",
        "fan_1000": "a dynamic output, mapped, and collected by an op",
    },
    lacks={
        "waits": NO_WAIT,
        "lateness": NO_WAIT,
        "immediate": NO_WAIT,
        "density": NO_WAIT,
        "kill": (
            "not measured: one op per process; with its default launcher a killed run is executed"
            " again on request"
        ),
    },
    sizes={"tasks_async": 200, "tasks_def": 200},
)
