"""Waiting for objects, with a real server that speaks S3."""

from __future__ import annotations

import logging
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import httpx2
import obstore
import pytest
from obstore.store import S3Store

from aioflow import Connection, DagError, TriggerEvent
from aioflow.author.client import query_sender
from aioflow.author.trigger import construct, serialize
from aioflow_triggers import extras, objects
from aioflow_triggers.credentials import FetchedConnection
from aioflow_triggers.objects import NewObjects, ObjectTrigger
from tests.triggers.conftest import LONG_AGO, as_hosted
from tests.triggers.conftest import stream as hosted_stream
from tests.triggers.site import site

SOON = 0.1
UNSIGNED = {"region": "us-east-1", "skip_signature": "true"}


@pytest.fixture
def options(moto):
    return {
        "endpoint": moto,
        "region": "us-east-1",
        "access_key_id": "key",
        "secret_access_key": "secret",
        "virtual_hosted_style_request": "false",
    }


@pytest.fixture
def bucket(moto):
    """Create a bucket. Return its URL."""
    name = f"b{uuid.uuid4().hex}"
    httpx2.put(f"{moto}/{name}", timeout=60).raise_for_status()
    return f"s3://{name}"


@pytest.fixture
def put(options):
    """Return a function that writes an object."""

    def put(url, body=b"1"):
        bucket, name = url.removeprefix("s3://").split("/", 1)
        store = S3Store(bucket, config=options, client_options={"allow_http": True})
        obstore.put(store, name, body)

    return put


def stream(trigger, since=LONG_AGO):
    return hosted_stream(trigger, since)


def names(events):
    return [event.payload["url"].rpartition("/")[2] for event in events]


async def test_a_new_object_is_reported(bucket, options, put):
    trigger = ObjectTrigger(f"{bucket}/in/a.csv", SOON, options)
    assert await trigger.poll() is None

    put(f"{bucket}/in/a.csv", b"12345")
    async with stream(trigger) as events:
        event = await anext(events)

    assert event.payload["url"] == f"{bucket}/in/a.csv"
    assert event.payload["size_bytes"] == 5
    assert event.key == f"{bucket}/in/a.csv:{event.payload['etag']}"
    assert datetime.now(UTC) - event.payload["modified"] < timedelta(minutes=10)


async def test_the_first_match_of_a_pattern_by_name_is_reported(bucket, options, put):
    trigger = ObjectTrigger(f"{bucket}/in/*.csv", SOON, options)
    for name in ("in/b.csv", "in/a.csv", "in/deeper/0.csv", "in/0.txt", "0.csv"):
        put(f"{bucket}/{name}")

    seen = await trigger.poll()

    assert seen is not None
    assert seen["url"] == f"{bucket}/in/a.csv"


async def test_a_bucket_that_does_not_exist_is_waited_for(moto, options, put):
    bucket = f"s3://b{uuid.uuid4().hex}"
    exact = ObjectTrigger(f"{bucket}/in/a", SOON, options)
    pattern = ObjectTrigger(f"{bucket}/in/*", SOON, options)
    assert await exact.poll() is None
    assert await pattern.poll() is None

    httpx2.put(bucket.replace("s3:/", moto), timeout=60).raise_for_status()
    put(f"{bucket}/in/a")

    async with stream(exact) as one, stream(pattern) as other:
        assert names([await anext(one), await anext(other)]) == ["a", "a"]


async def test_each_new_object_is_reported_once(bucket, options, put):
    trigger = NewObjects(f"{bucket}/in/*.csv", interval=SOON, options=options)
    async with stream(trigger) as events:
        put(f"{bucket}/in/a.csv")
        first = await anext(events)
        put(f"{bucket}/in/b.csv")
        second = await anext(events)
        put(f"{bucket}/in/a.csv", b"other")
        again = await anext(events)

    assert names([first, second, again]) == ["a.csv", "b.csv", "a.csv"]
    assert len({first.key, second.key, again.key}) == 3


