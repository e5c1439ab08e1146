"""Clients of the node: they start runs, change limits, edit DAG files, and stop the node."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import msgspec

from aioflow.model.dag import DagSpec, ValueKind
from aioflow.protocol.inputs import AlertRaised, Drain, FileBroken, FileDeleted, FileParsed, Input
from aioflow.protocol.requests import (
    CancelRun,
    ClearTasks,
    CreateRun,
    EmitEvent,
    Request,
    SetPaused,
    SetPool,
    SetValue,
)
from tests.sim.evented import Sender, drawn_again
from tests.sim.filling import Filler
from tests.sim.operating import KEYS, Operator, says
from tests.sim.past import draw_date, with_past
from tests.sim.workload import COUNTING, POOLS, SECOND, make_dag

__all__ = ("UNREADABLE_DATE", "People", "Person")

UNREADABLE_DATE: Any = "a time that is none"
"""A logical date that no real client can send. Creating a run for it raises."""

_BEYOND_ALL_DATES = 10**18
"""A logical date outside the calendar. A run for it is refused."""

_RAISES_FROM = 10_000
"""The first seed that uses the unreadable date.

Lower seeds were chosen by tests for the cases that occur in them.
"""

_LONGEST_GRACE_US = 30 * SECOND


class File:
    """A DAG file: its current content, and its earlier versions."""

    def __init__(self, spec: DagSpec) -> None:
        self.name = spec.file
        self.state = "good"
        self.first = spec
        self.dags: tuple[DagSpec, ...] = (spec,)
        self.version = f"v-{spec.dag_id}"
        self.versions: list[tuple[str, tuple[DagSpec, ...]]] = [(self.version, self.dags)]

    def change_to(self, version: str, dags: tuple[DagSpec, ...]) -> None:
        """Rewrite the file."""
        self.state, self.version, self.dags = "good", version, dags
        if (version, dags) not in self.versions:
            self.versions.append((version, dags))

    def parsed(self) -> Input:
        """Return the report of the catalog on the file."""
        if self.state == "gone":
            return FileDeleted(self.name)
        if self.state == "broken":
            return FileBroken(file=self.name, reason="syntax", message="invalid syntax")
        triggers = dict.fromkeys(("sim:Trigger", "sim:Stream", "sim:Named"), self.version)
        return FileParsed(
            file=self.name, version=self.version, dags=self.dags, sources={}, triggers=triggers
        )


class Person:
    """Draws requests."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._poisoning = random.Random(f"poisoned {node.seed}")

    def run(self) -> Request:
        """Return a request to start a run, sometimes one that cannot be created."""
        rng = self._node.rng
        key = rng.choice((None, rng.choice(KEYS)))
        conf = rng.choice((None, None, None, b"\xc1"))
        date = draw_date(self._node.dated) if self._node.has_past else None
        if self._node.faults.happens("input poisoned", 10.0):
            raises = self._node.seed >= _RAISES_FROM and self._poisoning.random() < 0.5
            date = UNREADABLE_DATE if raises else _BEYOND_ALL_DATES
        dag_id = rng.choice(self._node.dags).dag_id
        return CreateRun(dag_id=dag_id, key=key, conf=conf, logical_date=date)

    def event(self) -> Request | None:
        """Return a request to emit an event.

        Return ``None`` if an event with the same request key exists: then the API itself would
        answer.
        """
        rng, tables = self._node.rng, self._node.tables
        name, request = rng.choice(("t0", "t1")), rng.choice((None, *KEYS))
        known = {(row.name, row.request) for row in tables.named_events.values()}
        if request is not None and (name, request) in known:
            return None
        return EmitEvent(name=name, key=None, data=b"\xc0", request=request)

    def meddling(self) -> Request:
        """Return a request to cancel, to pause or unpause, or to change a pool or a secret."""
        rng, tables = self._node.rng, self._node.tables
        runs = [tables.runs[no].run_id for no in tables.unfinished()]
        match rng.choice(("cancel", "pause", "resume", "pool", "pool", "value")):
            case "cancel" if runs:
                return CancelRun(run_id=rng.choice(runs))
            case "pause" | "resume" as verb:
                dag_id = rng.choice(self._node.dags).dag_id
                return SetPaused(dag_id=dag_id, paused=verb == "pause")
            case "value":
                value = rng.choice((None, b"\x01", b"\xa1x"))
                return SetValue(kind=ValueKind.SECRET, name=rng.choice("ab"), value=value)
            case _:
                name = rng.choice(POOLS[1:])
                return SetPool(
                    name=name,
                    slots=rng.choice((None, 1, 2, 3)),
                    include_deferred=name == COUNTING and rng.random() < 0.5,
                )


