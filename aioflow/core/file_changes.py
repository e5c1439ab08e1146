"""Changes of DAG files that the catalog reports: versions first, then the triggers they move."""

from __future__ import annotations

from collections.abc import Mapping

from aioflow.core.runs import versions
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import migration
from aioflow.model.rows import PoolRow
from aioflow.protocol.inputs import FileBroken, FileDeleted, FileParsed

__all__ = ("take",)


def take(
    entry: FileParsed | FileBroken | FileDeleted, tx: Transaction, pools: Mapping[str, PoolRow]
) -> None:
    """Apply the report of a parsed, broken or deleted file."""
    match entry:
        case FileParsed():
            versions.file_parsed(entry, tx, pools)
            migration.file_parsed(entry, tx)
        case FileBroken():
            versions.file_broken(entry, tx)
        case FileDeleted():
            versions.file_gone(entry, tx)
