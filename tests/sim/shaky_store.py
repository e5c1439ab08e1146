"""A store whose commits may fail, and that attempts writes that a real store must refuse.

A batch must be refused if its node was replaced or a guard does not hold. After such a batch, the
store checks that the database is unchanged.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Protocol

import anyio
import msgspec

from aioflow.errors import BatchRefused, Fenced, StoreUnavailable
from aioflow.model.batch import Batch
from aioflow.model.rows import NodeFacts
from aioflow.model.states import RunState, TaskState, TriggerState
from aioflow.store import Claim
from aioflow.store.sqlite.store import SqliteStore
from tests.sim.broken import Broken
from tests.sim.disk import Disk, PowerCut
from tests.sim.faults import Faults
from tests.sim.row_check import differences, standing
from tests.sim.tables import Tables, check_content

__all__ = ("Crash", "ShakyStore", "with_a_wrong_guard")

_QUIET_COMMITS = 1_100
"""More commits than a rolled-back turn needs to process its inputs one by one."""
_STATEMENTS = 9  # approximate number of statements of a batch
_DELAYS_SECONDS = (0.001, 0.3, 0.3, 7.0, 90.0)
_LOOKS = 0.03
_NOWHERE = 10**15


class Crash(Exception):
    """Raised where the node dies."""


class World(Protocol):
    """The part of the simulated node that a store uses."""

    rng: random.Random
    points: Counter[str]
    tables: Tables

    @property
    def faults(self) -> Faults:
        """The faults."""

    def applied(self, batch: Batch) -> None:
        """Mirror a batch that the database has applied, whether or not the engine learns of it."""

    def found(self, broken: Broken) -> None:
        """Record a violation."""


class ShakyStore:
    """Wraps a store. A write may fail or be refused, and its reply may be delayed or lost."""

    def __init__(self, disk: Disk, world: World) -> None:
        self._disk = disk
        self._world = world
        self._quiet = 0
        self._epoch = 0
        self._applied_no = 0
        self._paused: list[tuple[SqliteStore, Batch]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk.store, name)

    def _happens(self, kind: str) -> bool:
        if self._world.faults.happens(kind):
            self._world.points[kind] += 1
            return True
        return False

    def _reachable(self) -> None:
        if self._happens("database away"):
            raise StoreUnavailable("away for a moment")

    # ── a new node ──────────────────────────────────────────────────────────────────────

    async def claim(self, about: NodeFacts | None = None) -> Claim:
        """See ``Store``. The reply may be lost."""
        claim = await self._disk.store.claim()
        if claim.epoch <= self._epoch or claim.commit_no != self._world.tables.commit_no:
            self._breaks("I3 fence", f"claimed {claim} after epoch {self._epoch}")
        self._epoch = claim.epoch
        self._compare("at a start")
        if self._happens("claim unheard"):
            raise Crash
        await self._wake_paused()
        return claim

    async def lease_numbers(self, count: int) -> int:
        """See ``Store``."""
        self._reachable()
        first = await self._disk.store.lease_numbers(count)
        if self._happens("reply lost"):
            raise StoreUnavailable("leased, but nobody heard")
        return first

    async def list_dags(self) -> Any:
        """See ``Store``."""
        self._reachable()
        return await self._disk.store.list_dags()

    async def list_dag_files(self) -> Any:
        """See ``Store``."""
        self._reachable()
        return await self._disk.store.list_dag_files()

    async def load_run(self, run_no: int) -> Any:
        """See ``Store``."""
        self._reachable()
        return await self._disk.store.load_run(run_no)

    # ── a commit ────────────────────────────────────────────────────────────────────────

    async def commit(self, batch: Batch) -> None:
        """See ``Store``. After a refusal, some commits are certain not to be refused."""
        self._reachable()
        try:
            check_content(batch)
        except BatchRefused:
            self._quiet = _QUIET_COMMITS
            raise
        if self._happens("commit fails"):
            raise StoreUnavailable("nothing was written")
        if self._happens("commit delayed"):
            await anyio.sleep(self._world.rng.choice(_DELAYS_SECONDS))
        if self._paused and self._world.rng.random() < 0.2:
            await self._wake_paused()
        self._quiet -= 1
        if batch.number != self._applied_no:
            await self._before_first(batch)
        if self._happens("node replaced"):
            await self._lose_to_another(batch)
        await self._commit(batch)
        await self._after(batch)

    async def _commit(self, batch: Batch) -> None:
        try:
            await self._disk.store.commit(batch)
        except BatchRefused:
            self._quiet = _QUIET_COMMITS  # its inputs follow one by one: only one is refused
            raise

    async def _before_first(self, batch: Batch) -> None:
        """Draw the faults that may hit a batch before it is stored."""
        if _takes_events_of_triggers(batch) and self._happens("event refused"):
            self._quiet = _QUIET_COMMITS
            raise BatchRefused("an event nobody can store")
        if self._happens("wrong guard"):
            await self._hand_over_wrongly(batch)
        if self._quiet < 0 and self._happens("batch refused"):
            self._quiet = _QUIET_COMMITS
            raise BatchRefused("a value nobody can store")
        if self._happens("crash before"):
            raise Crash
        if self._happens("power cut"):
            await self._cut_power(batch)

    async def _after(self, batch: Batch) -> None:
        self._applied_no = batch.number
        self._world.applied(batch)
        if self._world.rng.random() < _LOOKS:
            self._compare("looked at")
        if self._happens("crash after"):
            raise Crash
        if self._happens("reply delayed"):
            await anyio.sleep(self._world.rng.choice(_DELAYS_SECONDS))
        if self._happens("reply lost"):
            raise StoreUnavailable("applied, but nobody heard")
        self._world.points["ok"] += 1

    # ── what must not be stored ─────────────────────────────────────────────────────────

    async def _lose_to_another(self, batch: Batch) -> None:
        """Let another node take over during this commit.

        Either this node continues at once and must notice; or it is paused, and continues long
        after the other node has begun to write.
        """
        store = self._disk.another_store(self._epoch)
        if self._world.rng.random() < 0.5:
            self._paused.append((store, batch))
            raise Crash
        claim = await self._disk.another_store().claim()
        self._epoch = claim.epoch
        await self._commit_fenced(store, batch)
        raise Fenced("another node has taken over")

    async def _wake_paused(self) -> None:
        paused, self._paused = self._paused, []
        for store, batch in paused:
            await self._commit_fenced(store, batch)

    async def _commit_fenced(self, store: SqliteStore, batch: Batch) -> None:
        try:
            await store.commit(batch)
        except Fenced:
            self._world.points["fenced"] += 1
        else:
            self._breaks("I3 fence", f"a node that was replaced committed {batch.number}")
        self._compare("after a fenced commit")

    async def _hand_over_wrongly(self, batch: Batch) -> None:
        """Try to commit the batch with one wrong guard: the whole batch must be refused."""
        wrong = with_a_wrong_guard(batch, self._world.rng, self._world.tables)
        try:
            await self._disk.store.commit(wrong)
        except BatchRefused:
            self._world.points["refused for its guard"] += 1
        else:
            self._breaks("I3 guards", f"{wrong.number} was taken though a guard did not hold")
        self._compare("after a batch with a wrong guard")
        if self._quiet < 0 and self._world.rng.random() < 0.3:
            self._quiet = _QUIET_COMMITS
            raise BatchRefused("a guard did not hold")

    async def _cut_power(self, batch: Batch) -> None:
        """Cut the power at one of the statements. The batch must be stored completely or not."""
        disk, rng = self._disk, self._world.rng
        before = disk.log_bytes()
        allowed = {batch.number}
        disk.raw.arm(rng.randint(1, _STATEMENTS))
        retained = None
        try:
            await disk.store.commit(batch)
        except PowerCut as cut:
            retained = rng.randint(before, max(before, disk.log_bytes()))
            allowed = {batch.number - 1, batch.number} if cut.is_unsure else {batch.number - 1}
        finally:
            disk.raw.arm(-1)  # also if the batch was refused before the cut
        disk.come_back(disk.log_bytes() if retained is None else retained)
        epoch, number = standing(disk.raw)
        if number not in allowed or epoch != self._epoch:
            self._breaks("atomic", f"stands at {epoch}, {number} after a cut in {batch.number}")
        if number == batch.number:
            self._world.applied(batch)
        self._compare("after a power cut")
        raise Crash

    def _compare(self, when: str) -> None:
        """Compare every row of the database with the tables of the model."""
        disk = self._disk
        odd = differences(disk.raw, self._world.tables, disk.everything)
        if odd:
            self._breaks("rows", f"{when}: {'; '.join(odd)}")

    def _breaks(self, invariant: str, detail: str) -> None:
        broken = Broken(invariant, detail)
        self._world.found(broken)
        raise broken


def _takes_events_of_triggers(batch: Batch) -> bool:
    """Return whether the batch stores events of DAG triggers, for which no request is pending."""
    events = batch.of_dags.events
    return bool(events) and all(event.asset is None for event in events)


def with_a_wrong_guard(batch: Batch, rng: random.Random, tables: Tables) -> Batch:
    """Return the batch with one wrong guard."""
    wrong = [
        msgspec.structs.replace(batch, done_outbox=[*batch.done_outbox, _NOWHERE]),
        *_wrong(batch, "task_changes", "task_no", rng),
        *_wrong(batch, "run_changes", "run_no", rng),
        *_wrong(batch, "trigger_changes", "trigger_no", rng),
        *_wrong_calls(batch),
    ]
    if batch.new_tasks and tables.tasks:
        twice = tables.tasks[rng.choice(sorted(tables.tasks))]
        wrong.append(msgspec.structs.replace(batch, new_tasks=[*batch.new_tasks, twice]))
    if batch.new_runs and tables.runs:
        again = tables.runs[rng.choice(sorted(tables.runs))]
        wrong.append(msgspec.structs.replace(batch, new_runs=[*batch.new_runs, again]))
    return rng.choice(wrong)


def _wrong_calls(batch: Batch) -> list[Batch]:
    """Return batches with an answer to a call never made, or a consumed event that never came."""
    replace = msgspec.structs.replace
    wrong = []
    if batch.record_changes:
        odd = replace(batch.record_changes[0], task_no=_NOWHERE)
        wrong.append(replace(batch, record_changes=[*batch.record_changes, odd]))
    if batch.consumed_events:
        wrong.append(replace(batch, consumed_events=[*batch.consumed_events, (_NOWHERE, 0)]))
    return wrong


def _wrong(batch: Batch, name: str, key: str, rng: random.Random) -> list[Batch]:
    """Return batches with one change that expects another state, start or row."""
    changes = getattr(batch, name)
    if not changes:
        return []
    at = rng.randrange(len(changes))
    change = changes[at]
    others: list[dict[str, Any]] = [{key: _NOWHERE}]
    states = {"task_changes": TaskState, "run_changes": RunState, "trigger_changes": TriggerState}
    others.append({"was": rng.choice([s for s in states[name] if s is not change.was])})
    if name == "task_changes":
        others.append({"was_start_no": change.was_start_no + rng.choice((-1, 1))})
    wrong = [*changes]
    wrong[at] = msgspec.structs.replace(change, **rng.choice(others))
    return [msgspec.structs.replace(batch, **{name: wrong})]
