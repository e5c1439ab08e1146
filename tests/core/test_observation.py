"""A standby declares the active node dead only if it watched the node and the node was silent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from aioflow.core.observation import Poll, Timing, Watch, is_silent, observed, pause_us
from aioflow.model.rows import NodeMark

MS = 1_000
TIMING = Timing(heartbeat_us=500 * MS, lease_us=3_000 * MS, quick_lease_us=1_500 * MS)
MARK = NodeMark(1, 7, 9, 0)


def poll(at_ms: int, mark: NodeMark = MARK, **more) -> Poll:
    values = {"heartbeat_us": 500 * MS, "has_sessions": True, "is_working": False}
    return Poll(at=at_ms * MS, mark=mark, **{"answered_at": at_ms * MS, **values, **more})


def dead_at(polls: Sequence[Poll | None], timing: Timing = TIMING) -> int | None:
    """Return when the node is declared dead, in milliseconds, or ``None`` if it is not."""
    watch: Watch | None = None
    for one in polls:
        watch = observed(watch, one, timing)
        if watch is not None and watch.is_dead:
            return watch.polled_at // MS
    return None


@dataclass
class Case:
    """Polls every half second. The polls that differ are given by their time."""

    dead: int | None
    until: int = 12_000
    changed: dict[int, dict] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    always: dict = field(default_factory=dict)

    def polls(self) -> list[Poll | None]:
        found: list[Poll | None] = []
        values: dict = {}
        for at in range(0, self.until + 1, 500):
            values |= self.changed.get(at, {})
            if at in self.failed:
                found.append(None)
            elif at not in self.missing:
                found.append(poll(at, **self.always | values))
        return found


LATER = MARK._replace(commit_no=10)
CASES = {
    "silence for a lease": Case(3_000),
    "a commit resets the silence": Case(5_500, changed={2_500: {"mark": LATER}}),
    "so does a heartbeat": Case(5_500, changed={2_500: {"mark": MARK._replace(heartbeat=1)}}),
    "and a new term": Case(5_500, changed={2_500: {"mark": MARK._replace(epoch=8)}}),
    "and a poll that failed": Case(6_000, failed=(2_500,)),
    "and a pause of the observer": Case(5_500, missing=tuple(range(1_500, 2_500, 500))),
    "one late poll is no pause": Case(3_000, missing=(1_500,)),
    "its sessions are gone": Case(1_500, changed={500: {"has_sessions": False}}),
    "they are gone late": Case(2_500, changed={2_000: {"has_sessions": False}}),
    "in one poll only": Case(
        3_000, changed={500: {"has_sessions": False}, 1_000: {"has_sessions": True}}
    ),
    "its sessions were never seen": Case(3_000, always={"has_sessions": False}),
    "the server works for it": Case(9_000, always={"is_working": True}),
    "the server has worked for it": Case(
        4_000, always={"is_working": True}, changed={3_600: {}, 4_000: {"is_working": False}}
    ),
    "it sends heartbeats rarely": Case(8_000, always={"heartbeat_us": 2_000 * MS}),
}


def test_a_node_is_dead_after_silence_that_was_watched():
    wrong = {}
    for name, case in CASES.items():
        always = {key: value for key, value in case.always.items() if key not in case.changed}
        found = dead_at(Case(**{**vars(case), "always": always}).polls())
        if found != case.dead:
            wrong[name] = found, case.dead

    assert wrong == {}


def test_the_next_poll_comes_in_half_a_heartbeat_or_when_the_node_may_be_dead():
    pauses, watch = {}, None
    for at in (0, 500, 1_000, 1_400):
        watch = observed(watch, poll(at, has_sessions=at == 0), TIMING)
        pauses[at] = pause_us(watch, at * MS, TIMING) // MS
    assert watch is not None
    assert pauses == {0: 250, 500: 250, 1_000: 250, 1_400: 100}
    assert pause_us(watch, 1_500 * MS, TIMING) == 250 * MS, "a claim that failed is not hurried"
    assert pause_us(None, 0, TIMING) == 250 * MS


def test_the_sessions_of_an_earlier_incarnation_are_no_sign():
    polls = [poll(0), poll(500, MARK._replace(epoch=8), has_sessions=False)]
    polls += [
        poll(at, MARK._replace(epoch=8), has_sessions=False) for at in range(1_000, 9_000, 500)
    ]

    assert dead_at(polls) == 3_500


@given(
    st.lists(
        st.tuples(
            st.integers(1, 1_000),
            st.sampled_from(["commit", "heartbeat", "silent", "fails"]),
            st.booleans(),
            st.booleans(),
        ),
        max_size=80,
    )
)
def test_no_node_is_dead_that_moved_or_was_not_watched_for_a_lease(steps):
    """A node is declared dead only after polls without a gap, all with the same counters."""
    at, mark, watch = 0, MARK, None
    watched_since: int | None = None
    last = None
    for pause, what, has_sessions, is_working in steps:
        at += pause
        if what == "fails":
            watch, watched_since = observed(watch, None, TIMING), None
            continue
        if what != "silent":
            name = "commit_no" if what == "commit" else "heartbeat"
            mark = mark._replace(**{name: getattr(mark, name) + 1})
        one = poll(at, mark, has_sessions=has_sessions, is_working=is_working)
        if watched_since is None or what != "silent" or at - last > 1_000:
            watched_since = at
        watch, last = observed(watch, one, TIMING), at
        assert watch is not None
        if watch.is_dead:
            silence = at - watched_since
            assert silence >= (9_000 if is_working else 1_500)
            assert silence >= 3_000 or not has_sessions


@given(st.integers(0, 2_000), st.integers(300, 900))
def test_a_silent_node_is_dead_within_a_lease_and_two_polls(start, pause):
    polls = [poll(start + n * pause) for n in range(20)]
    found = dead_at(polls)

    assert found is not None
    assert 3_000 <= found - start <= 3_000 + 2 * pause


def silent_from(polls: Sequence[Poll | None]) -> int | None:
    """Return when a silence is first reported, in milliseconds, or ``None`` if it never is."""
    watch: Watch | None = None
    for one in polls:
        watch = observed(watch, one, TIMING)
        if watch is not None and is_silent(watch, TIMING):
            return watch.polled_at // MS
    return None


def test_people_are_told_of_a_silence_before_the_node_is_declared_dead():
    gone = {1_000: {"has_sessions": False}}
    assert silent_from(Case(None, until=3_000).polls()) == 1_500
    assert silent_from(Case(None, until=3_000, changed=gone).polls()) == 1_000
    beats = {at: {"mark": MARK._replace(heartbeat=at)} for at in range(0, 12_000, 1_000)}
    assert silent_from(Case(None, changed=beats).polls()) is None
    never = Case(None, until=1_000, always={"has_sessions": False})
    assert silent_from(never.polls()) is None, "behind a pooler, nothing is known of sessions"


def test_silence_counts_from_the_answer_of_a_poll():
    """The commit that a slow poll sees may have been made right before the answer of the poll."""
    slow = poll(0, answered_at=990 * MS)

    assert dead_at([slow, *(poll(at) for at in range(990, 9_000, 500))]) == 3_990
