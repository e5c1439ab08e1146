"""What each route needs of those who ask; a route that says nothing is not served.

A token with scopes is good for routes about one DAG, and only where that is one of them: the DAG
of the path, of the query, or the one that a run or a backfill belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypeAlias, cast

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from aioflow.api import Api
from aioflow.api.auth_cache import Caller
from aioflow.errors import Forbidden, OutOfScope, RequestError
from aioflow.model.access import Actor, Role
from aioflow.web.auth_context import Asking, asking_of
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

Of: TypeAlias = Literal["dag", "run", "backfill", "query"]
"""Where a route says which DAG it is about: ``dag_id``, ``run_id`` or ``backfill_id`` of its path,
or ``dag`` of its query."""

_ROW = 1 << 62


class Permission:
    """What a route needs.

    Args:
        role: ``None`` for nothing: anybody may ask.
        of: Which DAG it is about; ``None`` for none, or for many.
        is_own: It is about whoever asks, whatever the scopes are.
    """

    def __init__(self, role: Role | None, of: Of | None = None, *, is_own: bool = False) -> None:
        self.role = role
        self.of = of
        self.is_own = is_own

    async def check(self, request: Request) -> None:
        """Let the request go on, or not; called by the framework.

        Raises:
            Forbidden: If the role of whoever asks is too small.
            OutOfScope: If the token is good for other DAGs only.
        """
        if self.role is None:
            return
        caller = _caller_of(request)
        if caller.role < self.role:
            raise Forbidden(caller.role.label, self.role.label)
        if caller.scopes is None or self.is_own:
            return
        if await self._dag(request) not in caller.scopes:
            raise OutOfScope

    async def _dag(self, request: Request) -> str | None:
        api = api_of(request)
        try:
            match self.of:
                case "dag":
                    return cast(str, request.path_params["dag_id"])
                case "query":
                    named = request.query_params.getlist("dag")
                    return named[0] if len(named) == 1 else None
                case "run":
                    return (await api.run(request.path_params["run_id"])).dag_id
                case "backfill":
                    number = int(request.path_params["backfill_id"])
                    return (await api.backfills.show(min(abs(number), _ROW))).dag_id
                case None:
                    return None
        except (RequestError, ValueError):
            return None  # there is no such thing; whoever may not see it learns as much


def viewer(of: Of | None = None, *, is_own: bool = False) -> Any:
    """Return the dependency of a route that reads."""
    return Depends(Permission(Role.VIEWER, of, is_own=is_own).check)


def operator(of: Of | None = None) -> Any:
    """Return the dependency of a route that acts on what runs."""
    return Depends(Permission(Role.OPERATOR, of).check)


def admin(of: Of | None = None) -> Any:
    """Return the dependency of a route that acts on what is kept, and on who is let in."""
    return Depends(Permission(Role.ADMIN, of).check)


def anybody() -> Any:
    """Return the dependency of a route that needs nothing; the guard has to know it, too."""
    return Depends(Permission(None).check)


def permission_of(route: BaseRoute) -> Permission | None:
    """Return what a route declares."""
    if isinstance(route, APIRoute):
        for dependency in route.dependencies:
            owner = getattr(dependency.dependency, "__self__", None)
            if isinstance(owner, Permission):
                return owner
    return None


def each_route(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """Yield routes, those of routers among them one by one."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route
        else:
            yield from each_route(inner.routes)


def check_routes(routes: Iterable[BaseRoute]) -> None:
    """Look whether each route declares what it needs.

    Raises:
        RuntimeError: If one does not, which is a defect.
    """
    for route in each_route(routes):
        if permission_of(route) is None:
            raise RuntimeError(f"the route {getattr(route, 'path', route)} declares no permission")


async def _sent(request: Request) -> Asking:
    asking = asking_of(request.scope)
    if asking is None:
        raise RuntimeError("a request came past the guard")
    return asking


async def _by(request: Request) -> Actor:
    actor = (await _sent(request)).actor
    if actor is None:
        raise RuntimeError("a change came past the guard")
    return actor


async def _acting(request: Request) -> Api:
    return api_of(request).by(await _by(request))


def _caller_of(request: Request) -> Caller:
    asking = asking_of(request.scope)
    if asking is None or asking.caller is None:
        raise RuntimeError("a request came past the guard")
    return asking.caller


Sent = Annotated[Asking, Depends(_sent)]
"""The request itself, as a route takes it."""

By = Annotated[Actor, Depends(_by)]
"""Who sends it."""

Acting = Annotated[Api, Depends(_acting)]
"""What a route that changes something asks: in the name of whoever sends the request."""
