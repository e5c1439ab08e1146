"""Triggers that start runs, and their events: encrypted, unique, and found again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from aioflow.crypto import Vault
from aioflow.errors import BatchRefused
from aioflow.model.triggers import (
    DagEventRow,
    DagTriggerChanges,
    DagTriggerRow,
    EventOutcome,
    HeldEvent,
    OutcomeChange,
)
from aioflow.store import open_store
from tests.journal_replay import compare_with_replay
from tests.store.loading import load
from tests.store.samples import NOON, batch, first_batch

TRIGGER = DagTriggerRow(
    trigger_no=70, dag_id="dag", class_path="m:Ticks", kwargs=b"\x81\xa5token\xa6s3cret", since=NOON
)
FIRST = DagEventRow(
    event_no=80, trigger_no=70, sequence=0, key="a", at=NOON, outcome=EventOutcome.RUN, run_no=1
)
SECOND = replace(FIRST, event_no=81, sequence=1, key=None, outcome=EventOutcome.HELD, run_no=None)
THIRD = replace(FIRST, event_no=82, sequence=2, key="b ☃", asset="orders", data=b"\x01")


def first(*events: DagEventRow, **fields: object):
    changes = DagTriggerChanges(triggers=[TRIGGER], events=list(events))
    return replace(first_batch(), of_dags=changes, **fields)


def then(number: int, **changes: Any):
    return batch(number, of_dags=DagTriggerChanges(**changes))


async def test_stored_triggers_are_read_at_the_next_start(store):
    held = HeldEvent(2, 82, "b", b"\x01", NOON, NOON + 5)
    moved = replace(TRIGGER, sequence=3, event=b"\x07", event_key="b", held=held, run_no=1)
    await store.commit(first(FIRST, SECOND, replace(THIRD, outcome=EventOutcome.HELD)))
    await store.commit(then(2, moved=[moved]))

    snapshot = await load(store)

    assert snapshot.dag_triggers == await store.list_dag_triggers() == [moved]
    assert snapshot.held_events == [SECOND, replace(THIRD, outcome=EventOutcome.HELD)]


async def test_a_trigger_made_of_other_fields_replaces_the_one_before(store):
    await store.commit(first(FIRST))
    other = replace(TRIGGER, class_path="m:Others", kwargs=b"\x80", sequence=1)
    await store.commit(then(2, triggers=[replace(other, since=NOON + 1), other]))

    assert await store.list_dag_triggers() == [other]


async def test_one_is_found_by_its_dag_and_by_its_number_without_reading_the_others(store):
    others = [
        replace(TRIGGER, trigger_no=number, dag_id=f"other-{number}") for number in (69, 71, 72)
    ]
    await store.commit(first())
    await store.commit(then(2, triggers=others))

    assert await store.find_dag_triggers([TRIGGER.dag_id]) == {TRIGGER.dag_id: TRIGGER}
    assert await store.find_dag_triggers(["other-71", "none", "other-69", "\0"]) == {
        "other-69": others[0],
        "other-71": others[1],
    }
    assert await store.find_dag_triggers([]) == {}
    assert await store.list_dag_triggers(after=69, upto=70) == [TRIGGER]
    assert await store.list_dag_triggers(after=70) == others[1:]
    assert await store.list_dag_triggers(after=69, limit=2) == [TRIGGER, others[1]]


async def test_a_dag_has_one_trigger(store):
    await store.commit(first())

    with pytest.raises(BatchRefused):
        await store.commit(then(2, triggers=[replace(TRIGGER, trigger_no=71)]))


@pytest.mark.parametrize(
    "again",
    [
        replace(THIRD, event_no=90, sequence=5, key="a"),
        replace(THIRD, event_no=90, sequence=0, key="c"),
        replace(THIRD, event_no=80, sequence=5, key="c"),
    ],
)
async def test_an_event_is_there_once_by_key_and_by_sequence(store, again):
    await store.commit(first(FIRST))

    with pytest.raises(BatchRefused):
        await store.commit(then(2, events=[again]))

    assert await store.find_event_keys({70: ["a", "c"]}) == {(70, "a")}


async def test_keys_are_found_however_many_are_asked_for(store):
    events = [replace(FIRST, event_no=100 + n, sequence=n, key=f"k{n}") for n in range(1_200)]
    await store.commit(first(*events))

    asked = [f"k{n}" for n in range(0, 2_400, 2)]

    assert await store.find_event_keys({70: asked}) == {(70, key) for key in asked[:600]}
    assert await store.find_event_keys({71: asked}) == set()
    assert await store.find_event_keys({70: ["no \0 text"], 71: []}) == set()


async def test_keys_of_many_triggers_are_found_with_one_statement_and_are_each_its_own(
    store, monkeypatch
):
    numbers = range(71, 91)
    rows = [replace(TRIGGER, trigger_no=n, dag_id=f"dag{n}") for n in numbers]
    events = [replace(FIRST, event_no=100 + n, trigger_no=n, key=f"k{n % 2}") for n in numbers]
    await store.commit(first())
    await store.commit(then(2, triggers=rows, events=events))
    fetches: list[int] = []
    fetch = store._fetch

    async def counted(questions: Sequence[Any]) -> Any:
        fetches.append(len(questions))
        return await fetch(questions)

    monkeypatch.setattr(store, "_fetch", counted)

    found = await store.find_event_keys({n: ["k0"] for n in numbers})

    assert found == {(n, "k0") for n in numbers if n % 2 == 0}
    assert fetches == [1]


async def test_consumed_pending_events_are_gone(store):
    await store.commit(first(SECOND))
    await store.commit(then(2, outcomes=[OutcomeChange(81, EventOutcome.RUN, 1)]))

    assert (await load(store)).held_events == []
    assert await compare_with_replay(store) == []
    with pytest.raises(BatchRefused):
        await store.commit(then(3, outcomes=[OutcomeChange(81, EventOutcome.SKIPPED)]))


async def test_the_journal_tells_of_all_of_it_and_of_no_field(store):
    await store.commit(first(FIRST, SECOND))
    moved = replace(TRIGGER, sequence=2, event=b"\x07")
    await store.commit(then(2, moved=[moved], outcomes=[OutcomeChange(81, EventOutcome.REPLACED)]))

    assert await compare_with_replay(store) == []
    for row in await store.read_journal():
        assert b"s3cret" not in row.body


async def test_fields_that_no_key_opens_are_not_there(store, store_url):
    await store.commit(first())
    async with open_store(store_url, Vault([bytes(32)]), exclusive=False) as stranger:
        assert await stranger.list_dag_triggers() == [replace(TRIGGER, kwargs=None)]


async def test_old_events_go_by_their_numbers(store):
    await store.commit(first(FIRST, SECOND))
    assert await store.list_numbers("dag_event", after=-1, limit=1) == [(80, NOON)]

    await store.commit(batch(2, erased={"dag_event": [(80,)]}))

    assert await store.list_numbers("dag_event", after=-1, limit=9) == [(81, NOON)]
