"""What is raised when something does not hold that must."""

from __future__ import annotations

__all__ = ("Broken",)


class Broken(Exception):
    """Something that must hold does not."""

    def __init__(self, invariant: str, detail: str, cause: BaseException | None = None) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.__cause__ = cause
