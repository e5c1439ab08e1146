"""When does a task run, by the states its parents ended in?

``decide`` looks at counts, never at parents, so that a finished parent costs one addition per
child, however many parents there are. Of the counts it needs even less: every rule depends only
on *which* states are among the parents, so a rule is a function of a set of six, tabulated once.

Verdicts come as early as a rule allows, and how final they are can be said exactly. As further
parents finish, RUN, UPSTREAM_FAILED and SKIP stay what they are, for every rule and in every
order, with one exception: under ``all_success`` a SKIP turns into UPSTREAM_FAILED when a parent
fails after another was skipped. A task that was skipped at once therefore stays skipped, as in
Airflow. Over complete parents no rule waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TypeAlias

from aioflow.model.states import TriggerRule

__all__ = ("Verdict", "decide", "decide_share", "together")


class Verdict(Enum):
    """What a rule says of a task that has not started."""

    RUN = "run"
    WAIT = "wait"
    SKIP = "skip"
    UPSTREAM_FAILED = "upstream_failed"


# Looking a member up in its class costs more than the decision that returns it.
_RUN = Verdict.RUN
_WAIT = Verdict.WAIT
_SKIP = Verdict.SKIP
_UPSTREAM_FAILED = Verdict.UPSTREAM_FAILED
_SETUP_RULE = TriggerRule.ALL_DONE_SETUP_SUCCESS

# What is among the parents, one bit each. The last one: some have not finished.
_S, _F, _U, _K, _R, _UNFINISHED = (1 << bit for bit in range(6))


def decide(
    rule: TriggerRule,
    *,
    total: int,
    success: int,
    failed: int,
    upstream_failed: int,
    skipped: int,
    removed: int = 0,
    setup_success: int = 0,
    setup_total: int = 0,
    setup_skipped: int = 0,
) -> Verdict:
    """Return what ``rule`` says while the parents stand as counted.

    Counts are of parent instances: a mapped parent counts once per child, and as one while its
    width is unknown, so that nothing which needs all parents decides before it has expanded.
    ``cancelled`` counts as ``failed``. ``removed`` counts as finished and as nothing else.
    Setups are parents like any other; ``all_done_setup_success`` alone asks for their share,
    and is ``all_done`` where there are none. Without parents every rule says RUN.
    """
    if total == 0:
        return _RUN
    # No setup has succeeded, so it is not enough that everything is done.
    if rule is _SETUP_RULE and setup_total > 0 and not setup_success:
        if success + failed + upstream_failed + skipped + removed < total:
            return _WAIT
        return _SKIP if setup_skipped >= setup_total else _UPSTREAM_FAILED
    seen = 0
    if success:
        seen |= _S
    if failed:
        seen |= _F
    if upstream_failed:
        seen |= _U
    if skipped:
        seen |= _K
    if removed:
        seen |= _R
    if success + failed + upstream_failed + skipped + removed < total:
        seen |= _UNFINISHED
    return _TABLE[rule][seen]


def decide_share(
    least: float,
    *,
    total: int,
    success: int,
    failed: int,
    upstream_failed: int,
    skipped: int,
    removed: int = 0,
) -> Verdict:
    """Return what ``min_success=least`` says: all have finished, and this share succeeded.

    The share is that of all instances but the removed ones; where only those that were skipped
    are missing, the task is skipped. Nothing is decided early: a parent that has not expanded
    counts as one, and may become a million.
    """
    needed = math.ceil(least * (total - removed) - _ROUNDING)
    bad = failed + upstream_failed
    if success + bad + skipped + removed < total:
        return _WAIT
    if success >= needed:
        return _RUN
    return _UPSTREAM_FAILED if bad else _SKIP


_ROUNDING = 1e-9
"""0.07 * 100 is a little more than 7 to a computer."""


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Return what follows from the verdicts of all groups of parents of one task.

    It runs when every one of them says so. A failure is final at once; a skip waits for the
    others, so that it does not matter who came first.
    """
    said = set(verdicts)
    for verdict in (_UPSTREAM_FAILED, _WAIT, _SKIP):
        if verdict in said:
            return verdict
    return _RUN


# ── the rules, each a function of what is among the parents ─────────────────────────────


def _always(_seen: int) -> Verdict:
    return _RUN


def _all_success(seen: int) -> Verdict:
    if seen & (_F | _U):
        return _UPSTREAM_FAILED
    if seen & _K:
        return _SKIP
    return _at_the_end(seen, _RUN)


def _all_failed(seen: int) -> Verdict:
    return _SKIP if seen & (_S | _K) else _at_the_end(seen, _RUN)


def _all_skipped(seen: int) -> Verdict:
    return _SKIP if seen & (_S | _F | _U) else _at_the_end(seen, _RUN)


def _all_done(seen: int) -> Verdict:
    return _at_the_end(seen, _RUN)


def _all_done_min_one_success(seen: int) -> Verdict:
    if seen & _K:
        return _SKIP
    return _at_the_end(seen, _RUN if seen & _S else _UPSTREAM_FAILED)


def _one_success(seen: int) -> Verdict:
    if seen & _S:
        return _RUN
    return _at_the_end(seen, _SKIP if seen == _K else _UPSTREAM_FAILED)


def _one_failed(seen: int) -> Verdict:
    return _RUN if seen & (_F | _U) else _at_the_end(seen, _SKIP)


def _one_done(seen: int) -> Verdict:
    # A parent that never ran because of its own parents has done nothing.
    return _RUN if seen & (_S | _F) else _at_the_end(seen, _SKIP)


def _none_failed(seen: int) -> Verdict:
    return _UPSTREAM_FAILED if seen & (_F | _U) else _at_the_end(seen, _RUN)


def _none_failed_min_one_success(seen: int) -> Verdict:
    if seen & (_F | _U):
        return _UPSTREAM_FAILED
    if seen & _S:
        return _at_the_end(seen, _RUN)
    return _at_the_end(seen, _SKIP if seen == _K else _UPSTREAM_FAILED)


def _none_skipped(seen: int) -> Verdict:
    return _SKIP if seen & _K else _at_the_end(seen, _RUN)


def _at_the_end(seen: int, verdict: Verdict) -> Verdict:
    return _WAIT if seen & _UNFINISHED else verdict


_Rule: TypeAlias = Callable[[int], Verdict]
_RULES: Mapping[TriggerRule, _Rule] = {
    TriggerRule.ALL_SUCCESS: _all_success,
    TriggerRule.ALL_FAILED: _all_failed,
    TriggerRule.ALL_DONE: _all_done,
    TriggerRule.ALL_DONE_MIN_ONE_SUCCESS: _all_done_min_one_success,
    TriggerRule.ALL_DONE_SETUP_SUCCESS: _all_done,
    TriggerRule.ALL_SKIPPED: _all_skipped,
    TriggerRule.ONE_SUCCESS: _one_success,
    TriggerRule.ONE_FAILED: _one_failed,
    TriggerRule.ONE_DONE: _one_done,
    TriggerRule.NONE_FAILED: _none_failed,
    TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS: _none_failed_min_one_success,
    TriggerRule.NONE_SKIPPED: _none_skipped,
    TriggerRule.ALWAYS: _always,
}
_TABLE = {rule: tuple(map(judge, range(2 * _UNFINISHED))) for rule, judge in _RULES.items()}
