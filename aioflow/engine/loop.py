"""The engine loop: take inputs, decide, commit, dispatch effects.

Everything that happens reaches the engine as an input in its inbox, and no effect is dispatched
before its batch is committed. The decisions are made in ``core``. This module contains only the
loop and the dispatcher of effects, and handles an unavailable database and refused batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar, get_args

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus

from aioflow.clock import Clock, SteadyClock
from aioflow.core import outbox, rollback
from aioflow.core.observation import Timing
from aioflow.core.repair.clear import portion
from aioflow.core.runs.create import has_fire_time_due
from aioflow.core.runs.restore import RunRestore
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.id_block import IdBlock
from aioflow.core.state.memory import Memory
from aioflow.core.step import TURN_INPUTS, TurnFailed, decide, runs_beyond
from aioflow.core.transaction import Transaction
from aioflow.engine.failed_turns import FailedTurns, undamaged
from aioflow.engine.metrics import Measures
from aioflow.engine.pending_requests import PendingRequests
from aioflow.engine.prefetch import Recalling
from aioflow.engine.timers import Timers
from aioflow.errors import BatchRefused, Fenced, StoreUnavailable, StrangeDatabase
from aioflow.model.access import Actor
from aioflow.model.batch import Batch
from aioflow.model.rows import NodeFacts, TriggerRow
from aioflow.model.states import TaskState
from aioflow.protocol.effects import Acknowledge, Again, Effect, WakeAt, Warn
from aioflow.protocol.inputs import (
    DamageFound,
    Input,
    RecoverySnapshot,
    RequestReceived,
    Restarted,
    UnfinishedWork,
)
from aioflow.protocol.requests import Request
from aioflow.store import Claim, Store
from aioflow.telemetry.log import Logger

__all__ = (
    "EffectDispatcher",
    "EffectHandler",
    "Engine",
    "Subscriber",
)

EffectHandler: TypeAlias = Callable[[Any], None]
"""Executes an effect of one type. Returns at once; its outcome reaches the inbox as an input."""

Subscriber: TypeAlias = Callable[[Batch, Transaction], None]
"""Processes a durable batch, before its transaction is marked as durable."""


class EffectDispatcher:
    """The handler of each type of effect, and the subscribers of durable batches."""

    def __init__(self) -> None:
        self._handlers: dict[type[Any], EffectHandler] = {}
        self._subscribers: list[Subscriber] = []

    def register(self, handlers: Mapping[type[Any], EffectHandler]) -> None:
        """Set the handler of each type of effect in ``handlers``.

        Raises:
            ValueError: If a type already has a handler.
        """
        for effect, handler in handlers.items():
            if self._handlers.setdefault(effect, handler) is not handler:
                raise ValueError(f"{effect.__name__} has a handler already")

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call ``subscriber`` with each durable batch, before its effects are dispatched."""
        self._subscribers.append(subscriber)

    @property
    def unhandled(self) -> set[type[Any]]:
        """The types of effects that have no handler yet."""
        return set(get_args(Effect)) - self._handlers.keys()

    def require_all(self) -> None:
        """Check that every type of effect has a handler.

        Raises:
            ValueError: If a type has no handler.
        """
        if missing := sorted(kind.__name__ for kind in self.unhandled):
            raise ValueError(f"no handler is registered for {', '.join(missing)}")

    def committed(self, batch: Batch, tx: Transaction) -> None:
        """Notify the subscribers of a batch that is durable."""
        for subscriber in self._subscribers:
            subscriber(batch, tx)

    def dispatch(self, effects: Iterable[Effect]) -> None:
        """Call the handler of each effect, in order."""
        handlers = self._handlers
        for effect in effects:
            handlers[type(effect)](effect)


_log = Logger(__name__)

_NUMBERS_AT_ONCE = 1 << 20
_COMMITS = 1 << 53  # more than a daemon ever makes
_EPOCHS = 1 << 31  # the epoch is the upper half of an assignment number
_FIRST_DELAY, _LONGEST_DELAY = 0.05, 2.0  # seconds between attempts in an outage of the database
_SAFE_PART = 0.7  # share of a lease within which no other node takes over
_SILENCE_US = 1_000_000  # between two log lines about the outage
_RECENT = 0.2

