"""Secrets, connections and variables for children, limited to those they declare."""

from __future__ import annotations

import msgspec

from aioflow.model.dag import TaskSpec
from aioflow.queries.pages import Reader, Refused
from aioflow.redaction import Masks, secret_texts
from aioflow.worker.queries import ValuesFound, ValuesWanted

__all__ = ("read_values",)


async def read_values(
    store: Reader, task: TaskSpec | None, wanted: ValuesWanted, masks: Masks
) -> ValuesFound:
    """Return the values for a task, or for a trigger if ``task`` is ``None``.

    From now on they are masked in output.

    Raises:
        Refused: If a value is not declared, does not exist, or cannot be decrypted.
    """
    found = []
    for kind, name in wanted.names:
        if task is not None and (kind, name) not in task.values:
            raise Refused(f"task {task.task_id!r} does not declare {kind} {name!r}")
        row = await store.find_value(kind, name)
        if row is None:
            raise Refused(f"there is no {kind} {name!r}; set it: aioflow {kind}s set {name}")
        if row.value is None:
            raise Refused(f"no key of this home opens {kind} {name!r}; set it anew")
        masks.hide(secret_texts(kind, name, msgspec.msgpack.decode(row.value)))
        found.append(row.value)
    return ValuesFound(tuple(found))
