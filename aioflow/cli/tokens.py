"""``aioflow tokens``: API tokens, with which programs authenticate instead of a password."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta

from aioflow.cli.arguments import Nouns, add_command, add_group, from_zero, moment, positive
from aioflow.cli.client import connect
from aioflow.cli.output import hint, print_json, print_table, safe
from aioflow.cli.queries import read
from aioflow.errors import SettingsError

__all__ = ("add_parser",)

_ROLES = ("viewer", "operator", "admin")


def add_parser(nouns: Nouns) -> None:
    """Declare the commands."""
    verbs = add_group(
        nouns,
        "tokens",
        text="let programs in",
        example="aioflow tokens create ci --role operator --dag daily --days 90",
    )
    making = add_command(
        verbs,
        "create",
        _create,
        text="make a token, which is printed this once",
        example="aioflow tokens create ci --role operator --dag sales --days 90",
    )
    making.add_argument("name", metavar="NAME")
    making.add_argument("--role", choices=_ROLES, default="viewer", help="default: viewer")
    making.add_argument(
        "--dag",
        action="append",
        metavar="DAG",
        dest="scopes",
        help="it is good for this DAG alone; may be given several times",
    )
    ending = making.add_mutually_exclusive_group()
    ending.add_argument("--days", type=positive, metavar="N", help="how long it is good for")
    ending.add_argument("--until", type=moment, metavar="TIME", help="until when it is good")
    add_command(
        verbs,
        "list",
        _list,
        text="list the tokens; no command prints what they are",
        example="aioflow tokens list",
    )
    revoking = add_command(
        verbs,
        "revoke",
        _revoke,
        text="have a token be good for nothing, at once",
        example="aioflow tokens revoke 1048577",
    )
    revoking.add_argument("token_id", type=from_zero, metavar="TOKEN_ID")


def _create(arguments: argparse.Namespace) -> int:
    body: dict[str, object] = {
        "name": arguments.name,
        "role": arguments.role,
        "scopes": arguments.scopes,
        "expires_at": _until(arguments),
    }
    answer = connect(arguments).post("tokens", body=body)
    if arguments.json:
        print_json(answer)
        return 0
    hint(f"token {answer['token_id']} of {safe(answer['name'])}, {answer['role']}; keep it now:")
    print(answer["token"])
    return 0


def _until(arguments: argparse.Namespace) -> str | None:
    if arguments.days is None:
        until: str | None = arguments.until
        return until
    from aioflow.clock import SystemClock

    try:
        moment = datetime.fromtimestamp(SystemClock().now() / 1e6, UTC)
        return (moment + timedelta(days=arguments.days)).isoformat()
    except OverflowError:
        raise SettingsError(f"--days {arguments.days} is out of every calendar") from None


def _list(arguments: argparse.Namespace) -> int:
    found = read(arguments, lambda source: source.tokens())
    if arguments.json:
        print_json(found)
        return 0
    print_table(
        ("ID", "NAME", "ROLE", "DAGS", "STATE", "MADE BY", "EXPIRES AT", "LAST USED AT"),
        (
            (
                token["token_id"],
                token["name"],
                token["role"],
                "all" if token["scopes"] is None else " ".join(token["scopes"]),
                token["state"],
                token["created_by"],
                token["expires_at"],
                token["last_used_at"],
            )
            for token in found
        ),
        empty="no token but the home's own, in its file `token`",
    )
    return 0


def _revoke(arguments: argparse.Namespace) -> int:
    answer = connect(arguments).delete("tokens", str(arguments.token_id))
    if arguments.json:
        print_json(answer)
    else:
        hint(f"token {arguments.token_id} of {safe(answer['name'])} is good for nothing")
    return 0
