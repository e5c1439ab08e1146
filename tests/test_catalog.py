"""The catalog reports the content of the DAG folders to the engine, whatever the files do."""

from __future__ import annotations

import errno
import os
import resource
import signal
from contextlib import asynccontextmanager, contextmanager

import anyio
import msgspec
import pytest

from aioflow import catalog as catalog_module
from aioflow.catalog import Catalog, Limits, ParsePace, folder_scan, parse, parse_queue
from aioflow.catalog.folder_scan import scan
from aioflow.catalog.snapshot import Snapshots, version_of, write_snapshot
from aioflow.clock import SystemClock
from aioflow.filesystem import find_writable
from aioflow.model.rows import DagFileRow
from aioflow.processes import Children
from aioflow.protocol.inputs import FileBroken, FileDeleted, FileParsed
from benchmarks.daemon import put
from tests.executors.processes import is_alive, running, until

pytestmark = pytest.mark.process

DAG = """
from aioflow import dag, task

@task
def say() -> int:
    return {value}

@dag
def {name}() -> None:
    say()
"""

GOOD = DAG.format(name="good", value=1)


class Watched:
    """A catalog over a folder, and its reports."""

    def __init__(self, home, **options):
        self.folder = home / "dags"
        self.folder.mkdir(exist_ok=True)
        self.code = home / "code"
        self.reports = []
        self.children = Children(home)
        self.catalog = Catalog(
            [self.folder],
            Snapshots(self.code),
            self.children,
            self.reports.extend,
            SystemClock(),
            **options,
        )

    def write(self, name, text):
        put(self.folder / name, text)

    async def swept(self):
        with anyio.fail_after(60):
            await self.catalog.first_sweep_done.wait()

    async def reported(self, count):
        await until(lambda: len(self.reports) >= count)
        return self.reports[count - 1]


@asynccontextmanager
async def watched(home, files, **options):
    it = Watched(home, **options)
    for name, text in files.items():
        it.write(name, text)
    async with running(it.children, it.catalog):
        await it.swept()
        yield it


async def test_a_dag_file_becomes_a_version_with_a_snapshot(tmp_path):
    async with watched(tmp_path, {"good.py": GOOD}) as it:
        [parsed] = it.reports

    assert isinstance(parsed, FileParsed)
    assert [dag.dag_id for dag in parsed.dags] == ["good"]
    assert parsed.sources == {"good.py": GOOD.encode()}
    assert (it.code / parsed.version / "good.py").read_text() == GOOD
    assert len(list(it.code.iterdir())) == 1


async def test_modules_and_hidden_files_are_no_dag_files(tmp_path):
    files = {
        "plain.py": "import sys; sys.exit(1)",
        ".hidden.py": GOOD,
        ".git/hook.py": GOOD,
        "__pycache__/old.py": GOOD,
        "notes.txt": "aioflow",
        "uses.py": "from aioflow import task",
    }
    async with watched(tmp_path, files) as it:
        assert it.reports == []


async def test_a_changed_file_is_parsed_again_and_an_unchanged_one_is_not(tmp_path):
    async with watched(tmp_path, {"a.py": GOOD, "b.py": DAG.format(name="b", value=1)}) as it:
        first = {report.file: report.version for report in it.reports}
        it.write("a.py", DAG.format(name="good", value=2))
        again = await it.reported(3)
        assert again.file == "a.py"
        assert again.version != first["a.py"]
        os.utime(it.folder / "b.py")  # touched, not changed
        it.write("c.py", DAG.format(name="c", value=1))
        assert (await it.reported(4)).file == "c.py"
        assert len(it.reports) == 4


async def test_a_changed_module_parses_those_that_import_it_again(tmp_path):
    importer = "from lib.amount import VALUE\n" + GOOD
    files = {"lib/amount.py": "VALUE = 1", "a.py": importer, "b.py": DAG.format(name="b", value=1)}
    async with watched(tmp_path, files) as it:
        first = next(report for report in it.reports if report.file == "a.py")
        assert set(first.sources) == {"a.py", "lib/amount.py"}
        it.write("lib/amount.py", "VALUE = 2")
        again = await it.reported(3)

    assert again.file == "a.py"
    assert again.version != first.version
    assert (it.code / again.version / "lib" / "amount.py").read_text() == "VALUE = 2"


