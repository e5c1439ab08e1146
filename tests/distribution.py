"""Distribution of test cases among the parallel workers of pytest, and their order.

A worker takes the cases of one file together, so that fixtures of the module are set up once, and
the controller sends one message instead of one per case. Cases that share a daemon are taken
together, as their ``xdist_group`` requires. A case that the CPU budget lists as costly is taken
alone. The longest units come first, so that no worker is busy long after the others have finished.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling

from tests.cpu_budget import exceptions

__all__ = ("Distribution", "Scheduling", "rank", "unit_of")

_STARTS_PROCESSES = ("process", "postgres", "browser")
_COSTLY = {case: float(entry["seconds"]) for case, entry in exceptions().items()}


def unit_of(nodeid: str) -> str:
    """Return the unit that a worker takes as a whole: a group, a file, or this case alone."""
    if nodeid.rfind("@") > nodeid.rfind("]"):
        return nodeid.rpartition("@")[2]
    name = nodeid.partition("[")[0]
    return nodeid if name in _COSTLY else name.partition("::")[0]


def rank(nodeid: str, cases: int, starts_processes: bool) -> tuple[int, float, str]:
    """Return the sort key of a case, which is equal for all ``cases`` cases of its unit."""
    unit = unit_of(nodeid)
    if unit == nodeid:
        return 1, -_COSTLY[nodeid.partition("[")[0]], unit
    if not nodeid.startswith(f"{unit}::"):
        return 0, -cases, unit
    return 2 if starts_processes else 3, -cases, unit


class Scheduling(LoadGroupScheduling):  # type: ignore[misc]  # it has no types
    """Hand out units in the order in which they were collected."""

    def remove_node(self, node: Any) -> str | None:
        """Give the remaining work of a worker to others, without the case at which it crashed.

        xdist would hand out the worker's finished units again as well. A worker that gets such a
        unit has nothing to run and never asks for more, so the session would not end.
        """
        left = {
            unit: cases
            for unit, cases in self.assigned_work.pop(node).items()
            if not all(cases.values())
        }
        if not left:
            return None
        first = next(iter(left.values()))
        crashed = next(case for case, is_done in first.items() if not is_done)
        first[crashed] = True
        for unit, cases in reversed(left.items()):
            if not all(cases.values()):
                self.workqueue[unit] = cases
                self.workqueue.move_to_end(unit, last=False)
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        """Give a worker units until it has three cases, since it holds its last one back."""
        before = -1
        while not node.shutting_down and before != len(self.workqueue):
            before = len(self.workqueue)
            super()._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


class Distribution:
    """A pytest plugin for the controller and its workers."""

    @pytest.hookimpl
    def pytest_xdist_make_scheduler(
        self, config: pytest.Config, log: Producer
    ) -> LoadGroupScheduling | None:
        """Replace the scheduler of ``--dist loadgroup``."""
        if config.getoption("dist") != "loadgroup":
            return None
        config.option.loadscopereorder = False  # it would ignore how long a case takes
        return Scheduling(config, log)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Import this worker's share of the files before the others.

        Each worker imports all files. In a new checkout, most of that time is spent rewriting
        assertions. Other workers read from the disk what one worker has rewritten.
        """
        number, count = _place(session.config)
        if sys.dont_write_bytecode:
            return
        folders = [Path(name) for name in session.config.args if Path(name).is_dir()]
        files = sorted(file for folder in folders for file in folder.rglob("test_*.py"))
        for file in files[number::count] if count > 1 else ():
            # If the import fails, the collection of this file reports the reason.
            with contextlib.suppress(Exception, pytest.skip.Exception):
                _ = pytest.Module.from_parent(session, path=file.resolve()).obj

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Move the longest units to the front, and keep the order within a unit."""
        if _place(config)[1] < 2:
            return
        cases = Counter(unit_of(item.nodeid) for item in items)
        slow = {
            unit_of(item.nodeid)
            for item in items
            if any(item.get_closest_marker(marker) for marker in _STARTS_PROCESSES)
        }

        def key(item: pytest.Item) -> tuple[int, float, str]:
            unit = unit_of(item.nodeid)
            return rank(item.nodeid, cases[unit], unit in slow)

        items.sort(key=key)


def _place(config: pytest.Config) -> tuple[int, int]:
    """Return the number of this worker and the number of workers; 0 and 1 outside a worker."""
    if not hasattr(config, "workerinput"):
        return 0, 1
    number = config.workerinput["workerid"].removeprefix("gw")
    return int(number), int(config.workerinput["workercount"])
