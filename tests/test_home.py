"""The home page shows the pools under the most pressure first."""

from __future__ import annotations

import pytest

from aioflow.api.page.home import by_pressure
from aioflow.api.page.schemas import PoolView


def pool(name: str, slots: int, used: int | None, queued: int | None) -> PoolView:
    return PoolView(name=name, slots=slots, include_deferred=False, used=used, queued=queued)


@pytest.mark.parametrize(
    ("pools", "order"),
    [
        ([pool("a", 4, 0, 0), pool("b", 4, 3, 0)], "ba"),
        ([pool("a", 8, 8, 0), pool("b", 4, 4, 1)], "ba"),
        ([pool("a", 100, 100, 50), pool("b", 2, 2, 4)], "ba"),
        ([pool("b", 4, 4, 8), pool("a", 2, 2, 4)], "ab"),
        ([pool("b", 4, None, None), pool("a", 4, None, None)], "ab"),
        ([], ""),
    ],
    ids=["fuller", "queue-before-full", "queue-for-its-size", "same-by-name", "no-daemon", "none"],
)
def test_pools_come_by_the_queue_for_their_size(pools, order):
    assert "".join(one.name for one in by_pressure(pools)) == order
