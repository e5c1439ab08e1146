"""``aioflow top``: live overview of the daemon, refreshed repeatedly."""

from __future__ import annotations

import argparse
from functools import partial

from aioflow.cli.arguments import Nouns, add_command, positive, seconds

__all__ = ("add_parser",)


def add_parser(nouns: Nouns) -> None:
    """Declare the command."""
    parser = add_command(
        nouns,
        "top",
        _run,
        text="show runs, pools, parked waits, loop lag and events per second, live",
        example="aioflow top --count 1",
    )
    parser.add_argument(
        "--every",
        type=partial(seconds, least=0.1),
        default=1.0,
        metavar="SECONDS",
        help="between two looks, 1",
    )
    parser.add_argument("--count", type=positive, metavar="N", help="so many looks; else until ^C")


def _run(arguments: argparse.Namespace) -> int:
    from aioflow.cli.top_data import show

    return show(arguments)
