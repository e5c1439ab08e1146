"""Commands that change all runs that match a filter."""

from __future__ import annotations

import pytest

from benchmarks.daemon import eventually
from tests.commands import run, run_process

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


def begun(daemon, name, count=2):
    """Start runs that wait. Return the filter that selects them."""
    for number in range(count):
        daemon.run("dags", "trigger", "waits", "--run-id", f"{name}-{number}", "--json")
    eventually(lambda: states(daemon, name) == ["running"] * count)
    return ("--dag", "waits", "--prefix", f"{name}-", "--state", "running")


def states(daemon, name):
    listed = daemon.run("runs", "list", "--prefix", f"{name}-", "--json").json
    return [run["state"] for run in listed]


def test_all_runs_that_match_are_cancelled_and_a_second_time_there_are_none(daemon):
    matching = begun(daemon, "every")
    done = daemon.run("runs", "cancel", *matching, "--yes")
    again = daemon.run("runs", "cancel", *matching, "--yes", "--json")

    assert (done.status, done.out) == (0, "2 of 2 matching runs cancelled\n")
    assert states(daemon, "every") == ["cancelled", "cancelled"]
    assert again.status == 0
    assert again.json == {"action": "cancel", "done": 0, "failed": 0, "errors": []}


def test_nothing_is_cancelled_without_a_terminal_to_confirm_on(daemon):
    matching = begun(daemon, "unasked", 1)
    refused = run_process("runs", "cancel", *matching, home=daemon.home)
    still = states(daemon, "unasked")
    daemon.run("runs", "cancel", *matching, "--yes")

    assert (refused.status, refused.out) == (2, "")
    assert "cancel 1 of 1 matching runs (1 running)? Confirm with --yes" in refused.err
    assert still == ["running"]


@pytest.mark.parametrize("words", [("cancel",), ("cancel", "some", "--dag", "waits")])
def test_either_a_run_or_a_filter_is_needed(daemon, words):
    refused = daemon.run("runs", *words, "--yes")

    assert refused.status == 2
    assert "give the id of one run, or a filter" in refused.err


def test_a_viewer_changes_nothing(daemon):
    matching = begun(daemon, "viewed", 1)
    made = daemon.run("tokens", "create", "looks-only", "--role", "viewer", "--json").json
    words = ("runs", "cancel", *matching, "--yes")
    refused = run(*words, "--url", daemon.facts["url"], AIOFLOW_TOKEN=made["token"])
    still = states(daemon, "viewed")
    daemon.run(*words)

    assert refused.status == 1
    assert "that needs the role operator; this is viewer" in refused.err
    assert still == ["running"]
