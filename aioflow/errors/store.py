"""Errors of the database."""

from __future__ import annotations

from aioflow.errors.root import AioflowError

__all__ = (
    "BatchRefused",
    "Fenced",
    "ForeignDatabase",
    "SchemaMismatch",
    "StoreError",
    "StoreSlow",
    "StoreUnavailable",
    "StrangeDatabase",
    "SyncFailed",
)


class StoreError(AioflowError):
    """A database operation failed."""

    code = "store"


class StoreUnavailable(StoreError):
    """The database cannot be reached, or stays locked.

    Either nothing was written, or the outcome is unknown. The same batch may be committed again:
    the fence detects a batch that was already written.

    Attributes:
        may_pass: Whether the database may become reachable without a change to its
            configuration or to aioflow's.
    """

    code = "store.unavailable"

    may_pass = True


class SyncFailed(StoreError):
    """Syncing the database to disk failed: data written since the last sync may be lost.

    The operating system may serve that data from memory until the machine stops, without writing
    it to disk. The process therefore exits, and the next one writes the data again.
    """

    code = "store.sync"


class StoreSlow(StoreError):
    """A query exceeded its time limit and was abandoned.

    Attributes:
        seconds: The time limit.
    """

    code = "store.slow"

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the database had not answered after {seconds:g} s; narrow the question: "
            "name a DAG or a run, or ask for a smaller page"
        )
        self.seconds = seconds


class BatchRefused(StoreError):
    """The database rejected the content of a batch. Nothing of the batch was written."""

    code = "store.refused"


class Fenced(StoreError):
    """Another node declared this one dead and took over its work."""

    code = "store.fenced"


class StrangeDatabase(StoreError):
    """The database is not the one this daemon expects. Nothing is written to it."""

    code = "store.strange"


class SchemaMismatch(StrangeDatabase):
    """The database schema is newer than this version of aioflow, or only partly migrated."""

    code = "store.schema"


class ForeignDatabase(StrangeDatabase):
    """The file or database exists, but was not created by aioflow, or is damaged."""

    code = "store.foreign"
