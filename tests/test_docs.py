"""The documentation is correct: its code runs, its lists are complete, its links have targets."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi.routing import APIRoute

import aioflow
from aioflow import cli, errors
from aioflow.author.context import CONTEXT_INSTEAD, TEMPLATE_NAMES
from aioflow.author.dag import DagOptions
from aioflow.author.operator import Operator
from aioflow.author.options import SENSOR_NAMES
from aioflow.cli import FENCED
from aioflow.cli.daemon import _settings_of
from aioflow.core.scheduling.slots import CLAIM_LIMIT
from aioflow.model.states import RunState, TaskState, TriggerRule, TriggerState, WaitKind
from aioflow.settings import Settings
from aioflow.web.routes import API_ROUTES
from aioflow.worker.airflow import finder
from aioflow.worker.airflow.instead import NAMES
from benchmarks.daemon import DaemonProcess, eventually
from tests.house import module_list
from tests.triggers.test_catalogue import defined

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
CONTRIBUTORS = (ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md")
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language.

    ``python`` stands for a whole file, ``py`` for a part of a file.
    """
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def quoted(page: Path) -> set[str]:
    """Return everything between single backticks outside blocks."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return set(re.findall(r"`([^`\n]+)`", prose))


# ── code ────────────────────────────────────────────────────────────────────────────────


DAG_FILES = [
    pytest.param(source, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, source in enumerate(blocks(page, "python"), 1)
]


@pytest.mark.process
@pytest.mark.parametrize("source", DAG_FILES)
def test_each_python_block_is_a_dag_file_without_problems(source, tmp_path, capsys):
    file = tmp_path / "page.py"
    file.write_text(source)

    status = cli.main(["dags", "check", str(file)])

    said = capsys.readouterr().out.splitlines()
    assert status == 0
    assert [line.endswith(": ok") for line in said] == [True], said


def test_parts_of_python_files_are_python():
    for page in PAGES:
        for part in blocks(page, "py"):
            compile(part, str(page), "exec")


def test_the_readme_shows_the_pipeline_that_the_tutorial_ends_with():
    tutorial = DOCS / "tutorial.md"

    assert blocks(ROOT / "README.md", "python") == blocks(tutorial, "python")[-1:]


@pytest.mark.process
@pytest.mark.timeout(240)
def test_the_tutorials_run_waits_is_killed_waits_on_and_comes_to_the_total_on_the_page(tmp_path):
    tutorial = DOCS / "tutorial.md"
    (sales,) = blocks(tutorial, "csv")
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "sales.py").write_text(blocks(tutorial, "python")[-1])
    file, part = tmp_path / "sales.csv", tmp_path / "part.csv"
    daemon = DaemonProcess(tmp_path / "home", tmp_path / "dags")

    def states() -> dict[str, str]:
        return {task["task_id"]: task["state"] for task in daemon.run("monday")["tasks"]}

    with daemon:
        daemon.trigger("sales", {"path": str(file)}, run_id="monday")
        waits = {"list_shops": "pending", "sales_file": "sensing", "sold": "pending"} | {
            "total": "pending"
        }
        eventually(lambda: states() == waits)
        daemon.kill()
        daemon.start()
        assert states() == waits

        part.write_text(sales)
        part.rename(file)
        daemon.wait("monday")
        tasks = daemon.run("monday")["tasks"]

    shown = dict(
        re.findall(r"^(\w+(?:\[\d\])?) +success +1/\d  = (.+)$", tutorial.read_text(), re.MULTILINE)
    )
    came = {
        task["task_id"] + (f"[{task['map_index']}]" if task["map_index"] >= 0 else ""): repr(
            task["result"]
        )
        for task in tasks
        if task["result"] is not None
    }
    assert {task["state"] for task in tasks} == {"success"}
    assert came == shown


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.timeout(240)
def test_a_job_outside_that_fails_is_submitted_again_and_once_more_after_a_clear(tmp_path):
    page = DOCS / "how-to" / "run-an-external-job.md"
    service: dict[str, Any] = {"__name__": "service"}
    exec(compile(blocks(page, "py")[0], str(page), "exec"), service)
    server = ThreadingHTTPServer(("127.0.0.1", 0), service["Service"])
    jobs = service["JOBS"]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "outside.py").write_text(blocks(page, "python")[0])
    daemon = DaemonProcess(tmp_path / "home", tmp_path / "dags")

    def ended() -> tuple[str, int, object]:
        daemon.wait("jobs")
        (task,) = daemon.run("jobs")["tasks"]
        return task["state"], task["try_number"], task["result"]

    def keys() -> list[str]:
        return list(jobs)

    with contextlib.closing(server.socket), daemon:
        conf = {"service": f"http://127.0.0.1:{server.server_port}/jobs"}
        daemon.trigger("outside", conf, run_id="jobs")
        assert ended() == ("success", 2, "result 2")
        daemon.request("POST", "/api/v1/runs/jobs/clear", {})
        assert ended() == ("success", 1, "result 3")
        server.shutdown()

    assert [job["state"] for job in jobs.values()] == ["failed", "done", "done"]
    assert len(set(keys())) == 3
    assert [key.rpartition("/")[2] for key in keys()] == ["1", "2", "1"]


# ── lists ───────────────────────────────────────────────────────────────────────────────


def error_classes(kind: type[errors.AioflowError] = errors.AioflowError) -> Iterator[type[Any]]:
    yield kind
    for name in errors.__all__:
        if issubclass(getattr(errors, name), kind) and getattr(errors, name) is not kind:
            yield getattr(errors, name)


def test_every_error_code_is_listed_with_its_class_and_no_other():
    rows = re.findall(
        r"^\| `([a-z_.]+)` \| `(\w+)` \|", (REFERENCE / "errors.md").read_text(), re.MULTILINE
    )

    assert sorted(rows) == sorted((kind.code, kind.__name__) for kind in error_classes())


def test_every_reason_a_task_may_fail_for_is_listed():
    source = "\n".join(
        path.read_text()
        for folder in ("core", "worker", "executors", "processes")
        for path in (ROOT / "aioflow" / folder).rglob("*.py")
        if path.name != "parse.py"
    )
    reasons = set(re.findall(r'reason=(?:reason or )?"([a-z_]+)"', source))
    reasons |= set(re.findall(r'TriggerWrong\(\s*"([a-z_]+)"', source))
    reasons |= set(re.findall(r'(?:\.stage|reason) = "([a-z_]+)"', source))
    reasons |= set(re.findall(r'\("([a-z_]+)", (?:True|False)\)', source))
    reasons |= set(re.findall(r'fail(?:ed|ure_of)\([^"]*, "([a-z_]+)"', source))

    assert {"fanout_cap", "killed", "oom", "raised", "step", "trigger_yield"} <= reasons
    assert reasons <= quoted(REFERENCE / "errors.md")


def test_every_code_of_the_http_face_and_of_the_command_line_is_listed():
    web = "\n".join(path.read_text() for path in (ROOT / "aioflow" / "web").glob("*.py"))
    said = "\n".join(path.read_text() for path in (ROOT / "aioflow" / "cli").glob("*.py"))
    codes = set(re.findall(r'"((?:web|defect)\.[a-z_]+)"', web)) | {"request.invalid"}
    codes |= set(re.findall(r" \[([a-z]+)\]\\?", said)) - {"retention"}

    assert {"web.slow", "usage", "defect", "output"} <= codes
    assert codes <= quoted(REFERENCE / "errors.md") | {kind.code for kind in error_classes()}


def test_everything_that_may_be_wrong_or_odd_about_a_dag_file_is_listed():
    source = "\n".join(path.read_text() for path in (ROOT / "aioflow").rglob("*.py"))
    reasons = set(re.findall(r'DagFailure\(\s*"([a-z_.]+)"', source))

    assert {"odd.source", "encoding", "processes", "dag.none"} <= reasons
    assert reasons <= quoted(REFERENCE / "errors.md")


def test_the_unit_for_systemd_starts_a_daemon_again_unless_its_database_was_taken_over():
    (unit,) = blocks(DOCS / "how-to" / "run-in-production.md", "ini")
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)

    assert settings["RestartPreventExitStatus"] == str(FENCED)
    assert (settings["Restart"], int(settings["RestartSec"]) > 0) == ("on-failure", True)
    assert {"network-online.target", "postgresql.service"} == set(settings["After"].split())


def test_the_unit_of_a_standby_is_that_of_a_daemon_with_the_settings_of_a_node(
    tmp_path, monkeypatch
):
    (unit,) = blocks(DOCS / "how-to" / "run-a-standby.md", "ini")
    (of_one,) = blocks(DOCS / "how-to" / "run-in-production.md", "ini")
    extra = [line for line in unit.splitlines() if line not in of_one.splitlines()]
    variables = dict(re.findall(r"^Environment=(\w+)=(.*)$", unit, re.MULTILINE))
    settings = node_settings(tmp_path, variables, monkeypatch)

    assert {line.partition("=")[0] for line in extra} == {"After", "Environment", "EnvironmentFile"}
    assert settings.ha_node_name == "%H"


def test_the_nodes_of_the_compose_file_differ_in_home_name_and_port_only(tmp_path, monkeypatch):
    (compose,) = blocks(DOCS / "how-to" / "run-a-standby.md", "yaml")
    first, _, second = compose.partition("  b:\n")
    variables = dict(re.findall(r"^      (AIOFLOW_\w+): \"?(.*?)\"?$", first, re.MULTILINE))
    settings = node_settings(tmp_path, variables, monkeypatch)
    mounts = [set(re.findall(r'^      - "(.*)"$', part, re.MULTILINE)) for part in (first, second)]

    assert settings.ha_node_name == "a"
    assert re.findall(r"^      (AIOFLOW_.*)$", second, re.MULTILINE) == ["AIOFLOW_HA__NODE_NAME: b"]
    home = variables["AIOFLOW_HOME"]
    assert mounts[0] ^ mounts[1] == {f"home-a:{home}", f"home-b:{home}"}
    assert f"./key:{home}/key:ro" in mounts[0]


def node_settings(home: Path, variables: dict[str, str], monkeypatch) -> Settings:
    """Return the settings of a node that is configured by environment variables."""
    monkeypatch.setenv("AIOFLOW_DB__URL", "postgresql://db/aioflow")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = Settings.read(home)
    assert settings.ha_enabled
    assert not settings.oddities
    return settings


def test_the_readme_says_how_many_bodies_a_kill_repeats_at_most():
    readme = " ".join((ROOT / "README.md").read_text().split())

    assert f"at most {CLAIM_LIMIT}; behind one that takes longer, none" in readme
    assert f"a kill repeats at most {CLAIM_LIMIT + 1} bodies for each `def` slot" in readme


def test_every_name_of_a_template_and_every_template_field_of_a_ready_class_is_listed():
    page = (REFERENCE / "authoring.md").read_text()
    section = page.partition("## Templates\n")[2].partition("\n## ")[0]
    known, _, ready_classes = section.partition("| Class |")
    names = re.findall(r"^\| (`.*?) \| ", known, re.MULTILINE)
    classes = dict(re.findall(r"^\| `(\w+)`.* \| (.*) \|$", ready_classes, re.MULTILINE))

    assert {name for cell in names for name in re.findall(r"`(\w+)`", cell)} == TEMPLATE_NAMES
    ready = {cls.__name__: cls for cls in defined() if issubclass(cls, Operator)}
    fields = {name: set(cls.template_fields) for name, cls in ready.items() if cls.template_fields}
    fields["DateTimeSensor"] |= fields.pop("TimeDeltaSensor")  # they share a row
    assert {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in classes.items()} == fields


def table_of(page: Path, heading: str) -> dict[str, str]:
    """Return the second column of the table below a heading, by the name in the first column."""
    section = page.read_text().partition(f"\n| {heading} |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", section, re.MULTILINE)
    return {name: text for names, text in rows for name in re.findall(r"`([\w.]+)`", names)}


def test_every_import_and_key_of_airflow_that_works_or_has_another_name_is_listed():
    page = DOCS / "how-to" / "port-from-airflow.md"

    works = {name: re.findall(r"`(\w+)`", text) for name, text in table_of(page, "Module").items()}
    assert works == {
        module: list(finder.names_of(module)) for module in ("airflow", *finder.CONTENTS)
    }
    assert table_of(page, "Airflow") == NAMES
    assert table_of(page, "Key") == CONTEXT_INSTEAD
    keys = page.read_text().partition("These keys exist")[2].partition("In an operator")[0]
    listed = keys.rpartition("): ")[2]
    assert set(re.findall(r"`(\w+)`", listed)) == TEMPLATE_NAMES


def test_every_metric_and_setting_that_a_page_speaks_of_exists(tmp_path):
    metrics = quoted(REFERENCE / "metrics.md")
    settings = Settings.read(tmp_path).values
    sections = "|".join({name.partition(".")[0] for name in settings if "." in name})

    for page in PAGES:
        words = {word.partition("{")[0] for word in quoted(page)}
        assert {word for word in words if re.fullmatch(r"aioflow_[a-z_]+", word)} <= (
            metrics | {"aioflow_triggers"}
        ), page
        if page != REFERENCE / "errors.md" and page != DOCS / "architecture.md":
            named = {word for word in words if re.fullmatch(rf"(?:{sections})\.[a-z_]+", word)}
            assert {word for word in named if not word.endswith(".py")} <= {
                *settings,
                *quoted(REFERENCE / "errors.md"),
            }, page


def test_every_setting_is_listed_and_no_other(tmp_path):
    listed = re.findall(
        r"^\| `([a-z_.]+)` \|", (REFERENCE / "settings.md").read_text(), re.MULTILINE
    )

    assert sorted(listed) == sorted(Settings.read(tmp_path).values)


DEFAULTS_IN_WORDS = {
    "home": "`~/.aioflow`",
    "dags": "`./dags` if there is one, else `HOME/dags`",
    "db.url": "`sqlite:///HOME/aioflow.db`",
    "slots.cpu": "number of CPUs",
}


def default_shown(name: str, value: object) -> set[str]:
    """Return the texts by which a page may state a default."""
    if name in DEFAULTS_IN_WORDS:
        return {DEFAULTS_IN_WORDS[name]}
    match value:
        case bool():
            return {str(value).lower()}
        case None:
            return {"unset"}
        case "" | ():
            return {"none"}
        case int() | float():
            return {f"{int(value)}", f"{int(value):,}"} if value == int(value) else {str(value)}
        case _:
            return {f"`{value}`"}


def test_every_setting_is_listed_with_its_default_and_its_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = re.findall(
        r"^\| `([a-z_.]+)` \| (.*?) \| (.*?) ?\| ",
        (REFERENCE / "settings.md").read_text(),
        re.MULTILINE,
    )
    values = Settings.read(tmp_path).values
    flags = {
        name: f"`--{word.replace('_', '-')}`"
        for word in vars(cli.command_parser().parse_args(["up"]))
        for name in settings_set_by(word)
    }

    wrong = [
        name
        for name, default, flag in rows
        if default not in default_shown(name, values[name]) or flag != flags.get(name, "")
    ]
    assert wrong == []
    assert len(flags) > 8


def settings_set_by(word: str) -> list[str]:
    """Return the settings that a flag of ``aioflow up`` sets, given the flag's argument name."""
    arguments = cli.command_parser().parse_args(["up"])
    if word == "home":
        return ["home"]
    setattr(arguments, word, mark := object())
    return [name for name, value in _settings_of(arguments).items() if value is mark]


