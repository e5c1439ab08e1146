"""Comparison of the database with the tables of the model, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import Table

from aioflow.crypto import Vault
from aioflow.store import rows, run_causes, tables
from tests.sim.tables import Tables

__all__ = ("differences", "standing")

_SHOWN = 5


def differences(raw: Any, known: Tables, vault: Vault) -> list[str]:
    """Return how the database differs from the expected rows: the first few differences per table.

    Args:
        raw: A connection to the database.
        vault: A vault with all keys that were ever used.
    """
    found = [] if (at := standing(raw)[1]) == known.commit_no else [f"stands at {at}"]
    for table, read, wanted in _compared(known, vault):
        key_of = _key_of(table)
        stored = {key_of(values): read(values) for values in _scan(raw, table)}
        odd = [key for key in stored.keys() | wanted.keys() if stored.get(key) != wanted.get(key)]
        found.extend(
            f"{table.name} {key}: {stored.get(key)} is stored, not {wanted.get(key)}"
            for key in sorted(odd)[:_SHOWN]
        )
    return found


def standing(raw: Any) -> tuple[int, int]:
    """Return the epoch and the commit number of the node, or zeros before it was claimed."""
    found = raw.execute("SELECT epoch, commit_no FROM node").fetchone()
    return (0, 0) if found is None else found


def _compared(
    known: Tables, vault: Vault
) -> Iterator[tuple[Table, Callable[[rows.Values], Any], Mapping[Any, Any]]]:
    yield tables.run, rows.run_row, _by(known.runs.values(), "run_no")
    yield tables.task, rows.task_row, _by(known.tasks.values(), "task_no")
    yield tables.try_, rows.try_row, _by(known.tries, "task_no", "start_no")
    started = _by(known.try_workers.values(), "task_no", "start_no")
    yield tables.try_worker, rows.try_worker_row, started
    yield (
        tables.expansion,
        rows.expansion_row,
        _by(known.expansions.values(), "run_no", "task_index"),
    )
    yield tables.result, rows.result_row, _by(known.results.values(), "task_no")
    yield (
        tables.task_trigger,
        lambda values: rows.trigger_row(values, vault),
        _by(known.triggers.values(), "trigger_no"),
    )
    yield tables.event, rows.event_row, _by(known.events.values(), "trigger_no", "sequence")
    yield tables.stream_item, rows.item_row, _by(known.items.values(), "task_no", "item_index")
    yield tables.named_event, rows.named_event_row, _by(known.named_events.values(), "event_no")
    yield tables.clear_request, lambda values: values[-1], known.clears
    yield tables.deletion, lambda values: values[0], {(no,): no for no in known.deletions}
    yield (
        tables.dag_trigger,
        lambda values: run_causes.dag_trigger_row(values, vault),
        _by(known.dag_triggers.values(), "trigger_no"),
    )
    yield tables.dag_event, run_causes.dag_event_row, _by(known.dag_events.values(), "event_no")
    yield tables.backfill, rows.backfill_row, _by(known.backfills.values(), "backfill_no")
    yield (
        tables.decision,
        lambda values: rows.decision_row(values, vault),
        _by(known.decisions.values(), "decision_no"),
    )
    yield tables.record, rows.record_row, _by(known.records.values(), "task_no", "ordinal")
    yield tables.version, rows.version_row, _by(known.versions.values(), "version")
    yield tables.dag, rows.dag_row, _by(known.dags.values(), "dag_id")
    yield tables.dag_file, rows.dag_file_row, _by(known.files.values(), "file")
    yield tables.pool, rows.pool_row, _by(known.pools.values(), "name")
    yield tables.outbox, rows.outbox_row, _by(known.outbox.values(), "outbox_no")


def _by(found: Iterable[Any], *names: str) -> dict[Any, Any]:
    return {tuple(getattr(row, name) for name in names): row for row in found}


def _scan(raw: Any, table: Table) -> list[rows.Values]:
    columns = ", ".join(f'"{column.name}"' for column in table.c)
    return raw.execute(f'SELECT {columns} FROM "{table.name}"').fetchall()


def _key_of(table: Table) -> Callable[[rows.Values], tuple[Any, ...]]:
    names = [column.name for column in table.c]
    places = [names.index(column.name) for column in table.primary_key]
    return lambda values: tuple(values[place] for place in places)
