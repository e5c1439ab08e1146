"""The application with its guard: authentication, responses, errors."""

from __future__ import annotations

import os
import re
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog.testing

from aioflow.errors import StoreUnavailable
from aioflow.model.access import HOME, Actor, Role
from aioflow.model.dag import DagSpec, ScheduleSpec, TaskSpec
from aioflow.web.app import create_app
from aioflow.web.guard import BODY_LIMIT, Trusted
from aioflow.web.tokens import Token
from tests.web.node import CHAIN, FAN, ask, node

TOKEN = Token("t" * 43)
BEARER = {"authorization": f"Bearer {TOKEN.secret}"}
JSON = {"content-type": "application/json"}


@asynccontextmanager
async def app(tmp_path, **options):
    async with node(tmp_path) as n:
        n.define(CHAIN, FAN)
        await n.api.set_paused("chain", paused=False)
        yield n, create_app(n.api, TOKEN, **options)


async def session(web):
    """Return the headers of a session started with the banner's link."""
    visit = await ask(web, "GET", f"/?token={TOKEN.secret}")
    return {"cookie": visit.headers["set-cookie"].partition(";")[0]}


# ── authentication ──────────────────────────────────────────────────────────────────────


async def test_paths_that_resemble_exempt_ones_are_not_exempt(tmp_path):
    paths = ("/health/live/", "/health/live/../../api/v1/dags", "//health/live", "/health/ready/x")
    async with app(tmp_path) as (_, web):
        statuses = {path: (await ask(web, "GET", path)).status for path in paths}

    assert statuses == dict.fromkeys(paths, 401)


ALMOST_TOKENS = {
    "empty": {"authorization": "Bearer "},
    "short": {"authorization": f"Bearer {TOKEN.secret[:-1]}"},
    "scheme": {"authorization": f"Basic {TOKEN.secret}"},
    "no-ascii": {"authorization": "Bearer ünïcode"},
    "token-as-cookie": {"cookie": f"{TOKEN.cookie_name}={TOKEN.secret}"},
    "empty-cookie": {"cookie": f"{TOKEN.cookie_name}="},
    "no-cookie": {"cookie": "a=b; \x7f;;;=; [=]"},
}


async def test_almost_a_token_is_no_token(tmp_path):
    async with app(tmp_path) as (_, web):
        statuses = {
            name: (await ask(web, "GET", "/api/v1/dags", headers=headers)).status
            for name, headers in ALMOST_TOKENS.items()
        }

    assert statuses == dict.fromkeys(ALMOST_TOKENS, 401)


async def test_the_link_of_the_banner_is_good_for_a_session_and_leaves_the_address_bar(tmp_path):
    async with app(tmp_path) as (_, web):
        visit = await ask(web, "GET", f"/?token={TOKEN.secret}")
        cookie = visit.headers["set-cookie"].partition(";")[0]
        page = await ask(web, "GET", "/", headers={"cookie": cookie})
        wrong = await ask(web, "GET", "/?token=wrong")
        elsewhere = await ask(web, "GET", f"/api/v1/dags?token={TOKEN.secret}")

    assert (visit.status, visit.headers["location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=strict"} <= set(visit.headers["set-cookie"].split("; "))
    assert TOKEN.secret not in visit.headers["set-cookie"]
    assert page.status == 200
    assert (wrong.status, elsewhere.status) == (401, 401)


async def test_cookies_of_other_applications_on_this_host_do_not_hide_ours(tmp_path):
    others = ('settings={"a": 1, "b": 2}', "a b=1", "x:y=1,2", 'open="quote', "=", "\xff=\xfe")
    async with app(tmp_path) as (_, web):
        own = (await session(web))["cookie"]
        cookies = [one for other in others for one in (f"{other}; {own}", f"{own};{other}")]
        statuses = {
            cookie: (await ask(web, "GET", "/api/v1/me", headers={"cookie": cookie})).status
            for cookie in cookies
        }

    assert statuses == dict.fromkeys(cookies, 200)


async def test_an_address_of_many_fields_brings_no_session(tmp_path):
    fields = "&".join([*["a=1"] * 25, f"token={TOKEN.secret}"])
    async with app(tmp_path) as (_, web):
        answer = await ask(web, "GET", f"/?{fields}")

    assert answer.status == 200
    assert "set-cookie" not in answer.headers
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 403, id="no-origin"),
        pytest.param({"origin": "http://evil.example"}, 403, id="foreign"),
        pytest.param({"origin": "http://127.0.0.1:9999"}, 403, id="other-port"),
        pytest.param({"origin": "null"}, 403, id="null"),
        pytest.param({"origin": "http://127.0.0.1:8793"}, 201, id="own"),
    ],
)
async def test_a_session_changes_things_only_from_its_own_page(tmp_path, headers, status):
    async with app(tmp_path) as (n, web):
        given = {**await session(web), **headers}
        answer = await ask(web, "POST", "/api/v1/dags/chain/runs", headers=given)
        made = await n.api.list_runs()

    assert answer.status == status
    assert len(made) == (1 if status == 201 else 0)


