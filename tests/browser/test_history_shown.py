"""The history on the page: few requests, charts with a table, and when each schedule fired."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from playwright.sync_api import expect

from tests.browser.watched import BROWSER_TESTS, watched

pytestmark = [*BROWSER_TESTS]


def test_home_opens_with_four_requests_and_its_chart_has_a_table(browser, daemon):
    with watched(browser, daemon) as page:
        before = len(page.asked)
        page.go("/")
        page.page.wait_for_selector(".chart svg")
        asked = {urlsplit(url).path for url in page.asked[before:] if "/api/" in url}
        chart = page.page.locator(".home-stack .chart")
        chart.get_by_text("Show as a table").click()

        assert asked - {"/api/v1/stream"} == {
            f"/api/v1/{name}" for name in ("me", "overview", "home", "history/runs")
        }
        assert chart.locator("tbody tr").count() == 24
        chart.locator("svg").focus()
        page.page.keyboard.press("ArrowLeft")
        page.see("Failed", within=".chart-tip")
        page.clean()


def test_a_dag_shows_how_long_its_tasks_take(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/dags/hostile/history")
        page.page.wait_for_selector(".charts .chart svg")
        page.see("Failure rate")
        page.page.get_by_role("button", name="30 d").click()
        page.press("Show as tables")
        expect(page.page.locator(".charts svg")).to_have_count(0)
        rates = page.page.get_by_role("region", name="Failure rate: hostile")
        expect(rates).to_contain_text(re.compile(r"100 % \(\d+ of \d+\)"))
        took = page.page.get_by_role("region", name="Duration: hostile")
        expect(took).to_contain_text("Failed")
        page.see("breaks", within=".table")
        page.clean()
