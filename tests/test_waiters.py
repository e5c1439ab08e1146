"""An index of waiters has the same content as plain sets, whatever is added or removed."""

from __future__ import annotations

import random
import tracemalloc
from collections import defaultdict
from functools import partial

import pytest

from aioflow.core.state.packed_maps import Digests, Pages, text_digest
from aioflow.queries.waits import FEW, Waiters


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("waiter_map", [Pages, partial(Digests, text_digest)])
def test_they_hold_what_sets_by_key_would(waiter_map, seed):
    dice = random.Random(seed)
    crowds, sets = Waiters(waiter_map()), defaultdict(set)
    keys = range(3) if waiter_map is Pages else ["a", "b", "c"]
    for _ in range(2_000):
        key, number = dice.choice(keys), dice.randrange(3 * FEW)
        if dice.random() < 0.5:
            crowds.add(key, number)
            sets[key].add(number)
        else:
            crowds.discard(key, number)
            sets[key].discard(number)
        assert sorted(crowds.at(key)) == sorted(sets[key])
        assert (key in crowds) == bool(sets[key])
    assert len(crowds) == sum(map(bool, sets.values()))


@pytest.mark.parametrize("seed", range(5))
def test_texts_lead_to_what_a_dict_would(seed):
    dice = random.Random(seed)
    texts, plain = Digests(text_digest), {}
    for step in range(6_000):
        text = str(dice.randrange(2_000))
        if dice.random() < (0.2 if step < 4_000 else 0.8):
            assert texts.take(text) == plain.pop(text, None)
        else:
            assert texts.get(text) == plain.get(text)
            plain[text] = dice.choice([step, (step, -1)])
            texts.put(text, plain[text])
        assert len(texts) == len(plain)
    assert {text: texts.get(text) for text in plain} == plain

    for text in list(plain):
        assert texts.take(text) == plain.pop(text)
    assert not len(texts)


def test_a_text_takes_less_room_than_itself():
    texts = Digests(text_digest)
    tracemalloc.start()
    try:
        for number in range(20_000):
            texts.put(f"=dag.20300101T000000Z.{number}", number)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken / len(texts) < 40
