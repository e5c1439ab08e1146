"""A browser and a daemon for each module.

While Playwright is open its loop runs in the thread of the tests: no other test may run meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser.watched import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found
