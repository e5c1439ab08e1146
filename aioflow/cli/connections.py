"""``aioflow connections``: set a connection by its fields, show it without secrets, and test it."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from typing import Any

from aioflow.cli.arguments import Nouns, add_command
from aioflow.cli.client import connect
from aioflow.cli.output import hint, print_json, print_table, safe
from aioflow.errors import SettingsError

__all__ = ("add_field_options", "add_verbs", "value_of_fields")

_FIELDS = ("host", "port", "login", "schema")
_PORT_LIMIT = 65_535


def add_verbs(verbs: Nouns) -> None:
    """Declare the commands that only connections have."""
    add_command(
        verbs,
        "types",
        _types,
        text="list the types of connections, with their fields",
        example="aioflow connections types",
    )
    show = add_command(
        verbs,
        "show",
        _show,
        text="show a connection without its secrets",
        example="aioflow connections show pg",
    )
    show.add_argument("name", metavar="NAME")
    test = add_command(
        verbs,
        "test",
        _test,
        text="open a connection and close it; the exit status is 1 if that fails",
        example="aioflow connections test pg",
    )
    test.add_argument("name", metavar="NAME")


def add_field_options(setting: argparse.ArgumentParser) -> None:
    """Declare the options of ``connections set`` for single fields."""
    setting.add_argument(
        "--type",
        metavar="TYPE",
        help="set it by fields: a type or scheme of `aioflow connections types`; the password "
        "is prompted for or read from standard input",
    )
    setting.add_argument("--host", metavar="HOST", help="of a server, or a bucket")
    setting.add_argument("--port", type=_port, metavar="PORT", help="default: that of the type")
    setting.add_argument("--login", metavar="USER", help="user, key id or account")
    setting.add_argument("--schema", metavar="NAME", help="database or path")
    setting.add_argument(
        "--extra", action="append", metavar="NAME=VALUE", help="a further setting; repeatable"
    )
    setting.add_argument(
        "--keep-password",
        action="store_true",
        help="keep the secrets that are set, if the server is the same",
    )


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= _PORT_LIMIT:
        raise argparse.ArgumentTypeError(f"a port is a number from 1 to {_PORT_LIMIT}")
    return int(text)


def value_of_fields(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return the connection that the options describe; ``None`` if no such option is given.

    Raises:
        SettingsError: If the options do not fit together.
    """
    found = {name: getattr(arguments, name) for name in _FIELDS}
    value = {name: given for name, given in found.items() if given is not None}
    if arguments.type is None:
        if value or arguments.extra or arguments.keep_password:
            raise SettingsError("give --type as well, to set a connection by its fields")
        return None
    if arguments.value is not None or arguments.file is not None:
        raise SettingsError("give either fields like --type and --host, or a VALUE or --file")
    value["conn_type"] = _scheme(arguments)
    extra = dict(_pair(text) for text in arguments.extra or ())
    if extra:
        value["extra"] = extra
    if not arguments.keep_password:
        password = _password(arguments.name)
        if password:
            value["password"] = password
    return value


def _scheme(arguments: argparse.Namespace) -> str:
    """Return the scheme for the given type: the first scheme of that type, or the text itself."""
    found = connect(arguments).get("connection-types")["types"]
    schemes = {one["name"]: one["schemes"] for one in found}
    given = str(arguments.type)
    return next(iter(schemes.get(given, ())), "" if given == "generic" else given)


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise SettingsError(f"--extra takes NAME=VALUE, got {name!r}")
    return name, value


def _password(name: str) -> str:
    if sys.stdin.isatty():
        return getpass.getpass(f"password of {name} (empty for none): ")
    try:
        text = sys.stdin.read()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"the password cannot be read: {exc}") from exc
    return text.removesuffix("\n").removesuffix("\r")


def _types(arguments: argparse.Namespace) -> int:
    found = connect(arguments).get("connection-types")
    if arguments.json:
        print_json(found)
        return 0
    print_table(
        ("TYPE", "LABEL", "SCHEMES", "FIELDS", "PACKAGE"),
        (
            (
                one["name"],
                one["label"],
                ", ".join(one["schemes"]) or "any other",
                ", ".join(field["name"] for field in one["fields"]),
                one["package"],
            )
            for one in found["types"]
        ),
        empty="no type is installed",
    )
    for name, problem in found["problems"].items():
        hint(f"type {safe(name)} cannot be used: {safe(problem)}")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    found = connect(arguments).get("connections", arguments.name)
    if arguments.json:
        print_json(found)
        return 0
    for name, value in found.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        print(f"{name}: {safe(text) if value not in (None, '') else '-'}")
    return 0


def _test(arguments: argparse.Namespace) -> int:
    found = connect(arguments).post("connections", arguments.name, "test")
    if arguments.json:
        print_json(found)
    else:
        print(f"{'ok' if found['ok'] else 'failed'}: {safe(found['message'])}")
    return 0 if found["ok"] else 1
