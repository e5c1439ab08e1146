"""User actions on the page, and the messages with which the page confirms them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from benchmarks.daemon import eventually, task_of
from tests.browser.watched import BROWSER_TESTS, watched

pytestmark = [*BROWSER_TESTS, pytest.mark.nightly]


@pytest.fixture
def page(browser, daemon):
    """Open a page of an administrator. Rejected requests are expected, other errors are not."""
    with watched(browser, daemon, refusals=(400, 404, 422)) as watch:
        yield watch
        watch.clean()


def field(page, label):
    """Return a field of the open dialog. Its label also contains hints and choices."""
    return page.page.get_by_role("dialog").get_by_label(re.compile(f"^{re.escape(label)}"))


def test_a_drained_node_starts_nothing_until_it_is_to_work_again(page, daemon):
    page.go("/nodes")
    page.press("Drain")
    page.see("starts no new tasks", within="dialog")
    page.confirm("Drain")
    page.see("drained", within="main .node")
    run = daemon.trigger("brief")
    page.go(f"/runs/{run}")
    page.page.wait_for_selector("[data-task='at_once'][data-state='queued']")

    page.go("/nodes")
    page.press("Undrain")
    page.confirm("Undrain")

    page.see("active", within="main .node")
    assert daemon.wait(run)["state"] == "success"


def test_a_pool_is_limited_shows_who_holds_it_and_is_lifted(page, daemon):
    page.go("/pools")
    page.see("No pool has a limit")
    page.press("New pool")
    field(page, "Pool").fill("desk")
    field(page, "Slots").fill("1")
    field(page, "Waiting tasks hold slots, too").check()
    page.confirm("Create")
    page.see("Pool desk has 1 slot", within=".toasts")

    runs = [daemon.trigger("sitting") for _ in range(2)]
    page.see("1 of 1", within="main")
    page.see("1", within=".cell-of-queued.table-cell")
    page.page.get_by_role("link", name="desk").click()
    holder = page.page.locator(".detail ul.rows a")
    expect(holder).to_have_count(1)
    holder.click()
    page.page.wait_for_url(re.compile("/runs/.*task=sits"))

    page.go("/pools")
    page.page.get_by_role("link", name="desk").click()
    page.choose("Remove limit", "More actions: desk")
    page.confirm("Remove")
    page.see("No pool has a limit")
    eventually(lambda: all(task_of(daemon, run, "sits")["state"] == "deferred" for run in runs))
    for run in runs:  # they would hold the slots of other tests
        daemon.request("POST", f"/api/v1/runs/{run}/cancel")


def test_a_marked_task_lets_the_tasks_after_it_start(page, daemon):
    run = daemon.trigger("patient")
    page.go(f"/runs/{run}?task=rests")
    page.see("Waiting", within=".drawer")
    page.press("Set task state", within=".drawer")
    page.see("running tasks are stopped", within="dialog")
    page.confirm("Set state")
    page.without_delay()

    page.heard("Marked 1 task")
    page.see("success", within="main h1")
    assert task_of(daemon, run, "after")["state"] == "success"


def test_a_run_is_marked_as_failed(page, daemon):
    run = daemon.trigger("patient")
    page.go(f"/runs/{run}")
    page.choose("Set run state")
    field(page, "State").select_option("failed")
    page.confirm("Set state")
    page.without_delay()

    page.see("failed", within="main h1")
    assert daemon.run(run)["state"] == "failed"


def test_a_run_that_is_deleted_is_in_no_list(page, daemon):
    run = daemon.trigger("brief", run_id="gone-tomorrow")
    daemon.wait(run)
    page.go(f"/runs/{run}")
    page.choose("Delete")
    page.see("cannot be undone", within="dialog")
    page.confirm("Delete")

    page.page.wait_for_url("**/runs")
    page.heard(f"Deleted {run}")
    expect(page.page.locator("main").get_by_text(run)).to_have_count(0)
    assert daemon.get(f"/api/v1/runs/{run}", status=None)[0] == 404


def test_an_event_that_is_emitted_says_whom_it_woke(page, daemon):
    run = daemon.trigger("listening")
    eventually(lambda: task_of(daemon, run, "hears")["state"] == "deferred")
    page.go("/events")
    page.press("Emit event")
    field(page, "Name").fill("doors/opened")
    field(page, "Data (JSON)").fill('{"door": 3')
    page.page.locator("dialog footer button[type=submit]").click()
    page.see("is not valid JSON", within="dialog .wrong")
    field(page, "Data (JSON)").fill('{"door": 3}')
    page.confirm("Emit")

    page.heard("is stored")
    daemon.wait(run)
    assert task_of(daemon, run, "hears")["result"] == {"door": 3}
    page.page.get_by_role("link", name="doors/opened").first.click()
    page.see("Resumed", within=".detail")
    page.page.locator(".detail").get_by_role("link", name=f"{run} hears").click()
    page.page.wait_for_url(f"**/runs/{run}?task=hears")


def test_a_class_in_quarantine_is_let_out(page, daemon, tmp_path):
    run = daemon.trigger("stalling", {"folder": str(tmp_path)})
    page.go("/triggers?tab=health")
    page.see("In quarantine", timeout=120)
    (tmp_path / "mended").touch()
    page.press("End quarantine")
    page.see("on the shared event loop again", within="dialog")
    page.confirm("End quarantine")

    page.heard("is out of quarantine")
    expect(page.page.get_by_text("In quarantine", exact=True)).to_have_count(0)
    (tmp_path / "gate").touch()
    assert daemon.wait(run)["state"] == "success"


def test_one_child_is_cleared_and_its_siblings_stay(page, daemon, tmp_path):
    flag = tmp_path / "flag"
    run = daemon.trigger("parts", {"flag": str(flag)})
    daemon.wait(run)
    before = daemon.run(run)["tasks"]
    page.go(f"/runs/{run}?task=part")
    page.see("ValueError: not yet", within=".drawer")
    page.go(f"/runs/{run}/tasks?state=failed")
    page.page.get_by_role("link", name="part[1]").click()
    page.see("not yet", within=".drawer")
    flag.touch()
    page.press("Retry task", within=".drawer")
    assert field(page, "Only index 1, not all of its siblings").is_checked()
    page.confirm("Retry")
    page.without_delay()

    page.heard("1 task runs again")
    page.see("success", within="main h1")
    again = daemon.run(run)["tasks"]
    assert [one["state"] for one in again] == ["success"] * 3
    assert [again[at]["started_at"] for at in (0, 2)] == [before[at]["started_at"] for at in (0, 2)]


def test_a_schedule_is_listed_with_its_time_zone_or_the_name_of_its_event(page):
    page.go("/dags")
    page.see("Daily at 03:30 (Europe/Berlin)")
    page.see("gates/opened")
    page.go("/schedules")
    page.see("Daily at 03:30 (Europe/Berlin)")
    page.go("/dags/early")
    page.see("Daily at 03:30 (Europe/Berlin)", within="main .facts")


def test_a_run_is_started_with_a_field_for_each_parameter(page, daemon):
    before = daemon.items("/api/v1/runs?dag=shaped")
    page.go("/dags/shaped")
    page.press("Trigger")
    submit = page.page.locator("dialog footer button[type=submit]")
    submit.click()
    assert field(page, "size").evaluate("(node) => node.validationMessage") != ""
    field(page, "size").select_option("large")
    field(page, "count").fill("12")
    submit.click()
    assert "9" in field(page, "count").evaluate("(node) => node.validationMessage")
    field(page, "count").fill("7")
    field(page, "full").select_option("true")
    page.see("Whether all of it", within="dialog")
    field(page, "code").fill("A1")

    def is_refused():
        submit.click()  # on a slow machine the first cannot be checked in time
        wrong = page.page.locator("dialog .wrong")
        wrong.wait_for()
        return "The parameter 'code' does not fit" in wrong.inner_text()

    page.eventually(is_refused)
    assert daemon.items("/api/v1/runs?dag=shaped") == before
    field(page, "code").fill("xyz")
    page.confirm("Trigger")

    page.page.wait_for_url("**/runs/*")
    run = next(one for one in daemon.items("/api/v1/runs?dag=shaped") if one not in before)
    conf = daemon.run(run["run_id"])["conf"]
    assert conf == {"size": "large", "count": 7, "full": True, "code": "xyz"}
    page.see("large", within="main .facts dd.mono")
