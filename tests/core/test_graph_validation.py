from __future__ import annotations

import pytest

from aioflow.core.state.graph_validation import orphans, validate
from aioflow.errors import CycleError, DagError, DuplicateTask, UnknownParent
from aioflow.model.dag import MapSource, MapSpec, RetryPolicy, SensorSpec, TaskSpec
from tests.core.test_graph import named


def mapped(task_id, *task_indexes, parents):
    sources = tuple(MapSource(f"x{p}", p, 3 if p == -1 else -1) for p in task_indexes)
    return TaskSpec(task_id=task_id, parents=parents, mapped=MapSpec(sources))


def kinds(findings):
    return [type(finding) for finding in findings]


def test_a_sound_dag_has_no_findings():
    tasks = [*named(extract=[], load=["extract"]), mapped("settle", 1, -1, parents=(1,))]

    assert validate(tasks, "etl.daily-1") == []


def test_the_error_of_an_empty_dag_says_what_to_do():
    [finding] = validate([], "etl")

    assert "no tasks; call at least one" in str(finding)


def test_a_cycle_is_shown_as_a_path():
    [finding] = validate(named(a=["c"], b=["a"], c=["b"], d=["c"]), "etl")

    assert isinstance(finding, CycleError)
    assert finding.path == ("a", "b", "c", "a")


def test_a_task_that_depends_on_itself_is_the_shortest_cycle():
    [finding] = validate(named(a=["a"]), "etl")

    assert isinstance(finding, CycleError)
    assert finding.path == ("a", "a")


def test_cycles_apart_from_each_other_are_all_found():
    tasks = named(a=["b"], b=["a"], c=["b"], d=["c", "e"], e=["d"], f=["e", "f"])

    findings = validate(tasks, "etl")
    paths = {finding.path for finding in findings if isinstance(finding, CycleError)}

    assert paths == {("a", "b", "a"), ("d", "e", "d"), ("f", "f")}
    assert len(findings) == 3


def test_one_of_the_cycles_that_share_a_task_is_reported_and_fixing_it_shows_the_next():
    [first] = validate(named(a=["b"], b=["a", "c"], c=["b"]), "etl")
    [second] = validate(named(a=[], b=["a", "c"], c=["b"]), "etl")

    assert isinstance(first, CycleError)
    assert isinstance(second, CycleError)
    assert (first.path, second.path) == (("a", "b", "a"), ("b", "c", "b"))


def test_a_name_may_be_given_once():
    tasks = [TaskSpec(task_id=name) for name in ("a", "b", "a")]

    [finding] = validate(tasks, "etl")

    assert isinstance(finding, DuplicateTask)
    assert (finding.dag_id, finding.task_id) == ("etl", "a")


@pytest.mark.parametrize("parent", [-1, 2, 10**9])
def test_a_parent_outside_the_dag_is_unknown(parent):
    tasks = [TaskSpec(task_id="a"), TaskSpec(task_id="b", parents=(parent,))]

    [finding] = validate(tasks, "etl")

    assert isinstance(finding, UnknownParent)
    assert (finding.task_id, finding.parent) == ("b", f"#{parent}")


@pytest.mark.parametrize(
    ("task", "words"),
    [
        pytest.param(mapped("b", 1, parents=(0,)), "'b', which is not", id="itself"),
        pytest.param(mapped("b", 0, parents=()), "'a', which is not", id="no-parent"),
        pytest.param(mapped("b", 7, parents=(0,)), "'#7', which is not", id="nowhere"),
        pytest.param(mapped("b", parents=(0,)), "expands over nothing", id="no-source"),
        pytest.param(
            TaskSpec(task_id="b", parents=(0,), mapped=MapSpec((MapSource("x", -1, -1),))),
            "literal without a length",
            id="literal-without-width",
        ),
    ],
)
def test_a_task_expands_over_its_parents_and_literals_only(task, words):
    [finding] = validate([TaskSpec(task_id="a"), task], "etl")

    assert words in str(finding)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        pytest.param(TaskSpec(task_id="a", slots=0), "slots=0", id="slots"),
        pytest.param(TaskSpec(task_id="a", window=0), "window=0", id="window"),
        pytest.param(TaskSpec(task_id="a", map_limit=0), "map_limit=0", id="map-limit"),
        pytest.param(TaskSpec(task_id="a", retry=RetryPolicy(tries=0)), "tries=0", id="tries"),
        pytest.param(TaskSpec(task_id="a", retry=RetryPolicy(delay_us=-1)), "delay=-1", id="delay"),
        pytest.param(
            TaskSpec(task_id="a", retry=RetryPolicy(factor=float("nan"))), "factor=nan", id="factor"
        ),
        pytest.param(
            TaskSpec(task_id="a", sensor=SensorSpec(interval_us=-1)), "interval=-1", id="interval"
        ),
        pytest.param(
            TaskSpec(task_id="a", sensor=SensorSpec(backoff=0.0)), "backoff=0.0", id="backoff"
        ),
    ],
)
def test_a_number_that_would_hang_or_spin_is_refused(task, words):
    [finding] = validate([task], "etl")

    assert words in str(finding)


GOOD_IDS = ["a", "A-1", "group.sub_group.task", "_x", "0", ".hidden", "a" * 250]
BAD_IDS = ["", "a b", "a/b", "ä", "a\n", "-rf", "-", ".", "..", "a" * 251, "x:y"]


@pytest.mark.parametrize("name", GOOD_IDS)
def test_a_plain_id_is_accepted(name):
    assert validate([TaskSpec(task_id=name)], name) == []


@pytest.mark.parametrize("name", BAD_IDS)
def test_an_id_that_is_hard_to_type_or_means_something_else_is_refused_with_a_cure(name):
    of_dag, of_task = validate([TaskSpec(task_id=name)], name)

    for kind, finding in (("DAG", of_dag), ("task", of_task)):
        assert type(finding) is DagError
        assert str(finding).startswith(f"{kind} id ")
        assert "; " in str(finding)
        assert len(str(finding)) < 250


def test_all_errors_are_reported_together():
    tasks = [
        TaskSpec(task_id="a", parents=(0,), slots=0),
        TaskSpec(task_id="a", parents=(9,)),
        mapped("b c", 0, parents=()),
    ]

    assert kinds(validate(tasks, "-x")) == [
        DagError,  # the DAG's id
        DagError,  # slots
        DuplicateTask,
        UnknownParent,
        DagError,  # the task's id
        DagError,  # no parent of the expansion
        CycleError,
    ]


def test_a_task_that_nothing_connects_is_an_orphan():
    tasks = named(a=[], b=["a"], lost=[], c=["a"], forgotten=[])

    assert orphans(tasks) == ["lost", "forgotten"]


def test_a_dag_of_one_task_has_no_orphan():
    assert orphans(named(only=[])) == []
    assert orphans([]) == []
