"""A version that defines many DAGs is read and decoded only once for a list of these DAGs."""

from __future__ import annotations

import pytest

from aioflow.api.service import Api
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.protocol.inputs import FileParsed
from tests.web.node import node

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

COUNT = 300
"""More DAGs than the cache of their descriptions can hold."""


async def test_a_file_of_many_dags_is_read_once_for_a_list_without_a_daemon(tmp_path, monkeypatch):
    specs = tuple(
        DagSpec(
            dag_id=f"d{at:03}",
            file="many.py",
            tags=("odd",) if at % 2 else (),
            tasks=(TaskSpec(task_id="a"),),
        )
        for at in range(COUNT)
    )
    async with node(tmp_path) as n:
        parsed = FileParsed(file="many.py", version="v", dags=specs, sources={"many.py": b""})
        n.engine.report([parsed])
        await n.api.set_paused("d000", paused=True)  # once it is answered, the file is stored
        read = []
        find = n.store.find_version

        async def counted(version):
            read.append(version)
            return await find(version)

        monkeypatch.setattr(n.store, "find_version", counted)
        offline = Api.offline(n.store, n.api._tasklog)
        odd = await offline.list_dags(tags=["odd"])
        every = await offline.list_dags()

    assert [one.dag_id for one in odd] == [spec.dag_id for spec in specs[1::2]]
    assert len(every) == COUNT
    assert read == ["v"]