Answer = TypeVar("Answer")


class Engine(FailedTurns):
    """The engine of one node.

    Attributes:
        memory: The state of the engine; changed only by ``core``.
        measures: The metrics of the engine.
        store_away_since: When the database stopped answering, in monotonic microseconds; ``None``
            while it answers.
        store_error: The last error of the database in that time.
        dispatcher: Handlers of effects and subscribers of durable batches. The node must register
            its handlers and subscribers before ``run``.
        turned_at: When the last turn ended, in monotonic microseconds.
        confirmed_at: When the last successful commit or heartbeat began, in monotonic microseconds.
            Until then, no other node had taken over.
    """

    def __init__(
        self,
        store: Store,
        slots: Slots,
        *,
        clock: Clock,
        random: Callable[[], float],
        retries_per_run: int | None = None,
        retries_per_pool: int | None = None,
        late_after_us: int | None = None,
        ends_when_idle: bool = False,
        about: NodeFacts | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.memory = Memory(epoch=0)
        self._epoch: int | None = None
        self.measures = Measures()
        self._retries = retries_per_run, retries_per_pool
        self._late_after_us = late_after_us
        self._ends_when_idle = ends_when_idle
        self._about = about
        self._claimed: Claim | None = None
        self._timing = timing
        self.confirmed_at = clock.monotonic_us()
        self._longest_delay = _LONGEST_DELAY
        if timing is not None:
            self._longest_delay = min(_LONGEST_DELAY, timing.lease_us / 6e6)
        self.slots = slots
        self.store_away_since: int | None = None
        self.store_error = ""
        self._silent_until = self.turns = 0
        self.turned_at = clock.monotonic_us()
        self._turning_since: int | None = None
        self._store = store
        self._clock = clock
        self._chance = random
        self._inbox: deque[Input] = deque()
        self._arrived = anyio.Event()
        self._numbers = IdBlock(0, 0)
        self._pending_requests = PendingRequests()
        self._turned = anyio.Event()
        self._recalling = Recalling(store)
        self._steady = SteadyClock(clock)
        self.timers = Timers(self._steady, self.report)
        self.dispatcher = EffectDispatcher()
        self.dispatcher.register(
            {
                WakeAt: lambda effect: self.timers.arm(effect.due, at=effect.at),
                Acknowledge: self._pending_requests.answer,
                Warn: lambda effect: _log.warning(effect.message, **effect.facts),
                **dict.fromkeys(get_args(Again), lambda effect: self.report([effect])),
            }
        )

    def report(self, inputs: Sequence[Input]) -> None:
        """Put inputs into the inbox. Never blocks."""
        self._inbox.extend(inputs)
        self._arrived.set()

    async def ask(
        self, request: Request, by: Actor | None = None, *, fails_at_end: bool = False
    ) -> object:
        """Put a request into the inbox and wait for its durable response.

        Args:
            by: The author of the request, for the audit log.
            fails_at_end: Whether this method raises when the loop ends. Otherwise it waits until it
                is cancelled together with the rest of the node.

        Raises:
            RequestError: If the request is refused.
            DaemonStopping: If the loop has ended.
        """
        return await self._pending_requests.ask(
            lambda ticket: self.report([RequestReceived(ticket, request, by)]),
            fails_at_end=fails_at_end,
        )

    async def wait_until_idle(self) -> None:
        """Wait until no run is live and no fire time is due.

        If the node is drained, wait only until no task runs and the inbox is empty.
        """
        while not (self.memory.is_drained and self._is_still) and (
            self.memory.runs or self._inbox or has_fire_time_due(self.memory, self._clock.now())
        ):
            await self.next_turn()

    async def wait_until_still(self) -> None:
        """Wait until no task runs and the inbox is empty. Deferred tasks may still wait."""
        while not self._is_still:
            await self.next_turn()

    @property
    def _is_still(self) -> bool:
        task = self.memory.active_tasks.objects.values()
        return not self._inbox and not any(one.state is TaskState.RUNNING for one in task)

    async def next_turn(self) -> None:
        """Wait for the end of a turn. Waiters continue before the next turn begins."""
        if self._turned.is_set():
            self._turned = anyio.Event()
        await self._turned.wait()

    @property
    def waiting_inputs(self) -> int:
        """The number of inputs in the inbox."""
        return len(self._inbox)

    @property
    def turn_seconds(self) -> float:
        """The duration of the current turn so far, in seconds; 0 between turns."""
        if self._turning_since is None:
            return 0.0
        return (self._clock.monotonic_us() - self._turning_since) / 1e6

    # ── the loop ────────────────────────────────────────────────────────────────────────

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run the loop until cancelled.

        Signals ``task_status`` once all unfinished work is in memory and has been resumed.

        Raises:
            Fenced: If another node has taken over.
            StrangeDatabase: If the database is not the one that the engine wrote to.
            ValueError: If an effect has no handler.
        """
        self.dispatcher.require_all()
        try:
            claim = self._claimed or await self._claim()
            self._store.damages.listen(lambda damage: self.report([DamageFound(damage)]))
            # If the database becomes unavailable, recovery is repeated from the beginning. Nothing
            # else recovers work while this node is active.
            await self._patiently(partial(self._recover, claim), is_whole=False)
            await self._run_turns(task_status, has_crashed=claim.after_crash)
        finally:
            self._pending_requests.end()

    async def _run_turns(self, task_status: TaskStatus[None], *, has_crashed: bool) -> None:
        async with anyio.create_task_group() as services:
            await services.start(self.timers.run)
            await self._turn([Restarted(has_crashed=has_crashed)])
            task_status.started()
            while True:
                inputs = await self._take()
                if self._recalling.has_all(inputs, self.memory):
                    await self._turn(inputs)
                else:
                    services.start_soon(self._load, inputs)

    async def _take(self) -> list[Input]:
        if self._inbox:
            # Yield, so that the commands of the last turn are sent before the next turn is decided.
            await anyio.lowlevel.cancel_shielded_checkpoint()
        while not self._inbox:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        count = portion(self._inbox, TURN_INPUTS, self.memory)
        return [self._inbox.popleft() for _ in range(count)]

    async def _load(self, inputs: list[Input]) -> None:
        """Load the ended runs that inputs need while the loop continues, then report the inputs."""
        load = partial(self._recalling.load, inputs, self.memory)
        await self._patiently(load, is_whole=False)
        self.report(inputs)

    async def _turn(self, inputs: list[Input]) -> None:
        self._turning_since = self._clock.monotonic_us()
        try:
            await self._decide_and_commit(inputs)
        except (TurnFailed, rollback.Refused) as exc:
            await self._isolate(inputs, exc.tx, exc)
        self.turns += 1
        self.turned_at = self._clock.monotonic_us()
        self.measures.turns.add((self.turned_at - self._turning_since) / 1e6)
        self.measures.record_latencies(inputs, self._steady.read)
        self._turning_since = None
        self._turned.set()

    async def _decide_and_commit(self, inputs: Sequence[Input], *, granting: bool = True) -> None:
        """Decide the inputs, commit the batch and dispatch its effects.

        Args:
            granting: Whether to start work that is ready.

        Raises:
            TurnFailed: If deciding raised an error. Nothing was committed.
            rollback.Refused: If the batch was refused. Nothing was committed.
        """
        if self._recalling.is_needed(inputs, self.memory):
            await self._patiently(partial(self._recalling.recall, inputs, self.memory))
        else:
            self._recalling.forget(self.memory)
        await self._lease_numbers(inputs)
        batch, effects, tx = decide(
            self.memory,
            self.slots,
            inputs,
            at=self._steady.read(),
            random=self._chance,
            numbers=self._numbers,
            granting=granting,
        )
        if not batch.is_empty or tx.step:  # a restart needs the clock step
            await self._commit(batch, tx)
        tx.mark_durable()
        self.dispatcher.dispatch(effects)

    async def _lease_numbers(self, inputs: Sequence[Input] = ()) -> None:
        """Lease enough row numbers for everything that a full turn may create."""
        runs = TURN_INPUTS + runs_beyond(inputs)
        needed = self.memory.numbers_needed * runs + runs
        if self._numbers.left < needed:
            count = max(2 * needed, _NUMBERS_AT_ONCE)
            try:
                first = await self._patiently(partial(self._store.lease_numbers, count))
            except BatchRefused as exc:
                raise StrangeDatabase(f"table number_lease is damaged: {exc}") from exc
            self._numbers = IdBlock(first, first + count)

    async def _commit(self, batch: Batch, tx: Transaction) -> None:
        """Commit a batch, retrying while the database is unavailable.

        If this method is cancelled between two attempts, the batch is dropped. This has the same
        result as a crash, because none of its effects has been dispatched. An attempt itself is not
        interrupted.
        """
        began = self._clock.monotonic_us()
        try:
            await self._patiently(partial(self._store.commit, batch))
        except BatchRefused as exc:
            self.measures.refused += 1
            raise rollback.Refused(tx, str(exc)) from exc
        except Fenced:
            self.measures.fenced += 1
            raise
        await self._confirm(began)
        memory, took_us = self.memory, self._clock.monotonic_us() - began
        memory.commit_no = batch.number
        memory.commit_us += _RECENT * (took_us - memory.commit_us)
        self.measures.committed(batch, took_us / 1e6)
        self.dispatcher.committed(batch, tx)

    @property
    def is_cut_off(self) -> bool:
        """Whether another node may have taken over, as far as this node knows."""
        timing = self._timing
        return timing is not None and self.lease_age_us > _SAFE_PART * timing.lease_us

    @property
    def lease_age_us(self) -> int:
        """Time since the last successful commit or heartbeat; 0 without other nodes."""
        if self._timing is None:
            return 0
        return self._clock.monotonic_us() - self.confirmed_at

    async def _confirm(self, began: int) -> None:
        """Record a successful commit. Return once it is certain that its effects may be dispatched.

        If the reply to the commit came late, because the server was slow or this process was
        stopped, another node may have taken over since. Only a heartbeat shows whether one has. The
        shorter lease applies, because the sessions of this node may be gone from the server.

        Args:
            began: When the commit began, in monotonic microseconds.

        Raises:
            Fenced: If another node has taken over.
        """
        self.confirmed_at = began
        timing = self._timing
        if timing is None:
            return
        shortest_us = min(timing.lease_us, timing.quick_lease_us)
        while self.lease_age_us > _SAFE_PART * shortest_us:
            await self._patiently(self.heartbeat)

    async def heartbeat(self) -> None:
        """Send a heartbeat to the database.

        Raises:
            Fenced: If another node has taken over.
            StoreUnavailable: If the database does not answer.
        """
        began = self._clock.monotonic_us()
        await self._store.heartbeat(self._clock.now())
        self.confirmed_at = began

    async def _patiently(
        self, call: Callable[[], Awaitable[Answer]], *, is_whole: bool = True
    ) -> Answer:
        """Return the result of a store call, retrying while the database is unavailable.

        This method may be cancelled between two attempts.

        Args:
            is_whole: Whether an attempt itself is shielded from cancellation.
        """
        delay, attempts = _FIRST_DELAY, 0
        while True:
            try:
                with anyio.CancelScope(shield=is_whole):
                    answer = await call()
            except StoreUnavailable as exc:
                attempts += 1
                self._note_unavailable(exc, attempts)
                await self._clock.sleep(delay)
                delay = min(2 * delay, self._longest_delay)
            else:
                self.store_away_since = None
                return answer

    def _note_unavailable(self, exc: StoreUnavailable, attempts: int) -> None:
        """Log that the database is unavailable: immediately, then at most once per second."""
        now, self.store_error = self._clock.monotonic_us(), str(exc)
        if self.store_away_since is None:
            self.store_away_since = now
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE_US
            _log.warning("database unavailable, retrying", error=str(exc), attempts=attempts)

    # ── recovery ────────────────────────────────────────────────────────────────────────

    @property
    def epoch(self) -> int | None:
        """The term under which this node commits; ``None`` before it has claimed the database."""
        return self._epoch

    async def claim(self, about: NodeFacts) -> None:
        """Claim the database before ``run``. Otherwise ``run`` claims it.

        Raises:
            HomeBusy: If another node is active; see ``NodeFacts.after``.
            StoreUnavailable: If the database does not answer. It may have been claimed.
        """
        self._about = about
        self._claimed = await self._claim()
        self._epoch = self._claimed.epoch

    async def _recover(self, claim: Claim) -> None:
        """Restore all unfinished work to memory, under a new epoch."""
        self._epoch = claim.epoch
        self.memory = Memory(epoch=claim.epoch)
        self.memory.node_no, self.memory.commit_no = claim.node_no, claim.commit_no
        nodes = [one for one in await self._store.list_nodes() if one.node_no != claim.node_no]
        self.memory.other_commits = {one.node_no: one.commit_no for one in nodes if one.commit_no}
        self.memory.retries_per_run, self.memory.retries_per_pool = self._retries
        self.memory.late_after_us = self._late_after_us
        self._steady.resume(wall=claim.seen_at, steady=claim.steady_at)
        self.memory.shift = self._steady.read().shift
        self.memory.rests_after = self._clock.now() if self._ends_when_idle else None
        async with self._store.unfinished() as parts:
            await self._remember_all(parts)
        await self._report_quarantined()

    async def _claim(self) -> Claim:
        """Claim the database.

        Raises:
            StrangeDatabase: If the row of this node is damaged, so that nothing could be committed.
        """
        began = self._clock.monotonic_us()
        try:
            claim = await self._store.claim(self._about)
        except BatchRefused as exc:
            raise StrangeDatabase(f"the row of this node in table node is damaged: {exc}") from exc
        self.confirmed_at = began
        of_node = f"damaged: table node, row node_no={claim.node_no}, column"
        if not 0 < claim.epoch < _EPOCHS:
            raise StrangeDatabase(f"{of_node} epoch: {claim.epoch}")
        row = f"{of_node} commit_no"
        if not 0 <= claim.commit_no < _COMMITS:
            raise StrangeDatabase(f"{row}: {claim.commit_no}")
        above = await self._store.commits_above(claim.commit_no, node_no=claim.node_no)
        if above is not None:  # the next commits of this node would be refused
            raise StrangeDatabase(str(above))
        return claim

    async def _remember_all(self, parts: AsyncIterator[UnfinishedWork]) -> None:
        building: RunRestore | None = None
        given_up = -1
        async for part in parts:
            if isinstance(part, RecoverySnapshot):
                self._remember(part)
            elif isinstance(part, TriggerRow):
                self.memory.stray_triggers.append(part)
            elif part.run.run_no != given_up:
                try:
                    undamaged(part)
                    building = building or RunRestore(part, self.memory)
                    building.take(part)
                    if part.is_whole:
                        building.finish()
                        building = None
                except Exception as exc:  # noqa: BLE001 - whatever its rows, other runs continue
                    self._quarantine_unrestored(part, exc)
                    building, given_up = None, part.run.run_no

    def _remember(self, snapshot: RecoverySnapshot) -> None:
        memory = self.memory
        rollback.recall_catalog(memory, snapshot.dags, snapshot.dag_files)
        outbox.begin(memory, snapshot.outbox, snapshot.outbox_totals)
        memory.dag_triggers.restore(snapshot.dag_triggers, snapshot.held_events)
        for version in snapshot.versions:
            memory.stored_versions.add(version.version)
            for spec in version.dags:
                memory.add_plan(version.version, spec)
        memory.backfills = {row.backfill_no: row for row in snapshot.backfills}
        memory.accounts.restore(snapshot)
        memory.is_drained = memory.node_no in snapshot.drained
        self.slots.pools = {pool.name: pool for pool in snapshot.pools}

    def _draft(self) -> Transaction:
        numbers, at = self._numbers, self._steady.read()
        return Transaction(self.memory, self.slots, at=at, random=self._chance, numbers=numbers)

    async def _commit_if_any(self, tx: Transaction) -> None:
        batch = tx.close()
        if not batch.is_empty:
            await self._commit(batch, tx)
            tx.mark_durable()
            self.dispatcher.dispatch(tx.effects)
