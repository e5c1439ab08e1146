"""Routes that only the web page needs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response

from aioflow.api import instant
from aioflow.api.page.graphs import GRID_RUNS
from aioflow.api.page.pool_usage import MOST_HOURS, pool_usage
from aioflow.api.page.queries import UPCOMING_FIRE_TIMES
from aioflow.api.paging import page_of_all
from aioflow.api.queries import PAGE
from aioflow.web.permissions import Acting, admin, viewer
from aioflow.web.routing import (
    MAX_ROW_NO,
    Count,
    CursorText,
    Json,
    MapIndex,
    NodeApi,
    Offset,
    RoundNumber,
    api_router,
)

__all__ = ("first", "router")

_HOUR_US = 3_600_000_000
_RECENT = 100

_Version = Annotated[str | None, Query(max_length=128)]
_NodeNo = Annotated[int, Path(ge=0, le=MAX_ROW_NO)]
_Dags = Annotated[list[str], Query(max_length=_RECENT)]


first = api_router()
"""Routes that must be registered before routes with a parameter at the same position."""

router = api_router()
"""All other routes."""


@first.get("/dags/recent", dependencies=[viewer("query")])
async def recent_runs(api: NodeApi, dag: _Dags = []) -> Response:  # noqa: B006 - never changed
    """List the newest runs of the given DAGs. If none is given, show the DAG ``recent``."""
    if not dag:
        return Json(await api.show_dag("recent"))
    return Json(await api.reads.recent(dag))


@first.get("/triggers/summary", dependencies=[viewer()])
async def triggers_summary(api: NodeApi) -> Response:
    """Summarize the waiting triggers by kind and age, and their hosts."""
    return Json(await api.reads.waiting.summary())


@router.get("/overview", dependencies=[viewer()])
async def overview(api: NodeApi) -> Response:
    """Show the state of the node, its longest waits, and recent failures."""
    health = await api.health()
    return Json(await api.reads.overview(health.status))


@router.get("/nodes", dependencies=[viewer()])
async def list_nodes(api: NodeApi, limit: Count = PAGE, cursor: CursorText = None) -> Response:
    """List the nodes of this database."""
    found = await api.reads.nodes()
    return Json(page_of_all("nodes", found, limit, cursor, lambda one: (one.node,)))


@router.get("/nodes/{node}", dependencies=[viewer()])
async def show_node(api: NodeApi, node: _NodeNo) -> Response:
    """Show one node."""
    return Json(await api.reads.node(node))


@router.delete("/nodes/{node}", dependencies=[admin()])
async def forget_node(acting: Acting, node: _NodeNo) -> Response:
    """Remove a node that has left or is dead from the list."""
    return Json(await acting.forget_node(node))


@router.get("/executors", dependencies=[viewer()])
async def list_executors(api: NodeApi, limit: Count = PAGE, cursor: CursorText = None) -> Response:
    """List the executors of the node, with their workers, and why there are no more."""
    found = api.list_executors()
    return Json(page_of_all("executors", found, limit, cursor, lambda one: (one.name,)))


@router.post("/nodes/{node}/drain", dependencies=[admin()])
async def drain(acting: Acting, node: _NodeNo) -> Response:
    """Stop assigning new tasks and triggers to a node."""
    return Json(await acting.drain(node, is_drained=True))


@router.post("/nodes/{node}/undrain", dependencies=[admin()])
async def undrain(acting: Acting, node: _NodeNo) -> Response:
    """Resume assigning work to a node."""
    return Json(await acting.drain(node, is_drained=False))


@router.get("/import-errors", dependencies=[viewer()])
async def import_errors(api: NodeApi, limit: Count = PAGE, cursor: CursorText = None) -> Response:
    """List the DAG files that cannot be imported, by name."""
    found = await api.reads.import_errors()
    return Json(page_of_all("import_errors", found, limit, cursor, lambda one: (one.file,)))


@router.get("/assets", dependencies=[viewer()])
async def list_assets(
    api: NodeApi,
    search: Annotated[str, Query(max_length=250)] = "",
    name: Annotated[str | None, Query(max_length=250)] = None,
    limit: Count = 100,
    cursor: CursorText = None,
) -> Response:
    """List the assets that DAGs update or wait for, by name, with the updates still missing."""
    found = await api.reads.assets.page(search=search, name=name, limit=limit, cursor=cursor)
    return Json(found)


@router.get("/schedules", dependencies=[viewer()])
async def schedules(
    api: NodeApi,
    after: Annotated[str | None, Query(alias="from")] = None,
    hours: Annotated[float, Query(gt=0, le=24 * 366)] = 24,
    limit: Count = UPCOMING_FIRE_TIMES,
    cursor: CursorText = None,
) -> Response:
    """List the next fire times of DAGs that are not paused, the earliest first; at most 500."""
    start = api.clock.now() if after is None else instant(after, "from")
    until = start + round(hours * _HOUR_US)
    found = await api.reads.upcoming(after=start, until=until)
    return Json(page_of_all("schedules", found, limit, cursor, lambda one: (one.at, one.dag_id)))


@router.get("/dags/{dag_id}/graph", dependencies=[viewer("dag")])
async def dag_graph(api: NodeApi, dag_id: str, version: _Version = None) -> Response:
    """Show the graph of a version of a DAG, by default the newest."""
    return Json(await api.reads.graphs.graph(dag_id, version))


@router.get("/dags/{dag_id}/grid", dependencies=[viewer("dag")])
async def dag_grid(
    api: NodeApi,
    dag_id: str,
    limit: Annotated[int, Query(ge=1, le=GRID_RUNS)] = 25,
    cursor: CursorText = None,
) -> Response:
    """Show a grid of a DAG's tasks and runs, the newest run first."""
    return Json(await api.reads.progress.grid(dag_id, limit=limit, cursor=cursor))


