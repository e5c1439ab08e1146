"""The main routes of the API. They pass requests to ``Api`` and return its results as JSON.

They include the routes for backfills, and for secrets, connections and variables. The values of
these are never returned.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Depends, Header, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.routing import BaseRoute

from aioflow.api import instant
from aioflow.api.bulk import BulkAction, act_on_slice, preview
from aioflow.api.children import CLEARED_CHILDREN
from aioflow.api.declarations import count_tags
from aioflow.api.events import body_of
from aioflow.api.paging import Page, number_after, page_of, page_of_all
from aioflow.api.queries import PAGE, DagsWanted
from aioflow.api.run_filters import RunQuery, count_runs, run_filter
from aioflow.api.validation import checked_idempotency_key
from aioflow.errors import RequestError
from aioflow.model.dag import Reprocess, ValueKind
from aioflow.web import (
    account_routes,
    decision_routes,
    history_routes,
    logs,
    note_routes,
    page_routes,
    stream,
)
from aioflow.web.permissions import Acting, Sent, admin, operator, viewer
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

__all__ = (
    "API_ROUTES",
    "BackfillBody",
    "ClearBody",
    "FireBody",
    "MarkBody",
    "PoolBody",
    "TriggerBody",
    "ValueBody",
    "backfill_router",
    "value_router",
)

_BackfillId = Annotated[int, Path(ge=0, le=1 << 62)]


class BackfillBody(BaseModel):
    """The range of fire times for which to create runs, and options."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    first: Annotated[str, Field(alias="from")]
    last: Annotated[str, Field(alias="to")]
    reprocess: Reprocess = "none"
    max_active: Annotated[int, Field(ge=0, le=1_000)] = 0
    reverse: bool = False
    conf: dict[str, Any] | None = None
    dry_run: bool = False


backfill_router = api_router()


