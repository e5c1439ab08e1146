"""The pages of results a try is given, fetched before its body begins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from aioflow.author.node import Node
from aioflow.protocol.commands import StartTask
from aioflow.worker.arguments import KnownRun, streamed_from, wanted_children, wanted_parents
from aioflow.worker.body import PagesOfRun
from aioflow.worker.queries import ResultsPage, ResultsWanted, only
from aioflow.worker.shared_host import Line

__all__ = ("FetchPage", "fetch_ahead", "fetch_page", "no_page")

FetchPage: TypeAlias = Callable[[int, int, int], Awaitable[ResultsPage]]
"""``(run_no, position, after)`` to a page of results."""


async def fetch_page(line: Line, run_no: int, position: int, after: int) -> ResultsPage:
    """Ask the daemon for a page of results.

    Raises:
        TaskError: If it has none to give.
    """
    wanted = msgspec.msgpack.encode(ResultsWanted(position, after))
    return msgspec.msgpack.decode(await line.ask(run_no, "results", wanted), type=ResultsPage)


async def fetch_ahead(run: KnownRun, node: Node, start: StartTask, fetch: FetchPage) -> PagesOfRun:
    """Fetch all pages of parents now: a sequence on a loop cannot wait when it is read."""
    if not (start.is_closing or run.asks_for_results(node)):
        return no_page
    pages: dict[tuple[int, int], ResultsPage] = {}
    for position in wanted_parents(run, node, start):
        after, more = (-2 if position >= 0 else -1), True
        while more:
            page = await fetch(start.run_no, position, after)
            pages[position, after] = page
            after, more = page.last, page.more
    for position, index in wanted_children(node, start):
        pages[position, only(index)] = await fetch(start.run_no, position, only(index))
    if (source := streamed_from(run, node, start)) is not None and start.item is None:
        after = start.map_index - 1
        pages[source, after] = await fetch(start.run_no, source, after)
    return lambda _, position, after: pages[position, after]


def no_page(run_no: int, position: int, after: int) -> ResultsPage:
    """Give nothing: the pages of one that asked for none.

    Raises:
        LookupError: Always.
    """
    raise LookupError(f"results of {position} after {after} were not fetched")
