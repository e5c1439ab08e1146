"""Ready-made operators and sensors render the fields that Airflow renders, and report other braces.

The classes are found in the catalogue, so that a new class is tested without being listed here.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from aioflow import DAG, Operator
from aioflow.author.dag_spec import describe, lint
from aioflow.results import ResultFiles
from aioflow.worker.task.arguments import Arguments, KnownRun
from aioflow.worker.task.body import body_of_try
from aioflow_triggers import BashOperator, EmptyOperator, FileSensor
from tests.differing import differing
from tests.triggers.test_catalogue import defined
from tests.worker.peer import run_info, start

CLASSES = [cls for cls in defined() if issubclass(cls, Operator)]

# The template fields in providers-standard 1.21.0, http 6.3.0 and amazon, by their argument names
# here.
AIRFLOW: dict[str, set[str]] = {
    "BashOperator": {"bash_command", "env", "cwd"},
    "DateTimeSensor": {"target_time"},
    "EmptyOperator": set(),
    "ExternalTaskSensor": {"external_dag_id", "external_task_id", "external_task_ids"},
    "FileSensor": {"filepath"},
    "HttpSensor": {"url", "headers", "body"},  # endpoint, headers, request_params
    "ObjectSensor": {"url"},  # bucket_name, bucket_key
    "TimeDeltaSensor": {"delta"},
    "TriggerDagRun": {"dag", "conf"},  # trigger_dag_id, conf
}
TEXT = "of {{ run_id }}"


def parameters(cls: type[Operator]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a class, except those of every operator."""
    signature = inspect.signature(cls.__init__)
    kinds = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    found = {name: one for name, one in signature.parameters.items() if one.kind in kinds}
    return {name: one for name, one in found.items() if name not in {"self", "task_id"}}


def takes_text(parameter: inspect.Parameter) -> bool:
    return "str" in str(parameter.annotation) or "Duration" in str(parameter.annotation)


def no_results(*asked: Any) -> Any:
    """Stand in for fetching results: no task here has results."""
    raise AssertionError(asked)


def given(cls: type[Operator], name: str) -> tuple[Any, list[str]]:
    """Return the argument that a try gets for ``TEXT`` in the file, and the lint warnings."""
    is_dict = str(parameters(cls)[name].annotation).startswith("Mapping")
    required = (
        one.name for one in parameters(cls).values() if one.default is inspect.Parameter.empty
    )
    with DAG(f"{cls.__name__}_{name}") as made:
        arguments: dict[str, Any] = dict.fromkeys(required, "x")
        arguments[name] = {"a": TEXT} if is_dict else TEXT
        cls(**arguments, task_id="t")
    spec, failures = describe(made)
    assert spec is not None, failures
    odd = [one.message for one in lint(made) if one.reason == "odd.template"]
    run = KnownRun(run_info(run_id="r-1"), made)
    value = Arguments(run, made.nodes[0], start(0), no_results, ResultFiles(Path())).all()[name]
    return value["a"] if is_dict else value, odd


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_field_is_rendered_or_the_check_says_that_it_is_not(cls):
    found = {name: given(cls, name) for name in parameters(cls)}

    rendered = {name for name, (value, _) in found.items() if value == "of r-1"}
    warned = {name for name, (_, odd) in found.items() if odd}
    assert all(value in {TEXT, "of r-1"} for value, _ in found.values())
    assert rendered == set(cls.template_fields)
    assert warned == found.keys() - rendered
    assert all(name in found[name][1][0] for name in warned)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_that_takes_texts_has_template_fields_and_they_are_its_arguments(cls):
    own = parameters(cls)

    assert set(cls.template_fields) <= own.keys()
    assert bool(cls.template_fields) == any(map(takes_text, own.values()))


def test_the_fields_are_those_of_airflow():
    found = {cls.__name__: set(cls.template_fields) for cls in CLASSES}

    assert not (rows := differing(found, AIRFLOW)), rows


def test_a_file_named_by_the_day_is_looked_for(tmp_path):
    (tmp_path / "2026-01-01.csv").touch()
    with DAG("pipeline") as made:
        FileSensor(
            task_id="arrived", filepath=f"{tmp_path}/{{{{ ds }}}}.csv", deferrable=False
        ) >> BashOperator(
            task_id="count",
            bash_command='echo "{{ ds }} $WHO {{ task_id }}" {% raw %}"{{ ds }}"{% endraw %}',
            env={"WHO": "{{ run_id }}"},
            append_env=True,
            cwd=f"{tmp_path}/{{{{ '.' }}}}",
        )
    describe(made)

    sensor, bash = (operator(made, task_index) for task_index in (0, 1))

    assert sensor.filepath == f"{tmp_path}/2026-01-01.csv"
    assert (bash.env, bash.cwd) == ({"WHO": "r-1"}, f"{tmp_path}/.")
    assert bash.bash_command == 'echo "2026-01-01 $WHO count" "{{ ds }}"'


def operator(made: DAG, task_index: int) -> Any:
    """Return the operator instance that a try runs."""
    run = KnownRun(run_info(run_id="r-1"), made)
    files = ResultFiles(Path())
    return body_of_try(run, made.nodes[task_index], start(task_index), no_results, files).operator


def test_an_operator_without_arguments_has_no_fields():
    assert list(EmptyOperator.template_fields) == []
