"""Decisions are stored with their votes, and found both while they are open and afterwards."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aioflow.errors import StoreError
from aioflow.model.decisions import DecisionEnd, DecisionVotes
from aioflow.store import tables
from tests.store.samples import DECISION, NOON, batch, first_batch


async def test_decision_is_found_by_its_number_its_run_and_its_task(store):
    await store.commit(first_batch())

    assert await store.find_decisions([7, 8]) == [DECISION]
    assert await store.find_decisions_of_task(1, 10) == [DECISION]
    for found in ({}, {"is_open": True}, {"dag_id": "d"}, {"run_no": 1}, {"before": 8}):
        if found != {"dag_id": "d"}:
            assert await store.list_decisions(**found) == [DECISION], found
    for other in ({"dag_id": "other"}, {"run_no": 2}, {"before": 7}, {"is_open": False}):
        assert await store.list_decisions(**other) == [], other
    assert await store.count_open_decisions() == 1


async def test_votes_and_the_end_change_its_row(store):
    await store.commit(first_batch())
    await store.commit(batch(2, decision_votes=[DecisionVotes(7, 0, b"\x91\x01", 1)]))
    end = DecisionEnd(7, "answered", b"\xc3", NOON + 3)
    votes = DecisionVotes(7, 1, b"\x92\x01\x02", 2)
    await store.commit(batch(3, decision_votes=[votes], decision_ends=[end]))

    expected = replace(
        DECISION,
        votes=b"\x92\x01\x02",
        vote_count=2,
        outcome="answered",
        answer=b"\xc3",
        ended_at=NOON + 3,
    )
    assert await store.find_decisions([7]) == [expected]
    assert await store.list_decisions(is_open=True) == []
    assert await store.list_decisions(is_open=False) == [expected]
    assert await store.list_decisions() == [expected]
    assert await store.count_open_decisions() == 0


async def test_votes_that_follow_other_votes_are_refused(store):
    await store.commit(first_batch())
    await store.commit(batch(2, decision_votes=[DecisionVotes(7, 0, b"\x91\x01", 1)]))

    with pytest.raises(StoreError):
        await store.commit(batch(3, decision_votes=[DecisionVotes(7, 0, b"\x91\x02", 1)]))

    (row,) = await store.find_decisions([7])
    assert row.votes == b"\x91\x01"


@pytest.mark.parametrize("outcome", ["withdrawn", "timeout", "default"])
async def test_end_of_a_decision_whose_row_is_missing_is_stored(store, outcome):
    await store.commit(first_batch())
    missing = DecisionEnd(8, outcome, None, NOON + 3)
    await store.commit(batch(2, decision_ends=[DecisionEnd(7, outcome, None, NOON + 3), missing]))

    assert [row.outcome for row in await store.list_decisions()] == [outcome]


async def test_answer_needs_an_open_decision_and_no_later_end_replaces_it(store):
    await store.commit(first_batch())
    with pytest.raises(StoreError):
        await store.commit(batch(2, decision_ends=[DecisionEnd(8, "answered", b"\xc3", NOON)]))
    await store.commit(batch(2, decision_ends=[DecisionEnd(7, "answered", b"\xc3", NOON)]))
    with pytest.raises(StoreError):
        await store.commit(batch(3, decision_ends=[DecisionEnd(7, "answered", b"\xc2", NOON)]))
    await store.commit(batch(3, decision_ends=[DecisionEnd(7, "withdrawn", None, NOON)]))

    (row,) = await store.find_decisions([7])
    assert (row.outcome, row.answer) == ("answered", b"\xc3")


async def test_question_and_answer_are_stored_encrypted_and_bound_to_their_row(store):
    await store.commit(first_batch())
    await store.commit(batch(2, decision_ends=[DecisionEnd(7, "answered", b"canary", NOON)]))

    [[stored]] = await store.scan([tables.decision])
    blobs = b"".join(value for value in stored if isinstance(value, bytes))
    assert b"Release" not in blobs
    assert b"canary" not in blobs
    (row,) = await store.find_decisions([7])
    assert (row.question, row.answer) == (DECISION.question, b"canary")
