"""The context of one HTTP request: its id, caller and outcome, and its client's address.

Forwarding headers are used only from trusted proxies.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TypeAlias, cast

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope

from aioflow.api.authentication import Caller
from aioflow.model.access import Actor, caller_name

__all__ = (
    "Proxies",
    "RequestContext",
    "request_context",
    "set_request_context",
)

_SCOPE_KEY = "aioflow.request_context"


class RequestContext(msgspec.Struct):
    """The context of a request.

    Attributes:
        request_id: Identifies the request in responses and in the log.
        address: The client's address; empty over the home's socket.
        caller: The authenticated caller; ``None`` if unknown.
        cookie: The value of its session cookie.
        target: Target of the audit entry if the request is denied; if empty, the path is used.
        code: The code of the error response, if any.
    """

    request_id: str
    address: str
    caller: Caller | None = None
    cookie: str | None = None
    target: str = ""
    code: str | None = None

    @property
    def actor(self) -> Actor | None:
        """The caller as the audit names it."""
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


_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_SCHEMES = frozenset({"http", "https"})


class Proxies:
    """The trusted proxies in front of this server.

    Args:
        trusted: Addresses and networks. ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are used
            only from these, and ``X-Forwarded-Host`` never.
    """

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self._networks = [ipaddress.ip_network(network) for network in trusted]

    def is_trusted(self, address: str) -> bool:
        """Return whether the address is that of a trusted proxy."""
        if not self._networks:
            return False
        found = _parsed_address(address)
        return found is not None and any(found in network for network in self._networks)

    def address(self, headers: Headers, peer: str) -> str:
        """Return the client's address: the last one that does not belong to a trusted proxy.

        The client may have forged the addresses listed before it.
        """
        nearest = peer
        for given in reversed(",".join(headers.getlist("x-forwarded-for")).split(",")):
            if not self.is_trusted(nearest):
                return nearest
            found = _parsed_address(given.strip())
            if found is None:
                return nearest
            nearest = str(found)
        return nearest

    def scheme(self, headers: Headers, peer: str, scheme: str) -> str:
        """Return the scheme that the browser uses."""
        given = headers.getlist("x-forwarded-proto")
        is_named = len(given) == 1 and given[0] in _SCHEMES and self.is_trusted(peer)
        return given[0] if is_named else scheme


def _parsed_address(given: str) -> _Address | None:
    """Parse an address, with or without a port, which some proxies add."""
    text = given
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found if mapped is None else mapped
