"""Files created in a home are accessible to its owner only, whatever the umask."""

from __future__ import annotations

import os
import stat

import pytest

from aioflow.catalog.snapshot import write_snapshot
from aioflow.filesystem import create_file, make_folder, write_file
from aioflow.processes.process import write_record
from aioflow.results import result_path, write_value
from aioflow.settings.home import make_home
from aioflow.store.sqlite.wal_file import LastShutdown


@pytest.fixture(autouse=True)
def _no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder):
    """Return the mode of each path below a folder."""
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
        for path in folder.rglob("*")
    }


def test_a_folder_is_made_with_those_above_it_and_one_that_exists_keeps_its_mode(tmp_path):
    (tmp_path / "shared").mkdir(mode=0o755)

    make_folder(tmp_path / "shared" / "a" / "b")
    make_folder(tmp_path / "shared" / "a" / "b")
    make_folder(tmp_path / "shared")

    assert modes(tmp_path) == {"shared": 0o755, "shared/a": 0o700, "shared/a/b": 0o700}


def test_a_folder_below_a_file_cannot_be_made(tmp_path):
    write_file(tmp_path / "file", b"")

    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "file" / "a")


def test_a_file_is_written_whole_and_replaces_a_longer_one(tmp_path):
    write_file(tmp_path / "a", b"longer")
    write_file(tmp_path / "a", b"short")
    with create_file(tmp_path / "b") as file:
        file.write(b"1")

    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"short", b"1")
    assert modes(tmp_path) == {"a": 0o600, "b": 0o600}


def test_nothing_of_a_home_is_for_others(tmp_path):
    home = tmp_path / "deep" / "home"
    make_home(home)
    write_snapshot(home / "code", "0123", {"team/a.py": b"", "b.py": b""})
    make_folder(home / "run" / "children")
    write_record(home / "run" / "children", os.getpid(), "boot", "slot")
    LastShutdown(home / "aioflow.db", home).begin()
    write_value(result_path(home / "results", 7, 1), b"value")

    found = modes(tmp_path)

    assert {"deep", "deep/home/code/0123/team/a.py", "deep/home/results/0/7.1"} <= found.keys()
    assert {name: mode for name, mode in found.items() if mode & 0o077} == {}
