from __future__ import annotations

import pytest

from benchmarks.dask_cluster import DaskCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster with two workers, for tests that leave it as it is."""
    cluster = DaskCluster(tmp_path_factory.mktemp("dask"))
    try:
        cluster.start_scheduler()
        for _ in range(2):
            cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def own_cluster(tmp_path):
    """A cluster without workers, for tests that harm it."""
    cluster = DaskCluster(tmp_path)
    try:
        cluster.start_scheduler()
        yield cluster
    finally:
        cluster.stop()
