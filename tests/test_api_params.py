"""The conf of a run is validated against the schemas of its DAG, without delaying other work."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace

from aioflow.api import validation
from aioflow.errors import BadConf
from aioflow.model.dag import ParamSpec
from tests.web.node import CHAIN, node

N = ParamSpec(name="n", schema='{"type": "integer", "minimum": 1}', default="3")
DAY = ParamSpec(name="day", schema='{"type": "string", "pattern": "^(a+)+$"}')
DAG = replace(CHAIN, params=(N, DAY))


async def test_a_conf_that_fits_makes_a_run_and_one_that_does_not_makes_none(tmp_path):
    async with node(tmp_path) as n:
        n.define(DAG)
        made = await n.api.trigger("chain", conf={"n": 1, "day": "aa"})
        await n.api.trigger("chain")
        with pytest.raises(BadConf, match="'n' does not fit: 0 is less than the minimum"):
            await n.api.trigger("chain", conf={"n": 0})
        with pytest.raises(BadConf, match="no parameter 'other'"):
            await n.api.trigger("chain", conf={"other": 0})
        runs = await n.api.list_runs()

    assert made.created
    assert len(runs) == 2


async def test_a_conf_of_another_type_is_refused_when_the_run_is_asked_for(tmp_path):
    async with node(tmp_path) as n:
        n.define(replace(CHAIN, types={"n": "float", "day": "date"}))
        await n.api.trigger("chain", conf={"n": 1, "day": "2026-01-01"})
        with pytest.raises(BadConf, match="'n' must be float, got 'lots'"):
            await n.api.trigger("chain", conf={"n": "lots"})
        with pytest.raises(BadConf, match="'day' must be date, got 'soon'"):
            await n.api.backfills.start(
                "chain", first="2026-01-01", last="2026-01-02", conf={"day": "soon"}
            )
        runs = await n.api.list_runs()

    assert len(runs) == 1


async def test_a_run_that_was_made_is_found_again_though_its_conf_no_longer_fits(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        first = await n.api.trigger("chain", conf={"n": 0}, key="once")
        n.define(replace(DAG, doc="new"))
        await n.api.set_paused("chain", paused=False)
        again = await n.api.trigger("chain", conf={"n": 0}, key="once")

    assert (again.run_id, again.created) == (first.run_id, False)


async def test_a_pattern_that_never_ends_is_interrupted_and_delays_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(validation, "_SCHEMA_CHECK_SECONDS", 60.0)
    async with node(tmp_path) as n:
        n.define(DAG)
        await n.api.trigger("chain", conf={"day": "aa"})  # the process that looks is up
        monkeypatch.setattr(validation, "_SCHEMA_CHECK_SECONDS", 1.0)
        turns = 0

        async def count():
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        async with anyio.create_task_group() as group:
            group.start_soon(count)
            with pytest.raises(BadConf, match="could not be checked within"):
                await n.api.trigger("chain", conf={"day": "a" * 60 + "b"})
            group.cancel_scope.cancel()

        assert len(await n.api.list_runs()) == 1
    assert turns > 1_000


async def test_a_dag_shows_what_its_parameters_may_be(tmp_path):
    async with node(tmp_path) as n:
        n.define(DAG)
        await n.api.trigger("chain")
        shown = await n.api.show_dag("chain")

    assert shown.params == {
        "n": {"schema": {"type": "integer", "minimum": 1}, "default": 3},
        "day": {"schema": {"type": "string", "pattern": "^(a+)+$"}},
    }
