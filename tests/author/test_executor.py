"""Tasks name their executor, and what they require of a worker."""

from __future__ import annotations

import msgspec
import pytest

from aioflow import DAG, DagError, dag, sensor, task
from aioflow.author import options
from aioflow.author.dag_spec import describe
from aioflow.model.dag import TaskSpec

GIB = 1024**3


@pytest.fixture
def default_dask():
    options.set_default_executor("dask")
    yield
    options.set_default_executor("local")


def specs_of(made: DAG) -> dict[str, TaskSpec]:
    spec, failures = describe(made, file="dags.py")
    assert spec is not None, failures
    return {one.task_id: one for one in spec.tasks}


def spec_of(**options) -> TaskSpec:
    @dag
    def flow():
        @task(**options)
        def load() -> int:
            return 1

        load()

    return specs_of(flow)["load"]


def mixed(**options) -> dict[str, str]:
    @task
    def load() -> int:
        return 1

    @task(executor="local")
    def near() -> int:
        return 1

    @task
    async def fetch() -> int:
        return 1

    @sensor
    def arrived() -> bool:
        return True

    @dag(**options)
    def flow():
        load()
        near()
        fetch()
        arrived()

    return {name: one.executor for name, one in specs_of(flow).items()}


def test_a_task_runs_locally_by_default():
    spec = spec_of()

    assert (spec.executor, spec.resources, spec.executor_options) == ("local", (), b"")


def test_a_task_names_its_executor_and_what_it_requires():
    spec = spec_of(
        executor="dask",
        resources={"memory": "4GiB", "GPU": 1, "disk": "1.5 GB", "file": "10B"},
        executor_options={"queue": "night", "hosts": ["a"]},
    )

    assert spec.executor == "dask"
    assert spec.resources == (("GPU", 1.0), ("disk", 1.5e9), ("file", 10.0), ("memory", 4.0 * GIB))
    options = msgspec.msgpack.decode(spec.executor_options)
    assert options == {"queue": "night", "hosts": ["a"]}


def test_equal_options_are_equal_in_any_order():
    one = spec_of(executor="k8s", executor_options={"a": 1, "b": 2})
    two = spec_of(executor="k8s", executor_options={"b": 2, "a": 1})

    assert one.executor_options == two.executor_options


def test_the_executor_of_a_dag_concerns_its_functions_only():
    assert mixed(executor="dask") == {
        "load": "dask",
        "near": "local",
        "fetch": "local",
        "arrived": "local",
    }


def test_the_default_executor_concerns_functions_of_dags_without_one(default_dask):
    assert mixed()["load"] == "dask"
    assert mixed()["arrived"] == "local"
    assert mixed(executor="slurm")["load"] == "slurm"
    assert spec_of(resources={"GPU": 1}).executor == "dask"


def test_a_sensor_may_name_an_executor():
    @sensor(executor="dask", resources={"GPU": 1})
    def arrived() -> bool:
        return True

    @dag
    def flow():
        arrived()

    assert specs_of(flow)["arrived"].executor == "dask"


@pytest.mark.parametrize(
    "options", [{"executor": "dask"}, {"resources": {"GPU": 1}}, {"executor_options": {"a": 1}}]
)
def test_a_coroutine_takes_none_of_it(options):
    @dag
    def flow():
        @task(**options)
        async def load() -> int:
            return 1

        load()

    spec, (failure,) = describe(flow, file="dags.py")

    assert spec is None
    assert failure.reason == "dag.executor"
    assert "'load'" in failure.message
    assert "@dag(executor=" in failure.message


@pytest.mark.parametrize("options", [{"resources": {"GPU": 1}}, {"executor_options": {"a": 1}}])
def test_the_local_executor_offers_nothing_special(options):
    @dag
    def flow():
        @task(**options)
        def load() -> int:
            return 1

        load()

    _, (failure,) = describe(flow, file="dags.py")

    assert failure.reason == "dag.executor"
    assert "pool=" in failure.message


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"executor": 3}, "executor must be the name of an executor"),
        ({"executor": ""}, "executor must be the name"),
        ({"executor": "a b"}, "executor must be the name"),
        ({"executor": "a" * 65}, "executor must be the name"),
        ({"resources": [("GPU", 1)]}, "resources must be a dict"),
        ({"resources": {"GPU": 0}}, "resource 'GPU' must be a number above 0"),
        ({"resources": {"GPU": -1}}, "resource 'GPU'"),
        ({"resources": {"GPU": True}}, "resource 'GPU'"),
        ({"resources": {"GPU": float("nan")}}, "resource 'GPU'"),
        ({"resources": {"GPU": float("inf")}}, "resource 'GPU'"),
        ({"resources": {"memory": "4 gigs"}}, "a size such as"),
        ({"resources": {"memory": "4G"}}, "a size such as"),
        ({"resources": {"memory": "-4GiB"}}, "a size such as"),
        ({"resources": {"memory": "9" * 400 + "B"}}, "a size such as"),
        ({"resources": {"": 1}}, "a resource cannot be named ''"),
        ({"resources": {3: 1}}, "a resource cannot be named 3"),
        ({"resources": {f"r{n}": 1 for n in range(17)}}, "at most 16"),
        ({"executor_options": [1]}, "executor_options must be a dict"),
        ({"executor_options": {"a": object()}}, "executor_options must be a dict"),
        ({"executor_options": {"a": (1, 2)}}, "only texts, numbers, lists and dicts"),
        ({"executor_options": {1: "a"}}, "executor_options must be a dict"),
        ({"executor_options": {"a": "x" * 5000}}, "4096 bytes at most"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(options, complaint):
    with pytest.raises(DagError, match=complaint):
        spec_of(**{"executor": "dask", **options})


def test_an_executor_of_a_dag_must_be_a_name():
    with pytest.raises(DagError, match="executor must be the name"):
        DAG("flow", executor="a b")
