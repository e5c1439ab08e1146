"""Audit entries of requested changes: actor, action, target, and values before and after.

An audit entry holds no secrets.
"""

from __future__ import annotations

from typing import Any

import msgspec

from aioflow.core.notes import current_note
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.memory import Memory
from aioflow.model.access import (
    AccountRow,
    Actor,
    AuditEntry,
    SessionRow,
    TokenRow,
    audit_entry,
    told,
)
from aioflow.model.rows import PoolRow
from aioflow.model.states import RunState
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.requests import (
    AnswerDecision,
    Answered,
    CancelBackfill,
    CancelRun,
    ClearTasks,
    CreateAccount,
    CreateRun,
    CreateToken,
    DeleteAccount,
    DeleteDag,
    DeleteRun,
    DrainNode,
    EmitEvent,
    EndOtherSessions,
    EndSession,
    FireTrigger,
    Mark,
    OpenSession,
    Reencrypt,
    Request,
    RevokeToken,
    SetAccount,
    SetNote,
    SetPaused,
    SetPool,
    SetValue,
    StartBackfill,
    Unquarantine,
)

__all__ = (
    "audit_entry_of",
    "audited_value",
)


class _AuditFields(msgspec.Struct, frozen=True):
    action: str
    target: str
    after: str | None = None


def audited_value(request: Request, memory: Memory, slots: Slots) -> str | None:
    """Return the value before the change, to be recorded in the audit entry of a request.

    Must be called before the request is executed.
    """
    match request:
        case SetPool(name=name):
            return _pool_text(slots.pools.get(name))
        case SetPaused(dag_id=dag_id):
            dag = memory.dags.get(dag_id)
            return None if dag is None else _paused_text(dag.paused)
        case CancelRun(run_id=run_id):
            run = memory.find_run(run_id)
            return None if run is None else run.row.state.label
        case SetNote():
            note = current_note(request, memory)
            return None if note is None else told(_on_one_line(note.text))
        case SetAccount(name=name):
            account = memory.accounts.account(name)
            return None if account is None else _account_text(account)
        case _:
            return None


def audit_entry_of(
    asked: RequestReceived, by: Actor, was: str | None, said: Any
) -> AuditEntry | None:
    """Return the audit entry of an executed request; ``None`` if the request changes nothing.

    Args:
        was: The result of ``audited_value``.
        said: The response.
    """
    request = asked.request
    line = (
        _audit_of_runs(request, said)
        or _audit_of_dags(request, said)
        or _audit_of_access(request, said)
    )
    if line is None:
        return None
    return msgspec.structs.replace(
        audit_entry(by, line.action, line.target),
        before=was,
        after=None if line.after is None else told(line.after),
    )


def _audit_of_runs(request: Request, said: Any) -> _AuditFields | None:
    match request:
        case CreateRun(dag_id=dag_id):
            return _AuditFields("run.create", dag_id, said[0])
        case StartBackfill(dag_id=dag_id):
            return _AuditFields("backfill.start", dag_id, str(said[0]))
        case CancelBackfill(backfill_no=number):
            return _AuditFields("backfill.cancel", str(number))
        case CancelRun(run_id=run_id):
            return _AuditFields("run.cancel", run_id, _state_text(said))
        case ClearTasks(dry_run=True) | Mark(dry_run=True):
            return None
        case ClearTasks(run_id=run_id, tasks=tasks, latest=latest):
            how = f"{said[0]} cleared" + (", to run the newest version" if latest else "")
            return _AuditFields("run.clear", f"{run_id} {' '.join(tasks)}".rstrip(), how)
        case Mark(run_id=run_id, tasks=tasks, state=state):
            return _AuditFields("run.mark", f"{run_id} {' '.join(tasks)}".rstrip(), state.label)
        case SetNote(run_id=run_id, task=task, text=text):
            action = "note.delete" if text is None else "note.set"
            after = None if text is None else _on_one_line(text)
            return _AuditFields(action, f"{run_id} {task}".rstrip(), after)
        case DeleteRun(run_id=run_id):
            return _AuditFields("run.delete", run_id)
        case _:
            return None


