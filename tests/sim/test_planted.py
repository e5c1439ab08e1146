"""Planted bugs fit the tree, are planted in every process, and are caught."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from dataclasses import replace
from textwrap import dedent

import pytest

from tests.sim.judge import SECONDS, Ended, Finding, Judge, Unusable, read_play
from tests.sim.planted import BUGS, THEMES
from tests.sim.planted.bug import PlantedBug, Seed
from tests.sim.planted.edit import DoesNotApply, Edit
from tests.sim.planted.plant import check, environment

# ── the bugs and the tree ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.__name__.rpartition(".")[2])
def test_every_planted_bug_fits_the_tree(theme):
    stale = {}
    for bug in theme.BUGS:
        try:
            check(bug)
        except DoesNotApply as exc:
            stale[bug.name] = str(exc)

    assert not stale, "bring them up to date with the tree"


def test_no_two_planted_bugs_have_one_name():
    names = [bug.name for theme in THEMES for bug in theme.BUGS]

    assert sorted(names) == sorted(BUGS)
    assert len(BUGS) == 112


@pytest.mark.nightly
@pytest.mark.timeout(8 * SECONDS)
@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_planted_bug_is_caught(bug):
    judgement = asyncio.run(Judge().judge(bug))

    print(*judgement.findings, sep="\n")
    assert judgement.is_caught


def test_a_bug_that_does_not_fit_is_not_judged():
    with pytest.raises(DoesNotApply, match="defined 0 times"):
        asyncio.run(Judge().judge(planted(Edit("aioflow.errors", "no_such_name", "True"))))


@pytest.mark.process
def test_a_catcher_that_fails_without_the_bug_proves_nothing():
    no_such_level = Seed(9, 0)
    bug = replace(BUGS["retry_reported_as_failure"], seen_by=None, seed=no_such_level)

    with pytest.raises(Unusable, match="fails without any bug"):
        asyncio.run(Judge().judge(bug))


BROKEN = "seed 7: 12 turns, 0a1b, I6 events: twice\nat 10d15c5, 12 turns"


@pytest.mark.parametrize(
    ("ended", "found"),
    [
        pytest.param(
            Ended(1, BROKEN, 2.5),
            Finding("simulator", True, 2.5, Seed(2, 7), "I6 events: twice"),
            id="an invariant broke",
        ),
        pytest.param(Ended(0, "well", 9.0), Finding("simulator", False, 9.0), id="it holds"),
        pytest.param(Ended(None, "", 60.0), Finding("simulator", False, 60.0), id="never ended"),
    ],
)
def test_the_simulator_notices_a_bug_by_an_invariant_alone(ended, found):
    assert read_play(planted(), 2, ended) == found


def test_a_simulator_that_cannot_be_played_notices_nothing():
    with pytest.raises(Unusable, match="cannot be played"):
        read_play(planted(), 2, Ended(1, "Traceback: ImportError", 1.0))


@pytest.mark.parametrize(
    ("raised", "proves"),
    [
        ("AttributeError(\"'Engine' object has no attribute 'act'\")", False),
        ("AttributeError(\"'NoneType' object has no attribute 'run'\")", True),
        ("NameError(\"name 'resume' is not defined\")", False),
        ("KeyError(7)", True),
    ],
)
def test_an_edit_that_names_what_is_gone_proves_nothing(raised, proves):
    ended = Ended(1, f"seed 7: raised: {raised}", 1.0)

    if proves:
        assert read_play(planted(), 1, ended).is_caught
    else:
        with pytest.raises(Unusable, match="itself fails"):
            read_play(planted(), 1, ended)


# ── where an edit fits ────────────────────────────────────────────────────────────────────────────

MODULE = '''
LIMITS = (low, high)


class Pool:
    def take(self, count):
        """Take some."""
        if count > self.free or count < 0:
            raise Full(count)
        self.free -= count
        log(count)
        log(count)

    def give(self, count):
        self.free += count
        log(count)


def route(order):
    match order:
        case "take":
            return 1
        case "give":
            return 2
'''


def edited(edit, source=MODULE):
    """Return a module's source after an edit."""
    tree = ast.parse(source)
    edit.apply(tree)
    return ast.unparse(tree)


