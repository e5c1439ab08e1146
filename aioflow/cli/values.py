"""``aioflow secrets``, ``connections`` and ``variables``: set, list and delete values by name.

No command prints a value.
"""

from __future__ import annotations

import argparse
import getpass
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from aioflow.cli import connections
from aioflow.cli.arguments import Nouns, add_command, add_group, complete_paths, parsed_json
from aioflow.cli.client import connect
from aioflow.cli.daemon_or_database import read
from aioflow.cli.output import hint, print_json, print_table, safe
from aioflow.errors import SettingsError

__all__ = ("add_parser",)


class _Noun(NamedTuple):
    kind: str
    text: str
    example: str
    wants: str


_NOUNS = (
    _Noun(
        "secret", "manage secrets for tasks", "pass show bank | aioflow secrets set BANK", "a text"
    ),
    _Noun(
        "connection",
        "manage connections to servers",
        "aioflow connections set pg --file pg.json",
        "a URI like postgresql://user:password@host/db, or a JSON object",
    ),
    _Noun(
        "variable",
        "manage variables of tasks",
        "aioflow variables set REGION eu-west",
        "any JSON; anything else is text",
    ),
)


def add_parser(nouns: Nouns) -> None:
    """Declare the commands for secrets, connections and variables."""
    for noun in _NOUNS:
        words = f"{noun.kind}s"
        verbs = add_group(nouns, words, text=noun.text, example=f"aioflow {words} list")
        _add_verbs(verbs, noun)
        if noun.kind == "secret":
            add_command(
                verbs,
                "rotate",
                _rotate,
                text="change the key of the home and encrypt everything again",
                example="aioflow secrets rotate",
            )


def _rotate(arguments: argparse.Namespace) -> int:
    answer = connect(arguments).post("secrets", "rotate")
    if arguments.json:
        print_json(answer)
        return 0
    how = "an interrupted key change was completed" if answer["resumed"] else "the key was changed"
    hint(f"{how}: {answer['reencrypted']} encrypted again")
    if answer["unopened"]:
        hint(f"{answer['unopened']} are unchanged: no key of this home can decrypt them")
    return 0


def _add_verbs(verbs: Nouns, noun: _Noun) -> None:
    kind = noun.kind
    add_command(
        verbs,
        "list",
        partial(_list, kind),
        text=f"list the {kind}s by name; no command prints their values",
        example=f"aioflow {kind}s list",
    )
    setting = add_command(
        verbs, "set", partial(_set, kind), text=f"set a {kind}", example=noun.example
    )
    setting.add_argument("name", metavar="NAME")
    setting.add_argument(
        "value",
        metavar="VALUE",
        nargs="?",
        help=f"{noun.wants}; better omit it: it is then prompted for or read from standard input",
    )
    file = setting.add_argument(
        "--file", type=Path, metavar="FILE", help="read it from here instead"
    )
    complete_paths(file, "file")
    if kind == "connection":
        connections.add_field_options(setting)
        connections.add_verbs(verbs)
    deleting = add_command(
        verbs,
        "delete",
        partial(_delete, kind),
        text=f"delete a {kind}",
        example=f"aioflow {kind}s delete NAME",
    )
    deleting.add_argument("name", metavar="NAME")


def _list(kind: str, arguments: argparse.Namespace) -> int:
    found = read(arguments, lambda source: source.values(kind))
    if arguments.json:
        print_json(found)
        return 0
    own, titles = (("conn_type", "host"), ("TYPE", "HOST")) if kind == "connection" else ((), ())
    print_table(
        ("NAME", *titles, "SET AT", "HIDDEN IN LOGS", "OPENS"),
        (
            (v["name"], *map(v.get, own), v["set_at"], _yes(v["hidden"]), _yes(v["opens"]))
            for v in found
        ),
        empty=f"no {kind} is set",
    )
    return 0


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _set(kind: str, arguments: argparse.Namespace) -> int:
    value = connections.value_of_fields(arguments) if kind == "connection" else None
    body: dict[str, Any] = {"value": value}
    if value is None:
        body["value"] = _value_of(kind, _text(kind, arguments))
    elif arguments.keep_password:
        body["keep_secrets"] = True
    answer = connect(arguments).put(f"{kind}s", arguments.name, body=body)
    if arguments.json:
        print_json(answer)
        return 0
    hint(f"{kind} {safe(arguments.name)} is set")
    if kind != "variable" and not answer["hidden"]:
        hint("it has no text of at least 5 characters, so it cannot be redacted in logs")
    return 0


def _delete(kind: str, arguments: argparse.Namespace) -> int:
    answer = connect(arguments).delete(f"{kind}s", arguments.name)
    if arguments.json:
        print_json(answer)
    else:
        hint(f"{kind} {safe(arguments.name)} is deleted")
    return 0


def _text(kind: str, arguments: argparse.Namespace) -> str:
    """Return the value from the argument, or read it from a file, a prompt or standard input.

    A trailing newline from a file or standard input is removed, because it only ends the text.
    """
    if arguments.value is not None:
        if arguments.file is not None:
            raise SettingsError("give either a VALUE or --file, not both")
        return str(arguments.value)
    try:
        if arguments.file is not None:
            text = arguments.file.read_text()
        elif sys.stdin.isatty():
            return getpass.getpass(f"{kind} {arguments.name}: ")
        else:
            text = sys.stdin.read()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"the {kind} cannot be read: {exc}") from exc
    return str(text.removesuffix("\n").removesuffix("\r"))


def _value_of(kind: str, text: str) -> Any:
    if kind == "secret":
        return text
    if kind == "connection" and not text.lstrip().startswith("{"):
        return text
    try:
        return parsed_json(text)
    except (ValueError, RecursionError):
        if kind == "variable":
            return text
        # The message does not contain the value, because that may be a password.
        raise SettingsError(
            "the connection begins like a JSON object, but is not valid JSON"
        ) from None
