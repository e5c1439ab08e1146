"""The command that starts a task: its method, its items, and the results it takes as arguments."""

from __future__ import annotations

from itertools import islice
from typing import TypeAlias

from msgspec.structs import replace

from aioflow.core.state.task_instance import TaskInstance, TriggerInstance, time_left
from aioflow.core.tasks.expand import leaves
from aioflow.core.tasks.stream_expand import source_of
from aioflow.model.dag import MapSpec
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import StartTask

__all__ = ("EVENT_BYTES", "order")

_Items: TypeAlias = tuple[tuple[tuple[int, int, int], ...], tuple[int, ...]]
"""Location of a child's items: ``(sources, widths)`` as in ``StartTask``."""

_NO_ITEMS: _Items = ((), ())


EVENT_BYTES = 4 * 1024 * 1024
"""Maximum total payload of the events of one start. A single event may exceed it."""


def order(task: TaskInstance, steady: Timestamp, *, resumes: bool = True) -> StartTask:
    """Return the command that starts a task, with the data that the engine has in memory.

    Args:
        resumes: Whether the task resumes from an event. Otherwise it starts from the beginning.
    """
    resumed = task.resumed if resumes else None
    return _first_start(task, steady) if resumed is None else _resumed_start(task, resumed, steady)


def _first_start(task: TaskInstance, steady: Timestamp) -> StartTask:
    """Return the command for a start from the beginning."""
    run, spec = task.run, task.spec
    stream_output = run.items.get(task.task_no) if run.items else None
    at_hand = tuple([p for p in spec.argument_parents if run.known[p]])
    sources, widths = _NO_ITEMS if spec.mapped is None else _items(task, spec.mapped)
    return StartTask(
        run_no=run.run_no,
        task_no=task.task_no,
        start_no=task.start_no,
        task_index=task.task_index,
        map_index=task.map_index,
        try_number=task.try_number,
        results={p: run.results[p] for p in at_hand if p in run.results},
        at_hand=at_hand,
        sources=sources,
        widths=widths,
        recorded=task.recorded,
        timeout_us=time_left(task, steady),
        stored=0 if stream_output is None else stream_output.count,
        item=_item(task) if run.items else None,
    )


def _resumed_start(task: TaskInstance, resumed: TriggerInstance, steady: Timestamp) -> StartTask:
    """Return the command for a start that resumes from an event."""
    wait = resumed.row
    events, upto = _events(task, resumed)
    return replace(
        _first_start(task, steady),
        method=_method(task, resumed, upto),
        kwargs=wait.next_kwargs,
        event=None if wait.window else wait.event,
        events=events,
        upto=upto,
        is_closing=resumed.is_handled and not upto,
    )


def _method(task: TaskInstance, resumed: TriggerInstance, upto: int) -> str:
    """Return the method to resume in. For an operator it depends on whether there are events."""
    spec = task.spec.events
    if not resumed.is_handled or spec is None:
        return resumed.row.next_method
    if spec.method:
        return spec.method if upto else resumed.row.next_method
    return resumed.row.next_method if upto else ""


def _events(
    task: TaskInstance, resumed: TriggerInstance
) -> tuple[tuple[tuple[bytes, str | None], ...], int]:
    """Return the events that an operator handles in this start, and the next event's number."""
    spec = task.spec.events
    if resumed.stream is None or spec is None:
        return (), 0
    events: list[tuple[bytes, str | None]] = []
    upto, size = 0, 0
    for sequence, payload, key in islice(resumed.stream.pending, spec.batch):
        size += len(payload)
        if events and size > EVENT_BYTES:
            break
        events.append((payload, key))
        upto = sequence + 1
    return tuple(events), upto


def _item(task: TaskInstance) -> bytes | None:
    """Return the item of a child of a stream, if it is in memory."""
    source = -1 if task.map_index < 0 else source_of(task.run, task.task_index)
    stream_output = task.run.items.get(task.run.task_no(source, -1)) if source >= 0 else None
    return None if stream_output is None else stream_output.at_hand(task.map_index)


def _items(task: TaskInstance, mapped: MapSpec) -> _Items:
    run, group = task.run, task.run.groups[task.task_index]
    if group.origin is not None:
        return group.origin
    if group.is_loop or source_of(run, task.task_index) >= 0:
        return _NO_ITEMS
    first = run.row.first_task_no
    sources = tuple(
        (leaf.task_index, first + leaf.task_index, run.source_starts[leaf.task_index])
        for leaf in leaves(mapped.sources)
        if leaf.task_index >= 0 and run.spec.tasks[leaf.task_index].mapped is None
    )
    widths = () if group.one_to_one is None else group.one_to_one.widths
    widths = widths or tuple(
        leaf.width if leaf.task_index < 0 else run.widths[leaf.task_index]
        for leaf in leaves(mapped.sources)
    )
    group.origin = (sources, widths)
    return group.origin
