"""``aioflow users``, ``tokens`` and ``audit``: accounts, API tokens, and the log of changes.

Users log in with a password; programs authenticate with a token instead. The audit log also
contains denied changes.
"""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from aioflow.cli.arguments import Nouns, add_command, add_group, from_zero, moment, positive
from aioflow.cli.client import connect
from aioflow.cli.daemon_or_database import read
from aioflow.cli.output import hint, print_json, print_table, safe, say
from aioflow.errors import SettingsError

__all__ = (
    "add_audit",
    "add_tokens",
    "add_users",
)

_ROLES = ("viewer", "operator", "admin")


def add_users(nouns: Nouns) -> None:
    """Declare ``aioflow users`` and its commands."""
    verbs = add_group(
        nouns,
        "users",
        text="manage user accounts",
        example="aioflow users create anna --role operator",
    )
    making = add_command(
        verbs,
        "create",
        _create_user,
        text="create a user; the password is prompted for, or read from standard input",
        example="aioflow users create anna --role operator",
    )
    making.add_argument("name", metavar="NAME")
    making.add_argument("--role", choices=_ROLES, default="viewer", help="default: viewer")
    _add_groups(making, text="be in this group; repeatable")
    add_command(verbs, "list", _list_users, text="list the users", example="aioflow users list")
    setting = add_command(
        verbs,
        "set",
        _set_user,
        text="change a user; this ends their sessions",
        example="aioflow users set anna --disable",
    )
    setting.add_argument("name", metavar="NAME")
    setting.add_argument("--role", choices=_ROLES)
    setting.add_argument(
        "--password",
        action="store_true",
        help="set a new password, prompted for or read as by `create`",
    )
    grouping = setting.add_mutually_exclusive_group()
    _add_groups(grouping, text="be in this group, and in no other; repeatable")
    grouping.add_argument("--no-groups", action="store_true", help="be in no group")
    state = setting.add_mutually_exclusive_group()
    state.add_argument("--disable", action="store_true", help="disable logins of this user")
    state.add_argument("--enable", action="store_true")
    choosing = add_command(
        verbs,
        "password",
        _change_own_password,
        text="change your own password; prompted for, or read as two lines: old, new",
        example="aioflow users password anna",
    )
    choosing.add_argument("name", metavar="NAME")
    deleting = add_command(
        verbs,
        "delete",
        _delete_user,
        text="delete a user; this ends their sessions and revokes their tokens",
        example="aioflow users delete anna",
    )
    deleting.add_argument("name", metavar="NAME")


def _add_groups(parser: argparse._ActionsContainer, *, text: str) -> None:
    parser.add_argument("--group", action="append", metavar="GROUP", dest="groups", help=text)


def _create_user(arguments: argparse.Namespace) -> int:
    password = _read_password(arguments.name)
    body: dict[str, object] = {
        "name": arguments.name,
        "password": password,
        "role": arguments.role,
        "groups": arguments.groups or [],
    }
    answer = connect(arguments).post("users", body=body)
    return say(arguments, answer, f"{safe(arguments.name)} may log in, as {arguments.role}")


def _set_user(arguments: argparse.Namespace) -> int:
    body: dict[str, object] = {}
    if arguments.role is not None:
        body["role"] = arguments.role
    if arguments.disable or arguments.enable:
        body["disabled"] = arguments.disable
    if arguments.password:
        body["password"] = _read_password(arguments.name)
    if arguments.groups or arguments.no_groups:
        body["groups"] = arguments.groups or []
    if not body:
        raise SettingsError(
            "say what to change: --role, --group, --password, --disable or --enable"
        )
    answer = connect(arguments).put("users", arguments.name, body=body)
    text = f"{safe(arguments.name)} is {answer['role']}"
    return say(arguments, answer, text + (", disabled" if answer["disabled"] else ""))


def _change_own_password(arguments: argparse.Namespace) -> int:
    name = arguments.name
    old = _read_line(f"present password of {name}: ")
    body: dict[str, object] = {"name": name, "old": old, "new": _read_password(name)}
    answer = connect(arguments).put("me", "password", body=body)
    return say(arguments, answer, f"{safe(name)} has a new password")


def _list_users(arguments: argparse.Namespace) -> int:
    found = read(arguments, lambda source: source.users())
    if arguments.json:
        print_json(found)
        return 0
    print_table(
        ("NAME", "ROLE", "GROUPS", "DISABLED", "CREATED AT", "CHANGED AT"),
        (
            (
                user["name"],
                user["role"],
                " ".join(user["groups"]),
                "yes" if user["disabled"] else "no",
                user["created_at"],
                user["changed_at"],
            )
            for user in found
        ),
        empty="no users; open the page with the home's own token",
    )
    return 0


def _delete_user(arguments: argparse.Namespace) -> int:
    answer = connect(arguments).delete("users", arguments.name)
    return say(arguments, answer, f"{safe(arguments.name)} is deleted")


