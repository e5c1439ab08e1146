"""Code that cannot run as written raises at the place where it is written."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aioflow import DAG, DagError, Operator, Retry, Sensor, chain, current, dag, sensor, task
from aioflow.author.dag import registered
from aioflow.author.dag_spec import describe
from aioflow.errors import BadSchedule, DuplicateDag, ReferenceMisused, UnknownParent

# Type checkers would reject most of the calls below, so these names are untyped.


@task
def _one(value: Any = None) -> list[int]:
    return [1]


@task
def _two(x: int, y: int) -> int:
    return x + y


class _Copy(Operator):
    def __init__(self, source: str, *rest: str, **options: Any) -> None:
        super().__init__(**options)


one: Any = _one.override(task_id="one")
two: Any = _two.override(task_id="two")
Copy: Any = _Copy
ds: Any = current.ds


@dataclass
class Box:
    inside: Any


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(bool, id="bool"),
        pytest.param(iter, id="iteration"),
        pytest.param(lambda ref: [*ref], id="unpacking"),
        pytest.param(len, id="len"),
        pytest.param(lambda ref: 1 in ref, id="in"),
        pytest.param(str, id="str"),
        pytest.param(lambda ref: f"{ref}", id="f-string"),
        pytest.param("{:>3}".format, id="format"),
        pytest.param(lambda ref: ref == 1, id="equals"),
        pytest.param(lambda ref: ref != 1, id="differs"),
        pytest.param(lambda ref: ref < 1, id="less"),
        pytest.param(lambda ref: ref >= 1, id="not-less"),
        pytest.param(lambda ref: sorted([ref, ref]), id="sorting"),
        pytest.param(int, id="int"),
        pytest.param(float, id="float"),
        pytest.param(lambda ref: [1][ref], id="index"),
        pytest.param(lambda ref: ref + 1, id="plus"),
        pytest.param(lambda ref: 2 * ref, id="times"),
        pytest.param(lambda ref: ref(), id="call"),
        pytest.param(lambda ref: ref.field, id="attribute"),
        pytest.param(lambda ref: ref[1:2], id="slice"),
    ],
)
@pytest.mark.parametrize("kind", ["result", "part", "parameter", "current"])
def test_a_reference_is_not_the_value(use: Callable[[Any], object], kind: str):
    def body(given: Any) -> None:
        result = one()
        use(
            {"result": result, "part": result["a"], "parameter": given, "current": current.ds}[kind]
        )

    name = {"result": "one", "part": "one['a']", "parameter": "given", "current": "current.ds"}
    with pytest.raises(ReferenceMisused, match=re.escape(name[kind])) as caught:
        dag(body)

    assert f"{__file__}:" in str(caught.value)


def test_a_misused_reference_names_the_line():
    with DAG("made"):
        result = one()

    with pytest.raises(ReferenceMisused) as caught:
        bool(result)

    line = caught.traceback[0].lineno + 1
    assert f"({__file__}:{line})" in str(caught.value)


def other_result() -> Any:
    with DAG("other"):
        return one()


def after_itself() -> None:
    result = one()
    result.after(result)


def set_of_references() -> None:
    one({one()})


def a_box() -> None:
    one(Box(one()))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        pytest.param(lambda: two(1), "needs the argument 'y'", id="missing"),
        pytest.param(lambda: two(1, 2, 3), "too many positional", id="too-many"),
        pytest.param(lambda: two(1, 2, z=3), "unexpected keyword argument 'z'", id="unknown"),
        pytest.param(lambda: two.expand(), "at least one argument", id="expand-nothing"),
        pytest.param(lambda: two.expand(x=[1]), "needs the argument 'y'", id="expand-missing"),
        pytest.param(lambda: two.expand(x=[1], y=2), "over a int", id="expand-int"),
        pytest.param(lambda: one.expand(value="text"), "over a str", id="expand-text"),
        pytest.param(lambda: one.expand(value=[one()]), "list of references", id="expand-refs"),
        pytest.param(lambda: one.expand(value=one()["a"]), "whole result", id="expand-part"),
        pytest.param(
            lambda: one.expand(value=current.params), "expands 'value' over", id="expand-context"
        ),
        pytest.param(lambda: two.partial(x=1, y=1).expand(x=[1]), "'x' from partial", id="both"),
        pytest.param(lambda: one.override(pol="x"), "no option 'pol'", id="option"),
        pytest.param(lambda: one.override(task_id="a b")(), "valid name for a task", id="name"),
        pytest.param(lambda: one.override(task_id=5)(), "valid name for a task", id="name-type"),
        pytest.param(lambda: one(Copy("a", task_id="c")), "its .output|'s .output", id="operator"),
        pytest.param(lambda: Copy("a", "b", task_id="c"), "given by name", id="var-positional"),
        pytest.param(lambda: Copy(task_id="c"), "needs the argument 'source'", id="op-missing"),
        pytest.param(
            lambda: Copy.partial(task_id="c").expand(pool=["a"]), "option of the task", id="op-pool"
        ),
        pytest.param(lambda: Copy.partial().expand(source=["a"]), "task_id", id="op-no-name"),
        pytest.param(lambda: one().after(one), "is not a task", id="after-a-function"),
        pytest.param(lambda: chain([one(), one()], [one()]), "item by item", id="uneven-chain"),
        pytest.param(after_itself, "itself", id="after-itself"),
        pytest.param(set_of_references, "set with a reference", id="set"),
        pytest.param(a_box, "Box with a reference", id="dataclass"),
        pytest.param(lambda: one(other_result()), "does not have", id="argument-of-another-dag"),
        pytest.param(lambda: one().after(other_result()), "does not have", id="other-dag"),
        pytest.param(lambda: one.expand(value=other_result()), "does not have", id="map-other"),
        pytest.param(lambda: one(ds["a"]), "cannot be used", id="part-of-text"),
    ],
)
def test_a_body_that_cannot_run(body: Callable[[], object], complaint: str):
    with pytest.raises(DagError, match=complaint):
        dag("made")(body)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"retry": 3}, "must be a Retry"),
        ({"retry": Retry(), "retries": 3}, "not both"),
        ({"retries": -1}, "retries"),
        ({"retries": True}, "retries"),
        ({"retry_delay": "soon"}, "retry_delay|delay"),
        ({"trigger_rule": "all_sucess"}, "all_sucess"),
        ({"pool": 5}, "pool"),
        ({"slots": 0}, "slots"),
        ({"priority": "high"}, "priority"),
        ({"map_limit": 0}, "map_limit"),
        ({"map_label": 3}, "map_label must be text or a plain function"),
        ({"map_label": "{n"}, "map_label=.*expected"),
        ({"window": 0}, "window"),
        ({"execution_timeout": 0}, "execution_timeout"),
        ({"execution_timeout": "-5m"}, "execution_timeout"),
        ({"max_wait": 0}, "max_wait must be longer than nothing"),
        ({"max_wait": "soon"}, "max_wait='soon' is not a duration"),
        ({"on_code_change": "ignore"}, "fail, restart, keep"),
        ({"interval": 5}, "no option 'interval'"),
        ({"depends_on_past": 1}, "depends_on_past must be True or False"),
        ({"ignore_past": True}, "no option 'ignore_past'"),
    ],
    ids=str,
)
def test_an_option_of_a_task_that_makes_no_sense(options, complaint):
    with pytest.raises(DagError, match=complaint):
        task(**options)(lambda: None)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"interval": 0}, "interval"),
        ({"timeout": float("nan")}, "timeout"),
        ({"backoff": 0.5}, "backoff"),
        ({"on_timeout": "explode"}, "on_timeout"),
        ({"on_error": "explode"}, "on_error"),
        ({"mode": "push"}, "mode"),
    ],
    ids=str,
)
def test_an_option_of_a_sensor_that_makes_no_sense(options, complaint):
    with pytest.raises(DagError, match=complaint):
        sensor(**options)(lambda: True)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"timezone": "Mars/Base"}, "Mars/Base"),
        ({"max_active_runs": 0}, "max_active_runs"),
        ({"max_active_tasks": "many"}, "max_active_tasks"),
        ({"isolated": "yes"}, "isolated must be True or False"),
        ({"retry_budget": -1}, "retry_budget must be a whole number of at least 0"),
        ({"if_paused": "go"}, "if_paused must be 'stay' or 'stop', not 'go'"),
        ({"run_timeout": "soon"}, "run_timeout='soon' is not a duration"),
        ({"dagrun_timeout": 0}, "dagrun_timeout must be longer than nothing"),
        ({"deadline": -1}, "deadline"),
        ({"default_args": {"owner": "me"}}, "owner"),
        ({"tags": "one"}, "tags"),
        ({"start_date": "2026-01-01"}, "start_date"),
        ({"colour": "red"}, "colour"),
    ],
    ids=str,
)
def test_an_option_of_a_dag_that_makes_no_sense(options, complaint):
    with pytest.raises(DagError, match=complaint):
        DAG("made", **options)


async def a_coroutine() -> None: ...


async def an_async_generator() -> Any:
    yield 1


def positional(x: int, /) -> None: ...


def var_keyword(**rest: Any) -> None: ...


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        pytest.param(lambda: dag(a_coroutine), "plain function", id="async-dag"),
        pytest.param(lambda: dag(var_keyword), "ordinary one", id="dag-with-kwargs"),
        pytest.param(lambda: dag("no good")(lambda: None), "valid name for a DAG", id="dag-name"),
        pytest.param(lambda: sensor(an_async_generator), "async generator", id="async-generator"),
        pytest.param(lambda: task(positional), "positional-only", id="positional-only"),
        pytest.param(lambda: task(print), "takes a function", id="builtin"),
        pytest.param(lambda: task(Copy), "takes a function", id="class"),
        pytest.param(lambda: one(), "outside a DAG", id="call-outside"),
        pytest.param(lambda: one.expand(value=[1]), "outside a DAG", id="expand-outside"),
        pytest.param(lambda: Copy("a", task_id="c").output, "not made inside", id="output-outside"),
        pytest.param(lambda: Sensor(task_id="s", retries=-1), "retries", id="option-outside"),
    ],
)
def test_objects_that_are_no_dag_and_no_task_are_refused(
    make: Callable[[], object], complaint: str
):
    with pytest.raises(DagError, match=complaint):
        make()


def test_two_dags_of_one_name_in_one_file_name_the_first(tmp_path: Path):
    file = tmp_path / "twice.py"
    file.write_text(
        "from aioflow import DAG\ndef make():\n    return DAG('made')\nDAG('made')\nmake()\n"
    )

    with pytest.raises(DuplicateDag, match=f"{re.escape(str(file))}:4"):
        runpy.run_path(str(file))


def test_a_function_makes_a_dag_of_one_name_again_as_each_test_does():
    first, other, second = DAG("made"), DAG("other"), DAG("made")

    assert registered(__file__) == [other, second] != [other, first]


def test_a_parent_of_another_dag_is_unknown():
    foreign = other_result()

    with pytest.raises(UnknownParent) as caught, DAG("made"):
        one().after(foreign)

    assert caught.value.parent == "one"


@pytest.mark.parametrize("text", ["", "5", "5 minutes", "m", "-1s", "1e3s", "5M", None, [], True])
def test_a_duration_that_is_none(text):
    with pytest.raises(BadSchedule):
        Retry(delay=text)


def test_errors_of_start_triggers_have_their_line():
    class Waits(Operator):
        start_from_trigger = True

        def execute(self, context: Any) -> None: ...

    with DAG("d") as made:
        one(1)
        Waits(task_id="a")
        Waits(task_id="b")

    spec, failures = describe(made)
    assert spec is None
    assert [failure.message.split(":")[0] for failure in failures] == ["task 'a'", "task 'b'"]
    assert failures[1].line == failures[0].line + 1 > 1
    assert "needs start_trigger_args" in failures[0].message
