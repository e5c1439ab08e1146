from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import aclosing
from datetime import timedelta
from typing import Any, cast

import httpx2
import pytest

from aioflow import Connection, DagError, Fail
from aioflow.author.client import query_sender
from aioflow.author.trigger import construct, serialize
from aioflow_triggers import extras, http_client
from aioflow_triggers.credentials import FetchedConnection
from aioflow_triggers.data import JsonIs, Nothing, at_path
from aioflow_triggers.http import HttpTrigger, HttpUnexpected
from aioflow_triggers.http_client import Forbidden, Response, ResponseTooLarge, may_follow
from aioflow_triggers.pages import HttpPagesTrigger
from aioflow_triggers.sensors import HttpSensor
from tests.triggers.conftest import NOON, as_hosted
from tests.triggers.site import Reply, site

JSON = {"content_type": "application/json; charset=utf-8"}


async def events_of(trigger):
    return [event async for event in trigger.run()]


# ── conditions ──────────────────────────────────────────────────────────────────────────


async def test_the_answer_hoped_for_is_the_event(pauses):
    async with site() as here:
        here.reply(200, '{"id": 7}', **JSON, ETag='"v1"', Set_Cookie="secret=1")

        (event,) = await events_of(HttpTrigger(here.url + "/job"))

    assert event.payload["status"] == 200
    assert event.payload["url"] == here.url + "/job"
    assert event.payload["body"] == {"id": 7}
    assert event.payload["headers"]["etag"] == '"v1"'
    assert "set-cookie" not in event.payload["headers"]
    assert event.key.endswith(':"v1"')
    assert pauses == []


@pytest.mark.parametrize("status", [201, 204, 404, 408, 409, 410, 423, 425, 429, 500, 503])
async def test_transient_errors_are_waited_out(pauses, status):
    async with site() as here:
        here.reply(status)
        here.reply(200, "ready")

        (event,) = await events_of(HttpTrigger(here.url, interval=5))

    assert event.payload["body"] == "ready"
    assert pauses == [5.0]


@pytest.mark.parametrize("status", [400, 401, 403, 405, 422])
async def test_permanent_errors_fail_the_wait(pauses, status):
    async with site() as here:
        here.reply(status)

        with pytest.raises(HttpUnexpected, match=str(status)):
            await events_of(HttpTrigger(here.url))


async def test_any_status_can_be_the_one_that_is_waited_for(pauses):
    async with site() as here:
        here.reply(200)
        here.reply(410)

        (event,) = await events_of(HttpTrigger(here.url, status=[404, 410]))

    assert event.payload["status"] == 410


async def test_json_must_say_what_it_should(pauses):
    async with site() as here:
        here.reply(200, '{"job": {"state": "running"}}', **JSON)
        here.reply(200, '{"job": {"state": "done"}}', **JSON)
        done = JsonIs("job.state", one_of=["done", "warned"])

        (event,) = await events_of(HttpTrigger(here.url, until=done))

    assert event.payload["body"]["job"]["state"] == "done"
    assert len(here.asked) == 2


async def test_json_may_say_that_waiting_is_in_vain(pauses):
    async with site() as here:
        here.reply(200, '{"state": "failed"}', **JSON)

        with pytest.raises(Fail, match="state"):
            await events_of(HttpTrigger(here.url, fail_if=JsonIs("state", "failed")))


async def test_invalid_json_fails_the_wait(pauses):
    async with site() as here:
        here.reply(200, "<html>", **JSON)

        with pytest.raises(HttpUnexpected, match="JSON"):
            await events_of(HttpTrigger(here.url))


async def test_a_question_is_asked_as_it_was_written(pauses):
    async with site() as here:
        here.reply(200)

        trigger = HttpTrigger(here.url + "/q?a=1", "POST", {"X-Token": "t"}, body="grüße")
        await events_of(trigger)

    (asked,) = here.asked
    assert (asked.method, asked.path, asked.body) == ("POST", "/q?a=1", "grüße")
    assert asked.headers["x-token"] == "t"


# ── manners ─────────────────────────────────────────────────────────────────────────────


