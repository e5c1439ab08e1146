"""How the engine decides about accounts and sessions, including after a rolled-back turn."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aioflow.core.accounts import SESSIONS, TOKENS
from aioflow.core.state.accounts import CHAIN_BEGINNING, CHAIN_LOST, check_chain, check_head
from aioflow.errors import (
    AccountExists,
    LoginFailed,
    TokenExists,
    UnknownAccount,
    UnknownSession,
    UnknownToken,
    WrongPassword,
)
from aioflow.model.access import HOME, Actor, AuditEntry, AuditHead, Role
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.requests import (
    CreateAccount,
    CreateToken,
    DeleteAccount,
    EndOtherSessions,
    EndSession,
    EraseOld,
    Note,
    NoteUse,
    OpenSession,
    Reencrypt,
    RevokeToken,
    SetAccount,
    SetPool,
    ShowPools,
)
from tests.core.world import World

BY = Actor(name="root", role=Role.ADMIN, address="::1")


def account(name="anna", secret=b"hash", role=Role.VIEWER):
    return CreateAccount(name=name, secret=secret, role=role)


def login(world, name="anna", seen=b"hash", digest=b"d", **more):
    return OpenSession(
        name=name, seen=seen, digest=digest, expires_at=world.now + 10**9, address="::1", **more
    )


def token(name="ci", digest=b"t", **more):
    return CreateToken(
        name=name, digest=digest, role=Role.VIEWER, scopes=None, created_by="root", **more
    )


@pytest.fixture
def world():
    return World()


@pytest.fixture
def admitted(world):
    return world.memory.accounts


def test_a_session_begins_only_with_what_the_password_was_compared_with(world, admitted):
    world.ask(account())

    for wrong in (login(world, seen=b"older"), login(world, name="bob"), login(world, seen=None)):
        with pytest.raises(LoginFailed):
            world.ask(wrong)
    opened = world.ask(login(world))

    assert admitted.sessions == {opened.session_no: opened}


def test_a_disabled_account_opens_no_session(world):
    world.ask(account())
    world.ask(SetAccount(name="anna", is_disabled=True))

    with pytest.raises(LoginFailed):
        world.ask(login(world))


@pytest.mark.parametrize(
    "change",
    [
        SetAccount(name="anna", secret=b"new"),
        SetAccount(name="anna", role=Role.ADMIN),
        SetAccount(name="anna", is_disabled=True),
        DeleteAccount(name="anna"),
    ],
)
def test_a_change_of_an_account_ends_its_sessions_and_no_others(world, admitted, change):
    world.ask(account())
    world.ask(account("bob"))
    world.ask(login(world))
    others = world.ask(login(world, "bob", digest=b"e"))
    home = world.ask(login(world, HOME, None, b"f"))

    world.ask(change)

    assert set(admitted.sessions.values()) == {others, home}


def test_a_change_that_changes_nothing_ends_nothing(world, admitted):
    world.ask(account())
    opened = world.ask(login(world))

    world.ask(SetAccount(name="anna", role=Role.VIEWER))

    assert list(admitted.sessions.values()) == [opened]


def test_sessions_make_room_the_oldest_first(world, admitted):
    world.ask(account())
    opened = [world.ask(login(world, digest=bytes([n]))) for n in range(SESSIONS + 2)]

    assert list(admitted.sessions.values()) == opened[2:]


def test_a_session_replaces_the_one_before_and_what_has_run_out_goes(world, admitted):
    world.ask(account())
    world.ask(login(world, digest=b"a"))
    second = world.ask(login(world, digest=b"b", replaces=b"a"))
    assert list(admitted.sessions.values()) == [second]

    world.pass_time(2_000)
    third = world.ask(login(world, digest=b"c"))

    assert list(admitted.sessions.values()) == [third]


def test_the_link_of_the_home_ends_the_unused_sessions_of_the_same_browser(world, admitted):
    def visit(digest, agent="Firefox"):
        hour_ago = world.now - 3_600_000_000
        more = {"agent": agent, "replaces_unused_since": hour_ago}
        return world.ask(replace(login(world, HOME, None, digest, **more), expires_at=10**18))

    old, other = visit(b"a"), visit(b"b", "Chrome")
    used = visit(b"c")
    world.pass_time(3_000)
    world.ask(NoteUse(uses=(), session_uses=((used.session_no, world.now), (99, world.now))))
    world.pass_time(3_000)
    opened = visit(b"d")

    assert set(admitted.sessions) == {one.session_no for one in (other, used, opened)}
    assert old.session_no not in admitted.sessions


def test_all_sessions_of_a_name_but_one_end_at_once(world, admitted):
    world.ask(account())
    own = [world.ask(login(world, digest=bytes([n]))) for n in range(3)]
    home = world.ask(login(world, HOME, None, b"f"))

    assert world.ask(EndOtherSessions(name="anna", keeps=own[1].session_no)) == 2
    assert set(admitted.sessions) == {own[1].session_no, home.session_no}
    assert world.ask(EndOtherSessions(name=HOME)) == 1
    assert set(admitted.sessions) == {own[1].session_no}


def test_a_name_is_taken_once(world):
    world.ask(account())
    world.ask(token())

    for name in ("anna", HOME):
        with pytest.raises(AccountExists):
            world.ask(account(name))
    with pytest.raises(TokenExists):
        world.ask(token(digest=b"u"))


def test_expired_tokens_free_their_names_and_then_their_rows(world, admitted):
    first = world.ask(token())
    world.ask(RevokeToken(token_no=first.token_no))
    again = world.ask(token(digest=b"u"))
    for n in range(TOKENS - 1):
        world.ask(token(f"t{n}", n.to_bytes(2, "big")))

    assert first.token_no not in admitted.tokens
    assert again.token_no in admitted.tokens
    assert len(admitted.tokens) == TOKENS


def test_unknown_accounts_and_tokens_are_reported(world):
    for request, error in (
        (SetAccount(name="x"), UnknownAccount),
        (DeleteAccount(name="x"), UnknownAccount),
        (EndSession(session_no=1), UnknownSession),
        (RevokeToken(token_no=1), UnknownToken),
    ):
        with pytest.raises(error):
            world.ask(request)


def test_only_tokens_that_a_user_has_created_are_revoked_with_the_user(world, admitted):
    def made(name, by):
        row = world.ask(
            CreateToken(
                name=name, digest=name.encode(), role=Role.ADMIN, scopes=None, created_by=by
            )
        )
        return row.token_no

    world.ask(account("anna", role=Role.ADMIN))
    first = made("ci", "anna")
    of_first = made("deploy", "token:ci")
    world.ask(RevokeToken(token_no=first))
    again = made("ci", "home")  # another token of that name
    of_again = made("other", "token:ci")

    revoked = world.ask(DeleteAccount(name="anna"))

    good = {number for number, row in admitted.tokens.items() if row.revoked_at is None}
    assert good == {again, of_again}
    assert (revoked, admitted.tokens[of_first].revoked_at) == (1, world.now)


def test_a_larger_role_gives_no_token_more_and_a_smaller_one_less(world, admitted):
    world.ask(account("anna", role=Role.ADMIN))
    number = world.ask(
        CreateToken(name="ci", digest=b"t", role=Role.OPERATOR, scopes=None, created_by="anna")
    ).token_no

    world.ask(SetAccount(name="anna", role=Role.VIEWER))
    assert admitted.tokens[number].role is Role.VIEWER
    world.ask(SetAccount(name="anna", role=Role.ADMIN))
    assert admitted.tokens[number].role is Role.VIEWER


def test_a_session_may_outlive_the_password_that_it_changes_itself(world, admitted):
    world.ask(account())
    own = world.ask(login(world))
    world.ask(login(world, digest=b"e"))

    with pytest.raises(WrongPassword):
        world.ask(SetAccount(name="anna", secret=b"new", seen=b"older", keeps=own.session_no))
    world.ask(SetAccount(name="anna", secret=b"new", seen=b"hash", keeps=own.session_no))

    assert list(admitted.sessions.values()) == [own]


def test_a_use_is_written_down_and_never_goes_back(world, admitted):
    number = world.ask(token()).token_no

    world.ask(NoteUse(uses=((number, 7), (number + 999, 8))))
    world.ask(NoteUse(uses=((number, 6),)))

    assert admitted.tokens[number].last_used_at == 7


def test_a_change_of_a_user_is_in_the_audit_of_the_same_batch(world):
    batch, _, _ = world.decide([RequestReceived(1, SetPool(name="db", slots=3), BY)])

    (row,) = batch.audit
    assert (len(batch.pools), row.previous) == (1, CHAIN_BEGINNING)
    assert row.noted == AuditEntry(
        actor="root",
        role="admin",
        action="pool.set",
        target="db",
        address="::1",
        after="3 slots",
    )


def test_actions_of_the_daemon_and_reads_are_not_audited(world):
    asked = [
        RequestReceived(1, SetPool(name="db", slots=3)),
        RequestReceived(2, ShowPools(), BY),
        RequestReceived(3, SetAccount(name="x"), BY),
    ]

    batch, _, _ = world.decide(asked)

    assert batch.audit == []


def test_lines_are_chained_over_turns_also_over_one_that_is_taken_back(world):
    rows = []
    for n in range(3):
        batch, _, tx = world.decide([RequestReceived(n, SetPool(name="db", slots=n + 1), BY)])
        rows += batch.audit
        tx.mark_durable()
        taken_back, _, gone = world.decide([RequestReceived(9, account("bob"), BY)])
        assert len(taken_back.audit) == 1
        world.take_back(gone)
        assert world.memory.accounts.accounts == {}

    assert check_chain(rows) == []
    assert len({row.audit_no for row in rows}) == 3


def lines(world, count):
    """Add entries to the audit, one per turn. Return their rows, and the last audit head."""
    rows, head = [], None
    for slots in range(1, count + 1):
        batch, _, tx = world.decide([RequestReceived(slots, SetPool(name="db", slots=slots), BY)])
        tx.mark_durable()
        rows += batch.audit
        head = batch.audit_head
    return rows, head


def ends(rows):
    return [row.audit_no for row in rows], rows[-1].digest if rows else CHAIN_BEGINNING


def test_the_end_of_the_audit_is_stored_with_its_entries_and_truncation_is_noticed(world):
    rows, head = lines(world, 3)

    assert check_head(head, *ends(rows)) == []
    assert "entries were deleted or forged" in check_head(head, *ends(rows[:2]))[0]
    assert check_head(head, *ends(rows[1:])) == ["the audit has 2 entries instead of 3"]
    assert check_head(head, *ends([])) == ["the audit has 0 entries instead of 3"]


def test_lines_that_are_old_go_and_each_counts_once(world):
    rows, _ = lines(world, 3)
    numbers = [row.audit_no for row in rows]
    heads = []
    for gone in (numbers[:1], numbers[:2], numbers):
        batch, _, tx = world.decide([RequestReceived(9, EraseOld(table="audit", numbers=gone))])
        tx.mark_durable()
        heads.append(batch.audit_head)

    assert [(head.written, head.erased) for head in heads] == [(3, 1), (3, 2), (3, 3)]
    assert check_head(heads[1], *ends(rows[2:])) == []
    assert check_head(heads[2], *ends([])) == []


def test_a_change_of_the_key_encrypts_the_end_of_the_audit_again(world, admitted):
    _, head = lines(world, 1)

    batch, _, tx = world.decide([RequestReceived(9, Reencrypt())])
    assert batch.audit_head == head
    tx.mark_durable()
    batch, _, _ = world.decide([RequestReceived(9, SetPool(name="db", slots=1))])
    assert batch.audit_head is None


def test_an_audit_whose_end_was_unknown_records_that_in_its_chain(world, admitted):
    before, _ = lines(world, 1)
    admitted.head = AuditHead(written=None, last=CHAIN_LOST)
    assert "the end of the audit is unknown" in check_head(admitted.head, *ends(before))[0]

    after, head = lines(world, 2)

    assert check_head(head, *ends(before + after)) == []
    assert check_chain(before + after) == [
        f"audit {after[0].audit_no} does not follow {before[0].audit_no}: entries are missing"
    ]


def test_an_audit_entry_from_elsewhere_is_stored_unchanged(world):
    said = AuditEntry(actor="", role="", action="POST", target="/x", address="::1", is_refused=True)

    batch, _, _ = world.decide([RequestReceived(1, Note(lines=(said, said)))])

    assert [row.noted for row in batch.audit] == [said, said]


def test_nothing_secret_stands_in_what_may_be_logged(world):
    for request in (account(), SetAccount(name="anna", secret=b"hash"), login(world), token()):
        assert "hash" not in repr(request)
        assert "b'" not in repr(request)
