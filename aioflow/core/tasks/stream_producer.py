"""Tasks that give their items on before they have ended: each stored, then taken by a child.

A task that waits for room in the window of those that take its items is *held*: it is told
of what is stored when a turn leaves room, and until then does not go on. It keeps its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.core.runs.run import step
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.streams import StreamOutput
from aioflow.core.state.task_instance import MappedTask, TaskInstance
from aioflow.core.tasks import stream_expand
from aioflow.core.tasks.expand import check_cap
from aioflow.core.tasks.tries import fail, stop_of
from aioflow.core.transaction import Transaction
from aioflow.errors import FanOutCapped
from aioflow.model.dag import Body
from aioflow.model.states import Failure, TaskState
from aioflow.protocol.commands import ItemsStored
from aioflow.protocol.effects import ConfirmCall
from aioflow.protocol.reports import ItemYielded

__all__ = ("full_window", "give", "go_on", "has_room", "take", "too_many")


def take(live: TaskInstance, report: ItemYielded, draft: Transaction, slots: Slots) -> None:
    """A generator yielded. What an earlier try of it had yielded is known by its index."""
    if live.state is not TaskState.RUNNING:
        return
    given = live.run.items.get(live.task_no)
    count = 0 if given is None else given.count
    if report.index > count:
        raise ValueError(f"item {report.index} of task {live.task_no} after {count}")
    if report.index == count:
        capped = give(live, [report.payload], draft, slots)
        if capped is not None:
            too_many(live, capped, draft, slots)
            return
        if live.interruptions:  # it came further than where it had been cut short
            live.interruptions = 0
            draft.touch(live)
    draft.memory.held[live.task_no] = live


def too_many(live: TaskInstance, capped: FanOutCapped, draft: Transaction, slots: Slots) -> None:
    """Fail a task that gave on more than it may; what has begun with its items goes on."""
    if live.is_hosted or live.worker >= 0:
        draft.effects.append(stop_of(live, live.start_no, "failed"))
    slots.release(live)
    failure = Failure(type="FanOutCapped", message=str(capped), reason="fanout_cap")
    fail(live, failure, draft, slots)


def give(
    live: TaskInstance, payloads: Sequence[bytes], draft: Transaction, slots: Slots
) -> FanOutCapped | None:
    """Add items to the output of a task; those that take them begin with them.

    Returns:
        Why not all of them were taken, if there are more than may be expanded over.
    """
    run, spec = live.run, live.spec
    if not payloads:
        return None
    given = run.items.get(live.task_no)
    if given is None:
        given = run.items[live.task_no] = StreamOutput()
    capped = None
    for payload in payloads:
        if spec.feeds_limit is not None:
            capped = check_cap(given.count + 1, spec.feeds_limit, is_whole=False)
        if capped is not None:
            break
        draft.new_item(live, given.count, payload)
        given.add(payload)
    if spec.streams:
        _feed(live, draft, slots)
    return capped


def _feed(live: TaskInstance, draft: Transaction, slots: Slots) -> None:
    run = live.run
    takers = stream_expand.takers(run, live.position)
    for taker in takers:
        group = run.groups.get(taker)
        if group is not None and group.is_open:
            stream_expand.grow(run, taker, draft, slots)
    step(run, [taker for taker in takers if taker not in run.groups], draft, slots)


def has_room(live: TaskInstance, slots: Slots) -> bool:
    """Whether a task may give on more, as far as the windows of those that take it say."""
    return full_window(live, slots) is None


def full_window(live: TaskInstance, slots: Slots) -> MappedTask | None:
    """Return the fan-out that is as wide as its window allows, if there is one.

    Where none of the children can go on because all places are taken, perhaps by the very
    tasks that wait for them, the task is not held back: nobody would ever leave a place.
    """
    for taker in stream_expand.takers(live.run, live.position):
        group = live.run.groups.get(taker)
        window = live.run.spec.tasks[taker].window
        if group is None or window is None or group.width - group.ended < window:
            continue
        if not _are_kept_out(live, taker, slots) or _has_one_at_work(group):
            return group
    return None


def _are_kept_out(live: TaskInstance, taker: int, slots: Slots) -> bool:
    """Whether no further child can have a place."""
    run, child = live.run, live.run.spec.tasks[taker]
    pool = slots.pools.get(child.pool)
    at_once = run.spec.max_active_tasks
    return (
        (child.body is Body.COROUTINE and slots.running_coroutines >= slots.coroutines)
        or (at_once is not None and run.running >= at_once)
        or (pool is not None and slots.used(child.pool) + child.slots > pool.slots)
    )


def _has_one_at_work(group: MappedTask) -> bool:
    """Whether a child has a place, or comes back for one at its time."""
    return any(
        live.position == group.position
        and (live.state is not TaskState.QUEUED or live.worker >= 0 or live.is_hosted)
        for live in group.run.live.values()
    )


def go_on(draft: Transaction, slots: Slots) -> list[TaskInstance]:
    """Tell the held tasks what is stored, where there is room now.

    Returns:
        Those of them that hold no place: operators that may take further events.
    """
    held = draft.memory.held
    waiting = []
    for task_no, live in list(held.items()):
        if draft.memory.live.get(task_no) is not live:
            del held[task_no]
        elif live.state is TaskState.RUNNING:
            if not has_room(live, slots):
                continue
            del held[task_no]
            if not live.is_hosted:
                continue
            given = live.run.items.get(task_no)
            upto = 0 if given is None else given.count
            taken = ItemsStored(task_no, live.start_no, upto)
            draft.effects.append(ConfirmCall(taken, live.run.async_role))
        elif live.state is TaskState.DEFERRED and has_room(live, slots):
            del held[task_no]
            waiting.append(live)
        elif live.state is not TaskState.DEFERRED:
            del held[task_no]
    return waiting
