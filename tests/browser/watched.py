"""A page in Chromium that records what must not happen: foreign hosts, errors, blocked content."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Locator,
    Page,
    Request,
    expect,
    sync_playwright,
)

from benchmarks.daemon import DaemonProcess, eventually

__all__ = (
    "BROWSER_TESTS",
    "PAGES",
    "SIZES",
    "Watched",
    "address",
    "chromium",
    "serious",
    "stranger",
    "violations",
    "watched",
)

expect.set_options(timeout=30_000)

BROWSER_TESTS = (
    pytest.mark.browser,
    pytest.mark.process,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("browser"),
)
"""Marks of each browser test module. One worker runs all of them, with one browser and daemon."""

AXE = Path(__file__).with_name("axe.min.js")
PAGES = {
    "overview": ("/",),
    "dags": ("/dags", "/dags/hostile", "/dags/hostile/graph", "/dags/hostile/gantt",
             "/dags/hostile/code", "/dags/hostile/runs", "/dags/hostile/history"),
    "runs": ("/runs", "/runs/loud", "/runs/loud/graph", "/runs/loud/gantt", "/runs/loud/tasks",
             "/runs/loud/logs", "/runs/loud?task=breaks&map=1"),
    "assets": ("/assets", "/assets?open=orders", "/assets?view=lineage"),
    "waits": ("/triggers", "/events", "/pools", "/executors", "/executors?open=local"),
    "times": ("/schedules", "/schedules?view=timeline", "/backfills"),
    "node": ("/nodes", "/errors", "/settings"),
    "access": ("/access", "/audit"),
}  # fmt: skip
"""Every view of the page, grouped by subject."""

SIZES = {"desk": (1400, 900), "phone": (360, 740), "wall": (2560, 1300)}

_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip

_OPTIONAL = frozenset({"/api/v1/me", "/api/v1/stream", "/api/v1/audit"})

# Records violations of the content security policy, and payloads that were executed.
_WITNESS = """
window.broken = [];
document.addEventListener('securitypolicyviolation', (event) =>
  window.broken.push(event.violatedDirective + ' ' + event.blockedURI));
// All messages shown, including those that have disappeared.
window.told = [];
new MutationObserver((changes) => {
  for (const change of changes) for (const node of change.addedNodes)
    if (node.matches?.('.toast')) window.told.push(node.textContent);
}).observe(document, {childList: true, subtree: true});
window.alert = window.confirm = window.prompt = () => window.broken.push('a payload ran');
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium without a window, and without requests to its vendor."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program is not None, "Chromium is needed: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A signed-in page of a daemon.

    Args:
        context: A browser context used by this page only, with its own cookies and storage.
        base: The address of the daemon.
        lacks: Paths that this daemon does not serve. The page requests each of them once.
        refusals: Error statuses that the test expects.

    Attributes:
        asked: The address of every request, in order.
    """

    def __init__(
        self,
        context: BrowserContext,
        base: str,
        lacks: frozenset[str],
        refusals: tuple[int, ...] = (),
    ) -> None:
        self.base = base
        self._lacks = lacks
        self._refusals = tuple(f"status of {status} " for status in refusals)
        self.asked: list[str] = []
        self.complaints: list[str] = []
        context.on("request", lambda request: self.asked.append(request.url))
        context.add_init_script(_WITNESS)
        self.page: Page = context.new_page()
        self.page.on("console", self._listen)
        self.page.on("pageerror", lambda error: self.complaints.append(f"raised: {error}"))
        self.page.on("requestfailed", self._failed)

    def _listen(self, message: Any) -> None:
        url = message.location.get("url", "")
        if any(refusal in message.text for refusal in self._refusals):
            return
        if message.type in {"error", "warning"} and urlsplit(url).path not in self._lacks:
            self.complaints.append(f"{message.text} {url}")

    def _failed(self, request: Request) -> None:
        # A view cancels its requests when the user leaves it.
        if request.failure != "net::ERR_ABORTED":
            self.complaints.append(f"{request.failure} {request.url}")

    def go(self, path: str) -> Watched:
        """Go to an address of the page, and wait until its content is loaded."""
        self.page.goto(self.base + path, wait_until="load")
        self.settle()
        return self

    def settle(self) -> None:
        """Wait until no request is pending."""
        self.page.wait_for_selector("main h1")
        expect(self.page.locator(".loading")).to_have_count(0, timeout=60_000)

    def see(self, text: str, within: str = "body", timeout: float = 60.0) -> None:
        """Wait until a text is visible somewhere."""
        self.page.locator(within).get_by_text(text).first.wait_for(timeout=timeout * 1000)

    def heard(self, text: str) -> None:
        """Wait until the page has shown a message, which may have disappeared by now."""
        look = "(text) => window.told.some((told) => told.includes(text))"
        self.eventually(lambda: self.page.evaluate(look, text))

    def panel(self, title: str) -> Locator:
        """Return the panel with a title."""
        return self.page.locator("main .panel", has=self.page.get_by_role("heading", name=title))

    def press(self, name: str, within: str = "main") -> None:
        """Press a button by its name."""
        self.page.locator(within).get_by_role("button", name=name, exact=True).first.click()

    def choose(self, name: str, menu: str = "More actions") -> None:
        """Choose one of the less frequent actions of a view or row, which are in a menu."""
        self.press(menu)
        self.page.get_by_role("menuitem", name=name, exact=True).click()

    def confirm(self, verb: str) -> None:
        """Confirm the dialog."""
        self.page.locator("dialog footer button[type=submit]", has_text=verb).click()
        self.page.wait_for_selector("dialog", state="detached")

    def without_delay(self) -> None:
        """Perform an action at once that could still be undone."""
        self.press("Do it now", within=".toasts")

    def eventually(self, look: Callable[[], Any], timeout: float = 60.0) -> Any:
        """Return the first true result. Between the calls, the page continues to work."""
        return eventually(look, timeout, self.text, look_seconds=0.05)

    def text(self) -> str:
        """Return the visible text. The page continues to work in the meantime."""
        return self.page.inner_text("body")

    def clean(self) -> None:
        """Assert that no request left the machine or was blocked, and that there was no error."""
        hosts = {urlsplit(url).netloc for url in self.asked}
        assert hosts == {urlsplit(self.base).netloc}
        assert self.complaints == []
        assert self.page.evaluate("window.broken") == []

    def overflow(self) -> int:
        """Return how many pixels of the page lie beyond the window's right edge."""
        found: int = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return found

    def elements(self) -> int:
        """Return how many elements the document has."""
        found: int = self.page.evaluate("document.querySelectorAll('*').length")
        return found

    def shoot(self, path: Path) -> None:
        """Save a screenshot."""
        self.page.screenshot(path=path)


