"""Actions on all runs that match a filter, in slices.

A request acts on one slice of the matching runs, from the newest on, and returns the cursor of the
next slice. So the work of one request is bounded, however many runs match, and the client knows the
progress. A run that an earlier request has acted on is not changed again, and a slice may be
repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import anyio
import msgspec

from aioflow.api.paging import number_after, page_of
from aioflow.api.run_filters import COUNTED_RUNS, RunQuery, as_text, run_filter
from aioflow.api.service import Api
from aioflow.errors import AioflowError, RequestError, UnknownRun
from aioflow.model.access import Actor, AuditEntry, audit_entry
from aioflow.model.rows import RunRow
from aioflow.model.run_filter import RunFilter
from aioflow.model.states import RunState

__all__ = ("SLICE_RUNS", "BulkAction", "BulkView", "act_on_slice", "preview")

SLICE_RUNS = 200
"""Maximum number of runs that a request acts on."""

_CONCURRENT_REQUESTS = 20
_ERRORS_SHOWN = 10

BulkAction: TypeAlias = Literal["cancel", "clear_failed", "mark_success", "mark_failed", "delete"]

_LIVE = frozenset(state for state in RunState if state.is_live)
_ACTS_ON: Mapping[BulkAction, frozenset[RunState]] = {
    "cancel": _LIVE,
    "clear_failed": frozenset({RunState.FAILED, RunState.PARTIAL, RunState.CANCELLED}),
    "mark_success": frozenset(RunState) - {RunState.SUCCESS},
    "mark_failed": frozenset(RunState) - {RunState.FAILED},
    "delete": frozenset(RunState) - _LIVE,
}
"""The states of runs that an action changes. Other matching runs are left as they are."""


class BulkErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """A run on which an action failed, and the reason."""

    run_id: str
    code: str
    detail: str


class BulkView(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an action, or its preview.

    Attributes:
        matching: Number of runs that match the filter; 0 unless it is a preview.
        states: Number of runs that the action changes, by state; in a preview of all slices.
        done: Number of runs that the action has changed.
        failed: Number of runs on which it failed; ``errors`` has the first ten of the slice.
        next: The cursor of the next slice; ``None`` after the last one.
        is_complete: Whether a preview has counted all runs, not only the newest.
    """

    action: str
    matching: int
    states: dict[str, int]
    done: int
    failed: int
    errors: list[BulkErrorView]
    next: str | None
    is_complete: bool


async def preview(api: Api, action: BulkAction, query: RunQuery) -> BulkView:
    """Count the runs that an action would change."""
    wanted = await run_filter(api, query)
    found = await api.store.count_matching_runs(wanted, limit=COUNTED_RUNS)
    states: Counter[str] = Counter()
    for one in found.counts:
        if one.state in _ACTS_ON[action]:
            states[one.state.label] += one.count
    matching = sum(one.count for one in found.counts)
    return BulkView(
        action=action,
        matching=matching,
        states=dict(states),
        done=0,
        failed=0,
        errors=[],
        next=None,
        is_complete=found.is_complete,
    )


async def act_on_slice(
    api: Api, action: BulkAction, query: RunQuery, *, key: str, cursor: str | None
) -> BulkView:
    """Act on the next runs that match a filter.

    Args:
        api: Acts for the caller. One audit entry for the slice names the caller and the runs.
        key: Identifies the action across all slices, so that a repeated slice clears nothing twice.
        cursor: ``next`` of the previous slice.
    """
    wanted = await run_filter(api, query)
    narrowed = _narrowed(wanted, action)
    if narrowed is None:
        return _acted(action, [], {}, None)
    name = f"bulk_{action}"
    before = number_after(name, cursor)
    found = await api.store.find_matching_runs(narrowed, limit=SLICE_RUNS + 1, before=before)
    page = page_of(name, found, SLICE_RUNS, lambda row: (row.run_no,))
    rows = page.items
    if api.actor is not None and rows:
        await api.note(_slice_entry(api.actor, action, query, rows))
    failed = await _act_on_each(rows, _single(api.by(None), action, key))
    return _acted(action, rows, failed, page.next)


def _slice_entry(
    actor: Actor, action: BulkAction, query: RunQuery, rows: Sequence[RunRow]
) -> AuditEntry:
    """Return the audit entry for a slice. It names all runs of the slice, at most ``SLICE_RUNS``.

    It is stored before the action, so that no run is changed without an entry.
    """
    entry = audit_entry(actor, f"runs.{action}", f"{len(rows)} runs of: {as_text(query)}")
    return msgspec.structs.replace(entry, after=" ".join(row.run_id for row in rows))


def _narrowed(wanted: RunFilter, action: BulkAction) -> RunFilter | None:
    """Return the filter for the runs that an action would change; ``None`` if there are none."""
    states = _ACTS_ON[action].intersection(wanted.states or RunState)
    return msgspec.structs.replace(wanted, states=tuple(sorted(states))) if states else None


def _single(api: Api, action: BulkAction, key: str) -> Callable[[str], Awaitable[object]]:
    """Return the function that acts on one run."""
    match action:
        case "cancel":
            return api.cancel
        case "clear_failed":
            return lambda run_id: api.clear(run_id, failed=True, key=f"bulk:{key}")
        case "mark_success":
            return lambda run_id: api.mark(run_id, "success")
        case "mark_failed":
            return lambda run_id: api.mark(run_id, "failed")
        case "delete":
            return api.delete_run


async def _act_on_each(
    rows: Sequence[RunRow], act: Callable[[str], Awaitable[object]]
) -> dict[str, AioflowError]:
    """Act on each run. Return the errors by run id. A run deleted meanwhile is not an error.

    Raises:
        AioflowError: If nothing can be done at present, for example without a database.
    """
    limiter = anyio.Semaphore(_CONCURRENT_REQUESTS)
    failed: dict[str, AioflowError] = {}

    async def one(run_id: str) -> None:
        async with limiter:
            try:
                await act(run_id)
            except UnknownRun:
                pass
            except AioflowError as exc:
                failed[run_id] = exc

    async with anyio.create_task_group() as group:
        for row in rows:
            group.start_soon(one, row.run_id)
    for exc in failed.values():
        if not isinstance(exc, RequestError):
            raise exc
    return failed


def _acted(
    action: BulkAction,
    rows: Sequence[RunRow],
    failed: dict[str, AioflowError],
    following: str | None,
) -> BulkView:
    states = Counter(row.state.label for row in rows)
    shown = [
        BulkErrorView(run_id=run_id, code=exc.code, detail=str(exc))
        for run_id, exc in list(failed.items())[:_ERRORS_SHOWN]
    ]
    return BulkView(
        action=action,
        matching=0,
        states=dict(states),
        done=len(rows) - len(failed),
        failed=len(failed),
        errors=shown,
        next=following,
        is_complete=True,
    )
