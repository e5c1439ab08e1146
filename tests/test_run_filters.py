"""Runs are found and counted by their properties."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import make_url

from aioflow.api.run_filters import RunQuery, count_runs, query_of, run_filter
from aioflow.errors import RequestError
from aioflow.store import run_filters
from tests.databases import DATABASES
from tests.web.node import CHAIN, FAN, node

FINANCE = replace(CHAIN, dag_id="finance", file="finance.py", tags=("money",))


async def found(n, **query):
    wanted = await run_filter(n.api, RunQuery(**query))
    return [run.run_id for run in (await n.api.page_of_runs(wanted, limit=100)).items]


@pytest.fixture(params=DATABASES)
def url(request):
    return request.getfixturevalue(f"migrated_{request.param}_url")


@asynccontextmanager
async def runs(tmp_path, url):
    async with node(tmp_path, url=url) as made:
        made.define(CHAIN, FAN, FINANCE)
        for dag in (CHAIN, FAN, FINANCE):
            await made.api.set_paused(dag.dag_id, paused=False)
        await made.api.trigger("chain", run_id="pay-0001", conf={"day": "emea", "n": 7})
        await made.api.trigger("chain", run_id="pay-0002")
        await made.api.cancel("pay-0002")
        await made.api.trigger("fan", run_id="other")
        await made.api.trigger("finance", run_id="last")
        yield made


BOTH = ["pay-0002", "pay-0001"]
MATCHES = (
    ({}, ["last", "other", *BOTH]),
    ({"dags": ("chain",)}, BOTH),
    ({"dags": ("fan", "finance")}, ["last", "other"]),
    ({"tags": ("money",)}, ["last"]),
    ({"tags": ("money",), "dags": ("fan",)}, []),
    ({"tags": ("none",)}, []),
    ({"states": ("cancelled",)}, ["pay-0002"]),
    ({"states": ("cancelled", "running", "queued"), "dags": ("chain",)}, BOTH),
    ({"causes": ("schedule",)}, []),
    ({"causes": ("manual", "event"), "prefix": "pay-"}, BOTH),
    ({"prefix": "0001"}, []),
    ({"search": "0001"}, ["pay-0001"]),
    ({"search": "nanc"}, ["last"]),
    ({"search": "%"}, []),
    ({"search": "a\0b"}, []),
    ({"params": "emea"}, ["pay-0001"]),
    ({"params": "day"}, ["pay-0001"]),
    ({"params": "apac"}, []),
    ({"first": "2100-01-01"}, []),
    ({"last": "2100-01-01", "search": "oth"}, ["other"]),
)


async def test_runs_match_all_properties_of_a_filter(tmp_path, url):
    async with runs(tmp_path, url) as n:
        for query, expected in MATCHES:
            assert await found(n, **query) == expected, query


async def test_each_facet_ignores_its_own_part_of_the_filter(tmp_path, url):
    async with runs(tmp_path, url) as n:
        query = RunQuery(states=("cancelled",), dags=("chain",))

        counted = await count_runs(n.api, await run_filter(n.api, query))

        assert counted.total == 1
        assert counted.dags == {"chain": 1}
        assert counted.states["cancelled"] == 1
        assert sum(counted.states.values()) == 2
        assert counted.causes == {"manual": 1}
        assert counted.is_complete


async def test_a_caller_with_scopes_learns_of_no_other_dag(tmp_path, url):
    async with runs(tmp_path, url) as n:
        wanted = await run_filter(n.api, RunQuery(dags=("chain",)))

        scoped = await count_runs(n.api, wanted, frozenset({"chain"}))
        everything = await count_runs(n.api, wanted)

        assert scoped.dags == {"chain": 2}
        assert set(everything.dags) == {"chain", "fan", "finance"}


def test_the_cached_statements_of_filters_are_bounded():
    for width in range(300):
        run_filters._page(width, (), (), frozenset())

    assert run_filters._page.cache_info().currsize <= 256


async def test_a_count_by_the_index_and_by_rows_is_the_same(tmp_path, url, monkeypatch):
    async with runs(tmp_path, url) as n:
        wanted = [await run_filter(n.api, RunQuery(**query)) for query, _ in MATCHES]

        async def counted(limit=10):
            return [await n.store.count_matching_runs(one, limit=limit) for one in wanted]

        by_index = await counted()
        monkeypatch.setattr(run_filters, "_INDEXED_RUNS", 0)
        by_rows, newest = await counted(), await counted(limit=1)

    assert by_index == by_rows
    sizes = [len(expected) for _, expected in MATCHES]
    assert [sum(one.count for one in found.counts) for found in by_index] == sizes
    assert [found.is_complete for found in newest] == [size == 0 for size in sizes]


def test_runs_are_counted_by_their_index_alone(migrated_sqlite_url):
    statement = run_filters._all_counts(0, (), (), frozenset({"first"}))
    text = str(
        statement.compile(dialect=sqlite.dialect(), compile_kwargs={"render_postcompile": True})
    )
    path = str(make_url(migrated_sqlite_url).database)
    with closing(sqlite3.connect(path)) as raw:
        plan = raw.execute(f"EXPLAIN QUERY PLAN {text}", (0,) * text.count("?")).fetchall()

    assert any("SCAN run USING COVERING INDEX run_by_kind" in step[-1] for step in plan), plan
    assert not any("TEMP B-TREE" in step[-1] for step in plan), plan


async def test_a_tag_of_no_dag_counts_no_run(tmp_path, url):
    async with runs(tmp_path, url) as n:
        counted = await count_runs(n.api, await run_filter(n.api, RunQuery(tags=("none",))))

        assert (counted.total, counted.states) == (0, {})


async def test_a_filter_that_names_nothing_known_is_refused(tmp_path, url):
    async with runs(tmp_path, url) as n:
        wrong: dict[str, dict[str, Any]] = {
            "state": {"states": ("odd",)},
            "cause": {"causes": ("whim",)},
            "yesterday": {"first": "yesterday"},
            "characters": {"search": "x" * 501},
            "DAGs": {"dags": tuple(map(str, range(501)))},
        }
        for reason, query in wrong.items():
            with pytest.raises(RequestError, match=reason):
                await found(n, **query)


def test_the_parameters_of_a_request_make_a_filter():
    named = {"dag": ["a"], "state": ["failed"], "from": "2026-01-01", "prefix": "x"}

    assert query_of(named) == RunQuery(
        dags=("a",), states=("failed",), first="2026-01-01", prefix="x"
    )
