"""Bugs of the engine around `decide()`: commits, effects, timers and deletions."""

from __future__ import annotations

from tests.sim.planted.bug import PlantedBug, Seed
from tests.sim.planted.edit import Edit

__all__ = ("BUGS",)

_COMMIT_AND_ACT = """
    if not batch.is_empty or tx.step:
        await self._commit(batch, tx)
    tx.mark_durable()
    self.dispatcher.dispatch(effects)
"""

BUGS = (
    PlantedBug(
        name="effects_before_commit",
        broken="effects are carried out before the commit",
        promise="nothing acts before it is committed (law 1); what was acknowledged exists",
        where="engine",
        needs="a crash, a refusal or a long commit",
        edits=(
            Edit(
                "aioflow.engine.loop",
                "Engine._decide_and_commit",
                _COMMIT_AND_ACT,
                """
                self.dispatcher.dispatch(effects)
                if not batch.is_empty or tx.step:
                    await self._commit(batch, tx)
                tx.mark_durable()
                """,
            ),
        ),
        seen_by="tests/test_engine.py::test_started_tasks_are_durable_already",
        seed=Seed(2, 0),
    ),
    PlantedBug(
        name="refused_batch_acted_on",
        broken="a refused batch is logged and acted on",
        promise="nothing acts that is not stored",
        where="engine",
        needs="a refusal",
        edits=(
            Edit(
                "aioflow.engine.loop",
                "Engine._commit",
                "raise rollback.Refused(tx, str(exc)) from exc",
                """
                _log.error("batch refused", error=str(exc))
                return
                """,
            ),
        ),
        seen_by="tests/test_engine.py::test_a_refused_batch_costs_only_its_culprit",
        seed=Seed(2, 0),
    ),
    PlantedBug(
        name="decides_again_after_a_lost_reply",
        broken="a batch whose reply is lost is undone and decided again, under the same number",
        promise="a commit is retried with the same batch (law 5)",
        where="engine",
        needs="a commit that is applied and whose reply is lost: memory and rows diverge",
        edits=(
            Edit(
                "aioflow.engine.loop",
                "Engine._commit",
                "await self._patiently(partial(self._store.commit, batch))",
                """
                with anyio.CancelScope(shield=True):
                    await self._store.commit(batch)
                """,
            ),
            Edit(
                "aioflow.engine.loop",
                "Engine._commit",
                "BatchRefused",
                "(BatchRefused, StoreUnavailable)",
            ),
        ),
        seed=Seed(2, 0),
    ),
    PlantedBug(
        name="acknowledged_before_commit",
        broken="requests are acknowledged before the commit",
        promise="what was acknowledged exists",
        where="engine",
        needs="a crash or a refusal of the turn that handled a request",
        edits=(
            Edit(
                "aioflow.engine.loop",
                "Engine._decide_and_commit",
                _COMMIT_AND_ACT,
                """
                answers = [effect for effect in effects if isinstance(effect, Acknowledge)]
                self.dispatcher.dispatch(answers)
                if not batch.is_empty or tx.step:
                    await self._commit(batch, tx)
                tx.mark_durable()
                self.dispatcher.dispatch([effect for effect in effects if effect not in answers])
                """,
            ),
        ),
        seed=Seed(2, 0),
    ),
    PlantedBug(
        name="trigger_hosted_before_its_row",
        broken="a trigger is sent to its host before its row is committed",
        promise="nothing acts before it is committed (law 1)",
        where="engine",
        needs="a crash, a refusal or a long commit of a deferral or a re-hosting",
        edits=(
            Edit(
                "aioflow.engine.loop",
                "Engine._decide_and_commit",
                _COMMIT_AND_ACT,
                """
                from aioflow.protocol.effects import AssignTrigger

                assigns = [effect for effect in effects if isinstance(effect, AssignTrigger)]
                self.dispatcher.dispatch(assigns)
                if not batch.is_empty or tx.step:
                    await self._commit(batch, tx)
                tx.mark_durable()
                self.dispatcher.dispatch([effect for effect in effects if effect not in assigns])
                """,
            ),
        ),
        seed=Seed(2, 0),
    ),
    PlantedBug(
        name="lengths_of_time_by_the_wall_clock",
        broken="lengths of time are timed by the wall clock",
        promise="a clock that is set moves no retry, poll or deadline",
        where="engine",
        needs="a step of the wall clock: backward delays them, forward fires all at once",
        edits=(Edit("aioflow.engine.timers", "Timers.arm", "due.dag_id", "True"),),
        seen_by="tests/test_timers.py::test_a_length_of_time_is_not_moved_by_a_clock_that_is_set",
        seed=Seed(2, 2),
    ),
    PlantedBug(
        name="deleted_while_a_host_has_a_trigger",
        broken="a run is deleted while a host still has a trigger of it",
        promise="a row lives as long as something needs it",
        where="engine",
        needs="a run that is deleted right after it ended",
        edits=(
            Edit(
                "aioflow.maintenance.retention",
                "Deleting._is_needed",
                "await self._store.has_triggers(run_no)",
                "False",
            ),
        ),
        seed=Seed(2, 6),
    ),
    PlantedBug(
        name="results_of_a_deleted_run_stay",
        broken="the large results of a deleted run stay on disk",
        promise="nothing is left of a deleted run",
        where="engine",
        needs="a deleted run that had any",
        edits=(
            Edit(
                "aioflow.maintenance.retention",
                "Deleting._delete_results",
                "table == 'task'",
                "table == 'record'",
            ),
        ),
        seed=Seed(2, 1),
    ),
)
