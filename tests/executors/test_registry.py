"""The executors in the settings: found by entry point, and asked about each task that uses one."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint

import anyio
import msgspec
import pytest

from aioflow.executors import registry
from aioflow.executors.backend import ExecutorLease
from aioflow.executors.registry import UnusableBackend, check_executors, open_backends
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.workers import WorkerDemand, WorkerSpec
from aioflow.protocol.reports import Parsed

LEASE = ExecutorLease(home_id="home", node_no=1, epoch=1, secret="s")


class Picky(UnusableBackend):
    def check(self, task: TaskSpec) -> str:
        return "" if dict(task.resources).get("GPU", 0) <= 2 else "no worker has more than 2 GPUs"


def picky(name, table):
    if "host_name" in table:
        raise ValueError("host_name: there is no such setting")
    assert "kind" not in table
    backend = Picky(name, repr(table))
    backend.max_workers = table.get("workers", 1)
    return backend


def broken(name, table):
    raise RuntimeError("half installed")


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    points = [
        EntryPoint("picky", f"{__name__}:picky", "aioflow.executors"),
        EntryPoint("broken", f"{__name__}:broken", "aioflow.executors"),
        EntryPoint("absent", "no_such_module_here:factory", "aioflow.executors"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)


def parsed(**tasks: TaskSpec) -> Parsed:
    dags = tuple(DagSpec(dag_id=name, file="f.py", tasks=(one,)) for name, one in tasks.items())
    return Parsed(dags, (), ("f.py",))


def task(executor: str, gpus: float = 1.0) -> TaskSpec:
    return TaskSpec(task_id="t", executor=executor, resources=(("GPU", gpus),), line=7)


def test_a_table_names_its_entry_point_and_passes_on_the_rest():
    backends = open_backends({"picky": {"a": 1}, "gpu": {"kind": "picky", "b": {"c": 2}}})

    assert {name: one.name for name, one in backends.items()} == {"picky": "picky", "gpu": "gpu"}
    assert backends["gpu"].why == "{'b': {'c': 2}}"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"kind": "broken"}, "half installed"),
        ({"kind": "absent"}, "no_such_module_here"),
        ({"kind": "unheard"}, "no installed package provides the kind 'unheard'"),
        ({"kind": "picky", "workers": 0}, r"\[executors.bad\] of the settings: max_workers"),
        ({"kind": "picky", "workers": "many"}, "its package is broken: TypeError"),
        ({"kind": "picky", "host_name": "x"}, r"\[executors.bad\] of the settings: host_name"),
    ],
)
async def test_a_broken_package_hurts_only_the_tasks_that_name_it(table, why):
    backends = open_backends({"bad": table, "picky": {}})
    told = []

    class Events:
        def unavailable(self, spec: WorkerSpec, why: str) -> None:
            told.append((spec, why))

    bad = backends["bad"]
    assert isinstance(backends["picky"], Picky)
    assert bad.check(task("bad")) == ""  # it may be repaired before the task runs
    async with anyio.create_task_group() as group:
        await group.start(bad.run, LEASE, Events())
        bad.set_demand([WorkerDemand(WorkerSpec("bad"), 3)])
        group.cancel_scope.cancel()
    ((spec, sentence),) = told
    assert spec == WorkerSpec("bad")
    assert re.search(why, sentence)


def test_a_task_that_can_never_run_is_refused_with_its_dag_alone():
    backends = open_backends({"picky": {}})

    found = check_executors(parsed(good=task("picky", 2), bad=task("picky", 3)), backends)

    assert [dag.dag_id for dag in found.dags] == ["good"]
    (failure,) = found.failures
    assert (failure.reason, failure.line) == ("dag.executor", 7)
    assert failure.message == "task 't' of bad: no worker has more than 2 GPUs"


def test_an_executor_that_the_settings_lack_is_refused_and_what_there_is_named():
    found = check_executors(parsed(bad=task("dask")), open_backends({"picky": {}}))

    (failure,) = found.failures
    assert not found.dags
    assert "no executor 'dask', only local, picky" in failure.message
    assert "[executors.dask]" in failure.message


@pytest.mark.parametrize(
    ("executor", "interpreter", "is_refused"),
    [
        pytest.param("picky", "lab", True, id="without"),
        pytest.param("picky", "", False, id="ours"),
        pytest.param("equipped", "lab", False, id="with"),
        pytest.param("equipped", "other", True, id="with-another"),
        pytest.param("local", "lab", False, id="local"),
    ],
)
def test_a_task_is_refused_where_no_worker_has_the_interpreter_of_its_file(
    executor, interpreter, is_refused
):
    class Equipped(Picky):
        interpreters = frozenset({"lab"})

    backends = {"picky": Picky("picky", ""), "equipped": Equipped("equipped", "")}
    file = parsed(a=task(executor))
    dags = tuple(msgspec.structs.replace(dag, interpreter=interpreter) for dag in file.dags)
    found = check_executors(msgspec.structs.replace(file, dags=dags), backends)

    assert [failure.line for failure in found.failures] == [7] * is_refused
    assert all(f"has no python {interpreter!r}" in one.message for one in found.failures)


def test_local_tasks_are_not_checked():
    given = parsed(good=TaskSpec(task_id="t"))

    assert check_executors(given, {}) is given
