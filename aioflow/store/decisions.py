"""Rows and queries of human decisions that tasks wait for."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Select, func, select

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.model.decisions import DecisionEnd, DecisionRow, DecisionVotes
from aioflow.model.ids import TaskNo, TriggerNo
from aioflow.store import rows, tables
from aioflow.store.query_protocol import QueryInterface
from aioflow.store.selects import number, text

__all__ = (
    "DecisionReader",
    "decision_answers",
    "decision_ends",
    "decision_votes",
    "new_decisions",
    "reencrypted_decisions",
)

_decision, _run = tables.decision, tables.run


# ── rows of a batch ─────────────────────────────────────────────────────────────────────


def new_decisions(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the decisions that tasks have started to wait for."""

    def values(row: DecisionRow) -> tuple[Any, ...]:
        question, answer = rows.encrypted_decision(vault, row.decision_no, row.question, row.answer)
        stored = msgspec.structs.replace(row, question=question, answer=answer)
        return msgspec.structs.astuple(stored)

    return [values(row) for row in batch.new_decisions]


def reencrypted_decisions(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the decisions that are encrypted again with the current key."""
    return [
        (*rows.encrypted_decision(vault, number, question, answer), number)
        for number, question, answer in batch.reencrypted_decisions
    ]


def decision_votes(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the decisions for which people have voted."""

    def values(change: DecisionVotes) -> tuple[Any, ...]:
        return (change.vote_count, change.votes, change.decision_no, change.was)

    return [values(change) for change in batch.decision_votes]


def decision_answers(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the decisions that people have answered. Each must be open."""
    return [_end(end, vault) for end in batch.decision_ends if end.outcome == "answered"]


def decision_ends(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the decisions that ended without being answered.

    Missing rows are ignored, so that the run of a missing decision can still be cancelled.
    """
    return [_end(end, vault) for end in batch.decision_ends if end.outcome != "answered"]


def _end(end: DecisionEnd, vault: Vault) -> tuple[Any, ...]:
    answer = rows.encrypted_answer(vault, end.decision_no, end.answer)
    return (end.outcome, answer, end.ended_at, end.decision_no)


# ── queries ─────────────────────────────────────────────────────────────────────────────


@cache
def _page(*, is_open: bool | None, of_dag: bool, of_run: bool, before: bool) -> Select[Any]:
    page = select(_decision).order_by(_decision.c.decision_no.desc()).limit(number("limit"))
    if is_open is not None:
        ended = _decision.c.ended_at
        page = page.where(ended.is_(None) if is_open else ended.is_not(None))
    if of_dag:
        page = page.join(_run, _run.c.run_no == _decision.c.run_no)
        page = page.where(_run.c.dag_id == text("dag_id"))
    if of_run:
        page = page.where(_decision.c.run_no == number("run_no"))
    if before:
        page = page.where(_decision.c.decision_no < number("before"))
    return page


@cache
def _by_no(width: int) -> Select[Any]:
    return select(_decision).where(
        _decision.c.decision_no.in_([number(f"no_{at}") for at in range(width)])
    )


_LAST_OF_TASK = (
    select(_decision)
    .where(_decision.c.run_no == number("run_no"), _decision.c.task_no == number("task_no"))
    .order_by(_decision.c.decision_no.desc())
    .limit(number("limit"))
)
_OPEN = select(func.count()).select_from(_decision).where(_decision.c.ended_at.is_(None))


class DecisionReader(QueryInterface):
    """The part of a store that reads decisions."""

    _vault: Vault

    def _decision(self, values: rows.Values) -> DecisionRow:
        return rows.decision_row(values, self._vault)

    async def list_decisions(
        self,
        *,
        is_open: bool | None = None,
        dag_id: str | None = None,
        run_no: int | None = None,
        before: TriggerNo | None = None,
        limit: int = 100,
    ) -> list[DecisionRow]:
        """See ``Store``."""
        page = _page(
            is_open=is_open,
            of_dag=dag_id is not None,
            of_run=run_no is not None,
            before=before is not None,
        )
        given = {"dag_id": dag_id, "run_no": run_no, "before": before}
        named = {name: value for name, value in given.items() if value is not None}
        return await self._all(self._decision, page, limit=limit, **named)

    async def find_decisions(self, numbers: Collection[TriggerNo]) -> list[DecisionRow]:
        """See ``Store``."""
        return await self._each(self._decision, _by_no, "no", dict.fromkeys(numbers))

    async def find_decisions_of_task(
        self, run_no: int, task_no: TaskNo, *, limit: int = 10
    ) -> list[DecisionRow]:
        """See ``Store``."""
        return await self._all(
            self._decision, _LAST_OF_TASK, run_no=run_no, task_no=task_no, limit=limit
        )

    async def count_open_decisions(self) -> int:
        """See ``Store``."""
        (count,) = await self._all(lambda row: int(row[0]), _OPEN)
        return count
