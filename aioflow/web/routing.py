"""Routers, built once per process, and dependencies, parameters and responses of route handlers.

Handlers are module-level functions. The applications of all nodes share the routes. Each provides
its own API through its state. msgspec encodes responses in one pass and without validation.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, cast

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from aioflow.api import Api
from aioflow.api.paging import CURSOR_LENGTH
from aioflow.api.queries import PAGE
from aioflow.web.auth_context import forwarded_query
from aioflow.web.limits import ResponseBudget
from aioflow.web.metrics import Exposition
from aioflow.web.openapi import operation_id

__all__ = (
    "MAX_ROW_NO",
    "Budget",
    "CookieName",
    "Count",
    "CursorText",
    "Json",
    "MapIndex",
    "NodeApi",
    "NodeMetrics",
    "Offset",
    "PageUrls",
    "RoundNumber",
    "TryNumber",
    "Urls",
    "api_of",
    "api_router",
)

Count = Annotated[int, Query(ge=1, le=PAGE)]
CursorText = Annotated[str | None, Query(max_length=CURSOR_LENGTH)]
"""A cursor: ``next`` of the previous page of a list."""

Offset = Annotated[int, Query(ge=0, le=1 << 53)]
MapIndex = Annotated[int, Query(alias="map", ge=-1, le=1 << 53)]
RoundNumber = Annotated[int, Query(alias="round", ge=-1, le=1 << 53)]
TryNumber = Annotated[int | None, Query(alias="try", ge=1, le=1 << 31)]
MAX_ROW_NO = 1 << 62
"""The highest possible row number."""


class PageUrls(NamedTuple):
    """URLs of the page.

    Attributes:
        public: The URL for users; empty if the settings do not specify it.
        local: The URL on this machine.
    """

    public: str = ""
    local: str = ""


class Json(Response):
    """A JSON response."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def api_router() -> APIRouter:
    """Return an empty router for routes below ``/api/v1``."""
    return APIRouter(
        prefix="/api/v1",
        default_response_class=Json,
        generate_unique_id_function=operation_id,
    )


def api_of(request: Request) -> Api:
    """Return the API of the application that serves the request."""
    return cast(Api, request.app.state.api)


async def _api(request: Request) -> Api:  # a sync dependency would run in a thread
    return api_of(request)


async def _page_urls(request: Request) -> PageUrls:
    return cast(PageUrls, request.app.state.page_urls)


async def _cookie_name(request: Request) -> str:
    forwarded = forwarded_query(request.scope)
    if forwarded is not None:
        return forwarded.cookie_name
    return cast(str, request.app.state.cookie_name)


async def _response_budget(request: Request) -> ResponseBudget:
    return cast(ResponseBudget, request.app.state.budget)


async def _metrics(request: Request) -> Exposition:
    return cast(Exposition, request.app.state.metrics)


NodeApi = Annotated[Api, Depends(_api)]
"""The API of the node, as a route's parameter."""

CookieName = Annotated[str, Depends(_cookie_name)]
"""The name of the node's session cookie, as a route's parameter."""

Urls = Annotated[PageUrls, Depends(_page_urls)]
"""The URLs of the page, as a route's parameter."""

Budget = Annotated[ResponseBudget, Depends(_response_budget)]
"""The memory budget of the application's responses, as a route's parameter."""

NodeMetrics = Annotated[Exposition, Depends(_metrics)]
"""A function that returns the metrics of the node as text, as a route's parameter."""
