"""Sentences about waits, shared by the web page and the command line.

A sentence states who waits, and for what. It contains neither times, because each reader wants them
in their own time zone, nor ages, because these keep growing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from aioflow.api.schemas import ErrorView, PolledWait, ShareView
from aioflow.core.triggers.assignment import HOSTLESS
from aioflow.model.states import TaskState, Wait, WaitKind

__all__ = (
    "Waiter",
    "actions",
    "cause_sentence",
    "chain_sentence",
    "is_active",
    "task_name",
)

_SHARES_NAMED = 3
"""Number of runs that a sentence names as users of a pool. Further runs are only counted."""

_MESSAGE_LENGTH = 200
"""Maximum number of characters of an error in a sentence."""

_DOC_LENGTH = 120
"""Maximum number of characters of a docstring in a sentence."""

_FIRST_SENTENCE = re.compile(r".+?(?:[.?!](?= |$)|$)")


class Waiter(msgspec.Struct, frozen=True, kw_only=True):
    """The subject of a sentence: one waiting task, or several children of one mapped task.

    Attributes:
        name: The name of the task and its child, such as ``score[0] anna``.
        task_id: The id of the task alone.
        count: Number of children; 1 for a single task.
        width: Number of all children of the mapped task; ``None`` if the task is not mapped.
        doc: The docstring of the task, which says what a sensor waits for.
    """

    name: str
    task_id: str
    count: int = 1
    width: int | None = None
    doc: str = ""

    @property
    def text(self) -> str:
        """Return the subject of a sentence."""
        if self.count == 1:
            return self.name
        of = "" if self.width is None else f" of {self.width:,}"
        return f"{self.count:,}{of} children of {self.task_id}"


def task_name(task_id: str, map_index: int, round_number: int, label: str | None) -> str:
    """Return the name of a task with its child, the label of the child, and the round."""
    child = "" if map_index < 0 else f"[{map_index}]{f' {label}' if label else ''}"
    return f"{task_id}{child}" + (f" round {round_number}" if round_number else "")


Say = Callable[[Wait, Sequence[ShareView]], str]
"""Returns the target of a wait as a phrase that follows ``is waiting`` or ``are waiting``."""


def _pool(wait: Wait, shares: Sequence[ShareView]) -> str:
    if wait.pool is None:
        return f"for a slot: {wait.detail}" if wait.detail else "for a slot"
    prefix = f"pool {wait.pool}: "
    usage = wait.detail.removeprefix(prefix)
    if not wait.detail.startswith(prefix):  # the task needs more slots than the pool has
        return f"for pool {wait.pool}: {usage}"
    return f"for pool {wait.pool}: {usage}{_held_by(shares)}"


def _held_by(shares: Sequence[ShareView]) -> str:
    if not shares:
        return ""
    named = [f"{share.run_id} ({share.slots:,})" for share in shares[:_SHARES_NAMED]]
    others = len(shares) - len(named)
    if others:
        named.append(f"{others:,} more {'run' if others == 1 else 'runs'}")
    return f", held by {_listed(named)}"


def _listed(texts: Sequence[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _trigger(wait: Wait, shares: Sequence[ShareView]) -> str:
    label = wait.label if isinstance(wait, PolledWait) else None
    target = wait.target if isinstance(wait, PolledWait) else None
    if target is not None and target.name in HOSTLESS and target.type == "time":
        return f"for {label}" if label else "until its sleep ends"
    if label and isinstance(wait, PolledWait) and wait.fires_at is not None:
        return f"for {label}"  # a duration would be mistaken for the remaining time
    detail = wait.detail.removeprefix("for ") or "its trigger"
    if target is not None and target.type == "run" and target.all:
        done = 100 * (target.used or 0) // target.all
        detail += f" ({done} % done)"
    return f"for {label}: {detail}" if label else f"for {detail}"


def _triggers(wait: Wait) -> str:
    """Return what several children wait for. Each has its own trigger; this is an example."""
    label = wait.label if isinstance(wait, PolledWait) else None
    detail = wait.detail.removeprefix("for ")
    if detail in HOSTLESS or not detail:
        return f"for {label}" if label else "until their sleep ends"
    return f"for {label}, such as {detail}" if label else f"for triggers, such as {detail}"


def _condition(doc: str) -> str:
    """Return the condition of a sensor: by the first sentence of its docstring, if it has one."""
    first = _FIRST_SENTENCE.match(" ".join(doc.split()))
    if first is None:
        return "for a condition"
    text = first[0].removesuffix(".")
    if len(text) > _DOC_LENGTH:
        text = f"{text[:_DOC_LENGTH]} ..."
    return f'for a condition: "{text}"'


def _detailed(text: str, alone: str = "") -> Say:
    """Return a function that appends the detail of a wait to a text.

    Args:
        alone: The whole text if there is no detail; ``text`` without its colon by default.
    """

    def say(wait: Wait, shares: Sequence[ShareView]) -> str:
        return f"{text} {wait.detail}" if wait.detail else alone or text.rstrip(":")

    return say


_WAITS: Mapping[WaitKind, Say] = {
    WaitKind.UPSTREAM: _detailed("for", "for upstream tasks"),
    WaitKind.SLOT: _pool,
    WaitKind.LIMIT: _detailed("until a limit allows it to start:"),
    WaitKind.RETRY_AT: _detailed("for the next try, after", "for the next try"),
    WaitKind.TRIGGER: _trigger,
    WaitKind.EVENT: _detailed("for an event:"),
    WaitKind.DECISION: _detailed("for", "for a decision"),
    WaitKind.TRIGGER_CAPACITY: _detailed("until the triggerer has capacity:"),
    WaitKind.WINDOW: _detailed("until its window has capacity:"),
    WaitKind.DEPENDS_ON_PAST: _detailed("for the previous run:"),
    WaitKind.PAUSED: _detailed("until its DAG is resumed:"),
    WaitKind.HOST: _detailed("for a host:"),
    WaitKind.EXECUTOR: _detailed("for its executor:"),
    WaitKind.CODE_MISSING: _detailed("for the code of its version:"),
    WaitKind.UNDECRYPTABLE: _detailed("for a key that decrypts its trigger:"),
    WaitKind.QUARANTINED: _detailed("until its quarantine ends:"),
    WaitKind.CLEARING: _detailed("for"),
    WaitKind.DATABASE: _detailed("for the database:"),
}
"""The target of a wait by kind, as a phrase after ``is waiting``; see ``_condition``."""

_STATES: Mapping[TaskState, str] = {
    TaskState.PENDING: "has not started",
    TaskState.QUEUED: "is queued",
    TaskState.RUNNING: "is running",
    TaskState.SENSING: "is checking its condition",
    TaskState.DEFERRED: "is deferred",
    TaskState.RETRYING: "is about to try again",
    TaskState.SUCCESS: "has succeeded",
    TaskState.FAILED: "failed",
    TaskState.UPSTREAM_FAILED: "did not run, because an upstream task failed",
    TaskState.SKIPPED: "was skipped",
    TaskState.CANCELLED: "was cancelled",
    TaskState.REMOVED: "was removed",
}
_PLURAL = (("has ", "have "), ("is ", "are "), ("was ", "were "))


def cause_sentence(
    who: Waiter,
    state: TaskState,
    wait: Wait | None,
    *,
    shares: Sequence[ShareView] = (),
    error: ErrorView | None = None,
    place: str = "",
) -> str:
    """Return one sentence without a full stop. It states who waits for what, or why a task failed.

    Args:
        shares: The runs that use the pool for which the task waits, the largest share first.
        place: Where a running task runs, such as ``on node 1``.
    """
    is_many = who.count > 1
    if wait is not None:
        if is_many and wait.kind is WaitKind.TRIGGER:
            return f"{who.text} are waiting {_triggers(wait)}"
        verb = "are waiting" if is_many else "is waiting"
        if wait.kind is WaitKind.INTERVAL:
            return f"{who.text} {verb} {_condition(who.doc)}"
        return f"{who.text} {verb} {_WAITS[wait.kind](wait, shares)}"
    said = _STATES[state]
    if is_many:
        begins = ((one, many) for one, many in _PLURAL if said.startswith(one))
        for one, many in begins:
            said = many + said.removeprefix(one)
    if error is not None:
        message = error.message
        if len(message) > _MESSAGE_LENGTH:
            message = f"{message[:_MESSAGE_LENGTH]} ..."
        kind = error.type or error.reason
        said = f"{said}: {kind}: {message}" if message else f"{said}: {kind}"
    return f"{who.text} {said}{f' {place}' if place else ''}"


def is_active(state: TaskState, wait: Wait | None) -> bool:
    """Return whether a task is being worked on, rather than waiting for something."""
    return wait is None and state.is_live


def chain_sentence(
    run_id: str, state: str, sentences: Sequence[str], *, more: int = 0, is_task: bool = False
) -> str:
    """Return why a run or task waits: the first cause, and the number of causes.

    Args:
        sentences: The sentences of the causes, the most important one first.
        more: Number of causes that were omitted.
        is_task: Whether the causes form a single chain, the last of which is the root cause.
    """
    if not sentences:
        return f"{run_id} is {state}; it is waiting for nothing"
    if is_task:
        return ". ".join(dict.fromkeys((sentences[0], sentences[-1])))
    others = len(sentences) - 1 + more
    if not others:
        return sentences[0]
    return f"{sentences[0]}, and {others:,} more {'cause' if others == 1 else 'causes'}"


def actions(state: TaskState, wait: Wait | None) -> list[str]:
    """Return what a user can do about a wait, the most specific action first.

    ``fire`` sends the event, ``set_pool`` changes the slots of the pool, ``resume`` resumes the
    paused DAG, ``clear`` and ``mark`` apply to the task.
    """
    if wait is None:
        return [] if state.is_live or state is TaskState.SUCCESS else ["clear", "mark"]
    if wait.pool is not None:
        return ["set_pool", "mark"]
    match wait.kind:
        case WaitKind.TRIGGER | WaitKind.TRIGGER_CAPACITY if wait.checked_by is not None:
            return ["fire", "mark"]
        case WaitKind.PAUSED:
            return ["resume"]
        case WaitKind.RETRY_AT:
            return ["clear", "mark"]
        case WaitKind.INTERVAL | WaitKind.TRIGGER | WaitKind.SLOT | WaitKind.EXECUTOR:
            return ["mark"]
        case _:
            return []
