"""The daemon that holds a database, as other daemons see it."""

from __future__ import annotations

import msgspec

from aioflow.model.timestamps import Timestamp

__all__ = ("Owner",)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon that claimed a database and has not shut down cleanly.

    Attributes:
        home: The identity of its home.
        seen_at: Time of its last commit or heartbeat.
    """

    home: str
    epoch: int
    commit_no: int
    seen_at: Timestamp | None
    host: str | None
    pid: int | None

    @property
    def name(self) -> str:
        """Its process id and host name."""
        return f"process {self.pid} on {self.host}"
