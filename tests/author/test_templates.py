"""Templates in the texts of a DAG file: found, checked, and reported with their location."""

from __future__ import annotations

import pytest

from aioflow import DAG, Operator, StartTriggerArgs, task
from aioflow.author.context import CONTEXT_INSTEAD, TEMPLATE_NAMES
from aioflow.author.dag_spec import describe, lint
from aioflow.author.templates import mistake_in, names_of
from tests.differing import differing

MISTAKES = {
    "{{ ds": (1, 6),
    "{{ ds }": (1, 7),
    "ok {{ a b }}": (1, 9),
    "x\ny {% if %}": (2, 9),
    "a\r\n{{ ds }}\r\n {{ 'x }}": (3, 5),
    "{{ ds $ }}": (1, 7),
    "{% for x in y %}\n\n": (3, 1),
    "${#x}": (1, 4),
    "a\n{{ ds\n  | shout }}": (3, 5),
    "{%- if a -%}   b {%- endunless %}": (1, 22),
    "{{ a is funny }}": (1, 9),
}


def test_a_mistake_has_a_line_and_a_column():
    found = {}
    for text in MISTAKES:
        mistake = mistake_in(text)
        found[text] = None if mistake is None else (mistake.line, mistake.column)

    assert not (rows := differing(found, MISTAKES)), rows


@pytest.mark.parametrize(
    "text",
    ["{{ ds }}", "{% raw %}{{ ds {% endraw %}", "{# said #}", "{% if ds %}a{% endif %}", "a }}"],
)
def test_templates_that_can_be_rendered_are_no_mistake(text):
    assert mistake_in(text) is None


def test_the_names_that_a_template_takes_from_the_run_are_found():
    assert names_of("{{ range(3) }}{% set q = ds %}{{ q }}{{ ti.x }}") == {"ds", "ti"}


class Show(Operator):
    template_fields = ("text", "made", "value")

    def __init__(self, text="", plain="", made="{{ ds }}", **options):
        super().__init__(**options)
        self.text, self.plain, self.made = text, plain, made

    def execute(self, context): ...


class Waits(Operator):
    template_fields = ("value",)
    start_from_trigger = True
    start_trigger_args = StartTriggerArgs(
        trigger_cls="flow.Echo",
        trigger_kwargs={"value": "{{ ds", "more": "{{ ds }}"},
        next_method="on",
    )

    def on(self, context, event=None): ...


@task
def use(text, more=None): ...


def wrong(made: DAG) -> dict[str, str]:
    """Return the template errors by task."""
    _, failures = describe(made)
    assert {failure.reason for failure in failures} == {"dag.template"}
    return {failure.message.split("'")[1]: failure.message for failure in failures}


def odd(made: DAG) -> dict[str, str]:
    """Return the template warnings by task."""
    spec, failures = describe(made)
    assert spec is not None, failures
    found = [said for said in lint(made) if said.reason == "odd.template"]
    assert all(said.line > 0 for said in found)
    return {said.message.split("'")[1]: said.message for said in found}


def test_a_template_that_does_not_parse_is_refused_with_its_place():
    with DAG("d") as made:
        Show(task_id="text", text="ls\n{{ ds }")
        Show(task_id="inside", text={"DAY": ["a", "{{ ds"]})
        Show(task_id="beside", text=["{{ ds }", use.override(task_id="of")(1)])
        Show.partial(task_id="mapped").expand(text=["a", "{% if %}"])
        Show.partial(task_id="spread").expand_kwargs([{"text": "{{ ds"}])
        Waits(task_id="start")
        Waits.partial(task_id="item").expand(trigger_kwargs=[{"value": "{{ 1 +"}])

    found = wrong(made)

    assert found.keys() == {"text", "inside", "beside", "mapped", "spread", "start", "item"}
    assert found["text"].startswith(
        "task 'text': field 'text' is not a valid template: "
        "unexpected '}' (line 2, column 7 of the text)"
    )
    assert "field \"text['DAY'][1]\"" in found["inside"]
    assert "field 'text[0]'" in found["beside"]
    assert "field 'value'" in found["start"]


