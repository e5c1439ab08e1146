"""Parallel workers take groups first, then costly cases, then files, each of them as a whole."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from itertools import groupby

import pytest

from tests.cpu_budget import exceptions
from tests.distribution import Scheduling, rank, unit_of

COSTLY = sorted(exceptions(), key=lambda case: -exceptions()[case]["seconds"])
FILE = "tests/core/test_ids.py"


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        (f"{FILE}::test_one", FILE),
        (f"{FILE}::TestAll::test_one[a::b]", FILE),
        (f"{FILE}::test_one[who@where]", FILE),
        (f"{FILE}::test_one[who@where]@shared", "shared"),
        (f"{FILE}::test_one@shared", "shared"),
        (COSTLY[0], COSTLY[0]),
        (f"{COSTLY[0]}[sqlite]", f"{COSTLY[0]}[sqlite]"),
        (f"{COSTLY[0]}@shared", "shared"),
    ],
)
def test_a_worker_takes_a_group_a_costly_case_or_a_file(nodeid, unit):
    assert unit_of(nodeid) == unit


def test_what_takes_longest_comes_first_and_each_unit_as_a_whole():
    cases = [f"{folder}::test_{n}" for folder in "abc" for n in range(3)]
    cases += ["c::test_3", *(f"a::test_{n}@shared" for n in range(9)), COSTLY[-1], COSTLY[0]]
    random.shuffle(cases)
    counts = Counter(map(unit_of, cases))

    ordered = sorted(
        cases, key=lambda case: rank(case, counts[unit_of(case)], unit_of(case) == "b")
    )

    units = [unit for unit, _ in groupby(ordered, unit_of)]
    assert units == ["shared", COSTLY[0], COSTLY[-1], "b", "c", "a"]


class Worker:
    """A worker that runs the cases it gets. It holds the last one back while it may get more."""

    def __init__(self, cases: list[str], fatal: str = "") -> None:
        self.shutting_down = False
        self.queue: list[str] = []
        self._cases = cases
        self._fatal = fatal

    def send_runtest_some(self, indexes: list[int]) -> None:
        self.queue += [self._cases[index] for index in indexes]

    def shutdown(self) -> None:
        self.shutting_down = True

    def run(self) -> str | None:
        """Run a case and return it. Return ``None`` if there is none, or if the worker crashes."""
        if len(self.queue) < 2 and not (self.queue and self.shutting_down):
            return None
        if self.queue[0] == self._fatal:
            return None
        return self.queue.pop(0)

    @property
    def has_crashed(self) -> bool:
        return self.queue[:1] == [self._fatal]


@pytest.mark.parametrize("fatal", ["a::test_0", "a::test_3", "b::test_3", "c::test_0"])
def test_what_a_crashed_worker_had_left_runs_once_and_the_session_ends(fatal):
    cases = [f"{file}::test_{n}" for file in "abcdefg" for n in range({"c": 1}.get(file, 4))]
    scheduling = Scheduling.__new__(Scheduling)
    scheduling.log = lambda *_: None
    scheduling.workqueue = OrderedDict(
        (file, dict.fromkeys(found, False))
        for file, found in ((file, list(group)) for file, group in groupby(cases, unit_of))
    )
    workers = [Worker(cases, fatal), Worker(cases, fatal)]
    scheduling.assigned_work = {worker: {} for worker in workers}
    scheduling.registered_collections = dict.fromkeys(workers, cases)
    for worker in workers:
        scheduling._reschedule(worker)

    crashed, ran = None, []
    while any(worker.queue for worker in workers):
        is_stalled = True
        for worker in list(workers):
            if (case := worker.run()) is not None:
                scheduling.mark_test_complete(worker, cases.index(case), 0)
                ran.append(case)
            elif worker.has_crashed:
                crashed = scheduling.remove_node(worker)
                workers.remove(worker)
                workers.append(Worker(cases))
                scheduling.assigned_work[workers[-1]] = {}
                scheduling.registered_collections[workers[-1]] = cases
                scheduling._reschedule(workers[-1])
            else:
                continue
            is_stalled = False
        assert not is_stalled, "the session would not end"

    assert crashed == fatal
    assert sorted([*ran, fatal]) == sorted(cases)
