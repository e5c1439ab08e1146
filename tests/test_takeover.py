"""A daemon claims a database only if no other daemon uses it, and exits once it is fenced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import anyio
import msgspec
import pytest
import structlog

from aioflow.clock import SystemClock
from aioflow.crypto import Vault, new_key
from aioflow.daemon import parts
from aioflow.errors import Fenced, HomeBusy, HomeUnusable, SettingsError, StoreUnavailable
from aioflow.model.rows import NodeFacts, NodeMark
from aioflow.settings import Settings
from aioflow.settings.home import make_home, own_identity
from aioflow.store import Owner, Store, open_store
from aioflow.store.postgres.store import PostgresStore
from aioflow.store.takeover import (
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    Beating,
    prepare_claim,
    wait_for_takeover,
)
from tests.store.samples import VAULT, first_batch

NOON = 1_700_000_000_000_000


class Clock(SystemClock):
    """A clock that advances only by sleeps. They take no real time, but may run planned calls."""

    def __init__(self) -> None:
        self.us = 0
        self.plans: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> int:
        return NOON + self.us

    def monotonic_us(self) -> int:
        return self.us

    async def sleep(self, seconds: float) -> None:
        self.us += round(seconds * 1e6)
        for at, happen in [plan for plan in self.plans if plan[0] * 1e6 <= self.us]:
            self.plans.remove((at, happen))
            happen()
        await anyio.lowlevel.checkpoint()


class Database:
    """A database whose holder is set by the test."""

    def __init__(self, holder: Owner | None) -> None:
        self.holder = holder
        self.is_away = False
        self.beats: list[int] = []

    async def find_owner(self) -> Owner | None:
        if self.is_away:
            raise StoreUnavailable("away")
        return self.holder

    async def heartbeat(self, at: int) -> None:
        if self.is_away:
            raise StoreUnavailable("away")
        if self.holder is None:
            raise Fenced("another has begun")
        self.beats.append(at)


MARK = NodeMark(2, 3, 9, 5)
THEIRS = Owner(home="theirs", mark=MARK, host="there", pid=7)


def moved(database: Database, **fields: Any) -> Callable[[], None]:
    def happen() -> None:
        mark = MARK._replace(**fields)
        database.holder = msgspec.structs.replace(THEIRS, mark=mark) if fields else None

    return happen


def place(database: Database, clock: Clock, home: str = "ours"):
    return wait_for_takeover(cast(Store, database), clock, home=home, where="db")


@pytest.mark.parametrize(("holder", "home"), [(None, "ours"), (THEIRS, "theirs")])
async def test_a_free_database_and_ones_own_are_claimed_at_once(holder, home):
    clock = Clock()

    assert await place(Database(holder), clock, home) is None
    assert clock.us == 0


async def test_a_daemon_that_does_not_move_for_a_lease_is_taken_over_from():
    clock = Clock()

    with structlog.testing.capture_logs() as lines:
        assert await place(Database(THEIRS), clock) == MARK
    assert LEASE_SECONDS <= clock.us / 1e6 < LEASE_SECONDS + 1
    assert lines[0]["event"].startswith("another daemon serves this database")
    assert [line["holder"] for line in lines] == ["process 7 on there"] * 2


@pytest.mark.parametrize("fields", [{"epoch": 4}, {"commit_no": 10}, {"heartbeat": 6}])
@pytest.mark.parametrize("at", [0.5, LEASE_SECONDS - 0.5])
async def test_a_daemon_that_moves_is_left_alone(fields, at):
    clock, database = Clock(), Database(THEIRS)
    clock.plans.append((at, moved(database, **fields)))

    with pytest.raises(HomeBusy, match=r"process 7 on there\) serves db.*--take-over"):
        await place(database, clock)


async def test_a_daemon_that_leaves_is_not_waited_for():
    clock, database = Clock(), Database(THEIRS)
    clock.plans.append((1.0, moved(database)))

    assert await place(database, clock) is None
    assert clock.us < 2e6


async def test_no_daemon_is_declared_dead_while_the_database_is_away():
    clock, database = Clock(), Database(THEIRS)
    clock.plans += [
        (LEASE_SECONDS - 1, lambda: setattr(database, "is_away", True)),
        (60.0, lambda: setattr(database, "is_away", False)),
        (60.0 + LEASE_SECONDS - 1, moved(database, commit_no=10)),
    ]

    with pytest.raises(HomeBusy):
        await place(database, clock)


async def test_an_idle_daemon_beats_and_one_that_commits_need_not():
    clock, database = Clock(), Database(THEIRS)
    beating = Beating(lambda: database.heartbeat(clock.now()), clock)
    for commit_no in range(20):
        await beating.heartbeat(commit_no)
        await clock.sleep(1.0)
    assert database.beats == []
    for _ in range(21):
        await beating.heartbeat(19)
        await clock.sleep(1.0)

    assert len(database.beats) >= 20 / HEARTBEAT_SECONDS - 1
    assert LEASE_SECONDS >= 3 * HEARTBEAT_SECONDS


def test_a_fenced_daemon_that_is_idle_finds_out_before_a_lease_expires():
    assert HEARTBEAT_SECONDS + parts._WATCH_STORE_SECONDS < LEASE_SECONDS <= 6.0


async def test_a_database_that_is_away_ends_no_daemon_and_another_claim_does():
    clock, database = Clock(), Database(THEIRS)
    beating = Beating(lambda: database.heartbeat(clock.now()), clock)
    database.is_away = True
    for _ in range(5):
        await beating.heartbeat(1)
        await clock.sleep(1.0)
    database.is_away, database.holder = False, None
    await clock.sleep(HEARTBEAT_SECONDS)

    with pytest.raises(Fenced):
        await beating.heartbeat(1)


# ── on PostgreSQL ───────────────────────────────────────────────────────────────────────


def facts(home: str, **more: Any) -> NodeFacts:
    return NodeFacts(started_at=NOON, version="1", pid=7, host="here", home=home, **more)


@pytest.mark.postgres
async def test_the_holder_of_a_database_is_known_until_it_leaves(migrated_postgres_url):
    async with open_store(migrated_postgres_url, VAULT) as first:
        claims = [await first.claim(facts("a"))]
        before = await first.find_owner()
        await first.heartbeat(NOON + 5)
        after = await first.find_owner()
        claims.append(await first.claim(facts("a")))
        await first.leave()
        left = await first.find_owner()
        claims.append(await first.claim(facts("a")))

    assert [claim.after_crash for claim in claims] == [False, True, False]
    assert (before.home, before.mark, before.pid, before.host) == ("a", (1, 1, 0, 0), 7, "here")
    assert after.mark == (1, 1, 0, 1)
    assert left is None


@pytest.mark.postgres
async def test_a_fenced_daemon_neither_beats_nor_sends_the_next_one_away(migrated_postgres_url):
    async with (
        open_store(migrated_postgres_url, VAULT) as first,
        open_store(migrated_postgres_url, VAULT) as second,
    ):
        await first.claim(facts("a"))
        await second.claim(facts("b", after=(await second.find_owner()).mark))
        with pytest.raises(Fenced):
            await first.heartbeat(NOON)
        await first.leave()

        assert (await second.find_owner()).home == "b"


@pytest.mark.postgres
async def test_one_of_two_concurrent_takeovers_succeeds(migrated_postgres_url):
    async with (
        open_store(migrated_postgres_url, VAULT) as first,
        open_store(migrated_postgres_url, VAULT) as second,
    ):
        await first.claim(facts("c"))
        seen = (await second.find_owner()).mark
        await first.claim(facts("a", after=seen))
        for after in (seen, None):
            with pytest.raises(HomeBusy):
                await second.claim(facts("b", after=after))

        assert (await second.find_owner()).home == "a"


@pytest.mark.postgres
async def test_a_daemon_that_commits_during_its_takeover_stays(migrated_postgres_url):
    async with (
        open_store(migrated_postgres_url, VAULT) as first,
        open_store(migrated_postgres_url, VAULT) as second,
    ):
        await first.claim(facts("a"))
        seen = (await second.find_owner()).mark
        await first.commit(first_batch())
        with pytest.raises(HomeBusy):
            await second.claim(facts("b", after=seen))
        await first.heartbeat(NOON)


@pytest.mark.postgres
async def test_a_daemon_that_stands_still_in_a_transaction_does_not_keep_the_next_one_away(
    migrated_postgres_url,
):
    async with (
        open_store(migrated_postgres_url, VAULT) as first,
        open_store(migrated_postgres_url, VAULT) as second,
    ):
        await first.claim(facts("a"))
        claims = []

        async def stand_still():
            async with cast(PostgresStore, first)._writing().transaction() as connection:
                await connection.execute("UPDATE node SET seen_at = 1")
                claims.append(await second.claim(facts("b", is_forced=True)))

        with pytest.raises(StoreUnavailable):  # the server has ended its session
            await stand_still()

        assert [claim.epoch for claim in claims] == [3]


# ── another home's key ──────────────────────────────────────────────────────────────────


def settings_of(folder, url: str) -> Settings:
    home = folder / "home"
    make_home(home)
    return Settings(home=home, dags=(), db=url, values={"db.url": url})


async def test_the_key_of_another_home_is_refused_and_sealed_values_stay(store_url, tmp_path):
    async with open_store(store_url, VAULT) as store:
        await store.claim()
        await store.commit(first_batch())
        assert await store.can_decrypt()
    stranger = Vault([new_key()])
    settings = settings_of(tmp_path, store_url)
    async with open_store(store_url, stranger) as store:
        with pytest.raises(SettingsError, match=r"home/key decrypts the values.*--take-over"):
            await prepare_claim(settings, store, take_over=False)
        about = await prepare_claim(settings, store, take_over=True)

    assert (about.home, about.after) == (own_identity(settings.home), None)


async def test_a_key_fits_a_database_in_which_nothing_is_sealed(store_url, tmp_path):
    async with open_store(store_url, Vault([new_key()])) as store:
        about = await prepare_claim(settings_of(tmp_path, store_url), store, take_over=False)

    assert about.after is None


def test_the_identity_of_a_home_is_drawn_once(tmp_path):
    for name in ("a", "b"):
        make_home(tmp_path / name)
    first, other = own_identity(tmp_path / "a"), own_identity(tmp_path / "b")

    assert first == own_identity(tmp_path / "a") != other
    assert (tmp_path / "a" / "identity").stat().st_mode & 0o077 == 0


def test_a_home_whose_identity_cannot_be_stored_is_refused_by_its_path(tmp_path):
    (tmp_path / "identity").mkdir()

    with pytest.raises(HomeUnusable, match=f"the file {tmp_path}/identity cannot be used"):
        own_identity(tmp_path)
