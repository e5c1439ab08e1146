"""Logins, tokens, CSRF protection and the audit: which requests are accepted, and until when."""

from __future__ import annotations

import json
import re
import time
from contextlib import asynccontextmanager

import anyio
import pytest

from aioflow.api.access.accounts import Access
from aioflow.api.access.audit import audit_faults
from aioflow.api.access.authentication import Passwords
from aioflow.errors import StoreUnavailable
from aioflow.model.access import HOME, Actor, Role
from aioflow.web.app import create_app
from aioflow.web.tokens import Token
from tests.store.samples import execute
from tests.turns import until
from tests.web.node import CHAIN, ask, node

TOKEN = Token("t" * 43)
HOME_BEARER = {"authorization": f"Bearer {TOKEN.secret}"}
JSON = {"content-type": "application/json"}
OWN = {**JSON, "origin": "http://127.0.0.1:8793"}
PASSWORD = "a horse, a battery"
BY = Actor(name=HOME, role=Role.ADMIN)

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])


@asynccontextmanager
async def app(tmp_path, passwords=None):
    async with node(tmp_path, passwords=passwords) as n:
        n.define(CHAIN)
        await n.api.access.create_user(BY, "anna", PASSWORD, "operator")
        yield n, create_app(n.api, TOKEN)


async def log_in(web, name="anna", password=PASSWORD, **headers):
    body = json.dumps({"name": name, "password": password}).encode()
    return await ask(web, "POST", "/api/v1/sessions", body=body, headers={**OWN, **headers})


def cookie_of(answer):
    return {"cookie": answer.headers["set-cookie"].partition(";")[0]}


async def me(web, headers):
    answer = await ask(web, "GET", "/api/v1/me", headers=headers)
    return answer.json if answer.status == 200 else answer.status


async def lines(n, **wanted):
    await n.api.access._write()
    found = await n.api.access.list_audit(limit=1000)
    return [one for one in found if all(getattr(one, k) == v for k, v in wanted.items())]


# ── sessions ────────────────────────────────────────────────────────────────────────────


async def test_a_user_logs_in_is_known_and_logs_out_for_good(tmp_path):
    async with app(tmp_path) as (n, web):
        opened = await log_in(web)
        session = cookie_of(opened)
        known = await me(web, session)
        left = await ask(web, "DELETE", "/api/v1/sessions/current", headers={**session, **OWN})
        after = await me(web, session)
        told = await lines(n, actor="anna")

    assert opened.status == 201
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(
        opened.headers["set-cookie"].split("; ")
    )
    assert known == {
        "name": "anna",
        "role": "operator",
        "kind": "session",
        "scopes": None,
        "page_url": None,
    }
    assert (left.status, after) == (200, 401)
    assert [one.action for one in told] == ["session.end", "session.open"]


@pytest.mark.parametrize(
    "change",
    [
        {"password": "another battery"},
        {"role": "viewer"},
        {"disabled": True},
        None,
    ],
    ids=["password", "role", "disabled", "deleted"],
)
async def test_a_session_does_not_outlive_what_changes_of_its_user(tmp_path, change):
    async with app(tmp_path) as (n, web):
        session = cookie_of(await log_in(web))
        if change is None:
            await n.api.access.delete_user(BY, "anna")
        else:
            await n.api.access.set_user(BY, "anna", **change)
        after = await me(web, session)
        again = await log_in(web)

    assert after == 401
    assert again.status == (201 if change == {"role": "viewer"} else 401)


async def test_a_login_replaces_the_session_that_came_along(tmp_path):
    async with app(tmp_path) as (_, web):
        first = cookie_of(await log_in(web))
        second = cookie_of(await log_in(web, **first))

        assert await me(web, first) == 401
        assert (await me(web, second))["name"] == "anna"


async def test_an_expired_session_is_invalid(tmp_path, monkeypatch):
    async with app(tmp_path) as (n, web):
        session = cookie_of(await log_in(web))
        now = n.api.clock.now()
        monkeypatch.setattr(type(n.api.clock), "now", lambda self: now + 31 * 86_400_000_000)
        after = await me(web, session)
        monkeypatch.undo()

    assert after == 401


async def test_the_homes_session_ends_with_its_logout_too(tmp_path):
    async with app(tmp_path) as (_, web):
        visit = await ask(web, "GET", f"/?token={TOKEN.secret}")
        session = cookie_of(visit)
        known = await me(web, session)
        await ask(web, "DELETE", "/api/v1/sessions/current", headers={**session, **OWN})

        assert known["name"] == "home"
        assert await me(web, session) == 401


