"""``aioflow db``: whether the database says the same as its journal."""

from __future__ import annotations

import argparse

from aioflow.cli.arguments import Nouns, add_command
from aioflow.cli.output import hint, print_json, safe

__all__ = ("add_parser",)


def add_parser(nouns: Nouns) -> None:
    """Declare the command."""
    noun = nouns.add_parser("db", help="look after the database")
    verbs = noun.add_subparsers(required=True, metavar="COMMAND")
    add_command(
        verbs,
        "check",
        _check,
        text="compare the tables with a replay of the journal; a daemon may run meanwhile",
        example="aioflow db check",
        remote=False,
    )
    add_command(
        verbs,
        "migrate",
        _migrate,
        text="bring an older PostgreSQL schema up to date; no daemon may run meanwhile",
        example="aioflow db migrate",
        remote=False,
    )


def _migrate(arguments: argparse.Namespace) -> int:
    import anyio

    from aioflow.secrets import Vault
    from aioflow.settings import Settings
    from aioflow.store import open_store

    settings = Settings.read(arguments.home)
    vault = Vault.open(settings.key_file)

    async def migrate() -> None:
        async with open_store(settings.db, vault, migrate=True):
            pass  # opening it is all there is to do

    anyio.run(migrate)
    if arguments.json:
        print_json({"ok": True})
    else:
        hint("the schema is up to date")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    import anyio

    from aioflow.cli.database import opened
    from aioflow.settings import Settings
    from aioflow.store.replay import compare

    async def compared() -> list[str]:
        async with opened(Settings.read(arguments.home)) as store:
            return await compare(store)

    differences = anyio.run(compared)
    if arguments.json:
        print_json({"ok": not differences, "differences": differences})
    elif differences:
        for difference in differences:
            print(safe(difference))
    else:
        hint("the tables are what the journal says")
    return 1 if differences else 0
