"""The CPU budget of test cases: charged to the right case, enforced, with valid exceptions."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import cpu_budget
from tests.cpu_budget import CpuBudget, exceptions

ROOT = Path(__file__).parents[2]

UNUSED = ("aioflow.pytest_plugin", "schemathesis", "pytest_cov", "hypothesispytest", "anyio")

SPENDING = """
import pytest
from tests import cpu_budget


def spend(seconds):
    cpu_budget._cpu.seconds += seconds
"""


class Meter:
    """A CPU time meter that the test advances."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Installed:
    """A plugin that does what ``tests/conftest.py`` does, for a session inside a test."""

    def pytest_addoption(self, parser: pytest.Parser) -> None:
        parser.addoption("--cpu-report")

    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.register(CpuBudget(config))


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """Return the file of exceptions, on a machine that is as fast as the reference."""
    path = tmp_path / "exceptions.toml"
    path.write_text("")
    monkeypatch.setattr(cpu_budget, "EXCEPTIONS", path)
    monkeypatch.setattr(cpu_budget, "REFERENCE_SECONDS", 1_000.0)
    monkeypatch.setattr(cpu_budget, "_cpu", Meter())
    return path


@pytest.fixture
def session(pytester, listed, monkeypatch):
    """Return a function that runs a test file as ``make test`` does."""
    # Otherwise, files of equal size that are written in the same second would share their bytecode.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")

    def run(source: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=SPENDING + source)
        # unraisableexception collects garbage several times as each session ends. looptime_plugin
        # leaves an event loop in this process that is never closed. The unused plugins would be
        # imported again in each session.
        plugins = ("randomly", "unraisableexception", "looptime_plugin", *UNUSED)
        without = [word for name in plugins for word in ("-p", f"no:{name}")]
        options = ("-m", "not nightly", *without, *options)
        return pytester.runpytest_inprocess(*options, plugins=[Installed()])

    return run


# ── which cases are checked ─────────────────────────────────────────────────────────────


def test_a_case_above_the_budget_fails_a_green_session_and_is_named(session):
    result = session("""
def test_cheap(): pass
def test_costly(): spend(3)
""")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2)
    result.stdout.re_match_lines([r"test_it\.py::test_costly took 3\.0 s of CPU, 2\.0 allowed"])
    result.stdout.no_fnmatch_line("*test_cheap took*")


def test_a_listed_case_may_cost_its_figure_and_no_more(session, listed):
    listed.write_text("""
["test_it.py::test_costly"]
seconds = 5
reason = "It spends."
""")
    source = """
@pytest.mark.parametrize("seconds", [3, {}])
def test_costly(seconds): spend(seconds)
"""

    assert session(source.format(4)).ret == pytest.ExitCode.OK
    assert session(source.format(6)).ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(("now", "ends"), [(1_500.0, "OK"), (1_499.0, "TESTS_FAILED")])
def test_a_costly_case_is_judged_by_how_slow_the_machine_is_then(session, monkeypatch, now, ends):
    measured = iter([1_000.0, now])
    monkeypatch.setattr(cpu_budget, "_yardstick", lambda: next(measured))

    assert session("def test_costly(): spend(3)").ret == pytest.ExitCode[ends]


def test_nothing_is_judged_where_nightly_cases_run_too(session):
    result = session("def test_costly(): spend(3)", "-m", "nightly or not nightly")

    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("fixture", ["made", "unmade"])
def test_a_case_is_charged_for_its_own_fixture(session, fixture):
    result = session(f"""
@pytest.fixture
def made(): spend(3)
@pytest.fixture
def unmade():
    yield
    spend(3)
def test_it({fixture}): pass
""")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["test_it.py::test_it took 3.0 s *"])


def test_the_cpu_time_of_a_child_process_counts_once_it_has_ended():
    spin = "while time.process_time() < 0.3: pass"
    before = cpu_budget._cpu()
    subprocess.run([sys.executable, "-c", f"import time\n{spin}"], check=True)

    assert cpu_budget._cpu() - before >= 0.3


SPINNING = """
import sys, time
for line in sys.stdin:
    end = time.process_time() + 0.3
    while time.process_time() < end: pass
    print(flush=True)
"""


@pytest.fixture
def spinning():
    """Start a process that uses 0.3 s of CPU for each line that it receives."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SPINNING], stdin=pipe, stdout=pipe) as process:
        yield process


def spin(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    process.stdout.readline()


def test_the_cpu_time_of_a_shared_process_counts_when_it_is_used_and_not_at_its_end(spinning):
    cpu_budget.measure(spinning.pid)
    before = cpu_budget._cpu()
    spin(spinning)
    while_it_runs = cpu_budget._cpu()
    spinning.kill()
    spinning.wait()

    assert while_it_runs - before >= 0.25
    assert cpu_budget._cpu() - while_it_runs < 0.1


def test_uncharged_work_counts_for_no_case(spinning):
    cpu_budget.measure(spinning.pid)
    before = cpu_budget._cpu()
    with cpu_budget.uncharged():
        spin(spinning)

    assert cpu_budget._cpu() - before < 0.1


SHARED = """
@pytest.fixture(scope="module", params={params})
def below(request):
    spend(3)
    yield
    spend(3)
@pytest.fixture(scope="module")
def daemon(below):
    spend(3)
    yield
    spend(3)
@pytest.fixture(scope="module")
def other():
    spend(3)
    yield
    spend(3)
@pytest.fixture
def client(daemon): yield
@pytest.fixture
def guest(other): yield
def test_one(other): pass
def test_two(client, guest): pass
def test_three(guest, client): pass
"""


@pytest.mark.parametrize("params", [[0], [0, 1]], ids=["made-once", "made-twice"])
def test_a_shared_fixture_is_charged_to_no_case(session, params):
    result = session(SHARED.format(params=params))

    assert result.ret == pytest.ExitCode.OK, result.stdout.str()


# ── the list ────────────────────────────────────────────────────────────────────────────


def dishonest(listed: dict[str, dict[str, Any]]) -> list[str]:
    """Return the exceptions that name no test, or that lack a figure or a reason."""
    return [
        case
        for case, entry in listed.items()
        if not _is_there(case)
        or entry.keys() != {"seconds", "reason"}
        or not entry["seconds"] > cpu_budget.BUDGET_SECONDS
        or not entry["reason"].strip()
    ]


def _is_there(case: str) -> bool:
    file, _, name = case.partition("::")
    path = ROOT / file
    return path.is_file() and any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        for node in ast.parse(path.read_text()).body
    )


def test_each_exception_names_a_test_and_says_why():
    assert dishonest(exceptions()) == []


def test_an_exception_that_is_not_honest_is_noticed():
    here = "tests/house/test_cpu_budget.py::test_each_exception_names_a_test_and_says_why"
    honest = {"seconds": 3, "reason": "It has to be."}

    assert dishonest({here: honest}) == []
    for case, entry in (
        (here.replace("each", "no"), honest),
        (here.replace("house", "home"), honest),
        (here, {"seconds": 3}),
        (here, {"seconds": 3, "reason": " "}),
        (here, {"seconds": 1, "reason": "It is cheap."}),
    ):
        assert dishonest({case: entry}) == [case]
