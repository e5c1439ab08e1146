"""DAGs whose runs are started by events: how they are drawn, and their invariant.

I24 of ``tests.sim.invariants``: each event starts one run, once per key and in order, or the reason
why it starts none is stored. No event waits forever.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from aioflow.core.state.crash_trials import may_host
from aioflow.core.state.memory import Memory
from aioflow.core.triggers.assignment import is_stopped
from aioflow.core.triggers.dag_triggers import host_role
from aioflow.model.dag import DagSpec
from aioflow.model.rows import RunRow
from aioflow.model.states import RunState
from aioflow.model.triggers import (
    ASSET,
    ASSETS,
    BY_EVENT,
    AssetCondition,
    DagEventRow,
    DagTriggerRow,
    DagTriggerSpec,
    EventOutcome,
    IfRunning,
)
from aioflow.protocol.requests import EmitEvent
from tests.sim.broken import Broken
from tests.sim.script import StreamPlan, carried, plan_of, token_of
from tests.sim.themes import EVENTS, themes_of
from tests.sim.workload import SECOND

__all__ = (
    "Sender",
    "are_hosted",
    "begin",
    "drawn_again",
    "expects_more",
    "hold",
    "memory_is_what_rows_say",
    "of_the_model",
    "runs_begun",
    "with_events",
)

TICKS = "sim:Ticks"
PARAMETER, TRIGGERING = "event", "triggering_events"
OUTSIDE = ("x", "y")
"""Names of the assets that clients update."""

_IF_RUNNING: tuple[IfRunning, ...] = ("queue", "queue", "skip", "cancel_old")
_SHORT = (None, None, None, SECOND, 120 * SECOND)
_LONG = (None, 30 * SECOND, 120 * SECOND, 900 * SECOND)
"""Debounce times: how long no event may arrive before a run starts."""

Stream: TypeAlias = Callable[[random.Random, bytes, StreamPlan], tuple[str, bytes]]
"""Returns the class path and the fields of a trigger that yields the events of a plan."""


# ── DAGs ────────────────────────────────────────────────────────────────────────────────


def of_the_model(_rng: random.Random, kwargs: bytes, _plan: StreamPlan) -> tuple[str, bytes]:
    """Return a trigger that the actor of the first level understands; see ``Stream``."""
    return TICKS, kwargs


def with_events(dags: list[DagSpec], seed: int, stream: Stream) -> list[DagSpec]:
    """Let events start the runs of some DAGs of a seed, and let tasks update assets.

    A DAG depends only on the assets of earlier DAGs; otherwise its runs would never end.
    """
    rng, is_theme = random.Random(f"events {seed}"), EVENTS in themes_of(seed)
    if rng.random() >= 0.3 and not is_theme:
        return dags
    made = []
    for number, dag in enumerate(dags):
        spec = _tells(dag, f"a{number}", rng)
        match rng.choice(("ticks", "ticks", "assets", "ticks" if is_theme else "none")):
            case "ticks":
                ticks = _ticks(number, rng, stream, is_held=is_theme)
                spec = _evented(spec, ticks, PARAMETER)
            case "assets":
                spec = _evented(spec, _assets(number, rng), TRIGGERING)
            case _:
                pass
        made.append(spec)
    return made


def _evented(spec: DagSpec, trigger: DagTriggerSpec, parameter: str) -> DagSpec:
    return replace(spec, trigger=trigger, schedule=None, parameters=(parameter,))


def _tells(spec: DagSpec, asset: str, rng: random.Random) -> DagSpec:
    """Let some tasks of a DAG update an asset."""
    told = ((asset, b"\xc0"),)
    tasks = [replace(task, outlets=told) if rng.random() < 0.2 else task for task in spec.tasks]
    return replace(spec, tasks=tuple(tasks))


def _ticks(number: int, rng: random.Random, stream: Stream, *, is_held: bool) -> DagTriggerSpec:
    """Return a trigger that yields numbers.

    Args:
        is_held: Whether most events are held by the debounce. Such a trigger does not end, because
            a trigger that ends is hosted again after a while, and its next input would check the
            held events.
    """
    keyed = rng.random() < 0.75
    dag_version = StreamPlan(
        keyed=keyed,
        count=rng.choice((1, 3, 8, 20)),
        ends=rng.choice(("hang", "hang", "end", "fail")) if keyed and not is_held else "hang",
        window=64,
    )
    path, kwargs = stream(rng, carried((0, number), dag_version), dag_version)
    return DagTriggerSpec(
        class_path=path,
        kwargs=kwargs,
        name="Ticks",
        if_running=rng.choice(_IF_RUNNING),
        debounce_us=rng.choice(_LONG if is_held else _SHORT),
    )


def _assets(number: int, rng: random.Random) -> DagTriggerSpec:
    there = [*(f"a{before}" for before in range(number)), *OUTSIDE]
    names = tuple(rng.sample(there, rng.randint(1, len(there))))
    condition = AssetCondition(rng.random() < 0.5, names)
    if len(names) > 2 and rng.random() < 0.5:
        within = AssetCondition(not condition.is_all, names[1:])
        condition = AssetCondition(condition.is_all, (names[0], within))
    return DagTriggerSpec(
        class_path=ASSETS,
        kwargs=msgspec.msgpack.encode(condition),
        name="assets",
        if_running=rng.choice(_IF_RUNNING),
    )


def drawn_again(new: DagSpec, first: DagSpec, rng: random.Random) -> DagSpec:
    """Return a rewritten DAG that usually keeps its trigger, and sometimes has none.

    The assets that its tasks update stay the same. The handling of an event that arrives during a
    run may change.
    """
    if first.trigger is None and not any(task.outlets for task in first.tasks):
        return new
    told = [task.outlets for task in first.tasks if task.outlets]
    tasks = [
        replace(task, outlets=told[0]) if told and rng.random() < 0.2 else task
        for task in new.tasks
    ]
    new = replace(new, tasks=tuple(tasks))
    if first.trigger is None:
        return new
    trigger = replace(first.trigger, if_running=rng.choice(_IF_RUNNING))
    is_by_none = rng.random() < 0.1
    return replace(
        new, trigger=None if is_by_none else trigger, schedule=None, parameters=first.parameters
    )


class Sender:
    """A client that updates assets."""

    def __init__(self, seed: int, dags: Sequence[DagSpec]) -> None:
        self._rng = random.Random(f"assets {seed}")
        kinds = {spec.trigger.class_path for spec in dags if spec.trigger is not None}
        self._sends = ASSETS in kinds

    def event(self) -> EmitEvent | None:
        """Return the next update, or mostly ``None``."""
        if not self._sends or self._rng.random() < 0.6:
            return None
        name = self._rng.choice(OUTSIDE)
        return EmitEvent(name=f"{ASSET}{name}", key=None, data=b"\x05", request=None)


# ── state of the rows ───────────────────────────────────────────────────────────────────


def begin(memory: Memory, tables: Any) -> None:
    """Restore what a restart restores into the memory."""
    held = [row for row in tables.dag_events.values() if row.outcome is EventOutcome.HELD]
    memory.dag_triggers.restore(tables.dag_triggers.values(), held)


def _wanted(node: Any) -> Iterator[tuple[DagTriggerRow, DagTriggerSpec]]:
    """Yield the triggers that the current versions of the DAGs declare."""
    for row in node.tables.dag_triggers.values():
        dag = node.tables.dags.get(row.dag_id)
        if dag is None or dag.gone:
            continue
        trigger = node.tables.specs[dag.version, dag.dag_id].trigger
        if trigger is not None and trigger.class_path == row.class_path:
            yield row, trigger


def _events_of(node: Any, number: int) -> list[DagEventRow]:
    rows = (row for row in node.tables.dag_events.values() if row.trigger_no == number)
    return sorted(rows, key=lambda row: row.sequence)


def runs_begun(tables: Any) -> int:
    """Return how many events have started a run."""
    return sum(row.outcome is EventOutcome.RUN for row in tables.dag_events.values())


def plan_of_trigger(kwargs: bytes) -> StreamPlan:
    """Return the plan of a trigger, at either level."""
    fields = msgspec.msgpack.decode(kwargs)
    return plan_of(msgspec.msgpack.encode(fields.get("carried", fields)))


def _token_of_trigger(kwargs: bytes) -> list[int]:
    fields = msgspec.msgpack.decode(kwargs)
    return token_of(msgspec.msgpack.encode(fields.get("carried", fields)))


def expects_more(node: Any) -> bool:
    """Return whether an event is still to come or held. L1 waits until none is."""
    for row, _ in _wanted(node):
        if row.held is not None:
            return True
        if row.class_path == ASSETS or row.kwargs is None:
            continue
        dag_version, events = plan_of_trigger(row.kwargs), _events_of(node, row.trigger_no)
        if dag_version.keyed and {event.key for event in events} != set(
            map(str, range(dag_version.count))
        ):
            return True
        if len(events) < dag_version.count:
            return True
    return False


# ── I24 ─────────────────────────────────────────────────────────────────────────────────


def hold(node: Any, turn: Any) -> None:
    """I24: check a commit."""
    changes, tables = turn.batch.of_dags, node.tables
    numbers = {row.event_no for row in changes.events if row.outcome is not EventOutcome.HELD}
    numbers |= {change.event_no for change in changes.outcomes}
    settled = [tables.dag_events[number] for number in sorted(numbers)]
    for row in changes.events:
        _comes_in_order(node, row)
    begun: defaultdict[int, list[DagEventRow]] = defaultdict(list)
    for event in settled:
        if event.outcome is EventOutcome.RUN:
            begun[event.run_no or -1].append(event)
        elif event.outcome is EventOutcome.SKIPPED:
            _was_in_the_way(node, turn, event)
    runs = {run.run_no: run for run in turn.batch.new_runs if run.cause == BY_EVENT}
    if begun.keys() != runs.keys():
        raise Broken("I24 events", f"events start {set(begun)}, there are {set(runs)}")
    for run_no, events in begun.items():
        _is_of_its_events(node, runs[run_no], events)
        _takes_its_place(node, turn, runs[run_no], events[0])
    _nothing_is_held_in_vain(node)


def _comes_in_order(node: Any, event: DagEventRow) -> None:
    row = node.tables.dag_triggers[event.trigger_no]
    if event.asset is not None or row.kwargs is None or row.class_path == ASSETS:
        return
    keyed = plan_of_trigger(row.kwargs).keyed
    if event.key != (str(event.sequence) if keyed else None):
        raise Broken("I24 events", f"{event} does not come in its order")


def _is_of_its_events(node: Any, run: RunRow, events: list[DagEventRow]) -> None:
    """Check that the run belongs to the DAG of its events, and receives only these events."""
    row = node.tables.dag_triggers[events[0].trigger_no]
    if run.dag_id != row.dag_id or {event.trigger_no for event in events} != {row.trigger_no}:
        raise Broken("I24 events", f"{run} is started by {events}")
    told = None if run.conf is None else msgspec.msgpack.decode(run.conf)
    if events[0].asset is None:
        right = len(events) == 1 and _tells_of(told, events[0], row)
    else:
        parts = (told or {}).get(TRIGGERING, {}).items()
        found = {(name, str(event["id"])) for name, part in parts for event in part}
        right = found == {(event.asset, event.key) for event in events}
        right = right and _is_met(row, {name for name, _ in found})
    if not right:
        raise Broken("I24 events", f"{run} received {told} from {events}")


def _tells_of(told: Any, event: DagEventRow, row: DagTriggerRow) -> bool:
    match told:
        case {"event": ["event", token, *which]}:
            if token != _token_of_trigger(row.kwargs or b""):
                return False
            return event.key is None or [int(event.key)] == which
        case _:
            return False


def _is_met(row: DagTriggerRow, there: set[str]) -> bool:
    def met(part: str | AssetCondition) -> bool:
        if isinstance(part, str):
            return part in there
        found = [met(within) for within in part.parts]
        return all(found) if part.is_all else any(found)

    return met(msgspec.msgpack.decode(row.kwargs or b"", type=AssetCondition))


def _live_before(node: Any, turn: Any, dag_id: str, run_no: int) -> list[RunRow]:
    """Return the earlier active runs of a DAG, except those just reset.

    A quarantined run is not returned, because it blocks no other run.
    """
    tables = node.tables
    rows = [tables.runs[no] for no in tables.unfinished() if no < run_no]
    began_anew = tables.cleared_runs | tables.marked_runs | turn.before.over
    return [
        row
        for row in rows
        if row.dag_id == dag_id
        and row.state.is_live
        and row.quarantine is None
        and row.run_no not in began_anew
    ]


def _trigger_of(node: Any, dag_id: str) -> DagTriggerSpec | None:
    dag = node.tables.dags[dag_id]
    spec: DagSpec = node.tables.specs[dag.version, dag_id]
    return spec.trigger


def _takes_its_place(node: Any, turn: Any, run: RunRow, event: DagEventRow) -> None:
    """Check ``if_running``: the run starts beside no earlier active run, or replaces it."""
    trigger = _trigger_of(node, run.dag_id)
    if trigger is None or any(dag.dag_id == run.dag_id for dag in turn.batch.dags):
        return  # it was rewritten in the same turn
    others = _live_before(node, turn, run.dag_id, run.run_no)
    if trigger.if_running == "skip" and others:
        raise Broken("I24 events", f"{run} was to be skipped, as {others} go on")
    last = _last_before(node, event.trigger_no, run)
    old = [
        other
        for other in others
        if other.cause == BY_EVENT and (other.state is RunState.QUEUED or other.run_no == last)
    ]
    if trigger.if_running == "cancel_old" and old:
        raise Broken("I24 events", f"{run} was to take the place of {old}: {event}")


def _last_before(node: Any, trigger_no: int, run: RunRow) -> int | None:
    """Return the number of the last earlier run that an event of this trigger started."""
    begun = {row.run_no for row in _events_of(node, trigger_no) if row.run_no is not None}
    return max((number for number in begun if number < run.run_no), default=None)


def _was_in_the_way(node: Any, turn: Any, event: DagEventRow) -> None:
    """Check that an event was skipped only because a run was active."""
    dag_id = node.tables.dag_triggers[event.trigger_no].dag_id
    ended = {change.run_no for change in turn.batch.run_changes if not change.state.is_live}
    going = [
        row
        for row in node.tables.runs.values()
        if row.dag_id == dag_id and (row.state.is_live or row.run_no in ended)
    ]
    if not going:
        raise Broken("I24 events", f"{event} starts no run, and none goes on")


def _nothing_is_held_in_vain(node: Any) -> None:
    """Check that the held events of an asset trigger do not yet satisfy its condition."""
    full = {dag for dag, runs in node.memory.queued_runs.items() if runs}  # possibly too many
    held_still = [node.memory.runs[run_no] for run_no in node.memory.clearings]
    full |= {run.row.dag_id for run in held_still if run.state is RunState.QUEUED}
    for row, _ in _wanted(node):
        if row.class_path != ASSETS or row.dag_id in full or is_stopped(row.dag_id, node.memory):
            continue
        held = {
            event.asset
            for event in _events_of(node, row.trigger_no)
            if event.outcome is EventOutcome.HELD and event.asset is not None
        }
        if held and _is_met(row, held):
            raise Broken("I24 events", f"{row.dag_id} holds {held}, and no run starts")


# ── memory ──────────────────────────────────────────────────────────────────────────────


def memory_is_what_rows_say(node: Any) -> None:
    """Check that a restart would restore the same DAG triggers and held events."""
    fresh = Memory(epoch=0)
    begin(fresh, node.tables)
    known, stored = (
        {one.row.trigger_no: one for one in m.dag_triggers} for m in (node.memory, fresh)
    )
    if known.keys() != stored.keys():
        raise Broken("restore", f"triggers of DAGs: {set(known)}, stored {set(stored)}")
    for number, one in known.items():
        mine, other = replace(one.row, kwargs=None), replace(stored[number].row, kwargs=None)
        if mine != other:
            raise Broken("restore", f"trigger of a DAG: {mine}, stored {other}")
        pending = {name: events for name, events in one.pending.items() if events}
        if pending != stored[number].pending:
            raise Broken("restore", f"{one.row.dag_id} holds {pending}: {stored[number].pending}")


def are_hosted(node: Any) -> None:
    """Check that each declared trigger is hosted while its host is up, unless it is paused."""
    memory = node.memory
    for row, _ in _wanted(node):
        one = memory.dag_triggers.get(row.trigger_no)
        if one is None or row.class_path == ASSETS or row.kwargs is None:
            continue
        if host_role(one, memory) not in memory.hosts_up or memory.is_drained:
            continue
        rests = one.retry_at is not None or is_stopped(row.dag_id, memory)
        rests = rests or memory.may_host_more or not may_host(row.trigger_no, memory)
        if not one.assignment_id and not rests and row.trigger_no not in memory.lacking_code:
            raise Broken("slots", f"the trigger of {row.dag_id} has no host")
