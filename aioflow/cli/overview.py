"""Live overview of ``aioflow top``: a daemon's metrics, its active runs and its pools."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from aioflow.cli.client import Client, connect
from aioflow.cli.output import print_json, safe

__all__ = (
    "Look",
    "look_at",
    "rates",
    "samples",
    "show_overview",
)

_RUNS = 10
_PREFIX = "aioflow_"

Samples = dict[tuple[str, str], float]
"""Values of metrics, by name without the prefix ``aioflow_`` and by label."""


class Look(msgspec.Struct, kw_only=True):
    """One sample of a daemon's metrics, active runs and pools.

    Attributes:
        at: The time at which the sample was taken, in monotonic seconds.
        events_per_second: Rate since the previous sample; ``None`` in the first.
        tasks_per_second: Like ``events_per_second``.
    """

    at: float
    values: Samples
    runs: list[dict[str, Any]]
    pools: list[dict[str, Any]]
    events_per_second: float | None = None
    tasks_per_second: float | None = None


def show_overview(arguments: argparse.Namespace) -> int:
    """Take and show samples: as a table on a terminal, else as one line or JSON object each."""
    client = connect(arguments)
    console = Console(highlight=False)
    live = None
    if console.is_terminal and not arguments.json:
        live = Live(console=console, auto_refresh=False, screen=arguments.count is None)
    before: Look | None = None
    seen = 0
    try:
        if live is not None:
            live.start()
        while True:
            look = rates(look_at(client, time.monotonic()), before)  # noqa: TID251 - a command
            _put(look, live, is_json=arguments.json)
            before, seen = look, seen + 1
            if seen == arguments.count:
                return 0
            time.sleep(arguments.every)  # noqa: TID251 - a command has no loop to block
    finally:
        if live is not None:
            live.stop()


def _put(look: Look, live: Live | None, *, is_json: bool) -> None:
    if is_json:
        print_json(as_data(look), line=True)
    elif live is not None:
        live.update(_drawn(look), refresh=True)
    else:
        print(_in_a_line(look), flush=True)
        sys.stdout.flush()


def look_at(client: Client, at: float) -> Look:
    """Take one sample from the daemon."""
    return Look(
        at=at,
        values=samples(client.text("/metrics")),
        runs=client.items("runs", state="running", limit=_RUNS),
        pools=client.items("pools"),
    )


def samples(text: str) -> Samples:
    """Parse metrics with at most one label. Skip the buckets of histograms."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = list(sample.labels.values())
            if sample.name.startswith(_PREFIX) and "le" not in sample.labels and len(labels) < 2:
                label = labels[0] if labels else ""
                found[sample.name.removeprefix(_PREFIX), label] = sample.value
    return found


def rates(look: Look, before: Look | None) -> Look:
    """Return ``look`` with its rates per second since the sample ``before``."""
    if before is None or look.at <= before.at:
        return look
    seconds = look.at - before.at
    fired = _sum(look, "trigger_events_total") - _sum(before, "trigger_events_total")
    ended = _ended(look) - _ended(before)
    # The counters of a restarted daemon start from 0, so the differences may be negative.
    return msgspec.structs.replace(
        look,
        events_per_second=max(fired / seconds, 0.0),
        tasks_per_second=max(ended / seconds, 0.0),
    )


def _sum(look: Look, name: str) -> float:
    return sum(value for (known, _), value in look.values.items() if known == name)


def _ended(look: Look) -> float:
    return look.values.get(("task_steps_total", "success"), 0.0) + look.values.get(
        ("task_steps_total", "failed"), 0.0
    )


def _by_label(look: Look, name: str) -> dict[str, float]:
    return {label: value for (known, label), value in look.values.items() if known == name}


def as_data(look: Look) -> dict[str, Any]:
    """Return the sample as JSON-compatible data."""
    value = look.values.get
    slots_by_executor = {
        executor: {"all": int(all_), "used": int(value(("slots_used", executor), 0))}
        for executor, all_ in _by_label(look, "slots").items()
    }
    return {
        "live_runs": int(value(("live_runs", ""), 0)),
        "live_tasks": int(value(("live_tasks", ""), 0)),
        "tasks_queued": int(value(("tasks_queued", ""), 0)),
        "tasks_sensing": int(value(("tasks_sensing", ""), 0)),
        "slots": slots_by_executor,
        "deferred": {kind: int(n) for kind, n in _by_label(look, "deferred_triggers").items()},
        "pools": look.pools,
        "loop_lag_seconds": {
            "daemon": value(("loop_lag_seconds", ""), 0.0),
            **_by_label(look, "host_lag_seconds"),
        },
        "events_per_second": _rounded(look.events_per_second),
        "tasks_per_second": _rounded(look.tasks_per_second),
        "is_store_away": bool(value(("store_away", ""), 0)),
        "runs": look.runs,
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


def _in_a_line(look: Look) -> str:
    data = as_data(look)
    slots = ", ".join(f"{s['used']}/{s['all']} {executor}" for executor, s in data["slots"].items())
    lag = max(data["loop_lag_seconds"].values(), default=0.0)
    return (
        f"{data['live_runs']} runs, {data['live_tasks']} tasks, {data['tasks_queued']} queued, "
        f"slots {slots}, {sum(data['deferred'].values())} deferred, "
        f"{data['tasks_sensing']} sensing, "
        f"{_per_second(data)}lag {lag * 1000:.0f} ms"
    )


def _per_second(data: dict[str, Any]) -> str:
    """Return the rates as text; empty for the first sample, because a rate needs two."""
    tasks, events = data["tasks_per_second"], data["events_per_second"]
    return "" if tasks is None or events is None else f"{tasks:g} tasks/s, {events:g} events/s, "


def _drawn(look: Look) -> RenderableType:
    data = as_data(look)
    head = Text(_in_a_line(look), style="bold")
    if data["is_store_away"]:
        head = Text("the database does not answer", style="bold red")
    return Group(
        head,
        _table(("RUN", "DAG", "STARTED"), [_run(run) for run in look.runs]),
        _table(("DEFERRED TO", "WAITS"), sorted(data["deferred"].items())),
        _table(("POOL", "USED", "SLOTS"), [(p["name"], p["used"], p["slots"]) for p in look.pools]),
        _table(
            ("LOOP", "LAG"),
            [(name, f"{lag * 1000:.0f} ms") for name, lag in data["loop_lag_seconds"].items()],
        ),
    )


def _run(run: dict[str, Any]) -> tuple[str, str, str]:
    return run["run_id"], run["dag_id"], run["started_at"] or ""


def _table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> RenderableType:
    if not rows:
        return Text("")
    table = Table(*heads, box=None, padding=(0, 2), header_style="dim")
    for row in rows:
        table.add_row(*(Text(safe(cell)) for cell in row))
    return table
