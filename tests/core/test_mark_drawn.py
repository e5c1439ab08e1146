"""Mark and clear tasks at random moments of a run, drawn from a seed. The run must still end."""

from __future__ import annotations

import random

import pytest

from aioflow.core.repair import execution
from aioflow.model.states import TaskState
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.requests import Mark
from tests.core.test_clear_drawn import Drawn, ends_well
from tests.sampling import seeds


class Marked(Drawn):
    """A world in which clients also mark tasks and runs at random."""

    def mark(self) -> Mark:
        clear = self.request()
        return Mark(
            run_id=clear.run_id,
            state=self.rng.choice((TaskState.SUCCESS, TaskState.FAILED)),
            tasks=clear.tasks,
            map_index=clear.map_index,
        )

    def happen(self) -> None:
        if self.rng.random() < 0.8:
            super().happen()
            return
        request = self.mark()
        if not request.tasks and self.rng.random() < 0.8:
            return  # whole runs seldom
        if self.rng.random() < 0.2:
            self.world.refuse(RequestReceived(0, request))
        else:
            self.world.ask(request)
            self.stands_as_marked(request)

    def stands_as_marked(self, request: Mark) -> None:
        (number,) = (no for no, run in self.world.rows.runs.items() if run.run_id == request.run_id)
        if not request.tasks:
            assert self.world.run_state(number) == request.state.label
        for row in self.world.rows.tasks.values():
            name = self.spec.tasks[row.task_index].task_id
            child = request.map_index in (-1, row.map_index)
            if row.run_no == number and name in request.tasks and child:
                assert row.state in (request.state, TaskState.REMOVED)


@pytest.mark.parametrize("seed", seeds(40, nightly=300))
def test_a_run_ends_whatever_is_marked_of_it(seed, monkeypatch):
    slices = random.Random(f"slices {seed}")
    monkeypatch.setattr(execution, "SLICE_TASKS", slices.choice((1, 2, 4, execution.SLICE_TASKS)))
    ends_well(Marked(seed))
