"""A copy of a database has the same content, for any source and target."""

from __future__ import annotations

import base64
import json
import subprocess
import sys

import pytest
from msgspec.structs import replace

from aioflow.errors import HomeBusy, SettingsError
from aioflow.model.dag import ValueKind
from aioflow.model.rows import ValueRow
from aioflow.store import open_store
from aioflow.store.copying import copy, export
from tests.journal_replay import compare_with_replay
from tests.store.samples import NOON, TRIGGER, VAULT, batch, first_batch
from tests.store.test_accounts import ANNA, BOB, everything

TOKEN = ValueRow(kind=ValueKind.SECRET, name="TOKEN ☃", value_no=40, at=NOON, value=b"\xc0\x00")


async def fill(url):
    async with open_store(url, VAULT) as store:
        await store.claim()
        await store.commit(replace(first_batch(), values=[TOKEN]))
        await store.put_result_chunk(10, 1, 0, b"\x00 piece", NOON)
        await store.lease_numbers(1_000)


async def rows_of(url):
    rows = []
    await export(url, lambda row: rows.append(json.dumps(row, sort_keys=True)))
    return sorted(rows)


@pytest.fixture(params=["from-it", "to-it"])
def urls(request, store_url, tmp_path):
    """Return a source and a target: a SQLite file, and each kind of database in turn."""
    other = f"sqlite:///{tmp_path}/other.db"
    return (store_url, other) if request.param == "from-it" else (other, store_url)


async def test_a_copy_has_all_rows_and_continues_where_the_source_was(urls):
    source, target = urls
    await fill(source)

    counts = await copy(source, target, VAULT)

    rows = await rows_of(source)
    assert rows == await rows_of(target)
    assert sum(counts.values()) == len(rows) > 10
    newest = ("named_value", "decision", "note", "try_worker", "history", "result_chunk")
    assert [counts[name] for name in newest] == [1] * len(newest)
    async with open_store(target, VAULT) as store:
        assert await store.find_value(ValueKind.SECRET, TOKEN.name) == TOKEN
        claim = await store.claim()
        assert (claim.epoch, claim.commit_no) == (2, 1)
        assert await store.lease_numbers(1) >= 1_000
        await store.commit(batch(2))
        assert await compare_with_replay(store) == []


async def test_accounts_are_valid_in_the_copy_and_the_audit_is_copied(urls):
    source, target = urls
    async with open_store(source, VAULT) as store:
        await store.claim()
        await store.commit(everything())

    counts = await copy(source, target, VAULT)

    async with open_store(target, VAULT) as store:
        assert await store.list_accounts() == [ANNA, BOB]
    assert (counts["account"], counts["api_token"], counts["audit"]) == (2, 2, 2)


@pytest.mark.process
def test_a_program_that_does_nothing_else_knows_all_tables():
    asked = "from aioflow.store.copying import _tables; print(*(t.name for t in _tables()))"
    known = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True)

    assert {"account", "api_token", "session", "audit", "run"} <= set(known.stdout.decode().split())


async def test_a_database_with_rows_is_not_copied_to(urls):
    source, target = urls
    await fill(source)
    await fill(target)
    before = await rows_of(target)

    with pytest.raises(SettingsError, match="has rows"):
        await copy(source, target, VAULT)

    assert await rows_of(target) == before


async def test_a_database_is_not_copied_to_itself(store_url):
    with pytest.raises(SettingsError, match="to itself"):
        await copy(store_url, store_url, VAULT)


async def test_a_file_that_a_daemon_serves_is_not_copied(tmp_path):
    source = f"sqlite:///{tmp_path}/served.db"
    async with open_store(source, VAULT):
        with pytest.raises(HomeBusy):
            await copy(source, f"sqlite:///{tmp_path}/copy.db", VAULT)


async def test_encrypted_values_are_exported_encrypted(store_url):
    async with open_store(store_url, VAULT) as store:
        await store.claim()
        canary = replace(TOKEN, value=b"canary-7f3a91")
        waits = [replace(TRIGGER, kwargs=b"canary-kwargs", next_kwargs=b"canary-next")]
        await store.commit(replace(first_batch(), values=[canary], new_triggers=waits))
        rows = await rows_of(store_url)

    assert all(
        base64.b64encode(part).decode() not in "".join(rows)
        for part in (b"canary-kwargs", b"canary-next", b"canary-7f3a91")
    )
    [value] = [json.loads(row) for row in rows if '"named_value"' in row]
    assert any(isinstance(column, dict) and column["base64"] for column in value.values())
    assert "canary" not in "".join(rows)
