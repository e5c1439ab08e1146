"""One life of a node at the second level: the real engine and triggerer, and their processes.

Functions and coroutines run in the actors of the first level. Triggers run in the real host; see
``pipe``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from aioflow.clock import Clock
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.child_roles import ASYNC, QUARANTINE, TRIGGERS, kind_of
from aioflow.core.transaction import Transaction
from aioflow.engine.loop import EffectHandler, Engine
from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.shared_host import HEALTH_SECONDS, HostHeartbeat
from aioflow.executors.triggerer import CAPACITY, Triggerer
from aioflow.maintenance.retention import Deleting
from aioflow.model.batch import Batch
from aioflow.model.dag import DagSpec
from aioflow.model.triggers import ASSETS
from aioflow.protocol.commands import ForgetRun
from aioflow.protocol.effects import (
    AssignTrigger,
    ConfirmCall,
    ConfirmEvents,
    DeliverOutbox,
    RecallTries,
    ReleaseTrigger,
    RestoreCode,
    RetireWorker,
    SetWorkerDemand,
    StartHost,
    StartTry,
    StopTry,
)
from aioflow.protocol.inputs import Drain, Input, OutboxDelivered
from aioflow.queries import QueryHandler
from tests.sim import invariants, misbehaving
from tests.sim.actors import Worker
from tests.sim.broken import Broken
from tests.sim.coroutines import AsyncHost
from tests.sim.lengths import Lengths
from tests.sim.pipe import ChildrenOfRole, InlineChildren
from tests.sim.remote import LIMITS, FarWorkers
from tests.sim.workload import SECOND

__all__ = ("Incarnation", "small_capacity", "starving")

CPU_SLOTS, ASYNC_SLOTS = 3, 4
SMALL_CAPACITY = 2
GRACE_SECONDS = (0.0, 1.0, 30.0)
LAST_WORDS_SECONDS = 2.0
SLOWER_PULSE = 60.0
"""Factor by which host heartbeats are slowed down; otherwise nothing else would happen."""


def small_capacity(dags: Iterable[DagSpec]) -> int:
    """Return the smallest capacity at which every trigger is hosted eventually.

    DAG triggers run forever and never release their slots. At least one further slot is needed;
    otherwise the triggers of tasks would never be hosted.
    """
    stay = sum(dag.trigger is not None and dag.trigger.class_path != ASSETS for dag in dags)
    return max(SMALL_CAPACITY, stay + 1)


def starving(triggerers: Iterable[Any], tables: Any) -> set[int]:
    """Return the runs whose streams fill a host while they need another slot in it.

    Apart from DAG triggers, the host has only triggers of these runs, so none of them can continue.
    """
    triggers, found = tables.triggers, set[int]()
    for triggerer in triggerers:
        waiting = {triggers[no].task_no for no in triggerer._waiting if no in triggers}
        hosted = [triggers.get(no) for no in triggerer._hosted if no not in tables.dag_triggers]
        held = [row for row in hosted if row and row.window and row.task_no in waiting]
        if len(held) == len(hosted):
            found |= {row.run_no for row in held}
    return found


class _SlowClock:
    """A clock with longer sleeps, which slows down the heartbeat."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now, self.monotonic_us = clock.now, clock.monotonic_us

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds * SLOWER_PULSE)


