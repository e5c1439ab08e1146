"""The processes of one incarnation at the first level, and who of them is told what."""

from __future__ import annotations

from aioflow.core.hosting import QUARANTINE, TRIGGERS
from aioflow.effects import (
    ConfirmCall,
    EndHosting,
    HostTrigger,
    RecallTries,
    StartTry,
    StopTry,
    TakeEvents,
)
from aioflow.orders import ForgetRun
from tests.sim.actors import Stage, Worker
from tests.sim.broken import Broken
from tests.sim.coroutines import AsyncHost
from tests.sim.trigger_actor import TriggerHost
from tests.sim.workload import SECOND

__all__ = ("Children",)


class Children:
    """Slot workers, the async host, a trigger host of each role."""

    def __init__(self, stage: Stage, seed: int, cpu_slots: int) -> None:
        self._stage = stage
        self._workers = [Worker(stage) for _ in range(cpu_slots)]
        self._async = AsyncHost(stage, seed)
        self._triggers = {role: TriggerHost(stage, role) for role in (TRIGGERS, QUARANTINE)}

    def come_up(self) -> None:
        """Those that are wanted always come up, each in its time."""
        for host in (self._async, self._triggers[TRIGGERS]):
            self._stage.after(self._stage.rng.randint(0, 3 * SECOND), host.come_up)

    def nothing_left(self) -> None:
        """In the end nothing is hosted.

        Raises:
            Broken: If something is.
        """
        if self._async.hosted:
            raise Broken("nothing left", f"the async host has {list(self._async.hosted)}")

    def tell_trigger_hosts(self, effect: HostTrigger | EndHosting | TakeEvents) -> None:
        """Pass on what is about a trigger."""
        match effect:
            case HostTrigger():
                self._triggers[effect.role].host(effect)
            case EndHosting():
                self._triggers[effect.role].end(effect.end)
            case TakeEvents():
                for host in self._triggers.values():
                    host.take_events(effect.taken)

    def tell_task_hosts(
        self, effect: StartTry | StopTry | RecallTries | ConfirmCall | ForgetRun
    ) -> None:
        """Pass on what is about a try."""
        match effect:
            case StartTry():
                host = self._async if effect.worker < 0 else self._workers[effect.worker]
                host.start(effect)
            case StopTry():
                stopped = self._async if effect.worker < 0 else self._workers[effect.worker]
                stopped.stop((effect.task_no, effect.start_no))
            case RecallTries():
                self._workers[effect.worker].recall(effect.tries)
            case ConfirmCall():
                self._async.confirm(effect.recorded)
            case ForgetRun():
                self._async.forget(effect.run_no)
