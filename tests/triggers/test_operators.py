"""Ready-made operators, run as a worker runs them."""

from __future__ import annotations

import os
import select

import pytest

from aioflow import DAG, Skip, dag, task
from aioflow.testing import Sim
from aioflow_triggers.operators import BashFailed, BashOperator, EmptyOperator, TriggerDagRun
from tests.triggers.conftest import NOON

CONTEXT = {
    "dag_id": "d",
    "task_id": "t",
    "run_id": "r",
    "logical_date": NOON,
    "try_number": 2,
}


def bash(command, **options):
    return BashOperator(task_id="t", bash_command=command, **options).execute(CONTEXT)


def test_the_last_line_is_the_result_and_all_lines_go_to_the_log(capsys):
    assert bash("echo one; echo two >&2; printf three") == "three"

    assert capsys.readouterr().out == "one\ntwo\nthree\n"


def test_a_command_that_says_nothing_has_an_empty_result():
    assert bash("true") == ""


def test_empty_lines_at_the_end_are_no_result():
    assert bash("echo one; echo; echo") == "one"


def test_undecodable_output_does_no_harm(capsys):
    assert bash(r"printf 'a\xff\nb\xc3'; printf '\xa9'") == "bé"


def test_much_output_is_passed_on_as_it_comes(capsys):
    assert bash("seq 200000") == "200000"

    assert len(capsys.readouterr().out.splitlines()) == 200_000


def test_a_bad_exit_code_fails_the_try_and_is_said():
    with pytest.raises(BashFailed, match="ended with 3: no disk") as raised:
        bash("echo no disk; exit 3")

    assert raised.value.exit_code == 3


def test_a_signal_is_said():
    with pytest.raises(BashFailed, match="killed by signal 15"):
        bash("kill -TERM $$")


@pytest.mark.parametrize(
    ("code", "option"),
    [
        pytest.param(99, {}, id="airflows"),
        pytest.param(5, {"skip_on_exit_code": 5}, id="one"),
        pytest.param(0, {"skip_on_exit_code": [7, 0]}, id="several"),
    ],
)
def test_an_exit_code_can_skip(code, option):
    with pytest.raises(Skip):
        bash(f"exit {code}", **option)


def test_no_exit_code_need_skip():
    with pytest.raises(BashFailed):
        bash("exit 99", skip_on_exit_code=None)


def test_the_command_knows_its_run_as_in_airflow():
    told = bash("echo $AIRFLOW_CTX_DAG_ID $AIRFLOW_CTX_DAG_RUN_ID $AIRFLOW_CTX_LOGICAL_DATE")

    assert told == "d r 2030-01-01T12:00:00+00:00"


def test_the_environment_is_added_to_or_replaced(monkeypatch):
    monkeypatch.setenv("MINE", "1")

    assert bash("echo $MINE$YOURS", env={"YOURS": "2"}, append_env=True) == "12"
    assert bash("echo $MINE$YOURS", env={"YOURS": "2"}) == "2"


def test_the_mark_by_which_leftovers_are_found_stays_in_any_environment(monkeypatch):
    monkeypatch.setenv("AIOFLOW_CHILD_OF", "home:1")

    assert bash("echo $AIOFLOW_CHILD_OF", env={}) == "home:1"


def test_it_runs_where_it_should(tmp_path):
    assert bash("pwd -P", cwd=tmp_path) == str(tmp_path.resolve())


def dies(pid):
    """Wait up to ten seconds for a process to die. Return whether it is dead."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 10)[0])
    finally:
        os.close(handle)


def test_the_rest_of_the_process_group_dies_with_bash(tmp_path):
    # The process holds the output open, which must not delay the end of ``bash``.
    pid = int(bash("sleep 3600 & echo $!"))

    assert dies(pid)


def test_a_process_that_writes_for_ever_delays_no_end(capsys):
    bash("yes & echo $!")


class CutShort:
    """A log that raises after the first full line, as when a try is interrupted."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text
        if self.text.endswith("\n"):
            raise KeyboardInterrupt


def test_a_try_that_is_cut_short_leaves_nothing(monkeypatch):
    log = CutShort()
    monkeypatch.setattr("sys.stdout", log)

    with pytest.raises(KeyboardInterrupt):
        bash("sleep 3600 & echo $$ $!; wait")

    for pid in log.text.split():
        assert dies(int(pid))


def test_an_empty_operator_does_nothing():
    EmptyOperator(task_id="t").execute(CONTEXT)


def test_they_are_tasks_of_a_dag():
    with DAG("d"):
        first = EmptyOperator(task_id="first")
        second = BashOperator(task_id="second", bash_command="true", retries=1, pool="p")
        first >> second

    assert second.node.parents == {0}


# ── runs of other DAGs ──────────────────────────────────────────────────────────────────


@task(retries=0)
def divides(by: int) -> float:
    return 1 / by


@dag
def child(by: int = 1) -> None:
    divides(by)


with DAG("waits") as waits:
    TriggerDagRun(task_id="t", dag=child, conf={"by": 2}, retries=0)

with DAG("only_starts") as only_starts:
    TriggerDagRun(task_id="t", dag="child", wait=False)

with DAG("fails") as fails:
    TriggerDagRun(task_id="t", dag="child", conf={"by": 0}, retries=0)

with DAG("puts_up_with_it") as puts_up_with_it:
    TriggerDagRun(task_id="t", dag="child", conf={"by": 0}, allowed="failed")


@pytest.mark.parametrize(
    ("parent", "state", "result", "ended"),
    [
        (waits, "success", "success", "success"),
        (only_starts, "success", None, "success"),
        (fails, "failed", None, "failed"),
        (puts_up_with_it, "success", "failed", "failed"),
    ],
)
async def test_a_run_of_another_dag_is_started_and_awaited_if_wanted(
    sim: Sim, parent, state, result, ended
):
    await sim.schedule(child)  # known, whatever the tests before have had forgotten
    run = await sim.start(parent)
    await run.finished()

    (started,) = sim.runs(child)
    await started.finished()
    assert (run["t"].state, started.state) == (state, ended)
    told = run["t"].result
    if result is not None:
        assert (told["state"], told["run_id"]) == (result, started.run_id)
    elif state == "success":
        assert told == started.run_id
