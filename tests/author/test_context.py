"""The context of a run, and the parameters of its DAG."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from aioflow import current, dag
from aioflow.author.context import INJECTED, RunContext, context_value, parameter_values
from aioflow.author.context import current as same_current
from aioflow.errors import BadConf

SECOND = 1_000_000


def instant(moment: datetime) -> int:
    return round(moment.timestamp()) * SECOND


# 21:30 UTC is 03:00 of the next day in Kolkata.
RUN = RunContext(
    run_id="r1",
    dag_id="d",
    task_id="t",
    logical_date=instant(datetime(2026, 1, 1, 21, 30, tzinfo=UTC)),
    created_at=instant(datetime(2026, 2, 2, tzinfo=UTC)),
    timezone="Asia/Kolkata",
    try_number=2,
    task_no=7,
    clear_number=1,
    params={"day": date(2026, 1, 2)},
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ds", "2026-01-02"),
        ("ds_nodash", "20260102"),
        ("ts", "2026-01-02T03:00:00+05:30"),
        ("ts_nodash", "20260102T030000"),
        ("logical_day", date(2026, 1, 2)),
        ("logical_date", datetime(2026, 1, 1, 21, 30, tzinfo=UTC)),
        ("data_interval", (datetime(2026, 1, 1, 21, 30, tzinfo=UTC),) * 2),
        ("run_id", "r1"),
        ("try_number", 2),
        ("map_index", -1),
        ("params", {"day": date(2026, 1, 2)}),
        ("params.day", date(2026, 1, 2)),
        ("idempotency_key", "r1/t"),
        ("rerun_key", "r1/t/7.1"),
    ],
)
def test_a_run_knows(name, value):
    assert context_value(name, RUN) == value


def test_one_instant_is_another_wall_time_in_another_zone():
    there = replace(RUN, timezone="America/New_York")

    assert context_value("ts_nodash", RUN) == "20260102T030000"
    assert context_value("ts_nodash", there) == "20260101T163000"
    assert context_value("ts", there) == "2026-01-01T16:30:00-05:00"


def test_the_whole_context_has_every_name():
    kept_for_authors = {"cause", "conf", "round", "run_logical_date"}
    assert context_value("context", RUN).keys() == (INJECTED | kept_for_authors) - {"context"}


def test_every_attribute_of_current_can_be_resolved():
    for name in type(current).__annotations__:
        assert getattr(current, name).binding.name == name
        assert context_value(name, RUN) == context_value("context", RUN)[name]
    assert current is same_current


def test_a_run_without_a_logical_date_takes_when_it_was_created():
    by_hand = RunContext(
        run_id="r", dag_id="d", created_at=instant(datetime(2026, 2, 2, tzinfo=UTC))
    )

    assert context_value("ds", by_hand) == "2026-02-02"
    assert context_value("logical_date", by_hand) == datetime(2026, 2, 2, tzinfo=UTC)


def test_the_idempotency_key_differs_between_children_but_not_between_tries():
    def key(map_index: int, try_number: int) -> str:
        run = RunContext(
            run_id="r",
            dag_id="d",
            task_id="t",
            created_at=0,
            map_index=map_index,
            try_number=try_number,
        )
        return str(context_value("idempotency_key", run))

    assert key(3, 1) == key(3, 2) == "r/t/3"
    assert key(4, 1) == "r/t/4"


def test_the_rerun_key_differs_after_a_clear_and_for_other_rows_but_not_between_tries():
    def key(**fields: Any) -> str:
        return str(context_value("rerun_key", replace(RUN, map_index=0, **fields)))

    assert key(try_number=1) == key(try_number=2)
    assert len({key(), key(clear_number=2), key(task_no=8)}) == 3


@pytest.mark.parametrize("name", ["nonsense", "params.missing"])
def test_an_unknown_name_is_no_value(name):
    with pytest.raises(KeyError):
        context_value(name, RUN)


# ── parameters ──────────────────────────────────────────────────────────────────────────


@dag("d", params={"limit": 10})
def _with_parameters(
    day: date = current.logical_day,
    amount: Decimal = Decimal("1.5"),
    anything: Any = None,
) -> None: ...


PARAMETERS = _with_parameters.parameters


def values(conf: dict[str, Any]) -> dict[str, Any]:
    run = RunContext(
        run_id="r",
        dag_id="d",
        logical_date=RUN.logical_date,
        created_at=0,
        timezone="Asia/Kolkata",
        conf=conf,
    )
    return parameter_values(PARAMETERS, run)


def test_parameters_take_their_defaults():
    assert values({}) == {
        "day": date(2026, 1, 2),
        "amount": Decimal("1.5"),
        "anything": None,
        "limit": 10,
    }


def test_the_conf_is_restored_by_annotation_and_keeps_what_else_it_holds():
    assert values({"day": "2020-02-02", "amount": 3, "anything": [1], "more": "x"}) == {
        "day": date(2020, 2, 2),
        "amount": Decimal(3),
        "anything": [1],
        "limit": 10,
        "more": "x",
    }


@pytest.mark.parametrize("conf", [{"day": "soon"}, {"day": None}, {"amount": [1]}])
def test_a_conf_that_does_not_fit_names_the_parameter(conf):
    (name,) = conf
    with pytest.raises(BadConf, match=name):
        values(conf)


def test_a_required_parameter_must_be_given():
    @dag
    def needs(day: date) -> None: ...

    run = RunContext(run_id="r", dag_id="needs", created_at=0)

    with pytest.raises(BadConf, match="'day'"):
        parameter_values(needs.parameters, run)


def test_a_manual_run_has_no_run_logical_date_but_a_logical_date():
    by_hand = replace(RUN, logical_date=None)

    assert context_value("run_logical_date", by_hand) is None
    assert context_value("run_logical_date", RUN) == context_value("logical_date", RUN)
    assert context_value("logical_date", by_hand) is not None
