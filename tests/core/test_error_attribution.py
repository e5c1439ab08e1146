"""A failed turn is attributed to the run that the innermost frame knows, and to no other."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.core.quarantine import culprits
from aioflow.core.state.dag_triggers import DagTrigger
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance, TriggerInstance


def bare(kind: type) -> Any:
    """Return an uninitialized object of a class."""
    return object.__new__(kind)


def about(kind: type, run: Run) -> Any:
    """Return an object that belongs to a run."""
    one = bare(kind)
    one.run = run
    return one


def raised_by(work: Callable[[], None]) -> Exception:
    with pytest.raises(ZeroDivisionError) as caught:
        work()
    return caught.value


def fail() -> None:
    raise ZeroDivisionError


def with_local(value: object, inner: Callable[[], None]) -> Callable[[], None]:
    """Return a function that has this value in a local variable while it calls ``inner``."""

    def work() -> None:
        _at_hand = value
        inner()

    return work


RUN = bare(Run)
KNOWN = {
    "run": (RUN, RUN),
    "task": (about(TaskInstance, RUN), RUN),
    "mapped task": (about(MappedTask, RUN), RUN),
    "wait": (about(TriggerInstance, RUN), RUN),
}
UNKNOWN = [None, 5, "no run", [RUN], SimpleNamespace(run=RUN)]


@pytest.mark.parametrize(("value", "run"), KNOWN.values(), ids=KNOWN)
def test_code_that_works_on_a_part_of_a_run_works_on_that_run(value, run):
    assert culprits(raised_by(with_local(value, fail))) == [run]


def test_the_trigger_of_a_dag_is_named_itself():
    trigger = bare(DagTrigger)
    assert culprits(raised_by(with_local(trigger, fail))) == [trigger]


def test_without_a_frame_that_knows_a_run_none_is_named():
    assert culprits(raised_by(fail)) == []
    assert culprits(None) == []
    for value in UNKNOWN:
        assert culprits(raised_by(with_local(value, fail))) == []


def test_two_runs_at_hand_in_one_frame_are_both_named():
    first, second = bare(Run), bare(Run)

    def work() -> None:
        _pair = first, second
        _one, _other = first, second
        fail()

    assert culprits(raised_by(work)) == [first, second]


@given(st.lists(st.sampled_from(["nothing", "run", "task", "mapped task", "wait"]), max_size=8))
def test_the_innermost_frame_that_names_a_run_counts(kinds):
    expected: list[Run] = []
    work = fail
    for kind in kinds:  # the first one is the innermost
        run = bare(Run)
        value: Any = None
        if kind == "run":
            value = run
        elif kind != "nothing":
            value = about(
                {"task": TaskInstance, "mapped task": MappedTask, "wait": TriggerInstance}[kind],
                run,
            )
        if value is not None and not expected:
            expected = [run]
        work = with_local(value, work)

    assert culprits(raised_by(work)) == expected
