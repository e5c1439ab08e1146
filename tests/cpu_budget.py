"""The CPU budget of a test case: the limit, the cases that may exceed it, and the reasons.

The CPU time of a case is that of its own process and of the child processes that ended during the
case: its set-up, its call and the teardown of its function-scoped fixtures. Fixtures of a larger
scope are shared, so no single case is charged for them. For a process shared by several cases, a
case is charged with the time that the process used during the case, whether or not the process
ended in it. CPU time, unlike wall time, hardly depends on other load. It does depend on the
machine, and a rented machine may be several times slower for minutes. The budget is therefore
larger on a slower machine, as measured by a fixed piece of work when the session starts and again
after a case that exceeds the budget.
"""

from __future__ import annotations

import contextlib
import json
import resource
import time
import tomllib
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

__all__ = ("BUDGET_SECONDS", "CpuBudget", "exceptions", "measure", "uncharged")

BUDGET_SECONDS = 2.0
"""CPU seconds of one case of ``make test`` on the reference machine."""

REFERENCE_SECONDS = 0.018
"""CPU seconds of ``_yardstick`` on the reference machine: 2 cores, Python 3.11."""

EXCEPTIONS = Path(__file__).with_name("cpu_budget.toml")

_CPU = "cpu_seconds"


def exceptions() -> dict[str, dict[str, Any]]:
    """Return the seconds and the reason of each case that may exceed the budget, by node id."""
    return tomllib.loads(EXCEPTIONS.read_text())


class CpuBudget:
    """A pytest plugin that measures each case and fails the session if one exceeds its limit."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_controller = not hasattr(config, "workerinput")
        self._enforced = config.getoption("markexpr", "") == "not nightly"
        self._scale = max(1.0, _yardstick() / REFERENCE_SECONDS)
        self._spent = 0.0
        self._shared = 0.0
        self._noted = 0.0
        self._own: set[pytest.FixtureDef[object]] = set()
        self._is_ending = False
        self._costs: dict[str, float] = {}
        self._over: list[str] = []

    # ── measured in the process of the case ─────────────────────────────────────────────

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Start measuring a case."""
        self._spent = self._shared = 0.0
        self._noted = _cpu()
        return (yield from self._timed())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure the call of a case."""
        return (yield from self._timed())

    def _timed(self) -> Generator[None, object, object]:
        began = _cpu()
        try:
            return (yield)
        finally:
            self._spent += _cpu() - began

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object]
    ) -> Generator[None, object, object]:
        """Charge no case for a shared fixture, nor for the fixtures that this fixture requests."""
        began, before = _cpu(), self._shared
        self._noted = began
        try:
            return (yield)
        finally:
            self._noted = _cpu()
            if fixturedef.scope == "function":
                self._own.add(fixturedef)
            else:
                self._shared = before + self._noted - began

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure the teardown up to the last function-scoped fixture. Those end first."""
        began = self._noted = _cpu()
        self._is_ending = True
        try:
            return (yield)
        finally:
            self._is_ending = False
            cost = self._spent - self._shared + self._noted - began
            scale = self._scale
            if cost > BUDGET_SECONDS * scale:
                scale = max(scale, _yardstick() / REFERENCE_SECONDS)
            item.user_properties.append((_CPU, round(cost / scale, 3)))

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[object]) -> None:
        """Record the end of a case's own fixture. Pytest may report the end more than once.

        A shared fixture may also end in the set-up of a case that requests it with another
        parameter.
        """
        if fixturedef in self._own:
            self._own.remove(fixturedef)
            self._noted = _cpu()
        elif not self._is_ending and fixturedef.scope != "function":
            now = _cpu()
            self._shared += now - self._noted
            self._noted = now

    # ── judged in the controller ────────────────────────────────────────────────────────

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the cost of each case."""
        if report.when == "teardown" and self._is_controller:
            costs = [value for name, value in report.user_properties if name == _CPU]
            self._costs[report.nodeid] = float(str(costs[-1]))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the session if a case exceeds its limit."""
        if not self._is_controller:
            return
        if self._enforced:
            listed = exceptions()
            self._over = [
                f"{case} took {cost:.1f} s of CPU, {allowed:.1f} allowed"
                for case, cost in sorted(self._costs.items())
                if cost > (allowed := _allowed(case, listed))
            ]
        if self._over and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if (file := self._config.getoption("--cpu-report")) is not None:
            lines = (json.dumps({"case": c, _CPU: s}) for c, s in sorted(self._costs.items()))
            Path(file).write_text("".join(f"{line}\n" for line in lines))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the total cost of the cases per directory, and the cases over their limit."""
        folders: defaultdict[str, float] = defaultdict(float)
        for case, cost in self._costs.items():
            folders["/".join(case.partition("::")[0].split("/")[:2])] += cost
        if (total := sum(folders.values())) >= 1.0:
            terminalreporter.section("CPU seconds of cases, without shared fixtures")
            costly_first = sorted(folders.items(), key=lambda found: -found[1])
            parts = ", ".join(f"{folder} {seconds:.0f}" for folder, seconds in costly_first)
            terminalreporter.write_line(f"{total:.0f}: {parts}")
        if self._over:
            terminalreporter.section("over the CPU budget", red=True)
            for line in self._over:
                terminalreporter.write_line(line)
            terminalreporter.write_line(f"Make them cheaper, or list them in {EXCEPTIONS.name}.")


def _allowed(case: str, listed: dict[str, dict[str, Any]]) -> float:
    name = case.partition("[")[0].partition("@")[0]  # the name of its xdist group follows an @
    entry = listed.get(name)
    return BUDGET_SECONDS if entry is None else float(entry["seconds"])


class _Meter:
    """CPU seconds of this process, of its ended children, and of processes shared by cases.

    A shared process counts while it runs. After it has been waited for, the kernel adds the same
    figure to that of the ended children, so the sum does not jump.
    """

    def __init__(self) -> None:
        self._shared: dict[int, psutil.Process] = {}
        self._uncharged = 0.0

    def __call__(self) -> float:
        own = resource.getrusage(resource.RUSAGE_SELF)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        running = sum(map(self._of, list(self._shared)))
        used = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
        return used + running - self._uncharged

    def _of(self, pid: int) -> float:
        try:
            return sum(self._shared[pid].cpu_times()[:4])
        except psutil.NoSuchProcess:
            del self._shared[pid]
            return 0.0

    def add(self, pid: int) -> None:
        self._shared[pid] = psutil.Process(pid)

    def leave_out(self, seconds: float) -> None:
        self._uncharged += seconds


_cpu = _Meter()


def measure(pid: int) -> None:
    """Charge each case for the time that this child process uses while the case runs."""
    _cpu.add(pid)


@contextlib.contextmanager
def uncharged() -> Iterator[None]:
    """Charge no case for the work inside the block, for instance for starting a shared process."""
    began = _cpu()
    try:
        yield
    finally:
        _cpu.leave_out(_cpu() - began)


def _yardstick() -> float:
    return min(_work() for _ in range(3))


def _work() -> float:
    began = time.process_time()
    numbers: dict[int, str] = {}
    for number in range(200_000):
        numbers[number % 1000] = str(number)
    return time.process_time() - began
