"""What is parked: trigger rows, told as people think of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from aioflow.api.layout import Layout
from aioflow.api.reader import RunReader
from aioflow.api.views import TriggerView, iso, plain_bytes
from aioflow.core import hosting
from aioflow.core.live import WaitRecord
from aioflow.core.memory import Memory
from aioflow.model import RunNo, TriggerNo, WaitKind
from aioflow.rows import RunRow, TriggerRow

__all__ = ("KINDS", "NODE_NO", "Hosted", "Parked", "detail_of", "kind_of", "whereabouts")

KINDS = {
    "aioflow_triggers.temporal": "time",
    "aioflow_triggers.files": "file",
    "aioflow_triggers.external": "run",
    "aioflow_triggers.events": "event",
    "aioflow_triggers.http": "http",
    "aioflow_triggers.pages": "http",
    "aioflow_triggers.objects": "object",
}
_DETAIL_LENGTH = 500

NODE_NO = 1
"""The node of this daemon."""

_STOPPED = "stopped"
"""The state of a trigger that has no host because its DAG is paused, and says so."""


class Hosted(NamedTuple):
    """Where a trigger is, as far as memory knows.

    Attributes:
        node: Which node has it, if any.
        state: What keeps it from running; empty if nothing does.
    """

    node: int | None = None
    state: str = ""


def kind_of(class_path: str) -> str:
    """Return ``time``, ``file`` ... for the standard catalogue, else the class's name."""
    module, _, name = class_path.partition(":")
    return KINDS.get(module, name or class_path)


class Parked:
    """Reads trigger rows and finds the tasks they belong to."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader

    async def views(
        self, rows: Sequence[TriggerRow], hosted: Mapping[TriggerNo, Hosted]
    ) -> list[TriggerView]:
        """Return rows as people want to see them.

        Args:
            rows: Which.
            hosted: Where they are, as far as memory knows.
        """
        layouts: dict[RunNo, tuple[RunRow, Layout]] = {}
        found = []
        for row in rows:
            if row.run_no not in layouts:
                run = await self._run(row.run_no)
                if run is None:
                    continue  # deleted since
                layouts[row.run_no] = (run, await self._reader.layout(run))
            run, layout = layouts[row.run_no]
            place = layout.find(row.task_no)
            if place is not None:
                task_id = layout.spec.tasks[place.position].task_id
                where = hosted.get(row.trigger_no, Hosted())
                found.append(_view(row, run, task_id, layout.shown(place), where))
        return found

    async def _run(self, run_no: RunNo) -> RunRow | None:
        rows = await self._reader.store.list_runs(limit=1, before=run_no + 1)
        return rows[0] if rows and rows[0].run_no == run_no else None


def whereabouts(rows: Iterable[TriggerRow], memory: Memory) -> dict[TriggerNo, Hosted]:
    """Return where triggers are; what memory does not know is left out."""
    waits = ((row.trigger_no, memory.parking.peek(row.trigger_no)) for row in rows)
    return {number: _hosted(wait, memory) for number, wait in waits if wait is not None}


def _hosted(wait: WaitRecord, memory: Memory) -> Hosted:
    if wait.hosting:
        return Hosted(NODE_NO) if wait.has_room else Hosted(None, WaitKind.TRIGGER_CAPACITY.value)
    is_stopped = hosting.is_stopped(wait.run.row.dag_id, memory)
    has_none = is_stopped and wait.row.class_path not in hosting.HOSTLESS
    return Hosted(None, _STOPPED if has_none else "")


def _view(
    row: TriggerRow,
    run: RunRow,
    task_id: str,
    shown: tuple[int, int],
    hosted: Hosted,
) -> TriggerView:
    return TriggerView(
        trigger_id=row.trigger_no,
        kind=kind_of(row.class_path),
        dag_id=run.dag_id,
        run_id=run.run_id,
        task_id=task_id,
        map_index=shown[0],
        round=shown[1],
        since=iso(row.since) or "",
        deadline=iso(row.deadline_at),
        node=hosted.node,
        shared_with=None,
        state=hosted.state or row.state.name.lower(),
        events=None,
        detail=detail_of(row.class_path, row.kwargs),
    )


def detail_of(class_path: str, kwargs: bytes | None) -> str:
    """Name the class; its fields too, where they are known to hold no credentials."""
    module, _, name = class_path.partition(":")
    if module not in KINDS:
        return class_path
    fields = plain_bytes(kwargs)
    if not isinstance(fields, dict):
        return class_path
    shown = ", ".join(f"{key}={value!r}" for key, value in fields.items() if value is not None)
    return f"{name}({shown})"[:_DETAIL_LENGTH]
