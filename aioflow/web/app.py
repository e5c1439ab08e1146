"""The application: the API's routes, health, metrics and the page, behind the guard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp

from aioflow.api import Api
from aioflow.errors import AioflowError
from aioflow.web import docs
from aioflow.web.forwarded import Proxies
from aioflow.web.guard import Guard
from aioflow.web.metrics import exposition
from aioflow.web.openapi import describe, operation_id
from aioflow.web.permissions import Sent, anybody, check_routes, viewer
from aioflow.web.problems import problem, problem_of
from aioflow.web.routes import api_routes
from aioflow.web.static import page_routes
from aioflow.web.tokens import Token

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
) -> ASGIApp:
    """Return the whole application.

    Args:
        api: Answers, and knows who is let in.
        token: The home's own.
        hosts: See ``Guard``.
        any_address: See ``Guard``.
        proxies: See ``Guard``.
        lag_seconds: How late the loop is.
    """
    app = FastAPI(
        title="aioflow",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=operation_id,
    )
    app.state.api = api
    app.state.cookie_name = token.cookie_name
    app.openapi = describe(app)  # type: ignore[method-assign]
    app.include_router(api_routes(api))
    _add_health(app, api)
    _add_metrics(app, exposition(api, lag_seconds))
    _add_docs(app)
    app.include_router(page_routes())
    _add_errors(app)
    check_routes(app.routes)
    return Guard(
        app,
        token,
        api.access,
        api.clock,
        hosts=hosts,
        any_address=any_address,
        proxies=proxies,
    )


def _add_health(app: FastAPI, api: Api) -> None:
    @app.get("/health/live", include_in_schema=False, dependencies=[anybody()])
    async def live() -> dict[str, str]:
        return {"status": "live"}

    @app.get("/health/ready", include_in_schema=False, dependencies=[anybody()])
    async def ready(sent: Sent) -> Response:
        health = await api.health()
        status = 200 if health.status == "ready" else 503
        is_known = sent.caller is not None and sent.caller.scopes is None
        told = health if is_known else {"status": health.status}
        body = msgspec.json.encode(told)
        return Response(body, status_code=status, media_type="application/json")


def _add_metrics(app: FastAPI, metrics: Callable[[], Awaitable[bytes]]) -> None:
    @app.get("/metrics", include_in_schema=False, dependencies=[viewer()])
    async def show_metrics() -> Response:
        return Response(await metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/api/v1/openapi.json", include_in_schema=False, dependencies=[viewer()])
    async def openapi() -> Response:
        return Response(msgspec.json.encode(app.openapi()), media_type="application/json")


def _add_docs(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False, dependencies=[viewer()])
    async def show_docs() -> Response:
        return HTMLResponse(docs.render(app.openapi()))

    @app.get(docs.STYLE_PATH, include_in_schema=False, dependencies=[viewer()])
    async def docs_style() -> Response:
        return Response(docs.STYLE, media_type="text/css")


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(AioflowError)
    async def ours(request: Request, exc: Exception) -> Response:
        if not isinstance(exc, AioflowError):
            raise exc
        return problem_of(exc)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, exc: Exception) -> Response:
        return problem(422, "request.invalid", _first_error(exc))

    @app.exception_handler(HTTPException)
    async def http(request: Request, exc: Exception) -> Response:
        if not isinstance(exc, HTTPException):
            raise exc
        code = _CODES.get(exc.status_code, "request.invalid")
        return problem(exc.status_code, code, str(exc.detail), exc.headers)

    @app.exception_handler(Exception)
    async def defect(request: Request, exc: Exception) -> Response:
        # Raised on by the framework afterwards: the guard writes it to the log.
        return problem(500, "defect.web", "this is a defect; the daemon's log says more")


def _first_error(exc: Exception) -> str:
    if not isinstance(exc, RequestValidationError):
        raise exc
    first: dict[str, Any] = dict(exc.errors()[0])
    where = ".".join(str(part) for part in first.get("loc", ()))
    text = f"{where}: {first.get('msg', 'cannot be understood')}"
    return text if len(text) <= _TOLD else f"{text[:_TOLD]}…"  # names of what is sent are in it
