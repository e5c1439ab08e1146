"""Search for the task or trigger that kills its process, without charging the others a try.

A process may die because it is killed from outside, for which no task is responsible, or because of
code that ran in it. After the first death everything restarts immediately. After the second death
the tasks that were running restart in *groups*, one group after the other. Until the last group has
been cleared, nothing else starts in that process. The groups are halves of the suspects, and each
further death halves them again. A group is cleared once its tasks have ended, or have run for
longer than they had run when the process died.

The triggers are suspects as well when the daemon dies, because their host is a child of the daemon.
Triggers may wait for months and a trial delays them, so they become suspects only at the third
consecutive death. A death is forgotten once the daemon has lived for an hour, or once none of the
triggers that existed at that death is left. While triggers are in groups, no other trigger is
assigned to a host.

A task or trigger that is alone in its group is charged if the process has died with it more often
than a task in its own worker may be interrupted. A charged task fails without a further try. Before
the suspect restarts alone, a *control* runs, which is an empty group. If the process dies during
the control, something else kills it, and all suspects are cleared. The trigger of a DAG has no task
to charge, so it is not assigned to a host again until the file of its DAG changes.

The trial is stored as an outbox row, because the daemon itself may be the process that dies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from aioflow.core.state.crash_trials import (
    DAEMON,
    hosted_only,
    is_barred,
    known_tasks,
    may_host,
    waits_to_start,
)
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import TaskInstance
from aioflow.core.tasks.retry import INTERRUPTION_LIMIT_OWN
from aioflow.core.transaction import Transaction
from aioflow.model.ids import TaskNo, TriggerNo
from aioflow.model.states import Failure, TaskState, TriggerState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.effects import WakeAt, Warn
from aioflow.protocol.inputs import TimerFired
from aioflow.protocol.outbox import TRIAL, Span, Trial

__all__ = (
    "TRIGGER_DEATHS",
    "advance_trial",
    "bar",
    "crash_failure",
    "crashed",
    "crashing_triggers",
    "stop",
    "wake",
)


TRIGGER_DEATHS = 3
"""Number of consecutive deaths of the daemon after which triggers are suspected."""

_MARGIN_US = 1_000_000
"""Time added to a proof, because a task may start later in its new process than in the old one."""

_FIRST_PROOF_US = 1_000_000
_LONGEST_PROOF_US = 3_600_000_000
_GROWTH = 4
"""Factor by which each interruption multiplies the upper limit of the proof time.

This limit is ``_FIRST_PROOF_US`` without interruptions, and never above ``_LONGEST_PROOF_US``.
"""

_FORGOTTEN_AFTER_US = _LONGEST_PROOF_US
"""Time after which deaths of the daemon are forgotten.

