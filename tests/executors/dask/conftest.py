from __future__ import annotations

import pytest

from aioflow.executors.dask import backend
from benchmarks.dask_cluster import DaskCluster


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Let backends wait for the end of their workers, however busy the machine is."""
    monkeypatch.setattr(backend, "END_SECONDS", 120.0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, request):
    """Run a cluster with two workers, for tests that leave it unchanged.

    A module may define arguments for its Dask workers as ``DASK_WORKER``.
    """
    arguments = getattr(request.module, "DASK_WORKER", ())
    cluster = DaskCluster(tmp_path_factory.mktemp("dask"))
    try:
        cluster.start_scheduler()
        for _ in range(2):
            cluster.start_worker(*arguments)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def own_cluster(tmp_path):
    """Run a cluster without workers, for tests that damage it."""
    cluster = DaskCluster(tmp_path)
    try:
        cluster.start_scheduler()
        yield cluster
    finally:
        cluster.stop()
