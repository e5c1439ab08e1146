"""Routes for backfills."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from aioflow.api.queries import PAGE
from aioflow.model.backfill import Reprocess
from aioflow.web.permissions import Acting, operator, viewer
from aioflow.web.responses import Json
from aioflow.web.routing import NodeApi, api_router

__all__ = ("BackfillBody", "router")

_NUMBER = Annotated[int, Path(ge=0, le=1 << 62)]


class BackfillBody(BaseModel):
    """The slots that get runs, and how."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    first: Annotated[str, Field(alias="from")]
    last: Annotated[str, Field(alias="to")]
    reprocess: Reprocess = "none"
    max_active: Annotated[int, Field(ge=0, le=1_000)] = 0
    reverse: bool = False
    conf: dict[str, Any] | None = None
    dry_run: bool = False


router = api_router()


@router.post("/dags/{dag_id}/backfills", status_code=201, dependencies=[operator("dag")])
async def start_backfill(
    acting: Acting,
    dag_id: str,
    body: BackfillBody,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """Create runs for the slots of a range; with ``dry_run`` only list them, with status 200."""
    if body.dry_run:
        slots = await acting.backfills.preview(
            dag_id,
            first=body.first,
            last=body.last,
            reprocess=body.reprocess,
            reverse=body.reverse,
        )
        return Json(slots, status_code=200)
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


@router.get("/backfills", dependencies=[viewer("query")])
async def list_backfills(
    api: NodeApi,
    dag: str | None = None,
    before: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE)] = 100,
) -> Response:
    """List backfills, the newest first; ``before`` is the last id of the page before."""
    return Json(await api.backfills.list(dag_id=dag, before=before, limit=limit))


@router.get("/backfills/{backfill_id}", dependencies=[viewer("backfill")])
async def show_backfill(api: NodeApi, backfill_id: _NUMBER) -> Response:
    """Show a backfill and its progress."""
    return Json(await api.backfills.show(backfill_id))


@router.post("/backfills/{backfill_id}/cancel", dependencies=[operator("backfill")])
async def cancel_backfill(acting: Acting, backfill_id: _NUMBER) -> Response:
    """Cancel a backfill and its unfinished runs."""
    return Json(await acting.backfills.cancel(backfill_id))
