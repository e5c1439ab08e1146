"""What a database did to us."""

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
    """The database failed us."""

    code = "store"


class StoreUnavailable(StoreError):
    """The database cannot be reached, or stays locked.

    Nothing was written, or it cannot be known whether it was: the same batch may be
    committed again, the fence tells the two apart.

    Attributes:
        may_pass: Whether it may be reached later without a change to its settings or ours.
    """

    code = "store.unavailable"

    may_pass = True


class SyncFailed(StoreError):
    """The disk failed to sync the database: what was written since the last sync may be lost.

    The system shows those bytes until the machine stops, and never syncs them again. So the
    process ends; the next one writes them again.
    """

    code = "store.sync"


class StoreSlow(StoreError):
    """A question takes too long, and was given up.

    Attributes:
        seconds: After which it was.
    """

    code = "store.slow"

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the database had not answered after {seconds:g} s; narrow the question: "
            "name a DAG or a run, or ask for a smaller page"
        )
        self.seconds = seconds


class BatchRefused(StoreError):
    """The database refused a batch for its content. Nothing of it was written."""

    code = "store.refused"


class Fenced(StoreError):
    """Another node declared this one dead and took its work over."""

    code = "store.fenced"


class StrangeDatabase(StoreError):
    """The database is not the one this daemon knows. Nothing is written to it."""

    code = "store.strange"


class SchemaMismatch(StrangeDatabase):
    """The schema is newer than this program, or half migrated."""

    code = "store.schema"


class ForeignDatabase(StrangeDatabase):
    """The file or database exists, but aioflow did not make it, or it is damaged."""

    code = "store.foreign"
