"""``aioflow events`` and ``aioflow assets``: named events, and assets, which some events update."""

from __future__ import annotations

import argparse
import json
from typing import Any

from aioflow.cli.arguments import Nouns, add_command, add_group, json_value, positive
from aioflow.cli.client import connect
from aioflow.cli.daemon_or_database import read
from aioflow.cli.output import print_json, print_table, safe
from aioflow.errors import UnknownAsset

__all__ = ("add_assets", "add_parser")

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


def add_assets(nouns: Nouns) -> None:
    """Declare ``aioflow assets`` and its commands."""
    verbs = add_group(
        nouns,
        "assets",
        text="show assets: what tasks update, and which DAGs wait for it",
        example="aioflow assets list",
    )
    add_command(
        verbs,
        "list",
        _list_assets,
        text="list the assets that DAGs update or wait for",
        example="aioflow assets list",
    )
    showing = add_command(
        verbs,
        "show",
        _show_asset,
        text="show an asset with the tasks that update it, and the DAGs that wait for it",
        example="aioflow assets show orders",
    )
    showing.add_argument("name", metavar="NAME")


def _list_assets(arguments: argparse.Namespace) -> int:
    assets = connect(arguments).items("assets")
    if arguments.json:
        print_json(assets)
        return 0
    print_table(
        ("ASSET", "UPDATED BY", "STARTS", "LAST UPDATE", "BY RUN"),
        (
            (
                one["name"],
                _dag_names(one["producers"], one["producer_count"]),
                _dag_names(one["consumers"], one["consumer_count"]),
                (one["last_update"] or {}).get("at"),
                (one["last_update"] or {}).get("run_id"),
            )
            for one in assets
        ),
        empty="no DAG updates an asset, or waits for one",
    )
    return 0


_NAMES_SHOWN = 3


def _dag_names(parts: list[dict[str, Any]], count: int) -> str:
    names = list(dict.fromkeys(part["dag_id"] for part in parts))
    more = f" and {count - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


def _show_asset(arguments: argparse.Namespace) -> int:
    found = connect(arguments).items("assets", name=arguments.name)
    if not found:
        raise UnknownAsset(arguments.name)
    (asset,) = found
    if arguments.json:
        print_json(asset)
        return 0
    rows = [("updated by", one["dag_id"], f"task {one['task_id']}") for one in asset["producers"]]
    rows += [("starts", one["dag_id"], _wait_text(one)) for one in asset["consumers"]]
    print_table(("ROLE", "DAG", "DETAIL"), rows, empty="")
    return 0


def _wait_text(one: dict[str, Any]) -> str:
    """Return what a DAG still waits for, as text."""
    received = ", ".join(f"{name} ({count})" for name, count in one["received"].items())
    has = f"; has {received}" if received else ""
    missing = " and ".join(one["missing"]) if " | " not in one["condition"] else one["condition"]
    return f"waits for {missing}{has}" if one["missing"] else f"on {one['condition']}{has}"
