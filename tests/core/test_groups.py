"""Groups of parents evaluated separately: rules per edge, required shares, setups and teardowns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.core.tasks.trigger_rules import Verdict, decide_share, together
from aioflow.model.dag import EdgeGroup, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import TaskState, TriggerRule
from tests.core.world import World

ONCE = RetryPolicy(tries=1)
RULE = TriggerRule


def task(name: str, *parents: int, **fields: Any) -> TaskSpec:
    return TaskSpec(task_id=name, parents=parents, retry=ONCE, **fields)


def grouped(name: str, *groups: tuple[tuple[int, ...], TriggerRule], **fields: Any) -> TaskSpec:
    parents = {parent for parents, _ in groups for parent in parents} | {*fields.pop("others", ())}
    edges = tuple(EdgeGroup(parents, rule) for parents, rule in groups)
    return task(name, *sorted(parents), groups=edges, **fields)


# ── groups ──────────────────────────────────────────────────────────────────────────────


def test_a_task_runs_when_every_group_says_run():
    world = World(cpu_slots=4)
    world.begin(
        *(task(name) for name in "abcd"),
        grouped("end", ((0, 1), RULE.ONE_SUCCESS), ((2,), RULE.ALL_DONE), others=(3,)),
    )

    world.succeed("a")
    world.fail("c")
    assert world.started("end") is None
    world.succeed("d")

    assert world.started("end") is not None


def test_a_parent_in_a_group_leaves_the_rule_of_the_task():
    world = World(cpu_slots=4)
    world.begin(task("a"), task("b"), grouped("end", ((0,), RULE.ALL_DONE), others=(1,)))

    world.fail("a")
    world.succeed("b")

    assert world.started("end") is not None


def test_a_skip_waits_for_the_other_groups_and_a_failure_beats_it():
    for order in (("a", "b"), ("b", "a")):
        world = World(cpu_slots=4)
        run = world.begin(
            task("a"), task("b"), grouped("end", ((0,), RULE.ONE_FAILED), ((1,), RULE.ALL_SUCCESS))
        )
        for name in order:
            world.succeed(name) if name == "a" else world.fail(name)

        assert world.state(run, "end") == "upstream_failed"


def test_tallies_of_a_group_are_recomputed_after_a_restart():
    world = World(cpu_slots=4)
    run = world.begin(
        task("a"), task("b"), grouped("end", ((0,), RULE.ALL_DONE), ((1,), RULE.ALL_SUCCESS))
    )
    world.fail("a")

    world.restart()
    world.succeed("b")
    world.succeed("end")

    assert world.run_state(run) == "partial"


def test_a_failure_that_the_rule_of_its_edge_provides_for_makes_no_run_partial():
    world = World(cpu_slots=4)
    run = world.begin(
        task("a"), task("b"), task("c"), grouped("end", ((0, 1), RULE.ONE_SUCCESS), others=(2,))
    )
    world.fail("a")
    for name in ("b", "c", "end"):
        world.succeed(name)

    assert world.run_state(run) == "success"


verdicts = st.sampled_from(list(Verdict))


@given(said=st.lists(verdicts, min_size=1), data=st.data())
def test_the_order_of_groups_does_not_matter(said: list[Verdict], data: st.DataObject):
    assert together(said) is together(data.draw(st.permutations(said)))


# ── shares ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("least", "ends", "expected"),
    [
        pytest.param(0.5, "SSFF", Verdict.RUN, id="exactly-the-share"),
        pytest.param(0.5, "SFFF", Verdict.UPSTREAM_FAILED, id="too-few"),
        pytest.param(0.5, "SSSp", Verdict.WAIT, id="it-waits-for-all-though-enough-succeeded"),
        pytest.param(0.5, "FFFp", Verdict.WAIT, id="it-waits-for-all-though-too-many-failed"),
        pytest.param(0.5, "SKKK", Verdict.SKIP, id="only-skipped-ones-are-missing"),
        pytest.param(0.5, "SKKF", Verdict.UPSTREAM_FAILED, id="a-failure-beats-a-skip"),
        pytest.param(0.5, "SFRR", Verdict.RUN, id="removed-ones-do-not-count"),
        pytest.param(0.07, "S" * 7 + "F" * 93, Verdict.RUN, id="seven-of-a-hundred-are-0.07"),
        pytest.param(0.0, "FFF", Verdict.RUN, id="nothing-is-asked"),
        pytest.param(1.0, "SSU", Verdict.UPSTREAM_FAILED, id="everything-is-asked"),
    ],
)
def test_a_share_of_the_parents_must_succeed(least: float, ends: str, expected: Verdict):
    assert share(least, ends) is expected


def share(least: float, ends: str) -> Verdict:
    return decide_share(
        least,
        total=len(ends),
        success=ends.count("S"),
        failed=ends.count("F"),
        upstream_failed=ends.count("U"),
        skipped=ends.count("K"),
        removed=ends.count("R"),
    )


@given(least=st.floats(0, 1), ends=st.text("SFUKR", min_size=1, max_size=9), data=st.data())
def test_a_share_does_not_depend_on_who_came_first(least: float, ends: str, data: st.DataObject):
    known = data.draw(st.integers(0, len(ends) - 1))

    assert share(least, ends) is share(least, "".join(data.draw(st.permutations(ends))))
    assert share(least, ends[:known] + "p" * len(ends[known:])) is Verdict.WAIT


# ── setups and teardowns ────────────────────────────────────────────────────────────────


def cluster(**teardown: Any) -> list[TaskSpec]:
    return [
        task("create", is_setup=True),
        task("load", 0),
        task("report", 1, rule=RULE.ALL_DONE),
        task(
            "delete",
            0,
            2,
            is_teardown=True,
            rule=RULE.ALL_DONE_SETUP_SUCCESS,
            **teardown,
        ),
    ]


def test_a_teardown_runs_after_failed_work_and_the_run_has_failed_for_the_work():
    world = World()
    run = world.begin(*cluster())
    world.succeed("create")
    world.fail("load")
    world.fail("report")
    world.succeed("delete")

    assert world.run_state(run) == "failed"


def test_without_its_setup_nothing_in_its_scope_runs_whatever_its_rule():
    world = World()
    run = world.begin(*cluster())
    world.fail("create")

    names = ("load", "report", "delete")
    assert [world.state(run, name) for name in names] == ["upstream_failed"] * 3
    assert world.run_state(run) == "failed"


def test_a_run_does_not_care_for_a_failed_teardown():
    world = World()
    run = world.begin(*cluster())
    for name in ("create", "load", "report"):
        world.succeed(name)
    world.fail("delete")

    assert world.run_state(run) == "success"


def test_a_run_cares_for_a_failed_teardown_that_is_said_to_matter():
    world = World()
    run = world.begin(*cluster(fails_run=True))
    for name in ("create", "load", "report"):
        world.succeed(name)
    world.fail("delete")

    assert world.run_state(run) == "failed"


@pytest.mark.parametrize("rule", [RULE.ALL_DONE, RULE.ONE_FAILED, RULE.ALL_FAILED, RULE.ONE_DONE])
def test_a_child_of_a_setup_goes_by_its_own_rule_alone_and_what_comes_after_it_does_not(rule):
    world = World(cpu_slots=4)
    run = world.begin(
        task("create", is_setup=True),
        task("tell", 0, rule=rule),
        task("end", 1, rule=RULE.ALL_DONE),
        task("delete", 0, 2, is_teardown=True, rule=RULE.ALL_DONE_SETUP_SUCCESS),
    )
    world.fail("create")
    world.succeed("tell")

    assert world.state(run, "end") == "upstream_failed"
    assert world.state(run, "delete") == "upstream_failed"


def test_a_teardown_waits_for_all_between_it_and_its_setup():
    world = World(cpu_slots=4)
    world.begin(
        task("create", is_setup=True),
        task("slow", 0),
        task("fast", 0),
        task("first", 1, 2, rule=RULE.ONE_DONE),
        task("delete", 0, 3, is_teardown=True, rule=RULE.ALL_DONE_SETUP_SUCCESS),
    )
    for name in ("create", "fast", "first"):
        world.succeed(name)
    assert world.started("delete") is None

    world.succeed("slow")

    assert world.started("delete") is not None


def test_a_setup_without_a_teardown_is_needed_by_all_that_comes_after_it():
    world = World(cpu_slots=4)
    run = world.begin(
        task("create", is_setup=True), task("load", 0), task("end", 1, rule=RULE.ALL_DONE)
    )
    world.fail("create")

    assert world.state(run, "end") == "upstream_failed"


def test_tasks_after_a_teardown_are_not_in_its_scope():
    world = World()
    run = world.begin(*cluster(), task("mail", 3, rule=RULE.ALL_DONE))
    world.fail("create")

    assert world.state(run, "mail") == TaskState.RUNNING.label


def test_always_runs_also_without_its_setup():
    world = World()
    world.begin(
        task("create", is_setup=True),
        task("load", 0),
        task("end", 1, rule=RULE.ALWAYS),
        task("delete", 0, 2, is_teardown=True, rule=RULE.ALL_DONE_SETUP_SUCCESS),
    )

    assert world.started("end") is not None


# ── branches ────────────────────────────────────────────────────────────────────────────


def test_tasks_that_a_branch_skips_are_skipped_before_any_rule_is_evaluated():
    world = World(cpu_slots=4)
    run = world.begin(task("pick"), task("a", 0), task("b", 0), task("c", 2))

    world.succeed("pick", skips=(2,))

    assert world.started("a") is not None
    assert [world.state(run, name) for name in "bc"] == ["skipped", "skipped"]


def test_a_branch_skips_a_fan_out_as_a_whole():
    world = World()
    over = MapSpec((MapSource("x", -1, 3),))
    run = world.begin(task("pick"), task("each", 0, mapped=over), task("end", 1))

    world.succeed("pick", skips=(1,))

    assert world.state(run, "each") == "skipped"
    assert world.run_state(run) == "success"


def test_started_tasks_are_not_skipped():
    world = World(cpu_slots=4)
    run = world.begin(task("pick"), task("early", 0, rule=RULE.ALWAYS))

    world.succeed("pick", skips=(1,))

    assert world.state(run, "early") == "running"


def test_skipped_tasks_stay_skipped_after_a_restart():
    world = World(cpu_slots=4)
    run = world.begin(task("pick"), task("a", 0), task("b", 0))
    world.succeed("pick", skips=(2,))

    world.restart()
    world.succeed("a")

    assert world.state(run, "b") == "skipped"
    assert world.run_state(run) == "success"
