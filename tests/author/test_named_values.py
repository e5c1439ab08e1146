"""Connections are read and written as URIs. Errors for missing values say how to provide them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow import Connection, UnknownValue, connection, dag, secret, task, variable
from aioflow.author.client import connection_of, declared_values, fetch_secret
from aioflow.author.dag_spec import describe
from aioflow.errors import DagError
from aioflow.model.dag import ValueKind

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)


def test_a_uri_is_taken_apart_and_put_together_again():
    text = "postgresql://ada:p%40ss%2F@db.example:5432/books?sslmode=require"

    found = connection_of(text)

    assert found == Connection(
        conn_type="postgresql",
        host="db.example",
        port=5432,
        login="ada",
        password="p@ss/",
        schema="books",
        extra={"sslmode": "require"},
    )
    assert found.uri == text


@given(login=TEXT, password=TEXT, schema=TEXT, extra=st.dictionaries(TEXT.filter(bool), TEXT))
def test_any_connection_survives_the_conversion_to_its_uri(login, password, schema, extra):
    made = Connection(
        conn_type="http", host="h", login=login, password=password, schema=schema, extra=extra
    )

    assert connection_of(made.uri) == made


def test_a_connection_does_not_show_its_password():
    assert repr(connection_of("http://ada:hidden@h:1/x")) == "<Connection http://h:1>"


@pytest.mark.parametrize(
    "told",
    [
        pytest.param("pw-without-scheme", id="no-uri"),
        pytest.param("http://h:pw-port/", id="a-port-that-is-none"),
        pytest.param({"pass": "pw"}, id="an-attribute-mistyped"),
        pytest.param({"password": ["pw"]}, id="an-attribute-of-another-type"),
        pytest.param(["pw"], id="a-list"),
    ],
)
def test_an_invalid_connection_is_refused_without_being_repeated(told):
    with pytest.raises(ValueError, match="connection") as caught:
        connection_of(told)

    assert "'pw" not in str(caught.value)
    assert "pw-" not in str(caught.value)


def test_a_task_has_at_hand_what_it_was_given():
    token = declared_values.set({(ValueKind.SECRET, "A"): "a", (ValueKind.VARIABLE, "A"): [1]})
    try:
        assert (secret("A"), variable("A")) == ("a", [1])
        with pytest.raises(UnknownValue, match=r"@task\(connections=\['A'\]\)"):
            connection("A")
    finally:
        declared_values.reset(token)


async def test_values_cannot_be_read_outside_of_tasks_and_triggers():
    with pytest.raises(UnknownValue):
        secret("A")
    with pytest.raises(RuntimeError, match="hosted"):
        await fetch_secret("A")


def test_a_description_says_what_a_task_declares_each_once():
    @task(secrets=["A", "B", "A"], variables=("A",))
    def one(): ...

    @dag
    def flow():
        one()

    spec, _ = describe(flow)

    assert spec.tasks[0].values == (
        (ValueKind.SECRET, "A"),
        (ValueKind.SECRET, "B"),
        (ValueKind.VARIABLE, "A"),
    )


@pytest.mark.parametrize("names", ["TOKEN", 7, [7], [""]])
def test_declared_values_are_a_list_of_names(names):
    def one(): ...

    def flow():
        task(secrets=names)(one)()

    with pytest.raises(DagError, match="secrets must be a list of names"):
        dag(flow)
