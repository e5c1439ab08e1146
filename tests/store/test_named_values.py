"""Secrets, connections and variables are replaced and deleted, and never stored in plain text."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aioflow.crypto import Vault
from aioflow.model.dag import ValueKind
from aioflow.model.rows import ValueRow
from aioflow.store import tables
from aioflow.store.journal import decode
from aioflow.store.rows import new_values, value_row
from tests.journal_replay import compare_with_replay
from tests.store.samples import NOON, batch, first_batch

CANARY = b"canary-7f3a91"
TOKEN = ValueRow(kind=ValueKind.SECRET, name="TOKEN", value_no=40, at=NOON, value=CANARY)
OTHER = replace(TOKEN, name="a name ☃ with / in it", value_no=41, value=b"\xc0")
NAMESAKE = replace(TOKEN, kind=ValueKind.VARIABLE, value_no=42, value=b"\x01")


def with_values(*rows: ValueRow):
    return replace(first_batch(), values=list(rows))


async def test_values_are_found_by_kind_and_name(store):
    await store.commit(with_values(TOKEN, OTHER, NAMESAKE))

    assert await store.find_value(ValueKind.SECRET, "TOKEN") == TOKEN
    assert await store.find_value(ValueKind.VARIABLE, "TOKEN") == NAMESAKE
    assert await store.find_value(ValueKind.CONNECTION, "TOKEN") is None
    assert await store.find_value(ValueKind.SECRET, "no \0 text") is None
    assert await store.list_values(ValueKind.SECRET) == [TOKEN, OTHER]


async def test_a_value_that_is_set_again_replaces_what_it_was(store):
    again = replace(TOKEN, value_no=50, value=b"new")
    await store.commit(with_values(TOKEN))

    await store.commit(batch(2, values=[again]))

    assert await store.list_values(ValueKind.SECRET) == [again]
    assert await compare_with_replay(store) == []


@pytest.mark.parametrize("last", [None, b"new"], ids=["deleted-last", "set-last"])
async def test_the_last_of_several_changes_in_one_batch_counts(store, last):
    first = None if last else b"new"
    one, two = replace(TOKEN, value_no=50, value=first), replace(TOKEN, value_no=51, value=last)
    await store.commit(with_values(TOKEN))

    await store.commit(batch(2, values=[one, two]))

    assert await store.list_values(ValueKind.SECRET) == ([] if last is None else [two])
    assert await compare_with_replay(store) == []


async def test_deleting_an_unknown_value_is_no_error(store):
    await store.commit(with_values(replace(TOKEN, value=None)))

    assert await store.list_values(ValueKind.SECRET) == []
    assert await compare_with_replay(store) == []


async def test_no_value_stands_in_any_table_in_clear(store):
    await store.commit(with_values(TOKEN))

    [[row]] = await store.scan([tables.named_value])
    [journal] = await store.read_journal()
    assert CANARY not in b"".join(value for value in row if isinstance(value, bytes))
    assert CANARY.decode() not in repr(decode(journal.body))
    assert "TOKEN" in repr(decode(journal.body))


def test_a_sealed_value_opens_under_its_own_kind_name_and_number_only():
    vault = Vault([b"k" * 32])
    [(kind, name, number, at, encrypted)] = new_values(with_values(TOKEN), vault)

    def opened(**other):
        row = {
            "kind": kind,
            "name": name,
            "number": number,
            "at": at,
            "encrypted": encrypted,
            **other,
        }
        return value_row(tuple(row.values()), vault).value

    assert opened() == CANARY
    assert opened(name="OTHER") is None
    assert opened(kind="variable") is None
    assert opened(number=41) is None
    assert value_row((kind, name, number, at, encrypted), Vault([b"l" * 32])).value is None


def test_a_value_does_not_show_where_its_row_is_printed():
    assert CANARY.decode() not in repr(TOKEN)