def test_every_state_and_kind_of_wait_is_listed():
    names = {state.label for kind in (TaskState, RunState) for state in kind}
    names |= {state.name.lower() for state in TriggerState}
    names |= {kind.value for kind in WaitKind}

    assert names <= quoted(REFERENCE / "states.md")


def test_every_public_name_option_and_rule_is_listed():
    listed = quoted(REFERENCE / "authoring.md")

    names = {*aioflow.__all__, *DagOptions.__annotations__, *SENSOR_NAMES, *TriggerRule}

    assert names <= listed


def parsers(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, Any]]:
    verbs = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not verbs:
        yield name, parser
    for verb, below in (verbs[0].choices if verbs else {}).items():
        yield from parsers(below, f"{name} {verb}")


def test_every_command_is_listed_and_no_other():
    rows = re.findall(r"^\| (`aioflow[^|]*) \|", (REFERENCE / "cli.md").read_text(), re.MULTILINE)
    listed = {words for row in rows for words in re.findall(r"`([a-z ]*[a-z])[^`]*`", row)}

    assert listed == {"aioflow", *(name for name, _ in parsers(cli.command_parser(), "aioflow"))}


EVERY_COMMAND_HAS = {"--help", "--home", "--json", "--url"}


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the long options of a command, except those that every command has."""
    options = {option for a in parser._actions for option in a.option_strings if option[1] == "-"}
    return options - EVERY_COMMAND_HAS


def test_every_option_stands_in_the_row_of_its_command():
    table = (REFERENCE / "cli.md").read_text().splitlines()
    rows = [(row.partition(" | ")[0] + " |", set(re.findall(r"--[a-z-]+", row))) for row in table]
    commands = {
        name: options_of(parser) for name, parser in parsers(cli.command_parser(), "aioflow")
    }

    missing = {}
    for name, options in commands.items():
        found = [listed for head, listed in rows if re.match(rf"\| .*`{name}[ `].* \|", head)]
        missing[name] = [options - listed for listed in found]

    assert len(missing) > 50
    assert {name: unlisted for name, unlisted in missing.items() if unlisted != [set()]} == {}


def test_every_route_is_listed_and_no_other():
    listed = re.findall(
        r"^\| `([A-Z]+ /\S+)` \|", (REFERENCE / "http.md").read_text(), re.MULTILINE
    )
    routes = cast("tuple[APIRoute, ...]", API_ROUTES)

    assert sorted(listed) == sorted(
        f"{method} {route.path}" for route in routes for method in route.methods
    )


def named_in_rows_of(page: Path) -> Iterator[tuple[str, str]]:
    """Return the file below ``tests`` and the name of each test that a row of a table names."""
    for row in page.read_text().splitlines():
        file = ""
        if row.startswith("|") and "`test_" in row:
            for name in re.findall(r"`([a-z_/]+\.py|test_\w+)`", row.split("|")[-2]):
                if name.endswith(".py"):
                    file = name
                else:
                    yield file, name


def test_every_test_that_a_statement_names_is_there():
    pages = (REFERENCE / "waiting.md", DOCS / "airflow-differences.md")
    named = {test for page in pages for test in named_in_rows_of(page)}
    defined_in = {
        file: set(re.findall(r"^(?:async )?def (test_\w+)\(", source, re.MULTILINE))
        for file in {file for file, _ in named}
        for source in ((ROOT / "tests" / file).read_text(),)
    }

    assert len(named) > 100
    assert {(file, name) for file, name in named if name not in defined_in[file]} == set()


def test_every_statement_and_every_defect_names_a_test():
    statements = [
        row
        for page in (REFERENCE / "waiting.md", DOCS / "airflow-differences.md")
        for table in page.read_text().split("Shown by |\n")[1:]
        for row in table.partition("\n\n")[0].splitlines()[1:]
    ]

    assert len(statements) > 80
    assert [row for row in statements if not re.search(r"`\S+\.py` `test_\w+`", row)] == []


# ── the house ───────────────────────────────────────────────────────────────────────────


def test_the_list_of_modules_is_up_to_date():
    assert module_list.PAGE.read_text() == module_list.render(), "run `make modules`"


# ── links ───────────────────────────────────────────────────────────────────────────────


@functools.cache
def anchors(page: Path) -> set[str]:
    """Return the link targets that the headings of a page define."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def leads_somewhere(page: Path, target: str) -> bool:
    """Return whether the target of a link inside the project exists."""
    path, _, anchor = target.partition("#")
    found = (page.parent / path).resolve() if path else page
    return found.exists() and (not anchor or anchor in anchors(found))


