"""Prefetch of rows that a turn needs but that are not in memory: runs, ended tasks, outbox rows.

A run that has ended is read completely, one page at a time, while the loop continues. The rows of
the tasks that a turn clears or marks are read right before the turn.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import anyio

from aioflow.core import notes
from aioflow.core.repair import mark
from aioflow.core.repair.clear import asks, key_of, needed
from aioflow.core.requests import KEY_ROTATION_PAGE
from aioflow.core.runs import backfills, idempotency, previous
from aioflow.core.runs.restore import RunRestore
from aioflow.core.scheduling import clock_steps
from aioflow.core.state import outbox_quota
from aioflow.core.state.memory import Memory
from aioflow.core.state.run_sequence import EndedRun, last_rounds, stored_as
from aioflow.core.state.task_instance import Run
from aioflow.core.triggers import event_runs, votes
from aioflow.errors import AioflowError, RequestError, UnknownRun
from aioflow.model.dag import DagSpec, ValueKind
from aioflow.model.decisions import DecisionRow
from aioflow.model.ids import TaskNo, TriggerNo
from aioflow.model.rows import RunRow, TaskRow, TriggerRow, ValueRow
from aioflow.model.states import RunState
from aioflow.protocol.inputs import (
    ContinueBackfill,
    ContinueRun,
    CreateMissingRuns,
    Input,
    OutboxLoaded,
    PreviousRunLoaded,
    RequestReceived,
)
from aioflow.protocol.reports import TriggerFired
from aioflow.protocol.requests import ClearTasks, Mark, Reencrypt
from aioflow.store import Store
from aioflow.telemetry.log import Logger

__all__ = ("Recalling",)

_log = Logger(__name__)

_READING = (
    RequestReceived,
    ContinueRun,
    ContinueBackfill,
    PreviousRunLoaded,
    CreateMissingRuns,
    OutboxLoaded,
)
"""The types of inputs that may need rows. Most inputs of a turn do not."""

_READING_OR_FIRED = (*_READING, TriggerFired)
"""These types and those of events, whose keys may be stored already if DAG triggers exist."""

_DENSE = 2
"""Maximum number of row numbers per needed row up to which rows are read as a single range."""


class Recalling:
    """Prefetches rows for one engine."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._one_at_a_time = anyio.Lock()
        self._has_recalled = False
        self._began: dict[tuple[str, str | None], int] = {}  # commit number when the read began

    def has_all(self, inputs: Sequence[Input], memory: Memory) -> bool:
        """Return whether every run that these inputs need is in memory, either live or loaded."""
        return all(_is_at_hand(request, memory) for request in asks(inputs))

    async def load(self, inputs: Sequence[Input], memory: Memory) -> None:
        """Load the ended runs that these inputs need into ``memory.loaded``.

        Raises:
            StoreUnavailable: If the database does not answer. The call may be repeated.
        """
        if self.has_all(inputs, memory):
            return  # do not wait for other reads, which may take long
        async with self._one_at_a_time:
            for request in asks(inputs):
                if not _is_at_hand(request, memory):
                    await self._load(request, memory)

    def is_needed(self, inputs: Sequence[Input], memory: Memory) -> bool:
        """Return whether ``recall`` may have to read rows for these inputs. This is rare."""
        kinds = _READING_OR_FIRED if memory.dag_triggers else _READING
        return bool(memory.loaded) or any(isinstance(entry, kinds) for entry in inputs)

    def forget(self, memory: Memory) -> None:
        """Drop the rows that ``recall`` has read for earlier inputs."""
        if not memory.loaded and not self._one_at_a_time.locked():
            memory.touched.clear()
        if not self._has_recalled:
            return
        self._has_recalled = False
        memory.prefetched_tasks, memory.answered, memory.prefetched_runs = {}, {}, {}
        memory.loaded_outbox, memory.encrypted, memory.decisions = {}, [], {}
        memory.noted_runs, memory.notes, memory.known_keys = {}, {}, set()
        memory.found_fire_times, memory.keyed_backfills, memory.found_ahead = {}, {}, {}
        idempotency.remember_existing_runs((), memory)

    async def recall(self, inputs: Sequence[Input], memory: Memory) -> None:
        """Read the rows that these inputs need, and drop rows that were read for earlier inputs.

        Besides the runs of ``load``, the following attributes of ``memory`` are filled:

        * ``prefetched_tasks`` and ``prefetched_runs``: rows of tasks and runs;
        * ``answered``: requests that have already been answered, with their responses;
        * ``existing_runs`` and ``existing_runs_by_key``: runs with the ids and keys of requests;
        * ``run_sequences``: which run precedes another;
        * ``found_fire_times`` and ``found_ahead``: fire times that already have a run, for
          backfills and for schedules that ran ahead of the clock;
        * ``keyed_backfills``: backfills that an earlier request with the same key has started;
        * ``decisions``: the decisions that requests answer;
        * ``noted_runs`` and ``notes``: the runs whose notes requests change, and those notes;
        * ``loaded_outbox``: outbox rows to hand out;
        * ``encrypted``: values, triggers or decisions to encrypt with the new key.

        Raises:
            StoreUnavailable: See ``load``.
        """
        self.forget(memory)
        self._has_recalled = True
        memory.known_keys = await _known_keys(inputs, self._store, memory)
        reading = [entry for entry in inputs if isinstance(entry, _READING)]
        if reading or memory.loaded:
            await self.load(reading, memory)
            await self._recall(reading, memory)

    async def _recall(self, inputs: Sequence[Input], memory: Memory) -> None:
        store = self._store
        memory.loaded_outbox = {
            kind: await store.list_outbox(kind, after=after, limit=limit)
            for kind, (after, limit) in outbox_quota.wanted(inputs, memory.outbox_quotas).items()
        }
        for request in asks(inputs):
            if self._is_outdated(request, memory):
                await self._load(request, memory)
            answer = await self._answer(request)
            key = key_of(request)
            if answer is not None and key is not None:
                memory.answered[request.run_id, key] = answer
        idempotency.remember_existing_runs(await _find_existing_runs(inputs, store), memory)
        for whole in mark.asks(inputs):
            is_needed = mark.is_row_needed(whole, memory)
            row = await store.find_run(whole.run_id) if is_needed else None
            if row is not None and await _has_plan(row, store, memory):
                memory.prefetched_runs[whole.run_id] = row
        numbers = needed(inputs, memory)
        if numbers:
            memory.prefetched_tasks = {row.task_no: row for row in await self._rows(numbers)}
        memory.encrypted = await _encrypted(store, inputs)
        decided = votes.decision_nos(inputs)
        if decided:
            found = await store.find_decisions(decided)
            memory.decisions = {row.decision_no: row for row in found}
        await self._find_notes(inputs, memory)
        for dag_id, key in backfills.keys(inputs):
            begun = await store.find_keyed_backfill(dag_id, key)
            if begun is not None:
                memory.keyed_backfills[dag_id, key] = begun.backfill_no
        await self._find_fire_times(inputs, memory)
        for dag_id, keys in previous.wanted(inputs, memory):
            before = await store.find_runs_before(dag_id, keys)
            for sort_key, row in zip(keys, before, strict=True):
                memory.run_sequences[dag_id].learn(sort_key, await _ended(row, store, memory))

    async def _find_notes(self, inputs: Sequence[Input], memory: Memory) -> None:
        """Read the runs whose notes requests change, and these notes."""
        for request in notes.asks(inputs):
            run = memory.find_run(request.run_id)
            row = await self._store.find_run(request.run_id) if run is None else run.row
            if row is None:
                continue
            memory.noted_runs[request.run_id] = row
            note = await self._store.find_note(row.run_no, request.task_index, request.map_index)
            if note is not None:
                memory.notes[note.key] = note

    async def _find_fire_times(self, inputs: Sequence[Input], memory: Memory) -> None:
        """Find out which fire times have runs, for backfills and for schedules that ran ahead."""
        for backfill, dates in backfills.wanted(inputs, memory):
            runs = await self._store.find_runs_at(backfill.dag_id, dates)
            backfills.found(backfill, dates, runs, memory)
        for entry in clock_steps.wanted(inputs):
            runs = await self._store.find_runs_at(entry.dag_id, entry.fire_times)
            clock_steps.found(entry, runs, memory)

    async def _rows(self, numbers: Collection[TaskNo]) -> list[TaskRow]:
        first, end = min(numbers), max(numbers) + 1
        if end - first > _DENSE * len(numbers):
            return await self._store.find_tasks(numbers)
        return await self._store.list_tasks_between(first, end, limit=end - first)

    async def _answer(self, request: ClearTasks | Mark) -> tuple[int, RunState] | None:
        """Return the stored response to a request; ``None`` if it has not been executed yet."""
        key = key_of(request)
        if key is None:
            return None
        run = await self._store.find_run(request.run_id)
        known = None if run is None else await self._store.find_clear(run.run_no, key)
        return None if run is None or known is None else (known, run.state)

    def _is_outdated(self, request: ClearTasks | Mark, memory: Memory) -> bool:
        key = (request.run_id, key_of(request))
        touched = memory.touched.get(request.run_id, -1)
        return key in memory.loaded and touched > self._began[key]

    async def _load(self, request: ClearTasks | Mark, memory: Memory) -> None:
        key, began = (request.run_id, key_of(request)), memory.commit_no
        memory.loaded[key] = await self._ended(request, memory)
        self._began = {one: at for one, at in self._began.items() if one in memory.loaded}
        self._began[key] = began

    async def _ended(self, request: ClearTasks | Mark, memory: Memory) -> Run | RequestError:
        row = await self._store.find_run(request.run_id)
        if row is None or await self._answer(request) is not None:
            return UnknownRun(request.run_id)  # the request is answered already: no run is needed
        try:
            if row.ended_at is not None and await _has_plan(row, self._store, memory):
                return await self._read(row, memory)
        except AioflowError:
            raise
        except Exception as exc:  # noqa: BLE001 - whatever its rows contain, other runs continue
            _log.error("a run cannot be restored", run_id=row.run_id, exc_info=exc)
        return RequestError(f"run {request.run_id!r} cannot be restored")

    async def _read(self, row: RunRow, memory: Memory) -> Run:
        async with self._store.pieces_of_run(row.run_no) as pieces:
            building: RunRestore | None = None
            async for piece in pieces:
                building = building or RunRestore(piece, memory)
                building.take_ended(piece)
        if building is None:
            raise ValueError("it has no row")
        return building.look_back()