async def test_an_answer_that_was_seen_is_not_sent_again(pauses):
    date = "Wed, 01 Jan 2025 00:00:00 GMT"
    async with site() as here:
        here.reply(200, '{"n": 1}', **JSON, ETag='"v1"', Last_Modified=date)
        here.reply(304)
        here.reply(200, '{"n": 2}', **JSON, ETag='"v2"')

        (event,) = await events_of(HttpTrigger(here.url, until=JsonIs("n", 2)))

    assert event.payload["body"] == {"n": 2}
    first, second, third = here.asked
    assert "if-none-match" not in first.headers
    assert second.headers["if-none-match"] == '"v1"'
    assert second.headers["if-modified-since"] == date
    assert third.headers["if-none-match"] == '"v1"'


async def test_a_post_asks_for_the_whole_answer_each_time(pauses):
    async with site() as here:
        here.reply(200, '{"n": 1}', **JSON, ETag='"v1"')
        here.reply(200, '{"n": 2}', **JSON)

        await events_of(HttpTrigger(here.url, "POST", until=JsonIs("n", 2)))

    assert "if-none-match" not in here.asked[1].headers


async def test_a_server_that_asks_to_be_left_alone_is_left_alone(pauses):
    async with site() as here:
        here.reply(503, Retry_After="120")
        here.reply(429, Retry_After="Tue, 01 Jan 2030 12:05:00 GMT")
        here.reply(429, Retry_After="1")
        here.reply(200)

        await events_of(HttpTrigger(here.url, interval=10))

    assert pauses == [120.0, 300.0, 10.0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("", 0, id="none"),
        pytest.param("soon", 0, id="nonsense"),
        pytest.param("-5", 0, id="negative"),
        pytest.param("99999999", 86_400, id="too-long"),
        pytest.param("Tue, 01 Jan 2030 11:00:00 GMT", 0, id="passed"),
        pytest.param("Tue, 01 Jan 2030 13:00:00 +0100", 0, id="now-in-another-zone"),
        pytest.param("Tue, 01 Jan 2030 12:01:00 -0000", 60, id="no-zone-is-utc"),
    ],
)
def test_how_long_to_leave_it_alone(text, seconds):
    answer = Response(503, "", {"retry-after": text}, b"")

    assert answer.retry_after_seconds(NOON) == seconds


async def test_all_waits_share_the_connections(pauses):
    async with site() as here:
        here.reply(404)
        for _ in range(20):
            here.reply(404)
        here.reply(200)

        await events_of(HttpTrigger(here.url))

        assert here.connections == 1
    assert not http_client._pools  # and nothing refers to them


async def test_the_loop_continues_while_certificates_are_read_for_all_who_ask_first(
    pauses, monkeypatch
):
    made_in = []

    def client(*given, **options):
        made_in.append(threading.get_ident())
        return made(*given, **options)

    made = httpx2.AsyncClient
    monkeypatch.setattr(httpx2, "AsyncClient", client)
    async with site() as here:
        here.reply(200)
        here.reply(200)

        await asyncio.gather(*(events_of(HttpTrigger(here.url)) for _ in range(2)))

    assert len(made_in) == 1
    assert threading.get_ident() not in made_in
    assert not http_client._pools


# ── errors ──────────────────────────────────────────────────────────────────────────────


async def test_a_server_that_is_away_is_waited_for(pauses):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # no other program gets the port, and none listens on it
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"

        assert await HttpTrigger(url).poll() is None


async def test_an_answer_that_drips_is_no_answer(pauses):
    async with site() as here:
        here.replies = [Reply(200, "half", stall=True), Reply(200, "whole")]

        (event,) = await events_of(HttpTrigger(here.url, timeout=0.1))

    assert event.payload["body"] == "whole"


async def test_an_answer_that_is_too_large_fails_the_wait(pauses):
    async with site() as here:
        here.reply(200, "x" * 101)

        with pytest.raises(ResponseTooLarge, match="100 bytes"):
            await events_of(HttpTrigger(here.url, body_limit=100))


async def test_a_redirect_within_the_origin_is_followed(pauses):
    async with site() as here:
        here.reply(307, Location="/there")
        here.reply(200, "ready")

        (event,) = await events_of(HttpTrigger(here.url + "/here", "POST", body="b"))

    assert event.payload["url"] == here.url + "/there"
    assert [(asked.method, asked.body) for asked in here.asked] == [("POST", "b")] * 2


async def test_a_redirect_that_says_see_other_is_followed_by_a_get(pauses):
    async with site() as here:
        here.reply(303, Location="/there")
        here.reply(200)

        await events_of(HttpTrigger(here.url, "POST", body="b"))

    assert [(asked.method, asked.body) for asked in here.asked] == [("POST", "b"), ("GET", "")]


