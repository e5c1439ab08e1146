"""Assets in the browser: which task updates an asset, which DAG waits for it, and the lineage."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.watched import BROWSER_TESTS, serious, watched

pytestmark = [*BROWSER_TESTS, pytest.mark.nightly]


def test_an_asset_shows_its_last_update_and_the_dag_that_still_waits_for_another(browser, daemon):
    daemon.knows("reports")
    run = daemon.trigger("imports")
    daemon.wait(run)
    with watched(browser, daemon) as page:
        page.go("/assets")
        page.page.locator(".row-link", has_text="orders").click()
        pane = page.page.locator(".drawer")
        wanted = "Waiting for s3://warehouse/stock, and holds orders"
        expect(pane.get_by_text(wanted)).to_be_visible()
        expect(pane.get_by_role("link", name=run)).to_be_visible()
        assert serious(page.page) == []
        page.clean()


def test_the_lineage_leads_from_a_dag_over_its_asset_to_the_next_dag(browser, daemon):
    daemon.knows("reports")
    with watched(browser, daemon) as page:
        page.go("/assets?view=lineage")
        graph = page.page.get_by_role("region", name="Lineage")
        expect(graph.get_by_role("link")).to_have_count(4)
        assert serious(page.page) == []
        graph.get_by_role("link", name="DAG imports").focus()
        page.page.keyboard.press("ArrowRight")
        page.page.keyboard.press("Enter")
        page.page.wait_for_url("**open=orders")
        graph.get_by_role("link", name="DAG reports").first.click()
        page.page.wait_for_url("**/dags/reports")
        page.clean()
