"""Conversion of reports by actors into reports by real code, for the second level.

Triggers become triggers that a real host can run, exceptions go through the real end of a try, and
large results are stored in files.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from aioflow.model.dag import Body
from aioflow.protocol.inputs import Input
from aioflow.protocol.reports import Awaiting, Deferred, Failed, StreamOpened, Succeeded
from tests.sim import misbehaving
from tests.sim.broken import Broken
from tests.sim.misbehaving import NAMED
from tests.sim.raising import as_run
from tests.sim.script import UNSTORABLE, plan_of

__all__ = ("Reports",)

_ENDS = ("",) * 8 + ("failed", "skipped")
"""How an event ends its task; an empty entry resumes the task instead."""


class Reports:
    """Converts reports. A repeated report is converted in the same way.

    Attributes:
        spoilt: Runs with a result that cannot be stored.
    """

    def __init__(self, node: Any) -> None:
        self.spoilt: set[int] = set()
        self._node = node

    def as_real(self, report: Input) -> Input:
        """Return the replacement of a report."""
        match report:
            case Deferred():
                return self._with_trigger(report)
            case Awaiting(kind="ask_person"):
                return report
            case Awaiting():
                return self._with_triggers(report)
            case StreamOpened():
                rng = self._chance(report.task_no, report.start_no, report.ordinal)
                dag_version = plan_of(report.kwargs)
                path, kwargs = misbehaving.draw_stream(rng, report.kwargs, dag_version)
                return msgspec.structs.replace(report, class_path=path, kwargs=kwargs)
            case Succeeded():
                self._leave_result(report)
            case Failed() if report.failure.reason == "raised":
                return self._as_run(report)
            case _:
                pass
        return report

    def _chance(self, *which: int) -> random.Random:
        return random.Random(" ".join(map(str, (self._node.seed, *which))))

    def _as_run(self, report: Failed) -> Failed:
        row = self._node.tables.tasks.get(report.task_no)
        if row is None or self._node.spec_of(row.run_no, row.task_index).body is not Body.FUNCTION:
            return report
        try:
            return as_run(report, self._chance(report.task_no, report.start_no))
        except Broken as exc:
            self._node.found(exc)
            return report

    def _leave_result(self, report: Succeeded) -> None:
        """Write the result as a large one as well, unless its run is deleted."""
        node, row = self._node, self._node.tables.tasks.get(report.task_no)
        if report.body == UNSTORABLE:
            self.spoilt.add(node.tables.tasks[report.task_no].run_no)
        if row is not None and row.run_no not in node.tables.deleted:
            node.files.leave(row.run_no, report.task_no, report.start_no)

    def _with_trigger(self, report: Deferred) -> Deferred:
        """Replace the trigger. Each start always gets the same one."""
        start = f"{self._node.seed} {report.task_no} {report.start_no}"
        class_path, kwargs = misbehaving.draw(
            random.Random(start),
            report.kwargs,
            badly=self._node.faults.happens("trigger misbehaves"),
            has_timeout=report.timeout_us is not None,
            ends=random.Random(f"ends {start}").choice(_ENDS),
        )
        return msgspec.structs.replace(report, class_path=class_path, kwargs=kwargs)

    def _with_triggers(self, report: Awaiting) -> Awaiting:
        """See ``_with_trigger``."""
        rng = self._chance(report.task_no, report.start_no, report.ordinal)
        if report.triggers and report.triggers[0][0] == "sim:Named":
            return msgspec.structs.replace(report, triggers=((NAMED, report.triggers[0][1]),))
        badly = self._node.faults.happens("trigger misbehaves")
        has_timeout = report.timeout_us is not None
        triggers = tuple(
            misbehaving.draw(rng, kwargs, badly=badly, has_timeout=has_timeout)
            for _, kwargs in report.triggers
        )
        return msgspec.structs.replace(report, triggers=triggers)
