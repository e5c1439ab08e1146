"""How often somebody may try to log in, so that guessing takes for ever and nobody is shut out.

Each address has a handful of tries, and gets one back every few seconds; each name has more of
them, and gets them back sooner, so that no single address uses up a name's. A login that succeeds
costs none. Where a name has logged in before from an address, tries with both count by themselves:
whoever guesses elsewhere does not use them up.

All of it is bounded, and nobody makes room for himself: names of users are never forgotten for
names of nobody, and a try that is refused is not remembered.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from aioflow.errors import TooManyLogins

__all__ = ("Attempts",)

_KEPT = 10_000
"""Of how many it knows of each kind; those that were heard of longest ago are forgotten."""

_NETWORK_BITS = 64
"""Of an IPv6 address: somebody who has one has all that begin so."""

Key = TypeVar("Key", bound=Hashable)


class _Bucket(msgspec.Struct):
    left: float
    at: float


class _Buckets(Generic[Key]):
    """Tries of one kind.

    Args:
        tries: How many there are at once.
        back_seconds: When one of them comes back.
    """

    def __init__(self, tries: int, back_seconds: float) -> None:
        self._tries = tries
        self._back_seconds = back_seconds
        self._known: OrderedDict[Key, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def missing_seconds(self, key: Key, now: float) -> float:
        """Return how long it takes until there is one; 0 or less if there is."""
        return (1 - self._left(key, now)) * self._back_seconds

    def take(self, key: Key, now: float, count: int = 1) -> None:
        """Take one; with -1 it comes back."""
        left = min(self._tries, self._left(key, now) - count)
        self._known[key] = _Bucket(left, now)
        self._known.move_to_end(key)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)

    def _left(self, key: Key, now: float) -> float:
        bucket = self._known.get(key)
        if bucket is None:
            return self._tries
        return min(self._tries, bucket.left + (now - bucket.at) / self._back_seconds)


class Attempts:
    """Counts them."""

    def __init__(self) -> None:
        self._addresses = _Buckets[str](10, 6.0)
        self._names = _Buckets[str](30, 2.0)
        self._strangers = _Buckets[str](30, 2.0)
        self._own = _Buckets[tuple[str, str]](10, 6.0)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def begin(self, name: str, address: str, now: float, *, is_user: bool) -> None:
        """Take a try; give it back with ``succeed``.

        Args:
            now: Monotonic seconds.
            is_user: Whether there is a user of that name. It makes no other difference.

        Raises:
            TooManyLogins: If there is none left. None is taken then.
        """
        network = _network(address)
        if (name, network) in self._known:
            _take([(self._own, (name, network))], now)
        else:
            names = self._names if is_user else self._strangers
            _take([(self._addresses, network), (names, name)], now)

    def succeed(self, name: str, address: str, now: float) -> None:
        """The last one was right."""
        network = _network(address)
        if (name, network) in self._known:
            self._own.take((name, network), now, -1)
        else:
            self._addresses.take(network, now, -1)
            self._names.take(name, now, -1)
        self.know(name, address)

    def know(self, name: str, address: str) -> None:
        """Somebody of that name has logged in from there."""
        known = (name, _network(address))
        self._known[known] = None
        self._known.move_to_end(known)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)


def _take(from_each: list[tuple[_Buckets[Key], Key]], now: float) -> None:
    seconds = max(buckets.missing_seconds(key, now) for buckets, key in from_each)
    if seconds > 0:
        raise TooManyLogins(math.ceil(seconds))
    for buckets, key in from_each:
        buckets.take(key, now)


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
