"""A parser without a daemon. Its processes and files last as long as one command."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from aioflow.catalog.parse import Limits, Parser
from aioflow.clock import SystemClock
from aioflow.processes import Children

__all__ = ("lone_parser",)


@asynccontextmanager
async def lone_parser(prefix: str, allowed: Sequence[str] = ()) -> AsyncIterator[Parser]:
    """Run a parser for the duration of the block. Its processes and files are removed at the end.

    Args:
        prefix: Prefix of the name of its temporary folder.
        allowed: See ``Children``.
    """
    with tempfile.TemporaryDirectory(prefix=prefix) as home:
        children = Children(Path(home), allowed=allowed)
        parser = Parser(children, Path(home) / "code", SystemClock(), Limits())
        async with anyio.create_task_group() as group:
            await group.start(children.run)
            await group.start(parser.run)
            yield parser
            group.cancel_scope.cancel()
