"""A standby: the active node answers changes and engine queries; rows answer all other requests."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from fastapi.routing import APIRoute
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from aioflow.api import journal_follower
from aioflow.api.node_queries import OwnQuery
from aioflow.crypto import Vault, new_key
from aioflow.errors import NoActiveNode
from aioflow.model.nodes import ActiveCommit, ActiveState, NodeRole, NodeStatus
from aioflow.protocol.requests import Note
from aioflow.web.app import create_app
from aioflow.web.forwarding import ANSWERED_FROM_ROWS
from aioflow.web.guard import Trusted
from aioflow.web.permissions import each_route
from aioflow.web.routes import API_ROUTES
from aioflow.web.tokens import Token
from tests.web.node import CHAIN, Answer, ask
from tests.web.standby import ACTIVE, STANDBY, Pair, pair
from tests.web.test_stream import Client


async def a_token(both: Pair, role: str) -> dict[str, Any]:
    """Create a token at the active node."""
    body = json.dumps({"name": f"of-{role}", "role": role}).encode()
    answer = await both.ask_active("POST", "/tokens", body=body, headers=JSON)
    return answer.json


async def ask_with(both: Pair, token: str, method: str, path: str, **more: Any) -> Answer:
    """Send a request to the standby with a token."""
    headers = {"authorization": f"Bearer {token}", **more.pop("headers", {})}
    return await ask(both.app, method, f"/api/v1{path}", headers=headers, **more)


async def denials(both: Pair) -> list[dict[str, Any]]:
    """Return the audit entries about denied requests."""
    entries = (await both.ask("GET", "/audit")).items
    return [one for one in entries if one["outcome"] == "refused"]


JSON = {"content-type": "application/json"}


async def test_a_run_that_is_triggered_at_the_standby_runs_at_the_active_node(tmp_path):
    async with pair(tmp_path) as both:
        both.active.define(CHAIN)
        made = await both.ask("POST", "/dags/chain/runs", body=b'{"run_id": "one"}', headers=JSON)
        assert (made.status, made.json["run_id"]) == (201, "one")
        await both.active.succeed(3)

        shown = await both.ask("GET", "/runs/one")
        assert (shown.status, shown.json["state"]) == (200, "running")
        assert shown.json == (await both.ask_active("GET", "/runs/one")).json
        (entry,) = [
            one for one in (await both.ask("GET", "/audit")).items if one["action"] == "run.create"
        ]
        assert (entry["actor"], entry["target"]) == ("home", "chain")


async def test_a_change_whose_body_breaks_off_is_not_passed_on(tmp_path):
    async with pair(tmp_path) as both:
        both.active.define(CHAIN)
        for ask_one in (both.ask_active, both.ask):
            answer = await ask_one("POST", "/dags/chain/runs", pieces=[], headers=JSON)
            assert (answer.status, answer.json["code"]) == (400, "request.invalid")

        assert (await both.ask("GET", "/runs")).items == []


async def test_every_read_has_the_same_answer_at_both_nodes(tmp_path, monkeypatch):
    monkeypatch.setattr("aioflow.web.forwarding.READ_SECONDS", 60.0)  # no answer from rows instead
    values = {
        "{dag_id}": "chain",
        "{run_id}": "one",
        "{task_id}": "first",
        "{name}": "gpu",
        "{trigger_id}": "1",
        "{event_id}": "1",
        "{backfill_id}": "1",
        "{decision_id}": "1",
        "{node}": "1",
    }
    changing = {"/api/v1/stream", "/api/v1/overview"}
    async with pair(tmp_path) as both:
        both.active.define(CHAIN)
        await both.ask("POST", "/dags/chain/runs", body=b'{"run_id": "one"}', headers=JSON)
        await both.ask("PUT", "/pools/gpu", body=b'{"slots": 2}', headers=JSON)
        await both.ask("POST", "/events/new", body=b"{}")
        asked, differ = 0, []
        for route in each_route(API_ROUTES):
            assert isinstance(route, APIRoute)
            path = route.path
            if (
                "GET" not in (route.methods or ())
                or path in changing
                or path.endswith("/logs/stream")
            ):
                continue
            for name, value in values.items():
                path = path.replace(name, value)
            path = path.removeprefix("/api/v1")
            there, here = await both.ask_active("GET", path), await both.ask("GET", path)
            assert here.status == there.status, (path, here, there)
            if here.status == 200 and here.body != there.body:
                differ.append(path)
            asked += 1
        assert asked > 60
        until_now = ("/history/", "/pools/gpu/usage")
        differ = [path for path in differ if not path.startswith(until_now)]
        assert differ == ["/nodes", "/nodes/1"], "they say when the node was last seen"


def test_the_reads_that_rows_answer_exist():
    paths = {getattr(route, "path", "") for route in each_route(API_ROUTES)} | {
        "/api/v1/openapi.json"
    }
    assert paths >= ANSWERED_FROM_ROWS


async def test_the_active_node_checks_the_role_and_audits_a_denial_once(tmp_path):
    async with pair(tmp_path) as both:
        both.active.define(CHAIN)
        token = (await a_token(both, "viewer"))["token"]
        await both.follower.catch_up()
        assert (await ask_with(both, token, "GET", "/runs")).status == 200

        denied = await ask_with(both, token, "POST", "/dags/chain/runs", body=b"{}", headers=JSON)
        assert (denied.status, denied.json["code"]) == (403, "request.forbidden")
        await both.active.api.access.finish()
        await both.api.access.finish()
        assert [one["actor"] for one in await denials(both)] == ["token:of-viewer"]


async def test_a_denial_by_the_standby_is_audited(tmp_path):
    async with pair(tmp_path) as both:
        denied = await ask_with(both, "aio_wrong", "POST", "/events/new", body=b"{}")
        assert denied.status == 401
        await both.api.access.finish()
        (entry,) = await denials(both)
        assert entry["target"] == "/api/v1/events/new"


async def test_a_token_that_was_revoked_is_refused(tmp_path):
    async with pair(tmp_path) as both:
        made = await a_token(both, "operator")
        await both.follower.catch_up()
        assert (await ask_with(both, made["token"], "GET", "/runs")).status == 200

        with anyio.fail_after(2):
            await both.ask_active("DELETE", f"/tokens/{made['token_id']}")
            while (await ask_with(both, made["token"], "GET", "/runs")).status == 200:
                await anyio.sleep(0.02)
        assert (await ask_with(both, made["token"], "GET", "/runs")).status == 401


async def test_a_standby_reads_the_journal_once_a_poll_has_found_another_commit(tmp_path):
    async with pair(tmp_path) as both:
        follower, clock = both.follower, both.api.clock
        commit = ActiveCommit(epoch=ACTIVE, commit_no=1, asked_at=0)

        def status() -> NodeStatus:
            now = clock.monotonic_us()
            return replace(both.status, active_commit=replace(commit, asked_at=now))

        async def is_followed() -> None:
            with anyio.fail_after(60):
                while follower._followed != (commit.epoch, commit.commit_no):
                    await anyio.sleep(0.02)

        follower._read_status = status
        await is_followed()
        both.active.define(CHAIN)
        with anyio.fail_after(60):
            while (end := await both.active.store.find_journal_end()).seq == follower.seq:
                await anyio.sleep(0.02)
            before = follower._current_at
            while follower._current_at == before:  # until a poll has said that all is as before
                await anyio.sleep(0.02)
        assert follower.seq < end.seq
        assert follower.lag_seconds < 2

        commit = replace(commit, commit_no=2)
        await is_followed()
        assert follower.seq >= end.seq
        assert (await both.ask("GET", "/dags/chain")).status == 200


async def test_a_standby_that_polls_rarely_reads_the_journal_all_the_same(tmp_path):
    async with pair(tmp_path) as both:
        follower = both.follower
        asked_at = both.api.clock.monotonic_us() - 5_000_000
        commit = ActiveCommit(epoch=ACTIVE, commit_no=1, asked_at=asked_at)
        both.status = replace(both.status, active_commit=commit)
        both.active.define(CHAIN)
        with anyio.fail_after(60):
            while follower.seq < (await both.active.store.find_journal_end()).seq:
                await anyio.sleep(0.02)
            while not 0 < follower.lag_seconds < 2:
                await anyio.sleep(0.02)


async def test_the_active_node_refuses_a_token_that_the_standby_still_believes_in(tmp_path):
    async with pair(tmp_path) as both:
        made = await a_token(both, "operator")
        await both.follower.catch_up()
        stale = both.api.access.auth_cache
        await both.ask_active("DELETE", f"/tokens/{made['token_id']}")
        both.api.access.auth_cache = stale
        answer = await ask_with(both, made["token"], "POST", "/events/new", body=b"{}")
        assert answer.status == 401


async def test_a_session_that_was_opened_at_the_standby_is_good_there_at_once(tmp_path):
    async with pair(tmp_path) as both:
        who = {"name": "ada", "password": "a long password"}
        body = json.dumps({**who, "role": "operator"}).encode()
        assert (await both.ask("POST", "/users", body=body, headers=JSON)).status == 201
        origin = {"origin": "http://127.0.0.1:8793", "sec-fetch-site": "same-origin"}
        login = await ask(
            both.app,
            "POST",
            "/api/v1/sessions",
            body=json.dumps(who).encode(),
            headers={**JSON, **origin},
        )
        assert login.status == 201
        cookie = login.headers["set-cookie"].partition(";")[0]
        shown = await ask(both.app, "GET", "/api/v1/me", headers={"cookie": cookie})
        assert (shown.status, shown.json["name"]) == (200, "ada")


async def test_the_link_of_the_standby_opens_its_page(tmp_path):
    async with pair(tmp_path) as both:
        first = await ask(both.app, "GET", "/?token=another-token-of-the-standby")
        assert first.status == 303
        cookie = first.headers["set-cookie"].partition(";")[0]
        assert (await ask(both.app, "GET", "/api/v1/me", headers={"cookie": cookie})).status == 200


async def test_without_an_active_node_changes_are_refused_and_rows_are_read(tmp_path):
    async with pair(tmp_path) as both:
        both.active.define(CHAIN)
        await both.ask("POST", "/dags/chain/runs", body=b'{"run_id": "one"}', headers=JSON)
        both.lose_active()
        refused = await both.ask("POST", "/events/new", body=b"{}")
        assert (refused.status, refused.json["code"]) == (503, "node.no_active")
        assert refused.headers["retry-after"] == "1"
        why = await both.ask("GET", "/runs/one/why")
        assert why.status == 200
        assert "no node is active" in why.json["text"]
        assert (await ask(both.app, "GET", "/health/ready")).status == 503


@pytest.mark.parametrize("key", [None, "once"])
async def test_only_a_change_with_a_key_is_repeated_when_the_active_node_dies(tmp_path, key):
    async with pair(tmp_path) as both:
        respond, taken = both.queries_of_active.respond, anyio.Event()

        async def die(query: object) -> Any:
            both.queries_of_active.respond = respond
            both.succeed()
            taken.set()
            await anyio.sleep_forever()

        both.queries_of_active.respond = die
        headers = {} if key is None else {"idempotency-key": key}
        answer = await both.ask("POST", "/events/new", body=b"{}", headers=headers)
        assert taken.is_set()
        assert answer.status == (503 if key is None else 201)
        assert len((await both.ask("GET", "/events")).items) == (0 if key is None else 1)


async def test_a_change_that_nobody_answers_is_refused_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr("aioflow.web.forwarding.READ_SECONDS", 0.05)
    async with pair(tmp_path) as both:
        both.queries_of_active.respond = None
        query = OwnQuery(request=Note(lines=()), actor=None)
        with pytest.raises(NoActiveNode, match="may have executed"):
            await both.queries.ask(query, is_repeatable=True, seconds=0.1)
        assert (await both.ask("GET", "/pools")).status == 200, "rows answer"


async def test_a_standby_that_is_behind_refuses_changes(tmp_path, monkeypatch):
    async with pair(tmp_path) as both:
        assert (await ask(both.app, "GET", "/health/ready")).json == {"status": "ready"}
        monkeypatch.setattr(journal_follower, "BEHIND_SECONDS", -1.0)
        monkeypatch.setattr("aioflow.api.service.BEHIND_SECONDS", -1.0)
        refused = await both.ask("POST", "/events/new", body=b"{}")
        assert (refused.status, refused.json["code"]) == (503, "node.behind")
        assert (await ask(both.app, "GET", "/health/ready")).status == 503


async def test_a_message_that_another_key_encrypted_is_ignored(tmp_path):
    async with pair(tmp_path) as both:
        foreign = Vault([new_key()])
        both.queries._vault = foreign
        query = OwnQuery(request=Note(lines=()), actor=None)
        with pytest.raises(NoActiveNode):
            await both.queries.ask(query, is_repeatable=False, seconds=0.3)
        assert not both.messages.sent[ACTIVE]


async def test_the_live_stream_of_the_standby_shows_what_the_active_node_commits(tmp_path):
    async with pair(tmp_path) as both, anyio.create_task_group() as group:
        both.active.define(CHAIN)
        web = create_app(both.api, Token("another-token-of-the-standby"))
        client = Client(Trusted(web), "/stream")
        group.start_soon(client.watch)
        await client.until("ready")
        await both.ask("POST", "/dags/chain/runs", body=b'{"run_id": "one"}', headers=JSON)
        await both.active.succeed(3)
        await both.active.succeed(3)
        moved: dict[str, str] = {}
        with anyio.fail_after(5):
            while moved.get("second") != "success":
                await anyio.sleep(0.02)
                for event in client.events("commit"):
                    moved |= {task["task_id"]: task["state"] for task in event["tasks"]}
        assert moved["first"] == "success"
        assert {run["run_id"] for one in client.events("commit") for run in one["runs"]} == {"one"}
        client.go()


async def test_a_silent_active_node_is_not_asked_for_what_rows_can_answer(tmp_path, monkeypatch):
    monkeypatch.setattr("aioflow.web.forwarding.READ_SECONDS", 60.0)
    async with pair(tmp_path) as both:
        both.active.define(CHAIN)
        await both.ask("POST", "/dags/chain/runs", body=b'{"run_id": "one"}', headers=JSON)
        both.queries_of_active.respond = None
        both.lose_active(ActiveState.SILENT)
        with anyio.fail_after(5):
            assert (await both.ask("GET", "/runs/one")).status == 200
            overview = await both.ask("GET", "/overview")
        assert (overview.status, overview.json["code"]) == (503, "node.no_active")
        assert "no node is active" in overview.json["detail"]
        assert (await ask(both.app, "GET", "/health/ready")).status == 503


async def test_a_standby_that_is_joining_is_not_ready(tmp_path):
    async with pair(tmp_path) as both:
        both.status = replace(both.status, role=NodeRole.JOINING)
        assert (await ask(both.app, "GET", "/health/ready")).status == 503


async def test_the_live_stream_tells_that_the_active_node_is_silent_and_that_it_is_back(tmp_path):
    async with pair(tmp_path) as both, anyio.create_task_group() as group:
        web = create_app(both.api, Token("another-token-of-the-standby"))
        client = Client(Trusted(web), "/stream")
        group.start_soon(client.watch)
        await client.until("active_node")
        both.lose_active(ActiveState.SILENT)
        await client.until("active_node", 2)
        both.status = replace(both.status, active=ActiveState.ALIVE)
        await client.until("active_node", 3)
        both.status = replace(both.status, role=NodeRole.ACTIVE)  # its own server follows
        await client.until("active_node", 4)
        states = [event["state"] for event in client.events("active_node")]
        assert states == ["alive", "silent", "alive", "missing"]
        client.go()


async def test_a_standby_has_metrics_of_its_own(tmp_path):
    async with pair(tmp_path) as both:
        both.lose_active(ActiveState.SILENT)
        both.status = replace(both.status, silent_seconds=1.5, takeovers=2, fenced=1)
        answer = await ask(Trusted(both.app), "GET", "/metrics")
        found = {
            sample.name + "".join(sample.labels.values()): sample.value
            for family in text_string_to_metric_families(answer.body.decode())
            for sample in family.samples
        }
    assert answer.status == 200
    assert {
        name for name, value in found.items() if name.startswith("aioflow_node_state") if value
    } == {"aioflow_node_statestandby"}
    assert found["aioflow_active_nodesilent"] == 1
    assert found["aioflow_active_silent_seconds"] == 1.5
    assert found["aioflow_node_term"] == STANDBY
    assert (found["aioflow_takeovers_total"], found["aioflow_fenced_total"]) == (2, 1)
    assert 0 <= found["aioflow_follower_lag_seconds"] < 2
    assert found["aioflow_resident_bytesdaemon"] > 1_000_000
    assert "aioflow_turns_total" not in found