async def test_a_deleted_file_is_gone(tmp_path):
    async with watched(tmp_path, {"a.py": GOOD}) as it:
        (it.folder / "a.py").unlink()
        assert await it.reported(2) == FileDeleted("a.py")


async def test_a_file_deleted_between_two_polls_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog_module, "WRITING_SECONDS", 0.0)
    known = [DagFileRow(file="old.py", version="v"), DagFileRow(file="now.py", version="w")]
    async with watched(tmp_path, {"now.py": "# no aioflow here"}, known=known) as it:
        assert sorted(report.file for report in it.reports) == ["now.py", "old.py"]
        assert all(isinstance(report, FileDeleted) for report in it.reports)


async def test_without_inotify_the_sweep_finds_changes(tmp_path, monkeypatch):
    async def deaf(*_):
        await anyio.sleep_forever()

    monkeypatch.setattr(catalog_module, "watch_folders", deaf)
    async with watched(tmp_path, {"a.py": GOOD}, pace=ParsePace(look_seconds=0.05)) as it:
        it.write("b.py", DAG.format(name="b", value=1))
        assert (await it.reported(2)).file == "b.py"


# ── bad files ───────────────────────────────────────────────────────────────────────────

BAD = {
    "descriptors": "import os, aioflow\nos.closerange(3, 4096)",
    "exit": "import sys, aioflow\nsys.exit(3)",
    "hard_exit": "import os, aioflow\nos._exit(3)",
    "syntax": "import aioflow\ndef broken(:",
    "memory": "import aioflow\nhoard = bytearray(10_000_000_000)",
    "output": "import aioflow\nfor _ in range(1000): print('x' * 1_000_000)",
    "crash": "import aioflow, os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "raises": "import aioflow\nraise RuntimeError('no beans')",
    "missing": "import aioflow\nimport no_such_module_of_mine",
}


ENDLESS = {
    "sleeps": "import time, aioflow\ntime.sleep(1000)",
    "spins": "import aioflow\nwhile True: pass",
}


@pytest.mark.parametrize("endless", ENDLESS.values(), ids=ENDLESS)
async def test_a_file_that_does_not_end_is_ended(tmp_path, endless):
    async with watched(tmp_path, {"loop.py": endless}, limits=Limits(wall_seconds=1)) as it:
        assert [report.reason for report in it.reports] == ["timeout"]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="all-end"),
        pytest.param({"loop": ENDLESS["sleeps"]}, id="one-sleeps", marks=pytest.mark.nightly),
        pytest.param({"loop": ENDLESS["spins"]}, id="one-spins", marks=pytest.mark.nightly),
    ],
)
async def test_bad_files_are_distinguished_and_harm_no_other(tmp_path, more):
    files = {f"{name}.py": text for name, text in (BAD | more).items()} | {"good.py": GOOD}
    async with watched(tmp_path, files, limits=Limits(wall_seconds=10)) as it:
        reasons = {r.file: r.reason for r in it.reports if isinstance(r, FileBroken)}
        good = [report for report in it.reports if isinstance(report, FileParsed)]

    assert [report.file for report in good] == ["good.py"]
    assert reasons == dict.fromkeys((f"{name}.py" for name in more), "timeout") | {
        "descriptors.py": "descriptors",
        "exit.py": "exit",
        "hard_exit.py": "exit",
        "syntax.py": "syntax_error",
        "memory.py": "memory",
        "output.py": "output",
        "crash.py": "crashed",
        "raises.py": "raised",
        "missing.py": "import_error",
    }


@pytest.mark.parametrize(
    ("reason", "deed"),
    [
        pytest.param("output", "while True: print('x' * 1_000_000)", id="output"),
        pytest.param("timeout", "child.wait()", id="timeout", marks=pytest.mark.nightly),
    ],
)
async def test_processes_started_by_a_parser_do_not_outlive_it(tmp_path, reason, deed):
    where = tmp_path / "offspring"
    source = f"""
import aioflow, os, subprocess
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
open({str(where)!r}, "w").write(str(child.pid))
{deed}
"""
    async with watched(tmp_path, {"a.py": source}, limits=Limits(wall_seconds=10)) as it:
        [broken] = it.reports
        assert broken.reason == reason
        assert not is_alive(int(where.read_text()))


