"""A parsed DAG file: its DAGs and versions first, then the triggers that they move."""

from __future__ import annotations

from aioflow.core.runs import versions
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import migration
from aioflow.protocol.inputs import FileParsed

__all__ = ("parsed",)


def parsed(entry: FileParsed, tx: Transaction) -> None:
    """Apply the report of a file that has a good version."""
    versions.file_parsed(entry, tx, tx.slots.pools)
    migration.file_parsed(entry, tx)
