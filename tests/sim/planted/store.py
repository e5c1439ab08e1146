"""Bugs of the stores: fences, guards and rows."""

from __future__ import annotations

from tests.sim.planted.bug import PlantedBug, Seed
from tests.sim.planted.edit import Edit

__all__ = ("BUGS",)

BUGS = (
    PlantedBug(
        name="fence_without_epoch",
        broken="the fence does not compare the epoch",
        promise="a node that was replaced writes nothing (law 5)",
        where="store",
        needs="a second claim, then a commit under the first, at the number it expects",
        edits=(
            Edit(
                "aioflow.store.changes", "FENCE", "_node.c.epoch == _bound(_node, 'epoch', 'epoch')"
            ),
        ),
        seen_by="tests/store/test_contract.py::test_a_fenced_node_writes_nothing",
        seed=Seed(2, 1),
    ),
    PlantedBug(
        name="fence_takes_a_number_twice",
        broken="the fence advances from any later number too",
        promise="a batch whose reply was lost counts once (law 5)",
        where="store",
        needs="a commit that is applied and whose reply is lost",
        edits=(
            Edit(
                "aioflow.store.changes",
                "FENCE",
                "_node.c.commit_no == _bound(_node, 'commit_no', 'before')",
                "_node.c.commit_no >= _bound(_node, 'commit_no', 'before')",
            ),
        ),
        seen_by="tests/store/test_contract.py::test_a_batch_asked_for_twice_is_applied_once",
        seed=Seed(2, 0),
    ),
    PlantedBug(
        # As long as the memory is right, a simulation behaves the same with this bug. The store has
        # to be given a wrong batch.
        name="guards_not_counted",
        broken="a guard that matches no row is no refusal",
        promise="each change names the state it expects (law 5)",
        where="store",
        needs="a batch with a guard that does not hold",
        edits=tuple(
            Edit(module, "_run", "count != len(rows)", "count > len(rows)")
            for module in ("aioflow.store.sqlite.store", "aioflow.store.postgres.store")
        ),
        seen_by="tests/store/test_contract.py::test_a_refused_batch_leaves_nothing",
        seed=Seed(2, 1),
    ),
    PlantedBug(
        name="fence_in_a_transaction_of_its_own",
        broken="the fence and the changes are two transactions (SQLite)",
        promise="a batch is applied whole or not at all",
        where="store",
        needs="a kill, a full disk or a refusal between the two",
        edits=(
            Edit(
                "aioflow.store.sqlite.store",
                "SqliteStore._apply",
                """
                if not _advanced(raw, epoch, batch):
                    return
                """,
                """
                if not _advanced(raw, epoch, batch):
                    return
                raw.execute("COMMIT")
                raw.execute("BEGIN IMMEDIATE")
                """,
            ),
        ),
        seen_by="tests/store/test_contract.py::test_a_refused_batch_leaves_nothing",
        seed=Seed(2, 1),
    ),
    PlantedBug(
        name="interruptions_not_stored",
        broken="an update leaves `interruptions` out",
        promise="a task that takes the daemon down fails in the end",
        where="store",
        needs="the same task interrupted again and again, by crashes only",
        edits=(
            Edit("aioflow.store.changes", "_TASK_CHANGED", "'interruptions'"),
            Edit("aioflow.store.batch_rows", "task_changes", "change.interruptions"),
        ),
        seed=Seed(2, 0),
    ),
    PlantedBug(
        name="claim_keeps_the_epoch",
        broken="a claim does not advance the epoch",
        promise="the node that wrote before is fenced (law 5)",
        where="store",
        needs="a second claim, then a commit under the first",
        edits=(
            Edit(
                "aioflow.store.changes",
                "_claim",
                "('epoch', *facts)",
                "facts",
            ),
        ),
        seen_by="tests/store/test_contract.py"
        "::test_each_claim_begins_a_new_epoch_and_knows_the_last_commit",
        seed=Seed(2, 1),
    ),
    PlantedBug(
        name="tries_of_a_deleted_run_stay",
        broken="the tries of a deleted run stay",
        promise="nothing is left of a deleted run",
        where="store",
        needs="a try that failed, in a run that is deleted",
        edits=(Edit("aioflow.store", "TABLES_OF_RUNS", "'try'"),),
        seed=Seed(2, 0),
    ),
    PlantedBug(
        name="key_of_a_clear_is_not_stored",
        broken="the key of a clear is not stored",
        promise="a request that is repeated with its key is carried out once",
        where="store",
        needs="a clear with a key",
        edits=(
            Edit(
                "aioflow.store.changes",
                "KINDS",
                "_kind('new clear', tables.clear_request, Action.INSERT, batch_rows.new_clears)",
            ),
        ),
        seed=Seed(2, 0),
    ),
)
