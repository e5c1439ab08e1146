"""Accounts, tokens, sessions and the audit are read as they were stored, and deleted by number."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aioflow.core.state.accounts import CHAIN_BEGINNING, CHAIN_LOST, chained_row, grown_head
from aioflow.crypto import Vault
from aioflow.errors import BatchRefused
from aioflow.model.access import (
    AccountRow,
    AuditEntry,
    AuditFilter,
    AuditHead,
    Role,
    SessionRow,
    TokenRow,
)
from aioflow.store import open_store
from tests.journal_replay import compare_with_replay
from tests.store.loading import load
from tests.store.samples import NOON, batch, execute

ANNA = AccountRow(
    account_no=3,
    name="anna",
    secret=b"$argon2id$",
    role=Role.OPERATOR,
    is_disabled=False,
    created_at=NOON,
    changed_at=NOON,
    groups=("finance", "risk"),
)
BOB = replace(ANNA, account_no=2, name="bob", role=Role.ADMIN, is_disabled=True, groups=())
TOKEN = TokenRow(
    token_no=5,
    name="ci",
    digest=b"d" * 32,
    role=Role.VIEWER,
    scopes=("a", "b"),
    created_at=NOON,
    created_by="home",
    expires_at=NOON + 9,
)
WIDE = replace(TOKEN, token_no=6, name="all", digest=b"e" * 32, scopes=None, expires_at=None)
SESSION = SessionRow(
    session_no=7, name="anna", digest=b"f" * 32, created_at=NOON, expires_at=NOON + 1, address="::1"
)
SAID = AuditEntry(
    actor="anna", role="operator", action="pool.set", target="db", address="::1", after="3 slots"
)
FIRST = chained_row(10, NOON, SAID, previous=CHAIN_BEGINNING)
SECOND = chained_row(
    12, NOON + 1, replace(SAID, is_refused=True, code="request.forbidden"), previous=FIRST.digest
)

HEAD = grown_head(AuditHead(), [FIRST, SECOND])


def everything(number: int = 1):
    return batch(
        number,
        accounts=[ANNA, BOB],
        tokens=[TOKEN, WIDE],
        sessions=[SESSION],
        audit=[FIRST, SECOND],
        audit_head=HEAD,
    )


async def test_they_come_back_as_they_were_stored(store):
    await store.commit(everything())

    assert await store.list_accounts() == [ANNA, BOB]
    assert await store.list_tokens() == [TOKEN, WIDE]
    assert await store.list_sessions() == [SESSION]
    assert await store.list_audit() == [SECOND, FIRST]
    assert await compare_with_replay(store) == []


async def test_a_restart_knows_them_and_where_the_audit_ends(store):
    await store.commit(everything())

    snapshot = await load(store)

    assert snapshot.accounts == [ANNA, BOB]
    assert snapshot.tokens == [TOKEN, WIDE]
    assert snapshot.sessions == [SESSION]
    assert snapshot.audit_head == HEAD


async def test_they_change_and_go(store):
    await store.commit(everything())
    used = replace(TOKEN, last_used_at=NOON, revoked_at=NOON + 2)
    raised = replace(ANNA, role=Role.ADMIN, changed_at=NOON + 5)
    await store.commit(
        batch(
            2,
            accounts=[raised],
            tokens=[used],
            gone_accounts=[2],
            gone_tokens=[6],
            gone_sessions=[7],
        )
    )

    assert await store.list_accounts() == [raised]
    assert await store.list_tokens() == [used]
    assert await store.list_sessions() == []
    assert await compare_with_replay(store) == []


async def test_a_name_that_is_free_in_the_same_batch_may_be_taken_again(store):
    await store.commit(everything())
    again = replace(ANNA, account_no=30)

    await store.commit(batch(2, gone_accounts=[3], accounts=[again]))

    assert await store.list_accounts() == [again, BOB]


async def test_two_accounts_do_not_share_a_name(store):
    await store.commit(everything())

    with pytest.raises(BatchRefused):
        await store.commit(batch(2, accounts=[replace(ANNA, account_no=30)]))


async def test_the_audit_comes_in_pages_both_ways_and_goes_when_it_is_old(store):
    await store.commit(everything())

    assert await store.list_audit(limit=1) == [SECOND]
    assert await store.list_audit(before=12) == [FIRST]
    assert await store.read_audit(10) == [SECOND]
    assert await store.list_numbers("audit", after=-1, limit=9) == [(10, NOON), (12, NOON + 1)]
    await store.commit(batch(2, erased={"audit": [(10,)]}))
    assert await store.list_audit() == [SECOND]
    assert await compare_with_replay(store) == []


async def test_the_end_of_the_audit_is_readable_only_with_the_key(store, store_url):
    assert await store.find_audit_head() == AuditHead()
    await store.commit(everything())
    later = replace(HEAD, erased=1, erased_until=10)
    await store.commit(batch(2, audit_head=later, erased={"audit": [(10,)]}))

    assert await store.find_audit_head() == later
    assert await compare_with_replay(store) == []
    async with open_store(store_url, Vault([b"z" * 32]), exclusive=False) as stranger:
        assert await stranger.find_audit_head() == AuditHead(written=None, last=CHAIN_LOST)


async def test_the_end_of_the_audit_is_lost_if_only_its_entries_are_left(store, store_url):
    await store.commit(everything())
    execute(store_url, "DELETE FROM audit_head")

    assert (await load(store)).audit_head == AuditHead(written=None, last=CHAIN_LOST)


async def test_the_audit_is_filtered_by_who_did_what_to_which_object_and_when(store):
    await store.commit(everything())
    both = [SECOND, FIRST]

    for wanted, rows in (
        (AuditFilter(), both),
        (AuditFilter(actor="ann", action="pool.set", target="d"), both),
        (AuditFilter(action="pool", target="3 slots"), both),
        (AuditFilter(action="poo"), []),
        (AuditFilter(action="pool.s"), []),
        (AuditFilter(is_refused=True), [SECOND]),
        (AuditFilter(is_refused=False), [FIRST]),
        (AuditFilter(first=NOON + 1), [SECOND]),
        (AuditFilter(last=NOON + 1), [FIRST]),
        (AuditFilter(actor="bob"), []),
        (AuditFilter(target="none"), []),
        (AuditFilter(actor="\0"), []),
    ):
        assert await store.list_audit(wanted) == rows, wanted
    assert await store.list_audit(AuditFilter(actor="anna"), before=12) == [FIRST]
    assert await store.find_audit(FIRST.audit_no) == FIRST
    assert await store.find_audit(99) is None


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("api_token", "scopes", "'c1'"),
        ("api_token", "revoked_at", 2**62),
        ("account", "groups", "'c1'"),
        ("account", "changed_at", 2**62),
        ("session", "last_used_at", 2**62),
    ],
)
async def test_a_damaged_row_lets_nobody_in_and_is_named(store, store_url, table, column, value):
    await store.commit(batch(1, accounts=[ANNA], tokens=[TOKEN], sessions=[SESSION]))
    written = value
    if isinstance(value, str):
        is_sqlite = store_url.startswith("sqlite")
        written = f"x{value}" if is_sqlite else f"decode({value}, 'hex')"
    execute(store_url, f'UPDATE {table} SET "{column}" = {written}')

    found = {
        "account": await store.list_accounts(),
        "api_token": await store.list_tokens(),
        "session": await store.list_sessions(),
    }

    assert [name for name, rows in found.items() if not rows] == [table]
    named = await store.find_damage()
    assert [(one.table, one.column) for one in named] == [(table, column)]
    assert await store.list_damaged() == named
