"""Elements that all views share: the pane beside a list, tables, and the way back."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.watched import BROWSER_TESTS, serious, violations, watched

pytestmark = [*BROWSER_TESTS, pytest.mark.nightly]

ROW = 40
"""Height of a row in pixels."""


def focused(page):
    return page.page.evaluate("document.activeElement.textContent")


def height(page):
    found = "document.querySelector('.virtual-row').getBoundingClientRect().height"
    return page.page.evaluate(found)


def test_a_task_opens_beside_its_run_and_closing_it_leaves_nothing_to_go_back_to(browser, daemon):
    run = daemon.trigger("slow")
    with watched(browser, daemon) as page:
        page.go("/dags")
        page.go(f"/runs/{run}")
        page.page.locator(".row-link", has_text="rests").click()
        pane = page.page.locator(".drawer")
        expect(pane.get_by_role("heading", name="rests")).to_be_visible()
        page.page.keyboard.press("]")
        page.page.wait_for_url("**task=after")
        page.page.keyboard.press("[")
        page.page.wait_for_url("**task=rests")
        page.page.keyboard.press("f")
        expect(page.page.locator(".split-main")).to_be_hidden()
        page.page.keyboard.press("f")
        for tab in ("Log", "Tries", "Data", "Code", "Why"):
            pane.locator(".tabs").get_by_role("link", name=tab).click()
            assert serious(page.page) == []
        page.page.keyboard.press("Escape")
        expect(pane).to_have_count(0)

        page.page.go_back()
        page.page.wait_for_url("**/dags")
        page.clean()
    daemon.request("POST", f"/api/v1/runs/{run}/cancel")


def test_the_width_of_the_pane_is_changed_by_keys_and_stored(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/runs/loud?task=breaks&map=1")
        border = page.page.get_by_role("separator")
        before = int(border.get_attribute("aria-valuenow") or 0)
        border.press("ArrowLeft")
        expect(border).to_have_attribute("aria-valuenow", str(before + 4))
        page.go("/runs/loud?task=gives")
        expect(border).to_have_attribute("aria-valuenow", str(before + 4))
        page.clean()


def test_going_back_finds_the_place_and_the_row_that_was_opened(browser, daemon):
    with watched(browser, daemon) as page:
        page.page.set_viewport_size({"width": 1400, "height": 420})
        page.go("/dags")
        row = page.page.get_by_role("link", name="wide", exact=True)
        page.page.locator(".virtual").evaluate("(node) => { node.scrollTop = node.scrollHeight }")
        row.focus()
        top = page.page.locator(".virtual").evaluate("(node) => node.scrollTop")
        page.page.keyboard.press("Enter")
        page.page.wait_for_url("**/dags/wide")
        page.settle()
        page.page.go_back()
        page.eventually(lambda: focused(page) == "wide")
        again = page.page.locator(".virtual").evaluate("(node) => node.scrollTop")
        assert abs(again - top) < ROW
        page.clean()


def test_columns_and_density_are_chosen_and_stay_so(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/dags")
        title = page.page.get_by_role("columnheader", name="Next run")
        expect(title).to_be_visible()
        page.page.locator(".virtual-row").first.wait_for()
        tall = height(page)
        page.press("Columns and density")
        menu = page.page.get_by_role("menu")
        menu.get_by_role("menuitemcheckbox", name="Next run").click()
        menu.get_by_role("menuitemcheckbox", name="Compact rows").click()
        assert serious(page.page) == []
        page.go("/dags")
        page.page.locator(".virtual-row").first.wait_for()
        expect(title).to_have_count(0)
        assert height(page) < tall
        page.clean()


def test_columns_are_resized_by_pointer_and_keyboard_and_stay_so(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/dags")
        title = page.page.get_by_role("columnheader", name="DAG", exact=True)
        edge = page.page.get_by_role("separator", name="Width of column DAG")
        page.page.locator(".virtual-row").first.wait_for()
        before = wide(title)

        edge.focus()
        page.page.keyboard.press("ArrowLeft")
        page.eventually(lambda: wide(title) == before - 16)
        box = edge.bounding_box()
        assert box is not None
        page.page.mouse.move(box["x"] + 8, box["y"] + 20)
        page.page.mouse.down()
        page.page.mouse.move(box["x"] - 32, box["y"] + 20)
        page.page.mouse.up()
        page.eventually(lambda: wide(title) == before - 56)
        row = page.page.locator(".virtual-row .cell-of-dag").first
        assert wide(row) == before - 56
        assert violations(page.page) == []

        page.go("/dags")
        page.eventually(lambda: wide(title) == before - 56)
        edge.dblclick()
        page.eventually(lambda: wide(title) == before)
        page.clean()


def test_columns_of_a_phone_are_not_resized(browser, daemon):
    with watched(browser, daemon, size="phone") as page:
        page.go("/dags")
        page.page.locator(".virtual-row").first.wait_for()
        expect(page.page.get_by_role("separator")).to_have_count(0)
        page.clean()


def wide(cell):
    return round(cell.bounding_box()["width"])


def test_a_table_is_sorted_by_a_column_and_says_so(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/runs/loud")
        title = page.page.get_by_role("columnheader", name="Task")
        names = page.page.locator(".row-link")
        title.get_by_role("button").click()
        expect(title).to_have_attribute("aria-sort", "ascending")
        ascending = names.all_inner_texts()
        title.get_by_role("button").click()
        expect(title).to_have_attribute("aria-sort", "descending")
        assert names.all_inner_texts() == ascending[::-1] != ascending
        page.clean()


def test_a_mistyped_address_is_a_page_that_leads_home(browser, daemon):
    with watched(browser, daemon, refusals=(404,)) as page:
        page.go("/dagz/daily")
        page.see("Page not found", within="main h1")
        page.page.get_by_role("link", name="Go to Home").click()
        page.page.wait_for_url(re.compile("/$"))
        page.clean()


def test_a_table_is_copied_as_csv_with_full_times(browser, daemon):
    with watched(browser, daemon) as page:
        page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.go("/runs?dag=hostile")
        page.press("Columns and density")
        page.page.get_by_role("menuitem", name="Copy as CSV").click()
        page.heard("Copied 1 row")
        (head, run, _) = page.page.evaluate("navigator.clipboard.readText()").split("\r\n")
        assert head == "State,Run,DAG,Reason,Started by,Started,Duration"
        assert re.search(r",loud,hostile,.+: .+,home,20", run)
        page.clean()


def test_tasks_are_filtered_by_several_states(browser, daemon):
    counts = daemon.run("loud")["counts"]
    with watched(browser, daemon) as page:
        page.go("/runs/loud/tasks")
        page.press("State")
        menu = page.page.get_by_role("menu")
        for state, name in (("success", "Success"), ("failed", "Failed")):
            assert counts[state] > 0
            menu.get_by_role("menuitemcheckbox", name=name, exact=False).first.click()
        rows = page.page.locator(".virtual")
        wanted = counts["success"] + counts["failed"]
        expect(rows).to_have_attribute("aria-rowcount", str(wanted + 1))
        page.page.wait_for_url("**/tasks?state=success&state=failed")
        assert serious(page.page) == []
        page.clean()
