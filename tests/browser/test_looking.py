"""The views of the page are accessible at any width, with much data and with hostile texts."""

from __future__ import annotations

import os

import pytest
from playwright.sync_api import expect

from benchmarks.daemon import DaemonProcess, eventually
from tests.browser.dags import MANY, PAYLOADS
from tests.browser.watched import BROWSER_TESTS, PAGES, address, violations, watched

# The first timeout mark applies.
pytestmark = [pytest.mark.timeout(600), *BROWSER_TESTS, pytest.mark.nightly]

VIEWS = tuple(view for views in PAGES.values() for view in views)
MOST_ELEMENTS = 1_500
CHILDREN = 10_000
WIDTH = 2_000

FRAMES = """(node) => new Promise((done) => {
  const began = performance.now();
  let frames = 0;
  const step = (now) => {
    frames += 1;
    node.scrollTop += 37;
    if (now - began > 3000) done(1000 * frames / (now - began));
    else requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""
FEWEST_FRAMES = 5
"""Minimum frame rate on two busy cores without a graphics card. PCs are ten times faster."""


@pytest.mark.parametrize("size", ["phone", "wall"])
def test_no_view_is_wider_than_the_window(browser, daemon, pool, size):
    with watched(browser, daemon, size=size) as page:
        wide = {view: page.go(view).overflow() for view in VIEWS}
        assert {view: pixels for view, pixels in wide.items() if pixels > 0} == {}
        page.clean()


@pytest.mark.parametrize("size", ["desk", "phone", "wall"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_view_violates_a_rule_of_accessibility(browser, daemon, pool, theme, size):
    with watched(browser, daemon, theme=theme, size=size) as page:
        found = {view: violations(page.go(view).page) for view in VIEWS}
        assert {view: rules for view, rules in found.items() if rules} == {}
        page.clean()


def test_no_text_is_taken_for_anything_else(browser, daemon, pool):
    with watched(browser, daemon) as page:
        for view in VIEWS:
            page.go(view)
            page.page.evaluate(
                "document.querySelectorAll('main details').forEach((one) => { one.open = true })"
            )
            page.settle()
            made = page.page.evaluate(
                "document.querySelectorAll('img, iframe, main script, [onerror], [onload], "
                'a[href^="javascript:"]\').length'
            )
            assert made == 0, view
        page.go("/runs/loud")
        page.see(f"{len(PAYLOADS)} of {len(PAYLOADS)} children of breaks failed", within=".why")
        page.see(f"ValueError: {PAYLOADS[0]}", within=".why")
        page.go("/runs/loud?task=breaks&map=1")
        page.see(PAYLOADS[1], within=".drawer .lines")
        page.go("/errors")
        page.see("<img src=x onerror=alert(1)>.py")
        page.clean()


def test_ten_thousand_children_scroll_smoothly(browser, daemon):
    run = daemon.trigger("wide", {"count": CHILDREN})
    daemon.wait(run)
    with watched(browser, daemon) as page:
        page.go(f"/runs/{run}/tasks?of=each")
        rows = page.page.locator(".virtual")
        first = page.page.locator(".virtual")
        expect(first).to_have_attribute("aria-rowcount", str(CHILDREN + 1))
        deepest = 0
        for _ in range(60):
            rows.evaluate("(node) => { node.scrollTop = node.scrollHeight }")
            page.page.wait_for_timeout(60)
            deepest = max(deepest, page.elements())
            if page.page.get_by_text(f"each[{CHILDREN - 1}]", exact=True).count():
                break
        page.see(f"each[{CHILDREN - 1}]")
        assert deepest < MOST_ELEMENTS
        page.go(f"/runs/{run}")
        page.see(f"{CHILDREN:,} of {CHILDREN:,}", within=".graph")
        page.clean()


def test_a_run_at_full_speed_keeps_the_page_smooth(browser, daemon):
    run = daemon.trigger("wide", {"count": WIDTH})
    with watched(browser, daemon) as page:
        page.go(f"/runs/{run}/tasks?of=each")
        rows = page.page.locator(".virtual")
        expect(rows).to_have_attribute("aria-rowcount", str(WIDTH + 1))
        rate = rows.evaluate(FRAMES)
        print(f"{rate:.0f} frames/s while {WIDTH:,} rows are scrolled")
        assert rate > FEWEST_FRAMES
        page.clean()
    daemon.wait(run)


def test_five_thousand_dags_scroll_smoothly(browser, tmp_path):
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "many.py").write_text(MANY)
    many = DaemonProcess(tmp_path / "home", tmp_path / "dags")
    many.environment = {**os.environ, "AIOFLOW_PARSE__TIMEOUT_SECONDS": "200"}
    with many:
        many.knows("team_00.job_4950", 200.0)
        many.trigger("team_00.job_4950")
        with watched(browser, many) as page:
            page.go("/dags")
            rows = page.page.locator(".virtual")
            deepest = 0
            for _ in range(200):
                rows.evaluate("(node) => { node.scrollTop = node.scrollHeight }")
                page.page.wait_for_timeout(60)
                deepest = max(deepest, page.elements())
                if page.page.get_by_text("team_49.job_4999").count():
                    break
            page.see("team_49.job_4999")
            assert deepest < MOST_ELEMENTS
            page.page.get_by_label("Search DAGs").fill("job_4321")
            page.see("team_21.job_4321")
            assert page.page.locator(".virtual-row").count() == 1
            page.clean()


def test_the_error_for_missing_rights_says_how_to_get_them(browser, daemon):
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(address(daemon) + "/runs/loud")
        page.get_by_text("open the link that the daemon printed").wait_for()
        assert page.get_by_label("Password").is_visible()
    finally:
        context.close()


def test_the_page_continues_by_itself_when_the_daemon_is_back(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/runs/deferred")
        port = address(daemon).rpartition(":")[2]
        daemon.kill()
        try:
            page.see("daemon away", within=".rail")
            page.see("The daemon has not answered", within=".banner")
            page.see("waiting", within="main h1")
        finally:  # the daemon is shared
            command = daemon._command
            command[command.index("--port") + 1] = port
            daemon.start()
        page.see("live", within=".rail")
        page.page.wait_for_selector(".banner", state="detached")
        daemon.request("POST", "/api/v1/runs/deferred/cancel")
        page.see("cancelled", within="main h1")


def test_each_page_loads_only_the_built_files(browser, daemon):
    with watched(browser, daemon) as page:
        page.go("/dags/daily/graph")
        loaded = eventually(
            lambda: page.page.evaluate(
                "performance.getEntriesByType('resource').map((one) => "
                "new URL(one.name).pathname).filter((path) => !path.startsWith('/api/'))"
            )
        )
        assert all(path.startswith("/static/") for path in loaded)
        page.clean()