def test_every_link_inside_the_project_leads_somewhere():
    links = [
        (page, target)
        for page in PAGES
        for target in re.findall(r'(?:\]\(|src(?:set)?=")([^)"\s]+)', page.read_text())
        if not target.startswith(("http:", "https:"))
    ]

    assert len(links) > 200
    assert [link for link in links if not leads_somewhere(*link)] == []


def test_every_page_is_reached_from_the_readme():
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop().resolve()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        targets = re.findall(r"\]\(([^)#\s]+)", page.read_text())
        ahead += [page.parent / target for target in targets if ":" not in target]

    decisions = {page for page in PAGES if page.parent.name == "decisions"}
    assert {page.resolve() for page in set(PAGES) - decisions} <= reached


def test_every_decision_has_its_four_parts_and_a_number_of_its_own():
    files = sorted((DOCS / "decisions").glob("*.md"))

    for number, file in enumerate(files, 1):
        heads = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
        assert heads[0].startswith(f"{number}. "), file
        assert file.name.startswith(f"{number:04}-")
        assert heads[1:] == ["Status", "Context", "Decision", "Consequences"], file


def test_the_picture_is_drawn_for_light_and_dark():
    picture = (DOCS / "pictures" / "circle.svg").read_text()

    assert "prefers-color-scheme: dark" in picture
    assert os.fsencode(picture).isascii()


