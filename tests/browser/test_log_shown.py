"""The logs of a task and of a run on the page, including logs that are still being written."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.watched import BROWSER_TESTS, serious, watched

pytestmark = [*BROWSER_TESTS]

nightly = pytest.mark.nightly
MOST_ELEMENTS = 850
LAST = "and a last one, with ä"


@pytest.fixture
def printing(daemon, tmp_path):
    """Start a run whose task prints 5,000 lines, and one more when the test releases it."""
    return daemon.trigger("printing", {"folder": str(tmp_path)})


def is_at_end(lines):
    return lines.evaluate("(node) => node.scrollTop + node.clientHeight >= node.scrollHeight - 20")


def cut_off(lines):
    """Return the visible lines that are taller than their rows."""
    look = "(all) => all.filter((one) => one.scrollHeight > one.clientHeight + 1)"
    return lines.locator(".log-line").evaluate_all(f"{look}.map((one) => one.textContent)")


def search(page, text):
    field = page.page.get_by_label("Search log")
    field.fill(text)
    return field


@nightly
def test_the_scroll_position_stays_until_the_user_wants_the_end(
    browser, daemon, printing, tmp_path
):
    with watched(browser, daemon) as page:
        page.go(f"/runs/{printing}?task=prints")
        page.see("line 4999 of many", within=".log .lines")
        lines = page.page.locator(".log .lines")
        follow = page.page.get_by_label("Follow")
        assert follow.is_checked()
        lines.evaluate("(node) => { node.scrollTop -= 2_000 }")
        expect(follow).not_to_be_checked()
        page.see("line 4890 of many", within=".log .lines")
        (tmp_path / "go").touch()
        page.see("5,001 lines", within=".log-head")
        page.see("line 4890 of many", within=".log .lines")

        page.press("To the end", within=".log")
        page.see(LAST, within=".log .lines")
        assert is_at_end(lines)
        expect(follow).to_have_count(0)  # of a task that has ended
        page.clean()


@nightly
def test_matches_are_visited_one_after_the_other_in_all_of_the_log(browser, daemon):
    run = daemon.trigger("chatting")
    daemon.wait(run)
    with watched(browser, daemon) as page:
        page.go(f"/runs/{run}?task=chatters")
        page.see("line 59999", within=".log .lines")
        field = search(page, "LINE 0012[34] x")
        page.page.get_by_label("Regular expression").click()
        field.press("Enter")
        page.see("Match in line 124", within=".log-head")
        field.press("Enter")
        page.see("Match in line 125", within=".log-head")
        expect(page.page.locator(".log .lines .hit mark")).to_have_text("line 00124 x")
        assert cut_off(page.page.locator(".log .lines")) == [], "a wrapped line has room for itself"
        page.page.get_by_label("Previous match").click()
        page.see("Match in line 124", within=".log-head")
        assert page.elements() < MOST_ELEMENTS

        page.page.get_by_label("Only matching lines").click()
        page.see("2 matches", within=".log-head")
        page.page.get_by_label("Show this line among the others").last.click()
        page.see("line 00126 x", within=".log .lines")
        search(page, "nothing of the sort").press("Enter")
        page.see("No matches.", within=".log-head")
        page.clean()


@nightly
def test_an_address_names_a_line_far_from_either_end(browser, daemon):
    run = daemon.trigger("chatting")
    daemon.wait(run)
    with watched(browser, daemon) as page:
        page.go(f"/runs/{run}?task=chatters#L30001")
        page.see("line 30000 x", within=".log .lines .marked")
        lines = page.page.locator(".log .lines")
        lines.evaluate("(node) => { node.scrollTop = node.scrollHeight }")
        page.see("line 30200 x", within=".log .lines")
        page.page.get_by_label("Link to line 30201").click()
        page.eventually(lambda: page.page.url.endswith("#L30201"))
        page.press("To the end", within=".log")
        page.see("line 59999", within=".log .lines")
        page.clean()


@nightly
def test_the_log_of_a_run_says_where_another_try_of_a_child_begins(browser, daemon):
    run = daemon.trigger("trying")
    daemon.wait(run)
    with watched(browser, daemon) as page:
        page.go(f"/runs/{run}/logs")
        lines = page.page.locator(".log .lines")
        expect(lines.locator(".log-border")).to_have_count(2)
        border = lines.locator(".log-border", has_text="tries[1] east")
        expect(border).to_contain_text("Try 2")
        expect(border.locator("time")).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))
        expect(lines.get_by_role("link", name="tries[1] east").first).to_be_visible()
        page.clean()


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=nightly)])
def test_the_log_of_a_run_has_colours_levels_links_and_folded_tracebacks(browser, daemon, theme):
    run = daemon.trigger("speaking")
    daemon.wait(run)
    with watched(browser, daemon, theme=theme) as page:
        page.go(f"/runs/{run}/logs")
        lines = page.page.locator(".log .lines")
        expect(lines.locator(".fg-1").first).to_have_text("red")
        page.see("and <b>bold</b>; see ", within=".log .lines")
        link = lines.get_by_role("link", name="https://example.com/page").first
        assert link.get_attribute("rel") == "noopener noreferrer"
        expect(lines.get_by_text("100 %").first).to_be_visible()
        expect(lines.get_by_text("10 %", exact=True)).to_have_count(0)
        expect(lines.locator(".log-task").first).to_contain_text("speaks[")
        fold = lines.locator(".fold", has_text="ValueError: no 1")
        fold.get_by_role("button").click()
        code = lines.get_by_role("link", name="steered.py").first
        assert "/dags/speaking/code?version=" in (code.get_attribute("href") or "")
        assert serious(page.page) == []

        page.page.get_by_label("Level").select_option("warning")
        expect(lines.get_by_text("100 %")).to_have_count(0)
        expect(lines.get_by_text("be careful")).to_have_count(2)
        code = lines.locator(".fold").first.get_by_role("button")
        code.click()
        lines.get_by_role("link", name="steered.py").first.click()
        expect(page.page.locator(".source-line.marked")).to_contain_text("raise ValueError")
        page.clean()