NAMES = {
    "127.0.0.1:8793": 200,
    "localhost:1": 200,
    "[::1]:8793": 200,
    "box:8793": 200,
    "evil.example:8793": 421,
    "127.0.0.1.evil.example": 421,
    "10.0.0.1": 421,
    "": 421,
    "[::1]": 200,
    "LOCALHOST.:80": 200,
    "[::1": 421,
    "[::1]evil": 421,
    "[::1]evil:8793": 421,
    "[::1]:8793.evil": 421,
    "[]": 421,
    "localhost:evil": 421,
    "localhost:1:2": 421,
    "::1": 421,
}


async def test_a_name_that_is_not_ours_is_refused(tmp_path):
    async with app(tmp_path, hosts=("box",)) as (_, web):
        statuses = {
            host: (await ask(web, "GET", "/api/v1/dags", headers={**BEARER, "host": host})).status
            for host in NAMES
        }

    assert statuses == NAMES


async def test_a_server_on_all_addresses_goes_by_any_address_but_no_foreign_name(tmp_path):
    async with app(tmp_path, any_address=True) as (_, web):
        by_address = await ask(web, "GET", "/api/v1/dags", headers={**BEARER, "host": "10.0.0.1"})
        by_name = await ask(web, "GET", "/api/v1/dags", headers={**BEARER, "host": "evil.example"})

    assert (by_address.status, by_name.status) == (200, 421)


async def test_the_unix_socket_needs_no_token_but_has_the_same_limits(tmp_path):
    async with app(tmp_path) as (_, web):
        trusted = Trusted(web)
        listed = await ask(trusted, "GET", "/api/v1/dags", headers={"host": "localhost"})
        large = await ask(trusted, "POST", "/api/v1/dags/chain/runs", body=b" " * (BODY_LIMIT + 1))

    assert (listed.status, large.status) == (200, 413)


# ── sizes and headers ───────────────────────────────────────────────────────────────────


async def test_a_body_sent_in_pieces_is_limited_too(tmp_path):
    async with app(tmp_path) as (n, web):
        answer = await ask(
            web,
            "POST",
            "/api/v1/dags/chain/runs",
            headers={**BEARER, **JSON},
            pieces=[b'{"conf": {"n": "', b"x" * BODY_LIMIT, b'"}}'],
        )
        made = await n.api.list_runs()

    assert (answer.status, answer.json["code"], made) == (413, "web.too_large", [])


async def test_every_answer_carries_what_browsers_need_to_be_careful(tmp_path):
    async with app(tmp_path) as (_, web):
        answers = [
            await ask(web, "GET", target, headers=headers)
            for target in ("/", "/api/v1/dags", "/nothing", "/health/live")
            for headers in (BEARER, {})
        ]

    assert {answer.status for answer in answers} == {200, 401, 404}
    for answer in answers:
        assert answer.headers["content-security-policy"].startswith("default-src 'none'"), answer
        assert answer.headers["x-content-type-options"] == "nosniff", answer
        assert answer.headers["cache-control"] == "no-store", answer


# ── responses ───────────────────────────────────────────────────────────────────────────


