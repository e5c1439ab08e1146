"""The driver of the comparison with other systems, its output, and the page made from it."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from benchmarks.daemon import eventually
from benchmarks.peers import __main__ as command
from benchmarks.peers import lines as written
from benchmarks.peers import measurements, page
from benchmarks.peers.driver import Job, Machine, lines_of, missing, plan, run
from benchmarks.peers.figures import FIGURES, MEASUREMENTS
from benchmarks.peers.lines import Line
from benchmarks.peers.measurements import Cell, Ledger, cpu_between, read_ledger
from benchmarks.peers.system import (
    PROGRAMS,
    Failed,
    ProgramInstance,
    Start,
    System,
    TimedOut,
    Variant,
)

OURS = System(
    "aioflow",
    "aioflow",
    (),
    "",
    (Variant("SQLite", "full", "SQLite"), Variant("PostgreSQL", "full", "PostgreSQL")),
)
PEER = System(
    "peer",
    "Peer",
    ("peer==1.2",),
    "with_peer.py",
    (Variant("SQLite", "none", "SQLite"), Variant("PostgreSQL", "full", "PostgreSQL")),
    lacks={"waits": "does not do waits", "fan_10000": "does not do fan-in"},
    sizes={"chain": 7},
    task_programs=2,
)


# ── what is declared ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("system", command.SYSTEMS, ids=lambda system: system.name)
def test_each_system_is_declared_in_known_terms(system):
    ours = {variant.name for variant in command.SYSTEMS[0].variants}

    assert system.variants
    assert {variant.beside for variant in system.variants} <= ours
    durable = re.compile(r"((states|events) survive|survives) ")
    assert all(durable.match(variant.durability) for variant in system.variants)
    assert {*system.lacks, *system.sizes, *system.written} <= {*MEASUREMENTS, *FIGURES}
    reasons = ("does not do ", "not measured: ")
    assert all(reason.startswith(reasons) for reason in system.lacks.values())
    assert system.settings
    if system.program:
        assert (PROGRAMS / system.program).exists()
        assert re.fullmatch(r"[\w-]+==[\w.]+", system.packages[0]), "the newest one, pinned"


def test_each_figure_belongs_to_one_measurement():
    named = [figure for one in MEASUREMENTS.values() for figure in one.figures]

    assert sorted(named) == sorted(FIGURES)
    assert set(measurements.MEASURES) == set(MEASUREMENTS)


def test_what_peers_import_is_imported_by_their_programs_alone():
    peers = {system.packages[0].partition("==")[0] for system in command.PEERS}

    for path in PROGRAMS.parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not peers & {name.partition(".")[0] for name in names}, path


# ── the plan ────────────────────────────────────────────────────────────────────────────


def told(jobs):
    return [(job.round, job.measurement, job.system.name, job.variant.name) for job in jobs]


def test_ours_is_measured_before_every_second_peer_on_the_same_database():
    peers = [PEER, PEER._replace(name="other"), PEER._replace(name="third")]

    assert [name for _, _, name, _ in told(plan(OURS, peers, ["chain"], 1))] == 2 * [
        *("aioflow", "peer", "other", "aioflow", "third"),
    ]


def test_each_round_measures_each_database():
    assert told(plan(OURS, [PEER], ["chain"], 2)) == [
        (number, "chain", name, database)
        for number in (1, 2)
        for database in ("SQLite", "PostgreSQL")
        for name in ("aioflow", "peer")
    ]


def test_what_a_peer_lacks_is_not_run_but_said():
    assert told(plan(OURS, [PEER], ["waits", "fan_10000"], 1)) == []

    lines = list(missing([PEER], ["fan_10000", "chain"]))

    assert [(line.variant, line.figure, line.value) for line in lines] == [
        ("SQLite", "fan_10000", None),
        ("PostgreSQL", "fan_10000", None),
    ]
    assert all(line.is_missing and line.note == "does not do fan-in" for line in lines)


def test_density_is_measured_in_the_first_round_alone():
    assert {job.round for job in plan(OURS, [PEER], ["density"], 3)} == {1}


def test_without_a_peer_all_variants_of_ours_are_measured():
    assert told(plan(OURS, [], ["chain"], 1)) == [
        (1, "chain", "aioflow", "SQLite"),
        (1, "chain", "aioflow", "PostgreSQL"),
    ]


# ── running a cell ──────────────────────────────────────────────────────────────────────


class Fake:
    """A peer that answers from a table. An exception in the table is raised."""

    def __init__(self, answers, asked=None):
        self.answers = answers
        self.asked = [] if asked is None else asked
        self.is_alive = False

    def start(self):
        self.is_alive = True
        return 0.25

    def ask(self, work, **size):
        self.asked.append((work, size))
        answer = self.answers.get(work, {})
        if callable(answer):
            answer = answer(**size)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def recorded(self):
        assert not self.is_alive
        return self.answers["recorded"]

    def processes(self):
        return []

    resident = processes

    def kill(self):
        self.is_alive = False

    stop = kill


def machine(answers, others=0.0):
    made = []

    @contextmanager
    def database(variant):
        yield "postgresql://" if variant.needs_postgres else ""

    def make(system, variant, start):
        made.append((system, variant, start, Fake(answers)))
        return made[-1][-1]

    return Machine(make, database, lambda _: [], lambda: others, lambda _: 0.2), made


def chain_job(number=1, variant=0):
    return Job(number, "chain", PEER, PEER.variants[variant])


def test_a_line_says_what_was_measured_under_which_conditions(tmp_path):
    fake, made = machine({"chain": {"seconds": 1.4}}, others=0.1)

    (line,) = lines_of(chain_job(), fake, tmp_path)

    assert (line.system, line.variant, line.version) == ("peer", "SQLite", "1.2")
    assert (line.figure, line.value, line.unit, line.size) == ("chain", 200.0, "ms", 7)
    assert (line.others, line.fsync_ms, line.durability) == (0.1, 0.2, "none")
    assert not line.was_loaded
    ((_, _, start, instance),) = made
    assert instance.asked[-1] == ("chain", {"hops": 7})
    assert start.seconds == MEASUREMENTS["chain"].seconds
    assert not instance.is_alive


def test_a_line_is_marked_if_other_processes_used_the_machine(tmp_path):
    fake, _ = machine({"chain": {"seconds": 1.0}}, others=1.5)

    (line,) = lines_of(chain_job(), fake, tmp_path)

    assert line.was_loaded


@pytest.mark.parametrize(
    ("error", "note"),
    [(TimedOut(), "not within 90 s"), (Failed("a\nKeyError: 3\n"), "failed: KeyError: 3")],
)
def test_a_cell_without_a_value_says_why_and_is_not_repeated(tmp_path, error, note, capsys):
    fake, made = machine({"chain": error})

    lines = list(run(iter([chain_job(1), chain_job(2), chain_job(2, 1)]), fake, tmp_path, 60))

    assert [(line.value, line.note, line.round) for line in lines] == [
        (None, note, 1),
        (None, note, 2),
    ]
    assert [variant.name for _, variant, _, _ in made] == ["SQLite", "PostgreSQL"]
    assert not any(instance.is_alive for *_, instance in made)


def test_no_cell_starts_when_the_time_is_over(tmp_path, capsys):
    fake, made = machine({})

    assert list(run(iter([chain_job()]), fake, tmp_path, -1)) == []
    assert not made
    assert "The time is over before round 1, chain" in capsys.readouterr().err


def test_no_op_tasks_are_shared_by_the_programs_of_a_system(tmp_path):
    fake, made = machine({})

    list(lines_of(Job(1, "tasks_async", PEER, PEER.variants[1]), fake, tmp_path, tiny=True))

    assert [start.role for _, _, start, _ in made] == ["main", "more"]
    assert [instance.asked[-1] for *_, instance in made] == [
        ("tasks", {"kind": "async", "count": 50})
    ] * 2


def cell(answers, folder, size):
    return Cell(lambda start: Fake(answers), Start(folder, "", 5.0), size)


def test_a_fan_in_with_a_wrong_sum_is_no_figure(tmp_path):
    wrong = cell({"fan": {"seconds": 1.0, "total": 91}}, tmp_path, 10)
    with pytest.raises(AssertionError, match="91, not 90"):
        measurements.MEASURES["fan_1000"](wrong)


def test_lateness_counts_only_if_all_resumed(tmp_path):
    some = cell({"lateness": {"late_ms": [1.0, 2.0]}}, tmp_path, 3)
    with pytest.raises(AssertionError, match="2 of 3 resumed"):
        measurements.MEASURES["lateness"](some)


def test_a_kill_counts_what_was_lost_and_what_ran_again_after_its_record(tmp_path):
    ledger = tmp_path / "ledger"

    def flight(count, ledger):
        lines = [f"start {number}" for number in range(count)] + ["end 0", "end 1"]
        Path(ledger).write_text("\n".join([*lines, ""]))
        return {}

    def again():
        with ledger.open("a") as file:  # 1 had a recorded success
            file.writelines(f"start {n}\nend {n}\n" for n in (1, 2, 3))
        return {}

    found = measurements.MEASURES["kill"](
        cell({"flight": flight, "again": again, "recorded": [0, 1]}, tmp_path, 4)
    )

    values = {value.figure: value.value for value in found}
    assert (values["kill_lost"], values["kill_twice"]) == (0, 1)
    assert values["kill_ended"] is not None


def test_the_ledger_is_read_from_an_offset(tmp_path):
    file = tmp_path / "ledger"
    file.write_text("start 1\nend 1\nstart 2\n")

    assert read_ledger(file) == Ledger([1, 2], [1])
    assert read_ledger(file, len("start 1\nend 1\n")) == Ledger([2], [])
    assert read_ledger(tmp_path / "none") == Ledger([], [])


def test_processor_time_counts_new_processes_and_forgets_those_that_ended():
    assert cpu_between({1: 2_000_000, 2: 9_000_000}, {1: 3_000_000, 3: 500_000}) == 1.5


# ── a program and its driver ────────────────────────────────────────────────────────────

PROGRAM = """
    import serving

    class Tiny(serving.Program):
        async def start(self):
            return {"resident": [1]} if self.in_flight else {}
        async def double(self, number, seconds):
            print("a library prints", flush=True)
            return {"double": 2 * number}
        async def slow(self, seconds):
            await serving.eventually(lambda: False, 60)
        async def recorded(self):
            return [3, 5]

    serving.main(Tiny)
