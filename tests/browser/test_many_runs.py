"""Many runs are found and changed from the page."""

from __future__ import annotations

from tests.browser.watched import BROWSER_TESTS, watched

pytestmark = [*BROWSER_TESTS]


def test_all_runs_that_match_a_search_are_cancelled(browser, daemon, tmp_path):
    runs = [
        daemon.trigger("landing", {"folder": str(tmp_path)}, run_id=f"bulk-{number}")
        for number in range(3)
    ]
    with watched(browser, daemon) as page:
        page.go("/runs")
        page.page.get_by_role("searchbox", name="Search runs and DAGs").fill("bulk-")
        page.see("3 runs match.")
        page.page.get_by_role("checkbox", name="bulk-2").check()
        page.press("Select all 3 that match")
        page.press("Cancel runs")
        page.see("Cancel 3 runs?")
        page.confirm("Cancel runs")
        page.heard("Cancelled 3 runs")
        page.clean()

    assert {daemon.run(run)["state"] for run in runs} == {"cancelled"}
