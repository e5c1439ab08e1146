"""Requests of the API to the engine: execution, refusal and response."""

from __future__ import annotations

from aioflow.core import audit, key_rotation, manual_events, named_values, retention
from aioflow.core.access import answer_of_access
from aioflow.core.delete import delete, delete_dag, erase
from aioflow.core.draining import set_drained
from aioflow.core.pool_usage import holders
from aioflow.core.repair.clear import clear
from aioflow.core.repair.mark import mark
from aioflow.core.runs import backfills, create, pool_fit
from aioflow.core.runs.cancel import cancel
from aioflow.core.runs.task_counts import counted
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import Run
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import isolation, named_events
from aioflow.core.why import explain_run, explain_task
from aioflow.core.why_children import explain_children
from aioflow.errors import RequestError, RunQuarantined, UnknownRun
from aioflow.model.states import Wait, WaitKind
from aioflow.protocol.effects import Acknowledge
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.requests import (
    CancelBackfill,
    CancelRun,
    ClearTasks,
    CountTasks,
    CreateAccount,
    CreateRun,
    CreateToken,
    DeleteAccount,
    DeleteDag,
    DeleteRun,
    DrainNode,
    EmitEvent,
    EndLogin,
    EraseOld,
    EraseRows,
    EraseVersions,
    Explain,
    ExplainChildren,
    FireTrigger,
    Mark,
    Note,
    NoteUse,
    OpenLogin,
    Reencrypt,
    Request,
    RevokeToken,
    SetAccount,
    SetPaused,
    SetPool,
    SetValue,
    ShowHolders,
    ShowPools,
    StartBackfill,
    Unquarantine,
)

__all__ = ("answer",)


def answer(asked: RequestReceived, tx: Transaction) -> Acknowledge:
    """Execute a request and return its response. A refused request changes nothing.

    A change that has an author gets an audit entry in the same commit.
    """
    by = asked.by
    was = None if by is None else audit.before(asked.request, tx.memory, tx.slots)
    try:
        said = _answer(asked.request, tx)
    except RequestError as exc:
        return Acknowledge(asked.ticket, error=exc)
    line = None if by is None else audit.line_of(asked, by, was, said)
    if line is not None:
        tx.accounts.note(line)
    return Acknowledge(asked.ticket, said)


def _answer(request: Request, tx: Transaction) -> object:
    match request:
        case (
            CreateRun()
            | StartBackfill()
            | CancelBackfill()
            | CancelRun()
            | ClearTasks()
            | Mark()
            | DeleteRun()
            | EraseRows()
        ):
            return _answer_of_run(request, tx)
        case SetPaused(dag_id=dag_id, paused=paused):
            return create.set_paused(dag_id, paused=paused, tx=tx)
        case SetPool():
            return _set_pool(request, tx)
        case EmitEvent() | FireTrigger() | Unquarantine():
            return _answer_of_waits(request, tx)
        case SetValue():
            named_values.keep(request, tx)
        case EraseOld() | EraseVersions() | DeleteDag():
            return _erase(request, tx)
        case Reencrypt():
            return key_rotation.reencrypt(request, tx)
        case DrainNode():
            return set_drained(request, tx)
        case Explain() | ExplainChildren() | CountTasks() | ShowPools() | ShowHolders():
            return _tell(request, tx.memory, tx.slots)
        case CreateAccount() | SetAccount() | DeleteAccount() | CreateToken() | RevokeToken():
            return answer_of_access(request, tx)
        case OpenLogin() | EndLogin() | NoteUse() | Note():
            return answer_of_access(request, tx)
    return None


def _erase(request: EraseOld | EraseVersions | DeleteDag, tx: Transaction) -> int | None:
    """Delete rows that belong to no run."""
    match request:
        case EraseOld():
            retention.erase_old(request, tx)
        case EraseVersions():
            return retention.erase_versions(request, tx)
        case DeleteDag():
            delete_dag(request, tx)
    return None


def _tell(
    request: Explain | ExplainChildren | CountTasks | ShowPools | ShowHolders,
    memory: Memory,
    slots: Slots,
) -> object:
    """Answer a request that changes nothing."""
    match request:
        case Explain():
            return _explain(request, memory, slots)
        case ExplainChildren(run_id=run_id, position=position):
            run = memory.find_run(run_id)
            return None if run is None else explain_children(run, position, memory, slots)
        case CountTasks(run_ids=run_ids):
            runs = {run_id: memory.find_run(run_id) for run_id in run_ids}
            return {run_id: counted(run) for run_id, run in runs.items() if run is not None}
        case ShowPools():
            return [(slots.pools[name], slots.used(name)) for name in sorted(slots.pools)]
        case ShowHolders(name=name, limit=limit):
            return holders(name, memory, slots, limit=limit)


def _answer_of_run(
    request: CreateRun
    | StartBackfill
    | CancelBackfill
    | CancelRun
    | ClearTasks
    | Mark
    | DeleteRun
    | EraseRows,
    tx: Transaction,
) -> object:
    match request:
        case CreateRun():
            return create.create_run(request, tx)
        case StartBackfill():
            return backfills.start(request, tx)
        case CancelBackfill(backfill_no=number):
            backfills.cancel_backfill(number, tx)
        case CancelRun(run_id=run_id):
            return cancel(_find(run_id, tx.memory), tx)
        case ClearTasks():
            return clear(request, tx)
        case Mark():
            return mark(request, tx)
        case DeleteRun():
            delete(request, tx)
        case EraseRows():
            erase(request, tx)
    return None


def _answer_of_waits(request: EmitEvent | FireTrigger | Unquarantine, tx: Transaction) -> object:
    match request:
        case EmitEvent():
            return named_events.emit(request, tx)
        case FireTrigger():
            return manual_events.fire(request, tx)
        case Unquarantine(class_path=class_path):
            return isolation.release(class_path, tx)


def _set_pool(request: SetPool, tx: Transaction) -> bool:
    name = request.name
    before = tx.slots.pools.get(name)
    tx.pools_before.setdefault(name, before)
    after = tx.slots.set_pool(
        name, request.slots, tx.memory, include_deferred=request.include_deferred
    )
    if before == after:
        return False
    # Replace the change of an earlier request of this turn.
    tx.batch.pools = [pool for pool in tx.batch.pools if pool.name != name]
    tx.batch.gone_pools = [gone for gone in tx.batch.gone_pools if gone != name]
    if after is None:
        tx.batch.gone_pools.append(name)
    else:
        tx.batch.pools.append(after)
    pool_fit.pools_changed(tx, tx.slots.pools)
    return True


def _find(run_id: str, memory: Memory) -> Run:
    run = memory.find_run(run_id)
    isolated = memory.find_isolated(run_id) if run is None else None
    if isolated is not None:
        raise RunQuarantined(run_id, isolated.quarantine or "")
    if run is None:
        raise UnknownRun(run_id)
    return run


def _explain(request: Explain, memory: Memory, slots: Slots) -> dict[tuple[int, int], Wait | None]:
    isolated = memory.find_isolated(request.run_id)
    if isolated is not None:
        wait = Wait(kind=WaitKind.QUARANTINED, detail=isolated.quarantine or "")
        return dict.fromkeys([(-1, -1), *request.tasks], wait)
    run = _find(request.run_id, memory)
    found: dict[tuple[int, int], Wait | None] = {(-1, -1): explain_run(run, memory)}
    for position, map_index in request.tasks:
        found[position, map_index] = explain_task(run, position, map_index, memory, slots)
    return found
