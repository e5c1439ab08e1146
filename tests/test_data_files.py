"""The catalog creates another version when a file changes that belongs to a DAG file."""

from __future__ import annotations

from functools import partial

import pytest

from aioflow import catalog as catalog_module
from aioflow.catalog import ParsePace, parse_queue, snapshot
from aioflow.catalog.snapshot import version_of
from aioflow.protocol.inputs import FileBroken, FileParsed
from tests.executors.processes import until
from tests.test_catalog import DAG, GOOD, watched

pytestmark = pytest.mark.process

READS = "from pathlib import Path\nSQL = (Path(__file__).parent / 'query.sql').read_text()\n" + GOOD
NAMES = "from pathlib import Path\nSQL = Path(__file__).parent / 'sql' / 'query.sql'\n" + GOOD


async def test_files_beside_a_dag_file_are_in_its_snapshot_and_a_change_is_another_version(
    tmp_path,
):
    files = {"good.py": NAMES, "sql/query.sql": "select 1", "cfg.json": "{}", "alone/a.py": GOOD}
    async with watched(tmp_path, files) as it:
        first = {report.file: report for report in it.reports}["good.py"]
        assert set(first.sources) == {"good.py", "sql/query.sql", "cfg.json"}
        it.write("sql/query.sql", "select 2")
        again = await it.reported(3)

    assert again.file == "good.py"
    assert again.version != first.version
    assert (it.code / first.version / "sql" / "query.sql").read_text() == "select 1"
    assert (it.code / again.version / "sql" / "query.sql").read_text() == "select 2"
    assert (it.code / again.version / "cfg.json").read_text() == "{}"


async def test_a_file_that_only_lies_there_counts_too_when_it_comes_changes_and_goes(tmp_path):
    async with watched(tmp_path, {"good.py": GOOD}, pace=ParsePace(look_seconds=0.05)) as it:
        versions = [it.reports[0].version]
        for text in ("1", "2", None):
            if text is None:
                (it.folder / "cfg.json").unlink()
            else:
                it.write("cfg.json", text)
            versions.append((await it.reported(len(versions) + 1)).version)

    assert len(set(versions)) == 3
    assert versions[0] == versions[-1]


async def test_a_version_without_files_beside_it_is_the_one_it_was_before_there_were_any(tmp_path):
    async with watched(tmp_path, {"good.py": GOOD, "other.py": "import os"}) as it:
        [parsed] = it.reports

    assert set(parsed.sources) == {"good.py"}
    assert parsed.version == version_of("good.py", {"good.py": GOOD.encode()})


async def test_a_file_that_importing_reads_and_that_is_missing_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(parse_queue, "RETRY_SECONDS", 600.0)
    async with watched(tmp_path, {"good.py": READS}, pace=ParsePace(look_seconds=0.05)) as it:
        assert isinstance(it.reports[0], FileBroken)
        it.write("query.sql", "select 1")
        parsed = await it.reported(2)

    assert isinstance(parsed, FileParsed)
    assert set(parsed.sources) == {"good.py", "query.sql"}


async def test_folders_listed_by_an_import_are_checked_for_new_files(tmp_path):
    source = (
        "import os, tomllib\nfrom pathlib import Path\nfrom aioflow import dag, task\n"
        "@task\ndef say() -> int:\n    return 1\n"
        "for path in sorted((Path(__file__).parent / ('conf' + 'igs')).glob('*.toml')):\n"
        "    @dag(path.stem)\n    def made() -> None:\n        say()\n"
    )
    async with watched(
        tmp_path, {"many.py": source, "configs/one.toml": ""}, pace=ParsePace(look_seconds=0.05)
    ) as it:
        assert [dag.dag_id for dag in it.reports[0].dags] == ["one"]
        it.write("configs/two.toml", "")
        again = await it.reported(2)

    assert [dag.dag_id for dag in again.dags] == ["one", "two"]
    assert set(again.sources) == {"many.py", "configs/one.toml", "configs/two.toml"}


async def test_files_that_a_line_names_beyond_the_limits_leave_the_last_good_version(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(catalog_module, "WRITING_SECONDS", 0.0)
    line = '# aioflow: files = ["data/*"]\n'
    async with watched(tmp_path, {"good.py": GOOD, "data/huge.bin": "x" * 2_000_000}) as it:
        it.write("good.py", line + GOOD)
        refused = await it.reported(2)
        assert isinstance(refused, FileBroken)
        assert refused.reason == "files"
        assert "data/huge.bin" in refused.message
        it.write("data/huge.bin", "small")
        parsed = await it.reported(3)

    assert set(parsed.sources) == {"good.py", "data/huge.bin"}


async def test_a_line_that_cannot_be_parsed_is_reported(tmp_path):
    async with watched(tmp_path, {"good.py": "# aioflow: files = [3]\n" + GOOD}) as it:
        [refused] = it.reports

    assert isinstance(refused, FileBroken)
    assert refused.reason == "files"


@pytest.mark.nightly
async def test_constantly_written_files_do_not_create_endless_versions(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(snapshot, "VERSIONS_AN_HOUR", 3)
    files = {"good.py": GOOD, "named.py": DAG.format(name="named", value=2)}
    files["named.py"] += "NAME = 'lines.csv'\n"
    async with watched(tmp_path, files, pace=ParsePace(look_seconds=0.02)) as it:

        def has_read(content: bytes) -> bool:
            named = [report for report in it.reports if report.file == "named.py"]
            return any(report.sources.get("lines.csv") == content for report in named)

        number = 0
        while "within an hour" not in caplog.text:  # good.py may have missed one of them
            number += 1
            it.write("lines.csv", f"{number}\n")
            await until(partial(has_read, f"{number}\n".encode()))

    assert len([report for report in it.reports if report.file == "good.py"]) == 1 + 3
