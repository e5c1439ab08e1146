"""A process detects that packages it has imported were installed again."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time

import pytest

from aioflow.author.codec import encode
from aioflow.protocol.commands import Ping, StartTrigger
from aioflow.protocol.reports import Pong, TriggerEnded, TriggerFired
from aioflow.worker.code.installed_packages import InstalledPackages
from tests.packages import SitePackages
from tests.worker.peer import VERSION, write_version

NOW = 4_000_000_000  # later than anything in this environment was written


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a package folder from which this process imports."""
    site = SitePackages(tmp_path)
    monkeypatch.syspath_prepend(site.folder)
    yield site
    sys.modules.pop("spam", None)


@pytest.fixture
def installed(site, tmp_path):
    """Return the check of installed packages, in a process that has imported ``spam`` 1.0."""
    site.install("spam", "1.0", "")
    packages = InstalledPackages(str(tmp_path / "code"), lambda: NOW * 1_000_000_000)
    importlib.import_module("spam")
    assert packages.check() == ""
    return packages


def test_an_upgrade_is_noticed_by_the_name_of_the_distribution(site, installed):
    site.install("spam", "2.0", "")

    assert installed.check() == "spam-2.0"


def test_a_file_that_is_edited_is_noticed_without_metadata(site, installed):
    (site.folder / "spam.py").write_text("EDITED = True\n")

    assert installed.check_again(time.monotonic()) == "spam"


def test_a_package_that_is_removed_is_noticed(site, installed):
    site.remove("spam")

    assert installed.check() == "spam-1.0"


def test_a_package_that_comes_is_noticed_since_an_import_of_it_may_have_failed(site, installed):
    site.install("eggs", "1.0", "")

    assert installed.check() == "eggs-1.0"


def test_an_unfinished_installation_counts_only_if_something_failed(site, installed):
    site.install("spam", "2.0", "", written=NOW - 1)

    assert installed.check() == ""
    assert installed.check_again(failed_at=0.0) == "spam-2.0"
    assert installed.check() == "spam-2.0", "it is not taken back"


def test_a_look_after_a_failure_is_not_repeated_for_each_that_failed_before_it(site, installed):
    failed_at = time.monotonic()
    assert installed.check_again(failed_at) == ""
    site.install("spam", "2.0", "")

    assert installed.check_again(failed_at) == ""
    assert installed.check_again(time.monotonic()) == "spam-2.0"


def test_a_time_that_is_still_to_come_does_not_keep_a_change_waiting(site, installed):
    site.install("spam", "2.0", "", written=NOW + 3_600)

    assert installed.check() == "spam-2.0"


def test_modules_of_no_package_are_not_checked(site, installed, tmp_path, monkeypatch):
    snapshot = tmp_path / "code" / VERSION
    snapshot.mkdir(parents=True)
    (snapshot / "of_a_version.py").write_text("")
    monkeypatch.syspath_prepend(snapshot)
    importlib.import_module("of_a_version")
    assert installed.check() == ""
    (snapshot / "of_a_version.py").write_text("CHANGED = True")

    assert installed.check_again(time.monotonic()) == ""


def test_an_upgrade_of_aioflow_itself_is_left_to_a_restart(site, installed):
    site.install("aioflow_engine", "2.0", "")
    assert installed.check() == ""
    site.install("spam", "3.0", "")

    assert installed.check() == ""


@pytest.mark.process
def test_a_lazy_module_is_not_loaded_by_a_look():
    code = (
        "import importlib.util, sys\n"
        "from aioflow.worker.code.installed_packages import InstalledPackages\n"
        "installed = InstalledPackages('/nowhere')\n"
        "spec = importlib.util.find_spec('wave')\n"
        "spec.loader = importlib.util.LazyLoader(spec.loader)\n"
        "module = sys.modules['wave'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "installed.check()\n"
        "print(type(module).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "_LazyModule\n"


# ── in a trigger host ───────────────────────────────────────────────────────────────────


TRIGGER = """
from dataclasses import dataclass
from aioflow import Trigger, TriggerEvent

@dataclass
class Spam(Trigger[int]):
    slices: int
    async def run(self):
        yield TriggerEvent(self.slices)
"""


def _hosting(trigger_no: int, **fields: object) -> StartTrigger:
    return StartTrigger(trigger_no, 1, 1, 100, VERSION, "spam:Spam", encode(fields, ""), 1, None)


@pytest.mark.process
def test_a_trigger_that_an_upgraded_package_explains_does_not_fail(home, spawn, tmp_path):
    site = SitePackages(tmp_path)
    site.install("spam", "1.0", TRIGGER)
    write_version(home, flow="")
    child = spawn("triggers", environment={"PYTHONPATH": str(site.folder)})
    child.send(_hosting(1, slices=4))
    child.expect(TriggerFired)
    child.send(_hosting(2, slices=4, eggs=2))
    ended = child.expect(TriggerEnded, lambda report: report.trigger_no == 2)
    assert ended.failure is not None, "nothing has changed: it is the trigger's own fault"

    site.install("spam", "2.0", TRIGGER.replace("slices: int", "slices: int\n    eggs: int = 0"))
    child.send(_hosting(3, slices=4, eggs=2))

    pongs = iter(lambda: (child.send(Ping(0)), child.expect(Pong))[1].changed, None)
    assert next(filter(None, pongs)) == "spam-2.0"
    assert not [
        report
        for frame in child.frames
        for report in frame
        if isinstance(report, TriggerEnded) and report.trigger_no == 3
    ]
