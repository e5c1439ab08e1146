"""The context of one HTTP request: its id, caller and outcome."""

from __future__ import annotations

from typing import cast

import msgspec
from starlette.types import Scope

from aioflow.api.access.authentication import Caller
from aioflow.api.node_queries import HttpQuery
from aioflow.model.access import Actor, caller_name

__all__ = (
    "RequestContext",
    "forwarded_query",
    "request_context",
    "set_forwarded_query",
    "set_request_context",
)

_SCOPE_KEY = "aioflow.request_context"
_FORWARDED_KEY = "aioflow.forwarded_query"


class RequestContext(msgspec.Struct):
    """The context of a request.

    Attributes:
        request_id: Identifies the request in responses and in the log.
        address: The client's address; empty over the home's socket.
        caller: The authenticated caller; ``None`` if unknown.
        cookie: The value of the caller's session cookie.
        target: Target of the audit entry if the request is denied; if empty, the path is used.
        code: The code of the error response, if any.
        is_forwarded: Whether the active node has answered the request. If it denied the request, it
            has also audited that.
    """

    request_id: str
    address: str
    caller: Caller | None = None
    cookie: str | None = None
    target: str = ""
    code: str | None = None
    is_forwarded: bool = False

    @property
    def actor(self) -> Actor | None:
        """The caller in the form that the audit uses."""
        caller = self.caller
        if caller is None:
            return None
        name = caller_name(caller.name, caller.kind)
        return Actor(name=name, role=caller.role, address=self.address)


def set_request_context(scope: Scope, context: RequestContext) -> None:
    """Store the context in the scope, so that copies of the scope have it, too."""
    scope[_SCOPE_KEY] = context


def request_context(scope: Scope) -> RequestContext | None:
    """Return the context of a scope; ``None`` if the request did not pass the guard."""
    return cast("RequestContext | None", scope.get(_SCOPE_KEY))


def set_forwarded_query(scope: Scope, query: HttpQuery) -> None:
    """Mark a request as forwarded by a standby. A client cannot forge this mark."""
    scope[_FORWARDED_KEY] = query


def forwarded_query(scope: Scope) -> HttpQuery | None:
    """Return the query that a standby has forwarded; ``None`` for a request from a client."""
    return cast("HttpQuery | None", scope.get(_FORWARDED_KEY))
