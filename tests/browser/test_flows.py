"""Common tasks of users, done by real clicks and counted: typing is free, a click is not."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from benchmarks.daemon import eventually, task_of
from tests.browser.watched import BROWSER_TESTS, watched

pytestmark = [*BROWSER_TESTS]

COUNTED = """
window.addEventListener('click', (event) => {
  if (event.isTrusted && event.detail > 0)
    localStorage.setItem('clicks', Number(localStorage.getItem('clicks') ?? 0) + 1);
}, true);
"""


@contextmanager
def counted(browser, daemon, path):
    """Open a page. Yield it with a function that counts the user's clicks across all views."""
    with watched(browser, daemon) as page:
        page.page.context.add_init_script(COUNTED)
        page.go(path)
        yield page, lambda: page.page.evaluate("Number(localStorage.getItem('clicks') ?? 0)")
        page.clean()


@pytest.fixture
def desk(daemon):
    """Create a pool with one slot. A long run holds the slot, and another run waits for it."""
    daemon.knows("sitting")
    daemon.request("PUT", "/api/v1/pools/desk", {"slots": 1, "include_deferred": True})
    holder = daemon.trigger("sitting", run_id="holds-the-desk")
    eventually(lambda: task_of(daemon, holder, "sits")["state"] == "deferred")
    late = daemon.trigger("sitting", run_id="waits-for-the-desk")
    eventually(lambda: task_of(daemon, late, "sits")["state"] == "queued")
    yield holder, late
    for run in (holder, late):
        daemon.request("POST", f"/api/v1/runs/{run}/cancel")
    daemon.request("DELETE", "/api/v1/pools/desk")


def test_a_late_run_names_its_cause_and_who_holds_it_in_two_clicks(browser, daemon, desk):
    holder, late = desk
    with counted(browser, daemon, "/") as (page, clicks):
        page.page.locator(".home-lists a", has_text=late).first.click()
        why = page.page.locator(".why .why-text").first
        expect(why).to_contain_text("pool desk: 1 of 1 slots")
        expect(why).to_contain_text(f"held by {holder}")
        why.get_by_role("link", name="desk", exact=True).click()
        held = page.page.locator(".detail .rows a", has_text=holder)
        expect(held).to_be_visible()
        assert clicks() == 2


@pytest.mark.nightly
def test_a_failed_task_is_read_cleared_and_runs_in_four_clicks(browser, daemon, tmp_path):
    flag = tmp_path / "flag"
    for run in ("fails-before", "fails-once"):  # Home groups the failures of a DAG
        daemon.wait(daemon.trigger("fails", {"flag": str(flag)}, run_id=run))
    flag.touch()
    with counted(browser, daemon, "/") as (page, clicks):
        page.page.locator(".home-lists a", has_text=run).first.click()
        page.page.locator(".why-text a", has_text="once").click()
        page.see("not yet", within=".drawer .lines")
        page.press("Retry task", within=".drawer")
        page.confirm("Retry")
        page.see("success", within="main h1")
        assert clicks() == 4
    assert daemon.run(run)["state"] == "success"


@pytest.mark.nightly
def test_two_hundred_failed_runs_of_a_range_are_cleared_in_five_clicks(browser, daemon, tmp_path):
    flag = tmp_path / "flag"
    runs = [daemon.trigger("fails", {"flag": str(flag)}, run_id=f"many-{at}") for at in range(200)]
    for run in runs:
        daemon.wait(run)
    flag.touch()
    with counted(browser, daemon, "/") as (page, clicks):
        page.page.locator(".home-stack svg rect.h-failed").last.click()
        page.page.wait_for_url("**/runs?state=failed&from=*&to=*")
        page.page.get_by_role("searchbox", name="Search runs and DAGs").fill("many-")
        page.page.wait_for_url("**search=many-**")
        page.see("200 runs match")
        page.page.get_by_role("checkbox", name="Select all rows loaded").click()
        page.press("Retry failed tasks")
        page.see("Retry the failed tasks of 200 runs?", within="dialog")
        verb = page.page.locator("dialog footer button[type=submit]")
        expect(verb).to_have_text("Retry failed tasks")
        verb.click()
        page.heard("Retried 200 runs")
        assert clicks() <= 5
    assert {daemon.wait(run)["state"] for run in runs} == {"success"}


@pytest.mark.nightly
def test_the_last_run_is_repeated_with_one_parameter_changed_in_three_clicks(browser, daemon):
    conf = {"size": "large", "count": 7, "full": True, "code": "xyz"}
    first = daemon.trigger("shaped", conf, run_id="shaped-before")
    daemon.wait(first)
    with counted(browser, daemon, "/runs?dag=shaped") as (page, clicks):
        page.page.get_by_role("link", name=first, exact=True).click()
        page.press("Run again")
        dialog = page.page.get_by_role("dialog")
        expect(dialog.get_by_label("code")).to_have_value("xyz")
        dialog.get_by_label("count").fill("8")
        page.confirm("Run")
        page.page.wait_for_url(lambda url: "/runs/" in url and first not in url)
        page.see("success", within="main h1")
        assert clicks() == 3
        again = page.page.url.rpartition("/")[2]
    assert daemon.run(again)["conf"] == {**conf, "count": 8}
