"""Errors take their fields as arguments, which fill the message of the class."""

from __future__ import annotations

import inspect

import pytest

from aioflow import errors
from aioflow.errors import DagRunFailed, LoginFailed, StoreSlow, UnknownRun
from aioflow.errors.root import MessageTemplate


def test_fields_fill_the_message_by_place_or_by_name():
    failed = DagRunFailed("etl", run_id="r1", state="failed")

    assert str(failed) == "run 'r1' of DAG 'etl' ended failed"
    assert (failed.dag_id, failed.run_id, failed.state) == ("etl", "r1", "failed")
    assert str(StoreSlow(2.0)).startswith("the database did not answer within 2 s;")


def test_braces_of_a_value_stay_as_they_are():
    assert "'{x!r}'" in str(UnknownRun("{x!r}"))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        pytest.param(("etl", "r1"), {}, id="too-few"),
        pytest.param(("etl", "r1", "failed", "more"), {}, id="too-many"),
        pytest.param(("etl", "r1", "failed"), {"state": "failed"}, id="twice"),
        pytest.param(("etl", "r1"), {"stat": "failed"}, id="unknown"),
    ],
)
def test_other_arguments_are_refused(values, named):
    with pytest.raises(TypeError, match="DagRunFailed takes dag_id, run_id, state"):
        DagRunFailed(*values, **named)


def test_a_class_below_takes_the_same_arguments():
    class Deleted(UnknownRun):
        pass

    assert Deleted("r1").run_id == "r1"
    with pytest.raises(TypeError, match="takes no arguments"):
        LoginFailed("me")


TEMPLATES = [
    kind for name in errors.__all__ if issubclass(kind := getattr(errors, name), MessageTemplate)
]


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_message_names_fields_of_its_class_only(kind):
    fields = inspect.get_annotations(kind)

    error = kind(**dict.fromkeys(fields, 7))

    assert vars(error) == dict.fromkeys(fields, 7)
    assert "{" not in str(error)
