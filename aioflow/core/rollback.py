"""Taking a turn back: what a draft changed in memory though it was never committed.

The runs it touched are forgotten here and read again from their rows by the engine. The
processes know nothing of all this: what they were given at the last commit they still have,
so a task that is read again gets back the place it had then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from aioflow.core.runs import deadline_alerts, previous
from aioflow.core.runs.create import count_runs
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import NOWHERE, Run
from aioflow.core.tasks import one_to_one
from aioflow.core.transaction import Transaction
from aioflow.errors import AioflowError
from aioflow.model.ids import RunNo, StartNo, TaskNo
from aioflow.model.rows import DagFileRow, DagRow
from aioflow.model.states import TaskState
from aioflow.protocol.inputs import ContinueRun, Input, RequestReceived, Restarted, TimerFired
from aioflow.protocol.reports import Ended, TaskReport, TriggerEnded, TriggerFired
from aioflow.protocol.requests import FireTrigger

__all__ = (
    "Places",
    "Refused",
    "blamed",
    "forget",
    "free_place",
    "is_of_one_run",
    "named",
    "put_back",
    "recall_catalog",
    "restore_pools",
)

Places: TypeAlias = dict[TaskNo, tuple[StartNo, tuple[int, bool, bool]]]
"""Where each task was at the last commit, and in which start."""


class Refused(AioflowError):
    """A batch was refused, and this is the draft it came from."""

    code = "defect.refused"

    def __init__(self, draft: Transaction, cause: str) -> None:
        super().__init__(cause)
        self.draft = draft


def forget(memory: Memory, draft: Transaction) -> Places:
    """Drop the runs a draft touched; return where their tasks are."""
    places: Places = {
        live.task_no: (live.stored_start, live.stored_place) for live in draft.touched
    }
    draft.put_back()
    memory.stray_triggers += draft.strays
    for run in draft.runs.values():
        for live in run.live.values():
            places.setdefault(live.task_no, (live.stored_start, live.stored_place))
        run.is_forgotten = True
        memory.drop_run(run)
    for version in draft.batch.new_versions:
        memory.stored_versions.discard(version.version)
    deadline_alerts.index(memory)
    memory.index_outbox()
    memory.may_host_more = True  # what this turn handed over, no host hears of
    return places


def recall_catalog(memory: Memory, dags: list[DagRow], files: list[DagFileRow]) -> None:
    """Take the DAGs and their files from their rows again."""
    memory.dags = {row.dag_id: row for row in dags}
    memory.files = {row.file: row for row in files}


def restore_pools(draft: Transaction, slots: Slots) -> None:
    """Have the pools a draft changed be what they were, and the node take work as it did."""
    for name, before in draft.pools_before.items():
        slots.put_pool(name, before, draft.memory)
    if draft.was_drained is not None:
        draft.memory.is_drained = draft.was_drained


def put_back(
    runs: list[Run], places: Places, memory: Memory, slots: Slots, draft: Transaction
) -> list[Input]:
    """Give restored tasks the places they have, and let the rest wait for theirs.

    Returns:
        What has to be asked, or judged, anew: as inputs of a later turn.
    """
    for run in runs:
        for live in run.live.objects.values():  # what is folded has no place
            start_no, place = places.get(live.task_no, (-1, NOWHERE))
            if start_no == live.start_no:
                live.worker, live.is_claimed, live.is_hosted = live.stored_place = place
    slots.recount(memory)
    count_runs(memory)
    for run in runs:
        _offer(run, slots)
    unjudged = [ContinueRun(run.run_no) for run in runs if one_to_one.is_unjudged(run)]
    return [*previous.doubt({run.row.dag_id for run in draft.runs.values()}, memory), *unjudged]


def blamed(entry: Input, memory: Memory) -> list[Run]:
    """Return the run to hold still for an input about it that cannot be taken, if it is there.

    Whether it raised before it touched that or has touched others too.
    """
    run: Run | None
    match entry:
        case TimerFired(run_no=run_no) if run_no >= 0:
            run = memory.runs.get(run_no)
        case TaskReport() | TimerFired():
            live = memory.live.get(entry.task_no)
            run = None if live is None else live.run
        case TriggerFired() | TriggerEnded():
            wait = memory.waits.get(entry.trigger_no)
            run = None if wait is None else memory.runs.get(wait.run.run_no)
        case ContinueRun():
            run = memory.runs.get(entry.run_no)
        case Restarted(runs=(run_no,)):
            run = memory.runs.get(run_no)
        case RequestReceived(request=FireTrigger(trigger_no=number)):
            wait = memory.waits.get(number)
            run = None if wait is None else memory.runs.get(wait.run.run_no)
        case RequestReceived(request=request):
            run = memory.find_run(getattr(request, "run_id", None) or "")
        case _:
            run = None
    return [] if run is None else [run]


def named(numbers: Mapping[str, int], memory: Memory) -> list[RunNo]:
    """Return the run that a run, a task or a trigger is of, if memory has it."""
    if "run_no" in numbers:
        return [numbers["run_no"]]
    live = memory.live.get(numbers.get("task_no", -1))
    wait = memory.waits.get(numbers.get("trigger_no", -1))
    of = [one.run.run_no for one in (live, wait) if one is not None]
    return of[:1]


def is_of_one_run(entry: Input) -> bool:
    """Whether an input is about one run alone; others are for all of them."""
    match entry:
        case TimerFired() | TaskReport() | TriggerFired() | TriggerEnded() | ContinueRun():
            return True
        case Restarted(runs=(_,)):
            return True
        case _:
            return False


def free_place(entry: Input, memory: Memory, slots: Slots) -> None:
    """What a process reported cannot be taken, but it has ended that try all the same."""
    if isinstance(entry, Ended):
        live = memory.live.get(entry.task_no)
        if live is not None and live.start_no == entry.start_no:
            slots.release(live)
            live.stored_place = NOWHERE


def _offer(run: Run, slots: Slots) -> None:
    for group in run.groups.values():
        if group.has_fresh and run.states[group.position] == TaskState.RUNNING:
            slots.offer(group)
    slots.offer_again(run)