def reads(source):
    return ast.unparse(ast.parse(dedent(source)))


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        pytest.param(
            Edit("m", "Pool.take", "count > self.free", "count > 9"),
            "count > self.free",
            "count > 9",
            id="an expression",
        ),
        pytest.param(
            Edit("m", "Pool.take", "count < 0"),
            " or count < 0",
            "",
            id="an operand that is removed",
        ),
        pytest.param(
            Edit("m", "LIMITS", "high"), "(low, high)", "(low,)", id="an item of a constant"
        ),
        pytest.param(
            Edit("m", "Pool.give", "log(count)", "log(0)\nlog(1)"),
            "self.free += count\n        log(count)",
            "self.free += count\n        log(0)\n        log(1)",
            id="a statement that becomes two",
        ),
        pytest.param(
            Edit("m", "Pool.take", "self.free -= count\nlog(count)", "log(count)"),
            "self.free -= count\n        log(count)",
            "log(count)",
            id="statements in a row",
        ),
        pytest.param(
            Edit("m", "Pool.take", "raise Full(count)"),
            "raise Full(count)",
            "pass",
            id="the only statement of a block",
        ),
        pytest.param(
            Edit("m", "Pool.take", "log(count)", times=2),
            "        log(count)\n        log(count)\n",
            "",
            id="as often as it says",
        ),
        pytest.param(
            Edit("m", "route", "case 'give':\n    return 2", "case 'give' if order:\n    return 2"),
            'case "give":',
            'case "give" if order:',
            id="a case",
        ),
    ],
)
def test_an_edit_replaces_its_fragment(edit, before, after):
    assert MODULE.count(before) == 1

    assert edited(edit) == reads(MODULE.replace(before, after))


def test_an_edit_fits_where_its_fragment_has_moved_and_is_written_otherwise():
    written_otherwise = MODULE.replace("count > self.free", "(count  # wanted\n > self.free)")
    moved = "def other():\n    pass\n\n\n" + written_otherwise
    edit = Edit("m", "Pool.take", "count > self.free", "False")

    assert edited(edit, moved) == reads(moved.replace("count  # wanted\n > self.free", "False"))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        pytest.param(Edit("m", "Pool.lend", "log(count)"), "defined 0 times", id="target is gone"),
        pytest.param(Edit("m", "Pool.take", "count > 1"), "occurs 0 times", id="has changed"),
        pytest.param(Edit("m", "Pool.give", "count < 0"), "occurs 0 times", id="elsewhere"),
        pytest.param(Edit("m", "Pool.take", "log(count)"), "occurs 2 times", id="ambiguous"),
        pytest.param(
            Edit("m", "Pool.take", "raise Full(count)\nlog(count)"),
            "occurs 0 times",
            id="not in a row",
        ),
        pytest.param(
            Edit("m", "Pool.take", "count > self.free", "return"), "by an expression", id="no kind"
        ),
        pytest.param(Edit("m", "Pool.give", "count"), "occurs 2 times", id="counted everywhere"),
        pytest.param(
            Edit("m", "Pool.take", "self.free -= count\nlog(count)", times=2),
            "occurs 1 times",
            id="less often than said",
        ),
    ],
)
def test_an_edit_that_does_not_fit_says_so(edit, said):
    with pytest.raises(DoesNotApply, match=said):
        edited(edit)


def test_a_target_that_is_defined_twice_is_ambiguous():
    with pytest.raises(DoesNotApply, match="defined 2 times"):
        edited(Edit("m", "route", "match"), MODULE + MODULE)


def test_an_edit_that_changes_nothing_says_so():
    edit = Edit("m", "Pool.give", "log(count)", "log(count)")

    with pytest.raises(DoesNotApply, match="changes nothing"):
        planted(edit).compile("m", MODULE, "m.py")


def planted(*edits):
    return PlantedBug("bug", "broken", "promise", "core", "needs", edits)


def test_code_of_an_edit_keeps_the_lines_of_what_it_replaces():
    edit = Edit("m", "fails", "return 1", "ready = True\nraise ValueError('no')")
    space = {}
    exec(planted(edit).compile("m", "def fails():\n\n    return 1\n", "m.py"), space)

    with pytest.raises(ValueError, match="^no$") as raised:
        space["fails"]()
    assert raised.tb.tb_next.tb_lineno == 3


# ── how it gets into processes ────────────────────────────────────────────────────────────────────

PROGRAM = """
import subprocess, sys
from aioflow.core.callbacks import _TASK_EVENTS
from aioflow.model.states import TaskState
print(_TASK_EVENTS[TaskState.RETRYING], flush=True)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, "-P", "-c", sys.stdin.read(), "child"])
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("bug", "said"),
    [(BUGS["retry_reported_as_failure"], "failure"), (None, "retry")],
    ids=["with a bug", "without one"],
)
def test_a_process_has_the_bug_of_its_environment_and_so_have_its_children(bug, said):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment(bug),
        input=PROGRAM,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == [said, said]


@pytest.mark.process
def test_a_bug_that_comes_too_late_says_so():
    program = (
        "import aioflow.core.callbacks\n"
        "from tests.sim.planted import BUGS\n"
        "from tests.sim.planted.plant import install\n"
        "install(BUGS['retry_reported_as_failure'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(None),
        capture_output=True,
        text=True,
        check=False,
    )

    assert "aioflow.core.callbacks has been imported without it" in done.stderr