def _is_at_hand(request: ClearTasks | Mark, memory: Memory) -> bool:
    is_loaded = (request.run_id, key_of(request)) in memory.loaded
    return is_loaded or memory.find_run(request.run_id) is not None


async def _find_existing_runs(inputs: Sequence[Input], store: Store) -> list[tuple[RunRow, bool]]:
    """Return the runs with the ids or idempotency keys of these inputs."""
    run_ids, keys = idempotency.requested_runs(inputs)
    found = await store.find_existing(run_ids) if run_ids else []
    for dag_id, of_dag in keys.items():
        found += await store.find_existing_by_keys(dag_id, of_dag)
    return found


async def _known_keys(
    inputs: Sequence[Input], store: Store, memory: Memory
) -> set[tuple[TriggerNo, str | None]]:
    """Return the keys of reported DAG trigger events that are already stored."""
    if not memory.dag_triggers:
        return set()
    fired = [entry for entry in inputs if isinstance(entry, TriggerFired)]
    asked = event_runs.asked_keys(fired, memory)
    return set(await store.find_event_keys(asked)) if asked else set()


async def _encrypted(
    store: Store, inputs: Sequence[Input]
) -> list[ValueRow] | list[TriggerRow] | list[DecisionRow]:
    """Return a page of rows for the first re-encryption request of a turn."""
    asked = (entry.request for entry in inputs if isinstance(entry, RequestReceived))
    page = next((request for request in asked if isinstance(request, Reencrypt)), None)
    match page:
        case None:
            return []
        case Reencrypt(of="value"):
            return [row for kind in ValueKind for row in await store.list_values(kind)]
        case Reencrypt(of="trigger"):
            after = -1 if page.after is None else page.after
            return await store.list_triggers(limit=KEY_ROTATION_PAGE, after=after)
        case _:
            return await store.list_decisions(limit=KEY_ROTATION_PAGE, before=page.after)


async def _has_plan(run: RunRow, store: Store, memory: Memory) -> bool:
    if (run.version, run.dag_id) not in memory.dag_versions:
        spec = await _stored_spec(run, store)
        if spec is not None:
            memory.add_plan(run.version, spec)
    return (run.version, run.dag_id) in memory.dag_versions


async def _stored_spec(run: RunRow, store: Store) -> DagSpec | None:
    version = await store.find_version(run.version)
    found = () if version is None else version.dags
    return next((spec for spec in found if spec.dag_id == run.dag_id), None)


async def _ended(row: RunRow | None, store: Store, memory: Memory) -> EndedRun | None:
    """Return the summary of an ended run; ``None`` if there is no run, or if it is live."""
    if row is None or row.run_no in memory.runs:
        return None
    dag_version = memory.dag_versions.get((row.version, row.dag_id))
    spec = await _stored_spec(row, store) if dag_version is None else dag_version.graph.spec
    if spec is None:
        return None
    counts = await store.count_states(row.run_no)
    expansions = await store.list_expansions(row.run_no)
    rounds = await store.find_tasks(last_rounds(spec, expansions))
    return stored_as(row, spec, counts, expansions, rounds)
