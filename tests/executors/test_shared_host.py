"""A shared host that keeps dying is restarted after growing delays, and logs little."""

from __future__ import annotations

from aioflow.executors.shared_host import _delay_seconds


def test_the_first_death_is_made_good_at_once_and_the_next_ones_later_and_later():
    delays = [_delay_seconds(deaths) for deaths in range(12)]

    assert delays[0] == 0.1
    assert delays == sorted(delays)
    assert min(delays[1:]) == 1.0, "each death is a line in the log"
    assert max(delays) == 30.0