@backfill_router.post("/dags/{dag_id}/backfills", status_code=201, dependencies=[operator("dag")])
async def start_backfill(
    acting: Acting,
    dag_id: str,
    body: BackfillBody,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """Create runs for all fire times in a range.

    With ``dry_run``, create no runs, and list the first 1,000 fire times with status 200.
    """
    if body.dry_run:
        fire_times = await acting.backfills.preview(
            dag_id,
            first=body.first,
            last=body.last,
            reprocess=body.reprocess,
            reverse=body.reverse,
        )
        return Json(Page(fire_times, None), status_code=200)
    made, created = await acting.backfills.start(
        dag_id,
        first=body.first,
        last=body.last,
        reprocess=body.reprocess,
        max_active=body.max_active,
        reverse=body.reverse,
        conf=body.conf,
        key=idempotency_key,
    )
    return Json(made, status_code=201 if created else 200)


@backfill_router.get("/backfills", dependencies=[viewer("query")])
async def list_backfills(
    api: NodeApi,
    dag: str | None = None,
    limit: Count = 100,
    cursor: CursorText = None,
) -> Response:
    """List backfills, the newest first."""
    before = number_after("backfills", cursor)
    found = await api.backfills.list(dag_id=dag, before=before, limit=limit + 1)
    return Json(page_of("backfills", found, limit, lambda one: (one.backfill_id,)))


@backfill_router.get("/backfills/{backfill_id}", dependencies=[viewer("backfill")])
async def show_backfill(api: NodeApi, backfill_id: _BackfillId) -> Response:
    """Show a backfill and its progress."""
    return Json(await api.backfills.show(backfill_id))


@backfill_router.post("/backfills/{backfill_id}/cancel", dependencies=[operator("backfill")])
async def cancel_backfill(acting: Acting, backfill_id: _BackfillId) -> Response:
    """Cancel a backfill and its unfinished runs."""
    return Json(await acting.backfills.cancel(backfill_id))


_ValueName = Annotated[str, Path(max_length=250)]


class ValueBody(BaseModel):
    """Text for a secret, a URI or an object for a connection, any JSON for a variable."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    value: Annotated[Any, Field(...)]


class ConnectionBody(ValueBody):
    """A URI or an object.

    With ``keep_secrets``, stored secrets that the new value lacks are retained, if the server is
    the same.
    """

    keep_secrets: bool = False


value_router = api_router()


@value_router.get("/connection-types", dependencies=[admin()])
async def list_connection_types(acting: Acting) -> Response:
    """List the connection types, with the fields of their forms."""
    return Json(await acting.connections.types())


@value_router.get("/connections/{name:path}", dependencies=[admin()])
async def show_connection(name: _ValueName, acting: Acting) -> Response:
    """Show a connection without its secrets."""
    return Json(await acting.connections.show(name))


@value_router.post("/connections/{name:path}/test", dependencies=[admin()])
async def test_connection(name: _ValueName, acting: Acting) -> Response:
    """Open a connection in another process, within 10 s, and report what answered."""
    return Json(await acting.connections.test(name))


@value_router.put("/connections/{name:path}", dependencies=[admin()])
async def set_connection(name: _ValueName, body: ConnectionBody, acting: Acting) -> Response:
    """Set a connection."""
    return Json(
        await acting.values.set(
            ValueKind.CONNECTION, name, body.value, keep_secrets=body.keep_secrets
        )
    )


def _add_value_routes(kind: ValueKind) -> None:
    @value_router.get(
        f"/{kind}s",
        name=f"list_{kind}s",
        description=f"List the {kind}s, without values.",
        dependencies=[admin()],
    )
    async def list_values(api: NodeApi, limit: Count = PAGE, cursor: CursorText = None) -> Response:
        found = await api.values.list(kind)
        return Json(page_of_all(f"{kind}s", found, limit, cursor, lambda one: (one.name,)))

    @value_router.delete(
        f"/{kind}s/{{name:path}}",
        name=f"delete_{kind}",
        description=f"Delete a {kind}.",
        dependencies=[admin()],
    )
    async def delete_value(name: _ValueName, acting: Acting) -> Response:
        return Json(await acting.values.delete(kind, name))


def _add_set_route(kind: ValueKind) -> None:
    @value_router.put(
        f"/{kind}s/{{name:path}}",
        name=f"set_{kind}",
        description=f"Set a {kind}.",
        dependencies=[admin()],
    )
    async def set_value(name: _ValueName, body: ValueBody, acting: Acting) -> Response:
        return Json(await acting.values.set(kind, name, body.value))


for _kind in ValueKind:
    _add_value_routes(_kind)
    if _kind is not ValueKind.CONNECTION:
        _add_set_route(_kind)


@value_router.post(
    "/secrets/rotate",
    name="rotate",
    description="Change the key of the home.",
    dependencies=[admin()],
)
async def rotate(acting: Acting) -> Response:
    return Json(await acting.rotate())


class TriggerBody(BaseModel):
    """The parameters of a new run."""

    model_config = ConfigDict(extra="forbid")

    conf: dict[str, Any] | None = None
    run_id: str | None = None
    logical_date: str | None = None
    key: str | None = None


_ChildIndex = Annotated[int, Field(ge=0, le=1 << 53)]


class ClearBody(BaseModel):
    """The tasks of a run to clear; by default all."""

    model_config = ConfigDict(extra="forbid")

    tasks: list[str] = []
    map_index: Annotated[int, Field(ge=-1, le=1 << 53)] = -1
    map_indexes: Annotated[list[_ChildIndex], Field(max_length=CLEARED_CHILDREN)] = []
    downstream: bool = False
    failed: bool = False
    latest: bool = False
    dry_run: bool = False


class MarkBody(BaseModel):
    """The final state to set for tasks of a run or, without ``tasks``, for the run itself."""

    model_config = ConfigDict(extra="forbid")

    state: Literal["success", "failed"]
    tasks: list[str] = []
    map_index: Annotated[int, Field(ge=-1, le=1 << 53)] = -1
    dry_run: bool = False


class PoolBody(BaseModel):
    """The number of slots of a pool, and whether deferred tasks occupy them."""

    model_config = ConfigDict(extra="forbid")

    slots: Annotated[int, Field(ge=1, le=1 << 31)]
    include_deferred: bool = False


class FireBody(BaseModel):
    """An event to deliver instead of the trigger's own event."""

    model_config = ConfigDict(extra="forbid")

    payload: Any = None
    key: str | None = None


_Names = Annotated[list[str], Query(max_length=500)]
_Text = Annotated[str, Query(max_length=500)]


async def _run_query(
    dag: _Names = [],  # noqa: B006 - the list is never changed
    tag: _Names = [],  # noqa: B006
    state: _Names = [],  # noqa: B006
    cause: _Names = [],  # noqa: B006
    first: Annotated[str | None, Query(alias="from")] = None,
    last: Annotated[str | None, Query(alias="to")] = None,
    search: _Text = "",
    prefix: _Text = "",
    params: _Text = "",
) -> RunQuery:
    return RunQuery(
        dags=tuple(dag),
        tags=tuple(tag),
        states=tuple(state),
        causes=tuple(cause),
        first=first,
        last=last,
        search=search,
        prefix=prefix,
        params=params,
    )


WantedRuns = Annotated[RunQuery, Depends(_run_query)]
"""The filter of runs in the query of a request."""

router = api_router()


@router.get("/dags", dependencies=[viewer()])
async def list_dags(
    api: NodeApi,
    search: Annotated[str, Query(max_length=250)] = "",
    state: DagsWanted = "all",
    tag: Annotated[list[str], Query(max_length=100)] = [],  # noqa: B006 - the list is never changed
    limit: Count = PAGE,
    cursor: CursorText = None,
) -> Response:
    """List DAGs by name, followed by the files that define no DAG."""
    return Json(
        await api.page_of_dags(search=search, state=state, limit=limit, cursor=cursor, tags=tag)
    )


@router.get("/dag-tags", dependencies=[viewer()])
async def list_dag_tags(api: NodeApi, limit: Count = PAGE, cursor: CursorText = None) -> Response:
    """List the tags of all DAGs by name, each with the number of DAGs that have it."""
    declared = await api.declarations.read(await api.catalogue.known())
    return Json(page_of_all("tags", count_tags(declared), limit, cursor, lambda one: (one.tag,)))


@router.get("/dags/{dag_id}", dependencies=[viewer("dag")])
async def show_dag(api: NodeApi, dag_id: str) -> Response:
    """Show a DAG with its tasks."""
    return Json(await api.show_dag(dag_id))


@router.get("/dags/{dag_id}/next", dependencies=[viewer("dag")])
async def next_fire_times(
    api: NodeApi,
    dag_id: str,
    after: Annotated[str | None, Query(alias="from")] = None,
    limit: Count = 5,
    cursor: CursorText = None,
) -> Response:
    """List the next fire times of a DAG's schedule, after a time; by default after now."""
    last = number_after("next_fire_times", cursor)
    start = api.clock.now() if after is None else instant(after, "from")
    found = await api.next_fire_times(dag_id, start if last is None else last, limit + 1)
    page = page_of("next_fire_times", found, limit, lambda at: (instant(at, "cursor"),))
    return Json(page)


@router.post("/dags/{dag_id}/runs", status_code=201, dependencies=[operator("dag")])
async def trigger(
    acting: Acting,
    dag_id: str,
    body: TriggerBody | None = None,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """Start a run. If the key, or the id and conf, were used before, return that run (200)."""
    wanted = body or TriggerBody()
    made = await acting.trigger(
        dag_id,
        conf=wanted.conf,
        run_id=wanted.run_id,
        logical_date=wanted.logical_date,
        key=wanted.key if idempotency_key is None else idempotency_key,
    )
    return Json(made, status_code=201 if made.created else 200)


@router.delete("/dags/{dag_id}", dependencies=[admin("dag")])
async def delete_dag(acting: Acting, dag_id: str) -> Response:
    """Delete a DAG whose file was deleted, and its ended runs. Repeat while ``more`` is true."""
    return Json(await acting.delete_dag(dag_id))


@router.post("/dags/{dag_id}/pause", dependencies=[operator("dag")])
async def pause(acting: Acting, dag_id: str) -> Response:
    """Pause a DAG: stop starting scheduled runs."""
    return Json(await acting.set_paused(dag_id, paused=True))


@router.post("/dags/{dag_id}/resume", dependencies=[operator("dag")])
async def resume(acting: Acting, dag_id: str) -> Response:
    """Resume a DAG: start scheduled runs again."""
    return Json(await acting.set_paused(dag_id, paused=False))


@router.get("/runs", dependencies=[viewer("query")])
async def list_runs(
    api: NodeApi,
    query: WantedRuns,
    limit: Count = 100,
    cursor: CursorText = None,
) -> Response:
    """List the runs that match a filter, the newest first."""
    wanted = await run_filter(api, query)
    return Json(await api.page_of_runs(wanted, limit=limit, cursor=cursor))


@router.get("/run-facets", dependencies=[viewer("query")])
async def count_facets(api: NodeApi, query: WantedRuns, sent: Sent) -> Response:
    """Count the runs that match a filter, by state, by cause and by DAG."""
    scopes = None if sent.caller is None else sent.caller.scopes
    found = await run_filter(api, query)
    return Json(await count_runs(api, found, None if scopes is None else frozenset(scopes)))


def _add_bulk_route(action: BulkAction, text: str) -> None:
    @router.post(
        f"/run-actions/{action}",
        name=f"{action}_runs",
        description=f"{text}, at most 200 with each request; see ``next``.",
        dependencies=[admin("query") if action == "delete" else operator("query")],
    )
    async def act_on_runs(
        acting: Acting,
        query: WantedRuns,
        dry_run: bool = False,
        cursor: CursorText = None,
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> Response:
        if dry_run:
            return Json(await preview(acting, action, query))
        key = checked_idempotency_key(idempotency_key)
        if key is None:
            raise RequestError("an Idempotency-Key is needed, the same for all slices of an action")
        return Json(await act_on_slice(acting, action, query, key=key, cursor=cursor))


_add_bulk_route("cancel", "Cancel the runs that match a filter")
_add_bulk_route("clear_failed", "Clear what failed in the runs that match a filter")
_add_bulk_route("mark_success", "Mark the runs that match a filter as successful")
_add_bulk_route("mark_failed", "Mark the runs that match a filter as failed")
_add_bulk_route("delete", "Delete the ended runs that match a filter")


@router.get("/runs/{run_id}", dependencies=[viewer("run")])
async def show_run(api: NodeApi, run_id: str, offset: Offset = 0, limit: Count = PAGE) -> Response:
    """Show a run, its counts, and one page of its tasks."""
    return Json(await api.show_run(run_id, offset=offset, limit=limit))


@router.get("/runs/{run_id}/why", dependencies=[viewer("run")])
async def why_run(api: NodeApi, run_id: str) -> Response:
    """Show what a run waits for."""
    return Json(await api.why(run_id))


@router.post("/runs/{run_id}/cancel", dependencies=[operator("run")])
async def cancel(acting: Acting, run_id: str) -> Response:
    """Cancel a run immediately."""
    return Json(await acting.cancel(run_id))


@router.post("/runs/{run_id}/clear", dependencies=[operator("run")])
async def clear(
    acting: Acting,
    run_id: str,
    body: ClearBody | None = None,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """Clear tasks of a run so that they run again. A run that has ended resumes."""
    wanted = body or ClearBody()
    return Json(
        await acting.clear(
            run_id,
            wanted.tasks,
            map_index=wanted.map_index,
            map_indexes=wanted.map_indexes,
            downstream=wanted.downstream,
            failed=wanted.failed,
            latest=wanted.latest,
            dry_run=wanted.dry_run,
            key=idempotency_key,
        )
    )


@router.delete("/runs/{run_id}", dependencies=[admin("run")])
async def delete_run(acting: Acting, run_id: str) -> Response:
    """Delete an ended run. It is hidden immediately."""
    return Json(await acting.delete_run(run_id))


@router.post("/runs/{run_id}/mark", dependencies=[operator("run")])
async def mark(acting: Acting, run_id: str, body: MarkBody) -> Response:
    """Set the final state of tasks of a run, or of the run itself. Running tasks are stopped."""
    return Json(
        await acting.mark(
            run_id, body.state, body.tasks, map_index=body.map_index, dry_run=body.dry_run
        )
    )


@router.get("/runs/{run_id}/tasks", dependencies=[viewer("run")])
async def list_tasks(
    api: NodeApi,
    run_id: str,
    task: str | None = None,
    state: _Names = [],  # noqa: B006 - the list is never changed
    offset: Offset = 0,
    limit: Count = PAGE,
    cursor: CursorText = None,
) -> Response:
    """List the tasks of a run, filtered by ``task`` and ``state``. Skip the first ``offset``."""
    found = await api.reads.one_task.list(
        run_id, task_id=task, states=state, offset=offset, limit=limit, cursor=cursor
    )
    return Json(found)


@router.get("/runs/{run_id}/tasks/{task_id}/why", dependencies=[viewer("run")])
async def why_task(
    api: NodeApi,
    run_id: str,
    task_id: str,
    map_index: MapIndex = -1,
    round_number: RoundNumber = -1,
) -> Response:
    """Show what one task waits for, and the chain of causes of that wait."""
    return Json(await api.why(run_id, task_id, map_index=max(map_index, round_number)))


@router.get("/triggers", dependencies=[viewer()])
async def list_triggers(
    api: NodeApi,
    kind: str | None = None,
    state: str | None = None,
    dag: str | None = None,
    limit: Count = PAGE,
    cursor: CursorText = None,
) -> Response:
    """List waiting triggers by number."""
    if kind is None and state is None and dag is None:
        return Json(await api.page_of_triggers(limit=limit, cursor=cursor))
    last = number_after("triggers", cursor)
    found = await api.reads.waiting.list(
        kind=kind, state=state, dag_id=dag, limit=limit + 1, after=-1 if last is None else last
    )
    return Json(page_of("triggers", found, limit, lambda one: (one.trigger_id,)))


@router.get("/triggers/slow", dependencies=[viewer()])
async def list_slow(api: NodeApi, limit: Count = PAGE, cursor: CursorText = None) -> Response:
    """List code that has blocked a shared event loop, the longest total time first."""
    found = await api.list_slow()
    return Json(
        page_of_all("slow", found, limit, cursor, lambda one: (-one.total_ms, one.name, one.kind))
    )


@router.delete("/triggers/quarantine/{class_path}", dependencies=[operator()])
async def unquarantine(acting: Acting, class_path: str) -> Response:
    """Run the triggers of a class in the shared hosts again."""
    return Json(await acting.unquarantine(class_path))


@router.get("/triggers/{trigger_id}", dependencies=[viewer()])
async def show_trigger(
    api: NodeApi, trigger_id: Annotated[int, Path(ge=0, le=MAX_ROW_NO)]
) -> Response:
    """Show one waiting trigger."""
    return Json(await api.show_trigger(trigger_id))


@router.post("/triggers/{trigger_id}/fire", dependencies=[operator()])
async def fire(
    acting: Acting,
    trigger_id: Annotated[int, Path(ge=0, le=MAX_ROW_NO)],
    body: FireBody | None = None,
) -> Response:
    """Deliver an event to a deferred task, instead of its trigger's own event."""
    given = body or FireBody()
    return Json(await acting.fire(trigger_id, payload=given.payload, key=given.key))


@router.get("/events", dependencies=[viewer()])
async def list_events(
    api: NodeApi,
    name: str | None = None,
    limit: Count = 100,
    cursor: CursorText = None,
) -> Response:
    """List named events, the newest first."""
    before = number_after("events", cursor)
    found = await api.list_events(name=name, limit=limit + 1, before=before)
    return Json(page_of("events", found, limit, lambda one: (one.event_id,)))


@router.post("/events/{name:path}", status_code=201, dependencies=[operator()])
async def emit(
    acting: Acting,
    name: str,
    request: Request,
    key: str | None = None,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """Emit a named event with any JSON as its body. A repeated idempotency key gives status 200."""
    data = body_of(await request.body())
    made = await acting.emit(name, key=key, data=data, request=idempotency_key)
    return Json(made, status_code=201 if made.created else 200)


@router.get("/pools", dependencies=[viewer()])
async def list_pools(api: NodeApi, limit: Count = PAGE, cursor: CursorText = None) -> Response:
    """List the pools that have a limit, by name."""
    found = await api.list_pools()
    return Json(page_of_all("pools", found, limit, cursor, lambda one: (one.name,)))


@router.put("/pools/{name}", dependencies=[operator()])
async def set_pool(acting: Acting, name: str, body: PoolBody) -> Response:
    """Set the number of slots of a pool, which limits the total weight of its running tasks."""
    return Json(await acting.set_pool(name, body.slots, include_deferred=body.include_deferred))


@router.delete("/pools/{name}", dependencies=[operator()])
async def delete_pool(acting: Acting, name: str) -> Response:
    """Remove the limit of a pool."""
    return Json(await acting.set_pool(name, None))


@router.post("/db/clean", dependencies=[admin()])
async def clean(acting: Acting, dry_run: bool = False) -> Response:
    """Delete a part of the expired data. Repeat while ``more`` is true."""
    return Json(await acting.clean(dry_run=dry_run))


API_ROUTES: tuple[BaseRoute, ...] = (
    *page_routes.first.routes,
    *router.routes,
    *backfill_router.routes,
    *value_router.routes,
    *account_routes.router.routes,
    *decision_routes.router.routes,
    *note_routes.router.routes,
    *page_routes.router.routes,
    *history_routes.router.routes,
    *logs.router.routes,
    *stream.router.routes,
)
"""All routes below ``/api/v1``."""
