from __future__ import annotations

import pytest

from aioflow.protocol.commands import Parse
from aioflow.protocol.reports import Parsed
from tests.worker.peer import VERSION, write_version

pytestmark = pytest.mark.process

PIPELINE = """
from aioflow import dag, task
import helper

@task
def work() -> int:
    return helper.ANSWER

@dag
def pipeline():
    work()
"""


@pytest.fixture
def parse(home, spawn):
    def parse(file: str = "flow.py", **files: str) -> Parsed:
        folder = write_version(home, **files)
        child = spawn("parser")
        child.send(Parse(str(folder), file))
        parsed: Parsed = child.expect(Parsed)
        return parsed

    return parse


def test_a_good_file_is_described_with_the_modules_it_needs(parse):
    parsed = parse(
        flow=PIPELINE, helper="from deeper import more\nANSWER = more.X", deeper__more="X = 1"
    )

    assert [dag.dag_id for dag in parsed.dags] == ["pipeline"]
    assert parsed.dags[0].file == "flow.py"
    assert [task.task_id for task in parsed.dags[0].tasks] == ["work"]
    assert parsed.failures == ()
    assert parsed.modules == ("deeper/more.py", "flow.py", "helper.py")


LATE = """
from aioflow import dag, task

@task
def work() -> int:
    import helper
    from deeper import more, __name__ as name
    try:
        import json, not_there
    except ImportError:
        from broken import anything
    return helper.ANSWER

@dag
def pipeline():
    work()
"""


def test_imports_inside_tasks_are_named_too(parse, home):
    package = write_version(home, deeper__more="") / "deeper" / "__init__.py"
    package.touch()

    parsed = parse(
        flow=LATE,
        helper="def late():\n  from far.away import thing\n  import flow",
        deeper__more="def late(): from .beside import X; from ..top import Y; from . import rest",
        deeper__beside="",
        deeper__rest="",
        top="",
        far__away="",
        broken="def (:",
        idle="",
    )

    assert parsed.failures == ()
    assert parsed.modules == (
        "broken.py",
        "deeper/__init__.py",
        "deeper/beside.py",
        "deeper/more.py",
        "deeper/rest.py",
        "far/away.py",
        "flow.py",
        "helper.py",
        "top.py",
    )


def test_a_file_in_a_subfolder_imports_its_helpers_from_the_top(parse):
    parsed = parse("team/flow.py", team__flow=PIPELINE, helper="ANSWER = 1")

    assert [dag.file for dag in parsed.dags] == ["team/flow.py"]
    assert parsed.modules == ("helper.py", "team/flow.py")


@pytest.mark.parametrize(
    ("source", "reason", "line", "message"),
    [
        pytest.param("x = 1\ndef f(:\n", "syntax_error", 2, "invalid syntax", id="syntax"),
        pytest.param("\nimport no_such_thing\n", "import_error", 2, "no_such_thing", id="import"),
        pytest.param("import sys\nsys.exit(3)\n", "exit", 2, "sys.exit(3)", id="sys.exit"),
        pytest.param("raise KeyboardInterrupt\n", "raised", 1, "KeyboardInterrupt", id="interrupt"),
        pytest.param("raise GeneratorExit\n", "raised", 1, "GeneratorExit", id="generator-exit"),
        pytest.param("\n\n1 / 0\n", "raised", 3, "division by zero", id="raises"),
        pytest.param("def f(): f()\nf()\n", "recursion", 1, "recursion", id="recursion"),
        pytest.param("b = bytearray(10 * 1024**3)\n", "memory", 1, "memory", id="memory"),
        pytest.param(
            "class E(Exception):\n  def __str__(self): raise SystemExit\nraise E\n",
            "raised",
            3,
            "cannot be shown",
            id="unspeakable",
        ),
    ],
)
def test_every_failure_of_a_file_has_a_reason_and_a_line(parse, source, reason, line, message):
    parsed = parse(flow=source)

    (failure,) = parsed.failures
    assert (failure.reason, failure.line) == (reason, line)
    assert message in failure.message
    assert parsed.dags == ()
    assert parsed.modules == ("flow.py",)


def test_a_broken_helper_is_named_so_that_mending_it_leads_to_another_parse(parse):
    parsed = parse(flow="import good\nimport helper\n", good="", helper="x = (\n")

    assert parsed.failures[0].reason == "syntax_error"
    assert parsed.modules == ("flow.py", "good.py", "helper.py")


def test_one_wrong_dag_does_not_take_the_others_with_it(parse):
    parsed = parse(
        flow=PIPELINE
        + """
@dag
def circle():
    a = work()
    b = work()
    a >> b >> a
""",
        helper="ANSWER = 1",
    )

    assert [dag.dag_id for dag in parsed.dags] == ["pipeline"]
    assert [failure.reason for failure in parsed.failures] == ["dag.cycle"]


def test_a_dag_defined_twice_is_a_failure_of_its_own(parse):
    again = "\n@dag\ndef pipeline():\n    work()\n"

    parsed = parse(flow=PIPELINE + again, helper="ANSWER = 1")

    assert [failure.reason for failure in parsed.failures] == ["dag.duplicate_dag"]


def test_dags_of_an_imported_dag_file_belong_to_that_file(parse):
    parsed = parse(
        flow="import other\n" + PIPELINE,
        helper="ANSWER = 1",
        other=PIPELINE.replace("pipeline", "another"),
    )

    assert [dag.dag_id for dag in parsed.dags] == ["pipeline"]


def test_a_file_named_like_a_module_of_python_leaves_that_alone(parse):
    parsed = parse(
        "json.py",
        json=PIPELINE.replace("import helper", "import base64; from aioflow import Fail").replace(
            "helper.ANSWER", "1"
        ),
    )

    assert [dag.dag_id for dag in parsed.dags] == ["pipeline"]


def test_nothing_is_written_beside_the_file(parse, home):
    parse(flow=PIPELINE, helper="ANSWER = 1")

    names = {path.name for path in (home / "code" / VERSION).iterdir()}
    assert names == {"flow.py", "helper.py"}


def test_a_missing_file_is_said_to_be_gone(parse):
    parsed = parse("absent.py", flow="")

    assert [failure.reason for failure in parsed.failures] == ["gone"]


def test_a_thread_the_file_left_running_does_not_keep_the_parser(parse):
    source = "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"

    parsed = parse(flow=source + PIPELINE, helper="ANSWER = 1")

    assert [dag.dag_id for dag in parsed.dags] == ["pipeline"]
