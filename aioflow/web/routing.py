"""Routers, built once per process, and what their handlers take from the application they serve.

Handlers are module-level functions: an application of a node shares the routes, and gives them its
own API by its state.
"""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request

from aioflow.api import Api
from aioflow.web.metrics import Exposition
from aioflow.web.openapi import operation_id
from aioflow.web.response_budget import Held
from aioflow.web.responses import Json

__all__ = (
    "CookieName",
    "HeldBytes",
    "NodeApi",
    "NodeMetrics",
    "api_of",
    "api_router",
)


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


async def _api(request: Request) -> Api:  # a dependency that is no coroutine runs in a thread
    return api_of(request)


async def _cookie_name(request: Request) -> str:
    return cast(str, request.app.state.cookie_name)


async def _held(request: Request) -> Held:
    return cast(Held, request.app.state.held)


async def _metrics(request: Request) -> Exposition:
    return cast(Exposition, request.app.state.metrics)


NodeApi = Annotated[Api, Depends(_api)]
"""The API of the node, as a route takes it."""

CookieName = Annotated[str, Depends(_cookie_name)]
"""The name of the node's session cookie."""

HeldBytes = Annotated[Held, Depends(_held)]
"""The bytes that the application's answers hold in memory."""

NodeMetrics = Annotated[Exposition, Depends(_metrics)]
"""Writes the metrics of the node."""
