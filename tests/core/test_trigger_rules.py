"""The trigger rules, compared with the truth table produced by Airflow 3.3.2."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.core.tasks.trigger_rules import Verdict, decide
from aioflow.model.states import TriggerRule
from tests.core.rule_table import RULES, TABLE, VERDICTS, column
from tests.differing import differing


def verdict(rule, parents, **setups):
    """Return the decision for parents written as in the table; ``R`` is a removed parent."""
    count = Counter(parents)
    return decide(
        rule,
        total=len(parents),
        success=count["S"],
        failed=count["F"],
        upstream_failed=count["U"],
        skipped=count["K"],
        removed=count["R"],
        **setups,
    )


@pytest.mark.parametrize("rule", RULES.values())
def test_a_rule_says_what_airflow_says(rule):
    expected = column(rule)
    found = {parents: verdict(rule, parents) for parents in expected}

    assert not (rows := differing(found, expected)), rows


def test_the_table_is_complete():
    rows = [row.split() for row in TABLE.strip().splitlines()]
    written = {frozenset(Counter(parents).items()) for parents, *_ in rows[1:]}
    possible = {
        frozenset(Counter(parents).items())
        for size in (1, 2, 3)
        for parents in itertools.combinations_with_replacement("SFKUp", size)
    }

    assert written == possible
    assert len(written) == len(rows) - 1
    assert rows[0] == list(RULES)
    assert {*RULES.values(), TriggerRule.ALL_DONE_SETUP_SUCCESS} == set(TriggerRule)


@pytest.mark.parametrize("rule", TriggerRule)
def test_without_parents_every_rule_runs(rule):
    assert verdict(rule, "") is Verdict.RUN


@pytest.mark.parametrize(
    ("parents", "expected"),
    [
        pytest.param("SR", "as R, af s, ad R, adm R, os R, of s, nf R, nfm R, ns R, ask s", id="S"),
        pytest.param("FR", "as u, af R, ad R, adm u, os u, of R, nf u, nfm u, ns R, ask s", id="F"),
        pytest.param("KR", "as s, af s, ad R, adm s, os u, of s, nf R, nfm u, ns s, ask R", id="K"),
        pytest.param("R", "as R, af R, ad R, adm u, os u, of s, nf R, nfm u, ns R, ask R", id="R"),
        pytest.param("Rp", "as ., af ., ad ., adm ., os ., of ., nf ., nfm ., ns ., ask .", id="p"),
    ],
)
def test_a_removed_parent_is_finished_and_nothing_else(parents, expected):
    for cell in expected.split(", "):
        rule, outcome = cell.split()
        assert verdict(RULES[rule], parents) is VERDICTS[outcome], cell


@pytest.mark.parametrize(
    ("parents", "setups", "expected"),
    [
        pytest.param("SSp", (1, 1, 0), Verdict.WAIT, id="waits-for-all-though-the-setup-is-done"),
        pytest.param("SFU", (1, 1, 0), Verdict.RUN, id="runs-after-failures-once-set-up"),
        pytest.param("KFp", (0, 1, 1), Verdict.WAIT, id="waits-though-the-setup-was-skipped"),
        pytest.param("KSS", (0, 1, 1), Verdict.SKIP, id="nothing-was-set-up"),
        pytest.param("KFS", (0, 2, 1), Verdict.UPSTREAM_FAILED, id="no-setup-succeeded"),
        pytest.param("SFS", (1, 2, 0), Verdict.RUN, id="one-setup-is-enough"),
        pytest.param("FKU", (0, 0, 0), Verdict.RUN, id="without-setups-it-is-all-done"),
        pytest.param("Fp", (0, 0, 0), Verdict.WAIT, id="without-setups-it-waits-for-all"),
    ],
)
def test_a_teardown_runs_once_all_is_done_and_something_was_set_up(parents, setups, expected):
    success, total, skipped = setups
    evaluated = verdict(
        TriggerRule.ALL_DONE_SETUP_SUCCESS,
        parents,
        setup_success=success,
        setup_total=total,
        setup_skipped=skipped,
    )

    assert evaluated is expected


rules = st.sampled_from(list(TriggerRule))
finished = st.lists(st.sampled_from("SFKUR"), min_size=1, max_size=8)


def _arriving(rule, ends):
    """Yield the decision after each end. Parents that have not ended are pending."""
    for known in range(len(ends) + 1):
        yield verdict(rule, [*ends[:known], *"p" * (len(ends) - known)])


@given(rule=rules, ends=finished)
def test_over_complete_parents_no_rule_waits(rule, ends):
    assert verdict(rule, ends) is not Verdict.WAIT


@given(rule=rules, ends=finished, data=st.data())
def test_the_verdict_over_complete_parents_does_not_depend_on_their_order(rule, ends, data):
    assert verdict(rule, data.draw(st.permutations(ends))) is verdict(rule, ends)


@given(rule=rules, ends=finished)
def test_a_verdict_that_came_early_is_the_one_that_would_come_late(rule, ends):
    later = itertools.dropwhile(lambda known: known is Verdict.WAIT, _arriving(rule, ends))
    verdicts = [known for known, _ in itertools.groupby(later)]

    if rule is TriggerRule.ALL_SUCCESS and len(verdicts) > 1:
        assert verdicts == [Verdict.SKIP, Verdict.UPSTREAM_FAILED]
    else:
        assert len(verdicts) == 1


@given(rule=rules, ends=finished, more=st.integers(1, 10**6))
def test_a_wide_parent_is_judged_like_a_narrow_one(rule, ends, more):
    count = Counter(ends)
    evaluated = decide(
        rule,
        total=len(ends) * more,
        success=count["S"] * more,
        failed=count["F"] * more,
        upstream_failed=count["U"] * more,
        skipped=count["K"] * more,
        removed=count["R"] * more,
    )

    assert evaluated is verdict(rule, ends)