@pytest.mark.nightly
@pytest.mark.parametrize("end", ["raise RuntimeError", "import not_there_at_all"])
async def test_a_bad_file_that_stays_as_it_is_is_not_parsed_again(tmp_path, end):
    count = tmp_path / "count"
    source = f"import aioflow\nopen({str(count)!r}, 'a').write('x')\n{end}"
    async with watched(tmp_path, {"bad.py": source}, pace=ParsePace(look_seconds=0.02)) as it:
        for number in range(3):
            it.write("other.py", DAG.format(name="good", value=number))
            await it.reported(2 + number)

    assert count.read_text() == "x"


async def test_mending_a_file_tells_the_engine(tmp_path):
    async with watched(tmp_path, {"a.py": BAD["syntax"]}) as it:
        assert isinstance(it.reports[0], FileBroken)
        assert "line 2" in it.reports[0].message
        it.write("a.py", GOOD)
        assert isinstance(await it.reported(2), FileParsed)


async def test_a_file_whose_module_was_missing_is_parsed_when_that_comes(tmp_path):
    async with watched(tmp_path, {"a.py": "from late import VALUE\n" + GOOD}) as it:
        assert it.reports[0].reason == "import_error"
        it.write("late.py", "VALUE = 1")
        assert isinstance(await it.reported(2), FileParsed)


async def test_a_file_whose_dags_were_taken_out_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog_module, "WRITING_SECONDS", 2.0)
    async with watched(tmp_path, {"a.py": GOOD}, pace=ParsePace(pause_seconds=0)) as it:
        version = it.reports[0].version
        it.write("a.py", "from aioflow import task")
        assert await it.reported(2) == FileDeleted("a.py")
        assert await it.catalog._snapshots.discard([version], lambda _: False) == 1


async def test_a_file_that_is_deleted_before_it_could_be_stored_is_forgotten(tmp_path, monkeypatch):
    async def full(*_):
        raise OSError(errno.ENOSPC, "no room")

    it = Watched(tmp_path)
    monkeypatch.setattr(it.catalog._snapshots, "keep", full)
    it.write("a.py", GOOD)
    async with running(it.children, it.catalog):
        await until(lambda: "a.py" in it.catalog._unsettled)
        (it.folder / "a.py").unlink()
        await until(lambda: not it.catalog._unsettled)

        assert it.reports == []


@pytest.mark.nightly
async def test_a_file_that_gives_nothing_is_tried_again_ever_less_often(tmp_path, monkeypatch):
    monkeypatch.setattr(parse_queue, "RETRY_SECONDS", 0.2)
    came = tmp_path / "came"
    source = f"import os\nif not os.path.exists({str(came)!r}): raise RuntimeError\n" + GOOD
    async with watched(tmp_path, {"a.py": source}) as it:
        assert it.reports[0].reason == "raised"
        came.touch()
        assert isinstance(await it.reported(2), FileParsed)


def test_a_file_that_yields_nothing_is_skipped_for_ten_times_the_length_of_a_parse():
    pace = ParsePace(look_seconds=7.0)
    ended = parse_queue.ParseResult({}, reason="timeout", times=1, seconds=30.0)

    assert parse_queue.retry_delay_seconds(ended, pace) == 300.0
    assert parse_queue.retry_delay_seconds(msgspec.structs.replace(ended, times=2), pace) == 600.0
    assert parse_queue.retry_delay_seconds(msgspec.structs.replace(ended, times=20), pace) == 3600.0
    assert (
        parse_queue.retry_delay_seconds(msgspec.structs.replace(ended, seconds=1000.0), pace)
        == 10_000.0
    )
    assert (
        parse_queue.retry_delay_seconds(msgspec.structs.replace(ended, seconds=0.1), pace) == 30.0
    )
    assert (
        parse_queue.retry_delay_seconds(
            parse_queue.ParseResult({}, reason="killed", times=1, seconds=0.1), pace
        )
        == 2.0
    )
    assert (
        parse_queue.retry_delay_seconds(
            parse_queue.ParseResult({}, reason="writable", times=9, seconds=9.0), pace
        )
        == 7.0
    )


async def test_a_file_that_does_not_end_is_left_alone_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(parse_queue, "RETRY_SECONDS", 0.1)
    limits = Limits(wall_seconds=1)
    async with watched(tmp_path, {"loop.py": ENDLESS["sleeps"]}, limits=limits) as it:
        left_us = it.catalog._again["loop.py"] - SystemClock().monotonic_us()

    assert 5e6 < left_us <= 60e6


