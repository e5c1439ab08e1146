"""JSON schemas of the data for the web page. The schemas for scripts are in ``api.schemas``."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from aioflow.api.schemas import DamageView, NoteView, RunSummary, TaskView, TriggerView, WaitView

__all__ = (
    "AgeView",
    "CodeFileView",
    "CodeView",
    "EdgeView",
    "GraphView",
    "GridRunView",
    "GridView",
    "GroupView",
    "HolderView",
    "HostView",
    "ImportErrorView",
    "InputView",
    "KindView",
    "LogLineView",
    "LogLinesView",
    "NodeView",
    "OverviewView",
    "PoolView",
    "RecentRunView",
    "RecordView",
    "RunGraphView",
    "RunTaskView",
    "SlotView",
    "SpanView",
    "SpannedView",
    "StartView",
    "TaskNodeView",
    "TaskShownView",
    "TriggersView",
    "TryView",
    "VersionView",
    "WaiterView",
    "WaitersView",
    "WaitingView",
    "WokenView",
)


class SlotView(msgspec.Struct, frozen=True, kw_only=True):
    """The slots for one kind of task body, and how many of them are in use."""

    all: int
    used: int


class WaitingView(msgspec.Struct, frozen=True, kw_only=True):
    """Waits of one task of a run: of a single task, or of all children of a mapped task.

    Attributes:
        map_index, round, map_label: Identify the child that has waited longest.
        count: The number of children, or 1, in this state.
        since: The time at which the longest of these waits began.
        text: The target of the waits, as one sentence without times.
        usual_seconds: The median duration of this task's waits of this kind in the last 30 days, if
            known.
    """

    run_id: str
    dag_id: str
    task_id: str
    map_index: int
    round: int
    map_label: str | None = None
    state: str
    count: int = 1
    since: str | None = None
    text: str = ""
    waiting_on: WaitView | None
    usual_seconds: float | None = None


class OverviewView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a node.

    Attributes:
        states: Number of tasks by state, except pending and ended ones.
        slots: Slots by kind of task body: ``def`` or ``async``.
        deferred: Number of waits for triggers, by kind.
        failed_runs: The latest runs that ended as ``failed`` or ``partial``.
        failed_24h: Number of failed runs that ended within the last day, among the newest 1,000.
        decisions: Number of open decisions.
        fires_per_second: Average over the last minute.
        damaged: The unreadable rows of the database that have been found so far.
    """

    status: str
    version: str
    uptime_seconds: float
    is_store_away: bool
    live_runs: int
    states: dict[str, int]
    slots: dict[str, SlotView]
    deferred: dict[str, int]
    failed_24h: int
    import_errors: int
    decisions: int
    loop_lag_seconds: float
    fires_per_second: float
    waiting_longest: list[WaitingView]
    damaged: list[DamageView]
    failed_runs: list[RunSummary]


class RecentRunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a bar of a chart; see ``RunSummary``."""

    run_id: str
    state: str
    is_waiting: bool
    started_at: str | None
    ended_at: str | None


class TaskNodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A task as a node of a graph.

    Attributes:
        group: The id of its innermost group; ``None`` if it is in no group.
        kind: ``task``, ``sensor``, ``branch``, ``until``, ``setup`` or ``teardown``.
    """

    task_id: str
    body: str
    group: str | None
    is_mapped: bool
    is_sensor: bool
    trigger_rule: str
    kind: str
    doc: str
    line: int