"""


@pytest.mark.process
def test_a_program_answers_fails_times_out_and_is_killed(tmp_path):
    program = tmp_path / "tiny.py"
    path = f"import sys; sys.path.insert(0, {str(PROGRAMS)!r})\n"
    program.write_text(path + textwrap.dedent(PROGRAM))
    system = PEER._replace(program=str(program))
    start = Start(tmp_path / "home", "", 30.0)
    instance = ProgramInstance(system, Path(sys.executable), start)
    try:
        assert instance.start() > 0
        assert instance.ask("double", number=4) == {"double": 8}
        with pytest.raises(Failed, match="KeyError|TypeError"):
            instance.ask("double", name=4)
        (process,) = instance.processes()
        instance._until = 0.0
        with pytest.raises(TimedOut):
            instance.ask("slow")
        instance._until = time.monotonic() + 600
        instance.kill()
        assert not process.is_running()
        assert instance.recorded() == [3, 5]
    finally:
        instance.stop()


@pytest.mark.nightly
@pytest.mark.process
def test_what_a_program_starts_while_it_is_stopped_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.system.STOP_SECONDS", 3.0)
    program, pid = tmp_path / "tiny.py", tmp_path / "pid"
    program.write_text(
        textwrap.dedent(f"""
            import sys; sys.path.insert(0, {str(PROGRAMS)!r})
            import asyncio, os, pathlib, subprocess, time, serving

            class Tiny(serving.Program):
                async def start(self):
                    os.write(2, b"begun")
                    time.sleep(0.5)
                    service = subprocess.Popen(["sleep", "60"])
                    pathlib.Path({str(pid)!r}).write_text(str(service.pid))
                    time.sleep(60)

            serving.main(Tiny)
        """)
    )
    start = Start(tmp_path / "home", "", 30.0)
    instance = ProgramInstance(PEER._replace(program=str(program)), Path(sys.executable), start)
    start.folder.mkdir()
    instance._launch(instance._options)
    eventually(lambda: instance.log.read_text() == "begun")
    assert not pid.exists()
    instance.stop()

    assert not psutil.pid_exists(int(pid.read_text()))


@pytest.mark.process
def test_a_program_stops_its_system_if_the_driver_ends_during_a_request(tmp_path):
    program = tmp_path / "tiny.py"
    program.write_text(
        textwrap.dedent(f"""
            import sys; sys.path.insert(0, {str(PROGRAMS)!r})
            import asyncio, pathlib, serving

            class Tiny(serving.Program):
                async def slow(self):
                    await asyncio.sleep(0.5)
                    return {{}}
                async def stop(self):
                    (self.folder / "stopped").touch()

            serving.main(Tiny)
        """)
    )
    options = {"folder": str(tmp_path), "database": "", "role": "main"}
    words = [sys.executable, program, json.dumps({**options, "in_flight": 0, "patience": 1.0})]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.stdin.write(b'{"do": "slow"}\n')
        process.stdin.flush()
        process.stdout.close()
        process.stdin.close()

    assert (tmp_path / "stopped").exists()


# ── lines ───────────────────────────────────────────────────────────────────────────────


def line(system="peer", figure="chain", value=1.0, **fields):
    variant = fields.pop("variant", "SQLite")
    return Line(
        **{
            "system": system,
            "variant": variant,
            "version": "1.2",
            "measurement": "chain",
            "figure": figure,
            "value": value,
            "unit": "ms",
            "size": 40,
            "run": "2026-01-01",
            "round": 1,
            "load": 0.5,
            "others": 0.1,
            "fsync_ms": 0.2,
            "durability": "full",
            "commit": "abc",
            "cpus": 2,
            "when": "2026-01-01T00:00:00",
            **fields,
        }
    )


def test_lines_are_read_as_they_were_written(tmp_path):
    file = tmp_path / "results" / "peers.jsonl"
    assert written.read(file) == []

    written.append(file, [line(), line(value=None, note="does not do that", round=0)])
    written.append(file, [line(round=2)])

    assert [one.round for one in written.read(file)] == [1, 0, 2]
    assert written.read(file)[1] == line(value=None, note="does not do that", round=0)


def test_a_damaged_line_is_named(tmp_path):
    file = tmp_path / "peers.jsonl"
    written.append(file, [line()])
    with file.open("a") as damaged:
        damaged.write('{"system": "peer", "val\n')

    with pytest.raises(ValueError, match=r"peers\.jsonl:2:"):
        written.read(file)


# ── the page ────────────────────────────────────────────────────────────────────────────


def compared(*lines):
    return {one.figure: one for one in page.compare(lines, PEER, PEER.variants[0])}


def test_a_ratio_says_how_many_times_better_aioflow_is():
    found = compared(
        *(line("aioflow", "chain", value, round=n) for n, value in enumerate((1, 2, 9))),
        line(figure="chain", value=10.0),
        line("aioflow", "tasks_async", 500.0),
        line(figure="tasks_async", value=1_000.0),
    )

    assert found["chain"].ratio == 5.0  # 10 ms beside a median of 2 ms
    assert found["tasks_async"].ratio == 0.5
    assert page.ratio_text(0.5) == "**0.5×**"
    assert page.ratio_text(5.0) == "5×"
    assert page.ratio_text(0.996) == "1×"


def test_only_the_newest_run_of_a_figure_counts_and_ours_from_the_same_run():
    found = compared(
        line(value=1.0, run="2026-01-01"),
        line(value=8.0, run="2026-02-01"),
        line("aioflow", value=100.0, run="2026-01-01"),
        line("aioflow", value=4.0, run="2026-02-01"),
        line("aioflow", value=7.0, run="2026-02-01", variant="PostgreSQL"),
    )

    assert found["chain"].ratio == 2.0


def test_rounds_under_load_count_only_where_there_are_no_others():
    quiet = page.summarise([line(value=1.0), line(value=9.0, others=1.0)])
    loaded = page.summarise([line(value=9.0, others=1.0)])

    assert (quiet.median, quiet.loaded) == (1.0, 0)
    assert (loaded.median, loaded.loaded) == (9.0, 1)
    assert page.summarise([line(value=None)]) is None


def test_failures_are_counted_and_not_divided():
    found = compared(line("aioflow", "kill_lost", 0.0), line(figure="kill_lost", value=3.0))

    assert found["kill_lost"].ratio is None
    rows = compared(line("aioflow", "waits_bytes", 300.0), line(figure="waits_bytes", value=0.0))
    assert rows["waits_bytes"].ratio is None
    assert "0 : 3" in page.ratio_table(
        [line("aioflow", "kill_lost", 0.0), line(figure="kill_lost", value=3.0)],
        [PEER],
        ["kill_lost"],
    )


def test_the_whole_work_has_no_ratio_to_that_of_another_size():
    ours = line("aioflow", "waits_ended", 2.0, size=10_000)

    same = compared(ours, line(figure="waits_ended", value=6.0, size=10_000))
    smaller = compared(ours, line(figure="waits_ended", value=6.0, size=300))
    table = page.ratio_table(
        [ours, line(figure="waits_ended", value=6.0, size=300)], [PEER], ["waits_ended"]
    )

    assert same["waits_ended"].ratio == 3.0
    assert smaller["waits_ended"].ratio is None
    assert "2 : 6 (sizes 10,000 : 300)" in table


def test_the_page_says_why_another_system_is_ahead():
    slower = page.render(
        [line("aioflow", "start_ready", 2.0), line(figure="start_ready", value=1.0)], [OURS, PEER]
    )
    faster = page.render([line("aioflow", value=1.0), line(value=2.0)], [OURS, PEER])

    assert f"* start to ready: Peer on SQLite. {page.CAUSES['start_ready']}" in slower
    assert "## Where another system is ahead" not in faster


SOME = (
    line("aioflow", value=0.7),
    line(value=3.0),
    line(value=4.0, round=2, size=7),
    line(figure="fan_1000", value=None, note="does not do fan-in: no | results", round=0),
    line(figure="tasks_def", value=None, note="not within 60 s"),
    *(line(figure="density_bytes", value=size / 7, size=size) for size in (100, 1_000)),
)


NEWER = (line("aioflow", value=0.7), line(value=70.0))


def test_the_page_names_what_is_missing_what_took_too_long_and_where_sizes_differ():
    text = page.render(SOME, [OURS, PEER])

    assert "| chain of 40, per hop | 0.7 ms | 4 ms (3 to 4, 2) | 5.7× |  |" in text
    assert "does not do fan-in: no / results" in text
    assert "| not within 60 s |" in text
    table = page.ratio_table(SOME, [PEER], ["chain", "fan_1000", "tasks_def", "waits_bytes"])
    assert "| chain of 40, per hop | 5.7× |" in table
    assert "| fan-out to 1,000 and fan-in | no |" in table
    assert "not within 60 s" in table
    assert "waits" not in table


def test_the_readme_gets_one_table_which_is_replaced():
    readme, peer = (
        f"# aioflow\n\n{page.BEFORE}\n* that\n",
        PEER._replace(variants=PEER.variants[:1]),
    )

    once = page.with_table(readme, page.readme_section(SOME, [peer]))
    again = page.with_table(once, page.readme_section(NEWER, [peer]))

    assert once.index(page.BEGIN) < once.index(page.BEFORE)
    assert once.count(page.BEGIN) == again.count(page.BEGIN) == 1
    assert "5.7×" in once
    assert "5.7×" not in again
    assert "100×" in again
    assert again.endswith(f"{page.BEFORE}\n* that\n")


@pytest.mark.parametrize("figure", ["chain", "density_bytes"])
@pytest.mark.parametrize("theme", page.THEMES)
def test_a_plot_shows_each_system_in_the_colours_of_the_theme(figure, theme):
    drawing = page.draw(SOME, figure, theme)

    (axes,) = drawing.axes
    assert axes.title.get_color() == page.THEMES[theme][0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    if axes.get_legend():
        names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "peer, SQLite" in names


def test_page_and_readme_agree_with_the_lines():
    lines, readme = written.read(written.FILE), page.README.read_text()
    if not lines:
        assert not page.PAGE.exists()
        assert page.BEGIN not in readme
        return
    section = page.readme_section(lines, command.PEERS)
    assert page.PAGE.read_text() == page.render(lines, command.SYSTEMS), "--page writes it"
    assert page.with_table(readme, section) == readme
    assert "- benchmarks.md" in page.SITE.read_text()


# ── the command ─────────────────────────────────────────────────────────────────────────


def test_a_cell_is_chosen_by_its_name_or_by_one_of_its_figures():
    assert command.chosen(None) == list(MEASUREMENTS)
    assert command.chosen("waits_idle,chain") == ["chain", "waits"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--system", "cron"], "there is no 'cron'"),
        (["--figure", "beauty"], "there is no 'beauty'"),
        (["--tiny"], "give another file"),
    ],
)
def test_the_command_refuses_what_it_cannot_measure(words, said, capsys):
    with pytest.raises(SystemExit):
        command.main(words)
    assert said in capsys.readouterr().err


def test_sigterm_unwinds_a_comparison_and_a_second_one_does_not_cut_that_short(
    tmp_path, monkeypatch
):
    unwound = []

    def measure(options):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            unwound.append(True)

    monkeypatch.setattr(command, "_measure", measure)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended:
            command.main(["--output", str(tmp_path / "peers.jsonl")])
    finally:
        signal.signal(signal.SIGTERM, before)

    assert (ended.value.code, unwound) == (128 + signal.SIGTERM, [True])
