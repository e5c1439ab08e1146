"""Assets: which tasks update them, which DAGs wait for them, and which updates are missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from aioflow.api.dags import KnownDags
from aioflow.api.declarations import Declared
from aioflow.api.paging import Page, decode_cursor, page_of
from aioflow.api.queries import RunReader
from aioflow.api.schedule_texts import condition_text
from aioflow.api.schemas import iso
from aioflow.core.state.dag_triggers import DagTrigger
from aioflow.core.state.memory import Memory
from aioflow.core.triggers.asset_conditions import missing_assets
from aioflow.model.ids import RunNo
from aioflow.model.rows import RunRow
from aioflow.model.triggers import ASSET

__all__ = ("AssetConsumerView", "AssetProducerView", "AssetUpdateView", "AssetView", "Assets")

_SHOWN = 100
"""Maximum number of producers, and of consumers, of an asset in a response."""


class AssetProducerView(msgspec.Struct, frozen=True, kw_only=True):
    """A task that updates an asset whenever it succeeds."""

    dag_id: str
    task_id: str


class AssetConsumerView(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG whose schedule names an asset.

    Attributes:
        condition: Its schedule as an expression.
        received: Number of updates that the DAG holds, by asset.
        missing: Assets whose updates it still needs. Any one of them may suffice: see
            ``condition``.
        run_id: The run that its schedule started last.
    """

    dag_id: str
    paused: bool
    condition: str
    received: dict[str, int]
    missing: list[str]
    run_id: str | None


class AssetUpdateView(msgspec.Struct, frozen=True, kw_only=True):
    """An update of an asset; ``run_id`` is ``None`` if the update came from outside."""

    event_id: int
    at: str
    run_id: str | None


class AssetView(msgspec.Struct, frozen=True, kw_only=True):
    """An asset that a DAG names.

    Attributes:
        producers, consumers: At most 100 of each, by name.
        producer_count, consumer_count: How many there are.
        last_update: Its newest event that is still stored.
    """

    name: str
    producers: list[AssetProducerView]
    producer_count: int
    consumers: list[AssetConsumerView]
    consumer_count: int
    last_update: AssetUpdateView | None


class Assets:
    """Reads the assets that DAGs name.

    Args:
        memory: Returns the memory of the engine, which contains the updates that DAGs hold. Raises
            ``DaemonAway`` if there is no daemon.
    """

    def __init__(self, reader: RunReader, memory: Callable[[], Memory]) -> None:
        self._reader = reader
        self._memory = memory

    async def page(
        self, *, search: str = "", name: str | None = None, limit: int, cursor: str | None = None
    ) -> Page[AssetView]:
        """Return a page of the assets that a task updates or a schedule names, by name.

        Args:
            search: A part of the name, in any case.
            name: Only the asset with this name.

        Raises:
            DaemonAway: If there is no daemon.
        """
        memory = self._memory()
        after = "" if cursor is None else str(decode_cursor("assets", cursor, (str,))[0])
        known = await self._reader.catalogue.known()
        declared = await self._reader.declarations.read(known)
        producers: dict[str, list[AssetProducerView]] = {}
        for dag_id, one in declared.items():
            for asset, task_id in one.outlets:
                producers.setdefault(asset, []).append(
                    AssetProducerView(dag_id=dag_id, task_id=task_id)
                )
        consumers = _consumers(memory, declared)
        wanted = search.casefold()
        names = [
            one
            for one in sorted(producers.keys() | consumers.keys())
            if one > after and wanted in one.casefold() and name in {None, one}
        ]
        page = page_of("assets", names[: limit + 1], limit, lambda one: (one,))
        views = await self._views(page.items, producers, consumers, known)
        return Page(views, page.next)

    async def _views(
        self,
        names: Sequence[str],
        producers: Mapping[str, Sequence[AssetProducerView]],
        consumers: Mapping[str, Sequence[DagTrigger]],
        known: KnownDags,
    ) -> list[AssetView]:
        store = self._reader.store
        latest = await store.latest_updates([f"{ASSET}{name}" for name in names])
        shown = {name: consumers.get(name, ())[:_SHOWN] for name in names}
        started = {one.row.run_no for some in shown.values() for one in some}
        updating = {update.run_no for update in latest.values()}
        runs = await store.find_runs_by_no({one for one in started | updating if one is not None})
        views = []
        for name in names:
            update = latest.get(f"{ASSET}{name}")
            views.append(
                AssetView(
                    name=name,
                    producers=list(producers.get(name, ())[:_SHOWN]),
                    producer_count=len(producers.get(name, ())),
                    consumers=[_consumer_view(one, known, runs) for one in shown[name]],
                    consumer_count=len(consumers.get(name, ())),
                    last_update=None
                    if update is None
                    else AssetUpdateView(
                        event_id=update.event_no,
                        at=iso(update.at) or "",
                        run_id=_run_id(update.run_no, runs),
                    ),
                )
            )
        return views


def _consumers(memory: Memory, declared: Mapping[str, Declared]) -> dict[str, list[DagTrigger]]:
    """Return the triggers of the DAGs that each asset schedules, by asset, sorted by DAG.

    A trigger exists as long as its DAG is known, so the DAG may have another schedule by now.
    """
    found: dict[str, list[DagTrigger]] = {}
    for name in memory.dag_triggers.assets():
        some = [
            one
            for one in memory.dag_triggers.consumers(name)
            if (dag := declared.get(one.row.dag_id)) is not None and dag.is_consumer
        ]
        if some:
            found[name] = sorted(some, key=lambda one: one.row.dag_id)
    return found


def _consumer_view(
    one: DagTrigger, known: KnownDags, runs: Mapping[RunNo, RunRow]
) -> AssetConsumerView:
    condition, row = one.condition, known.dags.get(one.row.dag_id)
    received = {name: len(events) for name, events in one.pending.items() if events}
    return AssetConsumerView(
        dag_id=one.row.dag_id,
        paused=row is not None and row.paused,
        condition="" if condition is None else condition_text(condition),
        received=received,
        missing=[] if condition is None else missing_assets(condition, set(received)),
        run_id=_run_id(one.row.run_no, runs),
    )


def _run_id(run_no: RunNo | None, runs: Mapping[RunNo, RunRow]) -> str | None:
    run = None if run_no is None else runs.get(run_no)
    return None if run is None else run.run_id
