"""The live streams: commits as they happen, and the output of a task."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import anyio
import pytest
import structlog.testing

from aioflow.api import live_stream as telling
from aioflow.api.live_stream import CLIENTS, PER_CALLER, QUEUED, Commits, News, Sorted, Topic
from aioflow.api.page import gantt
from aioflow.clock import SystemClock
from aioflow.core.state.memory import Memory
from aioflow.executors.worker_process import log_key
from aioflow.model.access import HOME, Actor, Role
from aioflow.model.rows import RunRow
from aioflow.model.states import TaskState
from aioflow.web.app import create_app
from aioflow.web.guard import Trusted
from aioflow.web.tokens import Token
from tests.web.node import CHAIN, FAN, node

BY = Actor(name=HOME, role=Role.ADMIN)


class Client:
    """A client of the live stream, as the server sees it."""

    def __init__(self, web, path: str, headers: dict[str, str] | None = None) -> None:
        self._web = web
        self._scope = _scope(path, headers or {})
        self._gone = anyio.Event()
        self._taken = anyio.Event()
        self._reads = anyio.Event()
        self._reads.set()
        self.status = 0
        self.text = ""
        self.is_over = False

    async def watch(self) -> None:
        await self._web(self._scope, self._receive, self._send)
        self.is_over = True
        self._taken.set()

    def stop_reading(self) -> None:
        self._reads = anyio.Event()

    def go(self) -> None:
        self._gone.set()

    async def until(self, event: str, count: int = 1) -> list[dict]:
        while len(found := self.events(event)) < count and not self.is_over:
            self._taken = anyio.Event()
            await self._taken.wait()
        return found

    async def until_over(self) -> None:
        while not self.is_over:
            self._taken = anyio.Event()
            await self._taken.wait()

    def events(self, event: str) -> list[dict]:
        found = []
        for message in self.text.split("\n\n"):
            fields = dict(line.split(": ", 1) for line in message.splitlines() if line[:1] != ":")
            if fields.get("event") == event:
                found.append(json.loads(fields["data"]) | {"id": int(fields.get("id", -1))})
        return found

    async def _receive(self) -> dict:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict) -> None:
        await self._reads.wait()
        self.status = message.get("status", self.status)
        self.text += message.get("body", b"").decode()
        self._taken.set()


def _scope(target: str, headers: dict[str, str]) -> dict:
    path, _, query = f"/api/v1{target}".partition("?")
    given = {"host": "127.0.0.1", **headers}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 8793),
    }


@asynccontextmanager
async def app(tmp_path):
    async with node(tmp_path) as n, anyio.create_task_group() as group:
        n.define(CHAIN, FAN)
        await n.api.set_paused("chain", paused=False)
        web = Trusted(create_app(n.api, Token("t" * 43)))

        def watch(path: str = "/stream", headers: dict[str, str] | None = None) -> Client:
            client = Client(web, path, headers)
            group.start_soon(client.watch)
            return client

        yield n, watch
        n.api.reads.commits.close()


async def test_a_client_gets_changes_of_runs_and_tasks(tmp_path):
    async with app(tmp_path) as (n, watch):
        client = watch()
        (ready,) = await client.until("ready")
        await n.api.trigger("chain", run_id="r")
        told = await client.until("commit")

    runs = [run for commit in told for run in commit["runs"]]
    tasks = [task for commit in told for task in commit["tasks"]]
    assert {"run_id": "r", "dag_id": "chain", "state": "running"} in runs
    assert tasks[0] == {
        "run_id": "r",
        "task_id": "first",
        "map_index": -1,
        "round": 0,
        "state": "running",
    }
    assert told[-1]["id"] == told[-1]["commit"] > ready["commit"]
    assert set(told[0]) >= {"at", "dags", "triggers"}


async def test_a_client_of_one_dag_or_run_gets_only_its_changes(tmp_path):
    async with app(tmp_path) as (n, watch):
        fan, run = watch("/stream?dag=fan"), watch("/stream?run=s")
        await fan.until("ready")
        await run.until("ready")
        await n.api.set_paused("fan", paused=False)
        for dag_id, run_id in (("chain", "r"), ("chain", "s"), ("fan", "t")):
            await n.api.trigger(dag_id, run_id=run_id)
        while "t" not in _runs(fan):
            await fan.until("commit", len(fan.events("commit")) + 1)
        while "s" not in _runs(run):
            await run.until("commit", len(run.events("commit")) + 1)

    assert _runs(fan) == {"t"}
    assert _runs(run) == {"s"}


def _runs(client: Client) -> set[str]:
    return {run["run_id"] for commit in client.events("commit") for run in commit["runs"]}


async def test_a_client_that_missed_commits_has_to_reload_also_with_another_daemon(tmp_path):
    async with app(tmp_path) as (n, watch):
        client = watch()
        (ready,) = await client.until("ready")
        client.go()
        await client.until_over()
        await n.api.trigger("chain", run_id="missed")

    async with app(tmp_path) as (n, watch):
        last = n.api.reads.commit_no
        back = watch(headers={"last-event-id": str(ready["id"])})
        (reset,) = await back.until("reset")
        await n.api.trigger("chain", run_id="next")
        while "next" not in _runs(back):
            await back.until("commit", len(back.events("commit")) + 1)

    assert reset == {"commit": last, "id": last}
    assert last > ready["commit"]
    assert _runs(back) == {"next"}
    assert back.events("ready") == []


async def test_a_client_that_missed_no_commit_reloads_nothing(tmp_path):
    async with app(tmp_path) as (n, watch):
        last = n.api.reads.commit_no
        clients = [watch(headers={"last-event-id": str(last)}), watch(f"/stream?since={last}")]
        ready = [await client.until("ready") for client in clients]

    assert ready == [[{"commit": last, "id": last}]] * 2
    assert [client.events("reset") for client in clients] == [[], []]


async def test_a_client_with_a_commit_of_another_database_has_to_reload(tmp_path):
    async with app(tmp_path) as (n, watch):
        last = n.api.reads.commit_no
        client = watch(f"/stream?since={10**9}")
        (reset,) = await client.until("reset")

    assert reset == {"commit": last, "id": last}
    assert client.events("commit") == []


async def test_a_client_that_reads_nothing_is_dropped_and_the_others_get_events(tmp_path):
    async with app(tmp_path) as (n, watch):
        stuck, sound = watch(), watch()
        await stuck.until("ready")
        await sound.until("ready")
        stuck.stop_reading()
        commits = n.api.reads.commits
        count = 0
        while not commits.dropped:
            count += 1
            await n.api.set_paused("chain", paused=bool(count % 2))
            await sound.until("commit", count)

        await stuck.until_over()

    assert commits.dropped == 1
    assert QUEUED <= count <= QUEUED + 3
    assert not sound.events("reset")


async def test_no_more_may_watch_than_there_is_room_for(tmp_path):
    async with app(tmp_path) as (_, watch):
        clients = [watch() for _ in range(CLIENTS)]
        for client in clients:
            await client.until("ready")
        late = watch()
        await late.until_over()

    assert (late.status, "web.too_many_streams" in late.text) == (503, True)


async def test_one_person_takes_no_more_streams_than_are_his_and_the_others_watch(tmp_path):
    async with app(tmp_path) as (n, _), anyio.create_task_group() as group:
        web = create_app(n.api, Token("t" * 43))
        made = [await n.api.access.create_token(BY, name, "viewer") for name in ("one", "other")]
        bearers = [{"authorization": f"Bearer {token['token']}"} for token in made]

        def watch(headers):
            client = Client(web, "/stream", headers)
            group.start_soon(client.watch)
            return client

        many = [watch(bearers[0]) for _ in range(PER_CALLER + 5)]  # all of them at once
        for client in many[:PER_CALLER]:
            await client.until("ready")
        for client in many[PER_CALLER:]:
            await client.until_over()
        other = watch(bearers[1])
        await other.until("ready")
        many[0].go()
        await many[0].until_over()
        again = watch(bearers[0])
        await again.until("ready")
        n.api.reads.commits.close()

    refused = {
        (client.status, "web.too_many_streams" in client.text) for client in many[PER_CALLER:]
    }
    assert refused == {(429, True)}
    assert (other.status, again.status) == (200, 200)
    assert n.api.reads.commits._open == {}


async def test_streams_are_closed_when_the_daemon_ends(tmp_path):
    async with app(tmp_path) as (n, watch):
        client = watch()
        await client.until("ready")
        n.api.reads.commits.close()
        await client.until_over()

    assert client.is_over


async def test_nothing_is_collected_without_a_client():
    commits = Commits(SystemClock())
    commits.committed(None, None)  # type: ignore[arg-type]
    scope = anyio.CancelScope()
    with commits.follow(Topic(), 0, scope):
        pass
    commits.committed(None, None)  # type: ignore[arg-type]


class Turn:
    """A fake batch and transaction in which this many tasks of each run have changed."""

    run_changes = new_runs = dags = gone_dags = new_triggers = trigger_changes = ()
    at = 0
    memory = Memory(epoch=1)
    noted_runs: ClassVar[dict[int, RunRow]] = {}

    def __init__(self, number: int, moved: dict[str, int]) -> None:
        self.number = number
        self.touched = [
            SimpleNamespace(
                run=SimpleNamespace(row=_row(run_id), spec=FAN),
                task_index=1,
                map_index=index,
                state=TaskState.RUNNING,
            )
            for run_id, count in moved.items()
            for index in range(count)
        ]


def _row(run_id: str) -> SimpleNamespace:
    return SimpleNamespace(run_no=hash(run_id), run_id=run_id, dag_id="fan")


def _told(message: bytes) -> dict:
    return json.loads(message.split(b"data: ", 1)[1])


async def test_a_commit_never_encodes_what_it_tells_however_much_that_is(monkeypatch):
    encoded: list[Topic] = []
    encode = Sorted.encoded

    def noted(self: Sorted, wanted: Topic) -> bytes:
        encoded.append(wanted)
        return encode(self, wanted)

    monkeypatch.setattr(Sorted, "encoded", noted)
    commits, scope = Commits(SystemClock()), anyio.CancelScope()
    with (
        commits.follow(Topic(), 0, scope) as all_of_it,
        commits.follow(Topic(None, "r1"), 0, scope) as one,
        commits.follow(Topic(None, "r1"), 0, scope),
    ):
        for number in range(1, 121):
            turn: Any = Turn(number, {f"r{number % 60}": 500})
            commits.committed(turn, turn)
        in_commits = list(encoded)
        async with anyio.create_task_group() as group:
            group.start_soon(commits.run)
            told = _told(await all_of_it.next_message(10) or b"")
            of_one = _told(await one.next_message(10) or b"")
            group.cancel_scope.cancel()

    assert in_commits == []
    assert sorted(encoded, key=str) == sorted([Topic(), Topic(None, "r1")], key=str)
    assert told["commit"] == 120
    assert set(told["counts"]) == {f"r{number}" for number in range(60)}
    assert {task["run_id"] for task in of_one["tasks"]} == {"r1"}
    assert len(of_one["tasks"]) == 500


def test_a_task_that_moves_twice_counts_once_as_it_stands_last():
    news = News()
    turn: Any = Turn(1, {"much": 600})
    news.take(turn, turn)
    again: Any = Turn(2, {"much": 100})
    for live in again.touched:
        live.state = TaskState.SUCCESS
    unmapped = SimpleNamespace(**vars(again.touched[0]))
    unmapped.task_index, unmapped.map_index = 2, -1
    again.touched.append(unmapped)
    news.take(again, again)
    told = _told(news.sorted().encoded(Topic()))

    assert told["more"] == 601
    assert told["counts"] == {
        "much": {"each": {"running": 500, "success": 100}, "total": {"success": 1}}
    }


def test_only_counts_are_stored_of_a_run_in_which_much_changes():
    news = News()
    turn: Any = Turn(1, {"much": 600, "little": 2})
    news.take(turn, turn)
    parts = news.sorted()
    much = _told(parts.encoded(Topic("fan", "much")))
    little = _told(parts.encoded(Topic(None, "little")))

    assert sum(len(moves.tasks) for moves in news.moves.values()) == 2
    assert (much["tasks"], much["more"]) == ([], 600)
    assert much["counts"] == {"much": {"each": {"running": 600}}}
    assert [task["map_index"] for task in little["tasks"]] == [0, 1]
    assert _told(parts.encoded(Topic("chain")))["tasks"] == []


def test_no_more_tasks_of_very_many_runs_are_stored_than_the_limit(monkeypatch):
    monkeypatch.setattr(telling, "_TASKS", 50)
    news = News()
    turn: Any = Turn(1, {f"r{number}": 2 for number in range(100)})
    news.take(turn, turn)

    assert sum(len(moves.tasks) for moves in news.moves.values()) <= 50
    assert _told(news.sorted().encoded(Topic()))["more"] == 200


async def test_a_defect_in_a_notification_interrupts_no_commit():
    commits = Commits(SystemClock())
    with commits.follow(Topic(), 0, anyio.CancelScope()):
        commits.committed(None, None)  # type: ignore[arg-type]
        with pytest.raises(AttributeError):
            await commits.run()


async def test_steps_are_read_few_commits_at_a_time_and_no_more_than_fit(tmp_path, monkeypatch):
    async with app(tmp_path) as (n, _):
        await n.api.trigger("chain", run_id="r")
        for count in range(25):
            await n.api.set_paused("fan", paused=bool(count % 2))
        run = await n.store.find_run("r")
        limits: list[int] = []
        read = n.store.read_journal

        async def read_journal(after: int = 0, limit: int = 1000):
            limits.append(limit)
            return await read(after, limit=limit)

        monkeypatch.setattr(n.store, "read_journal", read_journal)
        whole = await gantt.read_state_changes(n.store, run, set())
        monkeypatch.setattr(gantt, "_JOURNAL_BYTES", 100)
        cut = await gantt.read_state_changes(n.store, run, set())

    assert max(limits) <= 10
    assert (whole, cut) == ({}, None)


async def test_a_log_is_followed_until_its_task_has_ended(tmp_path):
    async with app(tmp_path) as (n, watch):
        await n.api.trigger("chain", run_id="r")
        start = (await n.effects.next_start()).start
        log = n.api._tasklog.open(log_key(start))
        await log.write("häl".encode())
        client = watch("/runs/r/tasks/first/logs/stream")
        (first,) = await client.until("log")
        await log.write(b"lo\n")
        log.close()
        told = await client.until("log", 2)
        await n.api.cancel("r")
        (end,) = await client.until("end")
        await client.until_over()

    assert first["text"] == "häl"
    assert "".join(piece["text"] for piece in told) == "hällo\n"
    assert end["id"] == len("hällo\n".encode())


async def test_a_revoked_client_gets_no_more_events_and_that_is_no_defect(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        made = await n.api.access.create_token(BY, "one", "viewer")
        web = create_app(n.api, Token("t" * 43))
        bearer = {"authorization": f"Bearer {made['token']}"}
        client = Client(web, "/stream", bearer)
        with structlog.testing.capture_logs() as logs:
            async with anyio.create_task_group() as group:
                group.start_soon(client.watch)
                await client.until("ready")
                await n.api.access.revoke_token(BY, made["token_id"])
                await n.api.trigger("chain", run_id="r")
                await client.until_over()
        told = client.events("commit")

    assert not [run for event in told for run in event["runs"]]
    assert [entry for entry in logs if entry["event"] == "request failed"] == []
