"""A client's address and scheme behind proxies, from the forwarding headers of trusted proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TypeAlias

from starlette.datastructures import Headers

__all__ = ("Proxies",)

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_SCHEMES = frozenset({"http", "https"})


class Proxies:
    """The trusted proxies in front of this server.

    Args:
        trusted: Addresses and networks. ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are accepted
            only from these, ``X-Forwarded-Host`` from none.
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
        """Return the client's address: the last one in the header that is not a trusted proxy's.

        Addresses listed before it may have been forged by the client.
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
