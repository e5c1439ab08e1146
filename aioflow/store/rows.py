"""Conversion between table rows and the Structs of ``model``, and the damaged rows found so far.

Structured values are packed into one column as msgpack.

The questions and answers of decisions, and the fields of triggers, are encrypted. So are secrets,
connections and variables. An envelope is bound to the number of its row. Secrets, connections and
variables get a new number each time they are set, and their kind and name are encrypted together
with the value. Therefore no row can be replaced by another row, and none of these three by an
earlier version of itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec.structs import replace

from aioflow.crypto import Vault
from aioflow.model.access import AccountRow, SessionRow, TokenRow
from aioflow.model.batch import Batch, JournalRow
from aioflow.model.dag import BackfillRow, DagSpec, ValueKind
from aioflow.model.decisions import DecisionRow
from aioflow.model.history import HistoryRow
from aioflow.model.ids import RunNo, TriggerNo
from aioflow.model.rows import (
    DAMAGED,
    DagFileRow,
    DagRow,
    Damage,
    EventRow,
    ExpansionRow,
    ItemRow,
    NamedEventRow,
    OutboxRow,
    PoolRow,
    RecordRow,
    ResultRow,
    RunRow,
    TaskRow,
    TriggerRow,
    TryRow,
    TryWorkerRow,
    ValueRow,
    VersionRow,
)
from aioflow.model.states import Failure, RecordState, RunState, TaskState, TriggerState
from aioflow.model.triggers import DagTriggerRow
from aioflow.protocol.outbox import decoder_of

__all__ = (
    "DAMAGE_LIMIT",
    "DECISION_TABLE",
    "RUN_STATES",
    "TRIGGER_TABLE",
    "Damages",
    "Values",
    "backfill_row",
    "dag_file_row",
    "dag_row",
    "decision_row",
    "deleted_values",
    "encrypted_answer",
    "encrypted_decision",
    "encrypted_kwargs",
    "event_row",
    "expansion_row",
    "item_row",
    "journal_row",
    "last_of_each",
    "mark_damaged",
    "named_event_row",
    "new_values",
    "outbox_row",
    "pack",
    "packed_failure",
    "pool_row",
    "record_row",
    "result_row",
    "run_row",
    "task_row",
    "trigger_row",
    "try_row",
    "try_worker_row",
    "value_row",
    "version_row",
)

Values: TypeAlias = Sequence[Any]
"""One row, in the order of its table's columns."""

TRIGGER_TABLE = "task_trigger"
"""Context to which encrypted kwargs are bound, together with the number of their row."""

_NEXT_KWARGS = "task_trigger.next_kwargs"
"""Context of encrypted ``next_kwargs``.

It differs from ``TRIGGER_TABLE``, so that the two kinds of kwargs of a row cannot be swapped."""

DECISION_TABLE = "decision"
"""Context to which an encrypted question is bound, together with the number of its row."""

_ANSWER = "decision.answer"
"""Context of an encrypted answer, so that it cannot be swapped with a question."""

# A call of the enum with a number would take four times as long as this lookup.
_TASK_STATES = dict(enumerate(TaskState))
RUN_STATES = dict(enumerate(RunState))
"""Run states by the number they are stored as."""
_TRIGGER_STATES = dict(enumerate(TriggerState))
_RECORD_STATES = dict(enumerate(RecordState))

_failure_decoder = msgspec.msgpack.Decoder(Failure)
_dags_decoder = msgspec.msgpack.Decoder(tuple[DagSpec, ...])
_sources_decoder = msgspec.msgpack.Decoder(dict[str, bytes])


def dag_row(values: Values) -> DagRow:
    """Return a row of ``dag``."""
    dag_id, file, version, paused, next_run_at, gone, last_fire_time, late_alert_for = values
    return DagRow(
        dag_id=dag_id,
        file=file,
        version=version,
        paused=bool(paused),
        next_run_at=next_run_at,
        gone=bool(gone),
        last_fire_time=last_fire_time,
        late_alert_for=late_alert_for,
    )


def dag_file_row(values: Values) -> DagFileRow:
    """Return a row of ``dag_file``."""
    file, version, reason, message, parsed_at = values
    return DagFileRow(
        file=file, version=version, reason=reason, message=message, parsed_at=parsed_at
    )


