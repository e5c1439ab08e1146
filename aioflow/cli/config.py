"""``aioflow config``: show each setting and its source."""

from __future__ import annotations

import argparse
from typing import Any

from aioflow.cli.arguments import Nouns, add_command, add_group
from aioflow.cli.output import hint, print_json, print_table

__all__ = ("add_parser",)


def add_parser(nouns: Nouns) -> None:
    """Declare the command."""
    verbs = add_group(nouns, "config", text="show settings", example="aioflow config show")
    add_command(
        verbs,
        "show",
        _show,
        text="show each setting and where it came from",
        example="AIOFLOW_WEB__PORT=0 aioflow config show",
        remote=False,
    )


def _show(arguments: argparse.Namespace) -> int:
    from aioflow.settings import Settings

    settings = Settings.read(arguments.home)
    for odd in settings.oddities:
        hint(odd)
    if arguments.json:
        print_json(
            [
                {"name": name, "value": value, "source": settings.sources[name]}
                for name, value in settings.values.items()
            ]
        )
        return 0
    print_table(
        ("SETTING", "VALUE", "FROM"),
        (
            (name, _as_in_the_file(value), settings.sources[name])
            for name, value in settings.values.items()
        ),
        empty="there are none",
    )
    return 0


def _as_in_the_file(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)
