"""Find the task that kills its process, without charging any that only ran beside it.

A process may die by a kill from outside, which is no task's doing, or because of one of the tasks
that ran in it. After the first death all of them begin again at once. After a second one they
begin again in *groups*, one after the other, and nothing else begins in that process meanwhile:
halves of what is suspected, so that each further death halves it again. A group has been cleared
once its tasks have ended, or have run for longer than they had when the process died.

The task that is left alone in its group is charged when the process has died with it as often
as it may with a worker of its own. Before it begins again a *control* runs, an empty group: a
process that dies then dies of something else, and nobody is suspected any longer.

The trial is an outbox row, since the daemon itself may be what dies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from aioflow.core.draft import Draft
from aioflow.core.live import Live
from aioflow.core.memory import Memory
from aioflow.core.ready import is_start, still_waits
from aioflow.core.retry import INTERRUPTION_LIMIT_OWN
from aioflow.effects import WakeAt, Warn
from aioflow.inputs import Due
from aioflow.model import Failure, Instant, TaskNo, TaskState
from aioflow.owed import TRIAL, Trial

__all__ = ("DAEMON", "crashed", "go_on", "guilt", "on_trial", "process_on_trial", "stop")

DAEMON = "daemon"
"""What died, if not an async host, which is named by its role: the daemon, with all processes."""

_MARGIN_US = 1_000_000
"""A task may begin a little later in its process than the last time."""

_FIRST_PROOF_US = 1_000_000
_LONGEST_PROOF_US = 3_600_000_000
_GROWTH = 4
"""A group waits for the one before it: at most 1 s, 4 s, 16 s, ..., with each interruption."""

_encode = msgspec.msgpack.Encoder().encode


def crashed(process: str, running: Sequence[Live], draft: Draft) -> None:
    """A process died while these tasks ran in it: decide which of them begin again first.

    To be called before they are interrupted. While it is tested who killed one host, the death of
    another one says nothing of that. What ran there begins again after this trial, and is tested
    if that one dies once more.
    """
    before = draft.memory.trial or Trial(process)
    is_part = before.process in {process, DAEMON}
    if before.groups and not is_part and process != DAEMON:
        return
    counts = {number: count for number, count in before.alone if number in draft.memory.live}
    found = list(running)
    if before.groups and is_part:
        if not before.groups[0]:
            _acquit(process, draft)
            return
        found = [live for live in running if live.task_no in before.groups[0]]
        if not found:  # it died before any of them began
            _put(replace(before, until=draft.steady + before.proof_us), draft)
            return
    is_repeated = before.groups or counts or any(live.interruptions for live in found)
    if not found or not is_repeated:
        _put(Trial(process, alone=tuple(counts.items())), draft)
        return
    if len(found) == 1:
        number = found[0].task_no
        counts[number] = counts.get(number, 0) + 1
    proof_us = _proof_us(running, before, draft)
    trial = Trial(
        process,
        groups=_groups(found, counts),
        proof_us=proof_us,
        until=draft.steady + proof_us,
        alone=tuple(counts.items()),
    )
    facts: dict[str, str | int] = {"process": process, "tasks": len(found)}
    draft.effects.append(Warn("died again; what ran then begins before everything else", facts))
    _put(trial, draft)


def _acquit(process: str, draft: Draft) -> None:
    """It died while none of those it suspects ran."""
    facts: dict[str, str | int] = {"process": process}
    draft.effects.append(Warn("died while no suspected task ran; none is suspected now", facts))
    _put(None, draft)


def _groups(found: Sequence[Live], counts: dict[TaskNo, int]) -> tuple[tuple[TaskNo, ...], ...]:
    """Return halves of the suspects; those that were alone before come first, one at a time."""
    known = [live.task_no for live in found if live.task_no in counts]
    if len(found) == 1 and counts[known[0]] > INTERRUPTION_LIMIT_OWN:
        return ()  # it is charged
    others = [live for live in found if live.task_no not in counts]
    others.sort(key=lambda live: (-live.interruptions, live.task_no))
    numbers = [live.task_no for live in others]
    half = (len(numbers) + 1) // 2
    single = [(number,) for number in sorted(known, key=lambda number: -counts[number])]
    control: list[tuple[TaskNo, ...]] = [()] if known and max(counts.values()) > 1 else []
    halves = [tuple(part) for part in (numbers[:half], numbers[half:]) if part]
    return (*control, *single, *halves)


def _proof_us(running: Iterable[Live], before: Trial, draft: Draft) -> int:
    """Return how long a group has to run until it is cleared.

    That is as long as any task had run when the process died, this time or before: one that was
    cleared too soon may have killed it. It is no longer than the others can be let wait, which
    is less where tasks have been interrupted seldom.
    """
    ran_us = max(draft.now - (live.started_at or draft.now) for live in running)
    times = max(live.interruptions for live in running) + 1
    bearable_us = min(_FIRST_PROOF_US * int(_GROWTH ** min(times, 10)), _LONGEST_PROOF_US)
    return min(max(ran_us + _MARGIN_US, before.proof_us, _MARGIN_US), bearable_us)


def _began(live: Live, draft: Draft) -> Instant:
    """Return when a task that runs began, in steady time; long ago, if the clock was set back."""
    started_at = draft.now if live.started_at is None else live.started_at
    return started_at - draft.at.shift if started_at <= draft.now else 0


def process_on_trial(memory: Memory) -> str | None:
    """Return the process in which nothing but suspects begins; ``None`` if there is none.

    Where it is a host, tasks begin in workers and in other hosts as always.
    """
    trial = memory.trial
    return None if trial is None or not trial.groups else trial.process


def on_trial(memory: Memory) -> list[Live]:
    """Return the suspects that may begin and wait for that."""
    trial = memory.trial
    if trial is None or not trial.groups:
        return []
    return [live for live in _known(trial.groups[0], memory) if _waits(live)]


def _known(numbers: Iterable[TaskNo], memory: Memory) -> list[Live]:
    return [live for n in numbers if (live := memory.live.objects.get(n)) is not None]


def _waits(live: Live) -> bool:
    return still_waits(live) and not is_start(live)


def guilt(live: Live, memory: Memory) -> Failure | None:
    """Return what a task is charged with that killed its process; ``None`` if it did not."""
    trial = memory.trial
    count = 0 if trial is None else dict(trial.alone).get(live.task_no, 0)
    if trial is None or count <= INTERRUPTION_LIMIT_OWN:
        return None
    whose = "the daemon" if trial.process == DAEMON else "its host"
    message = f"{whose} died each of the {count} times that it ran alone"
    return Failure(type="Killed", message=message, reason="interrupted")


def go_on(draft: Draft) -> None:
    """Let the next group begin once the first has been cleared; in the end, everything."""
    trial = draft.memory.trial
    if trial is None:
        return
    alone = tuple(pair for pair in trial.alone if _is_suspect(draft.memory, pair[0]))
    trial = replace(trial, alone=alone)
    while trial.groups and (after := _judged(trial, draft)) != trial:
        trial = after
    _put(trial, draft)


def _judged(trial: Trial, draft: Draft) -> Trial:
    """Return a trial as it stands now: unchanged while its first group has to go on."""
    memory, (first, *others), now = draft.memory, trial.groups, draft.steady
    lives = _known(first, memory)
    waiting = tuple(live.task_no for live in lives if _waits(live))
    began = [_began(live, draft) for live in lives if live.state is TaskState.RUNNING]
    is_over = not (waiting or began) and bool(first)
    if not is_over and now < trial.until:
        return trial
    until = max(began, default=now) + trial.proof_us
    if not is_over and (until > now if began else waiting):
        return replace(trial, until=until)  # it began later, or could not yet
    left = (*others, waiting) if waiting else tuple(others)
    return replace(trial, groups=left, until=now + trial.proof_us)


def _is_suspect(memory: Memory, number: TaskNo) -> bool:
    """Whether a task has neither ended nor come further since its process died."""
    live = memory.live.get(number)
    return live is not None and live.interruptions > 0


def stop(draft: Draft) -> None:
    """The daemon is stopped by people: that proves nothing of any task."""
    if draft.memory.trial is not None:
        _put(replace(draft.memory.trial, groups=()), draft)


def _put(trial: Trial | None, draft: Draft) -> None:
    """Keep a trial, and have its instant come; one without suspects is over."""
    memory = draft.memory
    if trial is not None and not trial.groups and not trial.alone:
        trial = None
    if trial == memory.trial:
        return
    if memory.trial is not None:
        draft.owing.write_off(memory.trial_no)
    memory.trial, memory.trial_no = trial, -1
    if trial is not None:
        memory.trial_no = draft.owing.owe(TRIAL, _encode(trial))
        if trial.groups:
            # Its own number is no task's: what comes is a turn, in which the trial is judged.
            draft.effects.append(WakeAt(Due(trial.until, memory.trial_no)))
