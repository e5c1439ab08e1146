"""Invariants that must hold after every commit, one function each, numbered as in the design."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.graph import TALLY
from aioflow.core.state.task_instance import Run
from aioflow.core.transitions import is_legal, is_legal_run
from aioflow.core.why import explain_task
from aioflow.model.batch import Batch
from aioflow.model.dag import Body
from aioflow.model.rows import TaskRow
from aioflow.model.states import RunState, TaskState, TriggerState
from aioflow.protocol.commands import StartTask
from aioflow.protocol.effects import AssignTrigger, Effect, StartTry, StopTry
from aioflow.protocol.inputs import Input, RequestReceived
from aioflow.protocol.reports import Ended, Recalled, Succeeded, TaskStarted
from aioflow.protocol.requests import SetPaused
from tests.sim import (
    asking,
    called,
    counting,
    deferral,
    erasing,
    evented,
    filling,
    following,
    limits,
    loops,
    operating,
    owing,
    past,
    remote,
    ruled,
    stored,
    streaming,
    waiting,
)
from tests.sim.broken import Broken
from tests.sim.tables import changed_tasks

__all__ = (
    "Before",
    "Turn",
    "before",
    "check",
    "claimed",
    "claims_of_what_ends_are_stopped",
    "paused_dags_start_no_scheduled_run",
    "start_is_stored",
    "successes_are_heard",
)


class Before(msgspec.Struct):
    """The state before a turn."""

    run_states: dict[int, RunState]
    task_states: dict[int, TaskState]
    rows: dict[int, TaskRow] = {}
    over: frozenset[int] = frozenset()
    """The runs that had ended."""


class Turn:
    """One committed turn."""

    def __init__(self, batch: Batch, effects: list[Effect], before: Before) -> None:
        self.batch = batch
        self.effects = effects
        self.before = before
        self.starts = [effect for effect in effects if isinstance(effect, StartTry)]
        self.run_nos = sorted(
            {row.run_no for row in batch.new_runs}
            | {change.run_no for change in batch.run_changes}
            | {row.run_no for row in batch.new_tasks}
            | {start.start.run_no for start in self.starts}
        )


def before(node: Any, batch: Batch) -> Before:
    """Record the rows that a batch will change."""
    runs, tasks = node.tables.runs, node.tables.tasks
    run_nos = {change.run_no for change in batch.run_changes}
    task_nos = {no for no, _ in batch.steps} | {change.task_no for change in batch.task_changes}
    return Before(
        {no: runs[no].state for no in run_nos if no in runs},
        {no: tasks[no].state for no in task_nos if no in tasks},
        {no: tasks[no] for no in task_nos if no in tasks},
        frozenset(no for no in run_nos if no in runs and runs[no].ended_at is not None),
    )


def check(node: Any, turn: Turn) -> None:
    """Check all invariants that a commit may have broken."""
    steps_are_legal(node, turn)
    run_moves_are_legal(node, turn)
    limits.hold(node, turn.batch, turn.starts)
    remote.starts_are_stored_with_their_workers(node, turn)
    deferral.hold(node, turn)
    asking.hold(node, turn)
    past.nothing_starts_before_its_past(node, turn.batch)
    called.runs_answer_their_callers(node)
    streaming.hold(node, turn)
    loops.hold(node, turn)
    owing.hold(node, turn)
    erasing.hold(node, turn.batch)
    evented.hold(node, turn)
    filling.hold(node, turn)
    tries_are_charged_within_limits(node, turn)
    widths_never_change(node, turn)
    fire_times_and_keys_have_one_run(node, turn)
    cancelled_runs_start_nothing(node, turn)
    effects_match_the_ledger(node, turn)
    stored.instants_follow_each_other(node, turn.batch, turn.before.rows)
    stored.labels_are_of_their_starts(node, turn.batch, turn.before.rows)
    touched = set(turn.run_nos) | {
        node.tables.tasks[change.task_no].run_no for change in turn.batch.task_changes
    }
    for run_no in sorted(touched):
        ruled.tasks_start_when_their_rule_says(node, run_no)
        waiting.hold(node, run_no)
        ruled.runs_end_with_their_tasks(node, run_no)
        tallies_are_recounts(node, run_no)
        counting.counts_are_recounts(node, run_no)
        what_waits_says_for_what(node, run_no)


# ── I2: only legal steps, and they lead to what is stored ───────────────────────────────


def steps_are_legal(node: Any, turn: Turn) -> None:
    """I2: check that every step is legal, and that the last step matches the row."""
    reached: dict[int, TaskState] = {}
    for task_no, state in turn.batch.steps:
        was = reached.get(task_no, turn.before.task_states.get(task_no, TaskState.PENDING))
        is_cleared = state is TaskState.PENDING
        if not (was.is_live or is_cleared) or not is_legal(was, state):
            raise Broken("I2 steps", f"task {task_no} from {was.label} to {state.label}")
        reached[task_no] = state
    for task_no, state in reached.items():
        stored = node.tables.tasks[task_no].state
        if stored is not state:
            raise Broken("I2 steps", f"task {task_no} went to {state.label}, stored {stored.label}")
    for task_no, was in turn.before.task_states.items():
        if task_no not in reached and node.tables.tasks[task_no].state is not was:
            raise Broken("I2 steps", f"task {task_no} changed its state without a step")


def run_moves_are_legal(node: Any, turn: Turn) -> None:
    """I2 for runs: check that a final state never changes."""
    for change in turn.batch.run_changes:
        was = turn.before.run_states.get(change.run_no, RunState.QUEUED)
        is_legal = is_legal_run(was, change.state)
        is_legal |= was is RunState.QUEUED and is_legal_run(RunState.RUNNING, change.state)
        if was is not change.state and not (is_legal or _was_said(node, change.run_no)):
            raise Broken(
                "I2 steps", f"run {change.run_no} from {was.label} to {change.state.label}"
            )


def _was_said(node: Any, run_no: int) -> bool:
    """Return whether a client has marked the run, or tasks of it."""
    return run_no in node.tables.marked_runs or bool(node.tables.said[node.tables.run_ids[run_no]])


# ── I7: tries ───────────────────────────────────────────────────────────────────────────


def tries_are_charged_within_limits(node: Any, turn: Turn) -> None:
    """I7: check that tries stay within the policy, and that kills and crashes are not charged."""
    for ended in turn.batch.new_tries:
        if ended.failure is not None and "the daemon ended" in ended.failure.message:
            raise Broken("I7 tries", f"task {ended.task_no} is charged for a crash: {ended}")
        if ended.failure is not None and ended.failure.reason == "killed":
            raise Broken("I7 tries", f"task {ended.task_no} is charged for a kill: {ended}")
    for change in changed_tasks(turn.batch):
        row = node.tables.tasks[change.task_no]
        task = _spec(node, row.run_no).tasks[row.task_index]
        if row.try_number > task.retry.tries:
            raise Broken("I7 tries", f"task {row.task_no} is in try {row.try_number}")
    for start in turn.starts:
        limit = _task(node, start).execution_timeout_us
        row = node.tables.tasks[start.start.task_no]
        is_fresh = start.start.method == "" and row.task_no not in node.tables.recorders
        is_fresh = is_fresh and not start.start.is_closing
        is_fresh = is_fresh or _task(node, start).sensor is not None  # each poke
        if limit is not None and is_fresh and not start.claimed and start.timeout_us != limit:
            raise Broken("I7 tries", f"task {row.task_no} begins with {start.timeout_us} us left")


def widths_never_change(node: Any, turn: Turn) -> None:
    """I8: check that an expansion has the expected width within its limit, and no other child."""
    tables = node.tables
    for row in turn.batch.new_expansions:
        task = _spec(node, row.run_no).tasks[row.task_index]
        spec = _spec(node, row.run_no)
        if streaming.source_of(spec, row.task_index) >= 0 or loops.is_round(spec, row.task_index):
            continue  # checked there
        if not 0 < row.width <= task.map_limit:
            raise Broken("I8 widths", f"{row} with a limit of {task.map_limit}")
        expected = following.expected_width(node, row.run_no, task.mapped)
        if row.width != expected:
            raise Broken("I8 widths", f"{row}, but its sources make {expected}")
    for task in turn.batch.new_tasks:
        if task.map_index >= 0:
            expansion = tables.expansions[task.run_no, task.task_index]
            right = expansion.first_task_no + task.map_index
            if task.map_index >= expansion.width or task.task_no != right:
                raise Broken("I8 widths", f"{task} is no child of {expansion}")


# ── I9: counts in memory match the rows ─────────────────────────────────────────────────


def tallies_are_recounts(node: Any, run_no: int) -> None:
    """I9: check that the counts for trigger rules match the rows."""
    run = node.memory.runs.get(run_no)
    if run is None or run.state is not RunState.RUNNING or run.row.quarantine is not None:
        return
    if not node.tables.is_clearing(run_no):  # else they are recounted when the clear is done
        _same_tallies(node, run)


def _same_tallies(node: Any, run: Run) -> None:
    run_no = run.run_no
    rows = node.tables.present(run_no)
    evaluated = run.graph.evaluated
    fresh = [0] * (TALLY * run.graph.tallies)
    offsets = {
        TaskState.SUCCESS: 1,
        TaskState.FAILED: 2,
        TaskState.CANCELLED: 2,
        TaskState.UPSTREAM_FAILED: 3,
        TaskState.SKIPPED: 4,
        TaskState.REMOVED: 5,
    }
    spec = _spec(node, run_no)
    along = [following.indexed(spec, task_index) for task_index in range(len(spec.tasks))]
    counted = [
        (look, [parent for parent in look.parents if parent not in along[task_index]])
        for task_index, looks in enumerate(evaluated)
        for look in looks
    ]
    for look, parents in counted:
        at = look.tally * TALLY
        for parent in parents:
            mark = streaming.marker(node, run_no, parent)
            if loops.is_round(spec, parent):
                mark = loops.whole(node, run_no, parent)
                fresh[at] += mark is None  # it counts as one, whether it has begun or not
            else:
                fresh[at] += node.tables.widths.get((run_no, parent), 1)
            fresh[at] += mark is not None
            if mark in offsets:
                fresh[at + offsets[mark]] += 1
    for row in rows:
        if row.state in offsets and not (
            row.map_index >= 0 and loops.is_round(spec, row.task_index)
        ):
            for look, parents in counted:
                if row.task_index in parents:
                    fresh[look.tally * TALLY + offsets[row.state]] += 1
    if list(run.tallies) != fresh:
        raise Broken("I9 tallies", f"run {run_no}: {list(run.tallies)}, the rows say {fresh}")
    running = sum(row.state is TaskState.RUNNING for row in rows)
    claimed = sum(task.is_claimed for task in run.active_tasks.values())
    if run.running not in {running, running + claimed}:
        raise Broken("I9 tallies", f"run {run_no} counts {run.running} running, {running} do")


# ── I11: one run per fire time and key ───────────────────────────────────────────────────────


def fire_times_and_keys_have_one_run(node: Any, turn: Turn) -> None:
    """I11: check that a fire time has only one run, and a key only one active run."""
    if not turn.batch.new_runs:
        return
    runs = node.tables.runs.values()
    fire_times = Counter((r.dag_id, r.logical_date) for r in runs if r.cause == "schedule")
    unfinished = (node.tables.runs[no] for no in node.tables.unfinished())
    keys = Counter((r.dag_id, r.key) for r in unfinished if r.key is not None)
    ids = Counter(r.run_id for r in runs)
    for name, counts in (("fire time", fire_times), ("key", keys), ("id", ids)):
        for key, count in counts.items():
            if count > 1:
                raise Broken("I11 runs", f"{count} runs for the {name} {key}")


def paused_dags_start_no_scheduled_run(
    paused: set[str], inputs: Iterable[Input], batch: Batch
) -> None:
    """I11: check that no fire time starts a run of a DAG that is paused throughout the turn.

    Args:
        paused: The DAGs that were paused when the turn began.
    """
    asked = (entry.request for entry in inputs if isinstance(entry, RequestReceived))
    changed = {request.dag_id for request in asked if isinstance(request, SetPaused)}
    for run in batch.new_runs:
        if run.cause == "schedule" and run.dag_id in paused - changed:
            raise Broken("I11 runs", f"a fire time of the paused {run.dag_id} started {run.run_id}")


# ── I12: no report is ignored ───────────────────────────────────────────────────────────


def successes_are_heard(node: Any, inputs: Iterable[Input]) -> None:
    """I12 for reports: check that a task that reported success is not running any more.

    A task of a quarantined run is excepted.
    """
    for entry in inputs:
        if not isinstance(entry, Succeeded):
            continue
        task = node.memory.active_tasks.objects.get(entry.task_no)  # a running task is not packed
        if task is None or task.start_no != entry.start_no or task.state is not TaskState.RUNNING:
            continue
        if task.run.row.quarantine is None:
            raise Broken("I12 answers", f"the success of {task.name} was passed over")


# ── I14: what has ended starts nothing ──────────────────────────────────────────────────


def claimed(slots: Slots) -> list[tuple[int, int]]:
    """Return the starts that are queued in a worker behind another start."""
    return [(task.task_no, task.start_no) for worker in slots.all_workers for task in worker.claims]


def claims_of_what_ends_are_stopped(
    node: Any, claims: Iterable[tuple[int, int]], inputs: Iterable[Input], effects: Iterable[Effect]
) -> None:
    """I14: check that a worker is ordered to stop a claimed start when its task ends.

    Args:
        claims: The claims that existed when the turn began.
    """
    stopped = {(one.task_no, one.start_no) for one in effects if isinstance(one, StopTry)}
    back = {key for entry in inputs if isinstance(entry, Recalled) for key in entry.tries}
    reports = (entry for entry in inputs if isinstance(entry, TaskStarted | Ended))
    known = stopped | back | {(entry.task_no, entry.start_no) for entry in reports}
    for key in claims:
        row = node.tables.tasks.get(key[0])
        if row is not None and not row.state.is_live and key not in known:
            raise Broken("I14 cancel", f"start {key} is {row.state.label}, and its worker has it")


def cancelled_runs_start_nothing(node: Any, turn: Turn) -> None:
    """I14: check that each start belongs to a running run, and is stored as it was ordered."""
    for start in turn.starts:
        start_is_stored(node, start.start)
    ended = {c.run_no for c in turn.batch.run_changes if not c.state.is_live}
    for effect in turn.effects:
        if not isinstance(effect, AssignTrigger) or effect.host.start is None:
            continue
        if effect.host.run_no in ended:
            continue  # in the same turn; its triggers are released in slices
        row = node.tables.triggers.get(effect.host.trigger_no)
        if row is not None and row.state is TriggerState.WAITING:  # else it ended in the same turn
            _is_of_a_live_run(node, effect.host.start, is_stream=row.window > 0)


def start_is_stored(node: Any, start: StartTask) -> None:
    """I14: check one start."""
    _is_of_a_live_run(node, start)
    run = node.tables.runs[start.run_no]
    if run.quarantine is not None:
        raise Broken("I14 cancel", f"a task of the quarantined run {run.run_no} started")


def _is_of_a_live_run(node: Any, start: StartTask, *, is_stream: bool = False) -> None:
    """Check that a start or trigger belongs to a running run. A quarantined run keeps its waits."""
    run = node.tables.runs[start.run_no]
    if run.state is not RunState.RUNNING:
        raise Broken("I14 cancel", f"a task of the {run.state.label} run {run.run_no} started")
    row = node.tables.tasks[start.task_no]
    if row.start_no != start.start_no and not is_stream:  # a stream outlives starts
        raise Broken("I14 cancel", f"start {start.start_no} of {row} is not stored")
    stored.starts_read_the_last_success(node, start)


def what_waits_says_for_what(node: Any, run_no: int) -> None:
    """I16: check that each unfinished task of an active run is running, or can explain its wait."""
    run = node.memory.runs.get(run_no)
    if run is None or not run.state.is_live:
        return
    for task_index in range(len(run.spec.tasks)):
        group = run.groups.get(task_index)
        if group is None:
            _has_why(node, run, task_index, -1, run.active_tasks.get(run.task_no(task_index, -1)))
        else:
            for index in range(group.width):
                task = run.active_tasks.get(group.first_task_no + index)
                if task is not None or group.states[index] == TaskState.PENDING:
                    _has_why(node, run, task_index, index, task)


def _has_why(node: Any, run: Run, task_index: int, index: int, task: Any) -> None:
    if task is None and run.states[task_index] >= TaskState.SUCCESS:
        return
    if task is not None and (task.state is TaskState.RUNNING or task.worker >= 0):
        return
    if explain_task(run, task_index, index, node.memory, node.slots) is None:
        state = "pending" if task is None else task.state.label
        raise Broken("I16 why", f"run {run.run_no} task {task_index}[{index}] is {state}, not why")


def effects_match_the_ledger(node: Any, turn: Turn) -> None:
    """Check E1, E2 and E3 against the record of what user code did.

    E1: a successful start has returned. E2: starts are charged. E3: nothing starts after a success.
    """
    ledger, tables = node.ledger, node.tables
    if ledger.begun_after_success:
        raise Broken("E3 ledger", f"{ledger.begun_after_success} began after their success")
    if ledger.begun_after_end:
        raise Broken("I14 cancel", f"{ledger.begun_after_end} began though they had ended")
    if ledger.storms:
        raise Broken("E4 storm", f"what stood behind {ledger.storms} was called back for ever")
    for change in changed_tasks(turn.batch):
        key = change.task_no, change.start_no
        row = tables.tasks[change.task_no]
        task = _spec(node, row.run_no).tasks[row.task_index]
        ends_alone = task.events is not None and task.streams  # with its stream
        ends_alone |= operating.is_marked(change)
        if change.state is TaskState.SUCCESS and key not in ledger.returned and not ends_alone:
            raise Broken("E1 ledger", f"start {key} never returned")
        begins = ledger.begins[change.task_no]
        cut_short = change.interruptions
        if task.body is Body.COROUTINE or task.events is not None:
            cut_short = tables.cut_short[change.task_no]  # progress resets its own count
        paid = max(1, change.try_number) + cut_short + tables.resumptions[change.task_no]
        if begins > paid and not _is_hosted(node, change.task_no):
            raise Broken("E2 ledger", f"task {change.task_no} began {begins} times, {paid} paid")
        if ledger.starts[key] > 1:
            raise Broken("E2 ledger", f"start {key} began {ledger.starts[key]} times")


def _is_hosted(node: Any, task_no: int) -> bool:
    row = node.tables.tasks[task_no]
    task = _spec(node, row.run_no).tasks[row.task_index]
    return task.sensor is not None and task.body is Body.COROUTINE


def _spec(node: Any, run_no: int) -> Any:
    return node.tables.spec_of_run(run_no)


def _task(node: Any, start: StartTry) -> Any:
    return _spec(node, start.start.run_no).tasks[start.start.task_index]
