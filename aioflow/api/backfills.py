"""Starting, previewing, following and cancelling backfills."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

import msgspec

from aioflow._threads import in_thread
from aioflow.api.queries import RunReader
from aioflow.api.schemas import instant, iso, plain_fields
from aioflow.api.validation import checked_idempotency_key, packed_conf
from aioflow.author.params import type_misfit
from aioflow.clock import Clock
from aioflow.core.runs.backfills import check_order, fire_times_of, is_wanted, proposed
from aioflow.core.scheduling.timetable import first_instant
from aioflow.errors import BadConf, RequestError, UnknownBackfill
from aioflow.model.dag import BackfillRow, DagSpec, Reprocess
from aioflow.model.rows import DagRow, RunRow
from aioflow.model.states import RunState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.requests import CancelBackfill, Request, StartBackfill

__all__ = ("BackfillView", "Backfills", "FireTimeView")

PREVIEWED = 1_000
"""Maximum number of fire times that a preview lists."""


_LEFT = 0.99
"""Maximum progress of a running backfill, so that at least 1 % is shown as remaining."""


class BackfillView(msgspec.Struct, frozen=True, kw_only=True):
    """A backfill.

    Attributes:
        first, last: Its range, both inclusive; it does not extend into the future.
        state: ``running``, ``done``, ``cancelled``, or ``failed`` with its ``failure``.
        next_fire_time: The next fire time; ``None`` after the last one.
        made: Number of runs created.
        skipped: Number of fire times that already had a run, which was left unchanged.
        progress: Completed share of its range, from 0 to 1, not counting unfinished runs; 1 only
            if nothing is left.
        runs: Number of its runs by state.
    """

    backfill_id: int
    dag_id: str
    first: str
    last: str
    reprocess: str
    max_active: int
    reverse: bool
    conf: Any
    state: str
    next_fire_time: str | None
    made: int
    skipped: int
    progress: float
    runs: dict[str, int]
    created_at: str
    ended_at: str | None
    failure: str | None


class FireTimeView(msgspec.Struct, frozen=True, kw_only=True):
    """The action of a backfill for one fire time.

    Attributes:
        run_id: The newest run of the fire time, if any.
        action: ``run`` to create a run, or ``skip`` to leave the existing run unchanged.
    """

    logical_date: str
    run_id: str | None
    state: str | None
    action: str


class Backfills:
    """Starts and cancels backfills through the engine, and reads their progress.

    Args:
        send: Sends a request to the engine.
    """

    def __init__(
        self, reader: RunReader, clock: Clock, send: Callable[[Request], Awaitable[object]]
    ) -> None:
        self._reader = reader
        self._store = reader.store
        self._clock = clock
        self._send = send

    async def start(
        self,
        dag_id: str,
        *,
        first: str,
        last: str,
        reprocess: Reprocess = "none",
        max_active: int = 0,
        reverse: bool = False,
        conf: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> tuple[BackfillView, bool]:
        """Start a backfill. Return the backfill, and whether this request has created it.

        Args:
            first: An ISO 8601 timestamp, or a day, which starts at midnight in the DAG's timezone.
            last: In the same form. If it is a day, the whole day is included.
            max_active: Maximum number of the backfill's runs that are live at once; 0 for the DAG's
                limit.
            key: The idempotency key. If an earlier request had it, return that request's backfill,
                even if it has ended.

        Raises:
            RequestError: If there is no such DAG, the range has no fire time to fill, or another
                backfill of the DAG is running.
        """
        begins, ends = await self._range(dag_id, first, last)
        await self._check_conf(dag_id, conf, key)
        wanted = StartBackfill(
            dag_id=dag_id,
            first=begins,
            last=ends,
            reprocess=reprocess,
            max_active=max_active,
            is_reverse=reverse,
            conf=packed_conf(conf),
            key=checked_idempotency_key(key),
        )
        number, created = cast("tuple[int, bool]", await self._send(wanted))
        return await self.show(number), created

    async def _check_conf(
        self, dag_id: str, conf: Mapping[str, Any] | None, key: str | None
    ) -> None:
        """Raise for an invalid conf, unless a backfill was already started with this key."""
        if not conf:
            return
        _, spec = await self._dag(dag_id)
        wrong = type_misfit(spec.types, conf)
        if wrong is None:
            return
        if key is None or await self._store.find_keyed_backfill(dag_id, key) is None:
            raise BadConf(wrong)

    async def preview(
        self,
        dag_id: str,
        *,
        first: str,
        last: str,
        reprocess: Reprocess = "none",
        reverse: bool = False,
    ) -> Sequence[FireTimeView]:
        """Preview a backfill: return its actions for the first fire times of a range."""
        begins, ends = _moment(first, "from"), _moment(last, "to")
        dag, spec = await self._dag(dag_id)
        request = StartBackfill(
            dag_id=dag_id,
            first=_start(begins, spec.timezone),
            last=_end(ends, spec.timezone),
            reprocess=reprocess,
            is_reverse=reverse,
        )
        row = proposed(request, dag, spec, self._clock.now())
        check_order(row, spec)
        fire_times = await in_thread(fire_times_of, row, spec, PREVIEWED)
        found = {
            run.logical_date: run for run in await self._store.find_runs_at(dag_id, fire_times)
        }
        return [
            _fire_time_view(fire_time, found.get(fire_time), reprocess) for fire_time in fire_times
        ]

    async def show(self, backfill_id: int) -> BackfillView:
        """Return one backfill.

        Raises:
            UnknownBackfill: If there is no such backfill.
        """
        found = await self._store.find_backfills([backfill_id])
        if not found:
            raise UnknownBackfill(backfill_id)
        return _view(*found[0])

    async def list(
        self, *, dag_id: str | None = None, before: int | None = None, limit: int = 100
    ) -> Sequence[BackfillView]:
        """Return backfills, the newest first; ``before`` is the last id of the previous page."""
        found = await self._store.list_backfills(dag_id=dag_id, before=before, limit=limit)
        return [_view(row, counts) for row, counts in found]

    async def cancel(self, backfill_id: int) -> BackfillView:
        """Stop a backfill and cancel its unfinished runs. An ended backfill is left unchanged."""
        if (await self.show(backfill_id)).state == "running":
            with contextlib.suppress(UnknownBackfill):  # it ended meanwhile
                await self._send(CancelBackfill(backfill_no=backfill_id))
        return await self.show(backfill_id)

    async def _range(self, dag_id: str, first: str, last: str) -> tuple[Timestamp, Timestamp]:
        """Return both ends of a range. The DAG is read only if its timezone matters."""
        begins, ends = _moment(first, "from"), _moment(last, "to")
        timezone = "UTC"
        if isinstance(begins, date) or isinstance(ends, date):
            _, spec = await self._dag(dag_id)
            timezone = spec.timezone
        return _start(begins, timezone), _end(ends, timezone)

    async def _dag(self, dag_id: str) -> tuple[DagRow, DagSpec]:
        row = await self._reader.dag_row(dag_id)
        return row, await self._reader.spec(row.version, dag_id)


def _moment(text: str, what: str) -> date | Timestamp:
    """Return the day or the timestamp that a text represents."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return instant(text, what)
    if day == date.max:
        raise RequestError(f"{what} {text!r} is out of range: years 1 to 9999")
    return day