def _audit_of_dags(request: Request, said: Any) -> _AuditFields | None:
    match request:
        case DeleteDag(dag_id=dag_id, only_asks=False):
            return _AuditFields("dag.delete", dag_id)
        case SetPaused(dag_id=dag_id, paused=paused):
            return _AuditFields(
                "dag.pause" if paused else "dag.resume", dag_id, _paused_text(paused)
            )
        case FireTrigger(trigger_no=number):
            return _AuditFields("trigger.fire", str(number), " ".join(map(str, said)))
        case AnswerDecision(decision_no=number):
            return _AuditFields("decision.answer", str(number), _vote_text(said))
        case Unquarantine(class_path=class_path):
            return _AuditFields("trigger.unquarantine", class_path)
        case EmitEvent(name=name):
            return _AuditFields("event.emit", name, str(said[0]))
        case SetPool(name=name, slots=slots, include_deferred=wide):
            row = None if slots is None else PoolRow(name=name, slots=slots, include_deferred=wide)
            return _AuditFields("pool.delete" if row is None else "pool.set", name, _pool_text(row))
        case SetValue(kind=kind, name=name, value=value):
            return _AuditFields(f"{kind}.{'delete' if value is None else 'set'}", name)
        case DrainNode(node_no=number, is_drained=is_drained):
            return _AuditFields("node.drain" if is_drained else "node.undrain", str(number))
        case Reencrypt(of="value"):
            return _AuditFields("key.rotate", "key")
        case _:
            return None


def _audit_of_access(request: Request, said: Any) -> _AuditFields | None:
    match request:
        case CreateAccount(name=name):
            return _AuditFields("user.create", name, _account_text(said))
        case SetAccount(name=name, secret=secret):
            changed = " password" if secret is not None else ""
            return _AuditFields("user.set", name, _account_text(said) + changed)
        case DeleteAccount(name=name):
            return _AuditFields("user.delete", name, f"{said} tokens revoked" if said else None)
        case OpenSession(name=name):
            return _AuditFields("session.open", name, _session_text(said))
        case EndSession():
            return _AuditFields("session.end", said.name, _session_text(said))
        case EndOtherSessions(name=name):
            return _AuditFields("session.end_others", name, f"{said} ended")
        case CreateToken(name=name):
            return _AuditFields("token.create", name, _token_text(said))
        case RevokeToken():
            return _AuditFields("token.revoke", said.name, str(said.token_no))
        case _:
            return None


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _state_text(said: Any) -> str | None:
    return said.label if isinstance(said, RunState) else None


def _vote_text(said: Answered) -> str:
    """Describe a vote. The values entered in the form are not audited."""
    vote = "form" if said.has_form else ("yes" if said.is_yes else "no")
    count = f", {said.votes} of {said.approvals}" if said.approvals > 1 else ""
    link = f", by signed link for {said.link}" if said.link else ""
    comment = f": {said.comment}" if said.comment else ""
    return f"{said.run_id} {said.task_id}: {vote}{count}{link}{comment}"


def _pool_text(row: PoolRow | None) -> str | None:
    if row is None:
        return None
    return f"{row.slots} slots" + (", also deferred" if row.include_deferred else "")


def _paused_text(is_paused: bool) -> str:
    return "paused" if is_paused else "active"


def _account_text(row: AccountRow) -> str:
    groups = f" in {' '.join(row.groups)}" if row.groups else ""
    return row.role.label + (" disabled" if row.is_disabled else "") + groups


def _session_text(row: SessionRow) -> str:
    return str(row.session_no)


def _token_text(row: TokenRow) -> str:
    scopes = "*" if row.scopes is None else " ".join(row.scopes)
    return f"{row.token_no} {row.role.label} {scopes}"