@contextmanager
def watched(
    browser: Browser,
    daemon: DaemonProcess,
    *,
    theme: str = "light",
    size: str = "desk",
    timezone: str = "UTC",
    refusals: tuple[int, ...] = (),
) -> Iterator[Watched]:
    """Sign in with the link of the banner."""
    with stranger(
        browser, daemon, theme=theme, size=size, timezone=timezone, refusals=refusals
    ) as watch:
        token = (daemon.home / "token").read_text().strip()
        watch.page.goto(f"{watch.base}/?token={token}", wait_until="load")
        watch.settle()
        yield watch


@contextmanager
def stranger(
    browser: Browser,
    daemon: DaemonProcess,
    *,
    theme: str = "light",
    size: str = "desk",
    timezone: str = "UTC",
    refusals: tuple[int, ...] = (401,),
) -> Iterator[Watched]:
    """Open a page without a login."""
    width, height = SIZES[size]
    context = browser.new_context(
        color_scheme=theme,  # type: ignore[arg-type]
        viewport={"width": width, "height": height},
        reduced_motion="reduce",
        timezone_id=timezone,
    )
    try:
        served = daemon.get("/api/v1/openapi.json")[1]["paths"]
        yield Watched(context, address(daemon), _OPTIONAL - served.keys(), refusals)
    finally:
        context.close()


def address(daemon: DaemonProcess) -> str:
    """Return the address of the daemon's page, without the token."""
    banner = re.compile(r"aioflow is up: (http://[^/\s]+)/")
    found = eventually(lambda: banner.findall(daemon.log.read_text(errors="replace")))
    return found[-1]


def serious(page: Page) -> list[str]:
    """Return the serious and critical findings of axe-core on a page."""
    return _findings(page, ("serious", "critical"))


def violations(page: Page) -> list[str]:
    """Return all findings of axe-core on a page, including the size of click targets."""
    return _findings(page, ("minor", "moderate", "serious", "critical"))


def _findings(page: Page, impacts: tuple[str, ...]) -> list[str]:
    page.evaluate(AXE.read_text())
    rules = "{'target-size': {enabled: true}, 'label-content-name-mismatch': {enabled: true}}"
    found = page.evaluate(f"axe.run(document, {{resultTypes: ['violations'], rules: {rules}}})")
    return [
        f"{one['id']}: {json.dumps([node['html'][:160] for node in one['nodes'][:4]])}"
        for one in found["violations"]
        if one["impact"] in impacts
    ]
