"""A standby takes over from a node that has left or is dead, and from no other node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import anyio
import pytest
from msgspec.structs import replace

from aioflow.core.observation import Timing
from aioflow.daemon.standby import REJOIN_SECONDS, REJOINS, Rejoins, Standby
from aioflow.errors import Fenced, HomeBusy, SettingsError, StoreUnavailable
from aioflow.model.nodes import ActiveState
from aioflow.model.rows import NodeFacts, NodeMark
from aioflow.settings import Settings
from aioflow.store import open_store
from aioflow.store.membership import ActiveNode, Joined, Membership
from aioflow.store.takeover import retried
from tests.store.samples import NOON, VAULT, batch, first_batch
from tests.test_takeover import Clock

TIMING = Timing(heartbeat_us=500_000, lease_us=3_000_000, quick_lease_us=1_500_000)
THEIRS = ActiveNode(
    mark=NodeMark(1, 3, 9, 5),
    home="theirs",
    name="a",
    heartbeat_ms=500,
    has_sessions=True,
    is_working=False,
)
ABOUT = NodeFacts(started_at=NOON, version="1", pid=7, host="here", home="ours", name="b")


class Database:
    """A database with an active node that sends heartbeats unless it is silent."""

    def __init__(self, active: ActiveNode | None) -> None:
        self.active = active
        self.is_silent = self.is_away = self.is_locked = False
        self.is_stuck_after_the_claim = False
        self.claims: list[NodeFacts] = []
        self.ended: list[NodeMark] = []
        self.heartbeats = 0
        self.drained_beside_another = False
        self.refusals: list[Exception] = []

    async def join(self, about: NodeFacts) -> Joined:
        return Joined(node_no=2, epoch=4)

    async def heartbeat(self, at: int) -> None:
        self.heartbeats += 1

    async def find_active(self) -> ActiveNode | None:
        if self.is_away:
            raise StoreUnavailable("away")
        if self.active is not None and not self.is_silent:
            mark = self.active.mark
            self.active = replace(self.active, mark=mark._replace(heartbeat=mark.heartbeat + 1))
        return self.active

    async def is_drained(self) -> bool:
        return self.drained_beside_another

    async def has_standby(self) -> bool:
        return self.drained_beside_another

    async def end_idle_session(self, mark: NodeMark) -> bool:
        self.ended.append(mark)
        return True

    async def end_own_session(self) -> None:
        if self.active is not None and self.active.home == ABOUT.home:
            self.active = replace(self.active, has_sessions=False)

    async def claim(self, about: NodeFacts) -> None:
        self.claims.append(about)
        if self.is_stuck_after_the_claim:
            self.is_stuck_after_the_claim = False
            self.active = replace(THEIRS, home=ABOUT.home, mark=NodeMark(2, 9, 0, 0))
            raise StoreUnavailable("the claim was made, and its check was not")
        if self.refusals:
            raise self.refusals.pop(0)


async def stand_by(database: Database, clock: Clock) -> None:
    membership = cast(Membership, database)
    await Standby(membership, clock, TIMING, ABOUT, "db").wait(database.claim)


def at(clock: Clock, seconds: float, happen: Callable[[], Any]) -> None:
    clock.plans.append((seconds, happen))


async def test_a_database_without_an_active_node_is_claimed_at_once():
    clock, database = Clock(), Database(None)
    await stand_by(database, clock)

    assert (clock.us, database.claims) == (0, [ABOUT])


async def test_the_earlier_daemon_of_this_home_is_not_waited_for():
    clock = Clock()
    database = Database(replace(THEIRS, home="ours", has_sessions=False))
    await stand_by(database, clock)

    assert (clock.us, database.claims) == (0, [ABOUT])


async def test_a_copy_of_this_home_that_is_active_is_not_taken_over_from():
    database = Database(replace(THEIRS, home="ours"))
    with pytest.raises(HomeBusy, match="copy of this home"):
        await stand_by(database, Clock())

    assert database.claims == []


async def test_a_silent_node_is_taken_over_from_after_a_lease_as_it_was_observed():
    clock, database = Clock(), Database(THEIRS)
    at(clock, 60.0, lambda: setattr(database, "is_silent", True))
    await stand_by(database, clock)

    assert 62 <= clock.us / 1e6 <= 64
    (claim,) = database.claims
    assert database.active is not None
    assert (claim.after, claim.joined_epoch) == (database.active.mark, 4)
    assert database.heartbeats >= 120


async def test_a_standby_sends_its_first_heartbeat_when_it_answers_requests():
    clock, database = Clock(), Database(THEIRS)
    at(clock, 9.9, lambda: setattr(database, "active", None))
    membership = cast(Membership, database)
    standby = Standby(
        membership, clock, TIMING, ABOUT, "db", is_warm=lambda: 5_000_000 <= clock.us < 6_000_000
    )
    assert standby.is_joining
    await standby.wait(database.claim)

    assert not standby.is_joining
    assert database.heartbeats == 10


async def test_a_standby_tells_what_it_sees_of_the_active_node():
    clock, database, seen, commits = Clock(), Database(THEIRS), [], []
    standby = Standby(cast(Membership, database), clock, TIMING, ABOUT, "db")

    def look() -> None:
        seen.append((standby.active_state, standby.silent_seconds))
        commits.append(standby.active_commit)

    at(clock, 5.0, look)
    at(clock, 10.0, lambda: setattr(database, "is_silent", True))
    at(clock, 12.0, look)
    at(clock, 12.1, lambda: setattr(database, "is_away", True))
    at(clock, 15.0, look)
    at(clock, 15.1, lambda: setattr(database, "is_away", False))
    at(clock, 15.2, lambda: setattr(database, "active", None))
    await standby.wait(database.claim)

    assert [state for state, _ in seen] == [
        ActiveState.ALIVE,
        ActiveState.SILENT,
        ActiveState.UNKNOWN,
    ]
    assert seen[0][1] <= 0.5
    assert 2.0 <= seen[1][1] <= 3.0
    assert commits[0] is not None
    assert (commits[0].epoch, commits[0].commit_no) == (THEIRS.mark.epoch, THEIRS.mark.commit_no)
    assert [commit is None for commit in commits] == [False, False, True]


async def test_a_node_that_has_left_is_not_waited_for():
    clock, database = Clock(), Database(THEIRS)
    at(clock, 60.0, lambda: setattr(database, "active", None))
    await stand_by(database, clock)

    assert clock.us / 1e6 <= 60.5
    assert [claim.after for claim in database.claims] == [None]


async def test_a_drained_standby_leaves_the_takeover_to_another_while_there_is_one():
    clock, database = Clock(), Database(THEIRS)
    database.drained_beside_another = True
    at(clock, 10.0, lambda: setattr(database, "active", None))
    at(clock, 60.0, lambda: setattr(database, "drained_beside_another", False))
    await stand_by(database, clock)

    assert 60 <= clock.us / 1e6 <= 61
    assert len(database.claims) == 1


async def test_a_daemon_that_expects_no_standby_may_be_silent_for_longer():
    clock, database = Clock(), Database(replace(THEIRS, heartbeat_ms=0))
    database.is_silent = True
    await stand_by(database, clock)

    assert clock.us / 1e6 >= 8


async def test_people_may_order_a_takeover_from_a_living_node():
    clock, database = Clock(), Database(THEIRS)
    forced = replace(ABOUT, is_forced=True)
    await Standby(cast(Membership, database), clock, TIMING, forced, "db").wait(database.claim)

    assert (clock.us, [claim.is_forced for claim in database.claims]) == (0, [True])


async def test_a_database_that_is_away_makes_nobody_dead():
    clock, database = Clock(), Database(THEIRS)
    database.is_silent = True
    at(clock, 2.0, lambda: setattr(database, "is_away", True))
    at(clock, 60.0, lambda: setattr(database, "is_away", False))
    at(clock, 62.0, lambda: setattr(database, "is_silent", False))
    at(clock, 90.0, lambda: setattr(database, "active", None))
    await stand_by(database, clock)

    assert [claim.after for claim in database.claims] == [None]


async def test_a_takeover_that_is_stuck_between_the_claim_and_its_check_is_continued():
    """The session of the standby must not be mistaken for another daemon of the same home."""
    clock, database = Clock(), Database(THEIRS)
    database.is_silent = database.is_stuck_after_the_claim = True
    await stand_by(database, clock)

    assert [claim.after for claim in database.claims] == [THEIRS.mark, None]
    assert clock.us / 1e6 <= 4


async def test_a_standby_that_was_too_slow_stands_by_for_the_winner():
    clock, database = Clock(), Database(THEIRS)
    database.is_silent = True
    database.refusals = [HomeBusy("db", "c")]
    at(clock, 3.5, lambda: setattr(database, "active", replace(THEIRS, mark=NodeMark(3, 9, 0, 0))))
    await stand_by(database, clock)

    assert [claim.after for claim in database.claims] == [THEIRS.mark, NodeMark(3, 9, 0, 0)]
    assert clock.us / 1e6 >= 6


async def test_a_dead_node_whose_row_is_locked_loses_its_session():
    clock, database = Clock(), Database(THEIRS)
    database.is_silent = True
    database.refusals = [StoreUnavailable("lock timeout")]
    await stand_by(database, clock)

    assert database.ended == [THEIRS.mark]
    assert len(database.claims) == 2
    assert clock.us / 1e6 <= 4


async def test_a_node_that_joins_outlasts_an_outage_of_the_database():
    clock, asked = Clock(), []

    async def ask() -> None:
        asked.append(clock.us)
        if clock.us < 20_000_000:
            raise StoreUnavailable("away")

    await retried(ask, clock, 300.0)
    assert clock.us == 20_000_000
    asked.clear()
    clock.us = -400_000_000
    with pytest.raises(StoreUnavailable):
        await retried(ask, clock, 300.0)


def test_a_node_that_is_fenced_again_and_again_gives_up():
    clock = Clock()
    rejoins = Rejoins(clock)
    first = [rejoins.may_rejoin() for _ in range(REJOINS + 1)]
    clock.us += (REJOIN_SECONDS + 1) * 1_000_000

    assert (first, rejoins.may_rejoin()) == ([True] * REJOINS + [False], True)


# ── on PostgreSQL ───────────────────────────────────────────────────────────────────────


def facts(home: str, **more: Any) -> NodeFacts:
    return replace(ABOUT, home=home, name=home, heartbeat_ms=500, **more)


def membership_of(store: Any) -> Membership:
    assert store.membership is not None
    return cast(Membership, store.membership)


@pytest.mark.postgres
async def test_a_standby_sees_commits_heartbeats_and_sessions_and_takes_over(migrated_postgres_url):
    async with (
        open_store(migrated_postgres_url, VAULT, lease_seconds=3) as first,
        open_store(migrated_postgres_url, VAULT, lease_seconds=3) as second,
    ):
        watching = membership_of(second)
        await watching.check_connection()
        assert await watching.find_active() is None
        await first.claim(facts("a"))
        joined = await watching.join(facts("b"))
        seen = [await watching.find_active()]
        await first.commit(first_batch())
        seen.append(await watching.find_active())
        await first.heartbeat(NOON)
        seen.append(await watching.find_active())
        await watching.heartbeat(NOON)
        marks = [one.mark for one in seen if one is not None]
        claim = await second.claim(facts("b", after=marks[-1], joined_epoch=joined.epoch))
        with pytest.raises(Fenced):
            await first.commit(batch(2))
        with pytest.raises(Fenced):
            await first.heartbeat(NOON)
        await second.commit(batch(1))

    assert marks == [(1, 1, 0, 0), (1, 1, 1, 0), (1, 1, 1, 1)]
    assert all(one is not None and one.has_sessions for one in seen)
    assert (joined.node_no, claim.node_no, claim.after_crash) == (2, 2, True)


@pytest.mark.postgres
async def test_a_standby_that_was_replaced_can_neither_stand_by_nor_take_over(
    migrated_postgres_url,
):
    async with (
        open_store(migrated_postgres_url, VAULT, lease_seconds=3) as first,
        open_store(migrated_postgres_url, VAULT, lease_seconds=3) as copied,
    ):
        joined = await membership_of(first).join(facts("b"))
        await membership_of(copied).join(facts("b"))
        with pytest.raises(Fenced):
            await membership_of(first).heartbeat(NOON)
        with pytest.raises(Fenced):
            await first.claim(facts("b", joined_epoch=joined.epoch))


@pytest.mark.postgres
async def test_a_session_that_is_idle_in_a_transaction_is_ended(migrated_postgres_url):
    async with (
        open_store(migrated_postgres_url, VAULT, lease_seconds=30) as first,
        open_store(migrated_postgres_url, VAULT, lease_seconds=30) as second,
    ):
        await first.claim(facts("a"))
        watching = membership_of(second)
        joined = await watching.join(facts("b"))
        active = await watching.find_active()
        assert active is not None
        about = facts("b", after=active.mark, joined_epoch=joined.epoch)
        claims = []

        async def stand_still() -> None:
            async with cast(Any, first)._writing().transaction() as connection:
                await connection.execute("SELECT 1 FROM node WHERE node_no = 1 FOR UPDATE")
                with pytest.raises(StoreUnavailable, match="lock timeout"):
                    await second.claim(about)
                assert await watching.end_idle_session(active.mark)
                claims.append(await second.claim(about))

        with pytest.raises(StoreUnavailable):
            await stand_still()

    assert [claim.node_no for claim in claims] == [2]


# ── settings ────────────────────────────────────────────────────────────────────────────

WORKING: dict[str, object] = {
    "ha.enabled": True,
    "db.url": "postgresql://db/flows",
    "results.url": "s3://flows/results",
    "log.url": "file:///shared/logs",
}


def test_settings_with_which_a_standby_could_not_take_over_are_refused(tmp_path):
    assert Settings.read(tmp_path, WORKING).ha_enabled
    refused: dict[str, dict[str, object]] = {
        "needs PostgreSQL": {"db.url": f"sqlite:///{tmp_path}/aioflow.db"},
        "needs db.durability": {"db.durability": "normal"},
        "needs results.url": {"results.url": ""},
        "needs log.url": {"log.url": ""},
        "less than 4 heartbeats": {"ha.heartbeat_seconds": 1.0},
    }
    for message, changed in refused.items():
        with pytest.raises(SettingsError, match=message):
            Settings.read(tmp_path, WORKING | changed)


async def test_a_write_that_is_acknowledged_late_is_confirmed_before_it_has_effects():
    assert await late_commits(1.0) == 0
    assert await late_commits(2.5) == 1


async def test_so_is_one_after_which_a_node_without_sessions_would_be_dead():
    assert TIMING.quick_lease_us < 1_600_000 < 0.7 * TIMING.lease_us
    assert await late_commits(1.6) == 1


async def late_commits(seconds: float) -> int:
    """Return how often an engine asks whether it is still active if a commit takes this long."""
    from aioflow.core.scheduling.slots import Slots
    from aioflow.engine.loop import Engine

    clock, asked = Clock(), []

    class Slow:
        async def heartbeat(self, at: int) -> None:
            asked.append(at)

    slots = Slots(cpu_slots=1, async_slots=1)
    engine = Engine(cast(Any, Slow()), slots, clock=clock, random=lambda: 0.0, timing=TIMING)
    began = clock.monotonic_us()
    clock.us += round(seconds * 1e6)
    await engine._confirm(began)
    assert not engine.is_cut_off
    await anyio.lowlevel.checkpoint()
    return len(asked)
