"""The command palette: finding things by typing, and acting without a mouse."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.watched import AXE, BROWSER_TESTS, serious, watched

pytestmark = [*BROWSER_TESTS, pytest.mark.nightly]


def opened(page):
    page.page.keyboard.press("Control+k")
    field = page.page.get_by_role("combobox", name="Search DAGs, runs, tasks and actions")
    expect(field).to_be_focused()
    return field


def option(page, name):
    return page.page.get_by_role("option", name=name)


def choose(page, words, name):
    """Type into the palette, and press Enter once the first option is the intended one."""
    page.page.keyboard.type(words)
    expect(page.page.get_by_role("option").first).to_have_accessible_name(name)
    page.page.keyboard.press("Enter")


def test_a_run_is_found_by_a_part_of_its_id_and_a_task_of_it_by_its_name(browser, daemon):
    with watched(browser, daemon) as page:
        opened(page)
        choose(page, "oud", re.compile(r"^loud\b"))
        page.page.wait_for_url("**/runs/loud")
        opened(page)
        choose(page, "gives", re.compile(r"\bgives\b"))
        page.page.wait_for_url("**/runs/loud?task=gives")
        page.clean()


def test_a_dag_is_triggered_and_its_run_cancelled_by_keys_alone(browser, daemon):
    with watched(browser, daemon) as page:
        opened(page)
        choose(page, "trig slow", re.compile("Trigger slow"))
        page.page.get_by_role("heading", name="Trigger slow").wait_for()
        page.confirm("Trigger")
        page.page.wait_for_url("**/runs/*")
        page.page.get_by_role("button", name="Cancel run").wait_for()
        opened(page)
        choose(page, "cancel", re.compile("Cancel"))
        page.confirm("Cancel run")
        page.page.get_by_role("button", name="Cancel run").wait_for(state="detached")
        page.clean()


def test_the_first_escape_closes_it_and_what_was_open_is_offered_again(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/dags/wide")
        page.go("/runs")
        field = opened(page)
        expect(option(page, re.compile("^wide"))).to_be_visible()
        assert serious(page.page) == []
        page.page.keyboard.type("no such thing")
        page.see("No matches.")
        page.page.keyboard.press("Escape")
        expect(field).to_have_count(0)
        page.clean()


def test_the_name_of_the_search_button_holds_the_words_it_shows(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/dags")
        page.page.evaluate(AXE.read_text())
        rule = "{runOnly: ['label-content-name-mismatch']}"
        found = page.page.evaluate(f"axe.run(document.querySelector('.rail'), {rule})")
        assert found["violations"] == []
