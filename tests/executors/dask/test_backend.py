from __future__ import annotations

import pytest

from aioflow.protocol.reports import Succeeded, TaskStarted
from tests.executors.dask.cluster import demand, running

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("dask")]


async def test_a_try_runs_in_a_worker_on_the_cluster(cluster, tmp_path):
    async with running(cluster) as (backend, events):
        backend.set_demand(demand(1))
        (worker,) = await events.up()
        worker.prepare(tmp_path, "print('on', os.getpid())\nreturn 7")
        worker.start()
        await events.until(lambda: worker.found(Succeeded))
        await events.until(lambda: b"on %d\n" % worker.info.pid in worker.output)

    assert worker.found(TaskStarted)
    assert worker.failure.reason == "killed"