async def test_another_token_of_the_home_ends_the_sessions_of_the_one_before(tmp_path):
    async with app(tmp_path) as (n, web):
        name, _, value = cookie_of(await ask(web, "GET", f"/?token={TOKEN.secret}"))[
            "cookie"
        ].partition("=")
        other = Token("u" * 43)
        renewed = create_app(n.api, other)
        after = [
            await me(renewed, {"cookie": f"{cookie}={value}"})
            for cookie in (name, other.cookie_name)
        ]

    assert after == [401, 401]


async def test_a_browser_that_opens_the_link_of_the_home_again_keeps_its_session(tmp_path):
    async with app(tmp_path) as (_, web):
        first = await ask(
            web, "GET", f"/?token={TOKEN.secret}", headers={"user-agent": "Firefox/140\n"}
        )
        session = cookie_of(first)
        again = await ask(web, "GET", f"/?token={TOKEN.secret}", headers=session)
        (listed,) = (await ask(web, "GET", "/api/v1/sessions", headers=session)).items

    assert (again.status, again.headers["location"]) == (303, "/")
    assert "set-cookie" not in again.headers
    assert (listed["name"], listed["user_agent"], listed["is_current"]) == (
        "home",
        "Firefox/140\N{REPLACEMENT CHARACTER}",
        True,
    )
    assert listed["last_used_at"] is not None


async def test_a_session_is_used_and_all_others_of_its_user_end(tmp_path, monkeypatch):
    async with app(tmp_path) as (n, web):
        await n.api.access.create_user(BY, "root", PASSWORD, "admin")
        old, own, root = [cookie_of(await log_in(web, name)) for name in ("anna", "anna", "root")]
        now = n.api.clock.now()
        monkeypatch.setattr(type(n.api.clock), "now", lambda self: now + 700_000_000)
        await me(web, own)
        await n.api.access._write()
        used = (await ask(web, "GET", "/api/v1/sessions", headers=own)).items
        ended = await ask(web, "DELETE", "/api/v1/sessions", headers={**own, **OWN})
        after = [await me(web, session) for session in (old, own, root)]
        (entry,) = await lines(n, action="session.end_others")
        monkeypatch.undo()

    assert [one["last_used_at"] > one["created_at"] for one in used] == [False, True]
    assert ended.json == {"ended": 1}
    assert [one if one == 401 else one["name"] for one in after] == [401, "anna", "root"]
    assert (entry.actor, entry.target, entry.after) == ("anna", "anna", "1 ended")


async def test_others_sessions_are_an_admins_business(tmp_path):
    async with app(tmp_path) as (n, web):
        await n.api.access.create_user(BY, "root", PASSWORD, "admin")
        anna, root = cookie_of(await log_in(web)), cookie_of(await log_in(web, "root"))
        own = await ask(web, "GET", "/api/v1/sessions", headers=anna)
        everyone = await ask(web, "GET", "/api/v1/sessions", headers=root)
        of_root = next(one for one in everyone.items if one["name"] == "root")
        path = f"/api/v1/sessions/{of_root['session_id']}"
        not_hers = await ask(web, "DELETE", path, headers={**anna, **OWN})
        of_anna = f"/api/v1/sessions/{own.items[0]['session_id']}"
        ended = await ask(web, "DELETE", of_anna, headers={**root, **OWN})
        after = await me(web, anna)

    assert [one["name"] for one in own.items] == ["anna"]
    assert {one["name"] for one in everyone.items} == {"anna", "root"}
    assert (not_hers.status, ended.status, after) == (404, 200, 401)


async def test_a_token_that_is_called_like_a_user_is_not_that_user(tmp_path):
    async with app(tmp_path) as (n, web):
        session = cookie_of(await log_in(web))
        made = await n.api.access.create_token(BY, "anna", "operator")
        bearer = {"authorization": f"Bearer {made['token']}"}
        seen = await ask(web, "GET", "/api/v1/sessions", headers=bearer)
        (own,) = await n.api.access.list_sessions()
        path = f"/api/v1/sessions/{own.session_id}"
        ended = await ask(web, "DELETE", path, headers=bearer)
        await ask(web, "POST", "/api/v1/dags/chain/pause", headers=bearer)
        (paused,) = await lines(n, action="dag.pause")
        after = await me(web, session)

    assert (seen.items, ended.status, after["name"]) == ([], 404, "anna")
    assert paused.actor == "token:anna"


