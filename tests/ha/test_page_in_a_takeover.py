"""A page that is open at the standby continues without a reload when the active daemon dies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.daemon import eventually
from tests.browser.watched import Watched, chromium, violations, watched
from tests.ha.cluster import Cluster, Node, cluster

pytestmark = [
    pytest.mark.browser,
    pytest.mark.process,
    pytest.mark.postgres,
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("browser"),
]

TAKEOVER = "Another node is taking over, because the active node does not answer"
COUNT = 30

# Records every text of the page that would be wrong during a takeover, as soon as it appears.
_WITNESS = """
window.marker = 'the same document';
window.seen = {banner: [], wrong: [], counts: new Set()};
new MutationObserver(() => {
  const texts = (of) => [...document.querySelectorAll(of)].map((one) => one.textContent);
  seen.banner.push(...texts('.banner'));
  seen.wrong.push(...texts('.stale, .trouble, main .bad'));
  for (const text of texts('main h1, .sentence')) seen.counts.add(text);
}).observe(document, {childList: true, subtree: true, characterData: true});
"""


def kill(node: Node) -> None:
    """Kill the daemon and all of its processes."""
    node.kill(whole_tree=True)


def stop(node: Node) -> None:
    """Freeze the daemon."""
    node.stand_still()


@pytest.mark.parametrize("fault", [kill, stop])
def test_a_page_at_the_standby_follows_a_run_over_the_death_of_the_active_node(
    tmp_path: Path, fault: Callable[[Node], None]
) -> None:
    with cluster(tmp_path) as nodes, chromium() as browser:
        active, standby = nodes.start()
        eventually(lambda: standby.health("ready") == 200, 60.0, nodes.words)
        run_id = nodes.trigger(standby, count=COUNT, seconds=0.3)
        with watched(browser, standby, refusals=(503,)) as page:
            page.go(f"/runs/{run_id}")
            page.page.evaluate(_WITNESS)
            follows_live(page, nodes, run_id)

            fault(active)
            page.see(TAKEOVER, within=".banner")
            assert violations(page.page) == []
            page.page.locator(".banner").wait_for(state="detached")
            assert nodes.active_name() == standby.name

            page.see("Success", within="main h1", timeout=180.0)
            seen = page.page.evaluate("({...seen, marker, counts: seen.counts.size})")
            assert seen["marker"] == "the same document"
            assert seen["wrong"] == []
            assert all(TAKEOVER in text for text in seen["banner"]), set(seen["banner"])
            assert page.page.evaluate("document.querySelector('.shell').dataset.mode") == "live"
            page.clean()
        nodes.judge_run(standby, run_id, count=COUNT)
        assert nodes.takeovers() == 1


def follows_live(page: Watched, nodes: Cluster, run_id: str) -> None:
    """Wait until the page has shown progress that it received in the live stream."""
    eventually(lambda: len(nodes.lines("end", run_id)) >= 2, 120.0, nodes.words)
    page.eventually(lambda: page.page.evaluate("seen.counts.size") >= 3)
    polls = [url for url in page.asked if url.endswith("/health/live")]
    assert polls == [], "the stream was cut before the fault"
