"""Deleting an ended run: it is named as deleted at once, and its rows go a slice at a time."""

from __future__ import annotations

from aioflow.core import past
from aioflow.core.draft import Draft
from aioflow.core.line import order_of
from aioflow.errors import RequestError, UnknownRun
from aioflow.requests import DeleteRun, EraseRows
from aioflow.rows import DeletionRow

__all__ = ("delete", "erase")


def delete(request: DeleteRun, draft: Draft) -> None:
    """Have nobody see a run any more.

    Raises:
        RequestError: If there is none of that id, or it goes on.
    """
    rows = draft.memory.recalled_runs.get(request.run_id)
    is_live = draft.memory.find_run(request.run_id) is not None
    if is_live or (rows is not None and rows.run.ended_at is None):
        raise RequestError(f"run {request.run_id!r} goes on; cancel it first, then delete it")
    if rows is None:
        raise UnknownRun(request.run_id)
    draft.memory.touch(request.run_id)
    order = order_of(rows.run)
    if order is not None:
        past.forget(rows.run.dag_id, order, draft)
    draft.batch.new_deletions.append(DeletionRow(run_no=rows.run.run_no, at=draft.now))


def erase(request: EraseRows, draft: Draft) -> None:
    """Delete some of the rows that are left of a run.

    Raises:
        RequestError: If it goes on.
    """
    if request.run_no in draft.memory.runs:
        raise RequestError(f"run {request.run_no} goes on")
    draft.batch.erased.setdefault(request.table, []).extend(request.keys)
