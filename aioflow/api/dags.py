"""The DAGs and their files: read once, then updated by each commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aioflow.api.page_schemas import ImportErrorView
from aioflow.api.schemas import DagView, iso
from aioflow.model.batch import Batch
from aioflow.model.rows import DagFileRow, DagRow
from aioflow.store import Store

__all__ = ("GONE", "Catalogue", "KnownDags", "broken_view", "import_error", "import_errors")


class KnownDags(NamedTuple):
    """DAGs and files by name. Read-only."""

    dags: Mapping[str, DagRow]
    files: Mapping[str, DagFileRow]


class Catalogue:
    """Rows of DAGs and their files as of the last commit.

    Args:
        follows: Whether ``committed`` is called for each batch; otherwise all rows are read each
            time.
    """

    def __init__(self, store: Store, *, follows: bool) -> None:
        self._store = store
        self._follows = follows
        self._dags: dict[str, DagRow] = {}
        self._files: dict[str, DagFileRow] = {}
        self._missed: list[Batch] | None = None
        self._is_read = False
        self._order: list[str] | None = None

    async def known(self) -> KnownDags:
        """Return all DAGs and files."""
        if not self._is_read:
            dags, files = await self._read()
            if not self._follows:
                return KnownDags(dags, files)
        return KnownDags(self._dags, self._files)

    async def names(self) -> list[str]:
        """Return the sorted ids of all DAGs that a file defines."""
        dags, _ = await self.known()
        if not self._follows:
            return _ordered(dags.values())
        if self._order is None:
            self._order = _ordered(dags.values())
        return self._order

    def committed(self, batch: Batch) -> None:
        """Apply the changes that a batch makes to DAGs and files."""
        if not (batch.dags or batch.dag_files or batch.gone_dags or batch.gone_files):
            return
        if self._is_read:
            self._take(batch)
        elif self._missed is not None:
            self._missed.append(batch)

    async def _read(self) -> tuple[dict[str, DagRow], dict[str, DagFileRow]]:
        mine = self._missed = []
        dags = {row.dag_id: row for row in await self._store.list_dags()}
        files = {row.file: row for row in await self._store.list_dag_files()}
        if not self._follows or self._is_read or self._missed is not mine:
            return dags, files  # another reader has finished, or started later and will set them
        self._dags, self._files = dags, files
        self._is_read, self._missed = True, None
        for batch in mine:  # the rows read may be older than these batches, never newer
            self._take(batch)
        return dags, files

    def _take(self, batch: Batch) -> None:
        before = self._dags
        if any(_is_other(before.get(row.dag_id), row) for row in batch.dags) or batch.gone_dags:
            self._order = None
        self._dags.update((row.dag_id, row) for row in batch.dags)
        self._files.update((row.file, row) for row in batch.dag_files)
        for dag_id in batch.gone_dags:
            self._dags.pop(dag_id, None)
        for file in batch.gone_files:
            self._files.pop(file, None)


def _is_other(before: DagRow | None, row: DagRow) -> bool:
    return before is None or before.gone != row.gone


def _ordered(dags: Iterable[DagRow]) -> list[str]:
    return sorted(row.dag_id for row in dags if not row.gone)


GONE = "gone: no file defines it any more; its runs go on"
"""Error text of a DAG whose file was deleted."""


def import_errors(known: KnownDags) -> list[ImportErrorView]:
    """Return the files that cannot be imported, by name."""
    return [
        ImportErrorView(
            file=name,
            reason=row.reason,
            message=row.message or "",
            at=iso(row.parsed_at),
            last_good_version=row.version,
        )
        for name, row in sorted(known.files.items())
        if row.reason is not None
    ]


def import_error(file: DagFileRow | None) -> str | None:
    """Return why a file cannot be imported; ``None`` if it can."""
    if file is None or file.reason is None:
        return None
    return f"{file.reason}: {file.message}" if file.message else file.reason


def broken_view(file: DagFileRow) -> DagView:
    """Return a file that defines no DAG as an entry of the DAG list."""
    return DagView(
        dag_id=None,
        file=file.file,
        version=None,
        paused=False,
        schedule=None,
        timezone=None,
        next_run_at=None,
        import_error=import_error(file),
    )
