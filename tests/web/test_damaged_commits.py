"""A journal beyond the last commit prevents the start, and the error states how to repair it."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from aioflow.errors import StrangeDatabase
from aioflow.store.ui_protocol import CommitsAbove
from tests.journal_replay import compare_with_replay
from tests.web.damaging import make_home
from tests.web.node import node

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

_WHOLE, _GAP = False, True


@pytest.mark.parametrize(
    ("damage", "damaged", "mend", "has_gap"),
    [
        pytest.param(
            "UPDATE node SET commit_no = :n - 3",
            "node, row node_no=1",
            "UPDATE node SET commit_no = {n} WHERE node_no = 1",
            _WHOLE,
            id="the-node-fell-back",
        ),
        pytest.param(
            "UPDATE node SET commit_no = 0",
            "node, row node_no=1",
            "UPDATE node SET commit_no = {n} WHERE node_no = 1",
            _WHOLE,
            id="to-the-beginning",
        ),
        pytest.param(
            "UPDATE journal SET commit_no = :n + 1 WHERE commit_no = :n",
            "journal, row commit_no={n+1}",
            "UPDATE journal SET commit_no = {n} WHERE node_no = 1 AND commit_no = {n+1}",
            _WHOLE,
            id="the-last-row-is-one-up",
        ),
        pytest.param(
            "UPDATE journal SET commit_no = :n + 4611686018427387904 WHERE commit_no = :n",
            "journal, row commit_no={n+4611686018427387904}",
            "UPDATE journal SET commit_no = {n} WHERE node_no = 1 AND commit_no = "
            "{n+4611686018427387904}",
            _WHOLE,
            id="the-last-row-is-far-up",
        ),
        pytest.param(
            "UPDATE journal SET commit_no = :n + 7 WHERE commit_no = :n - 2",
            "journal, row commit_no={n+7}",
            "DELETE FROM journal WHERE node_no = 1 AND commit_no > {n}",
            _GAP,
            id="another-row-is-up",
        ),
    ],
)
async def test_it_is_said_which_row_is_damaged_and_what_mends_it(
    tmp_path, whole_home, damage, damaged, mend, has_gap
):
    home = tmp_path / "home"
    shutil.copytree(whole_home, home)
    with closing(sqlite3.connect(home / "aioflow.db")) as raw, raw:
        (last,) = raw.execute("SELECT commit_no FROM node").fetchone()
        assert raw.execute(damage, {"n": last}).rowcount == 1

    with pytest.RaisesGroup(StrangeDatabase, flatten_subgroups=True) as refused:
        async with node(home):
            pass
    said = str(refused.value.exceptions[0])
    assert said.startswith(f"damaged: table {_with(damaged, last)}")
    _, _, told = said.partition("repair it: ")
    assert told == _with(mend, last)

    with closing(sqlite3.connect(home / "aioflow.db")) as raw, raw:
        assert raw.execute(told).rowcount == 1
    async with node(home) as n:
        await n.api.emit("a turn of its own", key=None, data=None, request="turn")
        differences = await compare_with_replay(n.store)
    assert any("continues with" in one for one in differences) is has_gap
    assert has_gap or differences == []


def _with(text: str, last: int) -> str:
    return re.sub(r"{n\+?(\d*)}", lambda part: str(last + int(part[1] or 0)), text)


@pytest.fixture(scope="module")
def whole_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home with runs of several kinds. It is copied for each case."""
    home = tmp_path_factory.mktemp("commits")
    anyio.run(make_home, home)
    return home


def _above(number: int, journal: Sequence[int]) -> CommitsAbove:
    above = [one for one in journal if one > number]
    until = [one for one in journal if one <= number]
    return CommitsAbove(number, len(above), min(above), max(above), max(until, default=None))


async def test_wherever_one_number_is_damaged_that_one_is_named():
    """Try every shortened journal with a single wrong number, in it or in the node's row."""
    wrong = []
    for first in range(1, 6):
        for last in range(first + 1, 9):
            whole = list(range(first, last + 1))
            for number in range(last):
                found = _above(number, whole)
                if "table node" not in str(found):
                    wrong.append((number, whole))
            for moved in whole:
                for up in (1, 2, 5):
                    if up == 1 and moved != last:
                        continue  # as if the node fell back by one; to count that up loses nothing
                    changed = sorted({*whole} - {moved} | {last + up})
                    found = _above(last, changed)
                    if "table journal" not in str(found):
                        wrong.append((last, changed))
    assert not wrong
