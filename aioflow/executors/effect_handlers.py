"""The effects that executors handle, each with its receiver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioflow.executors.host_pool import HostPool
from aioflow.executors.slot_executor import SlotExecutor
from aioflow.model.dag import Body
from aioflow.protocol.commands import ForgetRun
from aioflow.protocol.effects import (
    AssignTrigger,
    ConfirmCall,
    ConfirmEvents,
    RecallTries,
    ReleaseTrigger,
    StartHost,
    StartTry,
    StopTry,
)

__all__ = ("effect_handlers",)


def effect_handlers(slots: SlotExecutor, hosts: HostPool) -> dict[type[Any], Callable[[Any], None]]:
    """Return the handlers of effects that concern tries, triggers and their hosts."""

    def executor(effect: StartTry | StopTry) -> SlotExecutor | HostPool:
        return slots if effect.body is Body.FUNCTION else hosts

    def forget(effect: ForgetRun) -> None:
        slots.forget(effect.run_no)
        hosts.forget(effect.run_no)

    return {
        StartTry: lambda effect: executor(effect).start_try(effect),
        StopTry: lambda effect: executor(effect).stop_try(effect),
        RecallTries: slots.recall,
        ConfirmCall: hosts.confirm_call,
        ForgetRun: forget,
        StartHost: lambda effect: hosts.start(effect.role),
        AssignTrigger: hosts.assign_trigger,
        ReleaseTrigger: hosts.release_trigger,
        ConfirmEvents: hosts.confirm_events,
    }