async def test_a_run_is_made_once_per_key_and_shown(tmp_path):
    async with app(tmp_path) as (_, web):
        headers = {**BEARER, **JSON, "idempotency-key": "k"}
        body = b'{"conf": {"n": 1}, "logical_date": "2026-01-31T03:00:00Z"}'
        first = await ask(web, "POST", "/api/v1/dags/chain/runs", body=body, headers=headers)
        again = await ask(web, "POST", "/api/v1/dags/chain/runs", body=body, headers=headers)
        run_id = first.json["run_id"]
        shown = await ask(web, "GET", f"/api/v1/runs/{run_id}", headers=BEARER)
        tasks = await ask(web, "GET", f"/api/v1/runs/{run_id}/tasks?limit=2", headers=BEARER)
        why = await ask(web, "GET", f"/api/v1/runs/{run_id}/tasks/third/why", headers=BEARER)

    assert (first.status, first.json["created"]) == (201, True)
    assert (again.status, again.json["run_id"], again.json["created"]) == (200, run_id, False)
    assert first.json.keys() == {"run_id", "dag_id", "state", "created"}
    assert shown.json["logical_date"] == "2026-01-31T03:00:00Z"
    assert shown.json.keys() == {
        "run_id",
        "dag_id",
        "state",
        "logical_date",
        "started_at",
        "ended_at",
        "conf",
        "version",
        "quarantine",
        "counts",
        "tasks",
    }
    assert shown.json["tasks"][0].keys() == {
        "task_id",
        "map_index",
        "round",
        "map_label",
        "state",
        "try_number",
        "max_tries",
        "interruptions",
        "started_at",
        "ended_at",
        "waiting_on",
        "error",
        "result",
    }
    assert len(tasks.items) == 2
    assert [cause["task_id"] for cause in why.json["causes"]] == ["third", "second", "first"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param(1 << 20_000, hex(1 << 20_000), id="int"),
        pytest.param(Path(os.fsdecode(b"/\xff")), r"/\udcff", id="path"),
    ],
)
async def test_a_result_that_json_does_not_have_does_not_hide_its_run(tmp_path, value, shown):
    async with app(tmp_path) as (n, web):
        made = await n.api.trigger("chain")
        await n.succeed(value)
        await n.effects.next_start()
        answer = await ask(web, "GET", f"/api/v1/runs/{made.run_id}", headers=BEARER)

    assert answer.status == 200
    assert answer.json["tasks"][0]["result"] == shown


REFUSALS = (
    ("GET", "/api/v1/dags/nobody", b"", 404, "request.unknown_dag"),
    ("GET", "/api/v1/runs/nobody", b"", 404, "request.unknown_run"),
    ("POST", "/api/v1/runs/nobody/cancel", b"", 404, "request.unknown_run"),
    ("POST", "/api/v1/runs/nobody/clear", b"", 404, "request.unknown_run"),
    ("POST", "/api/v1/runs/nobody/clear", b'{"task": "a"}', 422, "request.invalid"),
    ("POST", "/api/v1/runs/nobody/clear", b'{"round": 2}', 422, "request.invalid"),
    ("POST", "/api/v1/runs/nobody/clear", b'{"map_indexes": [-1]}', 422, "request.invalid"),
    ("POST", "/api/v1/runs/nobody/mark", b'{"state": "failed"}', 404, "request.unknown_run"),
    ("POST", "/api/v1/runs/nobody/mark", b'{"state": "skipped"}', 422, "request.invalid"),
    ("POST", "/api/v1/runs/nobody/mark", b"", 422, "request.invalid"),
    ("DELETE", "/api/v1/runs/nobody", b"", 404, "request.unknown_run"),
    ("POST", "/api/v1/dags/nobody/runs", b"", 404, "request.unknown_dag"),
    ("POST", "/api/v1/dags/chain/runs", b'{"conf": {"x": 1}}', 422, "request.conf"),
    ("POST", "/api/v1/dags/chain/runs", b'{"conf": {"n": NaN}}', 422, "unserializable"),
    ("POST", "/api/v1/dags/chain/runs", b'{"conf": {"n": "\\ud800"}}', 422, "unserializable"),
    (
        *("POST", "/api/v1/dags/chain/runs"),
        *(b'{"logical_date": "9999-12-31T23:59:59.999999Z"}', 400, "request"),
    ),
    ("POST", "/api/v1/dags/chain/runs", b'{"cnof": {}}', 422, "request.invalid"),
    ("POST", "/api/v1/dags/chain/runs", b"{", 422, "request.invalid"),
    ("POST", "/api/v1/dags/chain/runs", b"[" * 100_000, 400, "web.too_deep"),
    ("POST", "/api/v1/dags/chain/runs", b'{"run_id": "a/b"}', 400, "request"),
    ("POST", "/api/v1/dags/chain/runs", b'{"run_id": ".."}', 400, "request"),
    ("POST", "/api/v1/dags/chain/runs", b'{"run_id": "."}', 400, "request"),
    ("POST", "/api/v1/dags/chain/runs", b'{"run_id": "-rf"}', 400, "request"),
    ("GET", "/api/v1/runs?limit=0", b"", 422, "request.invalid"),
    ("GET", "/api/v1/runs?state=odd", b"", 400, "request"),
    ("GET", "/api/v1/triggers/99999999999999999999999", b"", 422, "request.invalid"),
    ("GET", "/api/v1/triggers/5", b"", 404, "request.unknown_trigger"),
    ("DELETE", "/api/v1/triggers/quarantine/m:Typo", b"", 404, "request.unknown_class"),
    ("GET", "/api/v1/nothing", b"", 404, "web.no_such_path"),
    ("DELETE", "/api/v1/dags", b"", 405, "web.method"),
)


