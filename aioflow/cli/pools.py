"""``aioflow pools`` and ``executors``: limits on concurrent tasks, and where tasks run."""

from __future__ import annotations

import argparse

from aioflow.cli.arguments import Nouns, add_command, add_group, positive
from aioflow.cli.client import connect
from aioflow.cli.daemon_or_database import read
from aioflow.cli.output import print_json, print_table, say

__all__ = ("add_executors", "add_parser")


_COUNTED = {False: "not counted", True: "counted"}


def add_parser(nouns: Nouns) -> None:
    """Declare ``aioflow pools`` and its commands."""
    verbs = add_group(
        nouns,
        "pools",
        text="manage pools: named concurrency limits",
        example="aioflow pools set ledger 4",
    )
    add_command(
        verbs,
        "list",
        _list,
        text="list the limited pools; a pool that was never set has no limit",
        example="aioflow pools list",
    )
    setting = add_command(
        verbs,
        "set",
        _set,
        text="limit a pool; running tasks continue",
        example="aioflow pools set ledger 4",
    )
    setting.add_argument("name", metavar="NAME")
    setting.add_argument("slots", type=positive, metavar="SLOTS")
    setting.add_argument(
        "--include-deferred",
        action="store_true",
        help="count deferred tasks as well",
    )
    deleting = add_command(
        verbs,
        "delete",
        _delete,
        text="lift the limit of a pool",
        example="aioflow pools delete ledger",
    )
    deleting.add_argument("name", metavar="NAME")


def _list(arguments: argparse.Namespace) -> int:
    pools = read(arguments, lambda source: source.pools())
    if arguments.json:
        print_json(pools)
        return 0
    print_table(
        ("POOL", "SLOTS", "USED", "DEFERRED"),
        (
            (pool["name"], pool["slots"], pool["used"], _COUNTED[pool["include_deferred"]])
            for pool in pools
        ),
        empty="no pool has a limit",
    )
    return 0


def _set(arguments: argparse.Namespace) -> int:
    is_wide = arguments.include_deferred
    body: dict[str, object] = {"slots": arguments.slots, "include_deferred": is_wide}
    answer = connect(arguments).put("pools", arguments.name, body=body)
    wide = ", also for deferred tasks" if is_wide else ""
    return say(arguments, answer, f"pool {arguments.name} has {arguments.slots} slots{wide}")


def _delete(arguments: argparse.Namespace) -> int:
    answer = connect(arguments).delete("pools", arguments.name)
    return say(arguments, answer, f"pool {arguments.name} has no limit")


def add_executors(nouns: Nouns) -> None:
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
        _list_executors,
        text="list the executors of the daemon, with their workers",
        example="aioflow executors list",
    )


def _list_executors(arguments: argparse.Namespace) -> int:
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
