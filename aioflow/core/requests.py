"""Requests of the API to the engine: execution, refusal and response.

Secrets, connections and variables are rows that no decision depends on. After the encryption key of
the home changes, stored values are re-encrypted, one page per turn. A row that another change
writes in the same turn is skipped, because that change already encrypts it with the new key.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from aioflow.core import audit, dag_registry, notes, retention
from aioflow.core.accounts import answer_of_access
from aioflow.core.processes import set_drained
from aioflow.core.repair.clear import clear
from aioflow.core.repair.mark import mark
from aioflow.core.retention import delete_dag, delete_run, erase_rows
from aioflow.core.runs import backfills, create
from aioflow.core.runs.cancel import cancel
from aioflow.core.runs.task_counts import counted
from aioflow.core.scheduling.ready import Queue, Ready, still_waits
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import lifecycle, migration, named_events, votes
from aioflow.core.why import explain_children, explain_run, explain_task
from aioflow.errors import RequestError, RunQuarantined, UnknownRun
from aioflow.model.decisions import DecisionRow
from aioflow.model.pool_usage import PoolUsageRow, minute_of
from aioflow.model.rows import TriggerRow, ValueRow
from aioflow.model.states import TaskState, Wait, WaitKind
from aioflow.protocol.effects import Acknowledge
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.requests import (
    POOL_USAGE,
    AnswerDecision,
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
    EndOtherSessions,
    EndSession,
    EraseHistory,
    EraseOld,
    EraseRows,
    EraseVersions,
    Explain,
    ExplainChildren,
    FireTrigger,
    Holder,
    Mark,
    Note,
    NoteUse,
    OpenSession,
    RecordPoolUsage,
    Reencrypt,
    Reencrypted,
    Request,
    RevokeToken,
    SetAccount,
    SetNote,
    SetPaused,
    SetPool,
    SetValue,
    Share,
    ShowHolders,
    ShowPools,
    ShowShares,
    ShowWaiters,
    StartBackfill,
    Unquarantine,
    Waiter,
)

__all__ = (
    "KEY_ROTATION_PAGE",
    "MOST_POOLS",
    "SHARES_SAMPLED",
    "answer",
    "pool_holders",
    "pool_shares",
    "pool_waiters",
    "reencrypt_page",
    "set_value",
)


def pool_holders(pool: str, memory: Memory, slots: Slots, *, limit: int) -> list[Holder]:
    """Return the tasks that hold slots of a pool, running ones first; at most ``limit``."""
    return [
        _pool_holder(task, memory) for task in islice(_tasks_in_pool(pool, memory, slots), limit)
    ]


SHARES_SAMPLED = 1_000
"""Maximum number of tasks that are examined to find out which runs use a pool."""


def pool_shares(pool: str, memory: Memory, slots: Slots) -> list[Share]:
    """Return how many slots of a pool each run uses, largest number first.

    At most ``SHARES_SAMPLED`` tasks are counted, running ones first, so the cost is bounded.
    """
    used: Counter[tuple[str, str]] = Counter()
    for task in islice(_tasks_in_pool(pool, memory, slots), SHARES_SAMPLED):
        used[task.run.row.run_id, task.run.row.dag_id] += task.spec.slots
    return [Share(run_id, dag_id, count) for (run_id, dag_id), count in used.most_common()]


def _tasks_in_pool(pool: str, memory: Memory, slots: Slots) -> Iterator[TaskInstance]:
    for worker in slots.all_workers:
        if worker.current is not None and worker.pool == pool:
            yield worker.current
    for task in slots.at_work.values():
        if task.spec.pool == pool:
            yield task
    if not slots.used_by_deferred(pool):
        return
    for task_no, (where, _) in slots.pool_holds.items():
        pool_holds = memory.active_tasks.get(task_no) if where == pool else None
        if pool_holds is not None:
            yield pool_holds


_EXAMINED = 2_000
"""Maximum number of queue entries that are examined for one response."""


def pool_waiters(pool: str, ready: Ready, *, limit: int) -> list[Waiter]:
    """Return the entries that wait for slots of a pool, in queue order; at most ``limit``.

    A mapped task is a single entry for all of its children that have not been queued. Entries that
    a limit of their run or DAG holds back are omitted. The order may still change, because a
    resumed task, or a task of a DAG that has been served less, may overtake others.
    """
    found: list[Waiter] = []
    for entry in _in_order(ready.queues_of(pool)):
        if len(found) == limit:
            break
        if still_waits(entry):
            found.append(_waiter(entry))
    return found


def _in_order(queues: Iterable[Queue]) -> Iterable[TaskInstance | MappedTask]:
    """Yield the entries of several heaps by rank, without changing the heaps."""
    heaps = [queue for queue in queues if queue]
    next_ones = [(heap[0][:3], at, 0) for at, heap in enumerate(heaps)]
    heapq.heapify(next_ones)
    for _ in range(_EXAMINED):
        if not next_ones:
            return
        _, at, place = heapq.heappop(next_ones)
        heap = heaps[at]
        yield heap[place][3]
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heapq.heappush(next_ones, (heap[child][:3], at, child))


def _waiter(entry: TaskInstance | MappedTask) -> Waiter:
    row = entry.run.row
    mapped = entry if isinstance(entry, MappedTask) else None
    return Waiter(
        run_id=row.run_id,
        dag_id=row.dag_id,
        task_index=entry.task_index,
        map_index=-1 if isinstance(entry, MappedTask) else entry.map_index,
        children=0 if mapped is None else mapped.fresh,
        weight=entry.spec.slots,
        priority=entry.spec.priority,
        since=None if isinstance(entry, MappedTask) else entry.queued_at,
    )


def _pool_holder(task: TaskInstance, memory: Memory) -> Holder:
    row = task.run.row
    is_waiting = task.state is TaskState.DEFERRED
    since = task.started_at if task.started_at is not None else task.queued_at
    if is_waiting and task.wait is not None:
        since = memory.on_wall(task.wait.row.since)
    return Holder(
        row.run_id, row.dag_id, task.task_index, task.map_index, task.spec.slots, since, is_waiting
    )


def set_value(request: SetValue, tx: Transaction) -> None:
    """Set or delete a value. If several requests of a turn change a value, the last one wins."""
    row = ValueRow(
        kind=request.kind,
        name=request.name,
        value_no=tx.numbers.take(),
        at=tx.now,
        value=request.value,
    )
    tx.batch.values.append(row)


KEY_ROTATION_PAGE = 1_000
"""Number of triggers or decisions that are re-encrypted in one turn."""

MOST_POOLS = 200
"""Maximum number of pools that are sampled per minute, so that the table is bounded."""


def reencrypt_page(request: Reencrypt, tx: Transaction) -> Reencrypted:
    """Re-encrypt the rows that were loaded for this request.

    A second request in the same turn writes no rows, because the first one has consumed the loaded
    rows.
    """
    rows, tx.memory.encrypted = tx.memory.encrypted, []
    if request.of == "value":
        count = _reencrypt_values([row for row in rows if isinstance(row, ValueRow)], tx)
        dag_triggers, shut = _reencrypt_dag_triggers(tx)
        unopened = len(rows) - count + shut
        return Reencrypted(count + dag_triggers, unopened, Reencrypt(of="trigger"))
    count, last = 0, None
    for row in rows:
        if isinstance(row, TriggerRow):
            last = row.trigger_no
            if row.kwargs is not None:
                tx.batch.reencrypted.append((last, row.kwargs, row.next_kwargs))
                count += 1
        elif isinstance(row, DecisionRow):
            last = row.decision_no
            if row.question:
                tx.batch.reencrypted_decisions.append((last, row.question, row.answer))
                count += 1
    following = Reencrypt(of="decision") if request.of == "trigger" else None
    if len(rows) == KEY_ROTATION_PAGE:
        following = Reencrypt(of=request.of, after=last)
    return Reencrypted(count, len(rows) - count, following)


def _reencrypt_values(rows: Sequence[ValueRow], tx: Transaction) -> int:
    """Re-encrypt values and the end of the audit chain. Return how many values can be decrypted."""
    changed = {(row.kind, row.name) for row in tx.batch.values}
    opened = [row for row in rows if row.value is not None]
    tx.batch.values += [row for row in opened if (row.kind, row.name) not in changed]
    tx.accounts.reencrypt()
    return len(opened)


def _reencrypt_dag_triggers(tx: Transaction) -> tuple[int, int]:
    """Re-encrypt all triggers that start runs. They are few, so the first page includes them.

    Returns:
        How many triggers were written, and how many were skipped because no key decrypts them.
    """
    known = list(tx.memory.dag_triggers)
    readable = [one for one in known if one.row.kwargs is not None]
    for one in readable:
        tx.dag_triggers.rewrite(one)
    return len(readable), len(known) - len(readable)


def answer(asked: RequestReceived, tx: Transaction) -> Acknowledge:
    """Execute a request and return its response. A refused request changes nothing.

    If the request is a change by a known actor, its audit entry is stored in the same commit.
    """
    by = asked.by
    was = None if by is None else audit.audited_value(asked.request, tx.memory, tx.slots)
    tx.actor = by
    try:
        said = _answer(asked.request, tx)
    except RequestError as exc:
        return Acknowledge(asked.ticket, error=exc)
    finally:
        tx.actor = None
    line = None if by is None else audit.audit_entry_of(asked, by, was, said)
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
            | SetNote()
            | DeleteRun()
            | EraseRows()
        ):
            return _answer_of_run(request, tx)
        case SetPaused(dag_id=dag_id, paused=paused):
            return create.set_paused(dag_id, paused=paused, tx=tx)
        case SetPool() | RecordPoolUsage():
            return _answer_of_pools(request, tx)
        case EmitEvent() | FireTrigger() | AnswerDecision() | Unquarantine():
            return _answer_of_waits(request, tx)
        case SetValue():
            set_value(request, tx)
        case EraseOld() | EraseHistory() | EraseVersions() | DeleteDag():
            return _erase(request, tx)
        case Reencrypt():
            return reencrypt_page(request, tx)
        case DrainNode():
            return set_drained(request, tx)
        case (
            Explain()
            | ExplainChildren()
            | CountTasks()
            | ShowPools()
            | ShowHolders()
            | ShowShares()
            | ShowWaiters()
        ):
            return _answer_query(request, tx.memory, tx.slots)
        case CreateAccount() | SetAccount() | DeleteAccount() | CreateToken() | RevokeToken():
            return answer_of_access(request, tx)
        case OpenSession() | EndSession() | EndOtherSessions() | NoteUse() | Note():
            return answer_of_access(request, tx)
    return None


def _erase(
    request: EraseOld | EraseHistory | EraseVersions | DeleteDag, tx: Transaction
) -> int | None:
    """Delete rows that belong to no run."""
    match request:
        case EraseOld():
            retention.erase_old(request, tx)
        case EraseHistory():
            retention.erase_history(request, tx)
        case EraseVersions():
            return retention.erase_versions(request, tx)
        case DeleteDag():
            delete_dag(request, tx)
    return None


def _answer_query(
    request: Explain
    | ExplainChildren
    | CountTasks
    | ShowPools
    | ShowHolders
    | ShowShares
    | ShowWaiters,
    memory: Memory,
    slots: Slots,
) -> object:
    """Answer a request that changes nothing."""
    match request:
        case Explain():
            return _explain(request, memory, slots)
        case ExplainChildren(run_id=run_id, task_index=task_index):
            run = memory.find_run(run_id)
            return None if run is None else explain_children(run, task_index, memory, slots)
        case CountTasks(run_ids=run_ids):
            runs = {run_id: memory.find_run(run_id) for run_id in run_ids}
            return {run_id: counted(run) for run_id, run in runs.items() if run is not None}
        case ShowPools():
            return [(slots.pools[name], slots.used(name)) for name in sorted(slots.pools)]
        case ShowHolders(name=name, limit=limit):
            return pool_holders(name, memory, slots, limit=limit)
        case ShowWaiters(name=name, limit=limit):
            return pool_waiters(name, slots.ready, limit=limit)
        case ShowShares(name=name):
            return pool_shares(name, memory, slots)


def _answer_of_run(
    request: CreateRun
    | StartBackfill
    | CancelBackfill
    | CancelRun
    | ClearTasks
    | Mark
    | SetNote
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
        case SetNote():
            return notes.set_note(request, tx)
        case DeleteRun():
            delete_run(request, tx)
        case EraseRows():
            erase_rows(request, tx)
    return None


def _answer_of_waits(
    request: EmitEvent | FireTrigger | AnswerDecision | Unquarantine, tx: Transaction
) -> object:
    match request:
        case AnswerDecision():
            return votes.answer_decision(request, tx)
        case EmitEvent():
            return named_events.emit(request, tx)
        case FireTrigger():
            return lifecycle.fire_manually(request, tx)
        case Unquarantine(class_path=class_path):
            return migration.release_class(class_path, tx)


def _answer_of_pools(request: SetPool | RecordPoolUsage, tx: Transaction) -> bool | None:
    match request:
        case SetPool():
            return _set_pool(request, tx)
        case RecordPoolUsage():
            _record_pool_usage(request, tx)
    return None


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
    dag_registry.recheck_pool_fit(tx, tx.slots.pools)
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
    for task_index, map_index in request.tasks:
        found[task_index, map_index] = explain_task(run, task_index, map_index, memory, slots)
    return found


def _record_pool_usage(request: RecordPoolUsage, tx: Transaction) -> None:
    """Store a sample of each pool that is used or waited for, and delete expired samples.

    If there are too many pools, those with the fewest waiting tasks are not sampled.
    """
    busy = [one for one in request.pools if one.used or one.queued]
    if len(busy) > MOST_POOLS:
        busy = sorted(busy, key=lambda one: (-one.queued, -one.used, one.pool))[:MOST_POOLS]
    start = minute_of(tx.now)
    tx.batch.pool_usage.extend(
        PoolUsageRow(one.pool, start, one.slots, one.used, one.queued) for one in busy
    )
    if request.expired:
        tx.batch.erased.setdefault(POOL_USAGE, []).extend(request.expired)
