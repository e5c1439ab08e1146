"""The durable calls of a coroutine, drawn from the seed: the same ones in each execution.

On a replay, a call is compared by its kind and name, as in the real host. Another *edition* of the
code keeps some of the first calls and makes different calls after them.
"""

from __future__ import annotations

import random

import msgspec

from tests.sim.workload import SECOND

__all__ = (
    "CANARY",
    "SLEEP",
    "UNSTORABLE",
    "WAITS",
    "Call",
    "StreamPlan",
    "carried",
    "plan_of",
    "script",
    "token_of",
    "topic_of",
)

WAITS = ("wait", "any_of", "all_of")
SLEEP = "sleep"
CANARY = b"canary-in-the-mine"
"""Stands for a secret. User code passes it to its triggers, and it must be encrypted."""

UNSTORABLE = b"unstorable"
"""A result that the tables of the first level always refuse."""

_KINDS = (
    *(("step",) * 5 + ("now", "wait", "wait", "any_of", "all_of", "sleep", "stream", "stream")),
    *("emit", "emit", "run_dag", "named"),
)
_TOPICS = ("t0", "t1")
_LENGTHS = (0, 0, 1, 2, 3, 5, 9)
_WIDEST = 3


class StreamPlan(msgspec.Struct, frozen=True):
    """The course of a stream.

    Attributes:
        keyed: Whether each event has a key. Without keys, a later assignment yields the events
            again.
        count: Number of events.
        ends: How the stream ends: ``end``, ``fail`` or ``hang``.
        window: How many events the stream may be ahead of the store.
    """

    keyed: bool
    count: int
    ends: str
    window: int


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One durable call.

    Attributes:
        width: Number of triggers it waits for.
        stream: The ordinal of the call that opened the stream it reads.
        timeout_us: Timeout of the wait.
        is_caught: Whether the coroutine continues if the call fails.
        topic: The topic of the event that it emits or waits for.
        dag: The number of the DAG that it runs.
        approvals: How many people must approve a question; 0 for a question with a form.
        has_default: Whether a question has a default.
    """

    kind: str
    name: str
    width: int = 0
    stream: int = -1
    plan: StreamPlan | None = None
    timeout_us: int | None = None
    is_caught: bool = True
    topic: str = ""
    dag: int = -1
    approvals: int = 0
    has_default: bool = False


class _Carried(msgspec.Struct):
    """The fields of a trigger: a secret, a token of its owner, and a plan if it is a stream.

    The trigger of a named event also has a topic, and the event after which it waits.
    """

    password: str
    token: list[int]
    plan: StreamPlan | None = None
    topic: str = ""
    after: int = -1


def carried(
    token: tuple[int, ...],
    plan: StreamPlan | None = None,
    *,
    topic: str = "",
    after: int = -1,
) -> bytes:
    """Return the fields of a trigger. Its events carry the token, by which they are recognized."""
    fields = _Carried(CANARY.decode(), list(token), plan, topic, after)
    return msgspec.msgpack.encode(fields)


def topic_of(kwargs: bytes) -> tuple[str, int]:
    """Return the topic that a trigger waits for, and the event after which it waits."""
    fields = msgspec.msgpack.decode(kwargs, type=_Carried)
    return fields.topic, fields.after


def token_of(kwargs: bytes) -> list[int]:
    """Return the token of a trigger's owner."""
    return msgspec.msgpack.decode(kwargs, type=_Carried).token


def plan_of(kwargs: bytes) -> StreamPlan:
    """Return the plan of a stream."""
    plan = msgspec.msgpack.decode(kwargs, type=_Carried).plan
    assert plan is not None
    return plan


def script(seed: object, method: str, edition: int) -> list[Call]:
    """Return the calls of a method in an edition of its code; the first edition is 0."""
    calls: list[Call] = []
    for number in range(edition + 1):
        rng = random.Random(f"script {seed} {method} {number}")
        calls = calls[: rng.randint(0, len(calls))]
        _extend(calls, rng, f"{method}@{number}")
    return calls


def _extend(calls: list[Call], rng: random.Random, edition: str) -> None:
    """Append further calls."""
    is_patient = rng.random() < 0.6
    for _ in range(rng.choice(_LENGTHS)):
        streams = [ordinal for ordinal, call in enumerate(calls) if call.kind == "stream"]
        kind = rng.choice(_KINDS)
        if streams and rng.random() < 0.7:
            calls.append(_next(calls, rng.choice(streams), rng))
        elif kind == "stream":
            calls.append(_stream(rng, edition, is_patient=is_patient))
        else:
            calls.append(_call(kind, rng, edition))


def _call(kind: str, rng: random.Random, edition: str) -> Call:
    width, timeout, topic, dag = 0, None, "", -1
    if kind in {"emit", "named"}:
        topic = rng.choice(_TOPICS)
    if kind == "run_dag":
        dag = rng.randint(0, 2)
    if kind == "named":  # possibly never emitted
        kind, width, timeout = "wait", 1, rng.choice((2, 900)) * SECOND
    elif kind in WAITS:
        width = 1 if kind == "wait" else rng.randint(1, _WIDEST)
        timeout = rng.choice((None, None, 2 * SECOND, 900 * SECOND))
    elif kind == SLEEP:
        timeout = rng.choice((0, 1, 30, 600)) * SECOND
    name = f"f{rng.randint(0, 1)}.{edition}"
    return Call(
        kind=kind,
        name=name,
        width=width,
        timeout_us=timeout,
        is_caught=rng.random() < 0.5,
        topic=topic,
        dag=dag,
    )


def _stream(rng: random.Random, edition: str, *, is_patient: bool) -> Call:
    plan = StreamPlan(
        keyed=rng.random() < 0.7,
        count=rng.choice((0, 1, 3, 8, 20)),
        ends=rng.choice(("end", "end", "fail") if is_patient else ("end", "fail", "hang")),
        window=rng.choice((1, 2, 64)),
    )
    return Call(kind="stream", name=f"s.{edition}", plan=plan)


def _next(calls: list[Call], stream: int, rng: random.Random) -> Call:
    """Return a call that reads an event.

    A stream that may hang gets a timeout; otherwise every coroutine would end up waiting in it.
    """
    plan = calls[stream].plan
    assert plan is not None
    timeout = 20 * SECOND if plan.ends == "hang" else rng.choice((None, None, 2 * SECOND))
    name = f"{calls[stream].name}#{stream}"
    caught = rng.random() < 0.8
    return Call(kind="next", name=name, stream=stream, timeout_us=timeout, is_caught=caught)
