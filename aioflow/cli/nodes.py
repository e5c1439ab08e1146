"""``aioflow nodes``: list the nodes, and whether they accept work."""

from __future__ import annotations

import argparse

from aioflow.cli.arguments import Nouns, add_command, add_group, positive
from aioflow.cli.client import connect
from aioflow.cli.output import print_json, print_table, say
from aioflow.cli.queries import read

__all__ = ("add_parser",)


def add_parser(nouns: Nouns) -> None:
    """Declare the commands."""
    verbs = add_group(
        nouns,
        "nodes",
        text="see which daemons there are, and have one rest",
        example="aioflow nodes list",
    )
    add_command(
        verbs,
        "list",
        _list,
        text="list the nodes of the database",
        example="aioflow nodes list",
    )
    draining = add_command(
        verbs,
        "drain",
        _drain,
        text="have a node start nothing more, also after a restart; what runs ends",
        example="aioflow nodes drain 1",
    )
    draining.add_argument("node", type=positive, metavar="NODE")
    undraining = add_command(
        verbs,
        "undrain",
        _undrain,
        text="have a node take work again",
        example="aioflow nodes undrain 1",
    )
    undraining.add_argument("node", type=positive, metavar="NODE")


def _list(arguments: argparse.Namespace) -> int:
    nodes = read(arguments, lambda source: source.nodes())
    if arguments.json:
        print_json(nodes)
        return 0
    print_table(
        ("NODE", "STATE", "HOST", "PID", "VERSION", "STARTED", "SEEN"),
        (
            (
                node["node"],
                node["state"],
                node["host"],
                node["pid"],
                node["version"],
                node["started_at"],
                node["seen_at"],
            )
            for node in nodes
        ),
        empty="no daemon has used this database",
    )
    return 0


def _drain(arguments: argparse.Namespace) -> int:
    answer = connect(arguments).post("nodes", str(arguments.node), "drain")
    return say(arguments, answer, f"node {arguments.node} starts nothing more; what runs ends")


def _undrain(arguments: argparse.Namespace) -> int:
    answer = connect(arguments).post("nodes", str(arguments.node), "undrain")
    return say(arguments, answer, f"node {arguments.node} takes work")
