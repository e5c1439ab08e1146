"""Row numbers: only leased numbers are used, and each only once."""

from __future__ import annotations

import pytest

from aioflow.core.state.id_block import IdBlock


def test_numbers_follow_each_other_to_the_end_of_the_block():
    block = IdBlock(10, 14)

    assert [block.take(), block.take(2), block.take()] == [10, 11, 13]
    assert block.left == 0


@pytest.mark.parametrize("count", [5, -1], ids=["more-than-are-left", "fewer-than-none"])
def test_unleased_numbers_are_not_used(count):
    block = IdBlock(10, 14)

    with pytest.raises(ValueError, match=str(count)):
        block.take(count)

    assert (block.first, block.left) == (10, 4)
