"""Password hashing with Argon2 in a separate thread, with limited concurrency."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import argon2
from argon2.exceptions import InvalidHashError, VerificationError

from aioflow._threads import in_thread
from aioflow.errors import AccountRefused, TooManyLogins

__all__ = ("Passwords", "checked_password")

_SHORTEST, _LONGEST = 10, 1_024  # characters
_THREADS = 1
"""Limits hashing to one core and the memory of one hash, however many logins there are."""

_WAITING = 16
_AGAIN_SECONDS = 2

# The minimum that OWASP recommends: 19 MiB, two iterations.
_OWASP = argon2.PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

_NO_USER = "$argon2id$v=19$m={m},t={t},p={p}$c29tZXRoaW5nc2FsdHkxMg${digest}"
_DIGEST = "ZzO1ZQm0pOZzY6V2v3r8mVJY9b2uZk0h7pXqk0yF1mE"


def checked_password(password: str) -> str:
    """Return the password if its length is valid.

    Raises:
        AccountRefused: If it is too short, or too long.
    """
    if not _SHORTEST <= len(password) <= _LONGEST:
        raise AccountRefused(f"a password has {_SHORTEST} to {_LONGEST} characters")
    return password


class Passwords:
    """Hashes and verifies passwords. Callers are rejected while too many wait.

    Args:
        hasher: Its parameters determine how long a hash takes.
    """

    def __init__(self, hasher: argon2.PasswordHasher = _OWASP) -> None:
        self._hasher = hasher
        self._no_user = _NO_USER.format(
            m=hasher.memory_cost, t=hasher.time_cost, p=hasher.parallelism, digest=_DIGEST
        ).encode()
        self._limiter = anyio.CapacityLimiter(_THREADS)
        self._waiting = 0

    async def hashed(self, password: str) -> bytes:
        """Return the hash of a password.

        Raises:
            AccountRefused: If the password is invalid.
            TooManyLogins: If too many callers wait already.
        """
        text = checked_password(password).encode("utf-8", "surrogatepass")
        with self._in_line():
            return (await in_thread(self._hasher.hash, text, limiter=self._limiter)).encode()

    async def matches(self, secret: bytes | None, password: str) -> bool:
        """Return whether a password matches a hash. It takes as long for ``None`` as for a hash.

        Raises:
            TooManyLogins: If too many callers wait already.
        """
        if len(password) > _LONGEST:
            return False
        text = password.encode("utf-8", "surrogatepass")
        with self._in_line():
            is_same = await in_thread(
                self._is_of, secret or self._no_user, text, limiter=self._limiter
            )
        return is_same and secret is not None

    @contextmanager
    def _in_line(self) -> Iterator[None]:
        if self._waiting >= _WAITING:
            raise TooManyLogins(_AGAIN_SECONDS)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def _is_of(self, secret: bytes, password: bytes) -> bool:
        try:
            return self._hasher.verify(secret, password)
        except (VerificationError, InvalidHashError):
            return False
