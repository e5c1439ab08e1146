"""``aioflow triggers kinds``: the triggers that installed packages provide."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

import anyio
import msgspec

from aioflow.catalog.plugins import PlugIn, inspect_plug_in, plug_ins
from aioflow.cli.offline_parser import lone_parser
from aioflow.cli.output import hint, print_json, print_table, safe

__all__ = ("show",)


def show(arguments: argparse.Namespace) -> int:
    """Print the triggers of every plug-in. Return 1 if one of them is broken."""
    found = anyio.run(_look_at_all)
    if arguments.json:
        print_json([msgspec.to_builtins(plug_in) for plug_in in found])
    else:
        print_table(
            ("PLUG-IN", "PACKAGE", "TRIGGER", "WAITS FOR"),
            _rows(found),
            empty="no plug-in brings triggers",
        )
        for broken in found:
            if broken.failure is not None:
                message = safe(broken.failure.message)
                hint(f"plug-in {broken.name} ({broken.module}) cannot be imported: {message}")
    return 1 if any(plug_in.failure is not None for plug_in in found) else 0


def _rows(found: Sequence[PlugIn]) -> Iterable[tuple[str, str, str, str]]:
    """Return the rows of a table. A class named by several entry points is listed once."""
    rows: dict[str, tuple[str, str, str, str]] = {}
    for plug_in in found:
        for kind in plug_in.kinds:
            row = (plug_in.name, plug_in.package, kind.class_path, kind.summary)
            rows.setdefault(kind.class_path, row)
    return rows.values()


async def _look_at_all() -> list[PlugIn]:
    async with lone_parser("aioflow-kinds-") as parser:
        return [await inspect_plug_in(plug_in, parser) for plug_in in plug_ins()]