def test_braces_that_nothing_renders_are_odd():
    with DAG("d") as made:
        Show(task_id="plain", plain="{{ ds", made="")
        Show(task_id="init")
        Show.partial(task_id="mapped").expand(plain=["{{ ds }}"])
        Show.partial(task_id="spread").expand_kwargs([{"plain": "{{ ds }}"}])
        use.override(task_id="function")("{{ ds }}")
        use.override(task_id="ported")([{"a": "{{ ti.xcom_pull('x') }}"}])

    found = odd(made)

    assert found.keys() == {"plain", "init", "mapped", "spread", "function", "ported"}
    assert (
        "field 'plain' has '{{ ds', which stays as it is: template_fields of Show: text, made"
        in (found["plain"])
    )
    assert "__init__ sets it" in found["init"]
    assert "argument \"text[0]['a']\"" in found["ported"]


def test_rendered_texts_and_other_braces_are_no_warning():
    with DAG("d") as made:
        Show(task_id="rendered", text="{{ ds }} {{ params.x }} ${HOME}", made=["{{ ts }}", 1])
        Show(task_id="no_braces", plain="{a} ${#x}", made="")
        Show.partial(task_id="mapped", made="").expand(text=["{{ ds }}"])
        use.override(task_id="own")("Dear {{ name }},", "{{ not one")

    assert odd(made) == {}


def test_changes_that_init_makes_to_a_template_are_no_warning():
    class Below(Operator):
        template_fields = ("folder", "path")

        def __init__(self, folder, **options):
            super().__init__(**options)
            self.folder, self.path = folder, f"{folder}/orders.csv"

        def execute(self, context): ...

    with DAG("d") as made:
        Below(task_id="a", folder="/in/{{ ds }}")

    assert odd(made) == {}


def test_a_start_trigger_names_what_it_leaves():
    class Starts(Waits):
        start_trigger_args = StartTriggerArgs(
            trigger_cls="flow.Echo", trigger_kwargs={"more": "{{ ds }}"}, next_method="on"
        )

    with DAG("d") as made:
        Starts(task_id="start")
        Starts.partial(task_id="item").expand(
            trigger_kwargs=[{"value": "{{ ds }}"}, {"b": "{{ ds }}"}]
        )

    assert {name: said.split("'")[3] for name, said in odd(made).items()} == {
        "start": "more",
        "item": "more",
    }


def test_a_name_that_no_template_knows_is_odd_and_says_what_to_write():
    with DAG("d") as made:
        Show(task_id="unknown", text="{{ nobody }}", made="")
        Show(task_id="ti", text="{{ ti.xcom_pull('x') }}", made="")

    found = odd(made)

    assert all(name in found["unknown"] for name in TEMPLATE_NAMES)
    assert found["ti"].endswith(CONTEXT_INSTEAD["ti"])


def test_template_fields_that_are_one_text_are_refused():
    class Typo(Show):
        template_fields = "text"  # type: ignore[assignment]

    with DAG("d") as made:
        Typo(task_id="a", text="{{ ds }}")

    _, (failure,) = describe(made)

    assert (failure.reason, failure.line > 0) == ("dag", True)
    assert "Typo.template_fields is the text 'text'; make it a tuple" in failure.message


def test_a_wide_list_is_not_looked_through_to_its_end():
    texts = [f"{{{{ ds }}}}/{number}" for number in range(1_000)]
    with DAG("d") as made:
        Show.partial(task_id="a", made="").expand(text=texts)
        Show.partial(task_id="b", made="").expand(text=["{{ ds }", *texts])
    mistake_in.cache_clear()

    assert wrong(made).keys() == {"b"}
    assert mistake_in.cache_info().misses <= 201
