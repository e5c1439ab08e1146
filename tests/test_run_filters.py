"""Runs are found and counted by their properties."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from aioflow.api.run_filters import RunQuery, count_runs, query_of, run_filter
from aioflow.errors import RequestError
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


async def test_a_tag_of_no_dag_counts_no_run(tmp_path, url):
    async with runs(tmp_path, url) as n:
        counted = await count_runs(n.api, await run_filter(n.api, RunQuery(tags=("none",))))

        assert (counted.total, counted.states) == (0, {})


async def test_a_filter_that_names_nothing_known_is_refused(tmp_path, url):
    async with runs(tmp_path, url) as n:
        wrong = {
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