def test_every_change_stands_under_what_it_is_about():
    kinds = (ROOT / "CHANGELOG.md").read_text().split("\n### ")[1:]

    for kind in kinds:
        unsorted, *subjects = kind.split("\n#### ")
        assert "\n- " not in unsorted
        assert all("\n- " in subject for subject in subjects)


_PATH = re.compile(
    r"`((?:aioflow|benchmarks|core|docs|examples|process|store|tests|triggers|ui|worker)"
    r"/[\w./*-]+)`"
)
_MADE_BY_TOOLS = {"ui/node_modules"}


def _named_paths(page: Path) -> set[str]:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return set(_PATH.findall(prose)) - _MADE_BY_TOOLS


def _exists(path: str) -> bool:
    """Return whether a path exists.

    Pages about the program leave out ``aioflow/``, and may name a module without ``.py`` or a name
    in the module; pages about guarantees leave out ``tests/``.
    """
    candidates = {path.rstrip("/"), f"{path}.py", f"{path.rpartition('.')[0]}.py"}
    folders = (ROOT, ROOT / "aioflow", ROOT / "tests")
    return any(any(folder.glob(one)) for folder in folders for one in candidates)


def test_every_path_that_a_page_names_exists():
    pages = {page: _named_paths(page) for page in (*PAGES, *CONTRIBUTORS)}
    missing = {path for path in set().union(*pages.values()) if not _exists(path)}

    assert {page: paths & missing for page, paths in pages.items() if paths & missing} == {}


def test_the_page_for_contributors_names_paths():
    assert len(_named_paths(ROOT / "CONTRIBUTING.md")) > 60