async def test_a_wrong_password_and_an_unknown_user_get_the_same_response(tmp_path):
    async with app(tmp_path) as (n, web):
        wrong = await log_in(web, "anna", "not her password")
        nobody = await log_in(web, "nobody", PASSWORD)
        told = await lines(n, outcome="refused")

    assert (wrong.status, nobody.status) == (401, 401)
    assert wrong.json["detail"] == nobody.json["detail"]
    assert {one.target for one in told} == {"anna", "/api/v1/sessions"}


async def test_long_responses_end_with_their_token(tmp_path):
    async with app(tmp_path) as (n, web):
        made = await n.api.access.create_token(BY, "watcher", "viewer")
        sent = []

        async def endless(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for number in range(10):
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                sent.append(number)
                if number == 2:
                    await n.api.access.revoke_token(BY, made["token_id"])

        web._app = endless
        bearer = {"authorization": f"Bearer {made['token']}"}
        answer = await ask(web, "GET", "/api/v1/stream", headers=bearer)

    assert answer.body == b"xxx"
    assert sent == [0, 1, 2]


# ── tokens ──────────────────────────────────────────────────────────────────────────────


async def test_a_token_is_shown_once_used_and_revoked(tmp_path):
    async with app(tmp_path) as (n, web):
        body = b'{"name": "ci", "role": "operator", "scopes": ["chain"]}'
        made = await ask(web, "POST", "/api/v1/tokens", body=body, headers={**HOME_BEARER, **JSON})
        bearer = {"authorization": f"bearer {made.json['token']}"}
        known = await me(web, bearer)
        await n.api.access._write()
        listed = await ask(web, "GET", "/api/v1/tokens", headers=HOME_BEARER)
        stored = (n.home / "aioflow.db").read_bytes() + (n.home / "aioflow.db-wal").read_bytes()
        path = f"/api/v1/tokens/{made.json['token_id']}"
        await ask(web, "DELETE", path, headers=HOME_BEARER)
        after = await me(web, bearer)
        twice = await ask(web, "DELETE", path, headers=HOME_BEARER)

    assert made.json["token"].startswith("aio_")
    assert len(made.json["token"]) > 40
    assert known == {
        "name": "ci",
        "role": "operator",
        "kind": "token",
        "scopes": ["chain"],
        "page_url": None,
    }
    assert "token" not in listed.items[0]
    assert listed.items[0]["last_used_at"] is not None
    assert made.json["token"].encode() not in stored
    assert PASSWORD.encode() not in stored
    assert (after, twice.json["state"]) == (401, "revoked")


async def test_a_client_revoked_while_its_body_arrives_is_rejected(tmp_path):
    async with app(tmp_path) as (n, web):
        made = await n.api.access.create_token(BY, "one", "admin")
        bearer = {"authorization": f"Bearer {made['token']}"}
        pieces = [b'{"name": "another", ', b'"role": "admin"}']
        answer = await ask(
            web,
            "POST",
            "/api/v1/tokens",
            headers={**bearer, **JSON},
            pieces=pieces,
            meanwhile=lambda: n.api.access.revoke_token(BY, made["token_id"]),
        )
        listed = await n.api.access.list_tokens()

    assert answer.status == 401
    assert [token.name for token in listed] == ["one"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"name": "ci", "role": "root"}', 422, "request.invalid"),
        (b'{"name": "../x"}', 422, "request.account"),
        (b'{"name": ""}', 422, "request.account"),
        (b'{"name": "ci", "scopes": []}', 422, "request.account"),
        (b'{"name": "ci", "scopes": ["a\\u0000"]}', 422, "request.account"),
        (b'{"name": "ci", "expires_at": "1999-01-01"}', 422, "request.account"),
        (b'{"name": "ci", "expires_at": "soon"}', 400, "request"),
        (b'{"name": "taken"}', 409, "request.token_exists"),
    ],
)
async def test_a_token_that_cannot_be_is_not_made(tmp_path, body, status, code):
    async with app(tmp_path) as (n, web):
        await n.api.access.create_token(BY, "taken", "viewer")
        answer = await ask(
            web, "POST", "/api/v1/tokens", body=body, headers={**HOME_BEARER, **JSON}
        )

    assert (answer.status, answer.json["code"]) == (status, code)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"name": "anna", "password": "long enough"}', 409, "request.account_exists"),
        (b'{"name": "home", "password": "long enough"}', 409, "request.account_exists"),
        (b'{"name": "bob", "password": "short"}', 422, "request.account"),
        (b'{"name": "-bob", "password": "long enough"}', 422, "request.account"),
        (b'{"name": "bob"}', 422, "request.invalid"),
    ],
)
async def test_a_user_that_cannot_be_is_not_made(tmp_path, body, status, code):
    async with app(tmp_path) as (_, web):
        answer = await ask(web, "POST", "/api/v1/users", body=body, headers={**HOME_BEARER, **JSON})

    assert (answer.status, answer.json["code"]) == (status, code)
    assert b"long enough" not in answer.body


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/tokens", b'{"name": "ci"}'),
        ("/api/v1/users", b'{"name": "bob", "password": "long enough"}'),
    ],
    ids=["token", "user"],
)
async def test_requests_that_cannot_be_answered_again_take_no_idempotency_key(tmp_path, path, body):
    async with app(tmp_path) as (n, web):
        keyed = {**HOME_BEARER, **JSON, "idempotency-key": "k"}
        refused = await ask(web, "POST", path, body=body, headers=keyed)
        tokens, users = await n.api.access.list_tokens(), await n.api.access.list_users()
        made = await ask(web, "POST", path, body=body, headers={**HOME_BEARER, **JSON})

    assert (refused.status, refused.json["code"]) == (400, "request.key_not_taken")
    assert (tokens, [user.name for user in users]) == ([], ["anna"])
    assert made.status == 201


