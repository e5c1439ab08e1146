"""The daemon that holds a database, as others see it."""

from __future__ import annotations

import msgspec

from aioflow.model.timestamps import Timestamp

__all__ = ("Holder",)


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon that claimed a database and has not left it.

    Attributes:
        home: The identity of its home.
        seen_at: When it committed last, or said that it lives.
    """

    home: str
    epoch: int
    commit_no: int
    seen_at: Timestamp | None
    host: str | None
    pid: int | None

    @property
    def name(self) -> str:
        """Where to find it."""
        return f"process {self.pid} on {self.host}"
