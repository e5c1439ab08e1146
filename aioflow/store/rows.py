"""Conversion of table rows to the Structs of ``model``."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from aioflow.crypto import Vault
from aioflow.model.backfill import BackfillRow
from aioflow.model.batch import JournalRow
from aioflow.model.dag import DagSpec
from aioflow.model.ids import TriggerNo
from aioflow.model.rows import (
    DagFileRow,
    DagRow,
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
    VersionRow,
)
from aioflow.model.states import Failure, RecordState, RunState, TaskState, TriggerState
from aioflow.protocol.outbox import decoder_of

__all__ = (
    "RUN_STATES",
    "TRIGGER_TABLE",
    "Values",
    "backfill_row",
    "dag_file_row",
    "dag_row",
    "encrypted_kwargs",
    "event_row",
    "expansion_row",
    "item_row",
    "journal_row",
    "named_event_row",
    "outbox_row",
    "pool_row",
    "record_row",
    "result_row",
    "run_row",
    "task_row",
    "trigger_row",
    "try_row",
    "version_row",
)

Values: TypeAlias = Sequence[Any]
"""One row, in the order of its table's columns."""

TRIGGER_TABLE = "task_trigger"
"""Context of encrypted kwargs, together with the number of their row."""

_NEXT_KWARGS = "task_trigger.next_kwargs"
"""Context of the encrypted ``next_kwargs``, a different one so that they cannot be swapped."""

# Calling an enum with a number takes four times as long as this lookup.
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
    """Return a row of ``version``; its sources are empty if the column was not read."""
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
    )


def task_row(values: Values) -> TaskRow:
    """Return a row of ``task``."""
    return TaskRow(
        task_no=values[0],
        run_no=values[1],
        position=values[2],
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
    run_no, position, width, first_task_no, is_open = values
    return ExpansionRow(
        run_no=run_no,
        position=position,
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


def result_row(values: Values) -> ResultRow:
    """Return a row of ``result``."""
    task_no, run_no, start_no, body, size, width = values
    return ResultRow(
        task_no=task_no, run_no=run_no, start_no=start_no, body=body, size=size, width=width
    )


def trigger_row(values: Values, vault: Vault) -> TriggerRow:
    """Return a row of ``task_trigger`` with its kwargs decrypted.

    Both kwargs are ``None`` if no available key decrypts them all.
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
    """Return the encrypted fields of a trigger and the encrypted kwargs of its next method."""
    return (
        None if kwargs is None else vault.encrypt(TRIGGER_TABLE, trigger_no, kwargs),
        None if next_kwargs is None else vault.encrypt(_NEXT_KWARGS, trigger_no, next_kwargs),
    )


def _opened_kwargs(
    vault: Vault, trigger_no: TriggerNo, kwargs: bytes | None, next_kwargs: bytes | None
) -> tuple[bytes | None, bytes | None]:
    """Decrypt both. Return ``None`` for both if one fails, because such a task cannot resume."""
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
        place=values[6],
        answer=values[7],
        failure=_failure(values[8]),
    )


def pool_row(values: Values) -> PoolRow:
    """Return a row of ``pool``."""
    name, slots, include_deferred = values
    return PoolRow(name=name, slots=slots, include_deferred=bool(include_deferred))


def outbox_row(values: Values) -> OutboxRow:
    """Return a row of ``outbox``.

    Raises:
        msgspec.MsgspecError: If its body does not have the format of its kind.
    """
    outbox_no, kind, body = values
    decoder_of(kind).decode(body)
    return OutboxRow(outbox_no=outbox_no, kind=kind, body=body)


def journal_row(values: Values) -> JournalRow:
    """Return a row of ``journal``."""
    commit_no, at, body = values
    return JournalRow(commit_no=commit_no, at=at, body=body)


def _failure(packed: bytes | None) -> Failure | None:
    return None if packed is None else _failure_decoder.decode(packed)