def version_row(values: Values) -> VersionRow:
    """Return a row of ``version``, with empty sources if that column was not read."""
    version, file, dags, sources, created_at = values
    return VersionRow(
        version=version,
        file=file,
        dags=_dags_decoder.decode(dags),
        sources={} if sources is None else _sources_decoder.decode(zlib.decompress(sources)),
        created_at=created_at,
    )


def backfill_row(values: Values) -> BackfillRow:
    """Return a row of ``backfill``."""
    named = dict(zip(BackfillRow.__struct_fields__, values, strict=True))
    return BackfillRow(**(named | {"is_reverse": bool(named["is_reverse"])}))


def run_row(values: Values) -> RunRow:
    """Return a row of ``run``."""
    return RunRow(
        run_no=values[0],
        run_id=values[1],
        dag_id=values[2],
        version=values[3],
        state=RUN_STATES[values[4]],
        cause=values[5],
        first_task_no=values[6],
        logical_date=values[7],
        conf=values[8],
        key=values[9],
        created_at=values[10],
        started_at=values[11],
        ended_at=values[12],
        quarantine=values[13],
        caller=values[14],
        backfill=values[15],
        started_by=values[16],
    )


def task_row(values: Values) -> TaskRow:
    """Return a row of ``task``."""
    return TaskRow(
        task_no=values[0],
        run_no=values[1],
        task_index=values[2],
        map_index=values[3],
        state=_TASK_STATES[values[4]],
        try_number=values[5],
        start_no=values[6],
        interruptions=values[7],
        due_at=values[8],
        deadline_at=values[9],
        queued_at=values[10],
        started_at=values[11],
        ended_at=values[12],
        failure=_failure(values[13]),
    )


def expansion_row(values: Values) -> ExpansionRow:
    """Return a row of ``expansion``."""
    run_no, task_index, width, first_task_no, is_open = values
    return ExpansionRow(
        run_no=run_no,
        task_index=task_index,
        width=width,
        first_task_no=first_task_no,
        is_open=bool(is_open),
    )


def item_row(values: Values) -> ItemRow:
    """Return a row of ``stream_item``."""
    task_no, item_index, run_no, payload = values
    return ItemRow(task_no=task_no, item_index=item_index, run_no=run_no, payload=payload)


def try_row(values: Values) -> TryRow:
    """Return a row of ``try``."""
    task_no, start_no, run_no, try_number, state, started_at, ended_at, failure = values
    return TryRow(
        task_no=task_no,
        start_no=start_no,
        run_no=run_no,
        try_number=try_number,
        state=_TASK_STATES[state],
        started_at=started_at,
        ended_at=ended_at,
        failure=_failure(failure),
    )


def try_worker_row(values: Values) -> TryWorkerRow:
    """Return a row of ``try_worker``."""
    task_no, start_no, run_no, executor, host, worker = values
    return TryWorkerRow(
        task_no=task_no,
        start_no=start_no,
        run_no=run_no,
        executor=executor,
        host=host,
        worker=worker,
    )


def result_row(values: Values) -> ResultRow:
    """Return a row of ``result``."""
    task_no, run_no, start_no, body, size, width = values
    return ResultRow(
        task_no=task_no, run_no=run_no, start_no=start_no, body=body, size=size, width=width
    )


def trigger_row(values: Values, vault: Vault) -> TriggerRow:
    """Return a row of ``task_trigger`` with its kwargs decrypted.

    ``kwargs`` and ``next_kwargs`` are both ``None`` if either cannot be decrypted.
    """
    kwargs, next_kwargs = _opened_kwargs(vault, values[0], values[5], values[9])
    return TriggerRow(
        trigger_no=values[0],
        task_no=values[1],
        run_no=values[2],
        state=_TRIGGER_STATES[values[3]],
        class_path=values[4],
        kwargs=kwargs,
        since=values[6],
        deadline_at=values[7],
        next_method=values[8],
        next_kwargs=next_kwargs,
        event=values[10],
        event_key=values[11],
        ordinal=values[12],
        branch=values[13],
        window=values[14],
        failure=_failure(values[15]),
        timeout_method=values[16],
    )


