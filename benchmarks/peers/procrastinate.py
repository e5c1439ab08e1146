"""procrastinate: a task queue in PostgreSQL."""

from __future__ import annotations

from benchmarks.peers.system import System, Variant

__all__ = ("SYSTEM",)

NO_FAN_IN = (
    "does not do fan-in: a job has no result and cannot wait for others; users count completions"
    " in their own code"
)

SYSTEM = System(
    name="procrastinate",
    title="procrastinate",
    packages=("procrastinate==3.10.0", "psycopg[binary]==3.3.9"),
    program="with_procrastinate.py",
    variants=(
        Variant(
            "PostgreSQL", "survives a power cut: synchronous_commit and fsync on", "PostgreSQL"
        ),
    ),
    settings=(
        (
            "Two worker processes (`run_worker_async`) with a concurrency of 50 each,"
            " LISTEN/NOTIFY on; jobs are deferred in batches (`batch_defer_async`)."
        ),
        (
            "`fetch_job_polling_interval` is 0.1 s instead of 5 s: jobs with an instant are found"
            " by polling alone, so with the default they would start up to 5 s late. About half of"
            " it is in the time from due to resumed, and an idle worker polls 50 times as often as"
            " with the default."
        ),
        (
            "After a kill, jobs of dead workers are found by their heartbeats and retried, as its"
            " page on stalled jobs shows: four times a second, and 2 s after the last heartbeat"
            " instead of 30 s. These 2 s are in the time after the kill."
        ),
    ),
    written={
        "chain": "each job defers the next one at its end",
        "waits": "jobs with `schedule_at`: a wait is a row, no code of the user has begun. The"
        " resumed code is the job's first line",
        "waits_bytes": "rows alone; no process holds anything per wait",
        "kill": "500 jobs at a time: a concurrency of 250 for each worker",
    },
    lacks={"fan_1000": NO_FAN_IN, "fan_10000": NO_FAN_IN},
    sizes={"tasks_async": 5_000, "tasks_def": 3_000},
)