class Incarnation:
    """Performs the effects of its engine, and connects the actors to the node.

    Attributes:
        children: The trigger hosts of this life.
    """

    def __init__(self, node: Any, store: Any) -> None:
        self._node = node
        self.engine = Engine(
            store,
            Slots(cpu_slots=CPU_SLOTS, async_slots=ASYNC_SLOTS, remote_limits=LIMITS),
            clock=node.clock,
            random=node.rng.random,
        )
        self.engine.timers = Lengths(self.engine._steady, self.engine.report, node.found)
        self.engine.dispatcher.subscribe(self.committed)
        self._answers = QueryHandler(store, node.clock)
        files = node.files
        self._deleting = Deleting(self.engine, store, files.log, files.results, node.clock)
        self.children = InlineChildren(node, node.clock)
        self.triggerers = {role: self._triggerer(role) for role in (TRIGGERS, QUARANTINE)}
        self._workers = [Worker(node) for _ in range(CPU_SLOTS)]
        self._far = FarWorkers(node, CPU_SLOTS, lambda: self.engine.slots)
        self._async = {ASYNC: AsyncHost(node, node.seed)}
        self._services: Any = None
        self.engine.dispatcher.register(self._handlers())

    def _triggerer(self, role: str) -> Triggerer:
        node, nothing = self._node, Path("/nonexistent")
        unused: Any = None  # the output of triggers is discarded
        children: Any = ChildrenOfRole(self.children, role)
        context = ExecutorContext(
            children=children,
            code=nothing,
            results=nothing,
            tasklog=unused,
            report=self.engine.report,
            clock=node.clock,
            on_query=self._answers.submit,
        )
        capacity = small_capacity(node.dags) if node.faults.happens("capacity") else CAPACITY
        triggerer = Triggerer(context, role=role, capacity=capacity)
        triggerer._host._heartbeat = HostHeartbeat(_SlowClock(node.clock), HEALTH_SECONDS)
        return triggerer

    async def start(self, services: Any) -> None:
        """Start the engine, then its services."""
        self._services = services
        await services.start(self._answers.run)
        await services.start(self.engine.run)
        self._node.after(self._node.rng.randint(0, 3 * SECOND), self._async[ASYNC].come_up)
        for role in (TRIGGERS, QUARANTINE):
            services.start_soon(self.triggerers[role].run)
        services.start_soon(self._deleting.run)

    async def drain(self) -> None:
        """Stop as the daemon does after a stop signal."""
        self.engine.report([Drain()])
        with anyio.move_on_after(self._node.rng.choice(GRACE_SECONDS)):
            await self.engine.wait_until_still()
        self.engine.report([Drain(is_over=True)])
        with anyio.move_on_after(LAST_WORDS_SECONDS):
            await self.engine.wait_until_still()

    def restarting(self) -> set[int]:
        """Return the runs that wait in a shared poller that is restarted forever.

        A poller that ran for a long time before it failed is restarted. Its triggers are neither
        charged nor split up, however often it fails. See ``worker.trigger.shared_poller``.
        """
        found = set[int]()
        for role in self.triggerers:
            for hosted, run_nos in self.children.watches(role).items():
                corner, is_shared = hosted.watch, len(hosted.wants) > 1
                if is_shared and isinstance(corner, misbehaving.Corner) and corner.is_always_sound:
                    found |= run_nos
        return found

    def say(self, report: Input) -> None:
        """Put an actor's report into the inbox."""
        self.engine.report([report])

    def nothing_left(self) -> None:
        """Check that everything was released at the end of a seed."""
        for role, triggerer in self.triggerers.items():
            told = triggerer._known_runs
            for what in (triggerer._hosted, triggerer._waiting, triggerer._per_run, told):
                if set(what) - self._node.tables.dag_triggers.keys():  # DAG triggers stay
                    raise Broken("nothing left", f"the triggerer of {role} has {what}")
        if self._answers.waiting:
            raise Broken("nothing left", f"{self._answers.waiting} questions wait")
        self._far.nothing_left()
        for role, host in self._async.items():
            if host.hosted:
                raise Broken("nothing left", f"the {role} host has {list(host.hosted)}")

    # ── effects ─────────────────────────────────────────────────────────────────────────

    def _handlers(self) -> dict[type[Any], EffectHandler]:
        return {
            StartTry: self.start_try,
            StopTry: self.stop_try,
            RecallTries: self.recall,
            ConfirmCall: self.confirm,
            ForgetRun: self.forget,
            StartHost: self.start_host,
            SetWorkerDemand: self._far.set_demand,
            RetireWorker: self._far.retire,
            AssignTrigger: self.host,
            ReleaseTrigger: self.end_hosting,
            ConfirmEvents: self.take_events,
            RestoreCode: self.restore_code,
            DeliverOutbox: self.deliver,
        }

    def start_try(self, effect: StartTry) -> None:
        self._check(partial(self._starts_rightly, effect))
        self._node.files.print_something(effect.start.run_no)
        if effect.worker >= CPU_SLOTS:
            self._check(partial(self._far.start, effect))
            return
        host = self._async[effect.role] if effect.worker < 0 else self._workers[effect.worker]
        host.start(effect)

    def start_host(self, effect: StartHost) -> None:
        role = effect.role
        if role in self._async or role in self.triggerers:
            return
        if kind_of(role) == ASYNC:
            host = self._async[role] = AsyncHost(self._node, self._node.seed, role)
            self._node.after(self._node.rng.randint(0, 3 * SECOND), host.come_up)
        else:
            triggerer = self.triggerers[role] = self._triggerer(role)
            self._services.start_soon(triggerer.run)

    def stop_try(self, effect: StopTry) -> None:
        if effect.worker >= CPU_SLOTS:
            self._far.stop(effect)
            return
        host = self._async.get(effect.role) if effect.worker < 0 else self._workers[effect.worker]
        if host is not None:
            host.stop((effect.task_no, effect.start_no))

    def recall(self, effect: RecallTries) -> None:
        if effect.worker >= CPU_SLOTS:
            self._far.recall(effect)
        else:
            self._workers[effect.worker].recall(effect.tries)

    def forget(self, effect: ForgetRun) -> None:
        run_no = effect.run_no
        for host in self._async.values():
            host.forget(run_no)
        for triggerer in self.triggerers.values():
            triggerer.forget(run_no)

    def confirm(self, effect: ConfirmCall) -> None:
        self._async[effect.role].confirm(effect.recorded)

    def host(self, effect: AssignTrigger) -> None:
        self._check(partial(self._hosts_what_is_stored, effect))
        self.triggerers[effect.role].host(effect)

    def end_hosting(self, effect: ReleaseTrigger) -> None:
        if effect.end.reason == "cancelled":
            self._node.given_up.add(effect.end.trigger_no)
        self.triggerers[effect.role].end(effect)

    def take_events(self, effect: ConfirmEvents) -> None:
        for triggerer in self.triggerers.values():
            triggerer.take_events(effect)

    def restore_code(self, effect: RestoreCode) -> None:
        raise AssertionError("no code is missing here")

    def deliver(self, effect: DeliverOutbox) -> None:
        node = self._node
        node.ledger.handed.add(effect.outbox_no)
        delay = node.rng.randint(0, SECOND)
        node.after(delay, lambda: self.say(OutboxDelivered(effect.outbox_no)))

    def committed(self, batch: Batch, tx: Transaction) -> None:
        self._answers.committed(batch, tx)
        self._deleting.committed(batch, tx)
        self._node.committed(batch)
        self._check(self._triggerers_know_their_hosts)
        self._check(self._only_what_is_given_up_is_killed)

    # ── checks ──────────────────────────────────────────────────────────────────────────

    def _check(self, check: Callable[[], None]) -> None:
        """Run a check inside the engine's loop without failing its turn."""
        try:
            check()
        except Broken as exc:
            self._node.found(exc)

    def _starts_rightly(self, effect: StartTry) -> None:
        if not self.engine.slots.is_open:
            raise Broken("drain", f"task {effect.start.task_no} starts in a node that drains")
        invariants.start_is_stored(self._node, effect.start)

    def _triggerers_know_their_hosts(self) -> None:
        """Check that triggerers know the triggers of their hosts, except those ordered to stop."""
        for role, triggerer in self.triggerers.items():
            unknown = self.children.hosted(role).difference(triggerer._hosted)
            if unknown:
                raise Broken("hosting", f"the {role} host has {unknown}, its triggerer knows not")

    def _only_what_is_given_up_is_killed(self) -> None:
        """Check that ``on_kill`` was called only for triggers that no task waited for any more."""
        killed = misbehaving.Misbehaving.killed - self._node.given_up
        if killed:
            raise Broken("hosting", f"`on_kill` of {killed} was called, which went on")

    def _hosts_what_is_stored(self, effect: AssignTrigger) -> None:
        """Check that the hosted trigger, after encryption and decryption, is the stored one."""
        host, row = effect.host, self._node.tables.triggers.get(effect.host.trigger_no)
        if row is None and host.trigger_no not in self._node.tables.dag_triggers:
            raise Broken("I1 hosting", f"trigger {host.trigger_no} is hosted and not stored")
        if row is not None and (row.class_path, row.kwargs) != (host.class_path, host.kwargs):
            raise Broken("encrypted", f"{msgspec.structs.asdict(host)} is hosted, stored is {row}")
