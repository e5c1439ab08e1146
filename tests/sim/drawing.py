"""Choices of a seed shared by the levels: its DAGs, and the size limits of a turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import msgspec

from aioflow.core import transaction
from aioflow.core.repair import execution
from aioflow.core.runs import backfills, cancel
from aioflow.core.state import outbox_quota
from aioflow.core.triggers import asset_conditions, event_runs, event_stream
from aioflow.maintenance import retention
from aioflow.model.dag import DEFAULT_POOL, Body, DagSpec, TaskSpec
from tests.sim.evented import Stream, of_the_model, with_events
from tests.sim.filling import with_schedules
from tests.sim.following import with_joins
from tests.sim.loops import with_loops
from tests.sim.misbehaving import draw_stream
from tests.sim.owing import perhaps_called
from tests.sim.past import with_past
from tests.sim.remote import with_executors
from tests.sim.streaming import with_generators, with_streams
from tests.sim.themes import is_brief
from tests.sim.waiting import with_max_wait
from tests.sim.workload import make_dags

__all__ = ("FIRST", "SECOND", "Drawn", "draw", "small_turns")


OWN_HOSTS_FROM = 1_000


class Mix(msgspec.Struct, frozen=True):
    """Frequencies of the features of DAGs.

    Attributes:
        streams: Name of the random generator for streams, which ``with_streams`` adds.
        joins: Probability of mapped tasks over other mapped tasks.
        loops: Probability of loops.
        stream: Makes the trigger whose events start runs.
    """

    streams: str
    with_streams: Callable[[DagSpec, random.Random], DagSpec]
    joins: float
    loops: float
    stream: Stream


FIRST = Mix("streams", with_streams, joins=0.4, loops=0.3, stream=of_the_model)
SECOND = Mix("generators", with_generators, joins=0.1, loops=0.15, stream=draw_stream)


class Drawn(msgspec.Struct, frozen=True):
    """The DAGs of a seed.

    Attributes:
        dated: The random generator for later choices about the previous run.
        has_past: Whether tasks may depend on the previous run.
    """

    dags: list[DagSpec]
    dated: random.Random
    has_past: bool


def draw(seed: int, rng: random.Random, mix: Mix) -> Drawn:
    """Draw DAGs. Each optional feature has its own random generator."""
    dags, streamed = _briefly(make_dags(rng), seed), random.Random(f"{mix.streams} {seed}")
    if streamed.random() < 0.5:
        dags = [mix.with_streams(dag, streamed) for dag in dags]
    joined = random.Random(f"joins {seed}")
    if joined.random() < mix.joins:
        dags = [with_joins(dag, joined) for dag in dags]
    looped = random.Random(f"loops {seed}")
    if looped.random() < mix.loops:
        dags = [with_loops(dag, looped) for dag in dags]
    dated = random.Random(f"past {seed}")
    has_past = dated.random() < 0.3
    if has_past:
        dags = [with_past(dag, dated) for dag in dags]
    dags = with_schedules(dags, seed)
    dags = with_events(dags, seed, mix.stream)
    dags = with_executors(with_max_wait(_with_own_hosts(dags, seed), seed), seed)
    return Drawn(perhaps_called(dags, seed), dated, has_past)


def _briefly(dags: list[DagSpec], seed: int) -> list[DagSpec]:
    """Turn most tasks into functions that can be prefetched in a slot, if the seed is brief."""
    if not is_brief(seed):
        return dags
    rng = random.Random(f"functions {seed}")
    return [
        msgspec.structs.replace(
            dag,
            tasks=tuple(_brief(task) if rng.random() < 0.7 else task for task in dag.tasks),
            max_active_tasks=None,
        )
        for dag in dags
    ]


def _brief(task: TaskSpec) -> TaskSpec:
    if task.sensor is not None or task.start_trigger is not None:
        return task
    return msgspec.structs.replace(
        task,
        body=Body.FUNCTION,
        pool=DEFAULT_POOL,
        slots=1,
        window=None,
        max_active_tis_per_dagrun=None,
        max_active_tis_per_dag=None,
    )


def _with_own_hosts(dags: list[DagSpec], seed: int) -> list[DagSpec]:
    """Isolate some DAGs, but only in seeds above those known to find planted bugs."""
    rng = random.Random(f"own hosts {seed}")
    if seed < OWN_HOSTS_FROM or rng.random() < 0.5:
        return dags
    return [
        msgspec.structs.replace(dag, isolated=("drawn",)) if rng.random() < 0.5 else dag
        for dag in dags
    ]


_Choice = tuple[ModuleType, str, Sequence[Any]]
"""A module, one of its constants, and alternative values for the constant."""

_TURNS: tuple[_Choice, ...] = (
    (transaction, "BATCH_ROWS", (20, 3, 1)),
    (event_stream, "EVENTS_AHEAD", (3, 1)),
    (outbox_quota, "WINDOW", (3, 1)),
    (execution, "SLICE_TASKS", (3, 1)),
    (retention, "DELETION_SLICE_ROWS", (3, 1)),
    (cancel, "BATCH_ROWS", (3, 1)),
    (event_runs, "RUNS_AHEAD", (3, 1)),
    (asset_conditions, "PENDING_LIMIT", (3, 2)),
    (backfills, "FIRE_TIMES_AT_ONCE", (2, 1)),
    (backfills, "BACK_AT_ONCE", (2, 1)),
)


@contextmanager
def small_turns(seed: int) -> Iterator[None]:
    """Reduce the size limits of a turn for some seeds."""
    rng = random.Random(f"rows {seed}")
    with ExitStack() as stack:
        for module, name, fewer in _TURNS:
            usual = getattr(module, name)
            often = (usual,) * (2 if name == "BATCH_ROWS" else 1)
            stack.enter_context(patch.object(module, name, rng.choice((*often, *fewer))))
        yield
