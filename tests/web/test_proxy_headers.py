"""Proxy headers are believed only if they come from a trusted proxy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.datastructures import Headers

from aioflow.errors import SettingsError
from aioflow.model.access import HOME, Actor, Role
from aioflow.settings import Settings
from aioflow.web.app import create_app
from aioflow.web.limits import Connections
from aioflow.web.tokens import Token
from aioflow.web.trusted_proxies import Proxies
from tests.web.node import ask, node

PROXIES = Proxies(["10.0.0.5", "10.1.0.0/16", "fd00::/8"])


@pytest.mark.parametrize(
    ("peer", "given", "expected"),
    [
        pytest.param("10.0.0.5", ["1.2.3.4"], "1.2.3.4", id="one"),
        pytest.param("10.0.0.5", ["6.6.6.6, 1.2.3.4"], "1.2.3.4", id="made-up-before"),
        pytest.param("10.0.0.5", ["6.6.6.6", "1.2.3.4"], "1.2.3.4", id="two-headers"),
        pytest.param("10.0.0.5", ["1.2.3.4, 10.1.2.3"], "1.2.3.4", id="two-proxies"),
        pytest.param("10.0.0.5", ["6.6.6.6, 1.2.3.4, 10.1.2.3"], "1.2.3.4", id="and-made-up"),
        pytest.param("10.0.0.5", ["10.1.2.3, 10.1.2.4"], "10.1.2.3", id="all-ours"),
        pytest.param("10.0.0.5", [], "10.0.0.5", id="nothing"),
        pytest.param("10.0.0.5", [""], "10.0.0.5", id="empty"),
        pytest.param("10.0.0.5", ["unknown"], "10.0.0.5", id="no-address"),
        pytest.param("10.0.0.5", ["1.2.3.4, <script>"], "10.0.0.5", id="nonsense-last"),
        pytest.param("10.0.0.5", ["1.2.3.4:555"], "1.2.3.4", id="port"),
        pytest.param("fd00::1", ["[2001:db8::1]:555"], "2001:db8::1", id="v6-port"),
        pytest.param("fd00::1", ["2001:db8::1"], "2001:db8::1", id="v6"),
        pytest.param("::ffff:10.0.0.5", ["::ffff:1.2.3.4"], "1.2.3.4", id="mapped"),
        pytest.param("10.0.0.6", ["1.2.3.4"], "10.0.0.6", id="not-trusted"),
        pytest.param("10.0.0.50", ["1.2.3.4"], "10.0.0.50", id="begins-alike"),
        pytest.param("", ["1.2.3.4"], "", id="nobody"),
    ],
)
def test_the_last_address_that_is_no_proxys_is_where_it_comes_from(peer, given, expected):
    headers = Headers(raw=[(b"x-forwarded-for", value.encode()) for value in given])

    assert PROXIES.address(headers, peer) == expected


@pytest.mark.parametrize(
    ("peer", "given", "expected"),
    [
        ("10.0.0.5", ["https"], "https"),
        ("10.0.0.5", ["http"], "http"),
        ("10.0.0.5", ["https", "http"], "http"),
        ("10.0.0.5", ["gopher"], "http"),
        ("10.0.0.5", [], "http"),
        ("10.0.0.6", ["https"], "http"),
    ],
)
def test_the_scheme_of_the_browser_is_taken_only_from_a_proxy(peer, given, expected):
    headers = Headers(raw=[(b"x-forwarded-proto", value.encode()) for value in given])

    assert PROXIES.scheme(headers, peer, "http") == expected


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("trusted", [("127.0.0.1",), ()], ids=["trusted", "not"])
async def test_logins_through_a_proxy_count_by_address_and_get_a_secure_cookie(tmp_path, trusted):
    async with node(tmp_path) as n:
        by = Actor(name=HOME, role=Role.ADMIN)
        await n.api.access.create_user(by, "anna", "a horse, a battery", "viewer")
        web = create_app(n.api, Token("t" * 43), proxies=Proxies(trusted))

        async def log_in(address, password):
            headers = {
                "content-type": "application/json",
                "x-forwarded-for": address,
                "x-forwarded-proto": "https",
            }
            body = f'{{"name": "anna", "password": "{password}"}}'.encode()
            return await ask(web, "POST", "/api/v1/sessions", body=body, headers=headers)

        wrong = [(await log_in("6.6.6.6", f"guess {number}")).status for number in range(12)]
        right = await log_in("1.2.3.4", "a horse, a battery")
        sessions = await n.api.access.list_sessions()

    assert 429 in wrong
    assert right.status == (201 if trusted else 429)
    assert [one.address for one in sessions] == (["1.2.3.4"] if trusted else [])
    if trusted:
        assert "Secure" in right.headers["set-cookie"]


def test_a_proxy_may_have_as_many_connections_as_there_are():
    async def unused(scope, receive, send):
        raise AssertionError

    limits = Connections(unused, in_all=10, from_one=2, is_exempt=PROXIES.is_trusted)

    def accepts(address):
        connection: Any = limits.protocol(asyncio.Protocol)()
        connection.client = address, 5
        return limits.accept(connection)

    assert [accepts("10.0.0.5") for _ in range(11)] == [True] * 10 + [False]
    assert not accepts("1.2.3.4")


def test_a_setting_names_addresses_and_networks_and_never_everybody(tmp_path, monkeypatch):
    named = Settings.read(tmp_path, {"web.trusted_proxies": ("10.0.0.5", "fd00::/8")})
    monkeypatch.setenv("AIOFLOW_WEB__TRUSTED_PROXIES", "10.0.0.5, 10.1.0.0/16")
    by_environment = Settings.read(tmp_path)

    assert named.trusted_proxies == ("10.0.0.5", "fd00::/8")
    assert by_environment.trusted_proxies == ("10.0.0.5", "10.1.0.0/16")
    for wrong in ("0.0.0.0/0", "::/0", "proxy.example", "10.0.0.5/8"):
        monkeypatch.setenv("AIOFLOW_WEB__TRUSTED_PROXIES", wrong)
        with pytest.raises(SettingsError, match="trusted_proxies"):
            Settings.read(tmp_path)
