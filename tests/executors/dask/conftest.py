from __future__ import annotations

import os
import signal

import pytest

from tests.executors.dask.cluster import DaskCluster


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


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


__all__ = ("cluster", "is_alive", "own_cluster", "signal")
