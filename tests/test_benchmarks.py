"""Every measurement runs, at tiny sizes, and reports its figures in the same terms."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from matplotlib.figure import Figure as Drawing

from aioflow.cli import main
from aioflow.cli.density import Bare, Density, write_density_plot
from benchmarks import __main__ as benchmarks
from benchmarks import harness, summary
from benchmarks.harness import Figure, percentiles

SVG = "{http://www.w3.org/2000/svg}"
CLAIMED = {
    *("throughput", "hop", "due_resumed", "burst", "handed_over", "restart", "startup"),
    *("waiting", "density", "fairness", "clearing", "wide", "dag_files", "watchers"),
    *("event_runs", "reads", "files", "executors", "objects", "cluster"),
}

SAMPLED = ("hop", "turn")
"""One measurement with a daemon, and one without. All others run at night."""


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


@pytest.mark.process
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SAMPLED else pytest.mark.nightly)
        for name in benchmarks.MODULES
    ],
)
def test_each_measurement_runs_and_says_what_it_is_measured_against(name, results):
    (found,) = benchmarks.run([name], tiny=True)

    (line,) = (results / f"{name}.jsonl").read_text().splitlines()
    assert json.loads(line) == found
    assert found["benchmark"] == name
    assert found["fsync_ms"] > 0
    assert {"commit", "cpus", "load", "python", "sqlite"} <= found.keys()
    figures = [Figure(**figure) for figure in found["figures"]]
    assert len({figure.what for figure in figures}) == len(figures)
    assert all(figure.value > 0 for figure in figures if figure.unit in {"s", "ms", "1/s", "MiB"})
    assert all(figure.against for figure in figures if figure.yardstick is not None)
    if name != "latency":
        assert any(figure.yardstick for figure in figures)
    if name in CLAIMED - {"due_resumed"}:  # its claim is one of a rate that is not tiny
        assert any(figure.at_most or figure.at_least for figure in figures)


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.timeout(400)
def test_the_command_weighs_each_kind_on_a_daemon_of_its_own(tmp_path):
    plot = tmp_path / "density.svg"
    command = [
        *(sys.executable, "-m", "aioflow", "bench", "density", "--json", "--plot", str(plot)),
        *("--triggers", "1000,2000", "--kind", "private", "--seconds", "0.2"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(one["kind"], one["triggers"]) for one in found] == [
        ("private", 1000),
        ("private", 2000),
    ]
    for one in found:
        assert set(one["bytes_by_role"]) == {"async", "daemon", "slot", "triggers"}
        assert one["bare"]["bytes_each"] > 100  # for few tasks it is less than the noise of a page
        assert one["defer_seconds"] > 0
    assert "private" in texts(plot.read_text())


@pytest.mark.parametrize("words", [["--kind", "mist"], ["--triggers", "0"], ["--shape", "round"]])
def test_the_command_refuses_what_it_does_not_know(words):
    done = subprocess.run(
        [sys.executable, "-m", "aioflow", "bench", "density", *words],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 2
    assert words[0] in done.stderr


# ── the summary of the lines ────────────────────────────────────────────────────────────


def test_the_table_shows_the_newest_line_and_whether_its_claims_are_met(results):
    harness.report("hop", figures=[Figure("old", 1.0, "s")], fsync_ms=1.0)
    figures = [
        Figure("a chain", 0.5, "s", 0.1, "bare commits", at_most=0.25),
        Figure("tasks", 9000, "1/s", 20000, "a pipe", at_least=8000),
        Figure("without a claim", 3, "s"),
    ]
    harness.report("hop", figures=figures, fsync_ms=1.0)

    summary.write_summary(["hop", "never_run"])

    page = (results / "README.md").read_text()
    assert "| a chain | 0.5 s | 0.1 s | at most 0.25 | **missed** |" in page
    assert "| tasks | 9,000 1/s | 20,000 1/s | at least 8,000 | met |" in page
    assert "| without a claim | 3 s |  |  |  |" in page
    assert "Yardstick: a pipe; bare commits." in page
    assert "old" not in page
    assert "never_run" not in page
    for picture in ("hop-0.svg", "hop-1.svg"):
        assert f"]({picture})" in page
        assert (results / picture).exists()


def test_the_published_table_has_each_measurement_with_figures():
    folder = Path(harness.__file__).parent / "results"
    lines = {path.stem: path.read_text().splitlines()[-1] for path in folder.glob("*.jsonl")}
    sections = re.findall(r"^## (\w+)$", (folder / "README.md").read_text(), re.MULTILINE)

    assert set(lines) <= set(benchmarks.MODULES)
    assert set(sections) == {name for name, line in lines.items() if json.loads(line)["figures"]}


def test_a_bar_is_as_long_as_its_figure_above_its_yardstick():
    axes = Drawing().subplots()

    summary.draw_bars(
        axes,
        [
            {"what": "a & b", "value": 50.0, "yardstick": 100.0},
            {"what": "c", "value": 1234.5, "yardstick": None},
        ],
    )

    values, yardsticks = axes.containers
    assert [bar.get_width() for bar in values] == [50.0, 1234.5]
    assert [bar.get_width() for bar in yardsticks] == [100.0]
    assert values[0].get_y() < yardsticks[0].get_y() < values[1].get_y()  # downwards
    assert axes.get_xlim()[0] == 0
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a & b", "c"]
    assert [text.get_text() for text in axes.texts] == ["50", "1,234", "100"]


def density(kind: str, triggers: int, bytes_each: int) -> Density:
    return Density(
        kind=kind,
        shape="wide",
        triggers=triggers,
        bytes_each=bytes_each,
        bytes_by_role={},
        idle_percent=0.0,
        idle_us_each=0.0,
        defer_seconds=0.0,
        bare=Bare(bytes_each=1_500, idle_us_each=0.0),
    )


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_a_plot_names_each_kind_and_the_same_figures_make_the_same_file(tmp_path):
    found = [density("time", 1_000, 700), density("time", 100, 800), density("run", 100, 0)]

    for name in ("one.svg", "other"):
        write_density_plot(tmp_path / name, found)

    one, other = (tmp_path / "one.svg").read_text(), (tmp_path / "other").read_text()
    assert {"time", "run", "bare asyncio task", "bytes each"} <= set(texts(one))
    assert one == other


def test_a_plot_without_its_library_is_refused_before_anything_is_measured(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("aioflow.cli.density.measure", lambda *_, **__: pytest.fail("measured"))

    status = main(["bench", "density", "--plot", str(tmp_path / "plot.svg")])

    assert status == 2
    assert "pip install 'aioflow-engine[plot]'" in capsys.readouterr().err
    assert not (tmp_path / "plot.svg").exists()


def test_percentiles_are_values_that_were_seen():
    assert percentiles([3.0, 1.0, 2.0]) == {"min": 1.0, "p50": 2.0, "p99": 3.0, "max": 3.0, "n": 3}
