"""Displayed times, and the page without a mouse."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from playwright.sync_api import expect

from tests.browser.watched import BROWSER_TESTS, watched

pytestmark = [*BROWSER_TESTS, pytest.mark.nightly]

TOKYO = "Asia/Tokyo"


@pytest.fixture(scope="module", autouse=True)
def runs(daemon):
    """Start one run that waits, and three runs that have ended."""
    daemon.trigger("slow", run_id="resting")
    for number in range(3):
        daemon.wait(daemon.trigger("noted", run_id=f"noted-{number}"))


def focused(page):
    return page.page.evaluate("document.activeElement.getAttribute('aria-label')")


def test_instants_are_those_of_the_readers_clock_and_say_utc_in_a_tooltip(browser, daemon):
    with watched(browser, daemon, timezone=TOKYO) as page:
        page.go("/schedules?hours=168")
        shown = page.page.locator("main time[title$=' 00:00:00 UTC']").first  # of a daily one
        theirs, utc = (shown.get_attribute("title") or "").split("\n")
        assert theirs.endswith(TOKYO)
        ahead = datetime.fromisoformat(theirs.split(" A")[0]) - datetime.fromisoformat(utc[:19])
        assert ahead == timedelta(hours=9)
        assert shown.inner_text() == theirs[:16]

        page.go("/settings")
        page.page.get_by_label("Time zone").select_option("utc")
        page.go("/schedules?hours=168")
        assert shown.inner_text() == utc[:16]
        page.clean()


def test_active_tasks_are_counted_without_another_request(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/runs/resting")
        took = page.page.locator(".run-top .facts > div", has_text="Elapsed").locator("dd")
        page.see("live", within=".rail")

        def ticks_unasked():
            before, asked = took.inner_text(), len(page.asked)
            expect(took).not_to_have_text(before)
            return len(page.asked) == asked

        page.eventually(ticks_unasked)  # requests made when the stream opened come first
        assert re.fullmatch(r"\d+s|\d+m( \d+s)?", took.inner_text())
        page.clean()


def test_arrows_go_from_box_to_box_in_a_grid(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/dags/noted")
        page.page.locator("main .cell").last.wait_for()
        page.page.keyboard.press("j")
        assert focused(page).startswith("note in noted-2: success")
        page.page.keyboard.press("ArrowLeft")
        assert "noted-1" in focused(page)
        page.page.keyboard.press("ArrowLeft")
        page.page.keyboard.press("ArrowUp")
        assert "noted-0: success" in focused(page)
        page.page.keyboard.press("ArrowDown")
        page.page.keyboard.press("Enter")
        page.page.wait_for_url("**/dags/noted?task=note&in=noted-0")
        page.page.keyboard.press("Escape")
        page.page.wait_for_url("**/dags/noted")
        page.clean()


def test_the_focus_is_visible(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/dags")
        page.page.locator("[data-row]").first.wait_for()
        page.page.keyboard.press("j")
        look = "getComputedStyle(document.activeElement, '::after').outlineStyle"
        ring = page.page.evaluate(look)
        assert ring == "solid"
        page.page.keyboard.press("/")
        assert focused(page) == "Search DAGs"
        page.clean()
