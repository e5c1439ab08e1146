"""Times as they are read, and a page that is read without a mouse."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from playwright.sync_api import expect

from benchmarks.daemon import DaemonProcess
from tests.browser.dags import WORKS
from tests.browser.watched import watched

pytestmark = [pytest.mark.browser, pytest.mark.process, pytest.mark.timeout(400)]

TOKYO = "Asia/Tokyo"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reading")
    (folder / "dags").mkdir()
    (folder / "dags" / "works.py").write_text(WORKS)
    with DaemonProcess(folder / "home", folder / "dags") as running:
        running.trigger("slow", run_id="parked")
        for number in range(3):
            running.wait(running.trigger("daily", run_id=f"daily-{number}"))
        running.request("POST", "/api/v1/dags/daily/pause")  # no fourth one at midnight
        yield running


def focused(page):
    return page.page.evaluate("document.activeElement.getAttribute('aria-label')")


def test_instants_are_those_of_the_readers_clock_and_say_utc_in_a_tooltip(browser, daemon):
    with watched(browser, daemon, timezone=TOKYO) as page:
        page.go("/schedules?hours=168")
        shown = page.page.locator("main time").first
        theirs, utc = (shown.get_attribute("title") or "").split("\n")
        assert theirs.endswith(TOKYO)
        assert utc.endswith(" 00:00:00 UTC")
        ahead = datetime.fromisoformat(theirs.split(" A")[0]) - datetime.fromisoformat(utc[:19])
        assert ahead == timedelta(hours=9)
        assert shown.inner_text() == theirs[:16]

        page.go("/settings")
        page.page.get_by_label("Times").select_option("utc")
        page.go("/schedules?hours=168")
        assert page.page.locator("main time").first.inner_text() == utc[:16]
        page.clean()


def test_what_goes_on_is_counted_without_being_asked_for_again(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/runs/parked")
        took = page.page.locator(".run-top .facts > div", has_text="Takes").locator("dd")
        page.see("live", within=".rail")

        def ticks_unasked():
            before, asked = took.inner_text(), len(page.asked)
            expect(took).not_to_have_text(before)
            return len(page.asked) == asked

        page.eventually(ticks_unasked)  # what the stream's beginning has asked for comes first
        assert re.fullmatch(r"\d+ s|\d+m( \d+s)?", took.inner_text())
        page.clean()


def test_arrows_go_from_box_to_box_in_a_grid(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/dags/daily")
        page.page.locator("main .cell").last.wait_for()
        page.page.keyboard.press("j")
        assert focused(page).startswith("note in daily-2: success")
        page.page.keyboard.press("ArrowLeft")
        assert "daily-1" in focused(page)
        page.page.keyboard.press("ArrowLeft")
        page.page.keyboard.press("ArrowUp")
        assert focused(page).startswith("daily-0: success")
        page.page.keyboard.press("ArrowDown")
        page.page.keyboard.press("Enter")
        page.page.wait_for_url("**/runs/daily-0?task=note")
        page.page.keyboard.press("Escape")
        page.page.wait_for_url("**/runs/daily-0")
        page.clean()


def test_what_has_the_focus_is_seen_to_have_it(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/dags")
        page.page.locator("[data-row]").first.wait_for()
        page.page.keyboard.press("j")
        ring = page.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert ring == "solid"
        page.page.keyboard.press("/")
        assert focused(page) == "Find a DAG"
        page.clean()
