"""Secrets set through the API, with a real engine and a real database."""

from __future__ import annotations

import pytest

from aioflow.api.validation import packed_conf
from aioflow.api.values import VALUE_BYTES, ConnectionView
from aioflow.author.client import Connection
from aioflow.errors import BadValue, NoSuchValue, Unserializable
from aioflow.model.dag import ValueKind
from aioflow.worker.query.values import values_by_name
from tests.web.node import Node, node

SECRET, CONNECTION, VARIABLE = ValueKind


async def test_values_are_listed_by_name_and_without_what_they_are(tmp_path):
    async with node(tmp_path) as n:
        made = await n.api.values.set(SECRET, "TOKEN", "hidden-text")
        await n.api.values.set(SECRET, "a/short.one", "abc")
        await n.api.values.set(VARIABLE, "TOKEN", {"a": 1})
        listed = await n.api.values.list(SECRET)

    assert made == {"kind": "secret", "name": "TOKEN", "hidden": True}
    assert [(view.name, view.hidden, view.opens) for view in listed] == [
        ("TOKEN", True, True),
        ("a/short.one", False, True),
    ]
    assert "hidden-text" not in repr(listed)


@pytest.mark.parametrize(
    ("value", "conn_type", "host"),
    [
        ("postgresql://ada:hunter2-pw@db.example:5432/books", "postgresql", "db.example"),
        ({"host": "https://ada:hunter2@hooks.example/T0/hunter2-key?q=1"}, "", "hooks.example"),
        ({"host": "ada:hunter2@db.example", "conn_type": "mysql"}, "mysql", "db.example"),
        ({"host": "hunter2.example", "password": "hunter2"}, "", "***.example"),
        ({"host": "a.example:9092,b.example:9092"}, "", "a.example:9092,b.example:9092"),
        ({"login": "ada"}, "", ""),
    ],
)
async def test_a_connection_is_listed_with_its_type_and_server_and_without_what_is_secret(
    tmp_path, value, conn_type, host
):
    async with node(tmp_path) as n:
        await n.api.values.set(CONNECTION, "pg", value)
        (view,) = await n.api.values.list(CONNECTION)

    assert isinstance(view, ConnectionView)
    assert (view.conn_type, view.host) == (conn_type, host)
    assert "hunter2" not in repr(view)


async def test_a_value_is_replaced_and_deleted_once(tmp_path):
    async with node(tmp_path) as n:
        await n.api.values.set(SECRET, "TOKEN", "one")
        await n.api.values.set(SECRET, "TOKEN", "two-two")
        assert len(await n.api.values.list(SECRET)) == 1
        assert (await n.api.values.delete(SECRET, "TOKEN"))["deleted"]
        with pytest.raises(NoSuchValue, match="aioflow secrets list"):
            await n.api.values.delete(SECRET, "TOKEN")


async def test_values_are_there_after_a_restart(tmp_path):
    async with node(tmp_path) as n:
        await n.api.values.set(CONNECTION, "pg", "postgresql://ada:pw@h/x")
    async with node(tmp_path) as n:
        assert [view.name for view in await n.api.values.list(CONNECTION)] == ["pg"]


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        pytest.param(SECRET, "a name", "canary", id="a-name-with-a-space"),
        pytest.param(SECRET, "x" * 251, "canary", id="a-name-too-long"),
        pytest.param(SECRET, "A", "", id="an-empty-secret"),
        pytest.param(SECRET, "A", ["canary"], id="a-secret-that-is-no-text"),
        pytest.param(SECRET, "A", "canary" * VALUE_BYTES, id="too-large"),
        pytest.param(SECRET, "A", "canary\ud800", id="no-unicode"),
        pytest.param(CONNECTION, "A", "canary", id="no-uri"),
        pytest.param(CONNECTION, "A", {"pass": "canary"}, id="an-attribute-unknown"),
        pytest.param(VARIABLE, "A", ["canary", float("nan")], id="no-number"),
        pytest.param(VARIABLE, "A", {"n": -float("inf")}, id="an-endless-number"),
        pytest.param(CONNECTION, "A", {"extra": {"n": float("nan")}}, id="no-number-for-a-server"),
    ],
)
async def test_values_that_cannot_be_stored_are_refused_without_being_repeated(
    tmp_path, kind, name, value
):
    async with node(tmp_path) as n:
        with pytest.raises(BadValue) as caught:
            await n.api.values.set(kind, name, value)
        assert await n.api.values.list(kind) == []

    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
async def test_a_variable_that_is_no_number_is_refused_as_in_a_conf(tmp_path, value):
    async with node(tmp_path) as n:
        with pytest.raises(BadValue, match=f"the variable.*{value} is not a number"):
            await n.api.values.set(VARIABLE, "A", value)
        with pytest.raises(Unserializable, match=f"{value} is not a number"):
            packed_conf({"a": value})


async def stored(n: Node, kind: ValueKind) -> bytes:
    row = await n.store.find_value(kind, "A")
    assert row is not None
    assert row.value is not None
    return row.value


@pytest.mark.parametrize(
    "value", [2**64, -(2**200), 2**63, 0.1, "a", None, True, {"a": [1, {"b": 2**70}]}]
)
async def test_a_variable_comes_to_a_task_as_it_was_set(tmp_path, value):
    async with node(tmp_path) as n:
        await n.api.values.set(VARIABLE, "A", value)
        body = await stored(n, VARIABLE)

    assert values_by_name(((VARIABLE, "A"),), (body,)) == {(VARIABLE, "A"): value}


async def test_an_attribute_of_a_connection_may_be_any_whole_number(tmp_path):
    async with node(tmp_path) as n:
        await n.api.values.set(CONNECTION, "A", {"host": "h", "extra": {"n": 2**64}})
        body = await stored(n, CONNECTION)

    expected = Connection(host="h", extra={"n": 2**64})
    assert values_by_name(((CONNECTION, "A"),), (body,)) == {(CONNECTION, "A"): expected}
