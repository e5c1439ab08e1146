"""One daemon for all command line tests that only query a daemon."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.served import DAGS, TALK, Daemon

BROKEN = "import aioflow\n\ndef f(:\n"
FILLED = """
from aioflow import dag, task

@task
def work() -> None: ...

@dag(schedule="0 3 * * *")
def filled() -> None:
    work()
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of the shared daemon in one xdist worker, so that it is started only once."""
    for item in items:
        if "cli_daemon" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("cli"))


@pytest.fixture(scope="session")
def cli_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Return a daemon that many tests share; none of them stops it."""
    folder = tmp_path_factory.mktemp("cli")
    daemon = Daemon(folder, flows=DAGS, talk=TALK, broken=BROKEN, filled=FILLED)
    yield daemon
    assert daemon.stop() == 0


@pytest.fixture
def daemon(cli_daemon: Daemon) -> Daemon:
    """Return the shared daemon, under the name that tests use."""
    return cli_daemon