def encrypted_kwargs(
    vault: Vault, trigger_no: TriggerNo, kwargs: bytes | None, next_kwargs: bytes | None
) -> tuple[bytes | None, bytes | None]:
    """Return the fields of a trigger and the kwargs of its next method, both encrypted."""
    return (
        None if kwargs is None else vault.encrypt(TRIGGER_TABLE, trigger_no, kwargs),
        None if next_kwargs is None else vault.encrypt(_NEXT_KWARGS, trigger_no, next_kwargs),
    )


def _opened_kwargs(
    vault: Vault, trigger_no: TriggerNo, kwargs: bytes | None, next_kwargs: bytes | None
) -> tuple[bytes | None, bytes | None]:
    """Decrypt both kwargs.

    Return ``None`` for both if either fails, as the task cannot resume then.
    """
    if kwargs is None:
        return None, None
    opened = vault.decrypt(TRIGGER_TABLE, trigger_no, kwargs)
    if next_kwargs is None or opened is None:
        return opened, None
    next_opened = vault.decrypt(_NEXT_KWARGS, trigger_no, next_kwargs)
    return (None, None) if next_opened is None else (opened, next_opened)


def event_row(values: Values) -> EventRow:
    """Return a row of ``event``."""
    trigger_no, sequence, run_no, key, payload = values
    return EventRow(
        trigger_no=trigger_no, sequence=sequence, run_no=run_no, key=key, payload=payload
    )


def named_event_row(values: Values) -> NamedEventRow:
    """Return a row of ``named_event``."""
    event_no, name, key, data, at, run_no, request = values
    return NamedEventRow(
        event_no=event_no, name=name, key=key, data=data, at=at, run_no=run_no, request=request
    )


def record_row(values: Values) -> RecordRow:
    """Return a row of ``record``."""
    return RecordRow(
        task_no=values[0],
        ordinal=values[1],
        run_no=values[2],
        state=_RECORD_STATES[values[3]],
        kind=values[4],
        name=values[5],
        source_location=values[6],
        answer=values[7],
        failure=_failure(values[8]),
        label=values[9] or "",
    )


def decision_row(values: Values, vault: Vault) -> DecisionRow:
    """Return a row of ``decision`` with its question and answer decrypted.

    If either cannot be decrypted, the question is empty and there is no answer.
    """
    named = dict(zip(DecisionRow.__struct_fields__, values, strict=True))
    number, answer = named["decision_no"], named["answer"]
    question = vault.decrypt(DECISION_TABLE, number, named["question"])
    opened = None if answer is None else vault.decrypt(_ANSWER, number, answer)
    if question is None or (opened is None) != (answer is None):
        question, opened = b"", None
    return DecisionRow(**(named | {"question": question, "answer": opened}))


def encrypted_decision(
    vault: Vault, decision_no: TriggerNo, question: bytes, answer: bytes | None
) -> tuple[bytes, bytes | None]:
    """Return the question and the answer of a decision, both encrypted."""
    return (
        vault.encrypt(DECISION_TABLE, decision_no, question),
        encrypted_answer(vault, decision_no, answer),
    )


def encrypted_answer(vault: Vault, decision_no: TriggerNo, answer: bytes | None) -> bytes | None:
    """Return the answer of a decision encrypted; ``None`` if there is none."""
    return None if answer is None else vault.encrypt(_ANSWER, decision_no, answer)


def pool_row(values: Values) -> PoolRow:
    """Return a row of ``pool``."""
    name, slots, include_deferred = values
    return PoolRow(name=name, slots=slots, include_deferred=bool(include_deferred))


def outbox_row(values: Values) -> OutboxRow:
    """Return a row of ``outbox``.

    Raises:
        msgspec.MsgspecError: If the body of the row does not have the format of its kind.
    """
    outbox_no, kind, body = values
    decoder_of(kind).decode(body)
    return OutboxRow(outbox_no=outbox_no, kind=kind, body=body)


def journal_row(values: Values) -> JournalRow:
    """Return a row of ``journal``."""
    seq, at, body, node_no, commit_no = values
    return JournalRow(seq=seq, at=at, body=body, node_no=node_no, commit_no=commit_no)


def _failure(packed: bytes | None) -> Failure | None:
    return None if packed is None else _failure_decoder.decode(packed)


Row = TypeVar("Row")

pack = msgspec.msgpack.Encoder().encode


