"""``aioflow assets``: what tasks update, and which DAGs wait for it."""

from __future__ import annotations

import argparse
from typing import Any

from aioflow.cli.arguments import Nouns, add_command, add_group
from aioflow.cli.client import connect
from aioflow.cli.output import print_json, print_table
from aioflow.errors import UnknownAsset

__all__ = ("add_parser",)


def add_parser(nouns: Nouns) -> None:
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
        _list,
        text="list the assets that DAGs update or wait for",
        example="aioflow assets list",
    )
    showing = add_command(
        verbs,
        "show",
        _show,
        text="show an asset with the tasks that update it, and the DAGs that wait for it",
        example="aioflow assets show orders",
    )
    showing.add_argument("name", metavar="NAME")


def _list(arguments: argparse.Namespace) -> int:
    assets = connect(arguments).items("assets")
    if arguments.json:
        print_json(assets)
        return 0
    print_table(
        ("ASSET", "UPDATED BY", "STARTS", "LAST UPDATE", "BY RUN"),
        (
            (
                one["name"],
                _names(one["producers"], one["producer_count"]),
                _names(one["consumers"], one["consumer_count"]),
                (one["last_update"] or {}).get("at"),
                (one["last_update"] or {}).get("run_id"),
            )
            for one in assets
        ),
        empty="no DAG updates an asset, or waits for one",
    )
    return 0


_SHOWN = 3


def _names(parts: list[dict[str, Any]], count: int) -> str:
    names = list(dict.fromkeys(part["dag_id"] for part in parts))
    more = f" and {count - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _show(arguments: argparse.Namespace) -> int:
    found = connect(arguments).items("assets", name=arguments.name)
    if not found:
        raise UnknownAsset(arguments.name)
    (asset,) = found
    if arguments.json:
        print_json(asset)
        return 0
    rows = [("updated by", one["dag_id"], f"task {one['task_id']}") for one in asset["producers"]]
    rows += [("starts", one["dag_id"], _wait(one)) for one in asset["consumers"]]
    print_table(("ROLE", "DAG", "DETAIL"), rows, empty="")
    return 0


def _wait(one: dict[str, Any]) -> str:
    """Return what a DAG still waits for, as text."""
    received = ", ".join(f"{name} ({count})" for name, count in one["received"].items())
    has = f"; has {received}" if received else ""
    missing = " and ".join(one["missing"]) if " | " not in one["condition"] else one["condition"]
    return f"waits for {missing}{has}" if one["missing"] else f"on {one['condition']}{has}"