async def test_a_redirect_elsewhere_fails_the_wait_and_is_not_asked(pauses):
    async with site() as here, site() as elsewhere:
        here.reply(302, Location=elsewhere.url)

        with pytest.raises(Forbidden, match="another origin"):
            await events_of(HttpTrigger(here.url, headers={"Authorization": "secret"}))

        assert elsewhere.asked == []


async def test_redirects_without_end_fail_the_wait(pauses):
    async with site() as here:
        here.reply(302, Location="/again")

        with pytest.raises(Forbidden, match="more than 5"):
            await events_of(HttpTrigger(here.url))


@pytest.mark.parametrize(
    ("url", "target", "may"),
    [
        pytest.param("http://a/x", "http://a/y", True, id="same"),
        pytest.param("http://a/x", "http://a:80/y", True, id="same-port-said"),
        pytest.param("http://a/x", "https://a/y", True, id="secured"),
        pytest.param("https://a/x", "http://a/y", False, id="laid-open"),
        pytest.param("http://a:8080/x", "https://a/y", False, id="another-service"),
        pytest.param("http://a/x", "http://b/x", False, id="another-host"),
        pytest.param("http://a/x", "file:///etc/passwd", False, id="file"),
        pytest.param("http://a/x", "http://a@b/x", False, id="looks-alike"),
    ],
)
def test_allowed_targets_of_redirects(url, target, may):
    assert may_follow(url, target) is may


@pytest.mark.parametrize(
    ("address", "refused"),
    [
        pytest.param("169.254.169.254", True, id="metadata"),
        pytest.param("::ffff:169.254.169.254", True, id="mapped"),
        pytest.param("fe80::1%eth0", True, id="v6"),
        pytest.param("fd00:ec2::254", True, id="metadata-v6"),
        pytest.param("fd00:ec2::23%eth0", True, id="credentials-v6"),
        pytest.param("fd20:ce::254", True, id="metadata-v6-elsewhere"),
        pytest.param("100.100.100.200", True, id="metadata-elsewhere"),
        pytest.param("64:ff9b::a9fe:a9fe", True, id="translated"),
        pytest.param("64:ff9b::a00:1", False, id="translated-private"),
        pytest.param("fd00:ec3::254", False, id="private-v6"),
        pytest.param("100.100.100.201", False, id="shared"),
        pytest.param("127.0.0.1", False, id="loopback"),
        pytest.param("10.0.0.1", False, id="private"),
    ],
)
def test_which_addresses_are_link_local(address, refused):
    assert http_client._is_link_local(address) is refused


async def test_nothing_is_asked_at_an_address_that_is_refused(pauses, monkeypatch):
    monkeypatch.setattr(http_client, "_is_link_local", lambda address: address == "127.0.0.1")
    async with site() as here:
        with pytest.raises(Forbidden, match="link-local"):
            await events_of(HttpTrigger(here.url))

        assert here.asked == []


# ── JSON and headers as written ─────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"url": "ftp://host/x"}, "url must", id="scheme"),
        pytest.param({"url": "http:///x"}, "url must", id="no-host"),
        pytest.param({"method": "FETCH"}, "method must", id="method"),
        pytest.param({"status": 20}, "status must", id="status"),
        pytest.param({"status": []}, "status must", id="no-status"),
        pytest.param({"interval": 0}, "interval must", id="interval"),
        pytest.param({"body_limit": 1 << 30}, "body_limit must", id="body-limit"),
    ],
)
def test_impossible_arguments_are_refused_where_they_are_written(fields, message):
    with pytest.raises(ValueError, match=message):
        HttpTrigger(**{"url": "http://host", **fields})


def test_a_missing_package_is_named_where_it_is_needed(monkeypatch):
    monkeypatch.setattr(extras, "_is_there", lambda module: False)

    with pytest.raises(DagError, match=r"needs httpx2: pip install 'aioflow-engine\[http\]'"):
        HttpTrigger("http://host")


def test_it_survives_storing():
    trigger = HttpTrigger(
        "https://host/x",
        headers={"a": "b"},
        status=(200, 201),
        until=JsonIs("a.0", one_of=(1, "x", None)),
        interval=timedelta(seconds=5),
    )

    path, stored = serialize(trigger)

    assert path == "aioflow_triggers.http:HttpTrigger"
    assert construct(HttpTrigger, stored) == trigger


