"""Parallel workers take groups first, then costly cases, then files: each of them as a whole."""

from __future__ import annotations

import random
from collections import Counter
from itertools import groupby

import pytest

from tests.cpu_budget import exceptions
from tests.distribution import rank, unit_of

COSTLY = sorted(exceptions(), key=lambda case: -exceptions()[case]["seconds"])
FILE = "tests/core/test_ids.py"


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        (f"{FILE}::test_one", FILE),
        (f"{FILE}::TestAll::test_one[a::b]", FILE),
        (f"{FILE}::test_one[who@where]", FILE),
        (f"{FILE}::test_one[who@where]@shared", "shared"),
        (f"{FILE}::test_one@shared", "shared"),
        (COSTLY[0], COSTLY[0]),
        (f"{COSTLY[0]}[sqlite]", f"{COSTLY[0]}[sqlite]"),
        (f"{COSTLY[0]}@shared", "shared"),
    ],
)
def test_a_worker_takes_a_group_a_costly_case_or_a_file(nodeid, unit):
    assert unit_of(nodeid) == unit


def test_what_takes_longest_comes_first_and_each_unit_as_a_whole():
    cases = [f"{folder}::test_{n}" for folder in "abc" for n in range(3)]
    cases += ["c::test_3", *(f"a::test_{n}@shared" for n in range(9)), COSTLY[-1], COSTLY[0]]
    random.shuffle(cases)
    counts = Counter(map(unit_of, cases))

    ordered = sorted(
        cases, key=lambda case: rank(case, counts[unit_of(case)], unit_of(case) == "b")
    )

    units = [unit for unit, _ in groupby(ordered, unit_of)]
    assert units == ["shared", COSTLY[0], COSTLY[-1], "b", "c", "a"]
