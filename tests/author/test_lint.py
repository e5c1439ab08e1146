"""Warnings about a DAG have a code and a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aioflow import DAG, DagError, Operator, current, dag, task
from aioflow.author.dag_spec import describe, lint
from aioflow.model.states import TriggerRule


@task
def make() -> int:
    return 1


@task
def take(value: int) -> None: ...


@task
def maybe(value: Any) -> None: ...


def odd(made: DAG) -> list[str]:
    spec, failures = describe(made)
    assert spec is not None, failures
    return [said.reason for said in lint(made)]


def test_an_ordinary_dag_is_not_odd():
    @dag
    def pipeline(day: str = "monday") -> None:
        take(make()).after(maybe(day))

    assert odd(pipeline) == []


def test_a_task_that_nothing_connects_is_odd():
    with DAG("d") as made:
        take(make())
        make()

    assert odd(made) == ["odd.orphan"]


def test_a_parameter_that_nothing_takes_is_odd():
    @dag
    def pipeline(day: str = "monday", week: int = 1) -> None:
        maybe({"in": [day]})

    (said,) = advice_of(pipeline)
    assert "'week'" in said.message
    assert said.line > 0


def advice_of(made: DAG) -> list[Any]:
    spec, _ = describe(made)
    assert spec is not None
    return lint(made)


def test_a_task_with_the_context_may_use_any_parameter():
    class Work(Operator):
        def execute(self, context: Any) -> None: ...

    with DAG("d", params={"limit": 1}) as classic:
        Work(task_id="work")
    with DAG("e", params={"limit": 1}) as modern:
        maybe(current.params)
    with DAG("f", params={"limit": 1}) as named:
        maybe(current.params["limit"])

    assert odd(classic) == odd(modern) == odd(named) == []


@pytest.mark.parametrize("rule", [TriggerRule.ALL_DONE, TriggerRule.NONE_FAILED])
def test_an_argument_that_may_be_none_though_its_annotation_refuses_it_is_odd(rule: TriggerRule):
    with DAG("d") as made:
        take.override(trigger_rule=rule)(make())
        maybe.override(trigger_rule=rule)(make())
        take.override(trigger_rule=rule).partial().expand(value=[1])

    assert odd(made) == ["odd.orphan", "odd.none", "odd.rule"]


def test_the_rule_of_the_edge_counts():
    with DAG("d") as made:
        value = make()
        take(value).after(value, rule="one_done")
        take.override(trigger_rule="all_done")(value).after(value, rule="all_success")

    assert [said.message.split("'")[1] for said in advice_of(made)] == ["take"]


def test_a_rule_that_asks_nothing_is_odd():
    with DAG("d") as made:
        take(make.override(trigger_rule="one_failed")())
        maybe.override(min_success=0.5)(make.override(trigger_rule="always")())

    assert odd(made) == ["odd.rule"]


def test_a_fan_out_over_an_empty_list_is_odd():
    with DAG("d") as made:
        maybe(take.expand(value=[]))

    assert odd(made) == ["odd.empty"]


def test_a_file_that_a_dag_reads_and_is_not_there_is_odd(tmp_path: Path):
    (tmp_path / "sales").mkdir()
    (tmp_path / "sales/1.csv").touch()
    here = Path(__file__)
    with DAG("d", reads=[here.name, "nowhere.csv", f"{tmp_path}/sales/*.csv", "no/**/x"]) as made:
        take(make())

    assert [said.message.rpartition(" ")[2] for said in advice_of(made)] == [
        "nowhere.csv",
        "no/**/x",
    ]


def test_the_values_a_dag_declares_are_a_list():
    with pytest.raises(DagError, match="reads must be a list of texts"):
        DAG("d", reads="sales.csv")


def test_a_parameter_that_airflow_fills_and_that_stays_none_is_odd():
    @task
    def ported(ti=None, task_instance=None, var=None, ds=None) -> None: ...

    with DAG("d") as made:
        ported(task_instance=1) >> ported(ti=2, task_instance=3)

    (said,) = [one for one in advice_of(made) if one.reason == "odd.context"]
    assert said.message.startswith("the parameter 'ti' of task 'ported' stays None: pass results")
    assert said.line > 0


def test_a_parameter_that_airflow_fills_is_refused_with_what_to_write():
    @task
    def ported(ti) -> None: ...

    with DAG("d"), pytest.raises(DagError, match="needs the argument 'ti': pass results as arg"):
        ported()  # type: ignore[call-arg]
