"""``aioflow top``: what goes on right now, again and again."""

from __future__ import annotations

import argparse

from aioflow.cli.arguments import Nouns, add_command, positive

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
        "--every", type=_seconds, default=1.0, metavar="SECONDS", help="between two looks, 1"
    )
    parser.add_argument("--count", type=positive, metavar="N", help="so many looks; else until ^C")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3_600:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no time between 0.1 and 3600 seconds")
    return seconds


def _run(arguments: argparse.Namespace) -> int:
    from aioflow.cli.load import show

    return show(arguments)
