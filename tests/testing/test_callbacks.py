"""Callbacks of tasks and runs, and notifiers, in a node on virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from aioflow import (
    DagError,
    EmailNotifier,
    NotReady,
    Retry,
    Skip,
    WebhookNotifier,
    dag,
    sensor,
    task,
)
from aioflow.author.dag import forget_registered
from aioflow.testing import Sim

Called = list[dict[str, Any]]

ONCE = Retry(tries=1)


@pytest.fixture(autouse=True)
def _no_dags_of_others():
    """Forget the DAGs of earlier tests, since all DAGs of a file know each other."""
    forget_registered()


async def test_each_event_of_a_task_calls_its_own(sim: Sim):
    called: list[tuple[str, str, str]] = []

    def tell(context: dict[str, Any]) -> None:
        called.append((context["task_id"], context["event"], context["state"]))

    @task(on_success=tell, on_failure=tell, on_retry=tell, on_skip=tell)
    def well() -> None:
        """Succeeds."""

    @task(
        retry=Retry(tries=2, delay="1s", jitter=False),
        on_success=tell,
        on_failure=tell,
        on_retry=tell,
        on_skip=tell,
    )
    def badly() -> None:
        raise OSError("no")

    @task(on_success=tell, on_failure=tell, on_retry=tell, on_skip=tell)
    def aside() -> None:
        raise Skip("not today")

    @dag
    def events() -> None:
        badly().after(well())
        aside()

    run = await sim.start(events)
    await run.finished()

    assert sorted(called) == [
        ("aside", "skip", "skipped"),
        ("badly", "failure", "failed"),
        ("badly", "retry", "retrying"),
        ("well", "success", "success"),
    ]


async def test_a_context_says_what_happened_and_why(sim: Sim):
    called: Called = []

    @task(retry=ONCE, on_failure=called.append)
    def divide(n: int) -> float:
        return 1 / n

    @dag
    def division(unused: int = 0) -> None:
        divide.expand(n=[1, 0, 2])

    run = await sim.start(division)
    await run.finished()

    (context,) = called
    assert context["error"]["type"] == "ZeroDivisionError"
    assert context["exception"].startswith("ZeroDivisionError: ")
    assert (context["map_index"], context["try_number"]) == (1, 1)
    assert (context["dag_id"], context["run_id"]) == ("division", run.run_id)
    assert context["params"] == {"unused": 0}
    assert context["at"] == sim.now
    assert context["idempotency_key"].startswith(f"{run.run_id}/divide/1/failure/")


async def test_the_context_of_a_failed_run_names_the_task_that_failed_first(sim: Sim):
    called: Called = []

    @task(retry=ONCE)
    def divide(n: int) -> float:
        return 1 / n

    @task
    def total(parts: list[float]) -> float:
        return sum(parts)

    @dag(on_failure=[called.append, WebhookNotifier("https://hook.example/")])
    def sums() -> None:
        total(divide.expand(n=[1, 0, 2]))

    run = await sim.start(sums)
    await run.finished()

    (context,) = called
    assert (context["state"], context["error"]["type"]) == ("failed", "ZeroDivisionError")
    assert context["error"]["message"].startswith("divide[1]: ")
    (sent,) = sim.notifications
    assert json.loads(sent.body)["error"] == context["error"]
    assert "is failed: ZeroDivisionError: divide[1]: " in json.loads(sent.body)["text"]


async def test_a_task_that_never_started_has_no_callback(sim: Sim):
    called: Called = []

    @task(retry=ONCE)
    def breaks() -> None:
        raise OSError("no")

    @task(on_failure=called.append, on_skip=called.append)
    def below() -> None:
        """Never begins."""

    @task.short_circuit
    def never() -> bool:
        return False

    @dag
    def downstream() -> None:
        below().after(breaks())
        below.override(task_id="skipped")().after(never())

    run = await sim.start(downstream)
    await run.finished()

    assert run["below"].state == "upstream_failed"
    assert run["skipped"].state == "skipped"
    assert not called


@pytest.mark.parametrize(
    ("leaf_fails", "event", "state"),
    [
        pytest.param(False, "success", "success", id="success"),
        pytest.param(True, "failure", "failed", id="failure"),
    ],
)
async def test_the_end_of_a_run_calls_what_its_dag_says(
    sim: Sim, leaf_fails: bool, event: str, state: str
):
    called: Called = []

    @task(retry=ONCE)
    def leaf() -> None:
        if leaf_fails:
            raise OSError("no")

    @dag(on_success=called.append, on_failure=called.append)
    def ends() -> None:
        leaf()

    await (await sim.start(ends)).finished()

    assert [(context["event"], context["state"]) for context in called] == [(event, state)]
    assert called[0]["task_id"] == ""


async def test_a_run_that_is_partial_has_failed_to_its_callbacks(sim: Sim):
    called: Called = []

    @task(retry=ONCE)
    def breaks() -> None:
        raise OSError("no")

    @task(trigger_rule="all_done")
    def after_all() -> None:
        """Runs in any case."""

    @dag(on_failure=called.append)
    def lenient() -> None:
        after_all().after(breaks())

    await (await sim.start(lenient)).finished()

    assert [context["state"] for context in called] == ["partial"]


async def test_tasks_cancelled_by_a_person_have_no_callback(sim: Sim):
    called: Called = []

    @sensor(on_failure=called.append, on_skip=called.append)
    async def waits() -> bool:
        return False

    @dag(on_failure=called.append)
    def cancelled() -> None:
        waits()

    run = await sim.start(cancelled)
    await sim.cancel(run)

    assert run.state == "cancelled"
    assert not called


async def test_a_deadline_calls_back_once(sim: Sim):
    called: Called = []

    @sensor(timeout="1h", on_timeout="skip", deadline="20m", on_deadline=called.append)
    async def waits() -> bool:
        raise NotReady

    @dag(deadline="30m", on_deadline=called.append)
    def late() -> None:
        waits()

    await (await sim.start(late)).finished()

    said = [(context["task_id"], context["event"], context["state"]) for context in called]
    assert said == [("waits", "deadline", "queued"), ("", "deadline", "running")]


async def test_a_failing_callback_is_reported_and_changes_nothing(sim: Sim):
    called: Called = []

    def breaks(_: dict[str, Any]) -> None:
        raise ValueError("the pager is broken")

    def exits(_: dict[str, Any]) -> None:
        raise SystemExit(3)

    @task(on_success=[breaks, exits, called.append])
    def well() -> int:
        return 7

    @dag(on_success=breaks)
    def unharmed() -> None:
        well()

    run = await sim.start(unharmed)
    await run.finished()

    assert (run.state, run["well"].result) == ("success", 7)
    assert len(called) == 1
    assert "ValueError: the pager is broken" in run["well"].log
    assert "SystemExit" in run["well"].log


async def test_an_async_callback_runs_to_its_end(sim: Sim):
    called: Called = []

    async def slowly(context: dict[str, Any]) -> None:
        await asyncio.sleep(5)
        called.append(context)

    @task(on_success=slowly)
    def well() -> None:
        """Succeeds."""

    @dag
    def patient() -> None:
        well()

    await (await sim.start(patient)).finished()
    assert not called
    await sim.advance("5s")
    assert len(called) == 1


async def test_a_callback_that_takes_too_long_is_ended(sim: Sim):
    called: Called = []

    async def for_ever(_: dict[str, Any]) -> None:
        await asyncio.sleep(1e9)

    @task(on_success=for_ever)
    def first() -> None:
        """Succeeds."""

    @task(on_success=called.append)
    def second() -> None:
        """Succeeds."""

    @dag
    def stuck() -> None:
        second().after(first())

    await (await sim.start(stuck)).finished()
    assert not called
    await sim.advance("61s")
    assert len(called) == 1


async def test_output_of_a_callback_is_in_the_log_of_its_task(sim: Sim):
    def loud(context: dict[str, Any]) -> None:
        print("paging", context["task_id"])

    @task(on_success=loud)
    def well() -> None:
        print("working")

    @dag
    def noisy() -> None:
        well()

    run = await sim.start(noisy)
    await run.finished()

    assert run["well"].log == "working\n[aioflow: on_success]\npaging well\n"


async def test_a_crash_before_it_is_known_to_be_done_calls_once_more_with_the_same_key(sim: Sim):
    called: list[str] = []

    async def slowly(context: dict[str, Any]) -> None:
        called.append(context["idempotency_key"])
        await asyncio.sleep(5)

    @task(on_success=slowly)
    def well() -> None:
        """Succeeds."""

    @dag
    def interrupted() -> None:
        well()

    await (await sim.start(interrupted)).finished()
    await sim.crash()
    await sim.advance("10s")
    await sim.crash()
    await sim.advance("10s")

    assert len(called) == 2
    assert len(set(called)) == 1


async def test_a_crash_at_every_commit_loses_no_callback():
    called: list[str] = []

    @task(retry=ONCE, on_failure=lambda context: called.append(context["run_id"]))
    def breaks() -> None:
        raise OSError("no")

    @dag(on_failure=lambda context: called.append(context["run_id"]))
    def lossless() -> None:
        breaks()

    commits = await Sim.crash_everywhere(lossless)

    plays = 1 + 2 * commits
    assert plays * 2 <= len(called) <= plays * 2 + 2 * commits


async def test_more_callbacks_than_are_handed_out_at_once_are_all_made(sim: Sim):
    called: list[int] = []

    @task(retry=ONCE, on_failure=lambda context: called.append(context["map_index"]))
    async def breaks(n: int) -> None:
        raise OSError(f"no {n}")

    @dag
    def wide() -> None:
        breaks.expand(n=list(range(450)))

    await (await sim.start(wide)).finished()

    assert sorted(called) == list(range(450))


# ── notifiers ───────────────────────────────────────────────────────────────────────────


async def test_notifiers_say_what_happened(sim: Sim):
    @task(
        retry=ONCE,
        on_failure=[
            WebhookNotifier("https://chat.example.org/hook"),
            EmailNotifier(["a@example.org", "b@example.org"], connection="smtp"),
        ],
    )
    def breaks() -> None:
        raise OSError("disk full")

    @dag
    def told() -> None:
        breaks()

    run = await sim.start(told)
    await run.finished()

    webhook, mail = sim.notifications
    said = json.loads(webhook.body)
    assert (said["event"], said["state"], said["task_id"]) == ("failure", "failed", "breaks")
    assert said["text"] == f"task breaks of run {run.run_id} of told is failed: OSError: disk full"
    assert said["key"] == webhook.key == mail.key
    assert mail.to == "a@example.org, b@example.org"
    assert mail.subject == said["text"]


def _nothing() -> None:
    """Does nothing."""


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(WebhookNotifier, id="nowhere"),
        pytest.param(lambda: WebhookNotifier("ftp://example.org"), id="no-http"),
        pytest.param(lambda: WebhookNotifier("https://a", url_secret="U"), id="twice"),
        pytest.param(lambda: EmailNotifier([]), id="nobody"),
        pytest.param(lambda: EmailNotifier("example.org"), id="no-address"),
        pytest.param(lambda: task(on_failure=cast(Any, "mail"))(_nothing), id="no-callback"),
    ],
)
def test_nonsense_is_refused_where_it_is_written(make):
    with pytest.raises(DagError):
        make()
