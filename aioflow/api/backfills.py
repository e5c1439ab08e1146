"""Backfills: starting one, or saying what it would do; following and cancelling it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

import msgspec

from aioflow._threads import in_thread
from aioflow.api.queries import RunReader
from aioflow.api.request_checks import checked_key, packed_conf
from aioflow.api.schemas import instant, iso, plain_fields
from aioflow.author.type_names import conf_misfit
from aioflow.clock import Clock
from aioflow.core.runs.backfills import is_wanted, proposed, refuse_order, slots_of
from aioflow.core.scheduling.timetable import first_instant
from aioflow.errors import BadConf, RequestError, UnknownBackfill
from aioflow.model.backfill import BackfillRow, Reprocess
from aioflow.model.dag import DagSpec
from aioflow.model.rows import DagRow, RunRow
from aioflow.model.states import RunState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.requests import CancelBackfill, Request, StartBackfill

__all__ = ("BackfillView", "Backfills", "SlotView")

PREVIEWED = 1_000
"""Slots that are listed of what a backfill would do."""


_LEFT = 0.99
"""The most that one has done of which something is left: a hundredth is the least that is shown."""


class BackfillView(msgspec.Struct, frozen=True, kw_only=True):
    """A backfill.

    Attributes:
        first, last: Its range, both inclusive; nothing of it lies in the future.
        state: ``running``, ``done``, ``cancelled``, or ``failed`` with its ``failure``.
        next_slot: The slot that comes next; ``None`` when all have been dealt with.
        made: How many runs it has made.
        skipped: How many slots had a run that was to stay.
        progress: How much of its range is done, runs that go on left out, from 0 to 1; 1 is
            for one of which nothing is left.
        runs: How many of its runs stand how.
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
    next_slot: str | None
    made: int
    skipped: int
    progress: float
    runs: dict[str, int]
    created_at: str
    ended_at: str | None
    failure: str | None


class SlotView(msgspec.Struct, frozen=True, kw_only=True):
    """What a backfill would do about one slot.

    Attributes:
        run_id: The newest run it has, if any.
        action: ``run``, or ``skip`` where that run stays the only one.
    """

    logical_date: str
    run_id: str | None
    state: str | None
    action: str


class Backfills:
    """Asks the engine for backfills, and reads how they fare.

    Args:
        ask: Asks the engine.
    """

    def __init__(
        self, reader: RunReader, clock: Clock, ask: Callable[[Request], Awaitable[object]]
    ) -> None:
        self._reader = reader
        self._store = reader.store
        self._clock = clock
        self._ask = ask

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
        """Begin a backfill. Returns it, and whether it is new: asked for twice it is one.

        Args:
            first: An ISO 8601 instant, or a day: then from when that begins in the DAG's zone.
            last: Likewise; a day counts whole.
            max_active: How many of its runs are live at once; 0 for the DAG's limit.
            key: Its idempotency key: asked again with that it is the one begun then, even if over.

        Raises:
            RequestError: If there is no such DAG, or nothing to fill, or another one goes on.
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
            key=checked_key(key),
        )
        number, created = cast("tuple[int, bool]", await self._ask(wanted))
        return await self.show(number), created

    async def _check_conf(
        self, dag_id: str, conf: Mapping[str, Any] | None, key: str | None
    ) -> None:
        """Refuse a conf that does not fit, unless its backfill was begun when it did."""
        if not conf:
            return
        _, spec = await self._dag(dag_id)
        wrong = conf_misfit(spec.types, conf)
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
    ) -> Sequence[SlotView]:
        """Say what it would do about the first slots of a range; nothing changes."""
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
        refuse_order(row, spec)
        slots = await in_thread(slots_of, row, spec, PREVIEWED)
        found = {run.logical_date: run for run in await self._store.find_runs_at(dag_id, slots)}
        return [_slot(slot, found.get(slot), reprocess) for slot in slots]

    async def show(self, backfill_id: int) -> BackfillView:
        """Return one.

        Raises:
            UnknownBackfill: If there is none of that number.
        """
        found = await self._store.find_backfills([backfill_id])
        if not found:
            raise UnknownBackfill(backfill_id)
        return _view(*found[0])

    async def list(
        self, *, dag_id: str | None = None, before: int | None = None, limit: int = 100
    ) -> Sequence[BackfillView]:
        """Return them, the newest first; ``before`` is the last id of the page before."""
        found = await self._store.list_backfills(dag_id=dag_id, before=before, limit=limit)
        return [_view(row, counts) for row, counts in found]

    async def cancel(self, backfill_id: int) -> BackfillView:
        """Have it make no more runs, and cancel those that go on; one that is over stays so."""
        if (await self.show(backfill_id)).state == "running":
            with contextlib.suppress(UnknownBackfill):  # it ended while we asked
                await self._ask(CancelBackfill(backfill_no=backfill_id))
        return await self.show(backfill_id)

    async def _range(self, dag_id: str, first: str, last: str) -> tuple[Timestamp, Timestamp]:
        """Return both ends of a range; the DAG is looked for only where its zone matters."""
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
    """Return the day or the instant that a text names."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return instant(text, what)
    if day == date.max:
        raise RequestError(f"{what} {text!r} is out of every calendar")
    return day


def _start(moment: date | Timestamp, timezone: str) -> Timestamp:
    """Return when a day begins in a zone, or the moment itself."""
    if not isinstance(moment, date):
        return moment
    try:
        begins = first_instant(datetime.combine(moment, time(0)), ZoneInfo(timezone))
    except OverflowError:
        raise RequestError(f"{moment} is out of every calendar") from None
    return instant(begins.isoformat(), "a day")


def _end(moment: date | Timestamp, timezone: str) -> Timestamp:
    """Return the last instant of a day, or the moment itself."""
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
        next_slot=iso(row.next_at),
        made=row.made,
        skipped=row.skipped,
        progress=_progress(row, counts),
        runs={state.label: count for state, count in counts.items()},
        created_at=iso(row.created_at) or "",
        ended_at=iso(row.ended_at),
        failure=row.failure,
    )


def _slot(slot: Timestamp, run: RunRow | None, reprocess: Reprocess) -> SlotView:
    return SlotView(
        logical_date=iso(slot) or "",
        run_id=None if run is None else run.run_id,
        state=None if run is None else run.state.label,
        action="run" if is_wanted(run, reprocess) else "skip",
    )


def _progress(row: BackfillRow, counts: Mapping[RunState, int]) -> float:
    """Return the share of the range that has been dealt with, less its runs that go on."""
    if row.state == "done":
        return 1.0
    span = max(1, row.last - row.first)
    begins, ends = (row.next_at, row.last) if row.is_reverse else (row.first, row.next_at)
    covered = 1.0 if begins is None or ends is None else (ends - begins) / span
    live = sum(count for state, count in counts.items() if state.is_live)
    share = round(covered * (1.0 - live / max(row.made + row.skipped, live, 1)), 4)
    return min(share, _LEFT) if row.state == "running" else share
