"""The files that belong to a DAG file's version: those it names, and small files beside it."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from aioflow.catalog import data_files
from aioflow.catalog import data_files as beside_module
from aioflow.catalog.data_files import Choice, DataFileUse, FilesBeside
from aioflow.catalog.snapshot import VERSIONS_AN_HOUR, VersionQuota
from aioflow.clock import SystemClock
from aioflow.protocol.reports import DataFiles
from aioflow.worker.code.data_files import FILE_LIMIT_BYTES, BadFiles, UsedFiles
from benchmarks.daemon import put


def choose(folder: Path, beside: DataFiles | None = None, file: str = "etl.py") -> Choice:
    asked = DataFileUse(folder, beside or DataFiles(), frozenset({file}))
    return FilesBeside().look({file: asked})[file]


def names(folder: Path, beside: DataFiles | None = None, file: str = "etl.py") -> set[str]:
    return set(choose(folder, beside, file).digests)


def used(folder: Path, source: str, file: str = "etl.py") -> DataFiles:
    put(folder / file, source)
    found = UsedFiles(folder, file)
    found.take(file, ast.parse(source))
    return found.found()


def test_small_text_files_of_its_own_folder_are_taken_and_nothing_else(tmp_path):
    for name in ("etl.py", "other.py", "query.sql", "cfg.json", "sub/deep.sql", ".hidden.txt"):
        put(tmp_path / name, "text")
    for name in ("out.log", "half.tmp", "old.sql~", "data.parquet"):
        put(tmp_path / name, "text")
    (tmp_path / "image.raw").write_bytes(b"\x89\0\0")
    (tmp_path / "huge.csv").write_bytes(b"x" * (FILE_LIMIT_BYTES + 1))
    os.mkfifo(tmp_path / "pipe.txt")

    assert names(tmp_path) == {"query.sql", "cfg.json"}
    assert names(tmp_path, file="sub/etl.py") == {"sub/deep.sql"}


def test_ignored_files_are_not_included_unless_named(tmp_path):
    for name in ("a.csv", "b.csv", "query.sql"):
        put(tmp_path / name, "text")
    put(tmp_path / ".aioflowignore", "*.csv\n")

    assert names(tmp_path) == {"query.sql"}
    assert names(tmp_path, DataFiles(named=("a.csv",))) == {"query.sql", "a.csv"}


@pytest.mark.parametrize(
    ("expression", "path"),
    [
        ("Path(__file__).parent / 'sql' / 'q.sql'", "jobs/sql/q.sql"),
        ("pathlib.Path(__file__).resolve().parent.joinpath('sql', 'q.sql')", "jobs/sql/q.sql"),
        ("Path(__file__).with_name('q.sql')", "jobs/q.sql"),
        ("Path(__file__).parents[1] / 'q.sql'", "q.sql"),
        ("os.path.join(os.path.dirname(os.path.abspath(__file__)), 'q.sql')", "jobs/q.sql"),
        ("os.path.dirname(__file__) + '/q.sql'", "jobs/q.sql"),
        ("f'{HERE}/sql/q.sql'", "jobs/sql/q.sql"),
        ("open(HERE / 'q.sql').read()", "jobs/q.sql"),
        ("HERE / 'sql' / f'{name}.sql'", "jobs/sql"),
        ("HERE / '..' / '..' / 'q.sql'", "../q.sql"),
    ],
)
def test_expressions_built_on_the_path_of_the_file_are_followed(tmp_path, expression, path):
    source = f"HERE = Path(__file__).parent\n\ndef body(name):\n    return {expression}\n"

    assert used(tmp_path, source, "jobs/etl.py").paths == {"jobs": 1, path: 4}


def test_texts_that_name_a_file_there_are_taken(tmp_path):
    put(tmp_path / "lib/rates.dat", "1")
    put(tmp_path / "jobs/sql/q.sql", "select 1")
    source = "X = ['lib/rates.dat', 'sql/', 'later.sql', 'no such file', '/etc/hosts', 'a.b']"
    found = used(tmp_path, source, "jobs/etl.py")

    assert set(found.named) == {"lib/rates.dat", "jobs/sql", "jobs/later.sql", "later.sql"}
    assert names(tmp_path, found, "jobs/etl.py") == {"lib/rates.dat", "jobs/sql/q.sql"}


def test_a_line_of_the_file_says_which_are_taken(tmp_path):
    for name in ("jobs/sql/a.sql", "jobs/sql/deep/b.sql", "jobs/cfg.json", "conf/x.bin"):
        put(tmp_path / name, "text")

    def taken(line: str) -> set[str]:
        return names(tmp_path, used(tmp_path, f"# aioflow: {line}\n", "jobs/etl.py"), "jobs/etl.py")

    assert taken('files = ["sql/*.sql"]') == {"jobs/sql/a.sql"}
    assert taken('files = "sql"') == {"jobs/sql/a.sql", "jobs/sql/deep/b.sql"}
    assert taken('files = ["**/*.sql", "../conf/x.bin"]') == {
        "jobs/sql/a.sql",
        "jobs/sql/deep/b.sql",
        "conf/x.bin",
    }
    assert taken("files = []") == set()
    [said] = choose(tmp_path, DataFiles(patterns=("no/*.sql",))).said
    assert said.reason == "odd.file"
    assert "no/*.sql" in said.message


@pytest.mark.parametrize("line", ["files = 3", "files = [", 'files = ["../x"]', 'files = ["/x"]'])
def test_a_line_that_is_not_understood_is_refused(tmp_path, line):
    with pytest.raises(BadFiles):
        used(tmp_path, f"# aioflow: {line}\n")


def test_a_table_in_a_folder_says_it_for_all_files_below(tmp_path):
    for name in ("jobs/sql/a.sql", "jobs/cfg.json", "other/x.txt"):
        put(tmp_path / name, "text")
    put(tmp_path / "jobs/aioflow.toml", 'files = ["sql/*"]')

    assert names(tmp_path, file="jobs/daily/etl.py") == {"jobs/sql/a.sql"}
    assert names(tmp_path, file="other/etl.py") == {"other/x.txt"}
    put(tmp_path / "jobs/aioflow.toml", "files = 1")
    refusal = choose(tmp_path, file="jobs/etl.py").refusal
    assert refusal is not None
    assert refusal.reason == "files"
    assert refusal.message.startswith("jobs/aioflow.toml is not understood: files is a list")


def test_a_folder_with_ten_thousand_files_yields_only_those_that_are_named(tmp_path):
    for number in range(10_000):
        (tmp_path / f"{number}.csv").touch()
    put(tmp_path / "query.sql", "select 1")
    choice = choose(tmp_path, DataFiles(named=("query.sql",)))

    assert set(choice.digests) == {"query.sql"}
    [said] = choice.said
    assert said.reason == "odd.file"
    assert "10001 files" in said.message
    assert "500" in said.message


def test_more_bytes_than_a_version_has_are_not_taken_by_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(beside_module, "BYTES_AT_MOST", 1_000)
    put(tmp_path / "a.txt", "x" * 700)
    put(tmp_path / "b.txt", "x" * 700)

    choice = choose(tmp_path, DataFiles(named=("b.txt",)))
    assert set(choice.digests) == {"b.txt"}
    assert "1,400 bytes" in choice.said[0].message
    refused = choose(tmp_path, DataFiles(patterns=("*.txt",))).refusal
    assert refused is not None
    assert "b.txt" in refused.message


def test_a_huge_file_is_not_read_and_that_is_said(tmp_path):
    with (tmp_path / "huge.csv").open("wb") as file:
        file.truncate(50 * 1024**3)  # sparse

    choice = choose(tmp_path, DataFiles(paths={"huge.csv": 7}))
    assert choice.digests == {}
    [said] = choice.said
    assert said.line == 7
    assert "huge.csv is larger than 1 MiB" in said.message
    refused = choose(tmp_path, DataFiles(patterns=("*.csv",))).refusal
    assert refused is not None
    assert refused.reason == "files"


def test_a_path_that_no_task_will_find_is_said(tmp_path):
    put(tmp_path.parent / "outside.sql", "select 1")
    choice = choose(tmp_path, DataFiles(paths={"missing.sql": 3, "../outside.sql": 4}))

    assert [(said.line, said.message.partition(":")[0]) for said in choice.said] == [
        (3, "no file is at missing.sql"),
        (4, "../outside.sql is outside of the DAG folder"),
    ]


def test_a_binary_file_is_taken_if_it_is_named(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"\0\1\2")

    assert names(tmp_path) == set()
    assert names(tmp_path, DataFiles(named=("model.bin",))) == {"model.bin"}


def test_a_link_out_of_the_folder_is_taken_only_if_it_is_named(tmp_path):
    dags, secret = tmp_path / "dags", tmp_path / "secret.txt"
    secret.write_text("secret")
    release = dags / ".release"
    put(release / "cfg.json", "{}")
    (dags / "cfg.json").symlink_to(release / "cfg.json")
    (dags / "secret.txt").symlink_to(secret)
    (dags / "gone.txt").symlink_to(tmp_path / "nowhere")
    (dags / "self.txt").symlink_to(dags / "self.txt")
    (dags / "loop").symlink_to(dags)

    assert names(dags, DataFiles(named=("loop",))) >= {"cfg.json"}
    assert "secret.txt" not in names(dags)
    assert names(dags, DataFiles(named=("secret.txt",))) == {"cfg.json", "secret.txt"}


def test_a_file_that_changes_while_it_is_read_is_as_it_was_read(tmp_path, monkeypatch):
    put(tmp_path / "query.sql", "select 1")
    files, asked = FilesBeside(), DataFileUse(tmp_path, DataFiles(), frozenset({"etl.py"}))
    before = files.look({"etl.py": asked})["etl.py"]
    stamp = (tmp_path / "query.sql").stat()
    (tmp_path / "query.sql").write_text("select 2")  # within one tick: its stamp stays
    os.utime(tmp_path / "query.sql", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    taken = files.take("etl.py", asked, as_it_is=False)

    assert taken is not None
    assert taken.sources == {"query.sql": b"select 2"}
    assert taken.choice.differs(before)
    assert not files.look({"etl.py": asked})["etl.py"].differs(taken.choice)
    (tmp_path / "query.sql").write_bytes(b"x" * (FILE_LIMIT_BYTES + 1))
    assert data_files.read_file(tmp_path / "query.sql") is None


def test_a_file_that_changed_after_the_import_read_it_is_not_taken(tmp_path):
    put(tmp_path / "cfg.json", "{}")
    status = (tmp_path / "cfg.json").stat()
    stamp = (status.st_mtime_ns - 1, status.st_size, status.st_ino)
    read: dict[str, tuple[int, ...]] = {"cfg.json": stamp}
    asked = DataFileUse(tmp_path, DataFiles(opened=read), frozenset({"etl.py"}))

    assert FilesBeside().take("etl.py", asked, as_it_is=False) is None
    taken = FilesBeside().take("etl.py", asked, as_it_is=True)
    assert taken is not None
    assert set(taken.sources) == {"cfg.json"}


def test_constantly_written_files_create_a_limited_number_of_versions_an_hour():
    allowance = VersionQuota(SystemClock())
    given = [allowance.take("etl.py") for _ in range(VERSIONS_AN_HOUR + 5)]

    assert given.count(True) == VERSIONS_AN_HOUR
    assert allowance.take("other.py")