DOCUMENT = json.loads('{"a": [{"b": null}, {"b": 1}], "c.d": 2, "t": true}')


@pytest.mark.parametrize(
    ("path", "found"),
    [
        pytest.param("", DOCUMENT, id="whole"),
        pytest.param("a.1.b", 1, id="in-depth"),
        pytest.param("a.-1.b", 1, id="from-the-end"),
        pytest.param("a.0.b", None, id="null-is-something"),
        pytest.param("a.2.b", Nothing, id="beyond"),
        pytest.param("a.x", Nothing, id="no-number"),
        pytest.param("t.x", Nothing, id="into-a-value"),
    ],
)
def test_the_value_at_a_path(path, found):
    assert at_path(DOCUMENT, path) == found


@pytest.mark.parametrize(
    ("wish", "holds"),
    [
        pytest.param(JsonIs("t", equals=True), True, id="true"),
        pytest.param(JsonIs("t", equals=1), False, id="true-is-not-one"),
        pytest.param(JsonIs("a.1.b", equals=1), True, id="one"),
        pytest.param(JsonIs("a.0.b", one_of=(None,)), True, id="null"),
        pytest.param(JsonIs("a.0.b"), True, id="exists"),
        pytest.param(JsonIs("z", exists=False), True, id="does-not-exist"),
        pytest.param(JsonIs("z"), False, id="should-exist"),
    ],
)
def test_meanings_of_expectations(wish, holds):
    assert wish.holds(DOCUMENT) is holds


# ── connections ─────────────────────────────────────────────────────────────────────────


class Values:
    """A daemon with a single connection, which may change."""

    def __init__(self, found):
        self.found = found
        self.asked = 0

    async def value(self, kind, name):
        self.asked += 1
        return self.found

    def own_dag_id(self):
        return ""


@pytest.fixture
def values():
    given = Values(None)
    token = query_sender.set(cast("Any", given))
    yield given
    query_sender.reset(token)


async def test_the_credentials_of_a_connection_are_sent_to_its_server(pauses, values):
    async with site() as here:
        port = int(here.url.rpartition(":")[2])
        values.found = Connection(
            conn_type="http", host="127.0.0.1", port=port, login="ada", password="hunter2"
        )
        here.reply(404)
        here.reply(200, "ready")
        (event,) = await events_of(HttpTrigger("/job?n=1", connection="api", interval=5))
        await HttpTrigger(here.url, connection="api", headers={"authorization": "own"}).poll()

    assert event.payload["url"] == f"{here.url}/job?n=***"
    sent = [request.headers["authorization"] for request in here.asked]
    assert sent == ["Basic YWRhOmh1bnRlcjI="] * 2 + ["own"]
    assert values.asked == 2, "it is read once for several requests"


async def test_the_credentials_of_a_connection_go_to_no_other_server(pauses, values):
    values.found = Connection(conn_type="https", host="api.example", password="hunter2")
    for url in ("http://api.example/x", "https://evil.example/", "https://api.example:444/"):
        with pytest.raises(ValueError, match="not on the server"):
            await HttpTrigger(url, connection="api").poll()


async def test_a_changed_connection_is_read_again_after_some_minutes(monkeypatch, values):
    connection = FetchedConnection("api")
    values.found = Connection(password="old")
    assert await connection.get() is values.found
    values.found = Connection(password="new")
    assert (await connection.get()).password == "old"

    monkeypatch.setattr("aioflow_triggers.credentials._FRESH_SECONDS", 0.0)
    connection = FetchedConnection("api")
    await connection.get()
    values.found = Connection(password="newest")
    assert (await connection.get()).password == "newest"
    assert await FetchedConnection("").get() is None


async def test_pages_and_sensors_use_the_credentials_of_a_connection(pauses, values):
    async with site() as here:
        port = int(here.url.rpartition(":")[2])
        values.found = Connection(conn_type="http", host="127.0.0.1", port=port, password="token")
        here.reply(200, "[1]", **JSON)
        pages = HttpPagesTrigger(here.url, page_parameter="n", interval=None, connection="api")
        async with aclosing(as_hosted(pages).run()) as events:
            await anext(events)
        sensor = HttpSensor(task_id="s", url="/ready", connection="api", deferrable=False)
        await sensor.poke({})

    assert {request.headers["authorization"] for request in here.asked} == {"Bearer token"}
    assert here.asked[-1].path == "/ready"
