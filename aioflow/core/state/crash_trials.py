"""Permissions during a crash trial: which tasks may start and which triggers may be assigned.

``core.crash_trials`` decides which suspects are on trial; this module only reads the trial in
memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from aioflow.core.scheduling.ready import is_start, still_waits
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import TaskInstance
from aioflow.model.ids import TaskNo, TriggerNo
from aioflow.protocol.outbox import Span, Trial

__all__ = (
    "DAEMON",
    "hosted_only",
    "is_barred",
    "known_tasks",
    "may_host",
    "may_host_all",
    "on_trial",
    "process_on_trial",
    "waits_to_start",
)


DAEMON = "daemon"
"""Name of the process on trial if the daemon died with all its processes.

If an async host died, the name is the role of the host.
"""


def process_on_trial(memory: Memory) -> str | None:
    """Return the process in which only suspects may start; ``None`` if there is none.

    If the process is a host, tasks start in workers and in other hosts as usual.
    """
    trial = memory.trial
    return None if trial is None or not trial.groups else trial.process


def on_trial(memory: Memory) -> list[TaskInstance]:
    """Return the suspects that may start but have not started yet."""
    trial = memory.trial
    if trial is None or not trial.groups:
        return []
    return [task for task in known_tasks(trial.groups[0], memory) if waits_to_start(task)]


def may_host_all(memory: Memory) -> bool:
    """Return whether triggers may be assigned to hosts without restriction."""
    return hosted_only(memory.trial) is None


def may_host(number: TriggerNo, memory: Memory) -> bool:
    """Return whether the crash trial permits assigning a trigger to a host."""
    trial = memory.trial
    if trial is None or is_barred(number, memory):
        return trial is None
    only = hosted_only(trial)
    if only is None:
        return True
    span, has_begun = only
    is_in = span.first <= number < span.end
    return has_begun and is_in and (span.count == 1 or number not in dict(trial.alone))


def is_barred(number: TriggerNo, memory: Memory) -> bool:
    """Return whether a DAG's trigger has killed the daemon with the DAG's current version."""
    trial, one = memory.trial, memory.dag_triggers.get(number)
    version = None if trial is None else dict(trial.barred).get(number)
    if version is None or one is None:
        return False
    row = memory.dags.get(one.row.dag_id)
    return row is not None and row.version == version


def known_tasks(numbers: Iterable[TaskNo], memory: Memory) -> list[TaskInstance]:
    """Return the active tasks that have one of these numbers."""
    return [task for n in numbers if (task := memory.active_tasks.objects.get(n)) is not None]


def waits_to_start(task: TaskInstance) -> bool:
    """Return whether a task is ready to start again."""
    return still_waits(task) and not is_start(task)


def hosted_only(trial: Trial | None) -> tuple[Span, bool] | None:
    """Return the span of the triggers on trial, and whether they may be assigned to hosts yet.

    Return ``None`` if all triggers may be assigned. Otherwise no trigger outside the span may be.
    """
    if trial is None or trial.process != DAEMON or not trial.groups or not trial.spans:
        return None
    return trial.spans[0], trial.has_begun
