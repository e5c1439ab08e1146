"""The processes of one incarnation at the first level, and the routing of effects to them."""

from __future__ import annotations

from collections.abc import Callable

from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.child_roles import ASYNC, QUARANTINE, TRIGGERS, is_own, kind_of
from aioflow.protocol.commands import ForgetRun
from aioflow.protocol.effects import (
    AssignTrigger,
    ConfirmCall,
    ConfirmEvents,
    RecallTries,
    ReleaseTrigger,
    StartTry,
    StopTry,
)
from tests.sim.actors import Stage, Worker
from tests.sim.broken import Broken
from tests.sim.coroutines import AsyncHost
from tests.sim.remote import FarWorkers
from tests.sim.trigger_actor import TriggerHost
from tests.sim.workload import SECOND

__all__ = ("Children",)


class Children:
    """Slot workers, and a host for each role. Hosts of isolated DAGs are started on demand."""

    def __init__(self, stage: Stage, seed: int, cpu_slots: int, slots: Callable[[], Slots]) -> None:
        self._stage = stage
        self._workers = [Worker(stage) for _ in range(cpu_slots)]
        self.far = FarWorkers(stage, cpu_slots, slots)
        self._seed = seed
        self._async = {ASYNC: AsyncHost(stage, seed)}
        self._triggers = {role: TriggerHost(stage, role) for role in (TRIGGERS, QUARANTINE)}

    def come_up(self) -> None:
        """Start the permanent hosts, each after its own delay."""
        for host in (self._async[ASYNC], self._triggers[TRIGGERS]):
            self._stage.after(self._stage.rng.randint(0, 3 * SECOND), host.come_up)

    def start_host(self, role: str) -> None:
        """Start the host of an isolated DAG unless it is running. It stops once it is idle."""
        if role in self._async or role in self._triggers:
            return
        assert is_own(role)
        self._stage.points["own host"] += 1
        host: AsyncHost | TriggerHost
        if kind_of(role) == ASYNC:
            host = self._async[role] = AsyncHost(self._stage, self._seed, role)
        else:
            host = self._triggers[role] = TriggerHost(self._stage, role)
        self._stage.after(self._stage.rng.randint(0, 3 * SECOND), host.come_up)
        self._look_whether_idle(role, host)

    def _look_whether_idle(self, role: str, host: AsyncHost | TriggerHost) -> None:
        def look() -> None:
            if host.leave():
                self._stage.points["own host left"] += 1
                self._async.pop(role, None)
                self._triggers.pop(role, None)
            elif not self._stage.faults.healed:
                self._look_whether_idle(role, host)

        self._stage.after(self._stage.rng.choice((SECOND, 60 * SECOND)), look)

    def trigger_was_given(self, role: str, trigger_no: int, assignment_id: int) -> bool:
        """See ``TriggerHost.was_given``. True for a host that has stopped and reported that."""
        host = self._triggers.get(role)
        return host is None or host.was_given(trigger_no, assignment_id)

    def nothing_left(self) -> None:
        """Check that nothing is hosted at the end of a seed.

        Raises:
            Broken: If something is still hosted.
        """
        self.far.nothing_left()
        for role, host in self._async.items():
            if host.hosted:
                raise Broken("nothing left", f"the {role} host has {list(host.hosted)}")

    def tell_trigger_hosts(self, effect: AssignTrigger | ReleaseTrigger | ConfirmEvents) -> None:
        """Deliver an effect that concerns a trigger to the host of the trigger."""
        match effect:
            case AssignTrigger() if effect.role in self._triggers:
                self._triggers[effect.role].host(effect)
            case ReleaseTrigger() if effect.role in self._triggers:
                self._triggers[effect.role].end(effect.end)
            case AssignTrigger() | ReleaseTrigger():
                pass  # the host has stopped, and has reported so
            case ConfirmEvents():
                for host in self._triggers.values():
                    host.take_events(effect.confirmed)

    def tell_task_hosts(
        self, effect: StartTry | StopTry | RecallTries | ConfirmCall | ForgetRun
    ) -> None:
        """Deliver an effect that concerns a try to the host or worker of the try."""
        match effect:
            case StartTry() | StopTry() | RecallTries() if effect.worker >= len(self._workers):
                self.far.tell(effect)
            case StartTry():
                host = self._host_of(effect)
                if host is not None:
                    host.start(effect)
            case StopTry():
                stopped = self._host_of(effect)
                if stopped is not None:
                    stopped.stop((effect.task_no, effect.start_no))
            case RecallTries():
                self._workers[effect.worker].recall(effect.tries)
            case ConfirmCall():
                if effect.role in self._async:
                    self._async[effect.role].confirm(effect.recorded)
            case ForgetRun():
                for one in self._async.values():
                    one.forget(effect.run_no)

    def _host_of(self, effect: StartTry | StopTry) -> AsyncHost | Worker | None:
        if effect.worker >= 0:
            return self._workers[effect.worker]
        return self._async.get(effect.role)
