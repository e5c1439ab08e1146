"""A mapped task on the page: its children as a map, its errors in groups, a clear of one group."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.watched import BROWSER_TESTS, serious, watched

pytestmark = [*BROWSER_TESTS]


@pytest.mark.parametrize(("theme", "size"), [("dark", "desk"), ("light", "phone")])
def test_the_children_of_a_mapped_task_are_reached_by_keyboard(browser, daemon, theme, size):
    with watched(browser, daemon, theme=theme, size=size) as page:
        page.go("/runs/loud?task=breaks")
        page.page.wait_for_selector(".fan-map canvas")
        page.page.wait_for_selector(".histogram")
        assert serious(page.page) == []
        assert page.overflow() <= 0
        page.page.locator(".fan-map-focus").focus()
        for key in ("Home", "ArrowRight", "ArrowRight"):
            page.page.keyboard.press(key)
        page.see("breaks[2]", within=".fan-map-card")
        expect(page.page.locator(".fan-map [role=status]")).to_contain_text("breaks[2], Failed")
        page.page.keyboard.press("Enter")
        page.page.wait_for_url("**map=2*")
        page.clean()


def test_the_children_with_one_error_are_cleared_and_the_map_follows(browser, daemon, tmp_path):
    flag = tmp_path / "flag"
    run = daemon.trigger("parts", {"flag": str(flag)})
    daemon.wait(run)
    flag.touch()
    with watched(browser, daemon) as page:
        page.go(f"/runs/{run}?task=part")
        group = page.page.locator(".error-groups li")
        expect(group).to_contain_text("1 × ValueError: not yet")
        group.get_by_role("button", name="Retry these").click()
        page.see("part[1]", within="dialog .preview")
        page.confirm("Retry")
        page.heard("1 task runs again")
        expect(group).to_have_count(0)
        page.page.locator(".fan-map-focus").focus()
        page.page.keyboard.press("Home")
        page.page.keyboard.press("ArrowRight")
        said = page.page.locator(".fan-map [role=status]")
        expect(said).to_contain_text("part[1], Success")
        page.clean()
