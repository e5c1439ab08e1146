"""The interpreter that a DAG file chooses is read from files, without running any code."""

from __future__ import annotations

import os

import pytest

from aioflow.catalog import interpreter_choice
from aioflow.catalog.folder_scan import scan
from aioflow.catalog.interpreter_choice import (
    HEADER_LINES,
    InterpreterChoice,
    choice_of_file,
    name_in_comment,
)

CHOICE = b'# aioflow: python = "lab"\n'


@pytest.mark.parametrize(
    ("content", "name"),
    [
        pytest.param(CHOICE, "lab", id="plain"),
        pytest.param(b"#aioflow:python='lab'", "lab", id="terse"),
        pytest.param(b"#  aioflow:  python  =  lab  \r\n", "lab", id="bare"),
        pytest.param(b'"""Doc."""\n\n' + CHOICE, "lab", id="below-docstring"),
        pytest.param(b"\xef\xbb\xbf#!/usr/bin/env python\n" + CHOICE, "lab", id="below-mark"),
        pytest.param(b'# aioflow: python = ""\n', "", id="ours"),
        pytest.param(CHOICE + b'# aioflow: python = "other"', "lab", id="first-wins"),
        pytest.param(b"x\n" * (HEADER_LINES - 1) + CHOICE, "lab", id="last-line"),
        pytest.param(b"x\n" * HEADER_LINES + CHOICE, None, id="too-low"),
        pytest.param(b'    # aioflow: python = "lab"\n', None, id="indented"),
        pytest.param(b'text = 1  # aioflow: python = "lab"\n', None, id="behind-code"),
        pytest.param(b'# aioflow: files = ["a"]\n', None, id="another-comment"),
        pytest.param(b"", None, id="empty"),
        pytest.param(b'# aioflow: python = "\xff"', "\ufffd", id="undecodable"),
    ],
)
def test_a_comment_in_the_first_lines_names_it(content, name):
    assert name_in_comment(content) == name


def chosen(folder, before=None):
    """Return the result of a scan. Check that looking up single files gives the same."""
    found = {} if before is None else before.files
    seen = scan([folder], found)
    choices = {name: one.interpreter for name, one in seen.files.items()}
    assert {name: choice_of_file(folder, name) for name in choices} == choices
    return seen, {name: one.name or one.problem for name, one in choices.items()}


def test_the_comment_counts_and_then_the_nearest_folder_that_names_one(tmp_path):
    for name, content in {
        "a.py": b"import aioflow",
        "b.py": CHOICE,
        "team/aioflow.toml": b'python = "team"\nfiles = ["x"]',
        "team/a.py": b"import aioflow",
        "team/b.py": CHOICE,
        "team/ours.py": b'# aioflow: python = ""',
        "team/deep/deeper/a.py": b"import aioflow",
        "team/inner/aioflow.toml": b'python = "inner"',
        "team/inner/a.py": b"import aioflow",
        "team/back/aioflow.toml": b'python = ""',
        "team/back/a.py": b"import aioflow",
        "team/same/aioflow.toml": b"files = []",
        "team/same/a.py": b"import aioflow",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)

    assert chosen(tmp_path)[1] == {
        "a.py": "",
        "b.py": "lab",
        "team/a.py": "team",
        "team/b.py": "lab",
        "team/ours.py": "",
        "team/deep/deeper/a.py": "team",
        "team/inner/a.py": "inner",
        "team/back/a.py": "",
        "team/same/a.py": "team",
    }


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("python = ", "team/aioflow.toml is not understood: "),
        ("python = 3", "python in team/aioflow.toml must be a text, not 3"),
        ("python = ['lab']", "python in team/aioflow.toml must be a text"),
    ],
)
def test_a_table_that_is_not_understood_is_no_choice_of_ours(tmp_path, content, problem):
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "aioflow.toml").write_text(content)
    (tmp_path / "team" / "a.py").write_text("import aioflow")
    (tmp_path / "team" / "b.py").write_bytes(CHOICE)
    (tmp_path / "other.py").write_text("import aioflow")

    found = chosen(tmp_path)[1]
    assert found["team/a.py"].startswith(problem)
    assert (found["team/b.py"], found["other.py"]) == ("lab", "")


def test_a_changed_table_changes_the_files_of_its_folder_alone(tmp_path):
    table = tmp_path / "team" / "aioflow.toml"
    table.parent.mkdir()
    table.write_text('python = "one"')
    (tmp_path / "team" / "a.py").write_text("import aioflow")
    (tmp_path / "b.py").write_text("import aioflow")
    before, _ = chosen(tmp_path)

    table.write_text('python = "two"')
    os.utime(table, ns=(1, 1))
    after, found = chosen(tmp_path, before)
    assert found["team/a.py"] == "two"
    assert after.files["b.py"] is before.files["b.py"]
    table.unlink()
    assert chosen(tmp_path, after)[1]["team/a.py"] == ""


def test_an_unchanged_table_is_read_once(tmp_path, monkeypatch):
    (tmp_path / "aioflow.toml").write_text('python = "lab"')
    (tmp_path / "a.py").write_text("import aioflow")
    before, _ = chosen(tmp_path)
    monkeypatch.delattr(interpreter_choice, "tomllib")

    assert chosen(tmp_path, before)[0].files["a.py"] is before.files["a.py"]


def test_no_choice_is_that_of_the_daemon():
    assert InterpreterChoice() == interpreter_choice.OURS