async def test_impossible_requests_get_a_stable_error_code(tmp_path):
    async with app(tmp_path) as (_, web):
        answers = [
            (row, await ask(web, row[0], row[1], body=row[2], headers={**BEARER, **JSON}))
            for row in REFUSALS
        ]

    told = [(answer.status, answer.json["code"]) for _, answer in answers]
    wrong = [(row, found) for row, found in zip(REFUSALS, told, strict=True) if found != row[3:]]
    assert wrong == []
    for row, answer in answers:
        assert answer.headers["content-type"] == "application/problem+json", row
        assert answer.json["status"] == answer.status, row


async def test_a_run_of_another_request_is_a_conflict(tmp_path):
    async with app(tmp_path) as (n, web):
        await n.api.trigger("chain", run_id="r", conf={"n": 1})
        body = b'{"run_id": "r"}'
        answer = await ask(
            web, "POST", "/api/v1/dags/chain/runs", body=body, headers={**BEARER, **JSON}
        )

    assert (answer.status, answer.json["code"]) == (409, "request.run_exists")


async def test_an_unavailable_database_is_reported_with_when_to_retry(tmp_path, monkeypatch):
    async with app(tmp_path) as (n, web):

        class Away:
            async def list_runs(self, *_, **__):
                raise StoreUnavailable("the disk is gone")

            find_matching_runs = list_runs

        n.api.store = Away()
        runs = await ask(web, "GET", "/api/v1/runs", headers=BEARER)
        ready = await ask(web, "GET", "/health/ready", headers=BEARER)
        to_anybody = await ask(web, "GET", "/health/ready")

    assert (runs.status, runs.json["code"]) == (503, "store.unavailable")
    assert int(runs.headers["retry-after"]) > 0
    assert (ready.status, ready.json["checks"]["database"]) == (503, False)
    assert (to_anybody.status, to_anybody.json) == (503, {"status": "not_ready"})


async def test_readiness_details_are_only_for_authenticated_clients(tmp_path):
    async with app(tmp_path) as (n, web):
        by = Actor(name=HOME, role=Role.ADMIN)
        scoped = await n.api.access.create_token(by, "one", "admin", scopes=["chain"])
        known = [BEARER, await session(web)]
        others = [{}, {"authorization": "Bearer wrong"}, {"cookie": f"{TOKEN.cookie_name}=x"}]
        others.append({"authorization": f"Bearer {scoped['token']}"})
        told = [await ask(web, "GET", "/health/ready", headers=headers) for headers in known]
        not_told = [await ask(web, "GET", "/health/ready", headers=headers) for headers in others]
        at_home = await ask(Trusted(web), "GET", "/health/ready")

    assert {answer.status for answer in (*told, *not_told, at_home)} == {200}
    assert [answer.json for answer in not_told] == [{"status": "ready"}] * len(others)
    for answer in (*told, at_home):
        assert set(answer.json) == {"status", "checks", "reason", "owed"}


