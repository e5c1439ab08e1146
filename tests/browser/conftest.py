"""One browser and one daemon for all browser tests. Each test uses its own runs, users and names.

While Playwright is open, its loop runs in the thread of the tests, so no other test may run. Both
end with the last test of this package, and xdist keeps these tests together in one worker.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from benchmarks.daemon import DaemonProcess
from tests.browser.dags import ASKS, ASSETS, FAILS, PAYLOADS, STALLS, STEERED, WIDE, WORKS, hostile
from tests.browser.watched import chromium

EXAMPLE = Path(__file__).parents[2] / "examples" / "dags" / "settlements.py"


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="package")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Run a daemon with all DAG files of these tests, a run that ended, and one that waits."""
    folder = tmp_path_factory.mktemp("browser")
    dags = folder / "dags"
    dags.mkdir()
    texts = {"works": WORKS, "wide": WIDE, "steered": STEERED, "stalls": STALLS, "asks": ASKS}
    texts["assets"] = ASSETS
    texts |= {"hostile": hostile(), "fails": FAILS}
    texts["<img src=x onerror=alert(1)>"] = "import aioflow\nimport nothing"
    for name, text in texts.items():
        (dags / f"{name}.py").write_text(text)
    shutil.copy(EXAMPLE, dags)
    with DaemonProcess(folder / "home", dags) as running:
        for dag in ("daily", "settlements", "shaped", "stalling", "wide"):
            running.knows(dag)
        running.trigger("hostile", {"given": " ".join(PAYLOADS)}, run_id="loud")
        running.trigger("landing", {"folder": str(folder)}, run_id="deferred")
        running.wait("loud")
        yield running


@pytest.fixture
def pool(daemon: DaemonProcess) -> Iterator[None]:
    """Create a pool with a limit for the duration of the test."""
    daemon.request("PUT", "/api/v1/pools/books", {"slots": 3})
    yield
    daemon.request("DELETE", "/api/v1/pools/books")
