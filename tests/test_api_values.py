"""Secrets as people set them, over a real engine and a real database."""

from __future__ import annotations

import pytest

from aioflow.api.values import VALUE_BYTES
from aioflow.errors import BadValue, NoSuchValue
from aioflow.model import ValueKind
from tests.web.node import node

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
        pytest.param(VARIABLE, "A", 1 << 80, id="a-number-too-large"),
    ],
)
async def test_what_cannot_be_kept_is_refused_without_being_repeated(tmp_path, kind, name, value):
    async with node(tmp_path) as n:
        with pytest.raises(BadValue) as caught:
            await n.api.values.set(kind, name, value)
        assert await n.api.values.list(kind) == []

    assert "canary" not in str(caught.value)
