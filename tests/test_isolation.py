"""An input that concerns many runs is decided without the run on which it fails."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import anyio
import msgspec
import pytest
from msgspec import NODEFAULT, Struct, structs

from aioflow.core import step
from aioflow.core.transaction import Transaction
from aioflow.errors import BatchRefused, RequestError
from aioflow.model.batch import Batch
from aioflow.model.dag import DagSpec
from aioflow.model.triggers import DagTriggerSpec
from aioflow.protocol.inputs import FileParsed, HostLost, HostUp, Input, RequestReceived, TimerFired
from aioflow.protocol.outbox import ALERT, Alert
from aioflow.protocol.reports import Succeeded
from aioflow.protocol.requests import CreateRun, Request, SetPaused, ShowPools
from tests.sampling import sampled
from tests.web.damaged_postgres import PostgresHome
from tests.web.damaged_sqlite import SqliteHome
from tests.web.node import CHAIN, Node, node

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

NUMBER = 0
"""The number of a worker. No run, task or trigger has this number."""


class _Array:
    """A replacement for ``array``, which Python 3.11 cannot subscript."""

    def __class_getitem__(cls, item: object) -> Any:
        return list[item]  # type: ignore[valid-type]


def one_of(kind: type) -> Any:
    """Create an input or request of a class. Nothing to which it refers exists."""
    names = vars(sys.modules[kind.__module__]) | {"array": _Array}
    hints = get_type_hints(kind, names)
    fields: tuple[str, ...] = kind.__struct_fields__  # type: ignore[attr-defined]
    defaults: tuple[Any, ...] = kind.__struct_defaults__  # type: ignore[attr-defined]
    by_name = dict(zip(reversed(fields), reversed(defaults), strict=False))
    needed = [name for name in fields if by_name.get(name, NODEFAULT) is NODEFAULT]
    return kind(**{name: _made(hints[name]) for name in needed})


def _made(hint: Any) -> Any:
    of, parts = get_origin(hint), get_args(hint)
    if of is Literal:
        return parts[0]
    if of in (Union, UnionType):
        return None if NoneType in parts else _made(parts[0])
    plain = of or hint
    if issubclass(plain, Struct):
        return one_of(plain)
    if issubclass(plain, Enum):
        return next(iter(plain))
    return _PLAIN[plain]


_PLAIN: dict[type, Any] = {
    int: NUMBER,
    str: "x",
    bytes: b"\xc0",
    bool: False,
    tuple: (),
    list: [],
    dict: {},
}

INPUTS = [kind for kind in get_args(Input) if kind is not RequestReceived]
REQUESTS = list(get_args(Request))
ALL = [*INPUTS, *REQUESTS]


SAMPLE = {HostUp, HostLost, TimerFired, FileParsed, Succeeded, SetPaused, CreateRun}


def around_handlers(
    monkeypatch: pytest.MonkeyPatch, around: Callable[[step.Handler, Input, Transaction], None]
) -> None:
    """Let a function process each input. It is given the regular handler."""
    for kind, handle in list(step.HANDLERS.items()):
        monkeypatch.setitem(step.HANDLERS, kind, partial(around, handle))


class Poison:
    """Lets turns fail for one kind of input for as long as a certain run is in memory.

    Attributes:
        taken: The inputs of this kind that were processed without the run.
    """

    def __init__(
        self, kind: type, spoil: Callable[[Any, Transaction], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.run_no: int | None = None
        self.taken: list[Any] = []
        self._kind = kind
        self._spoil = spoil
        around_handlers(monkeypatch, self._taking)

    def _taking(self, handle: step.Handler, entry: Input, draft: Transaction) -> None:
        run = None if self.run_no is None else draft.memory.runs.get(self.run_no)
        handle(entry, draft)
        said = entry.request if isinstance(entry, RequestReceived) else entry
        if not isinstance(said, self._kind) or self.run_no is None:
            return
        if run is None:
            self.taken.append(said)
        else:
            self._spoil(run, draft)


def raise_about(run: Any, draft: Transaction) -> None:
    """Let deciding raise: a time of the run is a text."""
    run.row = structs.replace(run.row, started_at="no time")
    assert run.row.started_at < draft.now


def write_to(run: Any, draft: Transaction) -> None:
    """Let the commit fail: the row of the run differs from memory, and is changed."""
    draft.change_run(run, started_at=draft.now)


async def report(n: Node, entry: Any) -> None:
    """Process an input and all earlier ones."""
    n.engine.report([entry])
    while n.engine.waiting_inputs:
        await n.engine.next_turn()
    await n.engine.ask(ShowPools())


async def ask(n: Node, request: Any) -> None:
    """Send a request and wait for its answer, which may be an error about an unknown name."""
    with suppress(RequestError):
        await n.engine.ask(request)


@asynccontextmanager
async def good_and_bad(home: Path, url: str | None = None) -> AsyncIterator[Node]:
    """Run a node with two runs, each with an active task."""
    async with node(home, url=url, cpu_slots=8) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        for run_id in ("good", "bad"):
            await n.api.trigger("chain", run_id=run_id)
            await n.effects.next_start()
        yield n


async def number_of(n: Node, run_id: str) -> int:
    found = await n.store.find_run(run_id)
    assert found is not None
    return found.run_no


async def bad_is_held_still_alone(n: Node, poison: Poison) -> None:
    good = await n.store.find_run("good")
    assert good is not None
    assert good.quarantine is None
    assert set(n.engine.memory.runs) == {good.run_no}
    assert set(n.engine.memory.isolated) == {poison.run_no}
    assert poison.taken
    alerts = [
        msgspec.msgpack.decode(effect.body, type=Alert)
        for effect in n.effects.delivered
        if effect.kind == ALERT
    ]
    assert "defect" not in {alert.reason for alert in alerts}
    assert {alert.run_id for alert in alerts} <= {"bad", ""}


@pytest.mark.parametrize("kind", sampled(INPUTS, SAMPLE), ids=lambda kind: kind.__name__)
async def test_an_input_is_taken_without_the_run_that_deciding_it_fails_on(
    kind, tmp_path, monkeypatch
):
    poison = Poison(kind, raise_about, monkeypatch)
    async with good_and_bad(tmp_path) as n:
        poison.run_no = await number_of(n, "bad")

        await report(n, one_of(kind))

        await bad_is_held_still_alone(n, poison)


@pytest.mark.parametrize("kind", sampled(REQUESTS, SAMPLE), ids=lambda kind: kind.__name__)
async def test_a_request_is_answered_without_the_run_that_deciding_it_fails_on(
    kind, tmp_path, monkeypatch
):
    poison = Poison(kind, raise_about, monkeypatch)
    async with good_and_bad(tmp_path) as n:
        poison.run_no = await number_of(n, "bad")

        await ask(n, one_of(kind))

        await bad_is_held_still_alone(n, poison)


@pytest.mark.parametrize("kind", sampled(ALL, SAMPLE), ids=lambda kind: kind.__name__)
async def test_an_input_refused_by_a_damaged_row_is_decided_without_its_run(
    kind, tmp_path, monkeypatch
):
    await row_is_damaged_meanwhile(SqliteHome(tmp_path), kind, monkeypatch)


@pytest.mark.postgres
@pytest.mark.parametrize("kind", sampled(ALL, SAMPLE), ids=lambda kind: kind.__name__)
async def test_an_input_refused_by_a_damaged_postgres_row_is_decided_without_its_run(
    kind, tmp_path, migrated_postgres_url, monkeypatch
):
    await row_is_damaged_meanwhile(PostgresHome(tmp_path, migrated_postgres_url), kind, monkeypatch)


async def row_is_damaged_meanwhile(
    place: SqliteHome | PostgresHome, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = Poison(kind, write_to, monkeypatch)
    async with good_and_bad(place.path, place.url) as n:
        poison.run_no = await number_of(n, "bad")
        await place.set_state("run", 77, "run_id = 'bad'")

        await (ask if kind in REQUESTS else report)(n, one_of(kind))

        await bad_is_held_still_alone(n, poison)


ABOUT_RUNS = [
    kind for kind in REQUESTS if "run_id" in kind.__struct_fields__ and kind is not CreateRun
]


@pytest.mark.parametrize("kind", ABOUT_RUNS, ids=lambda kind: kind.__name__)
async def test_a_request_about_the_run_that_it_fails_on_is_answered_with_the_error(
    kind, tmp_path, monkeypatch
):
    poison = Poison(kind, raise_about, monkeypatch)
    async with good_and_bad(tmp_path) as n:
        poison.run_no = await number_of(n, "bad")

        with pytest.raises(step.TurnFailed, match="no time|not supported"):
            await n.engine.ask(structs.replace(one_of(kind), run_id="bad"))

        bad = await n.store.find_run("bad")
        assert bad is not None
        assert bad.quarantine is None
        assert poison.run_no in n.engine.memory.runs


def owe_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each input add an alert, so that its turn has something to commit."""

    def taking(handle: step.Handler, entry: Input, draft: Transaction) -> None:
        handle(entry, draft)
        draft.outbox.alert("test", "of no run", run_id="")

    around_handlers(monkeypatch, taking)


