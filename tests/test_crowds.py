"""Crowds hold what sets would, whatever comes and goes."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from aioflow.answers.crowds import FEW, Crowds, Texts
from aioflow.core.pages import Pages


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shelf", [Pages, Texts])
def test_they_hold_what_sets_by_key_would(shelf, seed):
    dice = random.Random(seed)
    crowds, sets = Crowds(shelf()), defaultdict(set)
    keys = range(3) if shelf is Pages else ["a", "b", "c"]
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
