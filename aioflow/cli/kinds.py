"""``aioflow triggers kinds``: the triggers that installed packages bring."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import anyio
import msgspec

from aioflow.catalog.parsing import Limits, Parser
from aioflow.catalog.plug_ins import PlugIn, look_at, plug_ins
from aioflow.children import Children
from aioflow.cli.output import hint, print_json, print_table, safe
from aioflow.clock import SystemClock

__all__ = ("show",)


def show(arguments: argparse.Namespace) -> int:
    """Print the triggers of every plug-in; 1 if one of them is broken."""
    found = anyio.run(_look_at_all)
    if arguments.json:
        print_json([msgspec.to_builtins(plug_in) for plug_in in found])
    else:
        print_table(
            ("PLUG-IN", "PACKAGE", "TRIGGER", "WAITS FOR"),
            (
                (plug_in.name, plug_in.package, kind.class_path, kind.summary)
                for plug_in in found
                for kind in plug_in.kinds
            ),
            empty="no plug-in brings triggers",
        )
        for broken in found:
            if broken.failure is not None:
                message = safe(broken.failure.message)
                hint(f"plug-in {broken.name} ({broken.module}) cannot be imported: {message}")
    return 1 if any(plug_in.failure is not None for plug_in in found) else 0


async def _look_at_all() -> list[PlugIn]:
    found: list[PlugIn] = []
    with tempfile.TemporaryDirectory(prefix="aioflow-kinds-") as home:
        children = Children(Path(home))
        parser = Parser(children, Path(home) / "code", SystemClock(), Limits())
        async with anyio.create_task_group() as group:
            await group.start(children.run)
            await group.start(parser.run)
            found += [await look_at(plug_in, parser) for plug_in in plug_ins()]
            group.cancel_scope.cancel()
    return found
