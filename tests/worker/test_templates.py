"""Texts of a DAG file are templates where an operator declares it; values never are."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aioflow.author.codec import encode
from aioflow.author.context import RunContext
from aioflow.protocol.reports import Failed, Succeeded
from aioflow.worker.task.template_rendering import template_renderer
from tests.worker.peer import result_of, run_info, start, write_version

RUN = RunContext(
    run_id="r-1", dag_id="d", created_at=1_767_225_600_000_000, params={"who": "{{ run_id }}"}
)

FLOW = """
from aioflow import *

class Show(Operator):
    template_fields = ("text", "more")

    def __init__(self, text, more=(), plain="", **kwargs):
        super().__init__(**kwargs)
        self.text, self.more, self.plain = text, more, plain

    def execute(self, context):
        return [self.text, self.more, self.plain]

@task
def said():
    return "{{ run_id }}"

with DAG("pipeline", params={"who": "{{ ds }}"}):
    result = said()
    Show("{{ run_id }}", {"a": ["{{ params.who }}", result]}, "{{ run_id }}", task_id="show")
    Show("{{ nobody }}", task_id="wrong")
    Show("{% if %}", task_id="broken")
    Show("{{ ''.__class__.__mro__[1].__subclasses__() }}", task_id="escape")
    Show.partial(task_id="mapped").expand(text=["{{ map_index }}a", "{{ map_index }}b"])
"""


@pytest.fixture
def child(home, spawn):
    write_version(home, flow=FLOW)
    made = spawn("slot")
    made.send(run_info(run_id="r-1"))
    return made


@pytest.mark.process
def test_templates_are_rendered_and_what_they_bring_is_not(child):
    child.send(start(1, results={0: encode("{{ run_id }}", "")}, at_hand=(0,)))

    text, more, plain = result_of(child.expect(Succeeded))

    assert text == "r-1"
    assert more == {"a": ["{{ ds }}", "{{ run_id }}"]}
    assert plain == "{{ run_id }}"


@pytest.mark.process
def test_items_that_stand_in_the_file_are_templates(child):
    child.send(start(5, map_index=1, widths=(2,)))

    assert result_of(child.expect(Succeeded))[0] == "1b"


@pytest.mark.process
@pytest.mark.parametrize(
    ("task_index", "says"),
    [
        pytest.param(2, "'nobody' is undefined", id="an-unknown-name"),
        pytest.param(3, "argument 'text': TemplateSyntaxError", id="no-template"),
        pytest.param(4, "argument 'text': SecurityError", id="out-of-the-sandbox"),
    ],
)
def test_a_template_that_cannot_be_rendered_fails_the_try(child, task_index, says):
    child.send(start(task_index))

    failed = child.expect(Failed)

    assert failed.failure.reason == "argument"
    assert says in failed.failure.message


@pytest.mark.process
def test_a_text_without_braces_costs_no_template_engine():
    code = (
        "import sys; from aioflow.worker.task import arguments, template_rendering;"
        "assert template_rendering.template_renderer(None)('plain { text }') == 'plain { text }';"
        "assert 'jinja2' not in sys.modules and 'jsonschema' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_everything_inside_lists_and_dicts_is_rendered_and_keeps_its_form():
    render = template_renderer(RUN)

    assert render(["{{ ds }}\n", ("{{ ts_nodash }}",), {"{{ ds }}": 1, "b": None}, 2]) == [
        "2026-01-01\n",
        ("20260101T000000",),
        {"{{ ds }}": 1, "b": None},
        2,
    ]
    assert render("{{ params.who }}") == "{{ run_id }}"
