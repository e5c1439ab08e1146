"""``aioflow executors``: where ``def`` tasks run."""

from __future__ import annotations

import argparse

from aioflow.cli.arguments import Nouns, add_command, add_group
from aioflow.cli.client import connect
from aioflow.cli.output import print_json, print_table

__all__ = ("add_parser",)


def add_parser(nouns: Nouns) -> None:
    """Declare ``aioflow executors`` and its command."""
    verbs = add_group(
        nouns,
        "executors",
        text="show where tasks run",
        example="aioflow executors list",
    )
    add_command(
        verbs,
        "list",
        _list,
        text="list the executors of the daemon, with their workers",
        example="aioflow executors list",
    )


def _list(arguments: argparse.Namespace) -> int:
    executors = connect(arguments).items("executors")
    if arguments.json:
        print_json(executors)
        return 0
    print_table(
        ("EXECUTOR", "WORKERS", "MAX", "BUSY", "LOST", "WANTED", "UNAVAILABLE"),
        (
            (
                one["name"],
                one["up"],
                one["max_workers"],
                one["busy"],
                one["lost"],
                one["wanted"],
                "; ".join(one["unavailable"]),
            )
            for one in executors
        ),
        empty="",
    )
    return 0
