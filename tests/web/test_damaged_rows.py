"""A damaged row affects only its own run or object, for any value in any column of any table."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import anyio
import msgspec
import pytest

from aioflow.clock import SystemClock
from aioflow.crypto import Vault
from aioflow.errors import ResultMissing, StoreError
from aioflow.model.history import Measure
from aioflow.model.rows import DAMAGED, Damage
from aioflow.protocol.inputs import HostUp
from aioflow.protocol.outbox import ALERT, Alert
from aioflow.protocol.reports import Succeeded, TriggerFired
from aioflow.storage.results import DatabaseResults
from aioflow.store import open_store
from aioflow.web.app import create_app
from aioflow.web.guard import Trusted
from aioflow.web.tokens import Token
from tests.databases import DATABASES
from tests.journal_replay import compare_with_replay
from tests.web.damaged_postgres import PostgresHome, WholePostgres
from tests.web.damaged_sqlite import SqliteHome, WholeSqlite
from tests.web.damaging import HEALTHY, TABLES, Case, Written, add_remote_worker, cases
from tests.web.node import Node, ask, node

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

_SECONDS = 30
_OF_THE_DAEMON = frozenset({"meta", "node", "number_lease"})
"""Tables in which a damaged row prevents every commit, and may prevent a start."""

_NUMBER_OF_COMMIT = ("journal", "commit_no")
"""If this number exceeds the node's, the start is refused as well, with repair instructions."""

_READ_BY_START = frozenset(
    {"dag", "dag_file", "pool", "dag_trigger", "account", "api_token", "session", "task_trigger"}
)
_READ_OF_RUNS = frozenset({"run", "task", "expansion", "event"})
_NOT_FOUND = frozenset({"run_no", "ended_at"})
"""Columns by which the rows of runs are found: with a wrong value, a row belongs to no run."""

_ENDLESS = frozenset({"/api/v1/stream", "/api/v1/dags/recent"})
_WITHOUT_ROWS = frozenset({"/api/v1/connection-types"})
"""Requests that read no row, and start a process, which takes longer than the rest of a case."""

_TASKS = {
    "chain-1": ("chain", "first"),
    "fan-1": ("fan", "each"),
    "stream-1": ("stream", "pages"),
    "waits-1": ("waits", "coroutine"),
    "deferred-1": ("deferred", "waits"),
    "cleared": ("deferred", "waits"),
    "asks-1": ("asks", "open"),
    "remote-1": ("remote", "only"),
}

_MET = [  # values that failed once, and one of each kind
    Case("run", "state", "negative"),
    Case("run", "started_at", "a text"),
    Case("task", "failure", "garbage"),
    Case("task_trigger", "state", "out of range"),
    Case("task_trigger", "task_no", "huge"),
    Case("outbox", "body", "garbage"),
    Case("version", "dags", "nested"),
    Case("dag", "version", "no text"),
    Case("api_token", "scopes", "garbage"),
    Case("node", "commit_no", "largest"),
    Case("node", "epoch", "huge"),
    Case("result_chunk", "task_no", "a text"),
    Case("decision", "question", "garbage"),
    Case("note", "task_index", "a text"),
    Case("try_worker", "host", "no text"),
    Case("account", "groups", "garbage"),
    Case("journal", "seq", "largest"),
    Case("journal", "commit_no", "a text"),
    Case("journal", "body", "a text"),
    Case("task", "interruptions", "out of range"),
]
_DRAWN = random.Random(5).sample(cases(), 4)
_MET_ON_POSTGRES = [  # one of each kind that its types hold
    Case("run", "state", "negative"),
    Case("task", "failure", "garbage"),
    Case("task_trigger", "state", "out of range"),
    Case("outbox", "body", "another shape"),
    Case("version", "dags", "nested"),
    Case("dag", "file", "no text"),
    Case("task", "state", "null"),
    Case("run", "started_at", "huge"),
    Case("meta", "value", "no text"),
]

Place = SqliteHome | PostgresHome
Whole = WholeSqlite | WholePostgres


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest) -> Iterator[Whole]:
    """Provide a home with a row in every table. It is copied for each case."""
    home = request.getfixturevalue("tmp_path_factory").mktemp("whole")
    if request.param == "sqlite":
        yield WholeSqlite(home)
        return
    server, migrated = map(request.getfixturevalue, ("postgres_server", "migrated_postgres"))
    with closing(WholePostgres(home, server, migrated)) as filled:
        yield filled


on_both = pytest.mark.parametrize("whole", DATABASES, indirect=True)


@pytest.mark.parametrize(
    ("whole", "case"),
    [
        *[pytest.param("sqlite", case, id=case.name) for case in _MET + _DRAWN],
        *[
            pytest.param("postgres", case, marks=pytest.mark.postgres, id=f"postgres-{case.name}")
            for case in _MET_ON_POSTGRES
        ],
    ],
    indirect=["whole"],
)
async def test_a_damaged_row_hurts_only_what_it_is_of(whole, tmp_path, case):
    assert await hurts_only_itself(whole, tmp_path / "home", case) or case in _DRAWN