@pytest.mark.nightly
async def test_a_file_that_is_saved_all_the_time_is_parsed_now_and_then(tmp_path, monkeypatch):
    pause_seconds, begun = 0.5, []
    async with watched(tmp_path, {"a.py": GOOD}, pace=ParsePace(pause_seconds=pause_seconds)) as it:
        parse = it.catalog.parser.parse

        async def counted(folder, file, interpreter):
            begun.append(anyio.current_time())
            return await parse(folder, file, interpreter)

        monkeypatch.setattr(it.catalog.parser, "parse", counted)
        for value in range(60):
            it.write("a.py", DAG.format(name="good", value=value))
            await anyio.sleep(0.05)
        last = DAG.format(name="good", value=59).encode()
        await until(lambda: it.reports[-1].sources["a.py"] == last)

    # A file that changes between a scan and its parse is parsed once more at once.
    assert len(begun) <= 2 * ((begun[-1] - begun[0]) / pause_seconds + 2)
    assert len(begun) >= 2


async def test_a_module_that_takes_the_place_of_another_parses_those_that_named_it(tmp_path):
    source = "try:\n    from extra import VALUE\nexcept ImportError:\n    VALUE = 0\n" + GOOD
    async with watched(tmp_path, {"a.py": source}) as it:
        assert set(it.reports[0].sources) == {"a.py"}
        it.write("extra.py", "VALUE = 1")
        again = await it.reported(2)

    assert set(again.sources) == {"a.py", "extra.py"}


async def test_a_module_that_comes_while_a_file_is_parsed_is_in_its_snapshot(tmp_path):
    maker = """
from pathlib import Path
Path(__file__).with_name("made.py").write_text("VALUE = 1")
import importlib
importlib.invalidate_caches()
from made import VALUE
"""
    async with watched(tmp_path, {"a.py": maker + GOOD}) as it:
        await it.reported(1)
        parsed = it.reports[0]

    assert isinstance(parsed, FileParsed)
    assert set(parsed.sources) == {"a.py", "made.py"}


async def test_a_file_that_is_too_large_is_reported_and_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_scan, "FILE_LIMIT_BYTES", 1000)
    async with watched(tmp_path, {"a.py": GOOD + "#" * 1000, "b.py": GOOD}) as it:
        reports = {report.file: report for report in it.reports}

    assert reports["a.py"].reason == "too_large"
    assert isinstance(reports["b.py"], FileParsed)


async def test_a_file_with_a_module_that_is_too_large_is_not_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_scan, "FILE_LIMIT_BYTES", 1000)
    large = "VALUE = 1" + "#" * 1000
    async with watched(
        tmp_path, {"a.py": "from large import VALUE\n" + GOOD, "large.py": large}
    ) as it:
        assert it.reports[0].reason == "too_large"
        assert not it.catalog._again


async def test_a_file_that_every_user_may_write_is_not_loaded_until_that_is_mended(tmp_path):
    proof = tmp_path / "ran"
    async with watched(tmp_path, {"a.py": GOOD}, pace=ParsePace(look_seconds=0.05)) as it:
        made = tmp_path / "b.py"
        made.write_text(f"open({str(proof)!r}, 'w')\n" + DAG.format(name="b", value=1))
        made.chmod(0o646)
        made.rename(it.folder / "b.py")
        refused = await it.reported(2)
        was_run = proof.exists()
        (it.folder / "b.py").chmod(0o644)
        mended = await it.reported(3)

    assert (refused.file, refused.reason, was_run) == ("b.py", "writable", False)
    assert f"chmod o-w {it.folder / 'b.py'}" in refused.message
    assert isinstance(mended, FileParsed)


async def test_a_file_whose_module_every_user_may_write_is_not_loaded(tmp_path):
    it = Watched(tmp_path)
    it.write("a.py", "from helper import VALUE\n" + GOOD)
    it.write("helper.py", "VALUE = 1")
    (it.folder / "helper.py").chmod(0o666)
    async with running(it.children, it.catalog):
        refused = await it.reported(1)

    assert (refused.file, refused.reason) == ("a.py", "writable")
    assert f"chmod o-w {it.folder / 'helper.py'}" in refused.message


async def test_a_snapshot_is_for_its_owner_to_write_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        write_snapshot(tmp_path, "0123", {"team/a.py": b"", "b.py": b""})
    finally:
        os.umask(before)

    assert find_writable([*(tmp_path / "0123").rglob("*"), tmp_path / "0123"]) == []


