"""The exception for a violated invariant."""

from __future__ import annotations

__all__ = ("Broken",)


class Broken(Exception):
    """An invariant is violated."""

    def __init__(self, invariant: str, detail: str, cause: BaseException | None = None) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.__cause__ = cause
