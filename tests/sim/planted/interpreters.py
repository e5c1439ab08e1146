"""Bugs of interpreters that DAG files choose. Only tests notice them: the simulator draws none."""

from __future__ import annotations

from tests.sim.planted.bug import PlantedBug
from tests.sim.planted.edit import Edit

__all__ = ("BUGS",)

_CORE = "tests/core/test_interpreters.py::"
_SLOTS = "tests/executors/test_slot_interpreters.py::"
_HOSTS = "tests/executors/test_host_interpreters.py::"

BUGS = (
    PlantedBug(
        name="functions_granted_without_interpreter",
        broken="a function of a broken interpreter gets a slot",
        promise="a task of a broken environment takes no slot and says why it waits",
        where="core",
        needs="a task of an interpreter that cannot be used",
        edits=(
            Edit(
                "aioflow.core.scheduling.slots",
                "_has_workers",
                "slot_role(spec) in hosts_up",
                "True",
            ),
        ),
        seen_by=f"{_CORE}test_functions_wait_until_workers_can_be_started_and_say_why",
    ),
    PlantedBug(
        name="start_trigger_created_in_our_interpreter",
        broken="the trigger of a task that starts deferred is hosted by its class alone",
        promise="code of a file runs in its own interpreter",
        where="core",
        needs="a task that starts deferred with a trigger of the catalogue",
        edits=(
            Edit(
                "aioflow.core.triggers.assignment", "_needs_dag", "ordinal == FROM_START", "False"
            ),
        ),
        seen_by=f"{_CORE}test_a_task_that_starts_deferred_is_made_in_its_interpreter",
    ),
    PlantedBug(
        name="trigger_moves_to_another_interpreter",
        broken="a trigger moves to the newest version whatever its interpreter is",
        promise="code of a version runs in the interpreter of that version",
        where="core",
        needs="a file that chooses another interpreter while a trigger of it waits",
        edits=(
            Edit(
                "aioflow.core.triggers.assignment",
                "newest_version",
                "newest.graph.spec.interpreter != spec.interpreter",
                "False",
            ),
        ),
        seen_by=f"{_CORE}test_a_trigger_does_not_move_to_a_version_of_another_interpreter",
    ),
    PlantedBug(
        name="host_up_before_it_answers",
        broken="a host of another interpreter counts as up when its process is started",
        promise="a process that never answers costs no try",
        where="host",
        needs="a host that dies before it answers",
        edits=(
            Edit(
                "aioflow.executors.shared_host",
                "SharedHost._send_hello",
                "self._launch is None",
                "True",
            ),
        ),
        seen_by=f"{_HOSTS}test_one_that_never_answers_is_not_up_and_comes_when_its_interpreter_is"
        "_mended",
    ),
    PlantedBug(
        name="busy_worker_stays_after_a_change",
        broken="a busy worker takes further tries although its interpreter was changed",
        promise="new tries run in the interpreter as it is now",
        where="host",
        needs="a try claimed behind one that runs, after a change",
        edits=(
            Edit(
                "aioflow.executors.worker_pool",
                "WorkerProcesses.interpreter_changed",
                "process.retire()",
                "None",
            ),
        ),
        seen_by=f"{_SLOTS}test_after_a_change_new_tries_run_in_it_and_running_ones_stay",
    ),
)
