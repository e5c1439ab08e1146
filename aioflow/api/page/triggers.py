"""Queries of the triggers page: waits by kind and age, hosts, and tasks woken by events.

Events are counted by kind since the daemon was started.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import anyio

from aioflow.api.page.schemas import AgeView, HostView, KindView, TriggersView, WokenView
from aioflow.api.queries import RunReader
from aioflow.api.schemas import TriggerView, iso
from aioflow.api.triggers import (
    KINDS,
    TriggerReader,
    count_dag_triggers,
    kind_of,
    list_dag_triggers,
    page_of_dag_triggers,
    stored_state,
)
from aioflow.clock import Clock
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import Fire
from aioflow.errors import StoreSlow, UnknownEvent
from aioflow.executors.host_inspection import HostLoad
from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.rows import RunRow, TriggerRow
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import ASSETS
from aioflow.processes.memory import resident_bytes
from aioflow.store.ui_protocol import AGE_SECONDS, WaitCount

__all__ = (
    "EVENT_CLASS",
    "TriggerStats",
    "WaitingTriggers",
)

EVENT_CLASS = "aioflow_triggers.events:EventTrigger"
"""The trigger that waits for named events. The key of each fire is the number of an event."""

_CACHED_EVENTS = 10_000
_CACHED_WOKEN = 100
_RECENT_SECONDS = 60


class TriggerStats:
    """Counts the events that triggers fired, by kind of trigger (see ``kind_of``).

    Attributes:
        counts: Number of events since the daemon was started, by kind of trigger.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.counts: Counter[str] = Counter()
        self._recent: deque[tuple[int, Counter[str]]] = deque()
        self._woken: OrderedDict[int, list[tuple[RunNo, TaskNo]]] = OrderedDict()

    def committed(self, fires: Sequence[Fire]) -> None:
        """Count the events from triggers that a durable engine turn has accepted."""
        if not fires:
            return
        for fire in fires:
            if fire.class_path == EVENT_CLASS and fire.run_no is not None:
                assert fire.task_no is not None  # noqa: S101 - a fire with a run has a task
                self._note(fire.key, fire.run_no, fire.task_no)
        self._count(Counter(fire.class_path for fire in fires))

    def _count(self, paths: Counter[str]) -> None:
        second = self._clock.monotonic_us() // 1_000_000
        if not self._recent or self._recent[-1][0] != second:
            self._recent.append((second, Counter()))
            self._drop_old(second)
        for path, count in paths.items():
            kind = kind_of(path)
            self.counts[kind] += count
            self._recent[-1][1][kind] += count

    def _drop_old(self, second: int) -> None:
        while self._recent and self._recent[0][0] <= second - _RECENT_SECONDS:
            self._recent.popleft()

    def _note(self, key: str | None, run_no: RunNo, task_no: TaskNo) -> None:
        if key is None or not key.isdecimal():
            return
        woken = self._woken.setdefault(int(key), [])
        if len(woken) < _CACHED_WOKEN:
            woken.append((run_no, task_no))
        if len(self._woken) > _CACHED_EVENTS:
            self._woken.popitem(last=False)

    def per_second(self) -> dict[str, float]:
        """Return the average number of events per second over the last minute, by kind."""
        self._drop_old(self._clock.monotonic_us() // 1_000_000)
        total: Counter[str] = Counter()
        for _, counts in self._recent:
            total.update(counts)
        return {kind: count / _RECENT_SECONDS for kind, count in total.items()}

    def woken_by(self, event_no: int) -> list[tuple[RunNo, TaskNo]]:
        """Return the tasks that a named event has resumed, as far as this is known."""
        return list(self._woken.get(event_no, ()))


_FRESH_US = 2_000_000
_SEARCH_SECONDS = 2.0
_NUMBERS = 10_000
"""Maximum number of triggers whose state is looked up in memory at a time."""
_STARTERS = (EVENT_CLASS, ASSETS)
"""Classes of DAG triggers that receive named events. They identify events by number."""

_STARTED = 100

Kinds: TypeAlias = list[KindView]
_Shared: TypeAlias = defaultdict[str, tuple[int, Timestamp | None]]


class _Named(NamedTuple):
    """A selection of triggers: by class paths or their prefixes, and by DAG."""

    paths: Sequence[str]
    prefixes: Sequence[str]
    dag_id: str | None


class WaitingTriggers:
    """Reads waiting triggers.

    Args:
        memory: The memory of a running engine.
        hosts: Returns the load of the processes that host triggers.
    """

    def __init__(
        self,
        reader: RunReader,
        clock: Clock,
        fires: TriggerStats,
        trigger_reader: TriggerReader,
        *,
        memory: Callable[[], Memory | None],
        hosts: Callable[[], Sequence[HostLoad]],
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._fires = fires
        self._memory = memory
        self._hosts = hosts
        self._trigger_reader = trigger_reader
        self._summed: tuple[int, TriggersView] | None = None
        self._counted: tuple[int, list[WaitCount]] | None = None

    # ── the list ────────────────────────────────────────────────────────────────────────

    async def list(
        self,
        *,
        kind: str | None,
        state: str | None,
        dag_id: str | None,
        limit: int,
        after: TriggerNo,
    ) -> list[TriggerView]:
        """Return waiting triggers that match, sorted by number; see ``Api.list_triggers``.

        Raises:
            RequestError: If there is no such state.
            StoreSlow: If finding triggers in that state takes too long.
        """
        if state is not None:
            stored_state(state)
        memory = self._memory()
        paths, prefixes = _classes(kind, await self._counts() if kind is not None else [])

        def is_wanted(view: TriggerView) -> bool:
            return kind in {None, view.kind} and state in {None, view.state}

        if dag_id is None:
            dag_triggers = await page_of_dag_triggers(
                self._reader, memory, after=after, limit=limit, is_wanted=is_wanted
            )
        else:
            rows = await self._reader.store.find_dag_triggers([dag_id])
            own = [row for row in rows.values() if row.trigger_no > after]
            views = await list_dag_triggers(self._reader, memory, own)
            dag_triggers = [view for view in views if is_wanted(view)]
        waiting: Sequence[TriggerView] = ()
        if kind is None or paths or prefixes:
            named = _Named(paths, prefixes, dag_id)
            waiting = await self._page(named, state, limit=limit, after=after)
        # A full page ends with its last row, so later triggers belong to the next page.
        last = waiting[-1].trigger_id if len(waiting) == limit else sys.maxsize
        known = [view for view in dag_triggers if view.trigger_id <= last]
        return sorted((*waiting, *known), key=lambda view: view.trigger_id)[:limit]

    async def _page(
        self, named: _Named, state: str | None, *, limit: int, after: TriggerNo
    ) -> Sequence[TriggerView]:
        """Return the next selected triggers in this state; fewer than ``limit`` only at the end.

        Raises:
            StoreSlow: If finding them takes too long.
        """
        found: list[TriggerView] = []
        try:
            with anyio.fail_after(_SEARCH_SECONDS):
                while True:
                    rows, cursor = await self._rows(named, state, limit=limit, after=after)
                    found += await self._trigger_reader.views(rows, state=state)
                    if cursor is None or len(found) >= limit:
                        return found[:limit]
                    after = cursor
        except TimeoutError as exc:
            raise StoreSlow(_SEARCH_SECONDS) from exc

    async def _rows(
        self, named: _Named, state: str | None, *, limit: int, after: TriggerNo
    ) -> tuple[Sequence[TriggerRow], TriggerNo | None]:
        """Return the next rows, and the last number that was searched or ``None`` at the end."""
        store, wanted = self._reader.store, named._asdict()
        if state is None:
            rows = await store.browse_triggers(**wanted, after=after, limit=limit)
            return rows, rows[-1].trigger_no if len(rows) == limit else None
        stored = stored_state(state)
        numbers = await store.browse_trigger_nos(
            **wanted, state=stored, after=after, limit=_NUMBERS
        )
        cursor = numbers[-1] if len(numbers) == _NUMBERS else None
        matching = await self._trigger_reader.numbers_in_state(numbers, stored, state)
        if len(matching) > limit:
            matching, cursor = matching[:limit], matching[limit - 1]
        return await store.find_triggers(matching), cursor

    # ── the summary ─────────────────────────────────────────────────────────────────────

    async def summary(self) -> TriggersView:
        """Return the triggers by kind and age, and their hosts. Cached for a second."""
        now = self._clock.monotonic_us()
        if self._summed is None or now - self._summed[0] > _FRESH_US // 2:
            self._summed = now, await self._summary()
        return self._summed[1]

    async def _summary(self) -> TriggersView:
        counted = await self._counts()
        hosts, memory = self._hosts(), self._memory()
        dag_triggers = (
            Counter() if memory is None else await count_dag_triggers(self._reader, memory)
        )
        known = [] if memory is None else memory.loop_blockers.all()
        return TriggersView(
            kinds=self._kinds(counted, dag_triggers, _watches(hosts)),
            hosts=[_host(host) for host in hosts],
            capacity=max((host.capacity for host in hosts), default=0),
            waiting_for_capacity=sum(host.waiting for host in hosts),
            quarantined=sorted(one.name for one in known if one.is_quarantined),
            ages=_ages(counted),
        )

    def _kinds(
        self, counted: Sequence[WaitCount], dag_triggers: Counter[str], watches: _Shared | None
    ) -> Kinds:
        counts = Counter(dag_triggers)
        oldest: dict[str, Timestamp] = {}
        for path, since, ages in counted:
            kind = kind_of(path)
            counts[kind] += sum(ages)
            oldest[kind] = min(since + self._shift, oldest.get(kind, since + self._shift))
        rates, fires = self._fires.per_second(), self._fires.counts
        return [
            KindView(
                kind=kind,
                count=counts[kind],
                oldest_since=iso(oldest.get(kind)),
                shared_watches=None if watches is None else watches[kind][0],
                next_check_at=None if watches is None else iso(watches[kind][1]),
                fires=fires[kind],
                fires_per_second=round(rates.get(kind, 0.0), 3),
            )
            for kind in sorted(counts.keys() | fires.keys())
        ]

    async def _counts(self) -> Sequence[WaitCount]:
        """Count all waiting triggers. Cached for two seconds, because it reads every row."""
        now = self._clock.monotonic_us()
        if self._counted is None or now - self._counted[0] > _FRESH_US:
            instant = self._clock.now() - self._shift
            self._counted = now, await self._reader.store.count_waits(instant)
        return self._counted[1]

    @property
    def _shift(self) -> int:
        """Offset of the wall clock from the steady clock, whose times are in the trigger rows."""
        memory = self._memory()
        return 0 if memory is None else memory.shift

    # ── events ──────────────────────────────────────────────────────────────────────────

    async def woken_by(self, event_no: int) -> Sequence[WokenView]:
        """Return the tasks that an event has resumed and the runs it has started, as far as known.

        Raises:
            UnknownEvent: If there is no such event.
        """
        store = self._reader.store
        if await store.find_named_event_no(event_no) is None:
            raise UnknownEvent(event_no)
        woken = self._fires.woken_by(event_no)
        started = await store.list_started_by(_STARTERS, str(event_no), limit=_STARTED)
        runs = await store.find_runs_by_no([run_no for run_no, _ in woken] + started)
        found = []
        for run_no, task_no in woken:
            run = runs.get(run_no)
            if run is None:
                continue
            layout = await self._reader.layout(run)
            location = layout.find(task_no)
            if location is not None:
                task_id = layout.spec.tasks[location.task_index].task_id
                found.append(_woken(run, task_id, location.map_index))
        found += [_woken(runs[run_no], None, -1) for run_no in started if run_no in runs]
        return found


def _classes(kind: str | None, counted: Sequence[WaitCount]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the class paths of a kind, or for a kind of the catalogue, their prefixes."""
    if kind is None:
        return (), ()
    prefixes = [f"{module}:" for module, name in KINDS.items() if name == kind]
    if prefixes:
        return (), prefixes
    return [path for path, _, _ in counted if kind_of(path) == kind], ()


def _woken(run: RunRow, task_id: str | None, map_index: int) -> WokenView:
    return WokenView(run_id=run.run_id, task_id=task_id, map_index=map_index, dag_id=run.dag_id)


def _host(host: HostLoad) -> HostView:
    return HostView(
        name=host.name,
        state="down" if host.pid is None else "up",
        triggers=host.triggers,
        loop_lag_seconds=host.lag_seconds,
        rss_bytes=resident_bytes(host.pid) or None,
    )


def _watches(hosts: Sequence[HostLoad]) -> _Shared | None:
    """Return the number of shared watches and the time of their next check, by kind."""
    told = [host.watches for host in hosts if host.watches is not None]
    if not told:
        return None
    found: _Shared = defaultdict(lambda: (0, None))
    for class_path, count, at in chain.from_iterable(told):
        kind = kind_of(class_path)
        known, first = found[kind]
        instants = [instant for instant in (first, at) if instant is not None]
        found[kind] = known + count, min(instants, default=None)
    return found


def _ages(counted: Sequence[WaitCount]) -> list[AgeView]:
    bounds = (*AGE_SECONDS, None)
    return [
        AgeView(upto_seconds=bound, count=sum(ages[at] for _, _, ages in counted))
        for at, bound in enumerate(bounds)
    ]