# ── a password of one's own ─────────────────────────────────────────────────────────────

ANOTHER = "a cart, a lamp"


async def choose(web, body, **headers):
    return await ask(
        web,
        "PUT",
        "/api/v1/me/password",
        body=json.dumps(body).encode(),
        headers={**OWN, **headers},
    )


async def test_a_user_changes_the_password_and_other_sessions_of_the_user_end(tmp_path):
    async with app(tmp_path) as (n, web):
        here, there = cookie_of(await log_in(web)), cookie_of(await log_in(web))
        chosen = await choose(web, {"old": PASSWORD, "new": ANOTHER}, **here)
        known = [await me(web, headers) for headers in (here, there)]
        logins = [(await log_in(web, "anna", word)).status for word in (PASSWORD, ANOTHER)]
        (line,) = await lines(n, action="user.set")

    assert chosen.status == 200
    assert (known[0]["name"], known[1]) == ("anna", 401)
    assert logins == [401, 201]
    assert (line.actor, line.target, line.after) == ("anna", "anna", "operator password")


async def test_so_does_a_user_without_a_session(tmp_path):
    async with app(tmp_path) as (_, web):
        session = cookie_of(await log_in(web))
        chosen = await choose(web, {"name": "anna", "old": PASSWORD, "new": ANOTHER})
        after = await me(web, session)

    assert (chosen.status, after) == (200, 401)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"name": "anna", "old": "guessed wrong", "new": ANOTHER}, 403, "request.password"),
        ({"name": "nobody", "old": PASSWORD, "new": ANOTHER}, 403, "request.password"),
        ({"name": "anna", "old": PASSWORD, "new": "short"}, 422, "request.account"),
        ({"name": "anna", "old": PASSWORD, "new": PASSWORD}, 422, "request.account"),
        ({"old": PASSWORD, "new": ANOTHER}, 400, "request"),
        ({"name": "home", "old": PASSWORD, "new": ANOTHER}, 403, "request.password"),
        ({"name": "anna", "new": ANOTHER}, 422, "request.invalid"),
    ],
)
async def test_no_other_user_can_change_it(tmp_path, body, status, code):
    async with app(tmp_path) as (n, web):
        answer = await choose(web, body)
        still = await log_in(web)
        told = await lines(n)

    assert (answer.status, answer.json["code"], still.status) == (status, code, 201)
    assert PASSWORD not in str(told)


async def test_a_session_alone_is_not_enough_and_another_page_has_none(tmp_path):
    async with app(tmp_path) as (_, web):
        session = cookie_of(await log_in(web))
        wrong = await choose(web, {"old": "guessed wrong", "new": ANOTHER}, **session)
        foreign = await choose(
            web, {"old": PASSWORD, "new": ANOTHER}, **session, **{"sec-fetch-site": "cross-site"}
        )

    assert (wrong.status, foreign.status) == (403, 403)
    assert foreign.json["code"] == "web.origin"


