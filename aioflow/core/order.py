"""What a host is told of a task it starts: where it resumes, its items, its parents' results."""

from __future__ import annotations

from typing import TypeAlias

from aioflow.core.memory import Live
from aioflow.model import Instant, MapSpec
from aioflow.orders import Start

__all__ = ("order", "time_left")

_Items: TypeAlias = tuple[tuple[tuple[int, int, int], ...], tuple[int, ...]]
"""Where a child finds its items: ``(sources, widths)`` of its ``Start``."""

_NO_ITEMS: _Items = ((), ())


def order(live: Live, now: Instant) -> Start:
    """Return the order to start a task, with what it needs that the engine has at hand."""
    run, spec, wait = live.run, live.spec, None if live.resumed is None else live.resumed.row
    at_hand = tuple(p for p in spec.argument_parents if run.known[p])
    sources, widths = _NO_ITEMS if spec.mapped is None else _items(live, spec.mapped)
    return Start(
        run_no=run.run_no,
        task_no=live.task_no,
        start_no=live.start_no,
        position=live.position,
        map_index=live.map_index,
        try_number=live.try_number,
        method="" if wait is None else wait.next_method,
        kwargs=None if wait is None else wait.next_kwargs,
        event=None if wait is None else wait.event,
        results={p: run.results[p] for p in at_hand if p in run.results},
        at_hand=at_hand,
        sources=sources,
        widths=widths,
        recorded=live.recorded,
        timeout_us=time_left(live, now),
    )


def _items(live: Live, mapped: MapSpec) -> _Items:
    run, group = live.run, live.run.groups[live.position]
    if group.origin is None:
        first = run.row.first_task_no
        sources = tuple(
            (source.position, first + source.position, run.source_starts[source.position])
            for source in mapped.sources
            if source.position >= 0
        )
        widths = tuple(
            source.width if source.position < 0 else run.widths[source.position]
            for source in mapped.sources
        )
        group.origin = (sources, widths)
    return group.origin


def time_left(live: Live, now: Instant) -> int | None:
    """The try's time runs on while it is deferred; a microsecond is left to say so."""
    limit = live.spec.execution_timeout_us
    if limit is None or live.started_at is None:
        return limit
    return max(1, limit - (now - live.started_at))
