"""The permission that each route requires. A route that declares none is not served.

A token with scopes is valid only for routes about one DAG, which must be in its scopes. The path or
the query names the DAG, or the path names a run or backfill of the DAG.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypeAlias, cast

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from aioflow.api import Api
from aioflow.api.access.authentication import Caller
from aioflow.errors import Forbidden, OutOfScope, RequestError
from aioflow.model.access import Actor, Role
from aioflow.web.auth_context import RequestContext, request_context
from aioflow.web.routing import api_of

__all__ = (
    "Acting",
    "By",
    "Of",
    "Permission",
    "Sent",
    "admin",
    "anybody",
    "check_routes",
    "each_route",
    "operator",
    "permission_of",
    "viewer",
)

Of: TypeAlias = Literal["dag", "run", "backfill", "decision", "query"]
"""How a request names its DAG: by ``dag_id``, ``run_id``, ``backfill_id`` or ``decision_id`` in the
path, or by ``dag`` in the query.
"""

_ROW = 1 << 62


class Permission:
    """The permission that a route requires.

    Args:
        role: The minimum role; ``None`` for no authentication.
        of: How the request names its DAG; ``None`` if it is not about a single DAG.
        is_own: Whether the route is about the caller itself. If so, scopes are ignored.
    """

    def __init__(self, role: Role | None, of: Of | None = None, *, is_own: bool = False) -> None:
        self.role = role
        self.of = of
        self.is_own = is_own

    async def check(self, request: Request) -> None:
        """Authorize the request. Called by the framework.

        Raises:
            Forbidden: If the caller's role is insufficient.
            OutOfScope: If the token is valid for other DAGs only.
        """
        if self.role is None:
            return
        caller = _caller_of(request)
        if caller.role < self.role:
            raise Forbidden(caller.role.label, self.role.label)
        if caller.scopes is None or self.is_own:
            return
        dags = await self._dags(request)
        if not dags or not all(dag in caller.scopes for dag in dags):
            raise OutOfScope

    async def _dags(self, request: Request) -> list[str]:
        """Return the DAGs that the request is about; empty for all, or for an unknown DAG."""
        if self.of == "query":
            return request.query_params.getlist("dag")
        dag = await self._dag(request)
        return [] if dag is None else [dag]

    async def _dag(self, request: Request) -> str | None:
        api = api_of(request)
        try:
            match self.of:
                case "dag":
                    return cast(str, request.path_params["dag_id"])
                case "run":
                    return (await api.run(request.path_params["run_id"])).dag_id
                case "backfill":
                    number = int(request.path_params["backfill_id"])
                    return (await api.backfills.show(min(abs(number), _ROW))).dag_id
                case "decision":
                    number = int(request.path_params["decision_id"])
                    return await api.decisions.dag_of(min(abs(number), _ROW))
                case "query" | None:
                    return None
        except (RequestError, ValueError):
            return None  # unknown objects look the same to a scoped token as those out of its scope


def viewer(of: Of | None = None, *, is_own: bool = False) -> Any:
    """Return the dependency of a route that only reads."""
    return Depends(Permission(Role.VIEWER, of, is_own=is_own).check)


def operator(of: Of | None = None) -> Any:
    """Return the dependency of a route that changes runs, DAGs, triggers, events or pools."""
    return Depends(Permission(Role.OPERATOR, of).check)


def admin(of: Of | None = None) -> Any:
    """Return the dependency of a route that changes stored data, or access to it."""
    return Depends(Permission(Role.ADMIN, of).check)


def anybody() -> Any:
    """Return the dependency of a route without authentication. The guard must allow it, too."""
    return Depends(Permission(None).check)


def permission_of(route: BaseRoute) -> Permission | None:
    """Return the permission that a route declares; ``None`` if it declares none."""
    if isinstance(route, APIRoute):
        for dependency in route.dependencies:
            owner = getattr(dependency.dependency, "__self__", None)
            if isinstance(owner, Permission):
                return owner
    return None


def each_route(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """Yield routes one by one, including those of nested routers."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route
        else:
            yield from each_route(inner.routes)


def check_routes(routes: Iterable[BaseRoute]) -> None:
    """Check that each route declares a permission.

    Raises:
        RuntimeError: If a route declares none, which is a defect.
    """
    for route in each_route(routes):
        if permission_of(route) is None:
            raise RuntimeError(f"the route {getattr(route, 'path', route)} declares no permission")


async def _sent(request: Request) -> RequestContext:
    context = request_context(request.scope)
    if context is None:
        raise RuntimeError("the guard let a request without context through")
    return context


async def _by(request: Request) -> Actor:
    actor = (await _sent(request)).actor
    if actor is None:
        raise RuntimeError("the guard let a change without context through")
    return actor


async def _acting(request: Request) -> Api:
    return api_of(request).by(await _by(request))


def _caller_of(request: Request) -> Caller:
    context = request_context(request.scope)
    if context is None or context.caller is None:
        raise RuntimeError("the guard let a request without context through")
    return context.caller


Sent = Annotated[RequestContext, Depends(_sent)]
"""The context of the request, as a route's parameter."""

By = Annotated[Actor, Depends(_by)]
"""The caller, as a route's parameter."""

Acting = Annotated[Api, Depends(_acting)]
"""The API acting for the caller, as the parameter of a route that makes changes."""