@pytest.mark.parametrize("half", [GOOD[:-20] + "(", "from aioflow import dag, task\n", ""])
async def test_half_of_a_file_that_was_good_is_not_told(tmp_path, monkeypatch, half):
    monkeypatch.setattr(catalog_module, "WRITING_SECONDS", 60.0)
    async with watched(tmp_path, {"a.py": GOOD}) as it:
        it.write("a.py", half)
        it.write("b.py", DAG.format(name="b", value=1))
        assert (await it.reported(2)).file == "b.py"
        it.write("a.py", DAG.format(name="good", value=2))
        assert isinstance(await it.reported(3), FileParsed)


async def test_persistent_errors_are_reported_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog_module, "WRITING_SECONDS", 0.2)
    async with watched(tmp_path, {"a.py": GOOD}) as it:
        it.write("a.py", BAD["syntax"])
        assert (await it.reported(2)).reason == "syntax_error"


async def test_files_that_never_end_hold_up_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(parse_queue, "QUICK_SECONDS", 5.0)
    async with watched(tmp_path, {"z.py": GOOD}) as it:
        for number in range(8):
            it.write(f"{number}.py", ENDLESS["sleeps"])
        await until(lambda: len(it.catalog._queue.files) == 8)
        it.write("z.py", DAG.format(name="good", value=2))
        assert (await it.reported(2)).file == "z.py"


async def test_a_file_that_replaces_what_all_share_is_not_let_in(tmp_path):
    source = "import json\njson.dumps = len\n" + GOOD
    async with watched(tmp_path, {"a.py": source}) as it:
        [broken] = it.reports

    assert broken.reason == "patched"
    assert "json.dumps" in broken.message


async def test_a_file_that_sets_the_time_zone_as_it_is_changes_nothing(tmp_path):
    async with watched(tmp_path, {"a.py": "import time\ntime.tzset()\n" + GOOD}) as it:
        [parsed] = it.reports

    assert isinstance(parsed, FileParsed)


async def test_a_file_that_sets_another_time_zone_is_not_let_in(tmp_path):
    source = "import os, time\nos.environ['TZ'] = 'XYZ-5'\ntime.tzset()\n" + GOOD
    async with watched(tmp_path, {"a.py": source}) as it:
        [broken] = it.reports

    assert broken.reason == "patched"
    assert "time.tzname" in broken.message


async def test_a_file_that_prints_while_it_starts_too_many_processes_is_killed_too(tmp_path):
    source = (
        "import aioflow, os, time\n"
        "for _ in range(7): os.fork()\n"
        "for _ in range(2000): print('.', flush=True); time.sleep(0.01)\n"
    )
    limits = Limits(processes=20, wall_seconds=10.0)
    async with watched(tmp_path, {"a.py": source}, limits=limits) as it:
        [broken] = it.reports

    assert broken.reason == "processes"


async def test_a_file_that_starts_too_many_processes_is_killed_with_them(tmp_path):
    source = "import aioflow, os, time\nfor _ in range(7): os.fork()\ntime.sleep(100)"
    async with watched(tmp_path, {"a.py": source}, limits=Limits(processes=20)) as it:
        [broken] = it.reports

    assert broken.reason == "processes"


async def test_a_dag_whose_file_leaves_a_process_is_active_and_told(tmp_path):
    source = "import subprocess\nsubprocess.Popen(['sleep', '1000'])\n" + GOOD
    async with watched(tmp_path, {"a.py": source}) as it:
        [parsed] = it.reports

    assert [dag.dag_id for dag in parsed.dags] == ["good"]
    assert [failure.reason for failure in parsed.failures] == ["processes"]


async def test_while_no_process_can_be_started_files_wait(tmp_path):
    it = Watched(tmp_path, pace=ParsePace(look_seconds=0.1))
    it.write("a.py", GOOD)
    program, it.children._program = it.children._program, ("/there/is/no/such/program",)
    async with running(it.children, it.catalog):
        await until(lambda: "a.py" in it.catalog._again)
        assert it.reports == []
        assert not it.catalog.first_sweep_done.is_set()
        it.children._program = program
        assert isinstance(await it.reported(1), FileParsed)


