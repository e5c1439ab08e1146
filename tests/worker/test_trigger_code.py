"""Which changes of a file count as changes of its triggers."""

from __future__ import annotations

import pytest

from aioflow.protocol.commands import Parse
from aioflow.protocol.reports import Parsed

pytestmark = pytest.mark.process

FLOW = """
from helper import period, unused
import helper
import package.deep as deep
from aioflow import *
from aioflow_triggers.temporal import TimeDeltaTrigger

LIMIT = 5
TABLE = {}

def depth(): return LIMIT

def other(): return 1

class Mine(Trigger):
    async def run(self):
        yield TriggerEvent(depth())

class Derived(Mine):
    async def cleanup(self, reason): helper.period()

class Deep(Trigger):
    async def run(self):
        from package.deep import value
        yield TriggerEvent(value)

class Apart(Trigger):
    async def run(self):
        yield TriggerEvent(1)

    class Inner(Trigger):
        async def run(self): yield TriggerEvent(2)

def local():
    class Hidden(Trigger): ...
    return Hidden
local()

@task
def work(): return other()

@dag
def pipeline(): work()
"""
HELPER = """
from aioflow import Trigger, TriggerEvent
def period(): return 1
def unused(): return 2
class Beside(Trigger):
    async def run(self): yield TriggerEvent(period())
"""
MINE, DERIVED, DEEP = "flow:Mine", "flow:Derived", "flow:Deep"
APART, INNER, BESIDE = "flow:Apart", "flow:Apart.Inner", "helper:Beside"


@pytest.fixture
def digests(home, spawn):
    """Return a function that parses the file again, with part of its text replaced."""
    folder = home / "dags"

    def digests(file: str = "flow.py", old: str = "", new: str = "") -> dict[str, str]:
        sources = {"flow.py": FLOW, "helper.py": HELPER, "package/deep.py": "value = 1\n"}
        (folder / "package").mkdir(parents=True, exist_ok=True)
        for name, source in sources.items():
            text = source.replace(old, new) if name == file and old else source
            assert not old or name != file or text != source
            (folder / name).write_text(text)
        child = spawn("parser")
        child.send(Parse(str(folder), "flow.py"))
        return child.expect(Parsed).triggers

    return digests


def test_the_local_classes_are_named_by_their_paths(digests):
    assert digests().keys() == {MINE, DERIVED, DEEP, APART, INNER, BESIDE}


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        pytest.param("flow.py", "return other()", "return 5", set(), id="a-task"),
        pytest.param("flow.py", "LIMIT = 5", "\n\n# why\nLIMIT = 5", set(), id="a-comment"),
        pytest.param("flow.py", "other(): return 1", "other(): return 2", set(), id="not-used"),
        pytest.param("flow.py", "TriggerEvent(1)", "TriggerEvent(9)", {APART, INNER}, id="itself"),
        pytest.param("flow.py", "TriggerEvent(depth())", "TriggerEvent(0)", {MINE, DERIVED},
                     id="a-base"),
        pytest.param("flow.py", "return LIMIT", "return LIMIT + 1", {MINE, DERIVED},
                     id="a-function"),
        pytest.param("flow.py", "LIMIT = 5", "LIMIT = 6", {MINE, DERIVED}, id="at-two-removes"),
        pytest.param("flow.py", "TABLE = {}", "TABLE = {}\nLIMIT += 1", {MINE, DERIVED},
                     id="a-name-bound-twice"),
        pytest.param("flow.py", "class Apart", "Mine.n = 5\nclass Apart", {MINE, DERIVED},
                     id="set-from-outside"),
        pytest.param("helper.py", "period(): return 1", "period(): return 3", {DERIVED, BESIDE},
                     id="a-module-beside"),
        pytest.param("helper.py", "unused(): return 2", "unused(): return 3", {DERIVED},
                     id="a-module-is-taken-whole"),
        pytest.param("package/deep.py", "1", "2", {DEEP}, id="imported-inside-a-method"),
    ],
)  # fmt: skip
def test_a_change_is_one_of_those_that_stand_on_it(digests, file, old, new, changed):
    before, after = digests(), digests(file, old, new)

    assert {path for path in before if before[path] != after[path]} == changed


def test_a_file_that_a_trigger_reads_is_part_of_what_it_stands_on(digests, home):
    reads = "from pathlib import Path\nSQL = Path(__file__).with_name('q.sql')\nLIMIT = SQL"
    (home / "dags").mkdir(parents=True, exist_ok=True)
    query = home / "dags" / "q.sql"
    query.write_text("select 1")
    before = digests("flow.py", "LIMIT = 5", reads)
    query.write_text("select 2")
    after = digests("flow.py", "LIMIT = 5", reads)

    assert {name for name in before if before[name] != after[name]} == {MINE, DERIVED}
