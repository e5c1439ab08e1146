"""The effects that executors handle, each with its receiver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioflow.executors.host_pool import HostPool
from aioflow.executors.remote_executor import RemoteExecutors
from aioflow.executors.worker_pool import WorkerPool
from aioflow.model.dag import Body
from aioflow.protocol.commands import ForgetRun
from aioflow.protocol.effects import (
    AssignTrigger,
    ConfirmCall,
    ConfirmEvents,
    RecallTries,
    ReleaseTrigger,
    RetireWorker,
    SetWorkerDemand,
    StartHost,
    StartTry,
    StopTry,
)

__all__ = ("effect_handlers",)


def effect_handlers(
    slots: WorkerPool, hosts: HostPool, remote: RemoteExecutors
) -> dict[type[Any], Callable[[Any], None]]:
    """Return the handlers of effects that concern tries, triggers and their hosts."""

    def executor(effect: StartTry | StopTry) -> WorkerPool | HostPool | RemoteExecutors:
        if effect.body is not Body.FUNCTION:
            return hosts
        return slots if effect.worker < remote.first_worker_no else remote

    def recall(effect: RecallTries) -> None:
        (slots if effect.worker < remote.first_worker_no else remote).recall(effect)

    def forget(effect: ForgetRun) -> None:
        slots.forget(effect.run_no)
        remote.forget(effect.run_no)
        hosts.forget(effect.run_no)

    return {
        StartTry: lambda effect: executor(effect).start_try(effect),
        StopTry: lambda effect: executor(effect).stop_try(effect),
        RecallTries: recall,
        SetWorkerDemand: remote.set_demand,
        RetireWorker: remote.retire,
        ConfirmCall: hosts.confirm_call,
        ForgetRun: forget,
        StartHost: lambda effect: hosts.start(effect.role),
        AssignTrigger: hosts.assign_trigger,
        ReleaseTrigger: hosts.release_trigger,
        ConfirmEvents: hosts.confirm_events,
    }
