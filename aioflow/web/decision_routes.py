"""Routes to list, show and answer decisions, also through a signed link.

A link opens a page. The page sends the token of the link in the body of a request, so that no proxy
logs it, and a scanner that opens links decides nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Response
from pydantic import BaseModel, ConfigDict, Field

from aioflow.web.permissions import Acting, Sent, anybody, viewer
from aioflow.web.routing import MAX_ROW_NO, Count, CursorText, Json, NodeApi, api_router

__all__ = ("AnswerBody", "LinkAnswerBody", "LinkBody", "router")

_DecisionId = Annotated[int, Path(ge=0, le=MAX_ROW_NO)]
_Token = Annotated[str, Field(max_length=1_000)]
_Comment = Annotated[str, Field(max_length=10_000)]
"""Of this a line of at most ``COMMENT_LENGTH`` characters may remain."""


class AnswerBody(BaseModel):
    """The answer: true or false, or an object with the fields of the form; and why."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    answer: Annotated[Any, Field(...)]
    comment: _Comment = ""


class LinkBody(BaseModel):
    """The token of a signed link."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    token: _Token


class LinkAnswerBody(BaseModel):
    """The token of a signed link, the answer, and why."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    token: _Token
    answer: Annotated[Any, Field(...)]
    comment: _Comment = ""


router = api_router()


@router.get("/decisions", dependencies=[viewer("query")])
async def list_decisions(
    acting: Acting,
    state: Literal["open", "ended", "all"] = "open",
    dag: str | None = None,
    run: str | None = None,
    limit: Count = 100,
    cursor: CursorText = None,
) -> Response:
    """List decisions, the newest first; ``cursor`` is the ``next`` of the previous page."""
    is_open = None if state == "all" else state == "open"
    return Json(
        await acting.decisions.page(
            is_open=is_open, dag_id=dag, run_id=run, limit=limit, cursor=cursor
        )
    )


@router.post("/decisions/link", dependencies=[anybody()])
async def show_link(api: NodeApi, body: LinkBody, sent: Sent) -> Response:
    """Show the decision of a signed link. Does not answer it."""
    return Json(await api.decisions.show_link(body.token, sent.address))


@router.post("/decisions/link/answer", dependencies=[anybody()])
async def answer_link(api: NodeApi, body: LinkAnswerBody, sent: Sent) -> Response:
    """Answer the decision of a signed link. The link starts no session."""
    return Json(
        await api.decisions.answer_link(body.token, sent.address, body.answer, body.comment)
    )


@router.get("/decisions/{decision_id}", dependencies=[viewer("decision")])
async def show_decision(acting: Acting, decision_id: _DecisionId) -> Response:
    """Show one decision."""
    return Json(await acting.decisions.show(decision_id))


@router.post("/decisions/{decision_id}/answer", dependencies=[viewer("decision")])
async def answer_decision(acting: Acting, decision_id: _DecisionId, body: AnswerBody) -> Response:
    """Answer a decision, or vote on it. Its assignees may do so, whatever their role."""
    return Json(await acting.decisions.answer(decision_id, body.answer, body.comment))
