"""``aioflow audit``: the changes that were made, and the denied ones."""

from __future__ import annotations

import argparse

from aioflow.cli.arguments import Nouns, add_command, add_group, from_zero, positive
from aioflow.cli.output import print_json, print_table
from aioflow.cli.queries import read

__all__ = ("add_parser",)


def add_parser(nouns: Nouns) -> None:
    """Declare the command."""
    verbs = add_group(
        nouns, "audit", text="see who has changed what", example="aioflow audit list --limit 3"
    )
    listing = add_command(
        verbs,
        "list",
        _list,
        text="list changes, and what was refused, the newest first",
        example="aioflow audit list --limit 20",
    )
    listing.add_argument("--limit", type=positive, default=100, metavar="N")
    listing.add_argument(
        "--before", type=from_zero, metavar="ID", help="go on behind this line, the last one seen"
    )


def _list(arguments: argparse.Namespace) -> int:
    found = read(
        arguments, lambda source: source.audit(limit=arguments.limit, before=arguments.before)
    )
    if arguments.json:
        print_json(found)
        return 0
    print_table(
        ("ID", "AT", "WHO", "FROM", "OUTCOME", "ACTION", "TARGET", "CODE", "BEFORE", "AFTER"),
        (
            (
                line["audit_id"],
                line["at"],
                line["actor"] or "-",
                line["address"] or "-",
                line["outcome"],
                line["action"],
                line["target"],
                line["code"],
                line["before"],
                line["after"],
            )
            for line in found
        ),
        empty="nothing has been changed yet",
    )
    return 0
