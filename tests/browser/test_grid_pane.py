"""The task of a cell is shown beside the grid, which stays where it is."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.watched import BROWSER_TESTS, violations, watched

pytestmark = [*BROWSER_TESTS]


@pytest.fixture
def grid(browser, daemon, tmp_path):
    """The grid of a DAG with a failed run."""
    run = daemon.trigger("fails", {"flag": str(tmp_path / "flag")}, run_id="beside-the-grid")
    daemon.wait(run)
    with watched(browser, daemon) as page:
        page.go("/dags/fails")
        yield page
        page.clean()


def cell(page, task):
    return page.page.get_by_role("link", name=f"{task} in beside-the-grid:")


def test_a_click_on_a_cell_shows_its_try_and_log_beside_the_grid(grid):
    cell(grid, "once").click()

    pane = grid.page.locator(".drawer")
    expect(pane.get_by_role("heading", name="once")).to_be_visible()
    expect(pane).to_contain_text("1 of 1")
    grid.see("not yet", within=".drawer .lines")
    assert violations(grid.page) == []
    expect(cell(grid, "once")).to_have_attribute("aria-current", "true")
    pane.get_by_role("link", name="beside-the-grid").click()
    grid.page.wait_for_url("**/runs/beside-the-grid?task=once")


def test_the_pane_follows_the_arrow_keys_and_closes_with_the_focus_on_its_cell(grid):
    cell(grid, "once").focus()
    grid.page.keyboard.press("Enter")
    pane = grid.page.locator(".drawer")
    expect(pane.get_by_role("heading", name="once")).to_be_visible()
    expect(cell(grid, "once")).to_be_focused()

    grid.page.keyboard.press("ArrowDown")
    expect(pane.get_by_role("heading", name="then")).to_be_visible()
    expect(pane).to_contain_text("ValueError: not yet")  # why it could not run
    grid.page.keyboard.press("Enter")
    expect(pane).to_be_focused()

    grid.page.keyboard.press("Escape")
    expect(pane).to_have_count(0)
    expect(cell(grid, "then")).to_be_focused()
    grid.page.wait_for_url("**/dags/fails")