@on_both
async def test_every_table_has_a_row_to_damage(whole, tmp_path):
    with whole.copied(tmp_path / "home") as place:
        url = place.url or f"sqlite:///{place.path}/aioflow.db"
        async with open_store(url, Vault.open(place.path / "key")) as store:
            found = await store.scan(TABLES)

    assert [table.name for table, rows in zip(TABLES, found, strict=True) if not rows] == []


@on_both
async def test_the_replay_names_the_rows_that_it_cannot_read(whole, tmp_path):
    with whole.copied(tmp_path / "home") as place:
        await place.write(Case("history", "occurrences", "null"), f"measure = {Measure.STATE:d}")
        await place.write(Case("journal", "commit_no", "null"))
        url = place.url or f"sqlite:///{place.path}/aioflow.db"
        async with open_store(url, Vault.open(place.path / "key")) as store:
            differences = await compare_with_replay(store)

    assert "1 rows of the journal cannot be read" in differences
    assert any(one.endswith("has None occurrences") for one in differences)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@on_both
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
async def test_no_value_in_any_column_hurts_more_than_its_row(whole, tmp_path, table):
    hurt = []
    written = 0
    for case in [case for case in cases() if case.table == table.name]:
        home = tmp_path / "home"
        try:
            written += await hurts_only_itself(whole, home, case)
        except* Exception as exc:  # noqa: BLE001 - all failures are reported together
            hurt.append(f"{case.name}: {exc.exceptions[0]!r}"[:500])
        shutil.rmtree(home)
    assert not hurt, "\n".join(hurt)
    assert written > len(table.columns)


async def hurts_only_itself(whole: Whole, home: Path, case: Case) -> bool:
    """Start on a home with the damaged value, and check that everything else works.

    Returns:
        Whether the database can store the value in that column.
    """
    with whole.copied(home) as place:
        written = await place.write(case)
        if written is None:
            return False
        try:
            with anyio.fail_after(_SECONDS):
                async with node(home, url=place.url, cpu_slots=8) as n:
                    await _is_found(n, case, written)  # a run that ends deletes rows
                    await _healthy_runs_end(n)
                    await _is_named(n, case, written)
                    await _everything_can_be_read(n)
                    await _alerts_once(n)
        except* StoreError:
            if case.table not in _OF_THE_DAEMON and case[:2] != _NUMBER_OF_COMMIT:
                raise
        return True


async def _healthy_runs_end(n: Node) -> None:
    """Let the undamaged runs continue to their end, including those that need an event.

    Every task must be able to start: while tasks that may have killed the daemon are started in
    groups, one that cannot start delays all others for up to ten minutes.
    """
    n.engine.report([HostUp("async"), HostUp("triggers")])
    add_remote_worker(n)
    runs = {run.run_no for run in map(n.engine.memory.find_run, HEALTHY) if run is not None}
    while runs & n.engine.memory.runs.keys():
        hosted, n.effects.hosted = n.effects.hosted, []
        n.engine.report(
            [
                TriggerFired(
                    effect.host.trigger_no, effect.host.assignment_id, 0, 1, b"\xc0", "key"
                )
                for effect in hosted
                if effect.host.run_no in runs
            ]
        )
        for effect in n.effects.starts:
            start, now = effect.start, SystemClock().now()
            n.engine.report([Succeeded(start.task_no, start.start_no, now, now, None, 0)])
        n.effects.starts.clear()
        await n.engine.next_turn()
    for run_id in HEALTHY:
        found = await n.store.find_run(run_id)
        assert found is not None
        assert (found.state.label, found.quarantine) == ("success", None)


async def _everything_can_be_read(n: Node) -> None:
    web = Trusted(create_app(n.api, Token("t" * 43)))
    paths = (await ask(web, "GET", "/api/v1/openapi.json")).json["paths"]
    reading = [path for path, methods in paths.items() if "get" in methods]
    for path in reading:
        if "{" not in path and path not in _ENDLESS | _WITHOUT_ROWS:
            answer = await ask(web, "GET", path)
            assert answer.status == 200, (path, answer.body)
    for path in _views(reading):
        answer = await ask(web, "GET", path)
        assert answer.status < 500, (path, answer.body)
    for decision in await n.store.list_decisions():
        path = f"/api/v1/decisions/{decision.decision_no}"
        answer = await ask(web, "GET", path)
        assert answer.status < 500, (path, answer.body)
    await _stored_results_can_be_listed(n)
    await compare_with_replay(n.store)


async def _stored_results_can_be_listed(n: Node) -> None:
    """Search all results in the database, as the search for orphans does."""
    results = DatabaseResults(n.store, SystemClock())
    for block in await results.list_blocks():
        for stored in await results.list_block(block):
            with suppress(ResultMissing):  # its chunk has another number now
                await results.get(stored.key)


