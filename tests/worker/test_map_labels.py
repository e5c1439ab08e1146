"""Labels of mapped children in both kinds of hosts: reported before the body runs."""

from __future__ import annotations

import pytest

from aioflow.protocol.commands import StartTask
from aioflow.protocol.reports import Labelled, Succeeded
from aioflow.worker.task.items import LABEL_LIMIT
from tests.worker.peer import Child, result_of, run_info, start, write_version

pytestmark = pytest.mark.process

DAG = """
from aioflow import *

class Settle(Operator):
    def __init__(self, *, n, **options):
        super().__init__(**options)
        self.n = n
    {kind} execute(self, context): return self.n

def raises(n): raise SystemExit(n)
def everything(**arguments): return sorted(arguments)

@task({options})
{kind} work(n, day="monday"):
    return n

@dag
def pipeline():
    work.expand(n=[0, 1, 2])
    work(7)
    Settle.partial(task_id="op", {options}).expand(n=[0, 1, 2])
"""


@pytest.fixture(params=["slot", "async"])
def child(request, home, spawn):
    """Return a function that starts a host for the DAG with these options."""

    def child(options: str) -> Child:
        kind = "def" if request.param == "slot" else "async def"
        write_version(home, flow=DAG.format(options=options, kind=kind))
        made: Child = spawn(request.param)
        made.send(run_info())
        return made

    return child


def of_child(index: int, task_index: int = 0, **fields: int) -> StartTask:
    return start(task_index, map_index=index, widths=(3,), **fields)


@pytest.mark.parametrize(
    ("label", "said"),
    [
        pytest.param('"merchant {n}"', "merchant 2", id="text"),
        pytest.param("lambda n: f'm{n:03}'", "m002", id="function"),
        pytest.param("lambda n: 10 * n", "20", id="of-another-type"),
        pytest.param("everything", "['n']", id="takes-all-there-are"),
        pytest.param("lambda: 'a\\n  b\\0c'", "a b c", id="several-lines"),
    ],
)
def test_a_child_is_called_what_its_arguments_say_before_its_body_runs(child, label, said):
    host = child(f"map_label={label}")

    host.send(of_child(2, task_no=9, start_no=4))

    labelled, ended = (host.expect(kind) for kind in (Labelled, Succeeded))
    assert (labelled.task_no, labelled.start_no, labelled.label) == (9, 4, said)
    assert (ended.task_no, result_of(ended)) == (9, 2)


def test_an_operator_is_called_so_too(child):
    host = child('map_label="merchant {n}"')

    host.send(of_child(1, task_index=2))

    assert host.expect(Labelled).label == "merchant 1"
    assert result_of(host.expect(Succeeded)) == 1


def test_a_long_label_is_cut(child):
    host = child("map_label=lambda n: 'x' * 10**6")

    host.send(of_child(0))

    label = host.expect(Labelled).label
    assert len(label) == LABEL_LIMIT
    assert label.endswith("x...")


@pytest.mark.parametrize("label", ["raises", '"{unknown}"', '"{n.missing}"', "lambda other: 1"])
def test_a_label_that_raises_does_not_fail_its_child(child, label):
    host = child(f"map_label={label}")

    host.send(of_child(1))
    ended = host.expect(Succeeded)

    assert result_of(ended) == 1
    assert not any(isinstance(said, Labelled) for frame in host.frames for said in frame)


def test_only_children_have_labels(child):
    host = child('map_label="{n}"')

    host.send(start(1))

    assert result_of(host.expect(Succeeded)) == 7
    assert not any(isinstance(said, Labelled) for frame in host.frames for said in frame)