async def test_guessing_a_present_password_is_guessing_a_login(tmp_path, monkeypatch):
    monkeypatch.setattr(Access, "_seconds", 100.0)  # no attempt is regained in between
    async with app(tmp_path) as (_, web):
        found = [
            (await choose(web, {"name": "anna", "old": f"guess {n}", "new": ANOTHER})).status
            for n in range(12)
        ]
        login = await log_in(web)

    assert found[:10] == [403] * 10
    assert set(found[10:]) == {429}
    assert login.status == 429


async def test_a_disabled_user_chooses_nothing(tmp_path):
    async with app(tmp_path) as (n, web):
        await n.api.access.set_user(BY, "anna", disabled=True)
        answer = await choose(web, {"name": "anna", "old": PASSWORD, "new": ANOTHER})

    assert answer.status == 403


# ── tokens of a user who is changed or deleted ──────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "role"),
    [(None, 401), ({"disabled": True}, 401), ({"role": "viewer"}, "viewer")],
    ids=["deleted", "disabled", "smaller"],
)
async def test_a_token_can_no_more_than_the_user_who_made_it(tmp_path, change, role):
    async with app(tmp_path) as (n, web):
        await n.api.access.create_user(BY, "root", PASSWORD, "admin")
        session = cookie_of(await log_in(web, "root"))
        bearers = []
        headers = session
        for name in ("first", "second"):  # the second is made with the first
            body = json.dumps({"name": name, "role": "admin"}).encode()
            made = await ask(web, "POST", "/api/v1/tokens", body=body, headers={**headers, **OWN})
            headers = {"authorization": f"Bearer {made.json['token']}"}
            bearers.append(headers)
        others = await n.api.access.create_token(BY, "others", "admin")
        if change is None:
            await n.api.access.delete_user(BY, "root")
        else:
            await n.api.access.set_user(BY, "root", **change)
        known = [await me(web, bearer) for bearer in bearers]
        kept = await me(web, {"authorization": f"Bearer {others['token']}"})

    assert [one if isinstance(one, int) else one["role"] for one in known] == [role, role]
    assert kept["role"] == "admin"


# ── requests from other sites ───────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"origin": "http://127.0.0.1:8793", **JSON}, 201, id="own"),
        pytest.param({"sec-fetch-site": "same-origin", **JSON}, 201, id="own-by-fetch"),
        pytest.param(
            {"origin": "https://127.0.0.1:8793", "sec-fetch-site": "same-origin", **JSON},
            201,
            id="own-behind-tls",
        ),
        pytest.param({**JSON}, 403, id="nothing"),
        pytest.param({"origin": "null", **JSON}, 403, id="null"),
        pytest.param({"origin": "http://127.0.0.1:8794", **JSON}, 403, id="port"),
        pytest.param({"origin": "https://127.0.0.1:8793", **JSON}, 403, id="scheme"),
        pytest.param({"sec-fetch-site": "same-site", **JSON}, 403, id="same-site"),
        pytest.param({"sec-fetch-site": "none", **JSON}, 403, id="none"),
        pytest.param(
            {"origin": "http://127.0.0.1:8793", "sec-fetch-site": "cross-site", **JSON},
            403,
            id="contradiction",
        ),
        pytest.param({**OWN, "content-type": "text/plain"}, 415, id="text"),
        pytest.param({**OWN, "content-type": "application/json, x"}, 415, id="two-types"),
        pytest.param({**OWN, "content-type": "application/x-www-form-urlencoded"}, 415, id="form"),
        pytest.param({**OWN, "content-type": "multipart/form-data; boundary=x"}, 415, id="parts"),
        pytest.param({"origin": "http://127.0.0.1:8793"}, 415, id="no-type"),
        pytest.param({**OWN, "content-type": "Application/JSON; charset=UTF-8"}, 201, id="case"),
        pytest.param({**OWN, "x-forwarded-host": "evil.example"}, 201, id="forwarded"),
        pytest.param({**OWN, "host": "evil.example"}, 421, id="host"),
    ],
)
async def test_a_session_changes_things_from_its_own_page_as_json_alone(tmp_path, headers, status):
    async with app(tmp_path) as (n, web):
        session = cookie_of(await log_in(web))
        answer = await ask(
            web, "POST", "/api/v1/dags/chain/runs", body=b"{}", headers={**session, **headers}
        )
        made = await n.api.list_runs()

    assert answer.status == status
    assert len(made) == (status == 201)


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}],
)
async def test_no_other_page_can_log_a_user_in(tmp_path, headers):
    async with app(tmp_path) as (_, web):
        answer = await log_in(web, **headers)

    assert answer.status == 403


