"""Changes to many runs from the page are previewed, and can be undone."""

from __future__ import annotations

import pytest

from benchmarks.daemon import eventually
from tests.browser.watched import BROWSER_TESTS, watched

pytestmark = [*BROWSER_TESTS]


@pytest.mark.nightly
def test_all_runs_that_match_a_search_are_cancelled(browser, daemon, tmp_path):
    runs = [
        daemon.trigger("landing", {"folder": str(tmp_path)}, run_id=f"bulk-{number}")
        for number in range(3)
    ]
    with watched(browser, daemon) as page:
        page.go("/runs")
        page.page.get_by_role("searchbox", name="Search runs and DAGs").fill("bulk-")
        page.see("3 runs match")
        page.page.get_by_role("checkbox", name="bulk-2").check()
        page.press("Select all 3 that match")
        page.press("Cancel runs")
        page.see("Cancel 3 runs?")
        page.confirm("Cancel runs")
        page.heard("Cancelled 3 runs")
        page.clean()

    assert {daemon.run(run)["state"] for run in runs} == {"cancelled"}


def test_a_clear_is_previewed_taken_back_and_done_when_the_page_is_closed(
    browser, daemon, tmp_path
):
    flag = tmp_path / "flag"
    run = daemon.trigger("fails", {"flag": str(flag)})
    daemon.wait(run)
    flag.touch()
    with watched(browser, daemon) as page:
        page.go(f"/runs/{run}")
        page.press("Retry failed tasks")
        page.see("2 tasks would run again:", within="dialog .touched")
        page.see("upstream failed", within="dialog .touched li")
        page.confirm("Retry")
        page.see("2 tasks will run again in 10 seconds", within=".toasts")
        page.press("Undo", within=".toasts")
        page.heard("Nothing was changed")
        assert daemon.run(run)["state"] == "failed"

        page.press("Retry failed tasks")
        page.see("2 tasks would run again:", within="dialog .touched")
        page.confirm("Retry")
        page.see("2 tasks will run again in 10 seconds", within=".toasts")
        page.clean()
        page.page.goto("about:blank")
        eventually(lambda: daemon.run(run)["state"] == "success")
