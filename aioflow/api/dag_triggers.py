"""DAG triggers, which start runs, as entries of the list of triggers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from anyio.lowlevel import checkpoint

from aioflow.api.public_fields import DETAIL_LENGTH
from aioflow.api.queries import PAGE, RunReader
from aioflow.api.schemas import TriggerView, iso
from aioflow.api.triggers import NODE_NO, kind_of
from aioflow.core.state.memory import Memory
from aioflow.core.why import explain_dag_trigger
from aioflow.model.dag_triggers import DagTriggerRow, DagTriggerSpec
from aioflow.model.ids import TriggerNo
from aioflow.model.rows import DagRow
from aioflow.model.states import Wait, WaitKind
from aioflow.model.trigger_description import Watched

__all__ = ("count_dag_triggers", "list_dag_triggers", "page_of_dag_triggers")

_AT_ONCE = 200


async def page_of_dag_triggers(
    reader: RunReader,
    memory: Memory | None,
    *,
    after: TriggerNo,
    upto: TriggerNo = sys.maxsize,
    limit: int,
    is_wanted: Callable[[TriggerView], bool] = lambda _: True,
) -> list[TriggerView]:
    """Return the next DAG triggers between two numbers, at most ``limit`` wanted ones."""
    found: list[TriggerView] = []
    size = limit
    while len(found) < limit:
        rows = await reader.store.list_dag_triggers(after=after, upto=upto, limit=size)
        found += filter(is_wanted, await list_dag_triggers(reader, memory, rows))
        if len(rows) < size:
            break
        after, size = rows[-1].trigger_no, min(4 * size, PAGE)  # few matched: read larger pages
    return found[:limit]


async def count_dag_triggers(reader: RunReader, memory: Memory) -> Counter[str]:
    """Return the number of active DAG triggers by kind, without reading their rows."""
    counts: Counter[str] = Counter()
    dags, _ = await reader.catalogue.known()
    for at, one in enumerate(list(memory.dag_triggers), start=1):
        if at % _AT_ONCE == 0:
            await checkpoint()
        spec = await _wanted(reader, dags, one.row.dag_id)
        if spec is not None:
            counts[_kind(spec, one.row.class_path)] += 1
    return counts


async def list_dag_triggers(
    reader: RunReader, memory: Memory | None, rows: Sequence[DagTriggerRow]
) -> list[TriggerView]:
    """Return the DAG triggers among these whose DAGs still have one, in the given order.

    Args:
        reader: Reads the database.
        memory: The memory of a running engine, which knows their hosts.
        rows: As stored. Many rows do not block the event loop.
    """
    if not rows:
        return []
    dags, _ = await reader.catalogue.known()
    watched = await reader.watched([row.trigger_no for row in rows])
    views = []
    for at, row in enumerate(rows, start=1):
        if at % _AT_ONCE == 0:
            await checkpoint()
        spec = await _wanted(reader, dags, row.dag_id)
        if spec is None:
            continue
        one = None if memory is None else memory.dag_triggers.get(row.trigger_no)
        wait = None if memory is None or one is None else explain_dag_trigger(one, memory)
        is_hosted = one is not None and one.hosting != 0 and one.has_room
        watch = watched.get(row.trigger_no)
        fields = reader.public_fields.detail(row.class_path, row.kwargs, watch)
        detail = spec.name if spec.is_timetable else fields
        node = NODE_NO if is_hosted else None
        views.append(_view(row, spec, wait, node, detail, watch))
    return views


async def _wanted(
    reader: RunReader, dags: Mapping[str, DagRow], dag_id: str
) -> DagTriggerSpec | None:
    dag = dags.get(dag_id)
    if dag is None or dag.gone:
        return None
    return (await reader.known_spec(dag.version, dag.dag_id)).trigger


def _kind(spec: DagTriggerSpec, class_path: str) -> str:
    return "timetable" if spec.is_timetable else kind_of(class_path)


def _view(
    row: DagTriggerRow,
    spec: DagTriggerSpec,
    wait: Wait | None,
    node: int | None,
    detail: str,
    watch: Watched | None,
) -> TriggerView:
    held = None if wait is None or wait.kind is WaitKind.TRIGGER else wait
    if held is not None and held.detail:
        detail = f"{detail}: {held.detail}"
    return TriggerView(
        trigger_id=row.trigger_no,
        kind=_kind(spec, row.class_path),
        dag_id=row.dag_id,
        run_id=None,
        task_id=None,
        map_index=-1,
        round=0,
        since=iso(row.since) or "",
        deadline=None if wait is None else iso(wait.until),
        node=node,
        shared_with=None,
        next_check_at=None if watch is None else iso(watch.next_check_at),
        last_check_at=None if watch is None else iso(watch.last_check_at),
        state="waiting" if held is None else held.kind.value,
        events=row.sequence,
        detail=detail[:DETAIL_LENGTH],
    )