async def test_reading_changes_nothing(tmp_path):
    async with app(tmp_path) as (n, web):
        for target in ("/api/v1/dags/chain/runs", "/api/v1/dags/chain/pause"):
            assert (await ask(web, "GET", target, headers=HOME_BEARER)).status == 405
        assert await n.api.list_runs() == []


async def test_unauthenticated_requests_are_small_and_their_errors_short(tmp_path):
    async with app(tmp_path) as (_, web):
        large = await log_in(web, "anna", "x" * 20_000)
        named = {"name": "anna", "password": PASSWORD, "y" * 10_000: 1}
        odd = await ask(
            web, "POST", "/api/v1/sessions", body=json.dumps(named).encode(), headers=OWN
        )

    assert (large.status, large.json["code"]) == (413, "web.too_large")
    assert odd.status == 422
    assert len(odd.json["detail"]) < 600


# ── guessing ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.nightly)])
async def test_thousands_of_wrong_logins_hash_little_and_do_not_hold_up_the_daemon(tmp_path, count):
    async with app(tmp_path, Passwords()) as (n, web):
        longest, waited = 0.0, 0.0
        statuses: dict[int, int] = {}
        is_over = anyio.Event()

        async def watch():
            nonlocal longest, waited
            while not is_over.is_set():
                # CPU time of this process only, since other processes may occupy the processors.
                began, asked = time.process_time(), time.monotonic()
                assert (await ask(web, "GET", "/api/v1/me", headers=HOME_BEARER)).status == 200
                longest = max(longest, time.process_time() - began)
                waited = max(waited, time.monotonic() - asked)
                await anyio.sleep(0.005)

        async def guess(first):
            for number in range(first, first + count // 20):
                answer = await log_in(web, "anna", f"wrong {number}")
                statuses[answer.status] = statuses.get(answer.status, 0) + 1

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            async with anyio.create_task_group() as guesses:
                for first in range(0, count, count // 20):
                    guesses.start_soon(guess, first)
            is_over.set()
        told = await lines(n, outcome="refused")

    assert sum(statuses.values()) == count
    assert set(statuses) == {401, 429}
    assert statuses[401] < 100
    assert longest < 1.0
    assert waited < 20.0
    assert len(told) < 250


async def test_guessing_a_name_does_not_lock_out_its_user(tmp_path):
    async with app(tmp_path) as (n, _web):
        await n.api.access.log_in("anna", PASSWORD, address="10.0.0.1", cookie="c")
        for _ in range(40):
            with pytest.raises(Exception, match=r"wrong|too many"):
                await n.api.access.log_in("anna", "wrong", address="10.0.0.2", cookie="c")

        _, opened = await n.api.access.log_in("anna", PASSWORD, address="10.0.0.1", cookie="c")

    assert opened.name == "anna"


# ── the audit ───────────────────────────────────────────────────────────────────────────


async def test_a_flood_of_unknown_clients_fills_no_disk_and_hides_no_user(tmp_path):
    async with app(tmp_path) as (n, web):
        viewer = await n.api.access.create_token(BY, "looker", "viewer")
        bearer = {"authorization": f"Bearer {viewer['token']}"}
        for _ in range(5_000):
            await ask(web, "POST", "/api/v1/dags/chain/pause")
        await ask(web, "POST", "/api/v1/dags/chain/pause", headers=bearer)
        told = await lines(n, outcome="refused")

    strangers = [one for one in told if one.code == "web.unauthorized"]
    assert [one.after for one in strangers] == [None]  # and a count in a minute
    assert [(one.actor, one.code) for one in told if one.actor] == [
        ("token:looker", "request.forbidden")
    ]


@pytest.mark.parametrize(
    ("target", "headers", "code"),
    [
        ("/api/v1/runs", {}, "web.unauthorized"),
        ("/api/v1/runs", {"authorization": "Bearer aio_nothing"}, "web.unauthorized"),
        ("/?token=guessed", {}, "web.unauthorized"),
        ("/api/v1/runs", {"host": "evil.example"}, "web.host"),
    ],
    ids=["nobody", "no-token", "link", "host"],
)
async def test_a_denied_read_is_in_the_audit_by_address(tmp_path, target, headers, code):
    async with app(tmp_path) as (n, web):
        await ask(web, "GET", target, headers=headers)
        told = await lines(n, outcome="refused")

    (line,) = told
    assert (line.action, line.code, line.address) == ("GET", code, "127.0.0.1")
    assert line.target == target.partition("?")[0]


async def test_a_viewer_who_reads_what_is_an_admins_is_in_the_audit_and_one_who_errs_is_not(
    tmp_path,
):
    async with app(tmp_path) as (n, web):
        viewer = await n.api.access.create_token(BY, "looker", "viewer")
        bearer = {"authorization": f"Bearer {viewer['token']}"}
        for target in ("/api/v1/audit", "/api/v1/tokens", "/api/v1/runs/nobody", "/api/v1/x"):
            await ask(web, "GET", target, headers=bearer)
        told = await lines(n, outcome="refused")

    assert [(one.actor, one.target, one.code) for one in told] == [
        ("token:looker", "/api/v1/tokens", "request.forbidden"),
        ("token:looker", "/api/v1/audit", "request.forbidden"),
    ]


async def test_the_last_refusals_are_stored_before_a_daemon_ends(tmp_path):
    async with app(tmp_path) as (n, web):
        async with anyio.create_task_group() as services:
            await services.start(n.api.access.run)
            for _ in range(3):
                await ask(web, "GET", "/api/v1/runs")
            await n.api.access.finish()
            services.cancel_scope.cancel()
        found = await n.api.access.list_audit()

    more, first = [one.after for one in found if one.outcome == "refused"]
    assert first is None
    assert re.fullmatch(r"2 more in \d+ s", more)


async def test_the_audit_is_filtered_and_an_entry_is_shown(tmp_path):
    async with app(tmp_path) as (n, web):
        await n.api.by(BY).set_pool("a", 3)
        await ask(web, "PUT", "/api/v1/pools/b", body=b'{"slots": 2}', headers=JSON)
        await n.api.access._write()

        async def found(query):
            answer = await ask(web, "GET", f"/api/v1/audit?{query}", headers=HOME_BEARER)
            return [(one["action"], one["target"]) for one in answer.items]

        denied = ("PUT", "/api/v1/pools/b")
        assert await found("action=pool") == [("pool.set", "a")]
        assert await found("outcome=refused") == [denied]
        assert await found("actor=home&outcome=done&target=a") == [
            ("pool.set", "a"),
            ("user.create", "anna"),
        ]
        assert await found("from=2999-01-01T00:00:00Z") == []
        assert len(await found("to=2999-01-01T00:00:00Z&limit=2")) == 2
        assert await found("actor=home&action=none.such") == []
        wrong = await ask(web, "GET", "/api/v1/audit?from=soon", headers=HOME_BEARER)
        (entry,) = (
            await ask(web, "GET", "/api/v1/audit?action=pool.set", headers=HOME_BEARER)
        ).items
        one = await ask(web, "GET", f"/api/v1/audit/{entry['audit_id']}", headers=HOME_BEARER)
        none = await ask(web, "GET", "/api/v1/audit/1", headers=HOME_BEARER)

    assert wrong.status == 400
    assert one.json == entry
    assert (none.status, none.json["code"]) == (404, "request.unknown_audit_entry")


async def test_unaudited_changes_are_noticed(tmp_path):
    async with app(tmp_path) as (n, _web):
        await n.api.by(BY).set_pool("a", 3)
        await n.api.by(BY).set_pool("a", 4)
        await n.api.by(BY).set_pool("a", None)
        first, second, third, _ = reversed(await n.api.access.list_audit())
        assert await audit_faults(n.store) == []
        assert (second.action, second.before, second.after) == ("pool.set", None, "3 slots")
        assert (third.before, third.after) == ("3 slots", "4 slots")

        url = f"sqlite:///{n.home}/aioflow.db"
        execute(url, f"UPDATE audit SET after = '9 slots' WHERE audit_no = {third.audit_id}")
        changed = await audit_faults(n.store)
        execute(url, f"UPDATE audit SET after = '4 slots' WHERE audit_no = {third.audit_id}")
        execute(url, f"DELETE FROM audit WHERE audit_no = {second.audit_id}")
        deleted = await audit_faults(n.store)
        execute(url, f"DELETE FROM audit WHERE audit_no = {first.audit_id}")
        beheaded = await audit_faults(n.store)

    assert changed == [f"audit {third.audit_id} was altered"]
    assert deleted == [
        f"audit {third.audit_id} does not follow {first.audit_id}: entries are missing",
        "the audit has 3 entries instead of 4",
    ]
    assert beheaded == ["the audit has 2 entries instead of 4"]


@pytest.mark.parametrize("is_running", [True, False], ids=["while-it-runs", "while-it-is-stopped"])
@pytest.mark.parametrize("with_head", [True, False], ids=["and-the-head", "lines"])
async def test_an_end_of_the_audit_that_is_cut_off_shows_then_and_later(
    tmp_path, is_running, with_head
):
    async def cut(n):
        *_, last = sorted(one.audit_id for one in await n.api.access.list_audit())
        url = f"sqlite:///{n.home}/aioflow.db"
        execute(url, f"DELETE FROM audit WHERE audit_no = {last}")
        if with_head:
            execute(url, "DELETE FROM audit_head")

    async with app(tmp_path) as (n, _web):
        for slots in range(1, 4):
            await n.api.by(BY).set_pool("a", slots)
        await cut(n)
        at_once = await audit_faults(n.store)
        if is_running:
            await n.api.by(BY).set_pool("a", 9)
    async with node(tmp_path) as n:
        if not is_running:
            await n.api.by(BY).set_pool("a", 9)
        later = await audit_faults(n.store)

    assert len(at_once) == 1
    assert any("does not follow" in fault for fault in later)


async def test_the_audit_tells_no_secret(tmp_path):
    async with app(tmp_path) as (n, web):
        secret = {**HOME_BEARER, **JSON}
        await ask(web, "PUT", "/api/v1/secrets/BANK", body=b'{"value": "hunter2"}', headers=secret)
        await log_in(web, "anna", "hunter2 again")
        await log_in(web, "hunter2 as name", "whatever else")
        told = await lines(n)

    assert "hunter2" not in str(told)
    assert {"secret.set", "user.create"} <= {one.action for one in told}


async def test_an_answer_names_its_request_and_tells_nothing_of_the_inside(tmp_path):
    async with app(tmp_path) as (_, web):
        answer = await ask(web, "GET", "/api/v1/runs/nobody", headers=HOME_BEARER)

    name = answer.headers["x-request-id"]
    assert answer.json["instance"] == f"urn:aioflow:request:{name}"
    assert len(name) == 16


# ── what the audit records automatically ────────────────────────────────────────────────


async def test_uses_and_refusals_are_written_down_soon_and_a_start_waits_for_its_database(
    tmp_path, monkeypatch
):
    async with app(tmp_path) as (n, web):
        made = await n.api.access.create_token(BY, "ci", "viewer")
        bearer = {"authorization": f"Bearer {made['token']}"}
        real, asked = n.store.list_tokens, []

        async def away_at_first():
            asked.append(1)
            if len(asked) == 1:
                raise StoreUnavailable("a test says so")
            return await real()

        monkeypatch.setattr(n.store, "list_tokens", away_at_first)
        async with anyio.create_task_group() as services:
            await services.start(n.api.access.run)
            await me(web, bearer)
            await ask(web, "POST", "/api/v1/dags/chain/pause", headers=bearer)

            async def refused() -> bool:
                return any(one.outcome == "refused" for one in await n.api.access.list_audit())

            with anyio.fail_after(60):
                await until(n.engine, refused)
            services.cancel_scope.cancel()
        (row,) = await real()
        turns = n.engine.turns
        await me(web, bearer)
        await n.api.access._write()

    assert row.last_used_at is not None
    assert n.engine.turns == turns  # once a minute is enough


async def test_a_restart_lets_in_whom_the_life_before_let_in(tmp_path):
    async with app(tmp_path) as (n, web):
        made = await n.api.access.create_token(BY, "ci", "viewer")
        session = cookie_of(await log_in(web))
    async with node(tmp_path) as n:
        await n.api.access.auth_cache.load(n.store)
        web = create_app(n.api, TOKEN)
        bearer = {"authorization": f"Bearer {made['token']}"}
        known = [(await me(web, headers))["name"] for headers in (bearer, session)]
        await n.api.by(BY).set_pool("a", 3)
        faults = await audit_faults(n.store)

    assert known == ["ci", "anna"]
    assert faults == []
