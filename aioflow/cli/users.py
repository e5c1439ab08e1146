"""``aioflow users``: accounts that log in with a password."""

from __future__ import annotations

import argparse
import getpass
import sys

from aioflow.cli.arguments import Nouns, add_command, add_group
from aioflow.cli.client import connect
from aioflow.cli.output import print_json, print_table, safe, say
from aioflow.cli.queries import read
from aioflow.errors import SettingsError

__all__ = ("add_parser",)

_ROLES = ("viewer", "operator", "admin")


def add_parser(nouns: Nouns) -> None:
    """Declare the commands."""
    verbs = add_group(
        nouns,
        "users",
        text="let people log in",
        example="aioflow users create anna --role operator",
    )
    making = add_command(
        verbs,
        "create",
        _create,
        text="let somebody log in; the password is asked for, or read from standard input",
        example="aioflow users create anna --role operator",
    )
    making.add_argument("name", metavar="NAME")
    making.add_argument("--role", choices=_ROLES, default="viewer", help="default: viewer")
    add_command(verbs, "list", _list, text="list who may log in", example="aioflow users list")
    setting = add_command(
        verbs,
        "set",
        _set,
        text="change a user, whose sessions end",
        example="aioflow users set anna --disable",
    )
    setting.add_argument("name", metavar="NAME")
    setting.add_argument("--role", choices=_ROLES)
    setting.add_argument(
        "--password", action="store_true", help="ask for a new one, or read it as `create` does"
    )
    state = setting.add_mutually_exclusive_group()
    state.add_argument("--disable", action="store_true", help="have nobody log in so for now")
    state.add_argument("--enable", action="store_true")
    choosing = add_command(
        verbs,
        "password",
        _choose,
        text="choose another password of your own; asked for, or read: the old line, the new line",
        example="aioflow users password anna",
    )
    choosing.add_argument("name", metavar="NAME")
    deleting = add_command(
        verbs,
        "delete",
        _delete,
        text="delete a user, whose sessions end, and whose tokens are revoked",
        example="aioflow users delete anna",
    )
    deleting.add_argument("name", metavar="NAME")


def _create(arguments: argparse.Namespace) -> int:
    password = _password(arguments.name)
    body: dict[str, object] = {
        "name": arguments.name,
        "password": password,
        "role": arguments.role,
    }
    answer = connect(arguments).post("users", body=body)
    return say(arguments, answer, f"{safe(arguments.name)} may log in, as {arguments.role}")


def _set(arguments: argparse.Namespace) -> int:
    body: dict[str, object] = {}
    if arguments.role is not None:
        body["role"] = arguments.role
    if arguments.disable or arguments.enable:
        body["disabled"] = arguments.disable
    if arguments.password:
        body["password"] = _password(arguments.name)
    if not body:
        raise SettingsError("say what to change: --role, --password, --disable or --enable")
    answer = connect(arguments).put("users", arguments.name, body=body)
    text = f"{safe(arguments.name)} is {answer['role']}"
    return say(arguments, answer, text + (", disabled" if answer["disabled"] else ""))


def _choose(arguments: argparse.Namespace) -> int:
    name = arguments.name
    old = _line(f"present password of {name}: ")
    body: dict[str, object] = {"name": name, "old": old, "new": _password(name)}
    answer = connect(arguments).put("me", "password", body=body)
    return say(arguments, answer, f"{safe(name)} has another password")


def _list(arguments: argparse.Namespace) -> int:
    found = read(arguments, lambda source: source.users())
    if arguments.json:
        print_json(found)
        return 0
    print_table(
        ("NAME", "ROLE", "DISABLED", "CREATED AT", "CHANGED AT"),
        (
            (
                user["name"],
                user["role"],
                "yes" if user["disabled"] else "no",
                user["created_at"],
                user["changed_at"],
            )
            for user in found
        ),
        empty="nobody may log in; the home's own token opens the page",
    )
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    answer = connect(arguments).delete("users", arguments.name)
    return say(arguments, answer, f"{safe(arguments.name)} is deleted")


def _password(name: str) -> str:
    """Prompt for a password twice, or read it: an argument would be visible in the process list."""
    password = _line(f"password of {name}: ")
    if sys.stdin.isatty() and _line("once more: ") != password:
        raise SettingsError("the two are not the same")
    return password


def _line(question: str) -> str:
    if sys.stdin.isatty():
        return getpass.getpass(question)
    return sys.stdin.readline().removesuffix("\n").removesuffix("\r")
