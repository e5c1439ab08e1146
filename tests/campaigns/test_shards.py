"""A campaign that is divided among workers loses no part."""

from __future__ import annotations

import itertools

from tests.campaigns.shards import shards


def test_shards_together_have_each_number_once():
    parts = [itertools.islice(shard.numbers(), 5) for shard in shards(4)]

    assert sorted(itertools.chain(*parts)) == list(range(1, 21))


def test_shares_together_are_the_total():
    for total, of in itertools.product((1, 6, 70, 225), (1, 2, 5)):
        assert sum(shard.share(total) for shard in shards(of)) == total


def test_shards_have_names_of_their_own():
    assert [str(shard) for shard in shards(3)] == ["1of3", "2of3", "3of3"]