async def test_while_nothing_can_be_forked_files_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(parse, "IDLE_SECONDS", 60.0)
    pid = tmp_path / "pid"
    tells = f"import os\nopen({str(pid)!r}, 'w').write(str(os.getppid()))\n"
    async with watched(tmp_path, {"a.py": tells + GOOD}, pace=ParsePace(look_seconds=0.1)) as it:
        forker = int(pid.read_text())
        limits = resource.prlimit(forker, resource.RLIMIT_NOFILE)
        resource.prlimit(forker, resource.RLIMIT_NOFILE, (3, limits[1]))
        it.write("b.py", DAG.format(name="b", value=1))
        await until(lambda: "b.py" in it.catalog._again)
        assert len(it.reports) == 1
        resource.prlimit(forker, resource.RLIMIT_NOFILE, limits)
        assert isinstance(await it.reported(2), FileParsed)


@pytest.mark.nightly
async def test_a_parser_that_is_killed_is_no_word_about_a_good_file(tmp_path):
    pid = tmp_path / "pid"
    tells = f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getppid()))\ntime.sleep(1)\n"
    async with watched(tmp_path, {"a.py": GOOD}) as it:
        it.write("a.py", tells + DAG.format(name="good", value=2))
        await until(pid.exists)
        await until(lambda: pid.read_text() != "")
        os.kill(int(pid.read_text()), signal.SIGKILL)
        again = await it.reported(2)

    assert isinstance(again, FileParsed)


# ── files that are left out ─────────────────────────────────────────────────────────────


async def test_ignored_files_are_no_dag_files_but_may_be_imported(tmp_path):
    it = Watched(tmp_path)
    it.write(".aioflowignore", "drafts/\nlib_*.py\n!lib_kept.py\n")
    it.write("lib_amount.py", "VALUE = 1\n" + DAG.format(name="never", value=1))
    it.write("lib_kept.py", DAG.format(name="kept", value=1))
    it.write("drafts/draft.py", DAG.format(name="draft", value=1))
    it.write("a.py", "from lib_amount import VALUE\nimport drafts.draft\n" + GOOD)
    async with running(it.children, it.catalog):
        await it.swept()
        parsed = {report.file: report for report in it.reports}
        assert set(parsed) == {"a.py", "lib_kept.py"}
        assert set(parsed["a.py"].sources) == {"a.py", "lib_amount.py", "drafts/draft.py"}
        it.write(".aioflowignore", "lib_*.py\n")
        await until(lambda: {"drafts/draft.py", "lib_kept.py"} <= {r.file for r in it.reports[2:]})

    assert [report for report in it.reports[2:] if report.file == "lib_kept.py"] == [
        FileDeleted("lib_kept.py")
    ]


async def test_a_file_that_is_ignored_while_it_waits_is_not_parsed(tmp_path):
    it = Watched(tmp_path)
    it.write("a.py", GOOD)
    it.write(".aioflowignore", "a.py\n")
    it.catalog._files = scan([it.folder], {}).files

    assert (await it.catalog._parse("a.py")).parsed is None


