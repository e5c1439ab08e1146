"""Stream items: passed between tasks while the producing task still runs."""

from __future__ import annotations

import inspect
from typing import Any

from aioflow.author import codec
from aioflow.author.node import Node
from aioflow.author.steps import Steps
from aioflow.errors import ValueTooLarge
from aioflow.model.ids import TaskNo
from aioflow.results import RESULT_LIMIT
from aioflow.worker.fan_in import Pages

__all__ = ("ITEM_LIMIT", "ItemTooLarge", "all_items", "encoded", "gathered", "one_item")

ITEM_LIMIT = 1024 * 1024
"""Maximum size of an item, in bytes of msgpack."""


_ITEM_BYTES = 32
"""Minimum size counted per item until it is sent, however small it is."""


class ItemTooLarge(Exception):
    """An item, or all items that a handler returned together, exceed the size limit."""


def encoded(value: object, what: str) -> Steps[bytes]:
    """Encode an item.

    Raises:
        ItemTooLarge: If it has more than ``ITEM_LIMIT`` bytes.
        Unserializable: If it cannot be encoded.
    """
    try:
        return (yield from codec.in_steps(value, what, ITEM_LIMIT))
    except ValueTooLarge as exc:
        raise ItemTooLarge(str(exc)) from None


def gathered(node: Node, value: object) -> Steps[tuple[bytes, ...]]:
    """Return the encoded items that a handler adds to its task's output: a list's, or one value.

    Raises:
        ItemTooLarge: If one of them, or all together, exceed the size limit.
        Unserializable: If one cannot be encoded.
    """
    if value is None:
        return ()
    several = isinstance(value, list | tuple) or inspect.isgenerator(value)
    values = value if several else (value,)
    items: list[bytes] = []
    size = 0
    for item in values:  # type: ignore[attr-defined]  # one of the three
        what = f"item {len(items)} of what {node.task_id!r} returned"
        items.append((yield from encoded(item, what)))
        size += max(len(items[-1]), _ITEM_BYTES)
        if size > RESULT_LIMIT:
            raise ItemTooLarge(str(ValueTooLarge(f"what {node.task_id!r} returned", RESULT_LIMIT)))
        yield
    return tuple(items)


def one_item(pages: Pages, task_no: TaskNo, index: int) -> bytes:
    """Return one stream item of a task.

    Raises:
        LookupError: If there is no such item.
    """
    for at, _, _, body in pages(~task_no, index - 1).items:
        if at == index and body is not None:
            return body
    raise LookupError(f"item {index} of task {task_no} is gone")


def all_items(pages: Pages, task_no: TaskNo, annotation: Any = Any) -> list[Any]:
    """Return all stream items of a task, in order."""
    values: list[Any] = []
    after, more = -1, True
    while more:
        page = pages(~task_no, after)
        bodies = (body for _, _, _, body in page.items)
        values += [codec.decode(body, annotation) for body in bodies if body is not None]
        after, more = page.last, page.more
    return values