A trigger that takes longer than this to kill the daemon could not be found anyway.
"""

_PATIENCE_US = 600_000_000
"""Time after which a suspect that limits or pools delay starts together with everything else."""

_LOOKED_AT = 1_000

_NO_TRIGGERS = Span()

_encode = msgspec.msgpack.Encoder().encode


def crashed(
    process: str,
    running: Sequence[TaskInstance],
    tx: Transaction,
    hosted: Iterable[TriggerNo] = (),
) -> None:
    """Decide which tasks and triggers restart first after the death of a process.

    Must be called before the tasks are interrupted. If another host dies while the tasks of one
    host restart in groups, nothing changes, because that death is not evidence about these tasks.
    The tasks of the other host restart after the current trial, and are suspected if their host
    dies again.

    Args:
        running: The tasks that ran in the process.
        hosted: If the daemon died, the triggers that were assigned to hosts. Iterated only as far
            as needed.
    """
    before = tx.memory.trial or Trial(process)
    is_part = bool(before.groups) and before.process in {process, DAEMON}
    if before.groups and not is_part and process != DAEMON:
        return
    tasks = list(running)
    counted, triggers = _counted(before, hosted, tx)
    since = tx.steady if process == DAEMON else before.since
    after = _without_groups(replace(counted, process=process, since=since), tx)
    if is_part:
        if not before.groups[0] and _span(before) == _NO_TRIGGERS:
            _acquit(after, tx, is_of_triggers=bool(before.spans))
            return
        tasks = [task for task in running if task.task_no in before.groups[0]]
        triggers = [number for number in triggers if may_host(number, tx.memory)]
        if not (tasks or triggers):  # the process died before any of them started
            has_begun = before.has_begun and process != DAEMON
            until = tx.steady + before.proof_us
            _put(replace(counted, until=until, has_begun=has_begun), tx)
            return
    is_repeated = is_part or after.alone or triggers or any(task.interruptions for task in tasks)
    if is_repeated and (tasks or triggers):
        times = after.deaths - TRIGGER_DEATHS + 1 if triggers else 0
        proof_us = _proof_us(running, before, tx, times=times)
        are_held = bool(triggers or (is_part and before.spans and process == DAEMON))
        after = replace(after, proof_us=proof_us)
        after = _divided(tasks, triggers, after, tx, are_held=are_held)
    else:
        after = replace(after, proof_us=0)
    _put(after, tx)


def _counted(
    before: Trial, hosted: Iterable[TriggerNo], tx: Transaction
) -> tuple[Trial, list[TriggerNo]]:
    """Count a death of the daemon. Return the updated trial and the triggers that are suspects now.

    A death counts only if triggers were assigned to hosts. Deaths count as consecutive as long as a
    trigger still exists that existed at the first of them.
    """
    triggers: list[TriggerNo] = []
    is_row = False
    for number in hosted:
        triggers.append(number)
        is_row = is_row or number < before.row_end
        if before.deaths + 1 < TRIGGER_DEATHS and is_row == (before.deaths > 0):
            break  # further suspects make no difference
    if not triggers:
        return before, []
    if not is_row:
        return replace(before, deaths=1, row_end=tx.numbers.take()), []
    deaths = before.deaths + 1
    return replace(before, deaths=deaths), triggers if deaths >= TRIGGER_DEATHS else []


def _without_groups(trial: Trial, tx: Transaction) -> Trial:
    """Return the trial without groups, so that everything may start now."""
    return replace(
        trial,
        groups=(),
        spans=(),
        has_begun=False,
        until=tx.steady + _FORGOTTEN_AFTER_US,
        alone=tuple(pair for pair in trial.alone if _is_there(tx.memory, pair[0])),
    )


def _acquit(after: Trial, tx: Transaction, *, is_of_triggers: bool) -> None:
    """Clear all suspects, because the process died while none of them ran.

    Args:
        is_of_triggers: Whether triggers were among the suspects. If not, a trigger may still be
            responsible for the death.
    """
    facts: dict[str, str | int] = {"process": after.process}
    tx.effects.append(
        Warn("died while no suspected task ran; no task is suspected any more", facts)
    )
    _put(replace(after, alone=(), deaths=0 if is_of_triggers else after.deaths), tx)


def _divided(
    tasks: Sequence[TaskInstance],
    triggers: Sequence[TriggerNo],
    trial: Trial,
    tx: Transaction,
    *,
    are_held: bool,
) -> Trial:
    """Return the trial with these suspects in groups, or without groups if one of them is charged.

    Suspects that were already alone come first, one at a time. The others follow in two halves.

    Args:
        are_held: Whether only triggers of a group may be assigned to hosts during the trial.
    """
    ranked = sorted(tasks, key=lambda task: (-task.interruptions, task.task_no))
    found = [*(task.task_no for task in ranked), *sorted(triggers)]
    counts = dict(trial.alone)
    if len(found) == 1:
        counts[found[0]] = counts.get(found[0], 0) + 1
    trial = replace(trial, alone=tuple(counts.items()))
    facts: dict[str, str | int] = {"process": trial.process, "tasks": len(tasks)}
    if triggers:
        facts["triggers"] = len(triggers)
    tx.effects.append(Warn("died again; the tasks that ran start before all others", facts))
    if len(found) == 1 and counts[found[0]] > INTERRUPTION_LIMIT_OWN:
        return trial  # the suspect is charged
    known = sorted((n for n in found if n in counts), key=lambda number: -counts[number])
    others = [number for number in found if number not in counts]
    half = (len(others) + 1) // 2
    control: list[list[int]] = [[]] if known and counts[known[0]] > 1 else []
    halves = [part for part in (others[:half], others[half:]) if part]
    parts = [*control, *([number] for number in known), *halves]
    are_tasks = {task.task_no for task in tasks}
    spans = [_span_of([number for number in part if number not in are_tasks]) for part in parts]
    groups = tuple(tuple(n for n in part if n in are_tasks) for part in parts)
    tx.memory.group_may_begin_since = None
    return replace(
        trial,
        groups=groups,
        spans=tuple(spans) if are_held else (),
        until=tx.steady + _first_poke_us(groups[0], trial),
    )


def _span_of(numbers: Sequence[TriggerNo]) -> Span:
    """Return sorted trigger numbers as a span."""
    return Span(numbers[0], numbers[-1] + 1, len(numbers)) if numbers else _NO_TRIGGERS


def _span(trial: Trial) -> Span:
    """Return the span of the triggers in the first group."""
    return trial.spans[0] if trial.spans else _NO_TRIGGERS


def _proof_us(
    running: Iterable[TaskInstance], before: Trial, tx: Transaction, *, times: int
) -> int:
    """Return how long a group must run before it is cleared.

    This is the longest time that any task had run, or triggers had been hosted, at this death or an
    earlier one. Earlier deaths count because a suspect that was cleared too soon may have caused
    this one. The time is limited because the other tasks are delayed meanwhile; the limit is lower
    after few deaths.

    Args:
        times: How often the daemon has died while triggers were suspected.
    """
    lengths = [tx.now - (task.started_at or tx.now) for task in running]
    if times:
        lengths.append(tx.steady - before.since)
    most = max([times, *(task.interruptions + 1 for task in running)])
    bearable_us = min(_FIRST_PROOF_US * int(_GROWTH ** min(most, 10)), _LONGEST_PROOF_US)
    return min(max(max(lengths) + _MARGIN_US, before.proof_us, _MARGIN_US), bearable_us)


def _began(task: TaskInstance, tx: Transaction) -> Timestamp:
    """Return when a running task started, in steady time; 0 if the clock was set back since."""
    started_at = tx.now if task.started_at is None else task.started_at
    return started_at - tx.at.shift if started_at <= tx.now else 0


def bar(number: TriggerNo, version: str, tx: Transaction) -> None:
    """Exclude the trigger of a DAG from hosts while the DAG has this version."""
    trial = tx.memory.trial or Trial(DAEMON)
    alone = tuple(pair for pair in trial.alone if pair[0] != number)
    _put(replace(trial, alone=alone, barred=(*trial.barred, (number, version))), tx)


def crash_failure(number: TaskNo | TriggerNo, memory: Memory) -> Failure | None:
    """Return the failure of a task or trigger charged with a crash; ``None`` if not charged."""
    trial = memory.trial
    count = 0 if trial is None else dict(trial.alone).get(number, 0)
    if trial is None or count <= INTERRUPTION_LIMIT_OWN:
        return None
    whose = "the daemon" if trial.process == DAEMON else "its host"
    message = f"{whose} died each of the {count} times that it ran alone"
    return Failure(type="Killed", message=message, reason="interrupted")


def crashing_triggers(memory: Memory) -> list[tuple[TriggerNo, Failure]]:
    """Return the triggers that killed the daemon but have not been failed, with their failures."""
    numbers = [] if memory.trial is None else [number for number, _ in memory.trial.alone]
    found = [(n, crash_failure(n, memory)) for n in numbers if n not in memory.active_tasks]
    return [(number, failure) for number, failure in found if failure is not None]


def advance_trial(tx: Transaction, *, is_open: bool) -> None:
    """Start the next group if the current one is cleared. After the last group, start the rest.

    Args:
        is_open: Whether anything may start now.
    """
    trial = tx.memory.trial
    if trial is None:
        return
    trial = replace(
        trial,
        alone=tuple(pair for pair in trial.alone if _is_suspect(tx.memory, pair[0])),
        barred=tuple(pair for pair in trial.barred if is_barred(pair[0], tx.memory)),
    )
    _note_whether_it_may_begin(trial, tx, is_open=is_open)
    while trial.groups and (after := _evaluated(trial, tx)) != trial:
        if after.groups != trial.groups and tx.memory.group_may_begin_since is not None:
            tx.memory.group_may_begin_since = tx.steady
        trial = after
    if not trial.groups and trial.deaths and tx.steady >= trial.until:
        alone = tuple(pair for pair in trial.alone if pair[0] in tx.memory.active_tasks)
        trial = replace(trial, deaths=0, alone=alone)
    if is_open and not trial.has_begun and _span(trial) != _NO_TRIGGERS:
        now = tx.memory.group_may_begin_since = tx.steady
        trial = replace(trial, has_begun=True, since=now, until=now + trial.proof_us)
    _put(trial, tx)


def _note_whether_it_may_begin(trial: Trial, tx: Transaction, *, is_open: bool) -> None:
    """Start measuring the delay of the first group once its process accepts work."""
    memory = tx.memory
    if not (is_open and (trial.process == DAEMON or trial.process in memory.hosts_up)):
        memory.group_may_begin_since = None
    elif memory.group_may_begin_since is None:
        memory.group_may_begin_since = tx.steady


def _first_poke_us(group: Collection[int], trial: Trial) -> int:
    """Return the time from when a group becomes the first one to its first evaluation.

    If tasks of the group are running then, it is evaluated again when they have run long enough.
    """
    return min(trial.proof_us, _PATIENCE_US) if group else trial.proof_us


def _evaluated(trial: Trial, tx: Transaction) -> Trial:
    """Evaluate the first group. Return the updated trial.

    If the group is done, the next group comes first.
    """
    memory, (first, *others), now = tx.memory, trial.groups, tx.steady
    has_triggers = _has_triggers(_span(trial), memory)
    if has_triggers and not trial.has_begun:
        return trial
    lives = known_tasks(first, memory)
    waiting = tuple(task.task_no for task in lives if waits_to_start(task))
    began = [_began(task, tx) for task in lives if task.state is TaskState.RUNNING]
    is_control = not first and _span(trial) == _NO_TRIGGERS
    is_over = not (waiting or began or has_triggers or is_control)
    if not is_over and now < trial.until:
        return trial
    until = max(began) + trial.proof_us if began else now + _first_poke_us(first, trial)
    if memory.group_may_begin_since is not None:
        end = memory.group_may_begin_since + _PATIENCE_US
        waiting = waiting if now < end else ()
        until = until if began else min(until, end)
    if not is_over and (until > now if began else waiting):
        return replace(trial, until=until)  # the task started later, or could not start yet
    left, spans = tuple(others), trial.spans[1:]
    if waiting:
        left, spans = (*left, waiting), (*spans, _NO_TRIGGERS) if trial.spans else ()
    if not left:
        return _without_groups(trial, tx)
    until = now + _first_poke_us(left[0], trial)
    return replace(trial, groups=left, spans=spans, has_begun=False, until=until)


def _has_triggers(span: Span, memory: Memory) -> bool:
    """Return whether a trigger of the span may still exist.

    A span of more than 1,000 numbers is not searched, because this is called in every turn.
    """
    if span.end - span.first > _LOOKED_AT:
        return True
    return any(_is_trigger(memory, number) for number in range(span.first, span.end))


def _is_suspect(memory: Memory, number: TaskNo | TriggerNo) -> bool:
    """Return whether a suspect still exists and, if it is a task, has been interrupted."""
    task = memory.active_tasks.get(number)
    return _is_trigger(memory, number) if task is None else task.interruptions > 0


def _is_there(memory: Memory, number: TaskNo | TriggerNo) -> bool:
    return number in memory.active_tasks or _is_trigger(memory, number)


def _is_trigger(memory: Memory, number: TriggerNo) -> bool:
    wait = memory.packing.peek(number)
    if wait is None:
        return number in memory.dag_triggers
    return wait.state is TriggerState.WAITING and wait.task is not None


def stop(tx: Transaction) -> None:
    """Drop the groups: a daemon that is stopped on purpose is not evidence about any task."""
    if tx.memory.trial is not None:
        _put(_without_groups(tx.memory.trial, tx), tx)


def _put(trial: Trial | None, tx: Transaction) -> None:
    """Store the trial and set its timer. Delete the trial if it contains no evidence any more."""
    memory = tx.memory
    if trial is not None and not (trial.groups or trial.alone or trial.deaths or trial.barred):
        trial = None
    if trial == memory.trial:
        return
    if memory.trial is not None:
        tx.outbox.delete(memory.trial_no)
    memory.may_host_more |= hosted_only(memory.trial) != hosted_only(trial)
    memory.trial, memory.trial_no = trial, -1
    if trial is not None:
        memory.trial_no = tx.outbox.add(TRIAL, _encode(trial))
        wake(tx)


def wake(tx: Transaction) -> None:
    """Set the timer at which the trial is evaluated, or at which its deaths are forgotten."""
    trial = tx.memory.trial
    if trial is not None and (trial.groups or trial.deaths):
        # No task has this number, so the timer does nothing except start a turn.
        tx.effects.append(WakeAt(TimerFired(trial.until, tx.memory.trial_no)))
