"""``aioflow events``: emit named events, and list them."""

from __future__ import annotations

import argparse
import json
from typing import Any

from aioflow.cli.arguments import Nouns, add_command, add_group, json_value, positive
from aioflow.cli.client import connect
from aioflow.cli.daemon_or_database import read
from aioflow.cli.output import print_json, print_table, safe

__all__ = ("add_parser",)

_DATA_SHOWN = 60


def add_parser(nouns: Nouns) -> None:
    """Declare ``aioflow events`` and its commands."""
    verbs = add_group(
        nouns,
        "events",
        text="emit named events, and list them",
        example='aioflow events emit approved --data \'{"by": "mia"}\'',
    )
    emit = add_command(
        verbs,
        "emit",
        _emit,
        text="emit a named event; tasks that wait for that name resume",
        example='aioflow events emit approved --key order-17 --data \'{"by": "mia"}\'',
    )
    emit.add_argument("name", metavar="NAME")
    emit.add_argument("--key", metavar="KEY", help="distinguishes events of the same name")
    emit.add_argument("--data", type=json_value, metavar="JSON", help="its data; any JSON")
    listing = add_command(
        verbs,
        "list",
        _list,
        text="list what has been emitted, the newest first",
        example="aioflow events list --name approved --limit 20",
    )
    listing.add_argument("--name", metavar="NAME", help="of this name only")
    listing.add_argument("--limit", type=positive, default=50, metavar="N", help="50 by default")


def _emit(arguments: argparse.Namespace) -> int:
    made = connect(arguments).emit(arguments.name, key=arguments.key, data=arguments.data)
    if arguments.json:
        print_json(made)
        return 0
    print(f"{safe(made['name'])} emitted: event {made['event_id']}")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    found = read(
        arguments, lambda source: source.events(name=arguments.name, limit=arguments.limit)
    )
    if arguments.json:
        print_json(found)
        return 0
    print_table(
        ("EVENT", "NAME", "KEY", "AT", "RUN", "DATA"),
        (
            (
                event["event_id"],
                event["name"],
                event["key"],
                event["at"],
                event["run_id"],
                _shown(event["data"]),
            )
            for event in found
        ),
        empty="no event of that name has been emitted"
        if arguments.name
        else "nothing has been emitted",
    )
    return 0


def _shown(data: Any) -> str:
    text = "" if data is None else json.dumps(data, ensure_ascii=False)
    return text if len(text) <= _DATA_SHOWN else f"{text[: _DATA_SHOWN - 3]}..."
