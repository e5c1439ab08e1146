"""Events that a person gives to a task in place of its trigger."""

from __future__ import annotations

import msgspec

from aioflow.core.state.task_instance import TriggerInstance
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import lifecycle
from aioflow.core.triggers.event_stream import MANUAL_INDEX
from aioflow.errors import RequestError, UnknownTrigger
from aioflow.model.states import TriggerState
from aioflow.protocol.commands import StopTrigger
from aioflow.protocol.effects import ReleaseTrigger
from aioflow.protocol.reports import TriggerFired
from aioflow.protocol.requests import FireTrigger

__all__ = ("fire",)

_NOTHING = msgspec.msgpack.encode(None)


def fire(request: FireTrigger, tx: Transaction) -> tuple[str, str, int]:
    """Process the event as if the trigger had yielded it. Return run, task and map index.

    It ends the trigger, unless that is a stream: its host must release it, as after any wait that
    has ended. A stream continues.

    Raises:
        UnknownTrigger: If no such trigger waits.
        RequestError: If its event cannot be given manually.
    """
    of_dag = tx.memory.dag_triggers.get(request.trigger_no)
    if of_dag is not None:
        raise RequestError(
            f"trigger {request.trigger_no} starts runs of {of_dag.row.dag_id}; start one yourself "
            f"with `aioflow dags trigger {of_dag.row.dag_id}`"
        )
    wait = tx.memory.waits.get(request.trigger_no)
    if wait is None or wait.task is None or wait.state is not TriggerState.WAITING:
        raise UnknownTrigger(request.trigger_no)
    task = wait.task
    told = task.run.row.run_id, task.spec.task_id, task.map_index
    end = _end_of(wait)
    lifecycle.fire(wait, _event(wait, request, tx), tx)
    if end is not None:
        tx.effects.append(end)
    return told


def _event(wait: TriggerInstance, request: FireTrigger, tx: Transaction) -> TriggerFired:
    ends, payload = "", request.payload
    if wait.row.ordinal < 0 and not wait.row.next_method and wait.stream is None:
        if wait.task is not None and wait.task.spec.feeds_limit is not None:
            raise RequestError(
                f"the event of trigger {request.trigger_no} is a result that others expand over, "
                "which cannot be given by hand; mark the task instead"
            )
        ends, payload = "success", b"" if payload == _NOTHING else payload
    return TriggerFired(
        trigger_no=wait.row.trigger_no,
        hosting=wait.hosting,
        index=MANUAL_INDEX,
        at=tx.now,
        payload=payload,
        key=request.key,
        ends=ends,
    )


def _end_of(wait: TriggerInstance) -> ReleaseTrigger | None:
    """Return the effect that releases the trigger from its host; ``None`` if none is needed."""
    if wait.stream is not None or not wait.hosting:
        return None
    return ReleaseTrigger(StopTrigger(wait.row.trigger_no, wait.hosting, "finished"), wait.role)