def _read_password(name: str) -> str:
    """Prompt for a password twice, or read it from standard input.

    It is not an argument, because arguments are visible in the process list.
    """
    password = _read_line(f"password of {name}: ")
    if sys.stdin.isatty() and _read_line("repeat it: ") != password:
        raise SettingsError("the two passwords differ")
    return password


def _read_line(question: str) -> str:
    if sys.stdin.isatty():
        return getpass.getpass(question)
    return sys.stdin.readline().removesuffix("\n").removesuffix("\r")


def add_tokens(nouns: Nouns) -> None:
    """Declare ``aioflow tokens`` and its commands."""
    verbs = add_group(
        nouns,
        "tokens",
        text="manage API tokens",
        example="aioflow tokens create ci --role operator --dag daily --days 90",
    )
    making = add_command(
        verbs,
        "create",
        _create_token,
        text="create a token; it is printed only once",
        example="aioflow tokens create ci --role operator --dag sales --days 90",
    )
    making.add_argument("name", metavar="NAME")
    making.add_argument("--role", choices=_ROLES, default="viewer", help="default: viewer")
    making.add_argument(
        "--dag",
        action="append",
        metavar="DAG",
        dest="scopes",
        help="restrict it to this DAG; repeatable",
    )
    ending = making.add_mutually_exclusive_group()
    ending.add_argument("--days", type=positive, metavar="N", help="lifetime in days")
    ending.add_argument("--until", type=moment, metavar="TIME", help="when it expires")
    add_command(
        verbs,
        "list",
        _list_tokens,
        text="list the tokens; no command prints their values",
        example="aioflow tokens list",
    )
    revoking = add_command(
        verbs,
        "revoke",
        _revoke_token,
        text="revoke a token at once",
        example="aioflow tokens revoke 1048577",
    )
    revoking.add_argument("token_id", type=from_zero, metavar="TOKEN_ID")


def _create_token(arguments: argparse.Namespace) -> int:
    body: dict[str, object] = {
        "name": arguments.name,
        "role": arguments.role,
        "scopes": arguments.scopes,
        "expires_at": _expires_at(arguments),
    }
    answer = connect(arguments).post("tokens", body=body)
    if arguments.json:
        print_json(answer)
        return 0
    hint(f"token {answer['token_id']} of {safe(answer['name'])}, {answer['role']}; save it now:")
    print(answer["token"])
    return 0


def _expires_at(arguments: argparse.Namespace) -> str | None:
    if arguments.days is None:
        until: str | None = arguments.until
        return until
    from aioflow.clock import SystemClock

    try:
        moment = datetime.fromtimestamp(SystemClock().now() / 1e6, UTC)
        return (moment + timedelta(days=arguments.days)).isoformat()
    except OverflowError:
        raise SettingsError(f"--days {arguments.days} is out of range: years 1 to 9999") from None


def _list_tokens(arguments: argparse.Namespace) -> int:
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
        empty="no tokens besides the home's own, in its file `token`",
    )
    return 0


def _revoke_token(arguments: argparse.Namespace) -> int:
    answer = connect(arguments).delete("tokens", str(arguments.token_id))
    if arguments.json:
        print_json(answer)
    else:
        hint(f"token {arguments.token_id} of {safe(answer['name'])} is good for nothing")
    return 0


def add_audit(nouns: Nouns) -> None:
    """Declare ``aioflow audit list``."""
    verbs = add_group(
        nouns, "audit", text="show who changed what", example="aioflow audit list --limit 3"
    )
    listing = add_command(
        verbs,
        "list",
        _list_audit,
        text="list changes and denied attempts, the newest first",
        example="aioflow audit list --limit 20",
    )
    listing.add_argument("--limit", type=positive, default=100, metavar="N")
    listing.add_argument("--actor", metavar="NAME", help="a part of who did it")
    listing.add_argument(
        "--action", metavar="ACTION", help="an action such as run.clear, or its noun: run"
    )
    listing.add_argument("--target", metavar="TEXT", help="a part of what it was done to")
    listing.add_argument("--outcome", choices=("done", "refused"))
    listing.add_argument("--from", dest="first", type=moment, metavar="TIME")
    listing.add_argument("--to", dest="last", type=moment, metavar="TIME", help="before this time")
    listing.add_argument("--before", type=from_zero, metavar="ID", help="continue after this entry")


def _list_audit(arguments: argparse.Namespace) -> int:
    named = {
        "actor": arguments.actor,
        "action": arguments.action,
        "target": arguments.target,
        "outcome": arguments.outcome,
        "from": arguments.first,
        "to": arguments.last,
    }
    query = {name: value for name, value in named.items() if value is not None}
    found = read(
        arguments,
        lambda source: source.audit(query, limit=arguments.limit, before=arguments.before),
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
                _after_text(line),
            )
            for line in found
        ),
        empty="no matching entries" if query else "nothing has been changed yet",
    )
    return 0


def _after_text(line: Mapping[str, Any]) -> str | None:
    after: str | None = line["after"]
    return f"{after} and {line['more']} more" if line["more"] else after
