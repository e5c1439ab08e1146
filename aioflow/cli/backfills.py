"""``aioflow backfills``, and ``aioflow dags backfill``, which starts a backfill."""

from __future__ import annotations

import argparse
from typing import Any

from aioflow.cli.arguments import Nouns, add_command, add_group, conf, from_zero, moment, positive
from aioflow.cli.client import connect
from aioflow.cli.daemon_or_database import read
from aioflow.cli.output import hint, print_json, print_table, safe

__all__ = ("add_parser", "add_start")


def add_start(verbs: Nouns) -> None:
    """Declare ``aioflow dags backfill``."""
    parser = add_command(
        verbs,
        "backfill",
        _start,
        text="make runs for the fire times of a range that has passed",
        example="aioflow dags backfill daily --from 2026-01-01 --to 2026-01-31 --dry-run",
    )
    parser.add_argument("dag", metavar="DAG")
    for name, text in (("from", "when it begins: a day, or a time"), ("to", "when it ends")):
        parser.add_argument(
            f"--{name}",
            dest=f"{name}_at",
            type=moment,
            required=True,
            metavar="T",
            help=f"{text}, inclusive",
        )
    parser.add_argument("--dry-run", action="store_true", help="only list the runs it would create")
    parser.add_argument(
        "--reprocess",
        choices=("none", "failed", "all"),
        default="none",
        help="which fire times that have a run get another: none by default",
    )
    parser.add_argument(
        "--max-active", type=positive, default=0, metavar="N", help="runs at once; as of the DAG"
    )
    parser.add_argument("--reverse", action="store_true", help="the latest fire time first")
    parser.add_argument("--conf", type=conf, metavar="JSON", help="parameters of each run")


def add_parser(nouns: Nouns) -> None:
    """Declare ``aioflow backfills`` and its commands."""
    verbs = add_group(
        nouns, "backfills", text="follow and cancel backfills", example="aioflow backfills list"
    )
    listing = add_command(
        verbs,
        "list",
        _list,
        text="list backfills, the newest first",
        example="aioflow backfills list --dag daily",
    )
    listing.add_argument("--dag", metavar="DAG", help="of this DAG only")
    listing.add_argument("--limit", type=positive, default=50, metavar="N", help="50 by default")
    show = add_command(
        verbs,
        "show",
        _show,
        text="show the progress of a backfill",
        example="aioflow backfills show 1048577",
    )
    cancel = add_command(
        verbs,
        "cancel",
        _cancel,
        text="stop a backfill and cancel its active runs",
        example="aioflow backfills cancel 1048577",
    )
    for parser in (show, cancel):
        parser.add_argument("backfill", type=from_zero, metavar="BACKFILL")


def _start(arguments: argparse.Namespace) -> int:
    body = {
        "from": arguments.from_at,
        "to": arguments.to_at,
        "reprocess": arguments.reprocess,
        "max_active": arguments.max_active,
        "reverse": arguments.reverse,
        "conf": arguments.conf,
        "dry_run": arguments.dry_run,
    }
    found = connect(arguments).post("dags", arguments.dag, "backfills", body=body)
    if arguments.dry_run:
        found = found["items"]
    if arguments.json:
        print_json(found)
    elif arguments.dry_run:
        _print_fire_times(found)
    else:
        print(f"backfill {found['backfill_id']} of {found['dag_id']}: {found['state']}")
        hint(f"follow it: aioflow backfills show {found['backfill_id']}")
    return 0


def _print_fire_times(found: list[Any]) -> None:
    print_table(
        ("LOGICAL DATE", "ACTION", "RUN", "STATE"),
        (
            (
                fire_time["logical_date"],
                fire_time["action"],
                fire_time["run_id"] or "",
                fire_time["state"] or "",
            )
            for fire_time in found
        ),
        empty="no fire time of its schedule lies in that range",
    )


def _list(arguments: argparse.Namespace) -> int:
    found = read(arguments, lambda source: source.backfills(arguments.dag, arguments.limit))
    if arguments.json:
        print_json(found)
        return 0
    print_table(
        ("BACKFILL", "DAG", "FROM", "TO", "STATE", "DONE", "RUNS"),
        (
            (
                one["backfill_id"],
                one["dag_id"],
                one["first"],
                one["last"],
                one["state"],
                f"{one['progress']:.0%}",
                _counts(one),
            )
            for one in found
        ),
        empty="no backfills yet: aioflow dags backfill",
    )
    return 0


def _show(arguments: argparse.Namespace) -> int:
    return _say(arguments, read(arguments, lambda source: source.backfill(arguments.backfill)))


def _cancel(arguments: argparse.Namespace) -> int:
    found = connect(arguments).post("backfills", str(arguments.backfill), "cancel")
    return _say(arguments, found)


def _say(arguments: argparse.Namespace, found: dict[str, Any]) -> int:
    if arguments.json:
        print_json(found)
        return 0
    for name in ("backfill_id", "dag_id", "state", "failure", "first", "last", "next_fire_time"):
        if found[name] is not None:
            print(f"{name}: {safe(found[name])}")
    print(f"done: {found['progress']:.0%}, {found['skipped']} fire times skipped")
    print(f"runs: {_counts(found) or 'none'}")
    return 0


def _counts(found: dict[str, Any]) -> str:
    return ", ".join(f"{count} {state}" for state, count in found["runs"].items())
