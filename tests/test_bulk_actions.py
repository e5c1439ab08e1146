"""All runs that match a filter are changed, slice by slice."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from aioflow.api import bulk
from aioflow.api.access.audit import audit_faults
from aioflow.api.bulk import act_on_slice, preview
from aioflow.api.run_filters import RunQuery
from aioflow.errors import RequestError
from aioflow.model.access import Actor, Role
from tests.web.node import CHAIN, FAN, node

ANNA = Actor(name="anna", role=Role.ADMIN, address="10.0.0.1")
OF_CHAIN = RunQuery(dags=("chain",))


@asynccontextmanager
async def runs(tmp_path, count=5):
    async with node(tmp_path) as n:
        n.define(CHAIN, FAN)
        for number in range(count):
            await n.api.trigger("chain", run_id=f"r{number}")
        await n.api.trigger("fan", run_id="other")
        yield n, n.api.by(ANNA)


async def states(n):
    return {run.run_id: run.state for run in await n.api.list_runs()}


async def act(api, action, query, key="k"):
    """Perform the action on all slices. Return the number of runs changed by each slice."""
    done, cursor = [], None
    while True:
        slice_ = await act_on_slice(api, action, query, key=key, cursor=cursor)
        done.append(slice_.done)
        cursor = slice_.next
        if cursor is None:
            return done


async def test_matching_runs_are_cancelled_in_slices_and_other_runs_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(bulk, "SLICE_RUNS", 2)
    async with runs(tmp_path) as (n, api):
        expected = await preview(api, "cancel", OF_CHAIN)
        done = await act(api, "cancel", OF_CHAIN)
        again = await act(api, "cancel", OF_CHAIN)
        found = await states(n)
        audit = [line for line in await n.api.access.list_audit() if line.action == "runs.cancel"]

    assert (expected.matching, sum(expected.states.values()), expected.done) == (5, 5, 0)
    assert (done, again) == ([2, 2, 1], [0])
    assert {state for run, state in found.items() if run != "other"} == {"cancelled"}
    assert found["other"] != "cancelled"
    assert [line.target for line in audit] == [f"{n} runs of: dag=chain" for n in (1, 2, 2)]
    assert {line.actor for line in audit} == {"anna"}
    assert [set(line.after.split()) for line in audit] == [{"r0"}, {"r1", "r2"}, {"r3", "r4"}]


async def test_who_cleared_a_run_among_many_is_shown_at_its_try(tmp_path):
    async with runs(tmp_path, 1) as (n, api):
        await act(api, "cancel", OF_CHAIN)
        await act(api, "clear_failed", OF_CHAIN)
        run = await n.api.run("r0")
        found = await n.store.list_clears("r0")

    assert [(by, target) for _, by, target in found] == [("anna", "r0")]
    assert found[0][0] >= run.created_at


async def test_the_entry_of_a_slice_names_all_its_runs_and_a_list_the_first(tmp_path):
    async with runs(tmp_path, 0) as (n, api):
        names = [f"{number:03}-{'x' * 40}" for number in range(30)]
        for name in names:
            await n.api.trigger("chain", run_id=name)
        await act(api, "cancel", OF_CHAIN)
        (listed,) = [one for one in await n.api.access.list_audit() if one.more]
        whole = await n.api.access.show_audit(listed.audit_id)
        faults = await audit_faults(n.store)

    assert len(listed.after) <= 500
    assert len(listed.after.split()) + listed.more == 30
    assert (sorted(whole.after.split()), whole.more) == (names, 0)
    assert faults == []


async def test_a_repeated_slice_clears_nothing_more(tmp_path):
    async with runs(tmp_path, 2) as (n, api):
        await act(api, "cancel", OF_CHAIN)
        ended = RunQuery(dags=("chain",), states=("cancelled", "running", "queued"))
        first = await act(api, "clear_failed", ended)
        cleared = await states(n)
        again = await act(api, "clear_failed", ended)

    assert (first, again) == ([2], [0])
    assert not {"cancelled"} & set(cleared.values())


async def test_ended_runs_are_deleted_and_live_ones_stay(tmp_path):
    async with runs(tmp_path, 3) as (n, api):
        await n.api.cancel("r1")
        expected = await preview(api, "delete", OF_CHAIN)
        done = await act(api, "delete", OF_CHAIN)
        found = await states(n)

    assert (expected.matching, expected.states) == (3, {"cancelled": 1})
    assert done == [1]
    assert set(found) == {"r0", "r2", "other"}


async def test_a_run_that_cannot_be_changed_is_reported_and_the_others_are_changed(
    tmp_path, monkeypatch
):
    async with runs(tmp_path, 2) as (_, api):
        cancel = type(api).cancel

        async def refuse(self, run_id):
            if run_id == "r0":
                raise RequestError("not this one")
            return await cancel(self, run_id)

        monkeypatch.setattr(type(api), "cancel", refuse)
        slice_ = await act_on_slice(api, "cancel", OF_CHAIN, key="k", cursor=None)

    assert (slice_.done, slice_.failed) == (1, 1)
    assert [(error.run_id, error.detail) for error in slice_.errors] == [("r0", "not this one")]


async def test_a_cursor_of_another_action_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bulk, "SLICE_RUNS", 1)
    async with runs(tmp_path, 2) as (_, api):
        first = await act_on_slice(api, "cancel", OF_CHAIN, key="k", cursor=None)
        with pytest.raises(RequestError, match="cursor"):
            await act_on_slice(api, "delete", OF_CHAIN, key="k", cursor=first.next)