async def test_existing_items_do_not_count_unless_requested(bucket, options, put):
    put(f"{bucket}/in/old")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    pattern = f"{bucket}/in/*"

    async with stream(NewObjects(pattern, True, SOON, options), since=tomorrow) as events:
        event = await anext(events)
    assert names([event]) == ["old"]

    trigger = as_hosted(NewObjects(pattern, False, SOON, options), tomorrow)
    assert trigger._horizon() > event.payload["modified"]


def test_hosted_again_it_leaves_out_what_is_older_than_its_last_event():
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    last = TriggerEvent({"modified": noon}, key="k")

    trigger = as_hosted(NewObjects("s3://bucket/*"), LONG_AGO, last)

    assert trigger._horizon() == noon - timedelta(minutes=1)


async def test_all_who_look_into_a_folder_share_one_listing_per_period(
    bucket, options, put, monkeypatch
):
    listed = []
    real = obstore.list_with_delimiter_async

    def counted(store):
        listed.append(store)
        return real(store)

    monkeypatch.setattr(obstore, "list_with_delimiter_async", counted)
    put(f"{bucket}/in/a1")
    seen = []

    async def look(pattern):
        seen.append(await ObjectTrigger(f"{bucket}/in/{pattern}", 60, options).poll())

    async with anyio.create_task_group() as group:
        for n in range(50):
            group.start_soon(look, f"a{n % 3}*")

    assert len(listed) <= 2  # a period may end in between
    assert len([one for one in seen if one is not None]) == 17


async def test_one_that_gives_up_does_not_take_the_answer_from_the_others(bucket, options, put):
    put(f"{bucket}/in/a")
    trigger = ObjectTrigger(f"{bucket}/in/a", 60, options)
    seen = []

    async def look():
        seen.append(await trigger.poll())

    async with anyio.create_task_group() as group, anyio.create_task_group() as doomed:
        doomed.start_soon(look)
        await anyio.lowlevel.checkpoint()
        group.start_soon(look)
        await anyio.lowlevel.checkpoint()
        doomed.cancel_scope.cancel()

    assert [one and one["size_bytes"] for one in seen] == [1]


async def test_a_store_that_does_not_answer_is_waited_for_and_said(options, caplog):
    options["endpoint"] = "http://127.0.0.1:9"
    trigger = ObjectTrigger("s3://bucket/a", SOON, options)

    with caplog.at_level(logging.WARNING):
        assert await trigger.poll() is None

    assert "s3://bucket/a cannot be polled" in caplog.text


async def test_access_that_is_denied_fails_the_wait(monkeypatch, options):
    def denied(*_):
        raise obstore.exceptions.PermissionDeniedError("403")

    monkeypatch.setattr(obstore, "head_async", denied)

    with pytest.raises(obstore.exceptions.PermissionDeniedError):
        await ObjectTrigger("s3://bucket/a", SOON, options).poll()


@pytest.mark.parametrize("make", [ObjectTrigger, NewObjects])
@pytest.mark.parametrize(
    ("status", "refusal"),
    [
        (401, obstore.exceptions.UnauthenticatedError),
        (403, obstore.exceptions.PermissionDeniedError),
    ],
)
async def test_a_listing_that_is_refused_fails_the_wait(make, status, refusal):
    async with site() as here:
        here.reply(status, "<Error>no</Error>")
        options = {**UNSIGNED, "endpoint": here.url}

        with pytest.raises(refusal, match=f"status code: {status}"), anyio.fail_after(60):
            async with stream(
                make("s3://bucket/in/*.csv", interval=SOON, options=options)
            ) as events:
                await anext(events)


async def test_a_listing_that_fails_otherwise_is_waited_for_and_said(caplog):
    async with site() as here:
        here.reply(400, "status code: 403")
        options = {**UNSIGNED, "endpoint": here.url}

        with caplog.at_level(logging.WARNING):
            assert await ObjectTrigger("s3://bucket/in/*", SOON, options).poll() is None

    assert "s3://bucket/in/* cannot be polled" in caplog.text


