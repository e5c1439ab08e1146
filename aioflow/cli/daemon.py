"""``aioflow up``, ``demo``, ``config``, ``nodes`` and ``top``: run, configure and watch the daemon.

This module declares the commands and runs the light ones. The code of the daemon, the demo and the
live overview is imported only when its command runs.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from functools import partial
from typing import Any

from aioflow.cli.arguments import (
    Command,
    Nouns,
    add_command,
    add_group,
    complete_paths,
    positive,
    seconds,
)
from aioflow.cli.client import connect
from aioflow.cli.daemon_or_database import read
from aioflow.cli.output import hint, print_json, print_table, say
from aioflow.errors import UnknownNode

__all__ = (
    "add_config",
    "add_demo",
    "add_nodes",
    "add_top",
    "add_up",
)

_GC_THRESHOLDS = (10_000, 20, 20)

_SWITCH_SECONDS = 0.0005
"""Longest time for which a thread may hold the interpreter lock while others wait. The writer
thread needs the lock for each row. With Python's default of 5 ms it would wait longer for the lock
than for the disk.
"""


def add_up(nouns: Nouns) -> None:
    """Declare ``aioflow up``."""
    parser = add_command(
        nouns,
        "up",
        _up,
        text="run the daemon until it is stopped; the same as no command at all",
        example="aioflow up --dags ./dags --port 0 --until-idle",
        remote=False,
    )
    dags = parser.add_argument(
        "--dags",
        action="append",
        metavar="DIR",
        help="folder of DAG files, may be given again (default ./dags, else HOME/dags)",
    )
    complete_paths(dags, "directory")
    parser.add_argument(
        "--db",
        metavar="URL",
        help="default sqlite:///HOME/aioflow.db; for this daemon alone: where none runs, other "
        "commands read the setting db.url",
    )
    parser.add_argument(
        "--db-wait",
        metavar="SECONDS",
        help="wait this long for a PostgreSQL server that does not answer, default 300",
    )
    parser.add_argument("--host", metavar="ADDRESS", help="default 127.0.0.1")
    parser.add_argument("--port", metavar="N", help="default 8793; 0 for any free one")
    parser.add_argument(
        "--allow-remote",
        action="store_true",
        default=None,
        help="accept connections from other machines; without TLS the token is sent unencrypted",
    )
    parser.add_argument("--cpu-slots", metavar="N", help="worker processes, default: cores")
    parser.add_argument("--async-slots", metavar="N", help="concurrent coroutines, default 1000")
    parser.add_argument("--trigger-capacity", metavar="N", help="hosted triggers, default 100000")
    parser.add_argument("--until-idle", action="store_true", default=None, help="exit when idle")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="claim the database even if another daemon serves it or its key differs",
    )
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error")


def _settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "dags": arguments.dags,
        "db.url": arguments.db,
        "db.wait_seconds": arguments.db_wait,
        "web.host": arguments.host,
        "web.port": arguments.port,
        "web.allow_remote": arguments.allow_remote,
        "slots.cpu": arguments.cpu_slots,
        "slots.async": arguments.async_slots,
        "triggers.capacity": arguments.trigger_capacity,
        "daemon.until_idle": arguments.until_idle,
        "log.level": arguments.log_level,
    }


def _freeze_startup_objects() -> None:
    """Exclude all objects created at startup from garbage collection, because they are never freed.

    Otherwise a collection would traverse all modules, and block the event loop for a tenth of a
    second. That would happen whenever ten thousand tasks resume.
    """
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _up(arguments: argparse.Namespace) -> int:
    import anyio

    from aioflow.cli.startup_banner import banner_facts, banner_lines
    from aioflow.daemon.node import Ready, serve
    from aioflow.settings import Settings
    from aioflow.telemetry import log

    settings = Settings.read(arguments.home, _settings_of(arguments))
    log.configure(level=settings.log_level, style=settings.log_format)
    for odd in settings.oddities:
        logging.getLogger(__name__).warning(odd)
    sys.setswitchinterval(_SWITCH_SECONDS)

    def announce(ready: Ready) -> None:
        _freeze_startup_objects()
        if arguments.json:
            print_json(banner_facts(ready, sys.stdout), line=True)
        else:
            print(banner_lines(ready, sys.stdout), flush=True)

    start = partial(serve, settings, announce, take_over=arguments.take_over)
    return anyio.run(start, backend_options={"use_uvloop": True})


def add_demo(nouns: Nouns) -> None:
    """Declare ``aioflow demo``."""
    parser = add_command(
        nouns,
        "demo",
        _demo,
        text="run a demo: a day's settlements, from the bank's file to the total",
        example="aioflow demo --exit",
        remote=False,
    )
    parser.description = (
        "A daemon with the example DAGs, a run that waits for the bank's file, the file, the "
        "total. Uses a temporary home; with --home that one, which is not deleted."
    )
    parser.add_argument("--exit", action="store_true", help="exit when the run ends")
    parser.add_argument("--port", metavar="N", default="0", help="of the page; default: any")
    parser.add_argument(
        "--after", type=seconds, default=3.0, metavar="SECONDS", help="when the file arrives"
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--dask", action="store_true", help="run the tasks on a Dask cluster of two workers"
    )
    kinds.add_argument(
        "--failover",
        action="store_true",
        help="kill, freeze and cut off the active one of two daemons, and count what is lost",
    )
    failover = parser.add_argument_group("with --failover")
    failover.add_argument(
        "--seconds",
        type=partial(seconds, least=1.0),
        default=60.0,
        metavar="N",
        help="how long, default 60",
    )
    failover.add_argument(
        "--waits", type=positive, default=10_000, metavar="N", help="default 10,000"
    )
    failover.add_argument("--seed", type=int, metavar="N", help="repeats the order of the faults")
    failover.add_argument(
        "--postgres", metavar="DIR", help="folder of PostgreSQL's programs; default: the newest"
    )


def _demo(arguments: argparse.Namespace) -> int:
    if arguments.failover:
        from aioflow.cli.failover.demo import run_failover

        return run_failover(arguments)
    from aioflow.cli.embedded_daemon import run_demo

    return run_demo(arguments)


def add_config(nouns: Nouns) -> None:
    """Declare ``aioflow config show``."""
    verbs = add_group(nouns, "config", text="show settings", example="aioflow config show")
    add_command(
        verbs,
        "show",
        _show_settings,
        text="show each setting and where it came from",
        example="AIOFLOW_WEB__PORT=0 aioflow config show",
        remote=False,
    )


def _show_settings(arguments: argparse.Namespace) -> int:
    from aioflow.settings import Settings

    settings = Settings.read(arguments.home)
    for odd in settings.oddities:
        hint(odd)
    if arguments.json:
        print_json(
            [
                {"name": name, "value": value, "source": settings.sources[name]}
                for name, value in settings.values.items()
            ]
        )
        return 0
    print_table(
        ("SETTING", "VALUE", "FROM"),
        (
            (name, _setting_text(value), settings.sources[name])
            for name, value in settings.values.items()
        ),
        empty="there are none",
    )
    return 0


def _setting_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)


def add_nodes(nouns: Nouns) -> None:
    """Declare ``aioflow nodes`` and its commands."""
    verbs = add_group(
        nouns,
        "nodes",
        text="list the nodes of the database, drain, undrain and forget them",
        example="aioflow nodes list",
    )
    add_command(
        verbs,
        "list",
        _list_nodes,
        text="list the nodes of the database",
        example="aioflow nodes list",
    )
    of_one: tuple[tuple[str, Command, str], ...] = (
        ("show", _show_node, "show one node"),
        (
            "drain",
            _drain_node,
            "drain a node: it starts nothing more; an active one hands over to a standby",
        ),
        ("undrain", _undrain_node, "let a drained node start work again"),
        ("forget", _forget_node, "remove a node that has left or is dead from the list"),
    )
    for verb, run, text in of_one:
        adding = add_command(verbs, verb, run, text=text, example=f"aioflow nodes {verb} 1")
        adding.add_argument("node", type=positive, metavar="NODE")


def _list_nodes(arguments: argparse.Namespace) -> int:
    nodes = read(arguments, lambda source: source.nodes())
    if arguments.json:
        print_json(nodes)
        return 0
    heads = ("NODE", "NAME", "STATE", "EPOCH", "VERSION", "SILENT", "RUNS", "WAITS", "SLOTS")
    rows = (
        (
            node["node"],
            node["name"] or node["host"],
            node["state"],
            node["epoch"],
            node["version"],
            _seconds(node["silent_seconds"]),
            node["runs"],
            node["triggers"],
            node["slots"],
        )
        for node in nodes
    )
    print_table(heads, rows, empty="no daemon has used this database")
    return 0


def _seconds(silent: float | None) -> str | None:
    return None if silent is None else f"{silent:.1f} s"


def _show_node(arguments: argparse.Namespace) -> int:
    nodes = read(arguments, lambda source: source.nodes())
    for node in nodes:
        if node["node"] == arguments.node:
            if arguments.json:
                print_json(node)
            else:
                print_table(("FACT", "VALUE"), node.items(), empty="")
            return 0
    raise UnknownNode(arguments.node)


def _drain_node(arguments: argparse.Namespace) -> int:
    answer = connect(arguments).post("nodes", str(arguments.node), "drain")
    return say(arguments, answer, f"node {arguments.node} is drained; running tasks finish")


def _undrain_node(arguments: argparse.Namespace) -> int:
    answer = connect(arguments).post("nodes", str(arguments.node), "undrain")
    return say(arguments, answer, f"node {arguments.node} starts work again")


def _forget_node(arguments: argparse.Namespace) -> int:
    answer = connect(arguments).delete("nodes", str(arguments.node))
    return say(arguments, answer, f"node {arguments.node} is forgotten")


def add_top(nouns: Nouns) -> None:
    """Declare ``aioflow top``."""
    parser = add_command(
        nouns,
        "top",
        _top,
        text="show runs, pools, deferred waits, loop lag and events per second, live",
        example="aioflow top --count 1",
    )
    parser.add_argument(
        "--every",
        type=partial(seconds, least=0.1),
        default=1.0,
        metavar="SECONDS",
        help="seconds between samples, default 1",
    )
    parser.add_argument(
        "--count", type=positive, metavar="N", help="number of samples; default: until ^C"
    )


def _top(arguments: argparse.Namespace) -> int:
    from aioflow.cli.overview import show_overview

    return show_overview(arguments)
