"""Changed dicts are detected without reading their content."""

from __future__ import annotations

import sys

import pytest

from aioflow.worker.code.shared_state import DictCounts


@pytest.mark.parametrize("has_counts", [True, False], ids=["counted", "compared"])
def test_dicts_that_changed_are_among_those_named(monkeypatch, has_counts):
    monkeypatch.setattr(sys.modules[DictCounts.__module__], "_HAS_COUNTS", has_counts)

    class Owner:
        before = 1

    plain, same = {"a": 1}, {"a": 1}
    counts = DictCounts([plain, vars(Owner), same])
    plain["a"] = 2
    Owner.before = 2

    assert {0, 1} <= set(counts.changed())


def test_unchanged_dicts_are_not_reported_if_changes_are_counted():
    scopes = [{"a": number} for number in range(3)]
    counts = DictCounts(scopes)
    scopes[1]["a"] = 7

    found = list(counts.changed())

    assert found == [1] or sys.version_info >= (3, 13)