@router.get("/dags/{dag_id}/code", dependencies=[viewer("dag")])
async def dag_code(api: NodeApi, dag_id: str, version: _Version = None) -> Response:
    """Show the files of a version of a DAG, at most 1 MiB in total."""
    return Json(await api.reads.graphs.code(dag_id, version))


@router.get("/dags/{dag_id}/versions", dependencies=[viewer("dag")])
async def dag_versions(
    api: NodeApi, dag_id: str, limit: Count = PAGE, cursor: CursorText = None
) -> Response:
    """List the current version of a DAG and the versions of its newest runs, the newest first."""
    found = await api.reads.graphs.versions(dag_id)
    page = page_of_all(
        "versions",
        found,
        limit,
        cursor,
        lambda one: (one.made_at or "", one.version),
        is_descending=True,
    )
    return Json(page)


@router.get("/runs/{run_id}/graph", dependencies=[viewer("run")])
async def run_graph(api: NodeApi, run_id: str) -> Response:
    """Show the number of instances of each task of a run by state."""
    return Json(await api.reads.progress.graph(run_id))


@router.get("/runs/{run_id}/gantt", dependencies=[viewer("run")])
async def run_gantt(
    api: NodeApi,
    run_id: str,
    offset: Offset = 0,
    limit: Count = 200,
    cursor: CursorText = None,
) -> Response:
    """List the time spans of a run's tasks; ``offset`` is the number of tasks to skip."""
    return Json(await api.reads.gantt(run_id, offset=offset, limit=limit, cursor=cursor))


@router.get("/runs/{run_id}/tasks/{task_id}/children", dependencies=[viewer("run")])
async def show_children(api: NodeApi, run_id: str, task_id: str) -> Response:
    """Count the children of a mapped task by state and duration, with the slowest and the rate."""
    return Json(await api.reads.children.summary(run_id, task_id))


@router.get("/runs/{run_id}/tasks/{task_id}/children/cells", dependencies=[viewer("run")])
async def show_cells(api: NodeApi, run_id: str, task_id: str) -> Response:
    """Show the children of a mapped task as at most 10,000 cells, one character each."""
    return Json(await api.reads.children.cells(run_id, task_id))


@router.get("/runs/{run_id}/tasks/{task_id}/children/errors", dependencies=[viewer("run")])
async def group_errors(api: NodeApi, run_id: str, task_id: str) -> Response:
    """Group the failed children of a mapped task by the type and the message of their errors."""
    return Json(await api.reads.children.errors(run_id, task_id))


@router.get("/runs/{run_id}/tasks/{task_id}/show", dependencies=[viewer("run")])
async def show_task(
    api: NodeApi,
    run_id: str,
    task_id: str,
    map_index: MapIndex = -1,
    round_number: RoundNumber = -1,
) -> Response:
    """Show one task with its inputs, its tries and its durable calls."""
    number = max(map_index, round_number)
    return Json(await api.reads.one_task.show(run_id, task_id, map_index=number))


@router.get("/events/{event_id}/woke", dependencies=[viewer()])
async def woken_by(
    api: NodeApi,
    event_id: Annotated[int, Path(ge=0, le=MAX_ROW_NO)],
    limit: Count = PAGE,
    cursor: CursorText = None,
) -> Response:
    """List the runs that an event started, and the tasks it resumed since the daemon started."""
    found = await api.reads.waiting.woken_by(event_id)
    page = page_of_all(
        "woken",
        found,
        limit,
        cursor,
        lambda one: (one.run_id, one.task_id or "", one.map_index),
    )
    return Json(page)


@router.get("/pools/{name}/holders", dependencies=[viewer()])
async def pool_holders(
    api: NodeApi, name: str, limit: Count = PAGE, cursor: CursorText = None
) -> Response:
    """List the tasks that occupy slots of a pool, running ones first; at most 100."""
    found = await api.reads.holders(name)
    page = page_of_all(
        "holders",
        found,
        limit,
        cursor,
        lambda one: (int(one.is_waiting), one.since or "", one.run_id, one.task_id, one.map_index),
    )
    return Json(page)


@router.get("/pools/{name}/usage", dependencies=[viewer()])
async def show_pool_usage(
    api: NodeApi, name: str, hours: Annotated[int, Query(ge=1, le=MOST_HOURS)] = MOST_HOURS
) -> Response:
    """Show the use of a pool in the last hours, in steps of five minutes."""
    return Json(await pool_usage(api.store, api.clock, name, hours=hours))


@router.get("/pools/{name}/waiters", dependencies=[viewer()])
async def pool_waiters(api: NodeApi, name: str) -> Response:
    """List the tasks that wait for slots of a pool, the next one first; at most 100 entries."""
    return Json(await api.reads.waiters(name))
