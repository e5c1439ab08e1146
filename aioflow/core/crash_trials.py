"""Find what kills its process, without charging any task or trigger that was only beside it.

A process may die by a kill from outside, which is no task's doing, or because of what ran in it.
After the first death everything begins again at once. After a second one the tasks that ran begin
again in *groups*, one after the other, and nothing else begins in that process meanwhile:
halves of what is suspected, so that each further death halves it again. A group has been cleared
once its tasks have ended, or have run for longer than they had when the process died.

Triggers are suspects of the daemon's death, too: their host is a child of the daemon. They may wait
for months, and lose time by a trial, so they are suspected from the third death in a row on: a
death is forgotten once the daemon has lived for an hour, and where none of its triggers is left.
While triggers are in groups no other trigger begins to be hosted.

The task or trigger that is left alone in its group is charged when the process has died with it as
often as it may with a worker of its own. Before it begins again a *control* runs, an empty group: a
process that dies then dies of something else, and nothing is suspected any longer. A trigger of a
DAG has no task to be charged: it is not hosted again until the file of its DAG changes.

The trial is an outbox row, since the daemon itself may be what dies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from aioflow.core.scheduling.ready import is_start, still_waits
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
    "DAEMON",
    "TRIGGER_DEATHS",
    "bar",
    "crashed",
    "go_on",
    "guilt",
    "guilty_triggers",
    "is_barred",
    "may_host",
    "may_host_all",
    "on_trial",
    "process_on_trial",
    "stop",
    "wake",
)

DAEMON = "daemon"
"""What died, if not an async host, which is named by its role: the daemon, with all processes."""

TRIGGER_DEATHS = 3
"""Deaths of the daemon in a row after which triggers are suspected."""

_MARGIN_US = 1_000_000
"""A task may begin a little later in its process than the last time."""

_FIRST_PROOF_US = 1_000_000
_LONGEST_PROOF_US = 3_600_000_000
_GROWTH = 4
"""A group waits for the one before it: at most 1 s, 4 s, 16 s, ..., with each interruption."""

_FORGOTTEN_AFTER_US = _LONGEST_PROOF_US
"""A trigger that kills the daemon only after that could not be found in any case."""

_PATIENCE_US = 600_000_000
"""A suspect that limits or pools keep from its place for so long begins with everything else."""

_LOOKED_AT = 1_000

_NO_TRIGGERS = Span()

_encode = msgspec.msgpack.Encoder().encode


def crashed(
    process: str,
    running: Sequence[TaskInstance],
    tx: Transaction,
    hosted: Iterable[TriggerNo] = (),
) -> None:
    """A process died: decide which tasks and triggers begin again first.

    To be called before the tasks are interrupted. While it is tested what killed one host, the
    death of another one says nothing of that. What ran there begins again after this trial, and is
    tested if that one dies once more.

    Args:
        running: The tasks that ran in it.
        hosted: The triggers that the daemon had, if it is what died. They are looked at only
            where that is needed.
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
        if not (tasks or triggers):  # it died before any of them began
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
    """Return a trial with one more death, if the daemon had triggers, and those suspected of it.

    Deaths are in a row while a trigger is there that was there at the first of them.
    """
    triggers: list[TriggerNo] = []
    is_row = False
    for number in hosted:
        triggers.append(number)
        is_row = is_row or number < before.row_end
        if before.deaths + 1 < TRIGGER_DEATHS and is_row == (before.deaths > 0):
            break  # that is all there is to know
    if not triggers:
        return before, []
    if not is_row:
        return replace(before, deaths=1, row_end=tx.numbers.take()), []
    deaths = before.deaths + 1
    return replace(before, deaths=deaths), triggers if deaths >= TRIGGER_DEATHS else []


def _without_groups(trial: Trial, tx: Transaction) -> Trial:
    """Return a trial of which everything may begin now."""
    return replace(
        trial,
        groups=(),
        spans=(),
        has_begun=False,
        until=tx.steady + _FORGOTTEN_AFTER_US,
        alone=tuple(pair for pair in trial.alone if _is_there(tx.memory, pair[0])),
    )


def _acquit(after: Trial, tx: Transaction, *, is_of_triggers: bool) -> None:
    """It died while none of those it suspects ran.

    Args:
        is_of_triggers: Triggers were among them; else it may have been one of these.
    """
    facts: dict[str, str | int] = {"process": after.process}
    tx.effects.append(Warn("died while no suspected task ran; none is suspected now", facts))
    _put(replace(after, alone=(), deaths=0 if is_of_triggers else after.deaths), tx)


