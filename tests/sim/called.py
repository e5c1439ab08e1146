"""Invariants of named events, and of runs that tasks have started."""

from __future__ import annotations

from typing import Any

import msgspec

from aioflow.core.triggers.assignment import RUN
from aioflow.model.states import Failure, TriggerState
from tests.sim.broken import Broken

__all__ = ("Positions", "outcome_is_true", "runs_answer_their_callers")


def runs_answer_their_callers(node: Any) -> None:
    """E8: check that a task waiting for the run it has started waits for an active run."""
    for row in node.tables.triggers.values():
        if row.class_path != RUN or row.state is not TriggerState.WAITING:
            continue
        run_no = node.tables.called.get(row.trigger_no)
        if run_no is None or not node.tables.runs[run_no].state.is_live:
            raise Broken("E8 calls", f"{row} waits, and its run is {run_no}")


def outcome_is_true(tables: Any, task_no: int, body: bytes | None, failure: Failure | None) -> None:
    """E8: check that a task receives the actual outcome of the run it has started.

    Raises:
        Broken: If it receives another outcome.
    """
    told = None if body is None else msgspec.msgpack.decode(body)
    match told, None if failure is None else failure.reason:
        case {"state": state, "run_id": run_id}, None:
            is_good = state in {"success", "partial"}
        case [_, run_id, state], "dag_run_failed":
            is_good = state in {"failed", "cancelled"}
        case _, "run_refused":
            return
        case _:
            raise Broken("E8 calls", f"task {task_no} received {told} and {failure}")
    run_nos = [no for no in tables.called.values() if tables.run_ids[no] == run_id]
    ends = {end.label for no in run_nos for end in tables.ends[no]}
    if not is_good or state not in ends:
        raise Broken("E8 calls", f"task {task_no} received {told}, its run has ended {ends}")


class Positions:
    """The position in each topic up to which one start of a coroutine has read events."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def after(self, topic: str) -> int:
        """Return the number of the last event read from the topic, or -1 if none was read yet."""
        return self._last.get(topic, -1)

    def hears(self, tables: Any, run_no: int, topic: str, body: bytes | None) -> bool:
        """Record an event, and check that it is the next one stored since the run began.

        Return ``False`` for an event of another edition of the code, which is not checked.

        Raises:
            Broken: If it is another event.
        """
        _, _, *told = msgspec.msgpack.decode(body or b"\x90")
        if not told or not isinstance(told[0], dict):
            return False  # of another edition, which waits for something else
        number = told[0]["event_no"]
        behind = max(self.after(topic), run_no)
        rows = tables.named_events.values()
        there = [row.event_no for row in rows if row.name == topic and row.event_no > behind]
        if not there or min(there) != number:
            raise Broken("E9 events", f"event {number} of {topic} after {behind}: {there}")
        self._last[topic] = number
        return True
