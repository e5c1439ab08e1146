"""The identity of a home, which is unique and shows which databases belong to it.

It is a file in the home, created at the first start. The databases of the home store it, too.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aioflow.errors import HomeUnusable

__all__ = ("draw_identity", "find_identity", "identity_file", "keep_identity", "own_identity")


def identity_file(home: Path) -> Path:
    """Return the path of the file with the identity of a home."""
    return home / "identity"


def find_identity(home: Path) -> str | None:
    """Return the identity of a home; ``None`` if it has none yet.

    Raises:
        HomeUnusable: If it cannot be read.
    """
    file = identity_file(home)
    with _reported(file):
        try:
            return file.read_text(encoding="ascii").strip() or None
        except FileNotFoundError:
            return None


def keep_identity(home: Path, identity: str) -> None:
    """Set the identity of a home, atomically.

    Raises:
        HomeUnusable: If it cannot be written.
    """
    file = identity_file(home)
    new = file.with_name(f"{file.name}.new")
    with _reported(file):
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as text:
            text.write(f"{identity}\n")
        new.replace(file)


def draw_identity() -> str:
    """Return a new unique identity."""
    return secrets.token_hex(16)


def own_identity(home: Path) -> str:
    """Return the identity of a home. Create and store it if it has none yet.

    Raises:
        HomeUnusable: If it cannot be read or written.
    """
    identity = find_identity(home)
    if identity is None:
        identity = draw_identity()
        keep_identity(home, identity)
    return identity


@contextmanager
def _reported(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeError) as exc:
        reason = getattr(exc, "strerror", None) or type(exc).__name__
        raise HomeUnusable(str(file), reason, "the file {} cannot be used") from exc
