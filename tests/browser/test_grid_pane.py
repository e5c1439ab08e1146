"""The task of a cell is shown beside the grid, while the grid remains in place."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.watched import BROWSER_TESTS, violations, watched

pytestmark = [*BROWSER_TESTS]


@pytest.fixture
def failed(daemon, tmp_path):
    """Return a run in which one task failed, and the other therefore could not run."""
    run = daemon.trigger("fails", {"flag": str(tmp_path / "flag")})
    daemon.wait(run)
    return run


@pytest.fixture
def grid(browser, daemon, failed):
    with watched(browser, daemon) as page:
        page.go("/dags/fails")
        yield page
        page.clean()


def cell(page, task, run):
    return page.page.get_by_role("link", name=f"{task} in {run}:")


def test_a_click_on_a_cell_shows_its_try_and_log_beside_the_grid(grid, failed):
    cell(grid, "once", failed).click()

    pane = grid.page.locator(".drawer")
    expect(pane.get_by_role("heading", name="once")).to_be_visible()
    expect(pane).to_contain_text("1 of 1")
    grid.see("not yet", within=".drawer .lines")
    assert violations(grid.page) == []
    expect(cell(grid, "once", failed)).to_have_attribute("aria-current", "true")
    pane.get_by_role("link", name=failed).click()
    grid.page.wait_for_url(f"**/runs/{failed}?task=once")


def test_the_pane_follows_the_arrow_keys_and_closes_with_the_focus_on_its_cell(grid, failed):
    cell(grid, "once", failed).focus()
    grid.page.keyboard.press("Enter")
    pane = grid.page.locator(".drawer")
    expect(pane.get_by_role("heading", name="once")).to_be_visible()
    expect(cell(grid, "once", failed)).to_be_focused()

    grid.page.keyboard.press("ArrowDown")
    expect(pane.get_by_role("heading", name="then")).to_be_visible()
    expect(pane).to_contain_text("ValueError: not yet")  # why it could not run
    grid.page.keyboard.press("Enter")
    expect(pane).to_be_focused()

    grid.page.keyboard.press("Escape")
    expect(pane).to_have_count(0)
    expect(cell(grid, "then", failed)).to_be_focused()
    grid.page.wait_for_url("**/dags/fails")
