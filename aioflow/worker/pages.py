"""The result pages that a try reads, fetched before its body begins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from aioflow.author.node import Node
from aioflow.protocol.commands import StartTask
from aioflow.worker.arguments import KnownRun, streamed_from, wanted_children, wanted_parents
from aioflow.worker.body import PagesOfRun
from aioflow.worker.queries import ResultsPage, ResultsWanted, only
from aioflow.worker.shared_host import ReportBuffer

__all__ = ("FetchPage", "fetch_ahead", "fetch_page", "no_page")

FetchPage: TypeAlias = Callable[[int, int, int], Awaitable[ResultsPage]]
"""Returns the page of results for ``(run_no, position, after)``."""


async def fetch_page(reports: ReportBuffer, run_no: int, position: int, after: int) -> ResultsPage:
    """Query the daemon for a page of results.

    Raises:
        TaskError: If the daemon replies with an error.
    """
    wanted = msgspec.msgpack.encode(ResultsWanted(position, after))
    return msgspec.msgpack.decode(await reports.query(run_no, "results", wanted), type=ResultsPage)


async def fetch_ahead(run: KnownRun, node: Node, start: StartTask, fetch: FetchPage) -> PagesOfRun:
    """Fetch all pages of parents in advance: reading a sequence on the event loop cannot wait."""
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
    """Return no page: for a try that needs no results of others.

    Raises:
        LookupError: Always.
    """
    raise LookupError(f"results of {position} after {after} were not fetched")
