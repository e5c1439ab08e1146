"""What is parked: trigger rows, told as people think of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from anyio.lowlevel import checkpoint

from aioflow.api.reader import RunReader
from aioflow.api.views import TriggerView, iso, plain_bytes
from aioflow.core.memory import Memory
from aioflow.core.why import is_unwatched
from aioflow.executors.load import Watched
from aioflow.model import TriggerNo, WaitKind
from aioflow.rows import RunRow, TriggerRow

__all__ = (
    "DETAIL_LENGTH",
    "KINDS",
    "NODE_NO",
    "Describe",
    "Parked",
    "detail_of",
    "kind_of",
    "nothing_known",
)

KINDS = {
    "aioflow_triggers.temporal": "time",
    "aioflow_triggers.files": "file",
    "aioflow_triggers.external": "run",
    "aioflow_triggers.events": "event",
    "aioflow_triggers.http": "http",
    "aioflow_triggers.pages": "http",
    "aioflow_triggers.objects": "object",
}

DETAIL_LENGTH = 500
"""What is told of a trigger's fields is cut here."""

NODE_NO = 1
"""The node of this daemon."""

_AT_ONCE = 200

_STOPPED = "stopped"
"""The state of a trigger that has no host because its DAG is paused, and says so."""


class _Hosted(NamedTuple):
    """Where a trigger is, as far as memory knows.

    Attributes:
        node: Which node has it, if any.
        state: What keeps it from running; empty if nothing does.
    """

    node: int | None = None
    state: str = ""


Describe: TypeAlias = Callable[[Sequence[TriggerNo]], Awaitable[Mapping[TriggerNo, Watched]]]
"""Returns what the hosts of triggers say of these, of as many as they do."""


async def nothing_known(_: Sequence[TriggerNo]) -> Mapping[TriggerNo, Watched]:
    """Say nothing of any trigger: there are no hosts."""
    return {}


def kind_of(class_path: str) -> str:
    """Return ``time``, ``file`` ... for the standard catalogue, else the class's name."""
    module, _, name = class_path.partition(":")
    return KINDS.get(module, name or class_path)


class Parked:
    """Reads trigger rows and finds the tasks they belong to.

    Args:
        memory: Of a running engine, which knows where they are.
        watched: Asks their hosts for more.
    """

    def __init__(
        self, reader: RunReader, memory: Callable[[], Memory | None], watched: Describe
    ) -> None:
        self._reader = reader
        self._memory = memory
        self._watched = watched

    async def views(
        self, rows: Sequence[TriggerRow], *, state: str | None = None
    ) -> list[TriggerView]:
        """Return rows as people want to see them; what was deleted since is left out.

        Args:
            state: Only those that stand so; the others are hardly looked at.
        """
        wanted = await self._standing_so(rows, state)
        layouts = await self._reader.layouts(row.run_no for row, _ in wanted)
        watched = await self._watched([row.trigger_no for row, _ in wanted]) if wanted else {}
        found = []
        for at, (row, where) in enumerate(wanted, start=1):
            if at % _AT_ONCE == 0:
                await checkpoint()
            run, layout = layouts.get(row.run_no, (None, None))
            place = None if layout is None else layout.find(row.task_no)
            if run is None or layout is None or place is None:
                continue
            task_id = layout.spec.tasks[place.position].task_id
            watch = watched.get(row.trigger_no)
            found.append(_view(row, run, task_id, layout.shown(place), where, watch))
        return found

    async def _standing_so(
        self, rows: Sequence[TriggerRow], state: str | None
    ) -> list[tuple[TriggerRow, _Hosted]]:
        memory = self._memory()
        found: list[tuple[TriggerRow, _Hosted]] = []
        for at, row in enumerate(rows, start=1):
            if at % _AT_ONCE == 0:
                await checkpoint()
            where = _Hosted() if memory is None else _whereabouts(row.trigger_no, memory)
            if state in {None, _state(row, where)}:
                found.append((row, where))
        return found


def _state(row: TriggerRow, where: _Hosted) -> str:
    return where.state or row.state.name.lower()


def _whereabouts(number: TriggerNo, memory: Memory) -> _Hosted:
    wait = memory.parking.peek(number)
    if wait is None:
        return _Hosted()
    if wait.hosting:
        return _Hosted(NODE_NO) if wait.has_room else _Hosted(None, WaitKind.TRIGGER_CAPACITY.value)
    return _Hosted(None, _STOPPED if is_unwatched(wait, memory) else "")


def _view(
    row: TriggerRow,
    run: RunRow,
    task_id: str,
    shown: tuple[int, int],
    hosted: _Hosted,
    watch: Watched | None,
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
        shared_with=None if watch is None else watch.shared_with,
        next_check_at=None if watch is None else iso(watch.next_check_at),
        state=_state(row, hosted),
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
    return f"{name}({shown})"[:DETAIL_LENGTH]
