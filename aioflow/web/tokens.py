"""The home's own token, which grants full access. For API tokens see ``api.access.accounts``."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path

from aioflow.errors import SettingsError

__all__ = ("Token",)

_TOKEN_BYTES = 32
_DIFFERENT = 8
"""Minimum number of distinct characters, so that tokens that are easy to guess are rejected."""

_WORD = re.compile(r"[A-Za-z0-9_-]{32,512}")


class Token:
    """The token of a home. Tokens of requests are compared with it in constant time.

    Attributes:
        secret: The token itself, for the banner.
        cookie_name: The name of the session cookie. It differs between daemons, because browsers
            share cookies between ports.
    """

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.cookie_name = f"aioflow_{_digest('name', secret)[:12]}"

    @classmethod
    def open(cls, path: Path) -> Token:
        """Read the token file, or create it with a new token if it is missing.

        Raises:
            SettingsError: If it cannot be read or created, is accessible to others, or contains no
                token.
        """
        try:
            text = _read(path)
            if text is None:
                _create(path)
                text = _read(path)
        except OSError as exc:
            raise SettingsError(f"the token file {path} cannot be used: {exc.strerror}") from exc
        if text is None or not _WORD.fullmatch(text) or len(set(text)) < _DIFFERENT:
            raise SettingsError(f"{path} holds no token; remove it, and a new one is made")
        return cls(text)

    def is_token(self, given: str) -> bool:
        """Return whether this is the token."""
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self.secret.encode())


def _digest(purpose: str, secret: str) -> str:
    return hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def _read(path: Path) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
            raise SettingsError(f"others can read {path}; run: chmod 600 {path}")
        return file.read(1_024).strip()


def _create(path: Path) -> None:
    """Create the file, under a temporary name first, so that a partial token is never read."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return  # another process was first, and its token is used
    finally:
        temporary.unlink()