def packed_failure(failure: Failure | None) -> bytes | None:
    """Return a failure encoded for a database column."""
    return None if failure is None else pack(failure)


def last_of_each(rows: Iterable[Row], key: Callable[[Row], object]) -> Sequence[Row]:
    """Return the last row for each key."""
    return list({key(row): row for row in rows}.values())


_VALUE_TABLE = "named_value"

_value_decoder = msgspec.msgpack.Decoder(tuple[str, str, bytes])


def new_values(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the values that are set."""

    def values(row: ValueRow) -> tuple[Any, ...]:
        encrypted = vault.encrypt(_VALUE_TABLE, row.value_no, pack((row.kind, row.name, row.value)))
        return (str(row.kind), row.name, row.value_no, row.at, encrypted)

    return [values(row) for row in _last_values(batch) if row.value is not None]


def deleted_values(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the values that are deleted."""
    return [(str(row.kind), row.name) for row in _last_values(batch) if row.value is None]


def _last_values(batch: Batch) -> list[ValueRow]:
    return list({(row.kind, row.name): row for row in batch.values}.values())


def value_row(values: Sequence[Any], vault: Vault) -> ValueRow:
    """Return a row of ``named_value``, without its value if no available key decrypts it."""
    kind, name, value_no, at, encrypted = values
    opened = vault.decrypt(_VALUE_TABLE, value_no, encrypted)
    value = None
    if opened is not None:
        *of, told = _value_decoder.decode(opened)
        value = told if of == [kind, name] else None
    return ValueRow(kind=ValueKind(kind), name=name, value_no=value_no, at=at, value=value)


DAMAGE_LIMIT = 1_000
"""Maximum number of damaged rows to remember. Further ones are ignored."""


class Damages:
    """The damaged rows that reads have found.

    Attributes:
        on_found: Called once for each damaged row.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Damage] = {}
        self.on_found: Callable[[Damage], None] | None = None

    def note(self, damage: Damage) -> None:
        """Record a damaged row.

        Damage without a key is ignored: it comes from an aggregate query, and reads of the
        individual rows report it.
        """
        if not damage.key_values:
            return
        damaged = damage.table, damage.key
        if damaged in self._found or len(self._found) >= DAMAGE_LIMIT:
            return
        self._found[damaged] = damage
        if self.on_found is not None:
            self.on_found(damage)

    def listen(self, on_found: Callable[[Damage], None]) -> None:
        """Register a callback for damaged rows, and call it for those already found."""
        self.on_found = on_found
        for damage in self._found.values():
            on_found(damage)

    def of_run(self, run_no: RunNo) -> Damage | None:
        """Return the first damage found in the rows of a run."""
        found = self._found.values()
        return next((damage for damage in found if damage.run_no == run_no), None)

    def all(self) -> list[Damage]:
        """Return all damage in the order in which it was found."""
        return list(self._found.values())

    def forget(self, damage: Damage) -> None:
        """Remove the entry of a row that is no longer damaged."""
        self._found.pop((damage.table, damage.key), None)


def mark_damaged(damage: Damage, row: Row | None) -> Row | None:
    """Return the row, marked as damaged if it has a field for that; ``None`` to leave it out."""
    match cast("Any", row):
        case RunRow():
            return cast("Row", replace(row, quarantine=str(damage)[:1000]))  # type: ignore[type-var]
        case TaskRow() | TryRow() | TriggerRow() | RecordRow():
            return cast("Row", replace(row, failure=damage.failure))  # type: ignore[type-var]
        case DagFileRow():
            return cast("Row", replace(row, reason=DAMAGED, message=str(damage)))  # type: ignore[type-var]
        case BackfillRow():
            return cast("Row", replace(row, failure=str(damage)))  # type: ignore[type-var]
        case DagRow():
            return cast("Row", replace(row, paused=True))  # type: ignore[type-var]
        case OutboxRow():
            return cast("Row", replace(row, body=b""))  # type: ignore[type-var]
        case DagTriggerRow():
            return cast("Row", replace(row, kwargs=None))  # type: ignore[type-var]
        case HistoryRow():
            return None  # a row without its number is useless
        case AccountRow() | TokenRow() | SessionRow():
            return None  # a placeholder may stand for a limit: an expiry, scopes, a revocation
        case _:
            return row
