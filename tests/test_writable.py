"""Paths that every user of a machine may write to are found, through folders and links."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from aioflow.catalog.folder_scan import list_loaded
from aioflow.errors import SettingsError
from aioflow.filesystem import find_writable, how_to_mend
from aioflow.settings import Settings
from aioflow.settings.home import check_writers, make_home
from tests.faults.tools import read_only


@pytest.fixture
def settings(tmp_path):
    """Return the settings of a home that has been used, with DAG files of every kind."""
    home, dags, released = tmp_path / "home", tmp_path / "dags", tmp_path / "releases" / "7"
    make_home(home)
    version = home / "code" / "0123"
    for folder in (version / "team", dags / "team", released):
        folder.mkdir(parents=True)
    for file in (
        *(home / name for name in ("aioflow.toml", "key", "token", "aioflow.db", "aioflow.db-wal")),
        *(version / name for name in ("a.py", "team/b.py")),
        *(dags / name for name in ("a.py", "team/b.py", "team/.aioflowignore")),
        *(released / name for name in ("c.py", "d.py")),
    ):
        file.write_text("")
    (tmp_path / "current").symlink_to("releases/7")
    (dags / "linked.py").symlink_to(tmp_path / "current" / "c.py")
    (dags / "release").symlink_to("../current")
    for path in (home, home / "code"):
        path.chmod(0o755)  # readable for others, so that the files in it count
    return Settings(home=home, dags=(dags,), db=f"sqlite:///{home}/aioflow.db")


def check(settings):
    check_writers(settings, list_loaded(settings.dags))


def places(settings):
    """Return every folder and file that the settings lead to."""
    found = settings.home.parent.rglob("*")
    return [path for path in found if not path.is_symlink()]


def test_a_home_and_dag_files_that_only_their_owner_writes_are_accepted(settings):
    check(settings)


def test_world_writable_paths_are_refused_with_the_command_that_fixes_them(settings):
    for path in places(settings):
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(before | stat.S_IWOTH)
        with pytest.raises(SettingsError) as refused:
            check(settings)
        assert f"can write {path}, " in str(refused.value), path
        assert f"run: chmod o-w {path};" in str(refused.value), path
        path.chmod(before)
        check(settings)


def test_a_snapshot_that_other_users_cannot_reach_needs_no_look(settings):
    (settings.home / "code").chmod(0o700)
    (settings.home / "code" / "0123").chmod(0o777)

    check(settings)


def test_a_database_elsewhere_is_checked_where_it_lies(settings, tmp_path):
    database = tmp_path / "other.db"
    database.write_text("")
    database.chmod(0o666)

    with pytest.raises(SettingsError, match=f"can write {database}, "):
        check(Settings(home=settings.home, dags=(), db=f"sqlite:///{database}?timeout=1"))


def test_a_folder_with_the_sticky_bit_may_lead_to_a_path_and_be_none(tmp_path):
    shared = tmp_path / "shared"
    (shared / "dags").mkdir(parents=True)
    shared.chmod(0o1777)

    assert find_writable([shared / "dags"]) == []
    assert find_writable([shared]) == [shared]
    shared.chmod(0o777)
    assert find_writable([shared / "dags"]) == [shared]


def test_a_link_is_followed_through_each_folder_its_target_is_reached_by(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "open").mkdir()
    (tmp_path / "code.py").write_text("")
    (tmp_path / "open" / "second").symlink_to("../a/b/../../code.py")
    (tmp_path / "first.py").symlink_to("open/second")
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "a" / "b").chmod(0o777)

    found = find_writable([tmp_path / "first.py"])

    assert found == [tmp_path / "open", tmp_path / "a" / "b"]


def test_links_in_circles_and_paths_that_lead_nowhere_are_nothing(tmp_path):
    (tmp_path / "itself").symlink_to("itself")
    (tmp_path / "one").symlink_to("two/x")
    (tmp_path / "two").symlink_to("one/y")
    (tmp_path / "gone").symlink_to("missing")
    (tmp_path / "nul").symlink_to("/dev/null")

    assert find_writable(tmp_path / name for name in ("itself", "one", "gone", "nul", "no")) == []


def test_a_read_only_mount_is_not_writable_whatever_its_modes_say(tmp_path):
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags").chmod(0o777)
    with read_only(tmp_path / "dags", tmp_path / "mounted") as mounted:
        assert find_writable([mounted]) == []
    assert find_writable([tmp_path / "dags"]) == [tmp_path / "dags"]


def test_many_paths_of_one_folder_are_mended_by_one_command(tmp_path):
    files = [tmp_path / f"{number}.py" for number in range(7)]

    assert f"{files[4]} and 2 more, " in how_to_mend(files, [tmp_path])
    assert how_to_mend(files, [tmp_path]).endswith(f"run: chmod -R o-w {tmp_path}")
    assert "-R" not in how_to_mend([*files, Path("/elsewhere")], [tmp_path])
    assert how_to_mend([tmp_path / "a b"]).endswith(f"run: chmod o-w '{tmp_path}/a b'")
