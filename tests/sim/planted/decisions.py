"""Bugs of decisions that people make for tasks."""

from __future__ import annotations

from tests.sim.planted.bug import PlantedBug
from tests.sim.planted.edit import Edit

__all__ = ("BUGS",)

_TESTS = "tests/core/test_decisions.py::"

BUGS = (
    PlantedBug(
        name="person_votes_twice",
        broken="the second vote of a person counts as that of another",
        promise="each person counts once, however they vote",
        where="core",
        needs="a decision that several people must approve",
        edits=(
            Edit(
                "aioflow.core.triggers.votes",
                "answer_decision",
                "any(vote.person == person for vote in before)",
                "any(vote.actor == actor.name for vote in before)",
            ),
        ),
        seen_by=f"{_TESTS}test_token_answers_for_its_creator_unless_it_only_reads",
    ),
    PlantedBug(
        name="decision_outlives_its_wait",
        broken="a decision stays open although its task does not wait for it any more",
        promise="a decision ends in the commit that resumes its task or ends its wait",
        where="core",
        needs="a task that is cleared or cancelled while it waits for people",
        edits=(
            Edit(
                "aioflow.core.transaction",
                "Transaction.drop_wait",
                "wait.row.class_path == PERSON",
                "False",
            ),
        ),
        seen_by=f"{_TESTS}test_decision_is_withdrawn_with_its_wait",
    ),
    PlantedBug(
        name="starter_of_a_packed_run_is_forgotten",
        broken="a run that only waits forgets who started it",
        promise='`not_by="starter"` excludes the person who started the run',
        where="core",
        needs="a run that waits for people, and so is packed",
        edits=(
            Edit(
                "aioflow.core.state.packed.runs",
                "PackedRuns._unpack",
                "one.started_by",
                "None",
            ),
        ),
        seen_by=f"{_TESTS}test_person_who_started_the_run_does_not_decide",
    ),
)
