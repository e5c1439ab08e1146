"""``aioflow triggers``: list, show and fire triggers, and find those that block an event loop."""

from __future__ import annotations

import argparse
from typing import Any

from aioflow.cli.arguments import Nouns, add_command, add_group, from_zero, json_value, positive
from aioflow.cli.client import connect
from aioflow.cli.daemon_or_database import read
from aioflow.cli.output import hint, print_json, print_table, safe, task_name

__all__ = ("add_parser",)


def add_parser(nouns: Nouns) -> None:
    """Declare ``aioflow triggers`` and its commands."""
    text = "list, show and fire deferred triggers, and list slow ones"
    verbs = add_group(nouns, "triggers", text=text, example="aioflow triggers list")
    listing = add_command(
        verbs,
        "list",
        _list,
        text="list deferred triggers, the oldest first",
        example="aioflow triggers list --limit 20",
    )
    listing.add_argument("--limit", type=positive, metavar="N", help="all by default")
    show = add_command(
        verbs, "show", _show, text="show one deferred trigger", example="aioflow triggers show 4711"
    )
    show.add_argument("trigger_id", type=from_zero, metavar="TRIGGER")
    add_command(
        verbs,
        "slow",
        _slow,
        text="list triggers that blocked their shared event loop, where, and for how long",
        example="aioflow triggers slow",
    )
    add_command(
        verbs,
        "kinds",
        _kinds,
        text="list the triggers of installed packages; exit status 1 if one cannot be imported",
        example="aioflow triggers kinds",
        remote=False,
    )
    firing = add_command(
        verbs,
        "fire",
        _fire,
        text="send a waiting task an event in place of its trigger; a stream continues after it",
        example="aioflow triggers fire 4711 --payload '{\"status\": 200}'",
    )
    firing.add_argument("trigger_id", type=from_zero, metavar="TRIGGER")
    firing.add_argument(
        "--payload", type=json_value, metavar="JSON", help="of the event, null by default"
    )
    firing.add_argument("--key", metavar="KEY", help="of the event, none by default")
    releasing = add_command(
        verbs,
        "unquarantine",
        _unquarantine,
        text="release the triggers of a class from quarantine, once it is fixed",
        example="aioflow triggers unquarantine ledger:BookingTrigger",
    )
    releasing.add_argument("class_path", metavar="CLASS", help="as `triggers slow` names it")


def _list(arguments: argparse.Namespace) -> int:
    found = read(arguments, lambda source: source.triggers(limit=arguments.limit))
    if arguments.json:
        print_json(found)
        return 0
    print_table(
        (
            "TRIGGER",
            "KIND",
            "RUN",
            "TASK",
            "SINCE",
            "UNTIL",
            "STATE",
            "NEXT CHECK",
            "SHARED WITH",
            "DETAIL",
        ),
        (
            (
                trigger["trigger_id"],
                trigger["kind"],
                trigger["run_id"] or f"DAG {trigger['dag_id']}",
                "" if trigger["task_id"] is None else task_name(trigger),
                trigger["since"],
                trigger["deadline"],
                trigger["state"],
                trigger["next_check_at"],
                trigger["shared_with"],
                _what(trigger),
            )
            for trigger in found
        ),
        empty="nothing is deferred",
    )
    return 0


def _show(arguments: argparse.Namespace) -> int:
    found = read(arguments, lambda source: source.trigger(arguments.trigger_id))
    if arguments.json:
        print_json(found)
        return 0
    for name, value in found.items():
        print(f"{name}: {safe('-' if value is None else value)}")
    return 0


def _slow(arguments: argparse.Namespace) -> int:
    found = connect(arguments).items("triggers", "slow")
    if arguments.json:
        print_json(found)
        return 0
    print_table(
        ("KIND", "NAME", "STALLS", "LONGEST", "TOTAL", "PLACE", "LAST", "HOST"),
        (
            (
                slow["kind"],
                slow["name"],
                slow["stalls"],
                f"{slow['longest_ms']} ms",
                f"{slow['total_ms']} ms",
                slow["source_location"],
                slow["last_at"],
                "quarantine" if slow["quarantined"] else "shared",
            )
            for slow in found
        ),
        empty="no trigger has blocked its loop",
    )
    return 0


def _kinds(arguments: argparse.Namespace) -> int:
    from aioflow.cli.offline_parser import list_trigger_kinds

    return list_trigger_kinds(arguments)


def _fire(arguments: argparse.Namespace) -> int:
    body = {"payload": arguments.payload, "key": arguments.key}
    fired = connect(arguments).post("triggers", str(arguments.trigger_id), "fire", body=body)
    if arguments.json:
        print_json(fired)
    else:
        hint(f"trigger {fired['trigger_id']} fired: {safe(task_name(fired))} of {fired['run_id']}")
    return 0


def _unquarantine(arguments: argparse.Namespace) -> int:
    answer = connect(arguments).delete("triggers", "quarantine", arguments.class_path)
    if arguments.json:
        print_json(answer)
    elif answer["changed"]:
        hint(f"triggers of {safe(arguments.class_path)} were released from quarantine")
    else:
        hint(f"{safe(arguments.class_path)} is not in quarantine")
    return 0


def _what(trigger: dict[str, Any]) -> str:
    """Return what a trigger waits for, starting with the author's label, if any."""
    label = trigger.get("label")
    return f"{label}: {trigger['detail']}" if label else str(trigger["detail"])