def _divided(
    tasks: Sequence[TaskInstance],
    triggers: Sequence[TriggerNo],
    trial: Trial,
    tx: Transaction,
    *,
    are_held: bool,
) -> Trial:
    """Return a trial of these suspects, in groups; without any, if one of them is charged.

    Those that were alone before come first, one at a time, then halves of the others.

    Args:
        are_held: Whether triggers that are in no group are not hosted meanwhile.
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
    tx.effects.append(Warn("died again; what ran then begins before everything else", facts))
    if len(found) == 1 and counts[found[0]] > INTERRUPTION_LIMIT_OWN:
        return trial  # it is charged
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
        until=tx.steady + _first_look_us(groups[0], trial),
    )


def _span_of(numbers: Sequence[TriggerNo]) -> Span:
    """Return triggers, in their order, as a span."""
    return Span(numbers[0], numbers[-1] + 1, len(numbers)) if numbers else _NO_TRIGGERS


def _span(trial: Trial) -> Span:
    """Return the triggers of the first group."""
    return trial.spans[0] if trial.spans else _NO_TRIGGERS


def _proof_us(
    running: Iterable[TaskInstance], before: Trial, tx: Transaction, *, times: int
) -> int:
    """Return how long a group has to run until it is cleared.

    That is as long as any task had run when the process died, this time or before, or triggers
    had been hosted: one that was cleared too soon may have killed it. It is no longer than the
    others can be let wait, which is less where that was seldom.

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
    """Return when a task that runs began, in steady time; long ago, if the clock was set back."""
    started_at = tx.now if task.started_at is None else task.started_at
    return started_at - tx.at.shift if started_at <= tx.now else 0


def process_on_trial(memory: Memory) -> str | None:
    """Return the process in which nothing but suspects begins; ``None`` if there is none.

    Where it is a host, tasks begin in workers and in other hosts as always.
    """
    trial = memory.trial
    return None if trial is None or not trial.groups else trial.process


def on_trial(memory: Memory) -> list[TaskInstance]:
    """Return the suspects that may begin and wait for that."""
    trial = memory.trial
    if trial is None or not trial.groups:
        return []
    return [task for task in _known(trial.groups[0], memory) if _waits(task)]


def may_host_all(memory: Memory) -> bool:
    """Return whether no trigger of a task is held back."""
    return _hosted(memory.trial) is None


def may_host(number: TriggerNo, memory: Memory) -> bool:
    """Return whether a host may be handed a trigger, as far as trials go."""
    trial = memory.trial
    if trial is None or is_barred(number, memory):
        return trial is None
    only = _hosted(trial)
    if only is None:
        return True
    span, has_begun = only
    is_in = span.first <= number < span.end
    return has_begun and is_in and (span.count == 1 or number not in dict(trial.alone))


def is_barred(number: TriggerNo, memory: Memory) -> bool:
    """Return whether a trigger of a DAG has killed the daemon as the DAG's file has it now."""
    trial, one = memory.trial, memory.dag_triggers.get(number)
    version = None if trial is None else dict(trial.barred).get(number)
    if version is None or one is None:
        return False
    row = memory.dags.get(one.row.dag_id)
    return row is not None and row.version == version


def bar(number: TriggerNo, version: str, tx: Transaction) -> None:
    """Have the trigger of a DAG not hosted again as a version has it."""
    trial = tx.memory.trial or Trial(DAEMON)
    alone = tuple(pair for pair in trial.alone if pair[0] != number)
    _put(replace(trial, alone=alone, barred=(*trial.barred, (number, version))), tx)


def _known(numbers: Iterable[TaskNo], memory: Memory) -> list[TaskInstance]:
    return [task for n in numbers if (task := memory.active_tasks.objects.get(n)) is not None]


def _waits(task: TaskInstance) -> bool:
    return still_waits(task) and not is_start(task)


def guilt(number: TaskNo | TriggerNo, memory: Memory) -> Failure | None:
    """Return what is charged to a task or trigger that killed its process; ``None`` if to none."""
    trial = memory.trial
    count = 0 if trial is None else dict(trial.alone).get(number, 0)
    if trial is None or count <= INTERRUPTION_LIMIT_OWN:
        return None
    whose = "the daemon" if trial.process == DAEMON else "its host"
    message = f"{whose} died each of the {count} times that it ran alone"
    return Failure(type="Killed", message=message, reason="interrupted")


