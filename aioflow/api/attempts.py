"""How often somebody may try to log in, so that guessing takes for ever and nobody is shut out.

Each address, and each name, has a handful of tries, and gets one back every few seconds; a login
that succeeds costs none. Where a name has logged in before from an address, tries with both count
by themselves: whoever guesses elsewhere does not use them up.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict

import msgspec

from aioflow.errors import TooManyLogins

__all__ = ("Attempts",)

_TRIES = 10
_BACK_SECONDS = 6.0
_KEPT = 10_000
"""Of how many addresses and names it knows; those that were heard of longest ago are forgotten."""

_NETWORK_BITS = 64
"""Of an IPv6 address: somebody who has one has all that begin so."""


class _Bucket(msgspec.Struct):
    left: float
    at: float


class Attempts:
    """Counts them."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def begin(self, name: str, address: str, now: float) -> None:
        """Take a try; give it back with ``succeed``.

        Args:
            now: Monotonic seconds.

        Raises:
            TooManyLogins: If there is none left. None is taken then.
        """
        buckets = [self._bucket(key, now) for key in self._keys(name, address)]
        missing = max(1 - bucket.left for bucket in buckets)
        if missing > 0:
            raise TooManyLogins(math.ceil(missing * _BACK_SECONDS))
        for bucket in buckets:
            bucket.left -= 1

    def succeed(self, name: str, address: str, now: float) -> None:
        """The last one was right."""
        for key in self._keys(name, address):
            bucket = self._bucket(key, now)
            bucket.left = min(_TRIES, bucket.left + 1)
        known = (name, _network(address))
        self._known[known] = None
        self._known.move_to_end(known)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)

    def _keys(self, name: str, address: str) -> list[tuple[str, str]]:
        network = _network(address)
        if (name, network) in self._known:
            return [(name, network)]
        return [("", network), (name, "")]

    def _bucket(self, key: tuple[str, str], now: float) -> _Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(_TRIES, now)
            if len(self._buckets) > _KEPT:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
            bucket.left = min(_TRIES, bucket.left + (now - bucket.at) / _BACK_SECONDS)
            bucket.at = now
        return bucket


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    mapped = found.ipv4_mapped
    if mapped is not None:
        return str(mapped)
    return str(ipaddress.ip_network((found, _NETWORK_BITS), strict=False))
