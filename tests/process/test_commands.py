"""Every example in the command reference prints the output shown there, with a real daemon."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioflow.cli import command_parser
from benchmarks.daemon import DaemonProcess, eventually
from tests.commands import words_of
from tests.process.preloaded import program

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
END = "<end of {}>"


def examples() -> list[tuple[str, list[str]]]:
    """Return each command of the reference with its expected lines."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def pattern(lines: list[str]) -> str:
    """Return a pattern for these lines.

    In a line, ``...`` matches any text; alone, it matches any number of lines. Blanks match blanks
    of any width.
    """

    def of_line(line: str) -> str:
        parts = (re.escape(plain(part)) for part in line.split("..."))
        return r"[^\n]*".join(parts) + r"\n"

    return "".join(r"(?:[^\n]*\n)*?" if line == "..." else of_line(line) for line in lines)


def plain(text: str) -> str:
    """Return a text in which each run of blanks is reduced to one."""
    return "\n".join(re.sub(r"\s+", " ", line).strip() for line in text.split("\n"))


def test_a_pattern_takes_what_is_meant_and_no_more():
    wanted = pattern(["a  b", "...", "c ... d"])

    assert re.fullmatch(wanted, plain("a b\nc x y d\n"))
    assert re.fullmatch(wanted, plain("a   b \nx\ny\nc z d\n"))
    assert not re.fullmatch(wanted, plain("a\nc z d\n"))
    assert not re.fullmatch(wanted, plain("a b\nc z d\nmore\n"))


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.timeout(900)
def test_every_example_prints_what_the_reference_says(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "dags").mkdir()
    (dag,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "dags" / "daily.py").write_text(dag)
    (tmp_path / "none").mkdir()
    told = examples()
    script = "".join(
        f"{command}\necho '{END.format(number)}'\n" for number, (command, _) in enumerate(told)
    )
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIOFLOW_")},
        "AIOFLOW_HOME": str(tmp_path / "home"),
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
    }

    daemon = DaemonProcess(tmp_path / "home", tmp_path / "dags")
    # A slow import would be listed as code that blocks a loop.
    daemon.environment = {**os.environ, "AIOFLOW_HOSTS__STALL_SECONDS": "3600"}
    with daemon, program(tmp_path / "bin"):
        eventually(lambda: daemon.items("/api/v1/dags"))
        done = subprocess.run(
            ["bash", "-c", script],
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    out, wrong = done.stdout, []
    for number, (command, lines) in enumerate(told):
        printed, found, out = out.partition(END.format(number) + "\n")
        assert found, f"{command!r} did not end:\n{printed}"
        if "Traceback" in printed or not re.fullmatch(pattern(lines), plain(printed)):
            wrong.append(f"$ {command}\n{printed}")
    assert not wrong, "\n".join(wrong)


def test_every_command_has_an_example():
    commands = words_of(command_parser(), "aioflow")
    leaves = {name for name in commands if not any(n.startswith(f"{name} ") for n in commands)}
    shown = " \n".join(command for command, _ in examples())

    missing = {name for name in leaves if not re.search(rf"\b{name}\b", shown)}

    assert missing == set()


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of all commands below it."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def test_no_option_takes_the_place_of_the_function_of_its_command():
    names = {action.dest for parser in parsers(command_parser()) for action in parser._actions}

    assert "run_id" in names
    assert "run" not in names


def groups() -> dict[str, argparse.ArgumentParser]:
    """Return the commands that have subcommands."""
    (nouns,) = (a for a in command_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {
        name: noun
        for name, noun in nouns.choices.items()
        if any(isinstance(action, argparse._SubParsersAction) for action in noun._actions)
    }


@pytest.mark.parametrize("name", groups())
def test_the_help_of_every_group_shows_one_of_these_examples(name):
    text = groups()[name].format_help()

    shown = re.search(r"^example:\n  (.+)$", text, re.MULTILINE)
    assert shown is not None, text
    assert shown[1].startswith(f"aioflow {name} ")
    assert any(shown[1] in command for command, _ in examples())
