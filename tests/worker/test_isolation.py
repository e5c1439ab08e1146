"""The parser detects what importing a file changes in its process, and reports it with the DAGs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aioflow.core.state.child_roles import ASKED_FOR
from aioflow.protocol.commands import Parse
from aioflow.protocol.reports import Parsed
from aioflow.worker.code.shared_state import _PROBES
from tests.changes import CHANGES, HARMLESS
from tests.worker.peer import Child

pytestmark = pytest.mark.process

FLOW = """
{0}
from aioflow import dag, task

@task
def work() -> None:
    pass

@dag({1})
def flow():
    work()
"""


class Parser:
    """One parser for all files of this module."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "code").mkdir()
        (folder / "results").mkdir()
        self._child = Child("parser", folder, started=True)

    def close(self) -> None:
        self._child.__exit__(None, None, None)

    def parse(self, change: str, options: str = "", **modules: str) -> Parsed:
        """Return the result of parsing a DAG file that begins with this code."""
        for name, source in ({"flow": FLOW.format(change, options)} | modules).items():
            (self._folder / f"{name}.py").write_text(source)
        self._child.send(Parse(str(self._folder), "flow.py"))
        return self._child.expect(Parsed)


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parser]:
    parser = Parser(tmp_path_factory.mktemp("parser"))
    yield parser
    parser.close()


def reasons(parsed: Parsed) -> str:
    assert parsed.failures == ()
    [dag] = parsed.dags
    return "; ".join(dag.isolated)


@pytest.mark.parametrize("said", CHANGES)
def test_a_change_that_others_would_see_is_named(parser, said):
    found = reasons(parser.parse(CHANGES[said]))

    assert f"importing the file {said.removesuffix(' of this thread')}" in found


@pytest.mark.parametrize("code", HARMLESS.values(), ids=HARMLESS.keys())
def test_changes_that_no_other_dag_sees_do_not_count(parser, code):
    assert reasons(parser.parse(code)) == ""


def test_every_kind_of_state_that_is_compared_is_tried():
    untried = [name for name in _PROBES if f"changes {name}" not in CHANGES]

    assert not untried


def test_the_values_of_variables_are_not_told(parser):
    found = reasons(parser.parse("import os\nos.environ['TOKEN'] = 's3cret'"))

    assert "TOKEN" in found
    assert "s3cret" not in found


def test_changes_by_a_module_beside_the_file_count_for_the_file(parser):
    found = reasons(parser.parse("import beside", beside=CHANGES["replaces sqlite3.connect"]))

    assert found == "importing the file replaces sqlite3.connect"


def test_changes_by_a_library_count_for_the_file_that_imports_it(parser, tmp_path):
    (tmp_path / "changing_library.py").write_text("import os\nos.environ['OF_LIBRARY'] = '1'")
    code = f"import sys\nsys.path.append({str(tmp_path)!r})\nimport changing_library"

    assert reasons(parser.parse(code)) == "importing the file sets os.environ['OF_LIBRARY']"


def test_a_library_that_puts_its_own_names_in_order_changes_nothing(parser, tmp_path):
    package = tmp_path / "orderly_library"
    package.mkdir()
    (package / "__init__.py").write_text("def connect(): pass\nLEVEL = 0")
    (package / "fast.py").write_text(
        "import orderly_library\norderly_library.connect = print\norderly_library.LEVEL = 1"
    )
    code = (
        f"import sys\nsys.path.append({str(tmp_path)!r})\n"
        "import orderly_library\nimport orderly_library.fast"
    )

    assert reasons(parser.parse(code)) == ""


def test_replacing_names_that_all_hosts_need_is_refused(parser):
    parsed = parser.parse("import json\njson.dumps = len")

    assert parsed.dags == ()
    assert [failure.reason for failure in parsed.failures] == ["patched"]


def test_an_author_may_ask_for_hosts_of_its_own(parser):
    assert reasons(parser.parse("", "isolated=True")) == ASKED_FOR


def test_the_next_file_of_the_same_parser_has_nothing_of_the_one_before(parser):
    parser.parse("\n".join(CHANGES.values()))

    assert reasons(parser.parse("")) == ""