def _start(moment: date | Timestamp, timezone: str) -> Timestamp:
    """Return the start of a day in a timezone. A timestamp is returned unchanged."""
    if not isinstance(moment, date):
        return moment
    try:
        begins = first_instant(datetime.combine(moment, time(0)), ZoneInfo(timezone))
    except OverflowError:
        raise RequestError(f"{moment} is out of range: years 1 to 9999") from None
    return instant(begins.isoformat(), "a day")


def _end(moment: date | Timestamp, timezone: str) -> Timestamp:
    """Return the last microsecond of a day. A timestamp is returned unchanged."""
    if not isinstance(moment, date):
        return moment
    return _start(moment + timedelta(days=1), timezone) - 1


def _view(row: BackfillRow, counts: Mapping[RunState, int]) -> BackfillView:
    return BackfillView(
        backfill_id=row.backfill_no,
        dag_id=row.dag_id,
        first=iso(row.first) or "",
        last=iso(row.last) or "",
        reprocess=row.reprocess,
        max_active=row.max_active,
        reverse=row.is_reverse,
        conf=None if row.conf is None else plain_fields(row.conf),
        state=row.state,
        next_fire_time=iso(row.next_at),
        made=row.made,
        skipped=row.skipped,
        progress=_progress(row, counts),
        runs={state.label: count for state, count in counts.items()},
        created_at=iso(row.created_at) or "",
        ended_at=iso(row.ended_at),
        failure=row.failure,
    )


def _fire_time_view(fire_time: Timestamp, run: RunRow | None, reprocess: Reprocess) -> FireTimeView:
    return FireTimeView(
        logical_date=iso(fire_time) or "",
        run_id=None if run is None else run.run_id,
        state=None if run is None else run.state.label,
        action="run" if is_wanted(run, reprocess) else "skip",
    )


def _progress(row: BackfillRow, counts: Mapping[RunState, int]) -> float:
    """Return the share of the range that is covered, minus the share of its unfinished runs."""
    if row.state == "done":
        return 1.0
    span = max(1, row.last - row.first)
    begins, ends = (row.next_at, row.last) if row.is_reverse else (row.first, row.next_at)
    covered = 1.0 if begins is None or ends is None else (ends - begins) / span
    live = sum(count for state, count in counts.items() if state.is_live)
    share = round(covered * (1.0 - live / max(row.made + row.skipped, live, 1)), 4)
    return min(share, _LEFT) if row.state == "running" else share
