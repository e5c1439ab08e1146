"""The log of a task on the page, while the task prints it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.watched import BROWSER_TESTS, watched

pytestmark = [*BROWSER_TESTS, pytest.mark.nightly]

MOST_ELEMENTS = 800
LAST = "and a last one, with ä"


@pytest.fixture
def printing(daemon, tmp_path):
    """A run whose task has printed 5,000 lines, and prints one more once the test releases it."""
    return daemon.trigger("printing", {"folder": str(tmp_path)})


def is_at_end(lines):
    return lines.evaluate("(node) => node.scrollTop + node.clientHeight >= node.scrollHeight - 18")


def test_the_scroll_position_stays_until_the_user_wants_the_end(
    browser, daemon, printing, tmp_path
):
    with watched(browser, daemon) as page:
        page.go(f"/runs/{printing}?task=prints")
        page.see("line 4999 of many", within=".drawer .lines")
        lines = page.page.locator(".drawer .lines")
        follow = page.page.get_by_label("follow")
        assert follow.is_checked()
        lines.evaluate("(node) => { node.scrollTop = 18_000 }")
        expect(follow).not_to_be_checked()
        page.see("line 1000 of many", within=".drawer .lines")
        (tmp_path / "go").touch()
        page.see("5,001 lines", within=".drawer .log-head")
        assert lines.evaluate("(node) => node.scrollTop") == 18_000

        page.press("To the end ↓", within=".drawer")
        page.see(LAST, within=".drawer .lines")
        assert is_at_end(lines)
        assert follow.is_checked()
        page.clean()


def test_a_line_that_was_searched_for_is_shown_among_the_others(
    browser, daemon, printing, tmp_path
):
    (tmp_path / "go").touch()
    daemon.wait(printing)
    with watched(browser, daemon) as page:
        page.go(f"/runs/{printing}?task=prints")
        page.page.get_by_label("Lines that contain").fill("LINE 2345 of")
        page.see("1 of them", within=".drawer .log-head")
        assert page.page.locator(".drawer .lines mark").inner_text() == "line 2345 of"
        page.page.get_by_role("button", name="line 2345 of many").click()

        page.see("line 2346 of many", within=".drawer .lines")
        page.see("line 2344 of many", within=".drawer .lines")
        page.page.get_by_label("Lines that contain").fill("nothing of the sort")
        page.see("No line contains that.", within=".drawer")
        page.clean()


def test_the_end_of_a_long_log_is_shown_and_the_rest_can_be_found(browser, daemon):
    run = daemon.trigger("chatting")
    daemon.wait(run)
    with watched(browser, daemon) as page:
        page.go(f"/runs/{run}?task=chatters")
        page.see("line 59999", within=".drawer .lines")
        page.see("come before what is shown", within=".drawer")
        page.page.get_by_label("Lines that contain").fill("LINE 00123 x")
        page.page.locator(".drawer summary", has_text="In what comes before: 1 line").click()
        page.page.get_by_title("Show the log from here").click()

        page.see("line 00124 x", within=".drawer .lines")
        page.see("More follows.", within=".drawer")
        assert page.elements() < MOST_ELEMENTS
        page.press("Show its end", within=".drawer")
        page.see("line 59999", within=".drawer .lines")
        page.press("Show it from its beginning", within=".drawer")
        page.see("line 00000", within=".drawer .lines")
        page.clean()