async def refuse(batch: Batch) -> None:
    raise BatchRefused(f"commit {batch.number}: no row stands as expected")


@pytest.mark.parametrize("kind", sampled(INPUTS, SAMPLE), ids=lambda kind: kind.__name__)
async def test_the_engine_continues_after_a_database_that_refused_every_commit(
    kind, tmp_path, monkeypatch
):
    async with good_and_bad(tmp_path) as n:
        with monkeypatch.context() as refusing:
            refusing.setattr(n.store, "commit", refuse)
            owe_always(refusing)
            turns = n.engine.turns
            n.engine.report([one_of(kind)])
            while n.engine.turns == turns or n.engine.waiting_inputs or n.engine.turn_seconds:
                await anyio.sleep(0.001)
        emitted = await n.api.emit("after that", key=None, data=None, request="turn")

    assert emitted.name == "after that"


STARTED = DagSpec(
    dag_id="started",
    file="started.py",
    tasks=CHAIN.tasks[:1],
    trigger=DagTriggerSpec(class_path="t:T", kwargs=b"\x80", name="T"),
)


async def test_an_input_that_fails_on_a_trigger_for_ever_is_dropped(tmp_path, monkeypatch):
    failed = []

    def taking(handle: step.Handler, entry: Input, draft: Transaction) -> None:
        one = draft.memory.dag_triggers.of("started")
        if isinstance(entry, HostUp) and one is not None:
            failed.append(one)
            raise ValueError("about it")
        handle(entry, draft)

    async with node(tmp_path) as n:
        n.define(STARTED)
        await n.api.set_paused("started", paused=False)
        around_handlers(monkeypatch, taking)

        await report(n, HostUp("triggers"))

        reasons = [
            msgspec.msgpack.decode(effect.body, type=Alert).reason
            for effect in n.effects.delivered
            if effect.kind == ALERT
        ]
    assert len(failed) == 3  # in the turn, alone, and once that trigger is stopped
    assert reasons == ["quarantined", "defect"]