class EdgeView(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """A dependency of one task on another, with its trigger rule."""

    source: str
    target: str
    rule: str


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group of tasks; ``parent`` is the enclosing group."""

    group_id: str
    parent: str | None


class GraphView(msgspec.Struct, frozen=True, kw_only=True):
    """The graph of a version of a DAG."""

    version: str
    nodes: list[TaskNodeView]
    edges: list[EdgeView]
    groups: list[GroupView]


Cell: TypeAlias = tuple[int, dict[str, int], str | None, str | None]
"""Index into ``tasks``, counts by state, start of the first instance, end of the last one."""


class GridRunView(RunSummary, frozen=True, kw_only=True):
    """A run as a column of a grid; ``cells`` is ``None`` if counting takes too long."""

    cells: list[Cell] | None


class GridView(msgspec.Struct, frozen=True, kw_only=True):
    """A grid of a DAG's tasks and runs.

    Attributes:
        tasks: The tasks, those of the newest version first; parents come before children.
        next: The cursor of older runs; ``None`` if there are none.
    """

    tasks: list[str]
    runs: list[GridRunView]
    next: str | None


class CodeFileView(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a version. Its text is cut if all files together are too long."""

    name: str
    text: str


class CodeView(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a version, the DAG's own file first."""

    version: str
    files: list[CodeFileView]
    made_at: str | None


class VersionView(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a DAG, and the number of the DAG's newest 10,000 runs that use it."""

    version: str
    made_at: str | None
    runs: int


class RunTaskView(msgspec.Struct, frozen=True, kw_only=True):
    """The state counts of a task in a run, summed over its children.

    Attributes:
        usual_seconds: The median duration of the task, or of its children, in the last 30 days;
            ``None`` if too little is known, or if the run has many tasks.
    """

    task_id: str
    counts: dict[str, int]
    width: int | None
    is_open: bool
    started_at: str | None
    ended_at: str | None
    usual_seconds: float | None = None


class RunGraphView(msgspec.Struct, frozen=True, kw_only=True):
    """The state counts of a run's tasks, parents before children.

    The nodes and edges of the tasks are in the graph of ``version``.
    """

    run: RunSummary
    version: str
    tasks: list[RunTaskView]


class SpanView(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """A part of a task's time: ``queued``, ``running``, ``waiting`` or ``retrying``."""

    kind: str
    start: str | None
    end: str | None


class SpannedView(msgspec.Struct, frozen=True, kw_only=True):
    """A task with the time spans of its states."""

    task_id: str
    map_index: int
    round: int
    map_label: str | None
    state: str
    spans: list[SpanView]


class InputView(msgspec.Struct, frozen=True, kw_only=True):
    """An input of a task from another task. If a value exceeds 4 KiB, only its size is included."""

    name: str
    from_task: str
    value: Any


class ClearView(msgspec.Struct, frozen=True, kw_only=True):
    """A clear of a task, which made the task run again.

    Attributes:
        at, by: The time of the clear, and who cleared the task; ``None`` if the audit has no entry
            about it.
    """

    at: str | None
    by: str | None


class TryView(msgspec.Struct, frozen=True, kw_only=True):
    """A try of a task. The last try in a list is the current or the final one.

    Attributes:
        try_number: Number of the try, counted across clears. Requests for logs use this number.
        executor: Name of the executor whose worker ran the try; ``None`` if it ran on the daemon's
            machine.
        host: Machine of that worker; ``None`` if it is unknown.
        worker: The process of that worker on its machine, and the worker's address in the
            executor's engine, such as Dask.
        worker_url: A page about the worker, such as the dashboard of Dask, while the worker is up.
        cleared: The clear before this try; ``None`` if the task was not cleared before it.
    """

    try_number: int
    cleared: ClearView | None = None
    state: str
    started_at: str | None
    ended_at: str | None
    executor: str | None
    host: str | None
    worker: str | None
    worker_url: str | None
    error: str | None
    reason: str | None


class RecordView(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded durable call of a coroutine.

    Attributes:
        label: What the call is for, in its author's words.
    """

    ordinal: int
    kind: str
    name: str
    label: str | None = None
    at: str
    value: Any


class TaskShownView(TaskView, frozen=True, kw_only=True):
    """One task of a run in detail."""

    inputs: list[InputView]
    tries: list[TryView]
    records: list[RecordView]
    trigger: TriggerView | None
    note: NoteView | None


class KindView(msgspec.Struct, frozen=True, kw_only=True):
    """The triggers of one kind.

    Attributes:
        shared_watches: Number of watches that its triggers share; ``None`` if no host has reported.
        next_check_at: Time of the next check of any of its triggers; ``None`` if unknown.
        fires: Number of events since the daemon was started.
        fires_per_second: Average over the last minute.
    """

    kind: str
    count: int
    oldest_since: str | None
    shared_watches: int | None
    next_check_at: str | None
    fires: int
    fires_per_second: float


class HostView(msgspec.Struct, frozen=True, kw_only=True):
    """A process that hosts triggers."""

    name: str
    state: str
    triggers: int
    loop_lag_seconds: float | None
    rss_bytes: int | None


class AgeView(msgspec.Struct, frozen=True, kw_only=True):
    """Number of triggers in a range of waiting times; the last has no ``upto_seconds``."""

    upto_seconds: int | None
    count: int


class TriggersView(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting triggers, and the processes that host them."""

    kinds: list[KindView]
    hosts: list[HostView]
    capacity: int
    waiting_for_capacity: int
    quarantined: list[str]
    ages: list[AgeView]


class WokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A task that an event has resumed, or a run that an event has started. A run has no task."""

    run_id: str
    task_id: str | None
    map_index: int
    dag_id: str


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A limited pool; ``used`` and ``queued`` are ``None`` without a daemon."""

    name: str
    slots: int
    include_deferred: bool
    used: int | None
    queued: int | None


class HolderView(msgspec.Struct, frozen=True, kw_only=True):
    """A task that occupies slots of a pool."""

    run_id: str
    task_id: str
    map_index: int
    weight: int
    since: str | None
    is_waiting: bool


class WaiterView(msgspec.Struct, frozen=True, kw_only=True):
    """A task, or the remaining children of a mapped task, waiting for slots of a pool."""

    run_id: str
    task_id: str
    map_index: int
    children: int
    weight: int
    priority: int
    since: str | None


class WaitersView(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that wait for slots of a pool, the next one first; at most 100 entries."""

    items: list[WaiterView]
    next: str | None = None


class StartView(msgspec.Struct, frozen=True, kw_only=True):
    """A fire time of a schedule."""

    dag_id: str
    at: str
    schedule: str | None
    timezone: str


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node.

    Attributes:
        name: Its name; by default the name of its host.
        state: ``joining``, ``active``, ``standby``, ``draining``, ``drained``, ``left``, ``dead``,
            or ``away`` for a node that sends no heartbeats.
        silent_seconds: Time since its last sign of life; 0 for the responding node.
        runs, triggers, slots: ``None`` unless it is the active node, and has sent this response.
    """

    node: int
    name: str | None
    epoch: int
    state: str
    started_at: str | None
    seen_at: str | None
    version: str | None
    pid: int | None
    host: str | None
    silent_seconds: float | None
    runs: int | None
    slots: int | None
    triggers: int | None
    is_here: bool


class ImportErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """A file that cannot be imported. It defines no DAGs, or only those of an earlier version."""

    file: str
    reason: str
    message: str
    at: str | None
    last_good_version: str | None


class LogLineView(msgspec.Struct, frozen=True, kw_only=True):
    r"""A line of a log.

    Attributes:
        offset: Byte offset at which it begins.
        text: The line as a terminal would show it, without text that ``\r`` overwrites. Escape
            sequences remain.
        line: The number of the line, counted from 1; ``None`` if counting the lines before it takes
            more than one request.
        at: The time at which its beginning was captured.
        level: Level of a log record; ``None`` for other lines.
        stream: ``stderr`` if the line is known to have been written there, else ``None``.
        try_number: Number of the try, counted across clears.
        is_cut: Whether the line is longer than ``text``.
        is_open: Whether the end of the line is missing, so that more of it may follow.
    """

    offset: int
    text: str
    line: int | None = None
    at: str | None = None
    level: str | None = None
    stream: str | None = None
    try_number: int = 1
    is_cut: bool = False
    is_open: bool = False


class LogLinesView(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a log.

    Attributes:
        next_offset: Offset at which to continue; ``None`` at the end.
        before_offset: Offset before which to continue backwards; ``None`` at the beginning.
        end_offset: Offset up to which the log was examined.
        is_live: Whether more output may follow.
    """

    lines: list[LogLineView]
    next_offset: int | None
    before_offset: int | None = None
    end_offset: int = 0
    is_live: bool = False


class RunLogLineView(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log of a run.

    Attributes:
        task_id: Its task; ``@run`` for a callback of the run.
        map_label: The label of the mapped child, if its DAG defines one.
        is_open: Whether the end of the line is missing. The end may follow as the next line of the
            same task.

    See ``LogLineView`` for the other attributes.
    """

    task_id: str
    map_index: int
    map_label: str | None = None
    round: int
    try_number: int = 1
    at: str | None
    text: str
    level: str | None = None
    stream: str | None = None
    is_open: bool = False


class RunLogView(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of the log of a run, in chronological order.

    Attributes:
        next: Cursor at which to continue; ``None`` if there are no more lines now.
        resume: Cursor at which to continue later, when there is more output.
        is_first: Whether these are the first lines of the log.
        is_live: Whether more output may follow.
    """

    items: list[RunLogLineView]
    next: str | None
    resume: str
    is_first: bool = False
    is_live: bool = False