async def test_a_defect_is_reported_without_internals(tmp_path):
    async with app(tmp_path) as (n, web):

        class Broken:
            async def find_matching_runs(self, *_, **__):
                raise RuntimeError("secret inside")

        n.api.store = Broken()
        with structlog.testing.capture_logs() as lines:
            answer = await ask(web, "GET", "/api/v1/runs", headers=BEARER)

    assert (answer.status, answer.json["code"]) == (500, "defect.web")
    assert b"secret" not in answer.body
    told = [(line["event"], line["path"], line["error"]) for line in lines]
    assert told == [("request failed", "/api/v1/runs", "RuntimeError")]


async def test_a_pool_is_limited_shown_and_lifted(tmp_path):
    path, said = "/api/v1/pools/ledger", b'{"slots": 4, "include_deferred": true}'
    async with app(tmp_path) as (_, web):
        made = await ask(web, "PUT", path, body=said, headers=BEARER | JSON)
        listed = await ask(web, "GET", "/api/v1/pools", headers=BEARER)
        plain = await ask(web, "PUT", path, body=b'{"slots": 4}', headers=BEARER | JSON)
        await ask(web, "DELETE", path, headers=BEARER)
        left = await ask(web, "GET", "/api/v1/pools", headers=BEARER)

    pool = {"name": "ledger", "slots": 4, "include_deferred": True}
    assert made.json == pool | {"changed": True}
    assert listed.items == [pool | {"used": 0, "queued": 0}]
    assert (plain.json["include_deferred"], plain.json["changed"]) == (False, True)
    assert left.items == []


async def test_a_backfill_is_previewed_started_followed_and_cancelled(tmp_path):
    hourly = DagSpec(
        dag_id="hourly",
        file="hourly.py",
        tasks=(TaskSpec(task_id="only"),),
        schedule=ScheduleSpec(cron="0 * * * *"),
    )
    path, given = (
        "/api/v1/dags/hourly/backfills",
        b'"from": "2026-01-01", "to": "2026-01-01T03:00Z"',
    )
    async with app(tmp_path) as (n, web):
        n.define(hourly)
        await n.api.set_paused("hourly", paused=False)  # answered once it is known
        wished = await ask(
            web, "POST", path, body=b'{%b, "dry_run": true}' % given, headers=BEARER | JSON
        )
        body = b'{%b, "max_active": 1}' % given
        keyed = BEARER | JSON | {"idempotency-key": "monday"}
        made = await ask(web, "POST", path, body=body, headers=keyed)
        same = await ask(web, "POST", path, body=body, headers=BEARER | JSON)
        number = made.json["backfill_id"]
        while (started := await n.succeed()).info.cause != "backfill":
            pass  # a fire time of just now
        shown = await ask(web, "GET", f"/api/v1/backfills/{number}", headers=BEARER)
        gone = await ask(web, "POST", f"/api/v1/backfills/{number}/cancel", headers=BEARER | JSON)
        twice = await ask(web, "POST", f"/api/v1/backfills/{number}/cancel", headers=BEARER | JSON)
        again = await ask(web, "POST", path, body=body, headers=keyed)
        listed = await ask(web, "GET", "/api/v1/backfills?dag=hourly", headers=BEARER)
        unknown = await ask(web, "GET", "/api/v1/backfills/7", headers=BEARER)
        odd = await ask(
            web, "POST", path, body=b'{"from": "0001-01-01", "to": "soon"}', headers=BEARER | JSON
        )
        nobody = await ask(
            web, "POST", path.replace("hourly", "nobody"), body=body, headers=BEARER | JSON
        )

    assert (wished.status, len(wished.items)) == (200, 4)
    assert (made.status, same.status, same.json["backfill_id"]) == (201, 200, number)
    span = (made.json["first"], made.json["last"])
    assert span == ("2026-01-01T00:00:00Z", "2026-01-01T03:00:00Z")
    assert started.info.cause == "backfill"
    assert shown.json["state"] == "running"
    assert (gone.json["state"], twice.json) == ("cancelled", gone.json)
    assert (again.status, again.json) == (200, gone.json)
    assert listed.items == [gone.json]
    assert (unknown.status, unknown.json["code"]) == (404, "request.unknown_backfill")
    assert (odd.status, nobody.status) == (400, 404)


