"""Shells can complete every word, and ``--help`` imports nothing heavy."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from aioflow.cli import command_parser
from aioflow.cli.arguments import completion_script

SHELLS = ("bash", "zsh", "fish")
SCRIPTS = {shell: completion_script(shell, command_parser()) for shell in SHELLS}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_names_commands_options_and_choices(shell):
    words = set(re.findall(r"[\w-]+", SCRIPTS[shell]))

    assert {"dags", "runs", "top", "completion", "unquarantine", "backfill"} <= words
    options = {"conf", "wait", "json", "url", "take-over", "plot"}
    assert {option if shell == "fish" else f"--{option}" for option in options} <= words
    assert {"bash", "zsh", "fish", "wide", "partial"} <= words


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.process
def test_a_shell_takes_its_script(shell, tmp_path):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} at hand")
    file = tmp_path / "script"
    file.write_text(SCRIPTS[shell])

    done = subprocess.run([program, "-n", str(file)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


OFFERED = [
    ("aioflow ru", ["runs"]),
    ("aioflow runs wa", ["watch"]),
    ("aioflow dags trigger --wai", ["--wait"]),
    ("aioflow runs clear RUN --down", ["--downstream"]),
    ("aioflow completion z", ["zsh"]),
    ("aioflow bench density --shape w", ["wide"]),
    ("aioflow dags check da", ["daily.py"]),
    ("aioflow bench density --plot da", ["daily.py"]),
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "daily.py").touch()
    return tmp_path


@pytest.mark.parametrize(("typed", "offered"), OFFERED)
@pytest.mark.process
def test_bash_completes(folder, typed, offered):
    words = typed.split()
    ask = (
        f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _shtab_aioflow; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )

    done = subprocess.run(
        ["bash", "-c", f"{SCRIPTS['bash']}\n{ask}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == offered


@pytest.mark.parametrize(("typed", "offered"), OFFERED)
@pytest.mark.process
def test_fish_completes(folder, typed, offered):
    program = shutil.which("fish")
    if program is None:
        pytest.skip("no fish at hand")

    done = subprocess.run(
        [program, "--no-config", "-c", f"{SCRIPTS['fish']}\ncomplete -C '{typed}'"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )

    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == offered


HELP_NEEDS = """
import sys
from aioflow.cli import main
try:
    main(["--help"])
except SystemExit:
    print("\\n--", *sorted({name.partition(".")[0] for name in sys.modules}))
    print("--", *sorted(name for name in sys.modules if name.startswith("aioflow")))
"""

OURS = {
    *("aioflow", "aioflow.cli", "aioflow.errors", "aioflow.model", "aioflow.settings"),
    *("aioflow.protocol", "aioflow.protocol.requests"),
    *("aioflow.model.access", "aioflow.model.dag", "aioflow.model.history"),
    "aioflow.model.notes",
    "aioflow.model.pool_usage",
    *("aioflow.model.triggers", "aioflow.model.ids"),
    *("aioflow.model.states", "aioflow.model.timestamps", "aioflow.model.workers"),
}
HEAVY = {
    *(
        "anyio",
        "http",
        "ssl",
        "email",
        "alembic",
        "aiosqlite",
        "cryptography",
        "fastapi",
        "jinja2",
        "pydantic",
    ),
    *("pydantic_settings", "prometheus_client", "rich", "sqlalchemy", "structlog", "uvicorn"),
    *("uvloop", "psutil", "sqlite3", "opentelemetry", "aioflow_triggers", "shtab"),
}


@pytest.mark.process
def test_help_imports_neither_a_library_nor_more_of_ours_than_the_commands():
    done = subprocess.run(
        [sys.executable, "-c", HELP_NEEDS], capture_output=True, text=True, check=True
    )
    _, tops, ours = done.stdout.split("\n--")

    assert not HEAVY & set(tops.split())
    rest = {
        name for name in ours.split() if not name.startswith(("aioflow.cli.", "aioflow.errors."))
    }
    assert rest <= OURS, "what a command needs it imports when it runs"


NAMES_ARE_THERE = """
import aioflow.worker.__main__, sys
print("task" in vars(sys.modules["aioflow"]))
"""


@pytest.mark.process
def test_in_a_child_the_public_names_are_there_before_user_code_runs():
    done = subprocess.run(
        [sys.executable, "-c", NAMES_ARE_THERE], capture_output=True, text=True, check=True
    )

    assert done.stdout == "True\n"


def test_the_facade_has_the_public_names_and_no_other():
    import aioflow
    from aioflow.author import public

    assert tuple(aioflow.__all__) == tuple(public.__all__)
    assert all(getattr(aioflow, name) is getattr(public, name) for name in public.__all__)
    assert set(public.__all__) <= set(dir(aioflow))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(aioflow, "nothing")  # noqa: B009 - a type checker would see that it is not there
