"""Login throttle: makes password guessing impractically slow without locking out users.

Each address has a bucket of a few tries, and one try is restored every few seconds. Each name has a
larger bucket that refills faster, so that no single address can use up the tries of a name. A
successful login uses no try. A name and an address that have logged in together earlier share a
bucket of their own, which guesses from other addresses do not use up.

The state is bounded, and an attacker cannot evict the entries of others: names without an account
never displace names of users, and a rejected try is not recorded.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from aioflow.errors import TooManyAnswers, TooManyLogins

__all__ = ("LinkThrottle", "LoginThrottle")

_MAX_BUCKETS = 10_000
"""Maximum number of entries of each kind; the least recently used ones are dropped."""

_NETWORK_BITS = 64
"""IPv6 prefix that counts as one address, since a client usually controls all of its prefix."""

Key = TypeVar("Key", bound=Hashable)


class _Bucket(msgspec.Struct):
    left: float
    at: float


class _Buckets(Generic[Key]):
    """Token buckets of one kind.

    Args:
        tries: The capacity of a bucket.
        back_seconds: The time after which one try is restored.
    """

    def __init__(self, tries: int, back_seconds: float) -> None:
        self._tries = tries
        self._back_seconds = back_seconds
        self._known: OrderedDict[Key, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def missing_seconds(self, key: Key, now: float) -> float:
        """Return the seconds until a try is available; 0 or less if one is."""
        return (1 - self._left(key, now)) * self._back_seconds

    def take(self, key: Key, now: float, count: int = 1) -> None:
        """Take ``count`` tries; -1 returns one."""
        left = min(self._tries, self._left(key, now) - count)
        self._known[key] = _Bucket(left, now)
        self._known.move_to_end(key)
        if len(self._known) > _MAX_BUCKETS:
            self._known.popitem(last=False)

    def _left(self, key: Key, now: float) -> float:
        bucket = self._known.get(key)
        if bucket is None:
            return self._tries
        return min(self._tries, bucket.left + (now - bucket.at) / self._back_seconds)


class LoginThrottle:
    """Counts login tries per address, per name, and per known pair of both."""

    def __init__(self) -> None:
        self._addresses = _Buckets[str](10, 6.0)
        self._names = _Buckets[str](30, 2.0)
        self._strangers = _Buckets[str](30, 2.0)
        self._own = _Buckets[tuple[str, str]](10, 6.0)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def begin(self, name: str, address: str, now: float, *, is_user: bool) -> None:
        """Take one try. After a successful login, ``succeed`` returns it.

        Args:
            now: Monotonic seconds.
            is_user: Whether a user has that name. Other names have separate buckets of equal size.

        Raises:
            TooManyLogins: If no try is left; the state is then unchanged.
        """
        network = _network(address)
        if (name, network) in self._known:
            _take_try([(self._own, (name, network))], now)
        else:
            names = self._names if is_user else self._strangers
            _take_try([(self._addresses, network), (names, name)], now)

    def succeed(self, name: str, address: str, now: float) -> None:
        """Restore the try of a successful login, and remember the address for this name."""
        network = _network(address)
        if (name, network) in self._known:
            self._own.take((name, network), now, -1)
        else:
            self._addresses.take(network, now, -1)
            self._names.take(name, now, -1)
        self.remember(name, address)

    def remember(self, name: str, address: str) -> None:
        """Record that this name has logged in from this address."""
        known = (name, _network(address))
        self._known[known] = None
        self._known.move_to_end(known)
        if len(self._known) > _MAX_BUCKETS:
            self._known.popitem(last=False)


def _take_try(from_each: list[tuple[_Buckets[Key], Key]], now: float) -> None:
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


class LinkThrottle:
    """Limits the uses of signed links per address. Successful and failed uses count alike."""

    def __init__(self) -> None:
        self._addresses = _Buckets[str](30, 2.0)

    def take(self, address: str, now: float) -> None:
        """Count one use.

        Args:
            now: Monotonic seconds.

        Raises:
            TooManyAnswers: If no use is left.
        """
        network = _network(address)
        missing = self._addresses.missing_seconds(network, now)
        if missing > 0:
            raise TooManyAnswers(math.ceil(missing))
        self._addresses.take(network, now)
