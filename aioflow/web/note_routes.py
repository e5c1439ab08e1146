"""Routes for the notes of people on runs and tasks."""

from __future__ import annotations

from typing import Annotated

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from aioflow.api.queries import PAGE
from aioflow.web.permissions import Acting, operator, viewer
from aioflow.web.routing import (
    Count,
    CursorText,
    Json,
    MapIndex,
    NodeApi,
    RoundNumber,
    api_router,
)

__all__ = ("NoteBody", "router")


class NoteBody(BaseModel):
    """The text of a note."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=100_000)]


router = api_router()


@router.get("/runs/{run_id}/notes", dependencies=[viewer("run")])
async def list_notes(
    api: NodeApi, run_id: str, limit: Count = PAGE, cursor: CursorText = None
) -> Response:
    """List the notes on a run and on its tasks. The note on the run is the first."""
    return Json(await api.notes.page(run_id, limit=limit, cursor=cursor))


@router.put("/runs/{run_id}/note", dependencies=[operator("run")])
async def set_run_note(acting: Acting, run_id: str, body: NoteBody) -> Response:
    """Write the note on a run, replacing an earlier one; at most 2,048 bytes."""
    return Json(await acting.notes.set(run_id, body.text))


@router.delete("/runs/{run_id}/note", dependencies=[operator("run")])
async def remove_run_note(acting: Acting, run_id: str) -> Response:
    """Remove the note on a run, if it has one."""
    return Json(await acting.notes.remove(run_id))


@router.put("/runs/{run_id}/tasks/{task_id}/note", dependencies=[operator("run")])
async def set_task_note(
    acting: Acting,
    run_id: str,
    task_id: str,
    body: NoteBody,
    map_index: MapIndex = -1,
    round_number: RoundNumber = -1,
) -> Response:
    """Write the note on a task of a run, replacing an earlier one; at most 2,048 bytes."""
    at = max(map_index, round_number)
    return Json(await acting.notes.set(run_id, body.text, task_id=task_id, map_index=at))


@router.delete("/runs/{run_id}/tasks/{task_id}/note", dependencies=[operator("run")])
async def remove_task_note(
    acting: Acting,
    run_id: str,
    task_id: str,
    map_index: MapIndex = -1,
    round_number: RoundNumber = -1,
) -> Response:
    """Remove the note on a task of a run, if it has one."""
    at = max(map_index, round_number)
    return Json(await acting.notes.remove(run_id, task_id=task_id, map_index=at))