def held(home):
    """Return the file that a parse creates, the file it waits for, and the code that does so."""
    began, go = home / "began", home / "go"
    waits = (
        f"import os, time\nopen({str(began)!r}, 'w').close()\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    )
    return began, go, waits


async def test_a_file_that_is_ignored_while_it_is_parsed_is_not_told(tmp_path):
    began, go, waits = held(tmp_path)
    it = Watched(tmp_path)
    it.write("a.py", waits + GOOD)
    async with running(it.children, it.catalog):
        await until(began.exists)
        it.write(".aioflowignore", "a.py\n")
        await until(lambda: it.catalog._files["a.py"].is_ignored)
        go.touch()
        await it.swept()
        await until(lambda: not it.catalog._queue.files)

        assert it.reports == []
        assert not it.catalog._known


async def test_a_file_that_goes_while_it_is_parsed_is_not_told(tmp_path):
    began, go, waits = held(tmp_path)
    it = Watched(tmp_path)
    it.write("a.py", waits + "raise ValueError\n# aioflow")
    async with running(it.children, it.catalog):
        await until(began.exists)
        (it.folder / "a.py").unlink()
        await until(lambda: not it.catalog._files)
        go.touch()
        await it.swept()
        await until(lambda: not it.catalog._queue.files)

        assert it.reports == []
        assert not it.catalog._again


def test_patterns_of_a_deeper_folder_have_the_last_word(tmp_path):
    (tmp_path / "team" / "old").mkdir(parents=True)
    (tmp_path / ".aioflowignore").write_text("*_old.py\n/top.py\n")
    (tmp_path / "team" / ".aioflowignore").write_text("!kept_old.py\n/old/\n# nothing\n\n")
    for name in ("top.py", "a_old.py", "team/top.py", "team/kept_old.py", "team/b_old.py"):
        (tmp_path / name).write_text("aioflow")
    (tmp_path / "team" / "old" / "x.py").write_text("aioflow")

    files = scan([tmp_path], {}).files

    assert {name for name, seen in files.items() if not seen.is_ignored} == {
        "team/kept_old.py",
        "team/top.py",
    }
    assert "team/old/x.py" not in files


# ── versions ────────────────────────────────────────────────────────────────────────────


def test_a_version_is_its_content_and_paths():
    base = version_of("a.py", {"a.py": b"1", "b.py": b"2"})

    assert base == version_of("a.py", {"b.py": b"2", "a.py": b"1"})
    assert base != version_of("a.py", {"a.py": b"1", "b.py": b"2"}, "default_tries=1")
    assert base != version_of("b.py", {"a.py": b"1", "b.py": b"2"})
    assert base != version_of("a.py", {"a.py": b"1", "c.py": b"2"})
    assert base != version_of("a.py", {"a.py": b"1b.py", "": b"2"})
    assert base != version_of("a.py", {"a.py": b"1", "b.py": b"3"})


def test_an_existing_snapshot_is_not_replaced(tmp_path):
    write_snapshot(tmp_path, "v", {"lib/a.py": b"first"})
    write_snapshot(tmp_path, "v", {"lib/a.py": b"second"})

    assert (tmp_path / "v" / "lib" / "a.py").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["v"]


def test_a_damaged_snapshot_stays_until_it_is_made_again(tmp_path, monkeypatch):
    sources = {"a.py": b"1", "b.py": b"2"}
    write_snapshot(tmp_path, "v", sources)
    (tmp_path / "v" / "b.py").unlink()

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", no_room_on_the_disk)
        with pytest.raises(OSError, match="No space left"):
            write_snapshot(tmp_path, "v", sources)
    assert [path.name for path in (tmp_path / "v").iterdir()] == ["a.py"]

    assert write_snapshot(tmp_path, "v", sources)
    assert (tmp_path / "v" / "b.py").read_bytes() == b"2"
    assert [path.name for path in tmp_path.iterdir()] == ["v"]


def no_room_on_the_disk(descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_missing_snapshot_is_restored_once(tmp_path):
    snapshots = Snapshots(tmp_path)

    assert await snapshots.restore("v", {"a.py": b"x"})
    assert not await snapshots.restore("v", {"a.py": b"x"})
    assert (tmp_path / "v" / "a.py").read_bytes() == b"x"


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").write_text("aioflow")
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a")

    assert list(scan([tmp_path], {}).files) == ["a/x.py"]


def test_folders_that_link_to_each_other_are_entered_under_either_name_and_end(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text("aioflow")
        (tmp_path / name / f"to_{other}").symlink_to(tmp_path / other)

    found = scan([tmp_path], {})

    assert list(found.files) == ["a/a.py", "a/to_b/b.py", "b/b.py", "b/to_a/a.py"]


def test_the_first_folder_counts_for_two_files_of_one_name(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.py").write_text(name)

    found = scan([tmp_path / "one", tmp_path / "two"], {}).files

    assert found["x.py"].folder == tmp_path / "one"


# ── unreadable files ────────────────────────────────────────────────────────────────────


def make_unreadable(path):
    """Replace a file by a link to itself: it neither exists nor is missing, even for root."""
    loop = path.with_name(f"{path.name}.loop")
    loop.symlink_to(path)
    loop.rename(path)


@contextmanager
def no_descriptors_left():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_everything_stays_as_it_was_seen(tmp_path):
    (tmp_path / "lib").mkdir()
    for name in ("a.py", "lib/b.py"):
        (tmp_path / name).write_text("aioflow")
    before = scan([tmp_path], {}).files
    with no_descriptors_left():
        found = scan([tmp_path], before)

    assert found.files == before
    assert found.hides("lib/c.py")
    assert list(found.causes) == ["Too many open files"]


def test_only_what_lies_below_an_unreadable_place_stays(tmp_path):
    (tmp_path / "lib").mkdir()
    for name in ("a.py", "gone.py", "lib/b.py", "library.py"):
        (tmp_path / name).write_text("aioflow")
    before = scan([tmp_path], {}).files
    for name in ("gone.py", "lib/b.py", "library.py"):
        (tmp_path / name).unlink()
    (tmp_path / "lib").rmdir()
    (tmp_path / "lib").symlink_to("lib")
    found = scan([tmp_path], before)

    assert set(found.files) == {"a.py", "lib/b.py"}
    assert (found.hides("lib/b.py"), found.hides("library.py")) == (True, False)


async def test_an_unreadable_file_is_not_gone_and_is_reported_once(tmp_path, caplog):
    async with watched(tmp_path, {"a.py": GOOD}, pace=ParsePace(look_seconds=0.02)) as it:
        make_unreadable(it.folder / "a.py")
        for number in range(2, 5):  # each is found by a sweep that meets it, too
            it.write(f"{number}.py", DAG.format(name=f"dag{number}", value=1))
            assert (await it.reported(number)).file == f"{number}.py"
        (it.folder / "a.py").unlink()
        assert await it.reported(5) == FileDeleted("a.py")

    told = [record for record in caplog.records if "cannot read" in record.getMessage()]
    assert len(told) == 1


async def test_a_file_that_is_unreadable_since_the_start_is_not_gone(tmp_path):
    it = Watched(tmp_path, known=[DagFileRow(file="lib/old.py", version="v")])
    (it.folder / "lib").symlink_to("lib")
    it.write("a.py", GOOD)
    async with running(it.children, it.catalog):
        await it.swept()
        (it.folder / "lib").unlink()
        assert await it.reported(2) == FileDeleted("lib/old.py")

    assert isinstance(it.reports[0], FileParsed)


# ── links ───────────────────────────────────────────────────────────────────────────────


async def test_names_that_are_not_utf_8_are_reported_once_and_harm_no_other(tmp_path, caplog):
    latin = os.fsdecode("été".encode("latin-1"))
    it = Watched(tmp_path)
    it.write(f"{latin}.py", GOOD)
    it.write(f"{latin}/deep.py", GOOD)
    it.write("good.py", GOOD)

    async with running(it.children, it.catalog):
        await it.swept()
        it.write("good.py", DAG.format(name="good", value=2))
        await it.reported(2)

    assert [report.file for report in it.reports] == ["good.py", "good.py"]
    [said] = [record for record in caplog.records if "cannot read" in record.message]
    assert r"\xe9t\xe9" in said.message
    assert said.message.endswith("a name is not UTF-8")


async def test_links_that_lead_out_of_the_folder_are_what_they_point_to(tmp_path):
    outside, count = tmp_path / "outside", tmp_path / "count"
    (outside / "lib").mkdir(parents=True)
    (outside / "lib" / "amount.py").write_text("VALUE = 1")
    source = f"from lib.amount import VALUE\nopen({str(count)!r}, 'a').write('x')\n{GOOD}"
    (outside / "flow.py").write_text(source)
    it = Watched(tmp_path)
    (it.folder / "lib").symlink_to(outside / "lib")
    (it.folder / "flow.py").symlink_to(outside / "flow.py")
    async with running(it.children, it.catalog):
        await it.swept()
        it.write("other.py", DAG.format(name="other", value=1))
        await it.reported(2)

    parsed = it.reports[0]
    assert [dag.dag_id for dag in parsed.dags] == ["good"]
    assert set(parsed.sources) == {"flow.py", "lib/amount.py"}
    assert (it.code / parsed.version / "lib" / "amount.py").read_text() == "VALUE = 1"
    assert count.read_text() == "x"


async def test_a_change_that_leaves_the_stamp_as_it_was_is_seen_in_the_end(tmp_path):
    changes = """
import os
from pathlib import Path

path = Path(__file__).with_name("amount.py")
if path.read_text() == "VALUE = 1":
    stamp = path.stat()
    path.write_text("VALUE = 2")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
from amount import VALUE
"""
    async with watched(tmp_path, {"amount.py": "VALUE = 1", "a.py": changes + GOOD}) as it:
        parsed = await it.reported(1)

    assert parsed.sources["amount.py"] == b"VALUE = 2"
