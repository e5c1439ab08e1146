"""``aioflow demo``: run the settlement example, without any setup; its input file arrives later."""

from __future__ import annotations

import argparse

from aioflow.cli.arguments import Nouns, add_command, seconds

__all__ = ("add_parser",)


def add_parser(nouns: Nouns) -> None:
    """Declare the command."""
    parser = add_command(
        nouns,
        "demo",
        _run,
        text="show what it does: a day's settlements, from the bank's file to the total",
        example="aioflow demo --exit",
        remote=False,
    )
    parser.description = (
        "A daemon with the example DAGs, a run that waits for the bank's file, the file, the "
        "total. On a temporary home; with --home on that one, which is kept."
    )
    parser.add_argument("--exit", action="store_true", help="end with the run; do not stay up")
    parser.add_argument("--port", metavar="N", default="0", help="of the page; default: any")
    parser.add_argument(
        "--after", type=seconds, default=3.0, metavar="SECONDS", help="when the file arrives"
    )


def _run(arguments: argparse.Namespace) -> int:
    from aioflow.cli.demo_run import run_demo

    return run_demo(arguments)