async def test_code_that_blocks_a_loop_is_listed_beside_the_triggers(tmp_path):
    async with app(tmp_path) as (_, web):
        answer = await ask(web, "GET", "/api/v1/triggers/slow", headers=BEARER)

    assert (answer.status, answer.json) == (200, {"items": [], "next": None})


async def test_a_trigger_that_is_not_there_is_not_fired(tmp_path):
    path, large = "/api/v1/triggers/7/fire", b'{"payload": "%s"}' % (b"x" * 70_000)
    async with app(tmp_path) as (_, web):
        missing = await ask(web, "POST", path, headers=BEARER)
        wide = await ask(web, "POST", path, body=large, headers=BEARER | JSON)

    assert (missing.status, missing.json["code"]) == (404, "request.unknown_trigger")
    assert "no trigger 7 that waits" in missing.json["detail"]
    assert "64 KiB are allowed" in wide.json["detail"]


async def test_metrics_are_there_for_prometheus(tmp_path):
    async with app(tmp_path, lag_seconds=lambda: 0.25) as (n, web):
        await n.api.trigger("chain")
        answer = await ask(web, "GET", "/metrics", headers=BEARER)

    lines = answer.body.decode().splitlines()
    assert "aioflow_live_runs 1.0" in lines
    assert "aioflow_loop_lag_seconds 0.25" in lines
    assert 'aioflow_slots_used{lane="def"} 1.0' in lines


# ── the page ────────────────────────────────────────────────────────────────────────────


PLACES = ("/", "/dags", "/dags/a b", "/dags/x/grid", "/runs/r/tasks", "/triggers", "/settings")


async def test_each_address_of_the_page_is_the_page_for_any_client(tmp_path):
    async with app(tmp_path) as (_, web):
        pages = {path: await ask(web, "GET", path) for path in PLACES}

    for path, page in pages.items():
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8"), (
            path
        )
        assert b'<div id="page">' in page.body, path
        assert page.headers["cache-control"] == "no-store", path