@pytest.mark.parametrize(
    ("folder", "wrong", "message"),
    [
        ("s3://bucket/in", {"timeout": "5"}, "'timeout' is an option of connections"),
        ("gs://bucket/in", {"proxy_url": "http://p"}, "'proxy_url' is an option of connections"),
        ("s3://bucket/in", {"no_such": "x"}, "'no_such' is not valid for store 'S3'"),
        ("s3://bucket/in", {"skip_signature": "maybe"}, 'failed to parse "<skip_signature>"'),
        (
            "gs://bucket/in",
            {"google_service_account_key": '"SECRETKEY"'},
            "invalid type: string <google_service_account_key>",
        ),
    ],
)
async def test_an_option_that_no_store_takes_is_named_and_fails_the_wait(folder, wrong, message):
    trigger = ObjectTrigger(f"{folder}/a", SOON, {"skip_signature": "true", **wrong})

    with pytest.raises(ValueError, match=f"options of {folder}: .*{message}"):
        await trigger.poll()


@pytest.mark.parametrize(
    "folder",
    ["s3://bucket/in", "gs://bucket/in", "az://bucket/in", "abfss://c@a.dfs.core.windows.net/in"],
)
async def test_every_store_is_known_by_its_url(folder):
    options = {"account_name": "a"} if folder.startswith(("az", "abfss")) else {}

    shared = objects._shared()

    assert shared.store(folder, tuple(options.items())) is shared.store(
        folder, tuple(options.items())
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: ObjectTrigger("ftp://bucket/a"), "scheme", id="scheme"),
        pytest.param(lambda: ObjectTrigger("s3://bucket"), "a name", id="no-name"),
        pytest.param(lambda: ObjectTrigger("s3://bucket/in/"), "a name", id="folder"),
        pytest.param(lambda: ObjectTrigger("s3://bucket/*/a"), "one folder", id="many-folders"),
        pytest.param(lambda: ObjectTrigger("s3://bucket/a", 0), "interval", id="interval"),
        pytest.param(lambda: NewObjects("s3://bucket/a"), "pattern", id="no-pattern"),
    ],
)
def test_impossible_arguments_are_refused_where_they_are_written(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_missing_package_is_named_where_it_is_needed(monkeypatch):
    monkeypatch.setattr(extras, "_is_there", lambda module: False)

    with pytest.raises(DagError, match=r"needs obstore: pip install 'aioflow-engine\[objects\]'"):
        ObjectTrigger("s3://bucket/a")


@pytest.mark.parametrize(
    "trigger",
    [
        ObjectTrigger("s3://bucket/a", timedelta(seconds=5), {"region": "x"}),
        NewObjects("gs://bucket/*.csv", existing=True),
    ],
    ids=lambda trigger: type(trigger).__name__,
)
def test_they_survive_storing(trigger):
    path, stored = serialize(trigger)

    assert path == f"aioflow_triggers.objects:{type(trigger).__name__}"
    assert construct(type(trigger), stored) == trigger


async def test_the_options_of_a_connection_are_used_and_replaced_by_those_of_the_trigger(
    bucket, options, put
):
    class Values:
        async def value(self, kind, name):
            names = ("endpoint", "region", "virtual_hosted_style_request")
            extra = {name: options[name] for name in names} | {"region": "nowhere"}
            return Connection(conn_type="s3", login="key", password="secret", extra=extra)

    put(f"{bucket}/in/a.csv", b"12345")
    sender: Any = Values()
    token = query_sender.set(sender)
    try:
        trigger = ObjectTrigger(
            f"{bucket}/in/a.csv", SOON, {"region": "us-east-1"}, connection="drop"
        )
        seen = await trigger.poll()
        used = await objects._options(trigger, FetchedConnection("drop"))
    finally:
        query_sender.reset(token)

    assert seen is not None
    assert seen["size_bytes"] == 5
    assert dict(used) == options
