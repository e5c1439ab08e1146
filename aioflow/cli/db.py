"""``aioflow db``: check, migrate, clean, copy and export the database."""

from __future__ import annotations

import argparse
from typing import Any

from aioflow.cli.arguments import Nouns, add_command, add_group
from aioflow.cli.client import connect
from aioflow.cli.output import hint, print_json, safe
from aioflow.errors import StoreError

__all__ = ("add_parser",)

_KINDS = {
    "runs": "runs",
    "events": "named events",
    "journal": "rows of the journal",
    "logs": "runs' logs",
    "versions": "versions of DAG files",
    "audit": "lines of the audit",
    "history": "rows of the history",
}


def add_parser(nouns: Nouns) -> None:
    """Declare ``aioflow db`` and its commands."""
    verbs = add_group(nouns, "db", text="maintain the database", example="aioflow db check")
    checking = add_command(
        verbs,
        "check",
        _check,
        text="check for damage, read every row, and check references and the audit; "
        "a daemon may run meanwhile",
        example="aioflow db check",
        remote=False,
    )
    migrating = add_command(
        verbs,
        "migrate",
        _migrate,
        text="bring an older PostgreSQL schema up to date; no daemon may run meanwhile",
        example="aioflow db migrate",
        remote=False,
    )
    cleaning = add_command(
        verbs,
        "clean",
        _clean,
        text="delete data older than the [retention] settings",
        example="aioflow db clean --dry-run",
    )
    copying = add_command(
        verbs,
        "copy",
        _copy,
        text="copy the database into an empty one; no daemon may run meanwhile",
        example="aioflow db copy --to postgresql://aioflow@db/aioflow",
        remote=False,
    )
    copying.add_argument("--to", required=True, metavar="URL", help="where; as for `up --db`")
    exporting = add_command(
        verbs,
        "export",
        _export,
        text="print every row as a line of JSON; a daemon may run meanwhile",
        example="aioflow db export > rows.jsonl",
        remote=False,
    )
    cleaning.add_argument(
        "--dry-run", action="store_true", help="only report what would be deleted"
    )
    for parser in (checking, migrating, copying, exporting):
        parser.add_argument(
            "--db", metavar="URL", help="the database; default the setting db.url, as `up` has it"
        )


def _settings(arguments: argparse.Namespace) -> Any:
    from aioflow.settings import Settings

    return Settings.read(arguments.home, {"db.url": arguments.db})


def _clean(arguments: argparse.Namespace) -> int:
    client = connect(arguments)
    total = dict.fromkeys(_KINDS, 0)
    more = True
    while more:
        part = client.clean(dry_run=arguments.dry_run)
        for kind in _KINDS:
            total[kind] += part[kind]
        more = part["more"]
        if arguments.dry_run:
            break
    if arguments.json:
        print_json({**total, "dry_run": arguments.dry_run, "more": more})
        return 0
    least = "at least " if more else ""
    went = "would be deleted" if arguments.dry_run else "went"
    for kind, text in _KINDS.items():
        print(f"{least}{total[kind]} {text} {went}")
    return 0


def _migrate(arguments: argparse.Namespace) -> int:
    import anyio

    from aioflow.crypto import Vault
    from aioflow.store import open_store

    settings = _settings(arguments)
    vault = Vault.open(settings.key_file)

    async def migrate() -> None:
        async with open_store(settings.db, vault, migrate=True, home=settings.home):
            pass  # opening the store migrates it

    anyio.run(migrate)
    if arguments.json:
        print_json({"ok": True})
    else:
        hint("the schema is up to date")
    return 0


def _copy(arguments: argparse.Namespace) -> int:
    import anyio

    from aioflow.crypto import Vault
    from aioflow.store.copying import copy

    settings = _settings(arguments)
    vault = Vault.open(settings.key_file)
    counts = anyio.run(copy, settings.db, arguments.to, vault, settings.home)
    if arguments.json:
        print_json({"rows": counts})
    else:
        hint(
            f"{sum(counts.values())} rows of {settings.shown_db} were copied; set db.url to the "
            "new database: `up --db` counts for that daemon alone, other commands read db.url"
        )
    return 0


def _export(arguments: argparse.Namespace) -> int:
    import anyio

    from aioflow.cli.offline_database import opened
    from aioflow.store.copying import export

    async def export_all() -> None:
        settings = _settings(arguments)
        async with opened(settings):  # checks that the database exists and has the current schema
            await export(settings.db, put)

    failed: list[OSError] = []

    def put(row: dict[str, Any]) -> None:
        try:
            print_json(row, line=True)
        except OSError as exc:  # an error of the output: the store raises only its own errors
            failed.append(exc)
            raise

    try:
        anyio.run(export_all)
    except StoreError:
        if failed:
            raise failed[0] from None
        raise
    return 0


def _check(arguments: argparse.Namespace) -> int:
    import anyio

    from aioflow.api.access.audit import audit_faults
    from aioflow.api.page.history import history_faults
    from aioflow.cli.offline_database import opened
    from aioflow.store.sqlite.database_file import full_check

    async def check() -> list[str]:
        settings = _settings(arguments)
        if damaged := full_check(settings.db):
            return [f"damaged: {line}" for line in damaged]
        async with opened(settings) as store:
            damages = [*await store.find_damage(), *await store.find_dangling()]
            faults = [*await audit_faults(store), *await history_faults(store)]
            return [*map(str, damages), *faults]

    problems = anyio.run(check)
    if arguments.json:
        print_json({"ok": not problems, "problems": problems})
    elif problems:
        for problem in problems:
            print(safe(problem))
    else:
        hint("no problem was found")
    return 1 if problems else 0
