"""The ASGI application: API, health, metrics and web page, protected by the guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from aioflow.api import Api
from aioflow.errors import AioflowError, DaemonAway, NoActiveNode
from aioflow.web import openapi, static
from aioflow.web.csrf import SAFE_METHODS
from aioflow.web.forwarding import Forwarder
from aioflow.web.guard import Guard
from aioflow.web.limits import ResponseBudget
from aioflow.web.metrics import exposition
from aioflow.web.openapi import describe
from aioflow.web.permissions import Sent, anybody, check_routes, viewer
from aioflow.web.problems import problem, problem_of
from aioflow.web.routes import API_ROUTES
from aioflow.web.routing import NodeApi, NodeMetrics, PageUrls
from aioflow.web.tokens import Token
from aioflow.web.trusted_proxies import Proxies

__all__ = ("create_app",)

_TOLD = 500
_CODES = {404: "web.no_such_path", 405: "web.method", 413: "web.too_large"}


def create_app(
    api: Api,
    token: Token,
    *,
    hosts: Sequence[str] = (),
    any_address: bool = False,
    proxies: Proxies | None = None,
    lag_seconds: Callable[[], float] = lambda: 0.0,
    page_urls: PageUrls | None = None,
) -> ASGIApp:
    """Return the ASGI application. All applications of this process share their routes.

    Args:
        api: The API, which also authenticates callers.
        token: The home's own token.
        hosts: See ``Guard``.
        any_address: See ``Guard``.
        proxies: See ``Guard``.
        lag_seconds: Returns the delay of the event loop.
        page_urls: The URLs of the page, for links.
    """
    app = FastAPI(
        title="aioflow",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        routes=[*_ROUTES],
        exception_handlers={
            AioflowError: _ours,
            RequestValidationError: _invalid,
            HTTPException: _http,
            Exception: _defect,
        },
    )
    app.state.api = api
    app.state.cookie_name = token.cookie_name
    app.state.budget = ResponseBudget()
    app.state.page_urls = page_urls or PageUrls()
    app.state.metrics = exposition(api, lag_seconds)
    check_routes(app.routes)
    served: ASGIApp = app
    if api.follower is not None and api.node_queries is not None:
        served = Forwarder(app, api, api.node_queries, app.routes, token.cookie_name)
    return Guard(
        served,
        token,
        api.access,
        api.clock,
        hosts=hosts,
        any_address=any_address,
        proxies=proxies,
    )


_router = APIRouter(include_in_schema=False)


@_router.get("/health/live", dependencies=[anybody()])
async def _live() -> dict[str, str]:
    return {"status": "live"}


@_router.get("/health/ready", dependencies=[anybody()])
async def _ready(api: NodeApi, sent: Sent) -> Response:
    health = await api.health()
    status = 200 if health.status == "ready" else 503
    is_known = sent.caller is not None and sent.caller.scopes is None
    told = health if is_known else {"status": health.status}
    body = msgspec.json.encode(told)
    return Response(body, status_code=status, media_type="application/json")


@_router.get("/metrics", dependencies=[viewer()])
async def _metrics(metrics: NodeMetrics) -> Response:
    return Response(await metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")


@_router.get("/api/v1/openapi.json", dependencies=[viewer()])
async def _openapi() -> Response:
    return Response(msgspec.json.encode(_description()), media_type="application/json")


@_router.get("/docs", dependencies=[viewer()])
async def _docs() -> Response:
    return HTMLResponse(openapi.render_docs(_description()))


@_router.get(openapi.DOCS_STYLE_PATH, dependencies=[viewer()])
async def _docs_style() -> Response:
    return Response(openapi.DOCS_STYLE, media_type="text/css")


_ROUTES: tuple[BaseRoute, ...] = (*API_ROUTES, *_router.routes, *static.router.routes)


@cache
def _description() -> dict[str, Any]:
    """Return the OpenAPI document. It is built on first use."""
    return describe(_ROUTES)


async def _ours(request: Request, exc: Exception) -> Response:
    if not isinstance(exc, AioflowError):
        raise exc
    if isinstance(exc, DaemonAway) and request.app.state.api.follower is not None:
        exc = NoActiveNode(is_sent=False)  # only an active node has this in memory
    return problem_of(exc)


async def _invalid(request: Request, exc: Exception) -> Response:
    return problem(422, "request.invalid", _first_error(exc))


async def _http(request: Request, exc: Exception) -> Response:
    if not isinstance(exc, HTTPException):
        raise exc
    if exc.status_code == 404 and request.method in SAFE_METHODS:
        missing = static.missing_page(request.url.path, request.headers.get("accept", ""))
        if missing is not None:
            return missing
    code = _CODES.get(exc.status_code, "request.invalid")
    return problem(exc.status_code, code, str(exc.detail), exc.headers)


async def _defect(request: Request, exc: Exception) -> Response:
    # The framework raises the error again after this response, so the guard logs it.
    return problem(500, "defect.web", "this is a defect; the daemon's log says more")


def _first_error(exc: Exception) -> str:
    if not isinstance(exc, RequestValidationError):
        raise exc
    first: dict[str, Any] = dict(exc.errors()[0])
    where = ".".join(str(part) for part in first.get("loc", ()))
    text = f"{where}: {first.get('msg', 'cannot be understood')}"
    return text if len(text) <= _TOLD else f"{text[:_TOLD]}…"  # contains names from the request
