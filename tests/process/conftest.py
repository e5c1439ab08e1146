"""Two daemons shared by all tests here: one that is never killed, and one that may be killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemons import SharedDaemon
from tests.packages import SitePackages
from tests.process.listening import Heard, listening

GROUPS = {"shared_daemon": "shared", "killed_daemon": "killed", "daemon_on": "killed"}
"""The xdist group of the tests that request a fixture."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a shared daemon in one xdist worker, so that it is started only once."""
    for item in items:
        for name in GROUPS.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(GROUPS[name]))


@pytest.fixture(scope="session")
def alerts() -> Iterator[Heard]:
    """Return the alerts that the shared daemon sent to the webhook."""
    with listening(failures=0) as heard:
        yield heard


@pytest.fixture(scope="session")
def _steady_daemon(
    tmp_path_factory: pytest.TempPathFactory, alerts: Heard
) -> Iterator[SharedDaemon]:
    daemon = SharedDaemon(
        tmp_path_factory.mktemp("shared"),
        settings=f'[callbacks]\ntimeout_seconds = 15\n[alerts]\nwebhook = "{alerts.url}/oncall"\n',
        flags=("--cpu-slots", "2"),
    )
    daemon.home.chmod(0o755)
    before = os.umask(0)  # one of its tests checks what other users may read
    try:
        daemon.start()
    finally:
        os.umask(before)
    yield daemon
    daemon.end()


@pytest.fixture
def shared_daemon(_steady_daemon: SharedDaemon) -> SharedDaemon:
    """Return a daemon that many tests share; none of them stops it."""
    assert _steady_daemon.is_alive
    return _steady_daemon.lend()


@pytest.fixture(scope="session")
def site_packages(tmp_path_factory: pytest.TempPathFactory) -> SitePackages:
    """Return the packages that the daemon to be killed has in addition to the environment's."""
    return SitePackages(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="session")
def _mortal_daemon(
    tmp_path_factory: pytest.TempPathFactory, site_packages: SitePackages
) -> Iterator[SharedDaemon]:
    daemon = SharedDaemon(
        tmp_path_factory.mktemp("killed"),
        flags=("--cpu-slots", "1"),
        environment={
            # No test has to wait for what another one left, and no slow import counts as blocking a
            # loop.
            "AIOFLOW_DAEMON__GRACE_SECONDS": "600",
            "AIOFLOW_HOSTS__STALL_SECONDS": "3600",
            "PYTHONPATH": str(site_packages.folder),
        },
    )
    yield daemon
    daemon.end()


@pytest.fixture
def killed_daemon(_mortal_daemon: SharedDaemon) -> Iterator[SharedDaemon]:
    """Return a daemon that may be killed and restarted. Its database survives."""
    yield _mortal_daemon.lend()
    _mortal_daemon.clear_dags()


@pytest.fixture
def postgres_daemon(postgres_url: str, tmp_path: Path) -> Iterator[SharedDaemon]:
    """Return a daemon that may be killed, with its own database, for this test only."""
    (tmp_path / "own").mkdir()
    daemon = SharedDaemon(tmp_path / "own", db=postgres_url, flags=("--cpu-slots", "1"))
    yield daemon.lend()
    daemon.end()


@pytest.fixture
def daemon_on(request: pytest.FixtureRequest) -> Callable[[str], SharedDaemon]:
    """Return a function that returns, for a kind of database, a daemon that may be killed.

    For SQLite this is the shared daemon.
    """

    def on(database: str) -> SharedDaemon:
        name = "killed_daemon" if database == "sqlite" else "postgres_daemon"
        daemon: SharedDaemon = request.getfixturevalue(name)
        return daemon

    return on
