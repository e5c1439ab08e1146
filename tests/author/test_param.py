"""Parameters with schemas: values that do not match are refused as defaults and as arguments."""

from __future__ import annotations

import json

import pytest

from aioflow import DAG, Param, dag, task
from aioflow.author.context import RunContext, parameter_values
from aioflow.author.dag_spec import describe
from aioflow.author.params import schema_misfit
from aioflow.errors import BadConf, DagError
from aioflow.model.dag import ParamSpec


@task
def takes(n: int) -> None: ...


def test_a_description_has_schema_and_default_of_each_and_knows_the_required():
    @dag(params={"size": Param(type="string", enum=["s", "m"])})
    def flow(n: int = Param(3, minimum=1, description="how many"), plain: int = 1):
        takes(n)

    spec, problems = describe(flow)

    assert not problems
    assert spec.params == (
        ParamSpec(name="n", schema='{"minimum": 1, "description": "how many"}', default="3"),
        ParamSpec(name="size", schema='{"type": "string", "enum": ["s", "m"]}'),
    )
    assert spec.required == ("size",)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        pytest.param(lambda: Param(0, minimum=1), "less than the minimum", id="default"),
        pytest.param(lambda: Param(1, type="whole"), "schema of a Param is none", id="schema"),
        pytest.param(lambda: Param(1, enum={1}), "is not valid JSON", id="schema-no-json"),
        pytest.param(lambda: Param(takes), "must be JSON", id="default-no-json"),
        pytest.param(lambda: Param(float("nan")), "must be JSON", id="default-nan"),
        pytest.param(
            lambda: Param(1, **{"$ref": "http://example.com/s.json"}), "leads out", id="remote"
        ),
        pytest.param(
            lambda: Param(1, allOf=[{"$ref": "file:///etc/passwd"}]), "leads out", id="nested"
        ),
        pytest.param(
            lambda: Param(1, **{"$ref": "#/$defs/none"}), "cannot be used", id="ref-to-nowhere"
        ),
    ],
)
def test_nonsense_is_refused_where_it_is_written(make, says):
    with pytest.raises(DagError, match=says):
        make()


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        pytest.param({"type": "integer"}, 3, True, id="integer"),
        pytest.param({"type": "integer"}, "3", False, id="text-for-an-integer"),
        pytest.param({"type": ["null", "string"]}, None, True, id="null"),
        pytest.param({"format": "date"}, "2026-02-30", False, id="a-day-in-no-calendar"),
        pytest.param({"pattern": "^a+$"}, "ab", False, id="pattern"),
        pytest.param({"items": {"type": "integer"}}, [1, "x"], False, id="inside-a-list"),
    ],
)
def test_a_value_fits_or_the_reason_names_the_parameter(schema, value, fits):
    why = schema_misfit({"n": json.dumps(schema)}, {"n": value, "other": object()})

    assert (why is None) is fits
    assert why is None or why.startswith("the parameter 'n' does not fit: ")


def test_a_run_takes_the_default_and_what_it_is_given_has_to_fit():
    with DAG("flow", params={"n": Param(3, type="integer", minimum=1)}) as flow:
        takes(1)

    def values(**conf):
        run = RunContext(run_id="r", dag_id="flow", created_at=0, conf=conf)
        return parameter_values(flow.parameters, run)

    assert values() == {"n": 3}
    assert values(n=7) == {"n": 7}
    with pytest.raises(BadConf, match="minimum"):
        values(n=0)