def _views(paths: list[str]) -> Iterator[str]:
    """Yield the addresses of the pages of single runs, tasks and so on."""
    for path in paths:
        if "{" not in path or path.endswith(("/follow", "/stream")):
            continue
        for run_id, (dag_id, task_id) in _TASKS.items():
            named = {"run_id": run_id, "dag_id": dag_id, "task_id": task_id, "name": "tight"}
            yield path.format_map(_Named(named))
            if "{run_id}" not in path:
                break


class _Named(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "1"


async def _is_found(n: Node, case: Case, written: Written) -> None:
    """Check that a search finds an error known to the database, with table, row and column."""
    key, says = written
    if says is not None and case.table not in _OF_THE_DAEMON:  # a start overwrites those
        found = await n.store.find_damage()
        assert _named(found, case, key), (says, found)


async def _is_named(n: Node, case: Case, written: Written) -> None:
    """Check that damage found while reading is reported in the same way, without a search."""
    key, says = written
    if says is None or case.table in _OF_THE_DAEMON:
        return
    await n.api.list_runs()
    for run_id in _TASKS:
        if await n.store.find_run(run_id) is not None:
            await n.api.show_run(run_id)
    is_met = case.table in _READ_BY_START or (
        case.table in _READ_OF_RUNS and case.column not in _NOT_FOUND
    )
    if is_met:
        assert _named(await n.store.list_damaged(), case, key), says


def _named(found: list[Damage], case: Case, key: str) -> bool:
    is_keyed = case.column in key.replace("=", " ").split()  # then it has another key
    return any(
        (one.table, one.column) == (case.table, case.column) and (is_keyed or one.key == key)
        for one in found
    )


async def _alerts_once(n: Node) -> None:
    """Check that each damaged row that was read is reported in one alert."""
    await n.api.emit("a turn of its own", key=None, data=None, request="turn")
    told = []
    for effect in n.effects.delivered:
        if effect.kind == ALERT:
            alert = msgspec.msgpack.decode(effect.body, type=Alert)
            told += [alert.message] if alert.reason == DAMAGED else []
    assert sorted(told) == sorted(map(str, n.store.damages.all()))


# ── views ───────────────────────────────────────────────────────────────────────────────


@on_both
async def test_a_run_with_a_damaged_task_is_in_quarantine_wherever_it_is_shown(whole, tmp_path):
    of_run = "run_no = (SELECT run_no FROM run WHERE run_id = 'deferred-1')"
    with whole.copied(tmp_path / "home") as place:
        await place.set_state("task", -1, of_run)
        await _is_in_quarantine(place)


async def _is_in_quarantine(place: Place) -> None:
    async with node(place.path, url=place.url) as n:
        (listed,) = [run for run in await n.api.list_runs() if run.run_id == "deferred-1"]
        shown = await n.api.show_run("deferred-1")
        chain = await n.api.why("deferred-1")
        overview = await n.api.reads.overview("ready")
        web = Trusted(create_app(n.api, Token("t" * 43)))
        refused = await ask(web, "POST", "/api/v1/runs/deferred-1/cancel")

    assert listed.quarantine is not None
    assert "table task, row task_no=" in listed.quarantine
    assert "column state: -1" in listed.quarantine
    assert shown.quarantine == listed.quarantine
    (task,) = shown.tasks
    assert task.error is not None
    assert (task.state, task.error.reason) == ("damaged", "damaged")
    assert [cause.waiting_on.kind for cause in chain.causes if cause.waiting_on] == ["quarantined"]
    assert [(one.table, one.column, one.run_id) for one in overview.damaged] == [
        ("task", "state", "deferred-1")
    ]
    assert (refused.status, refused.json["code"]) == (409, "request.run_quarantined")


@pytest.mark.parametrize("whole", ["sqlite"], indirect=True)
async def test_a_child_whose_state_is_a_fraction_is_drawn_like_one_without_a_row(whole, tmp_path):
    with whole.copied(tmp_path / "home") as place:
        await place.write(Case("task", "state", "a fraction"), "map_index = 0")
        async with node(place.path) as n:
            web = Trusted(create_app(n.api, Token("t" * 43)))
            at = "/api/v1/runs/fan-1/tasks/each/children"
            summary, cells = await ask(web, "GET", at), await ask(web, "GET", f"{at}/cells")

    assert (summary.status, cells.status) == (200, 200)
    assert sum(summary.json["counts"].values()) == summary.json["width"] == 3
    letters = cells.json["letters"]
    assert [letters[state] for state in cells.json["states"]] == ["pending", "running", "running"]


@on_both
async def test_a_row_that_was_repaired_is_not_told_any_more(whole, tmp_path):
    cleared = "run_id = 'cleared'"
    with whole.copied(tmp_path / "home") as place:
        await place.set_state("run", 9, cleared)
        async with node(place.path, url=place.url) as n:
            (before,) = [run for run in await n.api.list_runs() if run.run_id == "cleared"]
            assert [one.table for one in await n.store.list_damaged()] == ["run"]
            await place.set_state("run", 2, cleared)
            assert await n.store.list_damaged() == []
            (after,) = [run for run in await n.api.list_runs() if run.run_id == "cleared"]

    assert (before.state, after.state) == ("damaged", "success")
    assert after.quarantine is None
