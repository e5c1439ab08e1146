"""The part of the browser tests in ``make test``: each view once, and updates while it is open."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.watched import BROWSER_TESTS, PAGES, serious, stranger, watched
from tests.sampling import sampled

pytestmark = [*BROWSER_TESTS]

PASSWORD = "a long enough password"
SAMPLE = {"overview", "runs", "waits"}


@pytest.mark.parametrize("views", sampled(PAGES, SAMPLE))
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_each_view_is_legible_fits_its_window_and_complains_of_nothing(
    browser, daemon, pool, theme, views
):
    found, wide = {}, {}
    with watched(browser, daemon, theme=theme) as page:
        for view in PAGES[views]:
            page.go(view).clean()
            wide[view] = max(page.overflow(), 0)
            found[view] = serious(page.page)

    assert found == {view: [] for view in PAGES[views]}
    assert wide == dict.fromkeys(PAGES[views], 0)


def test_home_opens_with_four_requests(browser, daemon):
    with watched(browser, daemon) as page:
        page.asked.clear()
        page.go("/")
        page.see("In flight")
        paths = [urlsplit(url).path.removeprefix("/api/v1") for url in page.asked]
        asked = {path for path in paths if not path.startswith("/static/")} - {"/", "/stream"}
        assert asked == {"/me", "/overview", "/home", "/history/runs"}
        page.clean()


def test_a_run_is_cancelled_after_a_question_that_says_what_happens(browser, daemon):
    run = daemon.trigger("slow")
    with watched(browser, daemon) as page:
        page.go(f"/runs/{run}")
        page.press("Cancel run")
        page.see("Stops the running tasks", within="dialog")
        assert daemon.run(run)["state"] == "running"
        page.confirm("Cancel run")

        page.see("cancelled", within="main h1")
        page.heard(f"{run} is cancelled")
        page.clean()
    assert daemon.run(run)["state"] == "cancelled"


def test_a_log_comes_by_a_stream_and_is_never_polled(browser, daemon, tmp_path):
    printing = daemon.trigger("printing", {"folder": str(tmp_path)})
    with watched(browser, daemon) as page:
        page.go(f"/runs/{printing}?task=prints")
        page.see("line 4999 of many", within=".drawer .lines")
        page.see("live", within=".drawer .log-head")
        assert page.elements() < 800
        stream = [url for url in page.asked if "/logs/stream?" in url]
        asked = [url for url in page.asked if "/logs?" in url]

        (tmp_path / "go").touch()
        page.see("and a last one, with ä", within=".drawer .lines")
        expect(page.page.locator(".drawer .log-head .live")).to_have_count(0)
        assert len(stream) == 1
        assert [url for url in page.asked if "/logs/stream?" in url] == stream
        # The requests after the end are caused by the run's last commits.
        assert len([url for url in page.asked if "/logs?" in url]) <= len(asked) + 3
        page.clean()


def test_a_login_leads_to_the_requested_page(browser, daemon):
    body = {"name": "ann", "password": PASSWORD, "role": "viewer"}
    daemon.request("POST", "/api/v1/users", body)
    with stranger(browser, daemon) as page:
        page.page.goto(f"{page.base}/runs/loud/gantt?task=gives")
        for password in ("not that one, surely", PASSWORD):
            page.page.get_by_label("Name").fill("ann")
            page.page.get_by_label("Password").fill(password)
            page.page.get_by_role("button", name="Sign in").click()
            if password != PASSWORD:
                page.see("Sign in", within="main")
                page.see("The name or the password is wrong.", within="[role=alert]")

        page.page.wait_for_selector(".rail")
        page.page.wait_for_selector(".drawer")
        assert page.page.url == f"{page.base}/runs/loud/gantt?task=gives"
        page.clean()


@pytest.mark.nightly
def test_tries_in_remote_workers_say_where_they_ran_and_link_to_pages_of_the_web_only(
    browser, daemon
):
    far = {"executor": "dask", "host": "node-7", "worker": "process 4711"}
    addresses = ["http://scheduler:8787/status", "javascript:alert(1)", None]

    def answer(route):
        shown = route.fetch().json()
        (one, *_) = shown["tries"]
        shown["tries"] = [{**one, **far, "worker_url": url} for url in addresses]
        shown["tries"].append(one)
        route.fulfill(json=shown)

    with watched(browser, daemon) as page:
        page.go("/runs/loud?task=breaks&map=1&tab=tries")
        page.see("Why it ended", within=".drawer")
        assert "Ran on" not in page.text()

        page.page.route("**/tasks/breaks/show*", answer)
        page.go("/runs/loud?task=breaks&map=1&tab=tries")
        page.see("Ran on", within=".drawer")
        cells = page.page.locator(".drawer tbody td:nth-child(5)")
        assert cells.all_inner_texts() == [
            "dask, node-7 process 4711 Dashboard",
            *["dask, node-7 process 4711"] * 2,
            "local",
        ]
        links = page.page.locator(".drawer tbody td:nth-child(5) a[target]")
        assert [link.get_attribute("href") for link in links.all()] == addresses[:1]
        assert links.first.get_attribute("rel") == "noopener noreferrer"
        page.clean()


@pytest.mark.nightly
def test_an_executor_shows_its_workers_their_tries_and_what_is_missing(browser, daemon):
    lost = "the Dask scheduler at tcp://gone:8786 cannot be reached"
    running = {"dag_id": "d", "run_id": "r1", "task_id": "train", "map_index": 3}
    worker = {"state": "idle", "host": "node-7", "worker": "process 1", "resources": {"GPU": 1}}
    shown: list[dict[str, Any]] = [
        {**worker, "worker_no": 8, "worker_url": None, "tries": 0, "running": None},
        {
            **worker,
            "worker_no": 9,
            "state": "busy",
            "worker_url": "http://scheduler:8787/status",
            "tries": 3,
            "running": {**running, "try_number": 1, "started_at": "2026-11-20T10:00:00Z"},
        },
    ]
    dask = {
        "name": "dask",
        "url": "javascript:alert(1)",
        "max_workers": 100,
        "up": 2,
        "busy": 1,
        "lost": 0,
        "wanted": 5,
        "hosts": 1,
        "tries": 3,
        "unavailable": [lost],
        "demand": [
            {"resources": {"memory": 4 * 1024**3}, "interpreter": "analytics", "count": 5}
            | {"priority": 0, "since": "2026-11-20T10:00:00Z", "unavailable": lost},
        ],
        "workers": shown,
    }

    with watched(browser, daemon) as page:
        page.go("/executors")
        page.see("local", within="main .table")
        found = {"items": [dask], "next": None}
        page.page.route("**/api/v1/executors*", lambda route: route.fulfill(json=found))
        page.page.locator("main .table a", has_text="dask").click()
        page.see(lost, within=".detail")
        page.see("memory 4.0 GiB, interpreter analytics", within=".detail")
        page.see("train[3]", within=".detail")
        page.see("and 2 more tries", within=".detail")
        links = page.page.locator(".detail a[target]")
        assert [link.get_attribute("href") for link in links.all()] == [shown[1]["worker_url"]]
        assert page.page.locator(".detail a[href^='/runs/r1']").count() == 1
        page.clean()