HTML = {"accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}


@pytest.mark.parametrize("known", [{}, BEARER], ids=["stranger", "home"])
async def test_a_browser_at_an_address_that_does_not_exist_gets_the_page(tmp_path, known):
    async with app(tmp_path) as (_, web):
        page = await ask(web, "GET", "/nowhere/at/all", headers={**HTML, **known})
        program = await ask(web, "GET", "/nowhere/at/all", headers=known)
        others = [
            await ask(web, "GET", path, headers={**HTML, **known})
            for path in ("/api/v1/nothing", "/static/nothing.js", "//evil")
        ]

    assert (page.status, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert b'<div id="page">' in page.body
    assert program.headers["content-type"] == "application/problem+json"
    assert all(b"<div" not in other.body for other in others)


async def test_a_probe_of_the_page_by_head_finds_it(tmp_path):
    async with app(tmp_path) as (_, web):
        answer = await ask(web, "HEAD", "/")

    assert answer.status == 200


async def test_files_of_the_page_are_immutable_and_served_from_here(tmp_path):
    async with app(tmp_path) as (_, web):
        page = (await ask(web, "GET", "/")).body.decode()
        names = re.findall(r"(?:src|href)=\"([^\"]+)\"", page)
        files = {name: await ask(web, "GET", name) for name in names}

    assert {name.rpartition(".")[2] for name in names} == {"js", "css", "svg", "woff2"}
    assert all(name.startswith("/static/") for name in names)
    assert {file.status for file in files.values()} == {200}
    assert all("immutable" in file.headers["cache-control"] for file in files.values())
    assert "<style" not in page
    assert re.findall(r"<script[^>]*>(.+?)</script>", page) == []


ALMOST_PAGES = (
    "/static/",
    "/static/../app.py",
    "/static/..%2fapp.py",
    "/static//etc/passwd",
    "/static/nothing.js",
    "/dagsx",
    "//dags",
    "/api/v1/../../dags",
)


async def test_paths_that_resemble_the_page_need_a_token_and_are_not_found(tmp_path):
    async with app(tmp_path) as (_, web):
        statuses = {
            path: [(await ask(web, "GET", path, headers=known)).status for known in ({}, BEARER)]
            for path in ALMOST_PAGES
        }

    assert statuses == {path: [401, 404] for path in ALMOST_PAGES}


async def test_nothing_that_is_not_of_the_page_runs_in_it(tmp_path):
    async with app(tmp_path) as (_, web):
        policy = (await ask(web, "GET", "/")).headers["content-security-policy"]

    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_every_text_of_the_page_is_a_text():
    sources = Path(__file__).parents[2].joinpath("ui", "src").rglob("*.ts*")
    written = {path.name: path.read_text() for path in sources}

    assert len(written) > 20
    markup = r"dangerously|(?:inner|outer)HTML|insertAdjacent|\beval\(|document\.write|new Function"
    for name, source in written.items():
        assert re.findall(markup, source) == [], name


# ── events ──────────────────────────────────────────────────────────────────────────────


async def test_a_webhook_emits_an_event_of_any_json(tmp_path):
    async with app(tmp_path) as (_, web):
        made = [
            await ask(web, "POST", target, headers={**BEARER, **JSON}, body=body)
            for target, body in (
                ("/api/v1/events/approved?key=order-17", b'{"by": "mia"}'),
                ("/api/v1/events/orders/created", b"[1, 2]"),
                ("/api/v1/events/bare", b""),
                ("/api/v1/events/long", b"1" * 30),
            )
        ]
        listed = await ask(web, "GET", "/api/v1/events", headers=BEARER)
        of_name = await ask(web, "GET", "/api/v1/events?name=orders/created", headers=BEARER)

    assert [answer.status for answer in made] == [201] * 4
    told = [(event["name"], event["key"], event["data"]) for event in listed.items]
    assert told == [
        ("long", None, "1" * 30),
        ("bare", None, None),
        ("orders/created", None, [1, 2]),
        ("approved", "order-17", {"by": "mia"}),
    ]
    assert [event["name"] for event in of_name.items] == ["orders/created"]


async def test_an_idempotency_key_makes_one_event_of_two_requests(tmp_path):
    headers = {**BEARER, "idempotency-key": "k-1"}
    async with app(tmp_path) as (_, web):
        first, again = [
            await ask(web, "POST", "/api/v1/events/e", headers=headers, body=b"1") for _ in range(2)
        ]

    assert (first.status, again.status) == (201, 200)
    assert (first.json["created"], again.json["created"]) == (True, False)
    assert first.json["event_id"] == again.json["event_id"]


@pytest.mark.parametrize(
    ("target", "body", "status", "code"),
    [
        pytest.param("/api/v1/events/e", b"{", 422, "request.event", id="no-json"),
        pytest.param("/api/v1/events/e", b"a=1&b=2", 422, "request.event", id="a-form"),
        pytest.param("/api/v1/events/e", b'"\xff"', 422, "request.event", id="no-utf-8"),
        pytest.param("/api/v1/events/e", b"[" * 5_000, 400, "web.too_deep", id="deep"),
        pytest.param("/api/v1/events/e", b"NaN", 422, "request.event", id="no-number"),
        pytest.param("/api/v1/events/e", b'"\\ud800"', 422, "unserializable", id="half-character"),
        pytest.param(f"/api/v1/events/{'x' * 251}", b"1", 422, "request.event", id="long-name"),
        pytest.param("/api/v1/events/e?key=", b"1", 422, "request.event", id="empty-key"),
        pytest.param(
            "/api/v1/events/e", b'"' + b"x" * BODY_LIMIT + b'"', 413, "web.too_large", id="large"
        ),
    ],
)
async def test_an_event_that_cannot_be_is_a_problem_with_a_code(
    tmp_path, target, body, status, code
):
    async with app(tmp_path) as (n, web):
        answer = await ask(web, "POST", target, headers={**BEARER, **JSON}, body=body)
        assert await n.api.list_events() == []

    assert (answer.status, answer.json["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
