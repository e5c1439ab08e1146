"""The triggers that start runs of DAGs, told as people think of them, beside what is parked."""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.api.parked import NODE_NO, detail_of, kind_of
from aioflow.api.reader import RunReader
from aioflow.api.views import TriggerView, iso
from aioflow.core.memory import Memory
from aioflow.core.why import explain_dag_trigger
from aioflow.dag_triggers import DagTriggerRow, DagTriggerSpec
from aioflow.model import Wait, WaitKind

__all__ = ("list_standing", "merged")

_DETAIL_LENGTH = 500


async def list_standing(reader: RunReader, memory: Memory | None) -> list[TriggerView]:
    """Return those whose DAGs want them, by number.

    Args:
        reader: Of the database.
        memory: Of a running engine, which knows who hosts them.
    """
    dags, _ = await reader.catalogue.known()
    views = []
    for row in await reader.store.list_dag_triggers():
        dag = dags.get(row.dag_id)
        spec = (
            None
            if dag is None or dag.gone
            else (await reader.spec(dag.version, dag.dag_id)).trigger
        )
        if spec is None:
            continue
        one = None if memory is None else memory.standing.get(row.trigger_no)
        wait = None if memory is None or one is None else explain_dag_trigger(one, memory)
        is_hosted = one is not None and one.hosting != 0 and one.has_room
        views.append(_view(row, spec, wait, NODE_NO if is_hosted else None))
    return views


def merged(
    parked: Sequence[TriggerView],
    standing: Sequence[TriggerView],
    *,
    after: int,
    upto: int | None,
    limit: int,
) -> list[TriggerView]:
    """Return a page of both by number: of what is parked a page is given, of the others all.

    Args:
        upto: The last number of a page of what is parked that is full.
    """
    behind = [
        view
        for view in standing
        if view.trigger_id > after and (upto is None or view.trigger_id <= upto)
    ]
    found = sorted((*parked, *behind), key=lambda view: view.trigger_id)
    return found[:limit]


def _view(
    row: DagTriggerRow, spec: DagTriggerSpec, wait: Wait | None, node: int | None
) -> TriggerView:
    detail = spec.name if spec.is_timetable else detail_of(row.class_path, row.kwargs)
    if wait is not None and wait.kind is not WaitKind.TRIGGER and wait.detail:
        detail = f"{detail}: {wait.detail}"
    is_waiting = wait is None or wait.kind is WaitKind.TRIGGER
    return TriggerView(
        trigger_id=row.trigger_no,
        kind="timetable" if spec.is_timetable else kind_of(row.class_path),
        dag_id=row.dag_id,
        run_id=None,
        task_id=None,
        map_index=-1,
        round=0,
        since=iso(row.since) or "",
        deadline=None if wait is None else iso(wait.until),
        node=node,
        shared_with=None,
        state="waiting" if wait is None or is_waiting else wait.kind.value,
        events=row.sequence,
        detail=detail[:_DETAIL_LENGTH],
    )