class People:
    """All clients, acting at random times."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._person = Person(node)
        self._operator = Operator(node.seed, node.tables)
        self._files = [File(spec) for spec in node.dags]
        self._editions = itertools.count(2)
        self._runs_left = node.rng.randint(1, 12)
        self._sender = Sender(node.seed, node.dags)
        self._filler = Filler(node.seed, node.dags, node.tables)
        self._noticing = random.Random(f"noticed {node.seed}")
        self._rewriting = random.Random(f"rewritten {node.seed}")

    def arrive(self) -> None:
        """Let the catalog of a new incarnation parse the files, and let the clients act."""
        self._node.after(0, self._parse)
        self._arm()

    def _parse(self) -> None:
        for file in self._files:
            self._node.say(file.parsed())

    def _arm(self) -> None:
        if not self._node.faults.healed:
            self._node.after(self._node.rng.randint(1, 20 * SECOND), self._come)

    def _come(self) -> None:
        node, faults = self._node, self._node.faults
        if faults.healed:
            return  # everything existing must end
        if self._runs_left > 0:
            self._runs_left -= 1
            request, times = self._person.run(), 2 if node.rng.random() < 0.2 else 1
            if faults.is_asked():
                for _ in range(times):
                    node.ask(request)
        if node.rng.random() < 0.4 and (event := self._person.event()) and faults.is_asked():
            for _ in range(2 if node.rng.random() < 0.2 else 1):
                node.ask(event)
        if faults.happens("operator"):
            node.ask(self._person.meddling())
        for wish in self._wishes():
            if wish is not None and faults.is_asked():
                self._ask(wish)
        if faults.happens("files change"):
            self._edit()
        self._notice()
        if faults.happens("drain"):
            self._drain()
        self._arm()

    def _notice(self) -> None:
        """Now and then report damage, as a check of the database could."""
        if self._noticing.random() < 0.1 and self._node.faults.is_asked():
            self._node.say(AlertRaised(reason="damaged", message="page 7"))

    def _wishes(self) -> Iterator[Request | None]:
        """Yield the requests that have their own random generators."""
        operator = self._operator
        yield from (operator.clear(), operator.mark(), operator.delete())
        yield from (self._sender.event(), self._filler.wish(self._node.wall()))

    def _ask(self, wish: Request) -> None:
        """Send a request, or send it twice if it has an idempotency key."""
        if said := says(wish):
            run_id, state = said
            self._node.tables.said[run_id].add(state)
        for _ in range(2 if isinstance(wish, ClearTasks) and wish.key else 1):
            self._node.ask(wish)

    # ── files ───────────────────────────────────────────────────────────────────────────

    def _edit(self) -> None:
        rng = self._node.rng
        file = rng.choice(self._files)
        match rng.choice(("rewritten", "rewritten", "broken", "gone", "back", "twice")):
            case "rewritten":
                file.change_to(*self._rewritten(file))
            case "broken":
                file.state = "broken"
            case "gone":
                file.state = "gone"
            case "back":
                file.change_to(*rng.choice(file.versions))
            case _:
                other = rng.choice(self._files)
                dags = {spec.dag_id: spec for spec in (*file.dags, *other.dags)}
                version = f"v-{file.name}-{next(self._editions)}"
                moved = [msgspec.structs.replace(spec, file=file.name) for spec in dags.values()]
                file.change_to(version, tuple(moved))
        self._node.say(file.parsed())

    def _rewritten(self, file: File) -> tuple[str, tuple[DagSpec, ...]]:
        """Return a new version with other tasks and limits, and perhaps another schedule.

        A DAG without a schedule remains without one.
        """
        old = file.dags[0]
        new = make_dag(old.dag_id, self._node.rng)
        if self._node.has_past and self._node.dated.random() < 0.7:
            new = with_past(new, self._node.dated)
        schedule = (new.schedule or old.schedule) if old.schedule is not None else None
        new = msgspec.structs.replace(  # ``_heal`` relies on which DAGs may be paused
            new, file=file.name, schedule=schedule, if_paused=old.if_paused
        )
        new = drawn_again(new, file.first, self._rewriting)
        return f"v-{file.name}-{next(self._editions)}", (new,)

    # ── a stop ──────────────────────────────────────────────────────────────────────────

    def _drain(self) -> None:
        node = self._node
        node.say(Drain())
        grace = node.rng.choice((0, node.rng.randint(0, _LONGEST_GRACE_US)))
        node.after(grace, lambda: node.say(Drain(is_over=True)))
        node.after(grace + node.rng.choice((0, SECOND)), node.stop)