def guilty_triggers(memory: Memory) -> list[tuple[TriggerNo, Failure]]:
    """Return the triggers that killed the daemon, and have not been charged yet."""
    numbers = [] if memory.trial is None else [number for number, _ in memory.trial.alone]
    found = [(n, guilt(n, memory)) for n in numbers if n not in memory.active_tasks]
    return [(number, failure) for number, failure in found if failure is not None]


def go_on(tx: Transaction, *, is_open: bool) -> None:
    """Let the next group begin once the first has been cleared; in the end, everything.

    Args:
        is_open: Whether anything may begin now.
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
    while trial.groups and (after := _judged(trial, tx)) != trial:
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
    """Have the patience with the first group begin once its process takes work, not before."""
    memory = tx.memory
    if not (is_open and (trial.process == DAEMON or trial.process in memory.hosts_up)):
        memory.group_may_begin_since = None
    elif memory.group_may_begin_since is None:
        memory.group_may_begin_since = tx.steady


def _first_look_us(group: Collection[int], trial: Trial) -> int:
    """Return how long after a group becomes the first it is judged for the first time.

    Where tasks of the group run by then, it is judged again when they have run long enough.
    """
    return min(trial.proof_us, _PATIENCE_US) if group else trial.proof_us


def _judged(trial: Trial, tx: Transaction) -> Trial:
    """Return a trial as it stands now: unchanged while its first group has to go on."""
    memory, (first, *others), now = tx.memory, trial.groups, tx.steady
    has_triggers = _has_triggers(_span(trial), memory)
    if has_triggers and not trial.has_begun:
        return trial
    lives = _known(first, memory)
    waiting = tuple(task.task_no for task in lives if _waits(task))
    began = [_began(task, tx) for task in lives if task.state is TaskState.RUNNING]
    is_control = not first and _span(trial) == _NO_TRIGGERS
    is_over = not (waiting or began or has_triggers or is_control)
    if not is_over and now < trial.until:
        return trial
    until = max(began) + trial.proof_us if began else now + _first_look_us(first, trial)
    if memory.group_may_begin_since is not None:
        end = memory.group_may_begin_since + _PATIENCE_US
        waiting = waiting if now < end else ()
        until = until if began else min(until, end)
    if not is_over and (until > now if began else waiting):
        return replace(trial, until=until)  # it began later, or could not yet
    left, spans = tuple(others), trial.spans[1:]
    if waiting:
        left, spans = (*left, waiting), (*spans, _NO_TRIGGERS) if trial.spans else ()
    if not left:
        return _without_groups(trial, tx)
    until = now + _first_look_us(left[0], trial)
    return replace(trial, groups=left, spans=spans, has_begun=False, until=until)


def _has_triggers(span: Span, memory: Memory) -> bool:
    """Whether a trigger of a span is left; of a wide one that is not looked up each turn."""
    if span.end - span.first > _LOOKED_AT:
        return True
    return any(_is_trigger(memory, number) for number in range(span.first, span.end))


def _is_suspect(memory: Memory, number: TaskNo | TriggerNo) -> bool:
    """Whether what began again after its process died has neither ended nor come further."""
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
    """The daemon is stopped by people: that proves nothing of any task."""
    if tx.memory.trial is not None:
        _put(_without_groups(tx.memory.trial, tx), tx)


def _put(trial: Trial | None, tx: Transaction) -> None:
    """Keep a trial, and have its instant come; one that says nothing any more is over."""
    memory = tx.memory
    if trial is not None and not (trial.groups or trial.alone or trial.deaths or trial.barred):
        trial = None
    if trial == memory.trial:
        return
    if memory.trial is not None:
        tx.outbox.write_off(memory.trial_no)
    memory.may_host_more |= _hosted(memory.trial) != _hosted(trial)
    memory.trial, memory.trial_no = trial, -1
    if trial is not None:
        memory.trial_no = tx.outbox.owe(TRIAL, _encode(trial))
        wake(tx)


def wake(tx: Transaction) -> None:
    """Have the instant come at which the trial is judged, or its deaths are forgotten."""
    trial = tx.memory.trial
    if trial is not None and (trial.groups or trial.deaths):
        # Its own number is no task's: what comes is a turn.
        tx.effects.append(WakeAt(TimerFired(trial.until, tx.memory.trial_no)))


def _hosted(trial: Trial | None) -> tuple[Span, bool] | None:
    """Return the triggers that may be hosted, and whether they may; ``None`` where all may."""
    if trial is None or trial.process != DAEMON or not trial.groups or not trial.spans:
        return None
    return trial.spans[0], trial.has_begun
