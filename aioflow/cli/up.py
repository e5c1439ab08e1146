"""``aioflow up``: run the daemon."""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from functools import partial
from typing import Any

from aioflow.cli.arguments import Nouns, add_command
from aioflow.cli.output import print_json

__all__ = ("add_parser",)

_COLLECT_AT = (10_000, 20, 20)

_SWITCH_SECONDS = 0.0005
"""Longest time a thread may hold the interpreter while others wait for it. The writer thread needs
the interpreter for each row; with the default of 5 ms it would wait longer for that than for the
disk."""


def add_parser(nouns: Nouns) -> None:
    """Declare the command."""
    parser = add_command(
        nouns,
        "up",
        _run,
        text="run the daemon until it is stopped; the same as no command at all",
        example="aioflow up --dags ./dags --port 0 --until-idle",
        remote=False,
    )
    parser.add_argument(
        "--dags",
        action="append",
        metavar="DIR",
        help="folder of DAG files, may be given again (default ./dags, else HOME/dags)",
    )
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
        help="let other machines reach it; without TLS the token travels in the open",
    )
    parser.add_argument("--cpu-slots", metavar="N", help="worker processes, default: cores")
    parser.add_argument("--async-slots", metavar="N", help="coroutines at once, default 1000")
    parser.add_argument("--trigger-capacity", metavar="N", help="waits hosted, default 100000")
    parser.add_argument(
        "--until-idle", action="store_true", default=None, help="end when nothing is left to do"
    )
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="claim the database even if another daemon serves it or its key differs",
    )
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error")


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
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


def _spare_what_stays() -> None:
    """Exclude the objects created at startup from garbage collection, as they live until the end.

    Traversing all modules whenever ten thousand tasks resume would block the event loop for a tenth
    of a second.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECT_AT)


def _run(arguments: argparse.Namespace) -> int:
    import anyio

    from aioflow.cli.startup_banner import banner_facts, banner_lines
    from aioflow.daemon import Ready, serve
    from aioflow.settings import Settings
    from aioflow.telemetry import log

    settings = Settings.read(arguments.home, _overrides(arguments))
    log.configure(level=settings.log_level, style=settings.log_format)
    for odd in settings.oddities:
        logging.getLogger(__name__).warning(odd)
    sys.setswitchinterval(_SWITCH_SECONDS)

    def announce(ready: Ready) -> None:
        _spare_what_stays()
        if arguments.json:
            print_json(banner_facts(ready, sys.stdout), line=True)
        else:
            print(banner_lines(ready, sys.stdout), flush=True)

    start = partial(serve, settings, announce, take_over=arguments.take_over)
    return anyio.run(start, backend_options={"use_uvloop": True})
